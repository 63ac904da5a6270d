"""The smooth maximum that prices and packaged products are told by."""

from __future__ import annotations

from typing import Any


def smooth_max(a: Any, b: Any, p: Any) -> Any:
    """(a**p + b**p)**(1/p): at least the larger, at most their sum (p >= 1)."""
    return (a**p + b**p) ** (1.0 / p)
