"""Bytes that the knee predictors need, for files that do not carry them."""

from __future__ import annotations

from sim.errors import UsageError


def knee_facts(model: str, gpu: str, weight_dtype: str, context_tokens: int) -> tuple[float, float, float]:
    """(weight bytes, KV bytes of one request, memory bytes)."""
    raise UsageError(f"{model} on {gpu} ({weight_dtype}, {context_tokens} tokens): give the columns weight_bytes, kv_bytes, memory_bytes")
