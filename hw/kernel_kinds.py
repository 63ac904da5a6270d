"""What a kernel is for, told by its name: matrix products, attention, experts, copies, the rest.

Names are those of vLLM 0.23 on CUDA (cuBLAS and CUTLASS products, FlashAttention, Triton experts) and of PyTorch's operators on a CPU.
A name that says nothing of these is rest: norms, activations, sampling, what torch.compile fused.
"""

from __future__ import annotations

KINDS = ("matmul", "attention", "experts", "copies", "rest")
# Asked in this order: a fused mixture of experts is matrix products, too, and FlashAttention is built from CUTLASS.
_SAYS = (
    ("attention", ("flashattn", "flash::prepare", "flash_attn", "flash_fwd", "attention", "attn_fwd", "fmha", "paged_attn", "mla_decode")),
    ("experts", ("fused_moe", "moe::", "moe_", "grouped_gemm", "group_gemm", "grouped_mm")),
    ("matmul", ("nvjet", "gemm", "gemv", "splitkreduce", "cutlass::kernel", "wgmma", "cublas", "aten::mm", "aten::addmm", "aten::bmm",
                "aten::linear", "aten::matmul", "mkldnn_linear", "onednn", "scaled_mm")),
    ("copies", ("memcpy", "memset", "aten::copy_")),
)  # fmt: skip


def kind_of(name: str) -> str:
    """One of KINDS. A kernel that writes keys and values into the cache, or that torch.compile fused (named after all it was fused from,
    products and attention never among it), is rest whatever else its name speaks of.
    """
    lowered = name.lower()
    if "reshape_and_cache" in lowered or lowered.startswith(("triton_poi_", "triton_red_", "triton_per_")):
        return "rest"
    return next((kind for kind, words in _SAYS if any(word in lowered for word in words)), "rest")
