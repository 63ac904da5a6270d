"""The same requests sent again to the same server: how far measurements of one thing lie apart, below which no prediction can be judged.

Two experiments are one and its repeat where the second is named as the first and "again", holds the same prompt and output lengths, and
sends them at the same times. Requests of equal lengths are told apart by when they were sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import Experiment

Array = NDArray[np.float64]
AGAIN = " again"
SAME_TIME_S = 0.1  # a client that sends later than this sends another load
METRICS = ("ttft_s", "tpot_s", "e2el_s")


@dataclass(frozen=True)
class Repeat:
    """How far two measurements of the same requests lie apart: medians of the absolute difference of logarithms, by metric, and that of the
    run's p99 TTFT. Of two alike, a prediction of their middle lies about 1 / sqrt(2) of it off each.
    """

    experiment: str
    requests: int
    apart: dict[str, float]

    @property
    def floor(self) -> dict[str, float]:
        """What a prediction of the middle would miss, by metric."""
        return {metric: float(value / np.sqrt(2)) for metric, value in self.apart.items()}


def repeats(experiments: tuple[Experiment, ...]) -> list[Repeat]:
    """Every experiment that was sent again, and how far the two lie apart."""
    return [_compared(first, again) for first in experiments if (again := again_of(first, experiments)) is not None]


def again_of(first: Experiment, experiments: tuple[Experiment, ...]) -> Experiment | None:
    """The repeat of an experiment among these; None where there is none."""
    named = [e for e in experiments if e.name == first.name + AGAIN]
    return named[0] if named and _same_requests(first, named[0]) else None


def is_repeat(experiment: Experiment, experiments: tuple[Experiment, ...]) -> bool:
    """Whether it sends again what another one of these sent."""
    return any(again_of(first, experiments) is experiment for first in experiments)


def _order(experiment: Experiment) -> NDArray[np.int64]:
    return np.lexsort((experiment.arrival_s, experiment.output_tokens, experiment.prompt_tokens))


def _same_requests(first: Experiment, again: Experiment) -> bool:
    if len(first.arrival_s) != len(again.arrival_s):
        return False
    own, other = _order(first), _order(again)
    late = (again.arrival_s[other] - again.arrival_s[0]) - (first.arrival_s[own] - first.arrival_s[0])
    return (
        np.array_equal(first.prompt_tokens[own], again.prompt_tokens[other])
        and np.array_equal(first.output_tokens[own], again.output_tokens[other])
        and bool(np.abs(late).max() < SAME_TIME_S)
    )


def _compared(first: Experiment, again: Experiment) -> Repeat:
    own, other = _order(first), _order(again)
    apart = {metric: float(np.nanmedian(np.abs(np.log(getattr(again, metric)[other] / getattr(first, metric)[own])))) for metric in METRICS}
    tails = [float(np.quantile(e.ttft_s, 0.99)) for e in (first, again)]
    return Repeat(first.name, len(own), apart | {"p99_ttft_s": float(abs(np.log(tails[1] / tails[0])))})
