"""The array namespaces the formula runs in: plain floats here; numpy and PyTensor bring their own."""

from __future__ import annotations


class FloatNamespace:
    """Scalar stand-ins for the array functions the formula uses (a scalar `min` is several times faster than numpy's)."""

    @staticmethod
    def minimum(a: float, b: float) -> float:
        return a if a < b else b

    @staticmethod
    def maximum(a: float, b: float) -> float:
        return a if a > b else b


FLOAT = FloatNamespace()
