"""Bytes per element by dtype, and the precisions one deployment runs at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.errors import UsageError
from sim.specs import gguf, nvfp4_files
from sim.specs.gpu import GpuSpec

if TYPE_CHECKING:
    from sim.specs.model import ModelSpec

# Microscaled 4-bit formats carry a shared 8-bit scale: one per 32 values (mxfp4), one per 16 (nvfp4). `w8a16` are 8-bit weights of 16-bit
# arithmetic. GGUF types are files of llama.cpp: most of their weights' bytes, the exact ones stand in `sim.specs.stored`.
STORES = {"awq": "int4", "gptq": "int4", "exl2": "int4", "w4a16": "int4"}  # formats by name -> what they store
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 4.25 / 8,
    "nvfp4": 4.5 / 8,
    "int4": 4.25 / 8,
    "w8a16": 1.0,
    **{name: gguf.nominal_bytes(name) for name in gguf.GGUF},
}
# As engines spell dtypes; auto is the checkpoint's
SPELT = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "auto": None}
SPELT |= dict.fromkeys(("fp8_e4m3", "fp8_e5m2"), "fp8") | {"int8_per_token_head": "int8"}
KV_OF_LLAMA_CPP = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
KV_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8", "nvfp4", *KV_OF_LLAMA_CPP)
STATE_BYTES = 4.0  # recurrent state is float32 in every engine looked at (reference: gdn/state_dtypes.csv)
ACTIVATION_BYTES = 2.0


WEIGHT_ONLY = ("int4", "w8a16", *gguf.GGUF)  # weights that no matrix unit computes in


@dataclass(frozen=True, slots=True)
class Precision:
    """Weight and KV-cache dtypes. GEMMs run at the rate of `weights` where the GPU has it, else at bf16.

    `kernel` is that of quantised linear layers where an engine chose it (sim.specs.linear_kernels), empty for its default.
    """

    weights: str = "bf16"
    kv: str = "bf16"
    kernel: str = ""

    def __post_init__(self) -> None:
        if self.weights not in DTYPE_BYTES:
            if (stores := STORES.get(self.weights.split("_")[0])) is not None:
                raise UsageError(f"{self.weights} is a format of {stores} weights: give {stores}, or a checkpoint's name that ends in it")
            raise UsageError(f"unknown weight dtype {self.weights!r}; known: {', '.join(DTYPE_BYTES)}")
        if self.kv not in KV_DTYPES:
            raise UsageError(f"unknown KV-cache dtype {self.kv!r}; known: {', '.join(KV_DTYPES)}")

    @property
    def weight_bytes(self) -> float:
        return DTYPE_BYTES[self.weights]

    @property
    def kv_bytes(self) -> float:
        return DTYPE_BYTES[self.kv]


def arithmetic(weights: str, gpu: GpuSpec) -> str:
    """The dtype that GEMMs are computed in: the weights' own where the GPU has it, else 16 bits (weight-only kernels)."""
    own = {"mxfp4": "fp4", "nvfp4": "fp4"}.get(weights, "bf16" if weights in WEIGHT_ONLY else weights)
    for candidate in (own, "bf16", "fp16", "fp32"):
        if gpu.flops.get(candidate):
            return candidate
    raise ValueError(f"{gpu.name}: no flop rate in its spec")


def quantises(weights: str, gpu: GpuSpec | None) -> bool:
    """Whether activations are quantised before every GEMM."""
    return weights in ("fp8", "int8") and (gpu is None or arithmetic(weights, gpu) == weights)


def sixteen_bits(gpu: GpuSpec) -> str:
    """16-bit dtype of an engine for a model in bf16: fp16 on a GPU without bf16."""
    return "fp16" if "fp16" in gpu.flops and "bf16" not in gpu.flops else "bf16"


def served_precision(model: ModelSpec, gpu: GpuSpec, dtype: str | None = None, kv_dtype: str | None = None) -> Precision:
    """The precision that an engine serves a model in: as asked, else as its checkpoint is stored, else 16 bits."""
    sixteen, checkpoint = sixteen_bits(gpu), model.checkpoint
    dtype, kv_dtype = (SPELT.get(given.lower(), given.lower()) if given else None for given in (dtype, kv_dtype))
    weights = dtype or (checkpoint.dtype if checkpoint else sixteen)
    cached = checkpoint.kv_dtype if checkpoint and weights == checkpoint.dtype else None
    return Precision(weights, kv_dtype or cached or sixteen)


def checkpoint_notes(model: ModelSpec, precision: Precision) -> list[str]:
    """Notes on a checkpoint that was read, or that was set aside."""
    checkpoint = model.checkpoint
    if checkpoint is None:
        wider = precision.weights == "nvfp4" and nvfp4_files.leaves_out(model.name)
        return [
            *model.notes,
            *([f"nvfp4 of every linear layer: {model.name}-NVFP4 as published keeps more; name it"] if wider else []),
        ]
    if precision.weights != checkpoint.dtype:
        return [*model.notes, f"--dtype {precision.weights} sets aside how the checkpoint is stored ({checkpoint.said})."]
    cache = f"; KV cache {checkpoint.kv_dtype} by the checkpoint" if checkpoint.kv_dtype == precision.kv else ""
    return [*model.notes, f"weights as the checkpoint stores them ({checkpoint.said}){cache}; --dtype asks otherwise."]


def check_engine(precision: Precision, engine: str, gpu: GpuSpec | None = None) -> None:
    """Raise UsageError for GGUF types under an engine that does not serve them, and for a GPU that only llama.cpp serves on."""
    if gpu is not None and gpu.source.startswith("Apple") and engine != "llamacpp":
        raise UsageError(f"{gpu.name}: {engine} does not run on Apple GPUs; ask with --engine llamacpp")
    if precision.kv in KV_OF_LLAMA_CPP and engine != "llamacpp":
        raise UsageError(f"a KV cache of {precision.kv} is llama.cpp's: ask with --engine llamacpp, not {engine}")
    if precision.weights in gguf.GGUF and engine != "llamacpp":
        raise UsageError(f"{precision.weights} is a GGUF type of llama.cpp: ask with --engine llamacpp, or for {engine} with --dtype bf16")


def check_runs(precision: Precision, gpu: GpuSpec) -> None:
    """Raise UsageError for a dtype that engines refuse on this GPU. Weight-only kernels for 8- and 4-bit floats need Turing or later."""
    weights = precision.weights
    if "bf16" in (weights, precision.kv) and sixteen_bits(gpu) == "fp16":
        raise UsageError(f"{gpu.name} has no bf16: engines refuse it there; use fp16")
    before_turing = "fp16" in gpu.flops and "bf16" not in gpu.flops and "int8" not in gpu.flops
    if before_turing and weights in ("fp8", "int8", "mxfp4", "nvfp4"):
        raise UsageError(f"{gpu.name} runs no {weights} weights: no engine has kernels for it there")


def arithmetic_note(precision: Precision, gpu: GpuSpec) -> str:
    """Note on weights narrower than their arithmetic; empty where both are the same."""
    used = arithmetic(precision.weights, gpu)
    if precision.weight_bytes >= DTYPE_BYTES[used if used in DTYPE_BYTES else precision.weights]:
        return ""
    kernels = f"weight-only kernels{precision.kernel and f': {precision.kernel}'}"
    why = "" if precision.weights in WEIGHT_ONLY else f"{gpu.name} has no arithmetic for it: "
    return f"{precision.weights} weights: {why}they are read as {precision.weights} and computed in {used} ({kernels})."
