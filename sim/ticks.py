"""The integer clock: time is counted in ticks of 2**-43 s (0.1 ps), so that any way of adding up gives the same instant.

64 bits hold twelve days of them.
"""

from __future__ import annotations

COMPLETION, ARRIVAL, DECISION = 0, 1, 2  # the order of events within one instant
TICKS_PER_S = 2**43
TICK_S = 2.0**-43
MOST_TICKS = 2**62  # six days: what is added to an instant before the next look at it still fits into 64 bits
TOO_LONG = "more simulated time than 64 bits of ticks hold"


def to_ticks(seconds: float) -> int:
    """The tick nearest to a time in seconds."""
    return round(seconds * TICKS_PER_S)
