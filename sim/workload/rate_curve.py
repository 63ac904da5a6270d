"""Rate curves: how many calls come per second over a day, from a file or packaged, and the arrival times that they make.

A file is CSV with the header `time_s,rate` or `hour,rate`. A rate holds until the next row, the last one as long as the one before it, and
then the curve begins again. Lines that begin with # are comments.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.specs.lookup import build_index, given_path, key, unknown
from sim.workload.lines import csv_cells, csv_float, numbered_lines
from sim.workload.trace import MAX_TIME_S

_FOLDER = Path(__file__).parent / "data"
UNITS_S = {"time_s": 1.0, "hour": 3600.0}
MOST_ROWS = 1_000_000
LEAST_PER_S, MOST_PER_S = 1e-9, 1e9  # beyond, a rate is a unit mistake, and sums of rates could overflow
LIMITS = f"{LEAST_PER_S:g} to {MOST_PER_S:g} per second"
SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class RateCurve:
    """Calls per second: `rates_per_s[i]` from `edges_s[i]` to `edges_s[i + 1]`, then all over again. Shapes [rows], [rows + 1]."""

    name: str
    edges_s: NDArray[np.float64]
    rates_per_s: NDArray[np.float64]

    @property
    def mean_per_s(self) -> float:
        return float(self._cumulative()[-1] / self.edges_s[-1])

    @property
    def digest(self) -> str:
        """sha256 of its numbers."""
        return hashlib.sha256(self.edges_s.tobytes() + self.rates_per_s.tobytes()).hexdigest()

    def scaled_to(self, mean_per_s: float) -> RateCurve:
        """The same curve with this mean. Raises UsageError for one that is no rate."""
        if not LEAST_PER_S <= mean_per_s <= MOST_PER_S:
            raise UsageError(f"the request rate of a curve must be positive and finite, {LIMITS}, got {mean_per_s:g}")
        return replace(self, rates_per_s=self.rates_per_s * (mean_per_s / self.mean_per_s))

    def calls(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected number of calls until each time: the integral of the rate."""
        cumulative, period_s = self._cumulative(), self.edges_s[-1]
        rounds = np.floor(times_s / period_s)
        expected: NDArray[np.float64] = rounds * cumulative[-1] + np.interp(times_s - rounds * period_s, self.edges_s, cumulative)
        return expected

    def times(self, calls: NDArray[np.float64]) -> NDArray[np.float64]:
        """Times at which so many calls are expected: inverse of `calls`. Arrivals of rate 1 become those of this rate (time rescaling)."""
        cumulative, period_s = self._cumulative(), self.edges_s[-1]
        rounds = np.floor(calls / cumulative[-1])
        within = calls - rounds * cumulative[-1]
        busy = np.flatnonzero(self.rates_per_s)  # nothing comes in the other rows
        row = busy[np.searchsorted(cumulative[busy], within, side="right") - 1]
        at_s = self.edges_s[row] + (within - cumulative[row]) / self.rates_per_s[row]
        times: NDArray[np.float64] = rounds * period_s + np.minimum(at_s, self.edges_s[row + 1])
        return times

    def _cumulative(self) -> NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(self.rates_per_s * np.diff(self.edges_s))])


def list_curves() -> list[str]:
    """Names of the packaged curves."""
    return sorted(path.stem for path in _FOLDER.glob("*.csv"))


def load_curve(named: str | Path) -> RateCurve:
    """A packaged curve by its name, or a file. Raises UsageError naming file and line, OSError when it cannot be read."""
    path = named if isinstance(named, Path) else given_path(named, (".csv",))
    if path is None:
        index = build_index((name, ()) for name in list_curves())
        found = index.get(key(str(named)))
        if found is None:
            raise unknown("rate curve", str(named), index, list_curves(), "; or a CSV file of time_s,rate or hour,rate")
        path = _FOLDER / f"{found}.csv"
    if not path.exists():
        raise UsageError(f"{path}: no such file; rate curves of simctl: {', '.join(list_curves())}")
    starts, rates = zip(*_rows(path), strict=True)
    if not any(rates):
        raise UsageError(f"{path.name}: every rate is 0")
    last_s = starts[-1] - starts[-2] if len(starts) > 1 else 3600.0
    return RateCurve(path.stem, np.array([*starts, starts[-1] + last_s]), np.array(rates))


def _rows(path: Path) -> Iterator[tuple[float, float]]:
    """Start in seconds and calls per second of every row, at least one."""
    unit_s, before_s, rows = 0.0, -math.inf, 0
    for number, line in numbered_lines(path):
        if line.startswith("#"):
            continue
        where = f"{path.name}: line {number}"
        cells = [cell.strip() for cell in csv_cells(line, where)]
        if not unit_s:
            unit_s = _unit_s(cells, where)
            continue
        if len(cells) != 2:
            raise UsageError(f"{where}: expected 2 cells, got {len(cells)}")
        start_s, rate = unit_s * csv_float(cells[0], "time", where), csv_float(cells[1], "rate", where)
        if not rows and start_s != 0.0:
            raise UsageError(f"{where}: the first row must be at time 0, got {cells[0]}")
        if not before_s + SHORTEST_S <= start_s <= MAX_TIME_S:
            raise UsageError(f"{where}: times must grow, by a millisecond at least, and be finite, got {cells[0]}")
        if rate and not LEAST_PER_S <= rate <= MOST_PER_S:
            raise UsageError(f"{where}: rate must be 0 or {LIMITS}, got {cells[1]}")
        before_s, rows = start_s, rows + 1
        if rows > MOST_ROWS:
            raise UsageError(f"{where}: more than {MOST_ROWS:,} rows")
        yield start_s, rate
    if not rows:
        raise UsageError(f"{path.name}: holds no rates")


def _unit_s(cells: list[str], where: str) -> float:
    if len(cells) != 2 or cells[0] not in UNITS_S or cells[1] != "rate":
        raise UsageError(f"{where}: the header must be time_s,rate or hour,rate, got {','.join(cells)[:40]!r}")
    return UNITS_S[cells[0]]
