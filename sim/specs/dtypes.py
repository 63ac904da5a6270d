"""Bits per element of the formats weights and KV caches are stored in, block scales included."""

from __future__ import annotations

from sim.errors import UsageError
from sim.specs.lookup import did_you_mean

# Block formats carry one scale per block: MXFP4 8 bits per 32 elements, NVFP4 8 bits per 16, the usual 4-bit integer
# checkpoints (AWQ, GPTQ) a 16-bit scale and a 4-bit zero point per 128.
BITS: dict[str, float] = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "nvfp4": 4 + 8 / 16,
    "mxfp4": 4 + 8 / 32,
    "int4": 4 + 20 / 128,
}
_ALIASES = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


def dtype_name(name: str) -> str:
    """Canonical dtype name. Raises UsageError on an unknown one."""
    lowered = name.strip().casefold()
    canonical = _ALIASES.get(lowered, lowered)
    if canonical not in BITS:
        raise UsageError(f"unknown dtype {name!r}{did_you_mean(name, BITS) or ';'} known: {', '.join(BITS)}")
    return canonical


def bits_of(name: str) -> float:
    """Bits per element, e.g. 16.0 for `bf16`, 4.25 for `mxfp4`. Raises UsageError on an unknown dtype."""
    return BITS[dtype_name(name)]
