"""Parse and print the units of the field: token counts with binary suffixes, byte counts, seconds.

`1M` of context is 2**20 tokens, as model cards mean it; bytes are printed in decimal GB, as datasheets mean them.
"""

from __future__ import annotations

import re

from sim.errors import UsageError

_TOKENS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*")
_FACTOR = {"": 1, "k": 2**10, "m": 2**20}
MAX_TOKENS = 2**32


def parse_tokens(text: str | int) -> int:
    """Token count from `131072`, `128K` (x 2**10) or `1M` (x 2**20).

    Raises UsageError when it is not such a number, is not whole, is < 1 or exceeds 2**32.
    """
    match = _TOKENS.fullmatch(str(text))
    if not match:
        raise UsageError(f"not a token count: {str(text)!r} (examples: 8192, 128K, 1M; K = 2**10, M = 2**20)")
    value = float(match[1]) * _FACTOR[match[2].lower()]
    if value <= MAX_TOKENS and value != int(value):
        raise UsageError(f"token count must be whole: {str(text)!r} is {value:g}")
    if not 1 <= value <= MAX_TOKENS:
        raise UsageError(f"token count out of range 1..2**32: {str(text)!r}")
    return int(value)


def format_tokens(tokens: int) -> str:
    """`1M`, `128K` or plain digits: the inverse of parse_tokens."""
    for suffix, factor in (("M", 2**20), ("K", 2**10)):
        if tokens >= factor and tokens % factor == 0:
            return f"{tokens // factor}{suffix}"
    return str(tokens)


def about_tokens(tokens: float) -> str:
    """A token count to the digits an estimate deserves: `870`, `9.2K`, `35K`, `168K`, `1.5M` (K = 2**10, M = 2**20)."""
    for suffix, factor in (("M", 2**20), ("K", 2**10)):
        if tokens >= 0.9995 * factor:
            value = tokens / factor
            return f"{value:.0f}{suffix}" if value >= 9.95 else f"{value:.1f}".removesuffix(".0") + suffix
    return f"{tokens:.0f}"


def format_bytes(count: float) -> str:
    """Decimal bytes: `60.1 GB`, `470 MB`."""
    for suffix, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {suffix}" if count / factor < 100 else f"{count / factor:.1f} {suffix}"
    return f"{count:.0f} B"


def format_number(value: float, digits: int = 4) -> str:
    """A figure to `digits` significant digits, never with an exponent above 1: `0.0123`, `12.35`, `366,400`; `n/a` for NaN."""
    if value != value:
        return "n/a"
    if abs(value) >= 10**digits:
        places = len(f"{abs(value):.0f}") - digits
        return f"{round(value, -places):,.0f}"
    return f"{value:.{digits}g}"


def format_range(low: float, high: float) -> str:
    """An interval, `[1.23-4.56]`, to three significant digits: its ends deserve no more."""
    return f"[{format_number(low, 3)}-{format_number(high, 3)}]"


def format_seconds(seconds: float) -> str:
    """`2.51 s`, `164 ms`, `43.0 us`."""
    for suffix, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {suffix}"
    return f"{seconds * 1e9:.3g} ns"
