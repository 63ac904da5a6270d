"""Terms of the formula that a constant holds, each with the values of its constants at which nothing of it is left.

`make ablate` (studies.ablate) leaves out each of them, and each rate of sim.cost.rates.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Term(NamedTuple):
    """A term by its constants: (module of sim.cost, name, value without the term)."""

    name: str
    constants: tuple[tuple[str, str, Any], ...]


def terms() -> tuple[Term, ...]:
    """All of them."""
    never, sharp = 1e30, 24.0  # a size that is never reached; the exponent of a smooth maximum that is nearly the maximum
    return (
        Term("launches in pieces of graphs", (("layer_work", "PIECES", 0.0),)),
        Term("launches of a layer of experts", (("mlp_work", "EXPERT_LAUNCHES", 1.0),)),
        Term("kernels of a layer of experts", (("mlp_work", "EXPERT_KERNELS", 1.0),)),
        Term("kernels of experts in mxfp4", (("mlp_work", "MXFP4_KERNELS", 0.0),)),
        Term("kernels of attention", (("mixer_work", "ATTENTION_KERNELS", 1.0),)),
        Term("launches of latent attention", (("mixer_work", "LATENT_LAUNCHES", 0.0), ("mixer_work", "LATENT_PIECES", 0.0))),
        Term("latent attention as heads", (("batch", "ABSORBED_TOKENS", never),)),
        Term("copies of expanded heads", (("mixer_work", "EXPANDING_COPIES", 0.0),)),
        Term("flops of expanded heads", (("mixer_work", "HEAD_PAIRS", 1.0),)),
        Term("launches of DeltaNet", (("mixer_work", "DELTA_LAUNCHES", 0.0), ("mixer_work", "DELTA_PIECES", 0.0))),
        Term("kernels of DeltaNet", (("mixer_work", "DELTA_KERNELS", 0.0),)),
        Term("launches of Mamba-2", (("mixer_work", "MAMBA2_LAUNCHES", 0.0), ("mixer_work", "MAMBA2_PIECES", 0.0))),
        Term("kernels of an indexer", (("mixer_work", "INDEX_KERNELS", 0.0), ("mixer_work", "INDEX_ROWS", never))),
        Term("fewest heads of sparse attention", (("mixer_work", "SPARSE_HEADS", 1),)),
        Term("kernels of adapters", (("lora_work", "KERNELS_PER_PROJECTION", 0.0), ("lora_work", "KERNELS_PER_ADAPTER", 0.0))),
        Term("launches of adapters", (("lora_work", "LAUNCHES_PER_PROJECTION", 0.0), ("lora_work", "PIECES_PER_PROJECTION", 0.0))),
        Term("slow rows of adapters", (("lora_work", "SLOWER_ROWS", 1.0),)),
        Term("floor of a GEMM that was not measured", (("gemm", "GEMM_KERNELS", 0.0),)),
        Term("floor of an 8-bit GEMM", (("gemm", "FLOOR_S", 0.0),)),
        Term("whole tiles of 8-bit GEMMs", (("gemm", "EIGHT_BIT_TILE", 1),)),
        Term("padding rows of 8-bit GEMMs", (("gemm", "PADDING", 0.0),)),
        Term("GEMMs shorter in graphs", (("gemm", "REPLAY_S", 0.0),)),
        Term("query rows of a block beside chunks", (("attention", "BLOCK_ROWS", 1),)),
        Term("8-bit caches read as elements", (("attention", "READ_SHARE", 0.0),)),
        Term(
            "shared KV read again from L2",
            (
                ("attention", "REREAD_SHARE", 1.0),
                ("attention", "HOPPER_REREAD_BYTES_PER_S", {128: 1.0}),
                ("attention", "LATENT_REREAD_BYTES_PER_S", 1.0),
            ),
        ),
        Term("smooth roofline", (("smooth", "P", sharp),)),
        Term("smooth hiding of launches", (("step_time", "LAUNCH_P", sharp),)),
        Term("all-reduce by measured group", (("all_reduce", "GROUPS", {}),)),
        Term("large all-reduces", (("all_reduce", "LARGE_SHARE", 1.0),)),
        Term("one-shot all-reduce", (("all_reduce", "ONE_SHOT_BYTES", {}),)),
        Term("all-to-all of experts", (("traffic", "ALL_TO_ALL_OPS", 0.0),)),
        Term("hand-over between stages", (("traffic", "HAND_OVER_OPS", 0.0),)),
    )
