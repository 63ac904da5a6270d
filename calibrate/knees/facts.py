"""Bytes that the knee predictors need, from the catalogues, for files that do not carry them."""

from __future__ import annotations

from sim.bill import coefficients, decode_shape
from sim.memory import resident_weight_bytes
from sim.precision import Precision
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model


def knee_facts(model: str, gpu: str, weight_dtype: str, context_tokens: int) -> tuple[float, float, float]:
    """(resident weight bytes, KV bytes that a decode step reads of one request, device memory bytes).

    Sliding-window layers count at most their window. Raises UsageError on a name that no catalogue knows.
    """
    spec, precision = get_model(model), Precision(weight_dtype)
    c, shape = coefficients(spec, precision), decode_shape(spec, 1.0, float(context_tokens))
    kv = shape.decode_context * c.kv_token_bytes + shape.decode_window * c.window_token_bytes
    return resident_weight_bytes(spec, precision), float(kv), float(get_gpu(gpu).memory_bytes)
