"""Bytes per element by dtype, and the precisions one deployment runs at."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UsageError
from sim.specs.gpu import GpuSpec

# Microscaled 4-bit formats carry a shared 8-bit scale: one per 32 values (mxfp4), one per 16 (nvfp4).
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "mxfp4": 4.25 / 8,
    "nvfp4": 4.5 / 8,
    "int4": 4.25 / 8,
}
KV_DTYPES = ("fp32", "bf16", "fp16", "fp8", "int8")
STATE_BYTES = 4.0  # recurrent state is float32 in every engine looked at (reference: gdn/state_dtypes.csv)
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Precision:
    """Weight and KV-cache dtypes. Matrix products run at the rate of `weights` where the GPU has it, else at bf16."""

    weights: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        if self.weights not in DTYPE_BYTES:
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
    """The dtype that matrix products are computed in: the weights' own where the GPU has it, else 16 bits (weight-only kernels)."""
    own = {"mxfp4": "fp4", "nvfp4": "fp4", "int4": "bf16"}.get(weights, weights)
    for candidate in (own, "bf16", "fp16", "fp32"):
        if gpu.flops.get(candidate):
            return candidate
    raise ValueError(f"{gpu.name}: no flop rate in its spec")


def quantises(weights: str, gpu: GpuSpec | None) -> bool:
    """Whether activations are quantised before every matrix product."""
    return weights in ("fp8", "int8") and (gpu is None or arithmetic(weights, gpu) == weights)


def sixteen_bits(gpu: GpuSpec) -> str:
    """What an engine takes for a model in bf16: fp16 on a GPU without bf16."""
    return "fp16" if "fp16" in gpu.flops and "bf16" not in gpu.flops else "bf16"


def check_runs(precision: Precision, gpu: GpuSpec) -> None:
    """Raise UsageError for a dtype that engines refuse on this GPU. Weight-only kernels for 8- and 4-bit floats need Turing or later."""
    weights = precision.weights
    if "bf16" in (weights, precision.kv) and sixteen_bits(gpu) == "fp16":
        raise UsageError(f"{gpu.name} has no bf16: engines refuse it there; use fp16")
    before_turing = "fp16" in gpu.flops and "bf16" not in gpu.flops and "int8" not in gpu.flops
    if before_turing and weights in ("fp8", "int8", "mxfp4", "nvfp4"):
        raise UsageError(f"{gpu.name} runs no {weights} weights: no engine has kernels for it there")


def arithmetic_note(precision: Precision, gpu: GpuSpec) -> str:
    """What an answer must say of weights narrower than their arithmetic; empty where both are the same."""
    used = arithmetic(precision.weights, gpu)
    if precision.weight_bytes >= DTYPE_BYTES[used if used in DTYPE_BYTES else precision.weights]:
        return ""
    why = "" if precision.weights == "int4" else f"{gpu.name} has no arithmetic for it: "
    return f"{precision.weights} weights: {why}they are read as {precision.weights} and computed in {used} (weight-only kernels)."
