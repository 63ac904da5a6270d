"""A year of growth: units of one choice month by month, and which of them are worth a year's term."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.errors import UsageError
from sim.planning.choices import Choice
from sim.planning.day import TRIALS
from sim.planning.highest_rate import sustained

MONTHS = 12
MONTH_H = 8760 / MONTHS
STEP = 1.5  # between counts whose highest rate is simulated; between them it is interpolated
MOST_TIMES = 100.0


@dataclass(frozen=True, slots=True)
class Month:
    """Times the load of today, and the units for its busiest hour: None where the limits of the plan hold no such count."""

    times: float
    count: int | None
    gpus: int
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Year:
    """A year's months and bills in USD: every hour's count `on_demand`; the last month's count `reserved` all year; and the cheapest
    `mixed`, of which `kept` units are reserved. The last two None without a reserved price.
    """

    months: list[Month]
    on_demand_usd: float
    reserved_usd: float | None = None
    mixed_usd: float | None = None
    kept: int = 0

    def text(self) -> str:
        """The bills in a sentence."""
        if any(month.count is None for month in self.months):
            return "The limits of this plan end before the growth does."
        whole = f"A year of it on demand costs {self.on_demand_usd:,.0f} USD"
        if self.mixed_usd is None:
            return f"{whole}; --price FILE with reserved offers says what to reserve."
        rest = "and no more" if self.kept == self.months[-1].count else "and the rest on demand"
        all_kept = f"the last month's count reserved all year {self.reserved_usd:,.0f}"
        return f"{whole}, {all_kept}, {self.kept} reserved {rest} {self.mixed_usd:,.0f}."


def times_of(growth: float) -> list[float]:
    """Times today's load in each month, the same ratio from one to the next. UsageError for a growth that is none."""
    if not 1.0 < growth <= MOST_TIMES:
        raise UsageError(f"--growth is how many times today's load there is in a year, above 1 and at most {MOST_TIMES:g}, got {growth:g}")
    return [growth ** (month / (MONTHS - 1)) for month in range(MONTHS)]


def holds_of(choice: Choice, first: int, rate: float, most_gpus: int, highest: Callable[[int], float]) -> np.ndarray:
    """Requests per second that 1, 2, ... units hold, up to where `rate` is held or the plan's limits end.

    `highest` of a count is simulated.
    """
    most = choice.most(most_gpus)
    counts = sorted({1, first})  # a quiet hour may need fewer than today's busiest
    held = [highest(count) for count in counts]
    while held[-1] < rate and counts[-1] < most:
        wanted = math.ceil(counts[-1] * rate / held[-1]) if held[-1] > 0 else most
        counts.append(min(max(math.ceil(counts[-1] * STEP), counts[-1] + 1), max(wanted, counts[-1] + 1), most))
        held.append(highest(counts[-1]))
    found = np.interp(np.arange(1, counts[-1] + 1), [0, *counts], [0.0, *held])
    return np.maximum.accumulate(found)


def year_of(
    growth: float,
    hours: Sequence[float],
    choice: Choice,
    first: int,
    most_gpus: int,
    factors: Callable[[int, range], Sequence[float]],
    reserved: Mapping[str, float],
) -> Year:
    """Months of a load that is `growth` times today's in a year; `hours` are today's requests per second of each hour of a day, or one.

    `first` units hold today's busiest hour. `factors` of (count, trials) say how many times that rate each holds; `reserved` are USD per
    GPU-hour by GPU of a year's term, paid whether used or not. A unit is reserved where its share of used hours costs more on demand.
    """
    busiest, times = max(hours), times_of(growth)
    holds = holds_of(choice, first, busiest * growth, most_gpus, lambda count: sustained(factors(count, range(TRIALS)), busiest).per_s)
    # by its trials, the plan knows that today takes so many units and no fewer
    holds[first - 1 :] = np.maximum(holds[first - 1 :], busiest)
    holds[: first - 1] = np.minimum(holds[: first - 1], np.nextafter(busiest, 0.0))
    counts = np.array([[np.searchsorted(holds, rate * each) + 1 for rate in hours] for each in times])
    months = []
    for each, count in zip(times, counts.max(axis=1).tolist(), strict=True):
        fits = count <= len(holds)
        months.append(Month(each, count if fits else None, choice.gpus_of(count) if fits else 0, choice.cost(count) if fits else None))
    shares = [(counts >= unit).mean() for unit in range(1, counts.max() + 1)]
    each_usd = np.diff([0.0, *(choice.cost(unit) for unit in range(1, len(shares) + 1))])
    used_usd = np.array(shares) * each_usd * MONTHS * MONTH_H
    discount = _discount(choice, reserved)
    if discount is None:
        return Year(months, float(used_usd.sum()))
    kept_usd = each_usd * discount * MONTHS * MONTH_H
    mixed = np.minimum(used_usd, kept_usd)
    return Year(months, float(used_usd.sum()), float(kept_usd.sum()), float(mixed.sum()), int((kept_usd < used_usd).sum()))


def _discount(choice: Choice, reserved: Mapping[str, float]) -> float | None:
    """Reserved over on-demand price of a unit; None where a GPU of it has no reserved price."""
    if any(part.gpu not in reserved for part in choice.parts):
        return None
    dear = sum(part.replicas * part.price for part in choice.parts)
    return sum(part.replicas * part.gpus * reserved[part.gpu] for part in choice.parts) / dear
