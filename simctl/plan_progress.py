"""How far a plan is, on stderr: trials done, deployments left, seconds, and the best so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sim.plan.choices import Choice
    from sim.plan.race import Step

EVERY_S = 0.2
LINE = 120


class Watch:
    """Shows steps of a race where somebody watches: on a terminal one line that changes; if `asked`, a line for every stage."""

    def __init__(self, choices: Sequence[Choice], asked: bool | None) -> None:
        self._choices = choices
        self._live = sys.stderr.isatty() and asked is not False
        self._lines = bool(asked) and not self._live
        self._began, self._shown = time.monotonic(), 0.0

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if self._lines and step.stage_ends:
            click.echo(self._text(step, now), err=True)
        elif self._live and now - self._shown > EVERY_S:
            self._shown = now
            click.echo(f"\r\x1b[K{self._text(step, now)[:LINE]}", err=True, nl=False)

    def phase(self, what: str) -> None:
        """Say what goes on after the race."""
        text = f"{time.monotonic() - self._began:.1f} s: {what}"
        if self._lines:
            click.echo(text, err=True)
        elif self._live:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def end(self) -> None:
        """Leave a clean line."""
        if self._live:
            click.echo("\r\x1b[K", err=True, nl=False)

    def _text(self, step: Step, now: float) -> str:
        best = "none yet"
        if step.best is not None:
            choice = self._choices[step.best.choice]
            cost, chance = choice.cost(step.best.replicas), step.best.chance
            best = f"{step.best.replicas} of {choice.name}, {cost:.2f} USD/hour, {chance.value:.2f} by {chance.trials} trials"
        left = f", {step.left} deployments left" if step.left else ""
        return f"{now - self._began:.1f} s: {step.done} trials{left}; best so far: {best}"
