"""A report as a question: results, known by their content, as one HTML text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.errors import UsageError
from sim.shown import Figures, Shown
from simctl import __version__

MOST = 20  # results


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """What `simctl report` writes, of runs, plans, posteriors, validations and their like."""

    results: Sequence[str | Path]

    def __post_init__(self) -> None:
        if not 1 <= len(self.results) <= MOST:
            raise UsageError(f"a report has 1 to {MOST} results, got {len(self.results)}")

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return f"{len(self.results)} results", [("of", Path(each).name) for each in self.results]

    def answer(self) -> str:
        """The page. UsageError where a file is no result of ours, or without the extra `report`; OSError where one cannot be read."""
        from simctl.report.inputs import part_of
        from simctl.report.page import render

        return render([part_of(Path(each)) for each in self.results], __version__)
