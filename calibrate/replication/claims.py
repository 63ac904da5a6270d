"""A published claim beside what we get: computed, never stated. Identifiers are those of scenarios/data/reference/checks.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Verdict = Literal["reproduced", "within", "differs", "not testable"]
How = Literal["tables", "formula", "simulated", "measured"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a source says, what we get and how, and whether the two agree.

    reproduced: their own figures follow from their tables. within: our formula or simulator gives the figure within the tolerance.
    differs: neither. not testable: nothing here can tell; `ours` says why.
    """

    name: str
    published: str
    ours: str
    how: How
    verdict: Verdict


def compared(name: str, published: str, ours: str, deviation: float, allowed: float, how: How = "tables") -> Claim:
    """A claim that holds where `deviation` is at most `allowed`, both in the figure's own unit or relative."""
    agrees: Verdict = "reproduced" if how == "tables" else "within"
    return Claim(name, published, ours, how, agrees if deviation <= allowed else "differs")


def untestable(name: str, published: str, why: str) -> Claim:
    """A claim that no data of ours or theirs can tell."""
    return Claim(name, published, why, "tables", "not testable")


@cache
def listed() -> dict[str, str]:
    """Statement by identifier, as the list of reproduction targets has it."""
    text = (files("scenarios") / "data" / "reference" / "checks.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([A-Z]\d\d) \| (.*?) \|", text, flags=re.MULTILINE))
