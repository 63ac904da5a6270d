"""Draft tokens of the engine in rows: how many of those that an iteration verifies are accepted.

Draws hang on the seed, the request and its progress alone, so that runs that schedule differently still see the same luck.
"""

from __future__ import annotations

from sim.engine.rows.layout import Core, EngineRow

WORD = 0xFFFFFFFF


def accepted(e: Core, s: EngineRow, r: int, drafts: int) -> int:
    """Number of a request's draft tokens that the model accepts now."""
    row = e.requests[r]
    for place in range(drafts):
        if luck(s.seed, row.luck, row.generated, place) >= e.acceptance[place]:
            return place
    return drafts


def luck(seed: int, key: int, progress: int, place: int) -> float:
    """A draw in [0, 1): the mixed bits of four numbers (an integer hash of 32 bits with low bias, twice)."""
    mixed = mix((key + seed * 0x9E3779B1) & WORD)
    return mix((mixed + progress * 0x85EBCA6B + place * 0x27D4EB2F) & WORD) / 4294967296.0


def mix(bits: int) -> int:
    """32 bits from 32 bits, each hanging on all of them."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & WORD
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & WORD
    return bits ^ (bits >> 16)
