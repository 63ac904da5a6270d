"""Published needle-recall trials as counts, and what is only known as a bound.

Four kinds of row stand in the table, and each enters as what it is:
  counts      successes of n trials (as printed, or the percentage of a printed n);
  bare rates  a percentage without n: kept, at the weight of the smallest trial that the source reports (UNSTATED_TRIALS);
  at least    "> 90 %": a count known only from below, at the same weight;
  bounds      "at least p with 97.5 %": an inequality with its confidence, never a count.
An observed rate and a confidence bound of the same cell are two faces of one count: the count is the one that implies both.
Source: scenarios/data/reference/brl07/needle_recall.csv.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import beta as beta_distribution

from sim.errors import UsageError
from sim.units import parse_tokens
from studies.reference_tables import Row, table

UNSTATED_TRIALS = 25
# Budget words of the source in blocks of 128 tokens: stated for the real-prose rows, carried over to rows that say only the word.
BUDGET_BLOCKS = {"cheap": 8, "mid": 16, "assured": 32, "larger budget 1": 16, "larger budget 2": 32, "lowest": 8, "highest": 32}
ONE_SIDED = 0.975


@dataclass(frozen=True, slots=True)
class NeedleTrial:
    """`successes` of `trials` needles found at (model, haystack, context, budget); `basis` says where n comes from.

    `successes` is not whole where only a rate is printed and n is not.
    """

    model: str
    haystack: str
    context_tokens: int
    k_blocks: int
    successes: float
    trials: int
    basis: str


@dataclass(frozen=True, slots=True)
class AtLeast:
    """`successes` or more of `trials` needles found: a count censored from above."""

    model: str
    haystack: str
    context_tokens: int
    k_blocks: int
    successes: int
    trials: int


@dataclass(frozen=True, slots=True)
class Bound:
    """Recall at the cell is at least `recall` with probability `confidence`; nothing else is known."""

    model: str
    haystack: str
    context_tokens: int
    k_blocks: int
    recall: float
    confidence: float


@dataclass(frozen=True)
class Evidence:
    """All usable rows, and in words what was left out."""

    trials: tuple[NeedleTrial, ...]
    at_least: tuple[AtLeast, ...]
    bounds: tuple[Bound, ...]
    left_out: tuple[str, ...]


def lower_bound(successes: int, trials: int, confidence: float = ONE_SIDED) -> float:
    """One-sided exact (Clopper-Pearson) lower confidence bound of a rate."""
    return 0.0 if successes == 0 else float(beta_distribution.ppf(1 - confidence, successes, trials - successes + 1))


def implied_trials(rate: float, bound: float, decimals: int = 3, most: int = 5000) -> int:
    """Smallest n whose nearest count to `rate` has a lower bound that prints as `bound`. UsageError when there is none."""
    for trials in range(1, most + 1):
        successes = round(rate * trials)
        if round(successes / trials, 2) == round(rate, 2) and round(lower_bound(successes, trials), decimals) == round(bound, decimals):
            return trials
    raise UsageError(f"no count up to {most} has rate {rate} and lower bound {bound}")


def published() -> Evidence:
    """The published rows that name a context, as evidence."""
    trials: list[NeedleTrial] = []
    at_least: list[AtLeast] = []
    bounds: list[Bound] = []
    left_out: list[str] = []
    rows = table("brl07", "needle_recall")
    paired = _bounds_of_observed(rows)
    for row in rows:
        where = f"{row['model']}, {row['context_label']}, {row['haystack']}, {row['budget_label'] or 'any budget'}"
        if not row["context_label"]:
            left_out.append(f"{where}: no context stated")
        elif "lower bound" in row["statistic"]:
            if _cell(row) not in paired:
                bounds.append(Bound(*_cell(row), _rate(row), ONE_SIDED))
        elif row["statistic"] == "observed lower":
            # "both tested budgets" up to the longest context: the hardest context stands for the range
            for blocks in (8, 32):
                model, haystack, context, _ = _cell(row)
                count = math.floor(_rate(row) * UNSTATED_TRIALS) + 1
                at_least.append(AtLeast(model, haystack, context, blocks, count, UNSTATED_TRIALS))
        else:
            trials.append(_trial(row, paired.get(_cell(row))))
    return Evidence(tuple(trials), tuple(at_least), tuple(bounds), tuple(left_out))


Key = tuple[str, str, int, int]


def _cell(row: Row) -> Key:
    # a success that names no budget is credited to the largest one: the reading that claims least
    context = parse_tokens(row["context_label"].removeprefix("up to "))
    blocks = int(row["k_blocks"]) if row["k_blocks"] else BUDGET_BLOCKS.get(row["budget_label"], 32)
    return row["model"], row["haystack"], context, blocks


def _rate(row: Row) -> float:
    text = row["recall"].lstrip(">")
    if row["recall_unit"] == "count":
        successes, trials = text.split("/")
        return int(successes) / int(trials)
    return float(text) / (100 if row["recall_unit"] == "pct" else 1)


def _trial(row: Row, bound: float | None) -> NeedleTrial:
    if row["recall_unit"] == "count":
        successes, trials = (int(v) for v in row["recall"].split("/"))
        return NeedleTrial(*_cell(row), successes, trials, "printed count")
    if row["trials"]:
        n, basis = int(row["trials"]), "printed rate and n"
    elif bound is not None:
        n, basis = implied_trials(_rate(row), bound), "n implied by the printed bound"
    else:
        n, basis = UNSTATED_TRIALS, "n not stated"
    return NeedleTrial(*_cell(row), _rate(row) * n if basis == "n not stated" else round(_rate(row) * n), n, basis)


def _bounds_of_observed(rows: Sequence[Row]) -> dict[Key, float]:
    """Bounds printed beside an observed rate of the same cell."""
    observed = {_cell(r) for r in rows if r["context_label"] and r["statistic"] == "observed"}
    return {_cell(r): _rate(r) for r in rows if r["context_label"] and "lower bound" in r["statistic"] and _cell(r) in observed}
