"""Progress of a sweep, on stderr, and its best cell: the lowest in one figure, or the highest where more is better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.sweeps.store import Store
from sim.units import format_number, format_range
from simctl.text.progress import LiveLine

MORE_IS_BETTER = ("throughput", "goodput", "chance", "per_s", "tok_s")
LINES_EVERY_S = 10.0


class SweepProgress:
    """Shows how far a sweep is: cells done and left, the time left, the best cell so far."""

    def __init__(self, store: Store, labels: Sequence[Mapping[str, str]], figures: Sequence[str], requested: bool | None) -> None:
        self._store, self._labels, self._figures, self._line = store, labels, figures, LiveLine(requested)
        self._before = int(store.done.sum())

    def __call__(self) -> None:
        if (self._line.live and self._line.due()) or (self._line.lines and self._line.due(LINES_EVERY_S)):
            self._line.show(self._text())

    def end(self) -> None:
        """Leave a clean line; where lines are asked for, a last one."""
        if self._line.lines:
            self._line.show(self._text())
        self._line.end()

    def _text(self) -> str:
        done, count = int(self._store.done.sum()), len(self._labels)
        answered, left = done - self._before, count - done
        to_go = f", {duration(self._line.seconds / answered * left)} to go" if answered and left else ""
        return (
            f"{done} of {count} cells, {left} left{to_go}; best so far: {best_text(self._store, self._labels, self._figures) or 'none yet'}"
        )


def best_text(store: Store, labels: Sequence[Mapping[str, str]], figures: Sequence[str]) -> str:
    """`p99_ttft_ms 172 [168-177] at gpu H100, replicas 5`, in the first of the figures that any cell has; empty where there is none."""
    figure = next((name for name in figures if not np.isnan(store.arrays[name]).all()), None)
    if figure is None:
        return ""
    values = store.arrays[figure]
    best = int(np.nanargmax(values) if any(word in figure for word in MORE_IS_BETTER) else np.nanargmin(values))
    low, high = next(store.arrays[f"{figure}_{kind}"][best] for kind in ("rates_90", "interval") if f"{figure}_{kind}" in store.arrays)
    within = f" {format_range(low, high)}" if low == low else ""
    at = ", ".join(f"{key} {value}" for key, value in labels[best].items())
    return f"{figure} {format_number(values[best])}{within}{f' at {at}' if at else ''}"


def duration(seconds: float) -> str:
    """`12 s`, `3 min`, `2.5 h`."""
    for most, unit, text in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < most:
            return f"{max(1, seconds / unit):.0f} {text}"
    return f"{seconds / 3600:.1f} h"


def shape_text(dims: Any, shape: Any) -> str:
    """`gpu 2, replicas 6`."""
    return ", ".join(f"{dim} {count}" for dim, count in zip(dims, shape, strict=True)) or "nothing varied"
