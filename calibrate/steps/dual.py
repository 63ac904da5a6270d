"""Forward-mode differentiation of the step-time formula: numbers that carry their derivatives.

The formula runs on duals as it runs on floats and arrays, so its Jacobian over cells needs neither a compiler nor finite differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

CUBE_ROOT = 1.0 / 3.0
TINY = 1e-300  # beside a zero whose power is taken: its derivative is zero, too


class Dual:
    """A value (float or array) and its derivatives by the index of what they are taken to; an absent one is zero."""

    __array_ufunc__ = None  # arrays leave operations with duals to them
    __slots__ = ("slopes", "value")

    def __init__(self, value: Any, slopes: Mapping[int, Any]) -> None:
        self.value, self.slopes = value, slopes

    def __add__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.slopes)
        slopes = dict(self.slopes)
        for i, slope in other.slopes.items():
            slopes[i] = slopes[i] + slope if i in slopes else slope
        return Dual(self.value + other.value, slopes)

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Dual):
            both = self._scaled(other.value) + other._scaled(self.value)
            return Dual(self.value * other.value, both.slopes)
        return 0.0 if _nothing(other) else self._scaled(other)

    def __sub__(self, other: Any) -> Dual:
        return self + (other._scaled(-1.0) if isinstance(other, Dual) else -other)

    def __rsub__(self, other: Any) -> Dual:
        return self._scaled(-1.0).__add__(other)

    def __truediv__(self, other: Any) -> Any:
        return self * other**-1.0 if isinstance(other, Dual) else self._scaled(1.0 / other)

    def __rtruediv__(self, other: Any) -> Any:
        return 0.0 if _nothing(other) else self**-1.0 * other

    def __pow__(self, exponent: float) -> Dual:
        value = _power(self.value, exponent)
        slope = exponent * value / (self.value + TINY)
        return Dual(value, {i: slope * own for i, own in self.slopes.items()})

    __radd__, __rmul__ = __add__, __mul__

    def _scaled(self, factor: Any) -> Dual:
        return Dual(self.value * factor, {i: slope * factor for i, slope in self.slopes.items()})


class DualNamespace:
    """Array namespace of the formula, for duals."""

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        """The lesser of two times, element by element, with its derivatives."""
        if _nothing(a) or _nothing(b):
            return 0.0  # no time is negative
        first = _value(a) < _value(b)
        return a * first + b * (1.0 - first)


def exp(score: Dual) -> Dual:
    """The exponential."""
    value = np.exp(score.value)
    return Dual(value, {i: value * slope for i, slope in score.slopes.items()})


def _value(number: Any) -> Any:
    return number.value if isinstance(number, Dual) else number


def _nothing(number: Any) -> bool:
    """Whether it is a plain zero: a term that no cell has stays one."""
    return isinstance(number, float) and number == 0.0


def _power(base: Any, exponent: float) -> Any:
    if exponent == CUBE_ROOT:
        return np.cbrt(base)
    if exponent in (3.0, 6.0):
        cube = base * base * base
        return cube if exponent == 3.0 else cube * cube
    return base**exponent
