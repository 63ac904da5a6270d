"""A published claim beside what we get: computed, never stated. Identifiers are those of scenarios/data/reference/checks.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Verdict = Literal["reproduced", "within", "differs", "not testable"]
How = Literal["tables", "formula", "simulated", "measured"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a source, our figure and its method, and whether the two agree.

    reproduced: their own figures follow from their tables. within: our formula, simulator or measurement gives the figure within the
    tolerance, or our interval holds it. differs: neither. not testable: nothing here can tell; `ours` says why.
    `low` and `high` are the 5-95 % interval of our first figure, in `unit`; None where it is exact. Names with a second letter are no
    entries of the list: P is predicted, M measured on our GPUs, S simulated.
    """

    name: str
    published: str
    ours: str
    how: How
    verdict: Verdict
    low: float | None = None
    high: float | None = None
    unit: str = ""


def compared(
    name: str, published: str, ours: str, deviation: float, allowed: float, how: How = "tables", draws: Any = None, unit: str = ""
) -> Claim:
    """A claim that holds where `deviation` is at most `allowed`, both in the figure's own unit or relative.

    `draws` [draw] of our first figure, in `unit`, give its interval.
    """
    agrees: Verdict = "reproduced" if how == "tables" else "within"
    low, high = (None, None) if draws is None else map(float, np.quantile(draws, [0.05, 0.95]))
    return Claim(name, published, ours, how, agrees if deviation <= allowed else "differs", low, high, unit)


def held(
    name: str, published: str, figures: Any, draws: Any, mine: Sequence[str], note: str, how: How = "formula", unit: str = ""
) -> Claim:
    """A claim that holds where the interval of `draws` [figure, draw] has every published figure [figure]; `mine` are their medians in
    words. Its interval is that of the first.
    """
    low, high = np.quantile(draws, [0.05, 0.95], axis=1)
    out = (figures < low) | (figures > high)
    ours = ", ".join(text + " (out)" * bool(missed) for text, missed in zip(mine, out, strict=True))
    return compared(name, published, f"{ours}{note}", float(out.sum()), 0, how, draws[0], unit)


def untestable(name: str, published: str, why: str) -> Claim:
    """A claim that no data of ours or theirs can tell."""
    return Claim(name, published, why, "tables", "not testable")
