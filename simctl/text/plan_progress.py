"""Progress of a plan, on stderr: trials done, deployments left, seconds, and the best so far."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from sim.planning.choices import Choice
from sim.planning.race import SearchProgress
from simctl.text.layout import WIDTH
from simctl.text.progress import LiveLine

SELDOM_S = 10.0
CLOCK = 12  # columns of the seconds in front


class PlanProgress:
    """Shows steps of a race: on a terminal one line that changes; elsewhere a line every SELDOM_S or, if `requested`, for every stage."""

    def __init__(self, requested: bool | None) -> None:
        self._choices: Sequence[Choice] = ()
        self._seldom = requested is None and not sys.stderr.isatty()
        self._line = LiveLine(True if self._seldom else requested)
        self._said_s = 0.0

    def of(self, choices: Sequence[Choice]) -> PlanProgress:
        """The same, of these choices."""
        self._choices = choices
        return self

    def __call__(self, step: SearchProgress) -> None:
        if self._due() if self._seldom else step.stage_ends if self._line.lines else self._line.live and self._line.due():
            self._line.show(self._text(step))

    def phase(self, what: str) -> None:
        """Say what goes on after the race."""
        if not self._seldom or self._due():
            self._line.show(what)

    def _due(self) -> bool:
        if self._line.seconds - self._said_s < SELDOM_S:
            return False
        self._said_s = self._line.seconds
        return True

    def end(self) -> None:
        """Leave a clean line."""
        self._line.end()

    def _text(self, step: SearchProgress) -> str:
        left = f", {step.left} left" if step.left else ""
        text = f"{step.done} trials{left}; best so far: "
        if step.best is None:
            return text + "none yet"
        choice, chance = self._choices[step.best.choice], step.best.chance
        cost = f"{choice.cost(step.best.replicas):.2f} USD/h, {chance.value:.2f}: "
        return textwrap.shorten(f"{text}{cost}{step.best.replicas} of {choice.name}", WIDTH - CLOCK, placeholder=" ...")
