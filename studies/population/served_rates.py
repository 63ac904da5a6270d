"""Rates of a GPU from published step times and served bursts together: the GB10 under vLLM and under llama.cpp.

    log seconds = log (weights [figure, piece] @ step time of each piece) + N(0, error)

A published step time is a piece by itself. A burst shows three sums over its pieces (studies.replication.gb10_bursts). The population's
rates are the prior. What the formula is off by is learnt, too: the numbers are enough for it. Errors are normal: with a long
tail half of the numbers may be disbelieved, and chains do not agree on which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.sampling import Settings, diagnose, sample
from calibrate.steps.random_rates import medians, prior_draws, value
from calibrate.steps.step_model import NU, with_slopes
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.cost.step_time import step_time_s
from sim.cost.work import Work
from sim.rates.priors import Prior
from studies.population.published_rates import Learnt, Published
from studies.replication.gb10_bursts import Burst

Array = NDArray[np.float64]
# One GPU that replays graphs and reads all its KV shows no launches, no selection, no host link and no other GPU.
UNSEEN = ("launch_layer_s", "c1_s", "c1_unit_s", "link_bytes_per_s", "gather_s", "comm_bytes_per_s", "comm_latency_s")
SAME_SD = ((NU - 2) / NU) ** 0.5  # scale of the Student t that answers draw errors from, over the standard deviation
FREE = tuple(rate for rate in UNITS if rate not in UNSEEN)
ERROR, ERROR_SD = 0.06, 0.5  # log error of a figure: median and log standard deviation of its prior


@dataclass(frozen=True)
class Figures:
    """Published seconds [figure], each a weighted sum of the step times of pieces; weights [figure, piece]."""

    pieces: Sequence[Work]
    weights: Array
    seconds: Array


def figures(known: Published, bursts: Sequence[tuple[Burst, Array]]) -> Figures:
    """Step times of `known`, and bursts, each with the seconds that were published of it [3]."""
    cells = [Work(*row) for row in known.cells.work]
    pieces = [*cells, *(piece for each, _ in bursts for piece in each.pieces)]
    weights, first = np.zeros((len(cells) + 3 * len(bursts), len(pieces))), len(cells)
    weights[: len(cells), : len(cells)] = np.eye(len(cells))
    for number, (each, _) in enumerate(bursts):
        row = len(cells) + 3 * number
        weights[row : row + 3, first : first + len(each.pieces)] = each.sums
        first += len(each.pieces)
    return Figures(pieces, weights, np.concatenate([known.cells.step_s, *(seconds for _, seconds in bursts)]))


def served_model(seen: Figures, chosen: Mapping[str, Prior]) -> Any:
    """pm.Model of FREE rates, by name, and `error`."""
    pm, pt = backend.pymc(), backend.tensor()
    work = with_slopes(Work(*(np.asarray(column, dtype=float) for column in zip(*seen.pieces, strict=True))))
    with pm.Model(coords={"rate": FREE}) as model:
        scores = pm.Normal("score", dims="rate")
        found = {name: pm.Deterministic(name, value(chosen[name], scores[i], pt)) for i, name in enumerate(FREE)}
        error = pm.Deterministic("error", ERROR * pt.exp(ERROR_SD * pm.Normal("error_score")))
        seconds = pt.dot(seen.weights, step_time_s(work, replace(medians(chosen), **found), pt))
        pm.Normal("log_s", pt.log(seconds), error, observed=np.log(seen.seconds))
    return model


def learn_served(known: Published, bursts: Sequence[tuple[Burst, Array]], chosen: Mapping[str, Prior], settings: Settings) -> Learnt:
    """Sample the rates that step times and bursts show; others are drawn from their priors `chosen`."""
    idata = sample(served_model(figures(known, bursts), chosen), settings)
    posterior = idata.posterior.stack(sample=("chain", "draw"))
    drawn = {name: np.asarray(posterior[name].values, dtype=float) for name in (*FREE, "error")}
    rest = prior_draws(chosen, len(drawn["error"]), np.random.default_rng([settings.seed, 1]))
    rates = {name: drawn.get(name, np.asarray(getattr(rest, name), dtype=float)) for name in UNITS}
    evidence = f"learnt from {len(known.cells)} published step times ({known.source}) and {len(bursts)} served rows"
    own = Provenance(Origin.POPULATION, evidence, known.gpu)
    return Learnt(
        rates, {name: own if name in FREE else chosen[name].provenance for name in UNITS}, diagnose(idata), SAME_SD * drawn["error"]
    )
