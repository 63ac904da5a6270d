"""How far iterations that carry prefill lie from their price, one from another: what a server's streams show of it, and runs that have it.

A host launches the same iteration in 15 ms now and in 30 a second later, and no request tells which it will be (docs/validation.md). What
is seen is the time between tokens of streams beside a prompt that comes in alone, less what it is priced at: over the
two iterations up to its first token where no captured graph holds the prompt (the first waits for its launch), over four where one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.served.joins import joins
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.stalls import stalls
from sim.bill import GRAPH_TOKENS
from sim.engine.microbatch import Chunk
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.host import HostRates
from sim.products import known_to
from sim.rates import Rates

Array = NDArray[np.float64]
LEAST_SEEN = 5
# What launched iterations are later in the mean than in the middle at a low load: root mean square over eleven hosts, their own errors
# taken off
LATE_OF_HOSTS_S = 1.5e-3


@dataclass(frozen=True)
class Scatter:
    """Seconds by which iterations with prefill were longer than the mean of their kind: those that a captured graph holds, and those
    launched kernel by kernel. About their mean, as a run adds them up; where that lies is learnt elsewhere (calibrate.served.path).
    """

    held: Array
    launched: Array


def scatter_of(run: ServedRun, experiments: tuple[Experiment, ...], rates: Rates, host: HostRates) -> Scatter | None:
    """What these experiments show at rates as served; None where they show too little: no token times, or LEAST_SEEN of neither kind."""
    held = np.concatenate([stalls(run, e, host.boost.rested(rates)) for e in experiments])
    launched = np.concatenate([_launched(run, e, rates, host) for e in experiments])
    if held.size < LEAST_SEEN or launched.size < LEAST_SEEN:
        return None
    return Scatter(held - held.mean(), launched - launched.mean())


def late_launch_s(run: ServedRun, experiments: tuple[Experiment, ...], rates: Rates, host: HostRates) -> float:
    """Seconds by which iterations launched kernel by kernel are later in the mean of these low loads than in their middle, less as far as
    so few prompts leave it in doubt: their price is learnt from the middle, a run adds up means, and a host's spells only ever add. 0
    where fewer than LEAST_SEEN show it.
    """
    found = np.concatenate([_launched(run, e, rates, host) for e in experiments])
    if found.size < LEAST_SEEN:
        return 0.0
    error = float(found.std(ddof=1)) / float(found.size) ** 0.5
    weight = LATE_OF_HOSTS_S**2 / (LATE_OF_HOSTS_S**2 + error**2)
    return float(max(weight * (found.mean() - np.median(found)), 0.0))


def _launched(run: ServedRun, experiment: Experiment, rates: Rates, host: HostRates) -> Array:
    """Seconds [prompt] over price of a decode and the iteration in which a prompt beyond the captured graphs joins it."""
    steps = StepTime(run.model, run.precision, rates, tp=run.tp, host=host.work, boost=host.boost, gpu=known_to(run.gpu))
    found = []
    for i, beside in joins(experiment, 2):
        prompt = int(experiment.prompt_tokens[i])
        if prompt > GRAPH_TOKENS and experiment.token_s is not None:
            waits = [float(experiment.token_s[j][k] - experiment.token_s[j][k - 2]) for j, k in beside]
            context = sum(int(experiment.prompt_tokens[j]) + k for j, k in beside)
            decode = steps.stretch(len(waits), context).first
            priced = decode + steps.mixed(len(waits), context, 0, context, [(prompt, prompt, 1)], decode, 0, True)
            found.append(float(np.median(waits)) - priced * TICK_S)
    return np.array(found)


class ScatteredSteps(StepTime):
    """Step times of which every iteration with prefill is off by one that was seen, drawn at random; never below half its price."""

    def __init__(self, *deployment: Any, scatter: Scatter, rng: np.random.Generator, **settings: Any) -> None:
        super().__init__(*deployment, **settings)
        self._scatter = [[to_ticks(float(s)) for s in kind] for kind in (scatter.held, scatter.launched)]
        self._rng = rng

    def mixed(self, batch: int, context: int, near: int, kept: int, chunks: Sequence[Chunk], *more: Any) -> int:
        """Ticks of chunks beside decodes, as priced and as it comes."""
        priced: int = super().mixed(batch, context, near, kept, chunks, *more)
        kind = self._scatter[batch + _tokens(chunks) > GRAPH_TOKENS]
        ticks: int = max(priced + kind[int(self._rng.integers(len(kind)))], priced // 2)
        return ticks


def _tokens(chunks: Sequence[Chunk]) -> int:
    return sum(n for n, _, _ in chunks)
