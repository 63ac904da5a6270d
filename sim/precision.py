"""Bytes per element by dtype, and the precisions one deployment runs at."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UsageError

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
    def quantises(self) -> bool:
        """Whether activations are quantised before every matrix product."""
        return self.weights in ("fp8", "int8")

    @property
    def kv_bytes(self) -> float:
        return DTYPE_BYTES[self.kv]
