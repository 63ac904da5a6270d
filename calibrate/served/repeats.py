"""The same requests sent again to the same server: how far measurements of one thing lie apart, below which no prediction can be judged.

An experiment is the repeat of another where it is named as that one and "again" (from the third sending on with a number: "again 2"), holds
the same prompt and output lengths, and sends them at the same times or, where clients wait for their answers, by the same clients in the
same order. Requests of equal lengths are told apart by their client and turn, or by when they were sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import Experiment

Array = NDArray[np.float64]
AGAIN = re.compile(r"(.+) again(?: \d+)?")
SAME_TIME_S = 0.1  # a client that sends later than this sends another load
METRICS = ("ttft_s", "tpot_s", "e2el_s")


@dataclass(frozen=True)
class Repeat:
    """How far `sent` measurements of the same requests lie apart: medians, over all pairs of them, of the absolute difference of
    logarithms, by metric, and that of the run's p99 TTFT. Of two alike, a prediction of their middle lies about 1 / sqrt(2) of it off each.
    """

    experiment: str
    sent: int
    requests: int
    apart: dict[str, float]

    @property
    def floor(self) -> dict[str, float]:
        """What a prediction of the middle would miss, by metric."""
        return {metric: float(value / np.sqrt(2)) for metric, value in self.apart.items()}


def repeats(experiments: tuple[Experiment, ...]) -> list[Repeat]:
    """Every experiment that was sent again, and how far its sendings lie apart."""
    return [_compared((first, *others)) for first in experiments if (others := repeats_of(first, experiments))]


def repeats_of(first: Experiment, experiments: tuple[Experiment, ...]) -> tuple[Experiment, ...]:
    """The repeats of an experiment among these, in their order."""
    return tuple(e for e in experiments if (of := AGAIN.fullmatch(e.name)) and of[1] == first.name and _same_requests(first, e))


def load_of(name: str) -> str:
    """The name of the load that an experiment of this name sends, whether for the first time or again."""
    again = AGAIN.fullmatch(name)
    return again[1] if again else name


def is_repeat(experiment: Experiment, experiments: tuple[Experiment, ...]) -> bool:
    """Whether it sends again what another one of these sent."""
    return any(e is experiment for first in experiments for e in repeats_of(first, experiments))


def _order(experiment: Experiment) -> NDArray[np.int64]:
    if experiment.session is not None:
        return np.lexsort((experiment.arrival_s, experiment.session))  # a client's requests follow one another
    return np.lexsort((experiment.arrival_s, experiment.output_tokens, experiment.prompt_tokens))


def _same_requests(first: Experiment, again: Experiment) -> bool:
    if len(first.arrival_s) != len(again.arrival_s) or (first.session is None) != (again.session is None):
        return False
    own, other = _order(first), _order(again)
    if first.session is not None and again.session is not None:
        if not np.array_equal(first.session[own], again.session[other]):
            return False
    else:
        late = (again.arrival_s[other] - again.arrival_s[0]) - (first.arrival_s[own] - first.arrival_s[0])
        if np.abs(late).max() >= SAME_TIME_S:
            return False
    return np.array_equal(first.prompt_tokens[own], again.prompt_tokens[other]) and np.array_equal(
        first.output_tokens[own], again.output_tokens[other]
    )


def _compared(sendings: tuple[Experiment, ...]) -> Repeat:
    apart = {}
    for metric in METRICS:
        logs = [np.log(getattr(e, metric)[_order(e)]) for e in sendings]
        apart[metric] = float(np.nanmedian([np.abs(a - b) for a, b in combinations(logs, 2)]))
    tails = [float(np.log(np.quantile(e.ttft_s, 0.99))) for e in sendings]
    apart["p99_ttft_s"] = float(np.median([abs(a - b) for a, b in combinations(tails, 2)]))
    return Repeat(sendings[0].name, len(sendings), len(sendings[0].arrival_s), apart)
