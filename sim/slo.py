"""Service level objectives: conditions on the figures of a run, all of which must hold.

ttft:p99<2s      a latency (ttft, tpot, e2el), its statistic (mean, p50, p90, p95, p99) and a time in ms or s
p99_ttft_ms<=2000   the same by the name of the figure, in ms
failed<1%        share of the requests that failed: turned away, given up, lost
good>=99%        share of the requests that met every limit of --goodput
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from sim.errors import UsageError

_LATENCY = re.compile(r"(ttft|tpot|e2el):(mean|p50|p90|p95|p99)<=?([0-9.]+)(ms|s)")
_FIGURE = re.compile(r"(mean|median|p50|p90|p95|p99)_(ttft|tpot|e2el)_ms<=?([0-9.]+)")
_SHARE = re.compile(r"(failed<=?|good>=?)([0-9.]+)(%?)")
EXAMPLES = "ttft:p99<2s tpot:p95<50ms failed<1% good>=99%"


@dataclass(frozen=True, slots=True)
class Condition:
    """A figure of the summary that is at most `limit`, or at least that."""

    text: str
    figure: str
    limit: float
    at_least: bool = False

    def limit_used(self, summary: Mapping[str, float]) -> float:
        """Share of the limit that is used: 1 at the limit, more beyond it. Infinite where the run has no such figure."""
        value = _figure(self.figure, summary)
        if value != value:
            return float("inf")
        if self.at_least:
            return (1.0 - value) / (1.0 - self.limit) if self.limit < 1.0 else float("inf" if value < 1.0 else 0)
        return value / self.limit if self.limit else float("inf" if value > 0.0 else 0)


def _figure(name: str, summary: Mapping[str, float]) -> float:
    if name == "failed":
        return summary["failed"] / summary["num_prompts"]
    if name == "good":
        return summary["request_goodput"] * summary["duration"] / summary["num_prompts"] if summary["completed"] else 0.0
    return summary[name]


def parse_slo(texts: Sequence[str], goodput: Mapping[str, float]) -> tuple[Condition, ...]:
    """Conditions of texts such as "ttft:p99<2s tpot:p95<50ms"; spaces or commas part them. Raises UsageError."""
    found: dict[str, Condition] = {}
    for text in (part for each in texts for part in re.split(r"[\s,]+", each.strip()) if part):
        condition = _condition(text)
        if condition.figure == "good" and not goodput:
            raise UsageError(f"{text}: what is a good request? give --goodput, for example ttft:200 tpot:50")
        if condition.figure in found:
            raise UsageError(f"{text}: {found[condition.figure].text} says that already")
        found[condition.figure] = condition
    for one, other in permutations(found.values(), 2):
        if _says_less(one, other):
            raise UsageError(f"{one.text} says nothing beside {other.text}: leave it out, or swap their limits")
    if not found:
        raise UsageError(f"an SLO needs a condition (examples: {EXAMPLES})")
    return tuple(found.values())


def limit_of(text: str) -> tuple[str, float]:
    """(figure, limit in ms) of one condition on a latency. Raises UsageError."""
    found = _condition(text.strip())
    if not found.figure.endswith("_ms"):
        raise UsageError(f"not a limit of a latency: {text!r} (examples: ttft:p99<2s, p99_ttft_ms<=2000)")
    return found.figure, found.limit


PERCENTILES = {"median": 50, "p90": 90, "p95": 95, "p99": 99}


def _says_less(one: Condition, other: Condition) -> bool:
    """Whether a condition on a percentile holds wherever a stricter one on a higher percentile of the same latency does."""
    (a, _, of_a), (b, _, of_b) = one.figure.partition("_"), other.figure.partition("_")
    known = a in PERCENTILES and b in PERCENTILES and of_a == of_b
    return known and PERCENTILES[a] < PERCENTILES[b] and one.limit >= other.limit


def _condition(text: str) -> Condition:
    share = _SHARE.fullmatch(text)
    if figure := _FIGURE.fullmatch(text):
        latency: tuple[str, ...] | None = (figure[2], figure[1], figure[3], "ms")
    else:
        latency = found.groups() if (found := _LATENCY.fullmatch(text)) else None
    try:
        if latency:
            name, statistic, number, unit = latency
            limit_ms = float(number) * (1e3 if unit == "s" else 1.0)
            if limit_ms > 0:
                return Condition(text, f"{'median' if statistic == 'p50' else statistic}_{name}_ms", limit_ms)
        elif share:
            name, number, percent = share.groups()
            limit = float(number) / (100.0 if percent else 1.0)
            if 0 <= limit <= 1:
                return Condition(text, name.rstrip("<=>"), limit, name.startswith("good"))
    except ValueError:
        pass
    raise UsageError(f"not a condition: {text!r} (examples: {EXAMPLES})")
