"""JSON that somebody else wrote, bounded before it is parsed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MOST_VALUES = 3 << 22  # some 0.6 GB of Python objects at most


def read_json(text: str, decoded: Callable[[str], Any] = json.loads) -> Any:
    """As json.loads (or `decoded`). Raises ValueError for whatever is wrong with it, too many values and too deep nesting included."""
    # a container of its own costs as much as four numbers do
    if text.count(",") + 4 * (text.count("[") + text.count("{")) > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        return decoded(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
