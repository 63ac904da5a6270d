"""The bandwidths of first and of further reads of shared KV are recovered from times that follow them."""

from __future__ import annotations

import pytest

from studies.shared_kv import bandwidths


def row(sequences: int, groups: int, shared: int, first: float, further: float) -> dict[str, str]:
    """A cell of 8 KV heads of 128: fixed 5 us, first and further reads in TB/s, one wave of blocks."""
    own, token_us = 512, 4096e-6
    again = (sequences - groups) * shared
    apart = 5.0 + token_us * sequences * (shared + own) / first
    together = apart - token_us * again * (1.0 / first - 1.0 / further)
    names = ("query_heads", "kv_heads", "head_dim", "sequences", "groups", "shared_tokens", "own_tokens", "shared_us", "private_us")
    return dict(zip(("gpu", *names), map(str, ("X", 32, 8, 128, sequences, groups, shared, own, together, apart)), strict=True))


def test_bandwidths_are_recovered_whatever_is_fixed_or_shared() -> None:
    cells = [row(n, groups, shared, 3.0, 8.0) for n in (8, 12, 16) for groups in (1, 2) for shared in (2048, 8192)]
    first, further, error = bandwidths(cells)
    assert (first, further) == (pytest.approx(3.0, rel=1e-6), pytest.approx(8.0, rel=0.01))
    assert error < 0.002
