"""What an iteration that carries prefill costs a served engine beyond its bytes and products, seen from the requests it holds up.

In process, preparing such an iteration shows in full (`c_prefill_s`). A server with asynchronous scheduling does some of that behind the
GPU. How much shows is read off the streams that were decoding when a prompt came in: their four gaps around its first token, less three
decodes and one mixed iteration as priced without that cost. One gap would not do: the tokens of the iteration before wait for the
launch of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.joins import joins
from calibrate.served.middle import middle
from calibrate.served.runs import Experiment, ServedRun
from sim.bill import GRAPH_TOKENS, iteration_bill, mixed_shape
from sim.price import step_time_s
from sim.products import known_to
from sim.rates import Rates

Array = NDArray[np.float64]
LEAST_STALLS = 5
BEFORE, AFTER = 3, 1  # gaps: the mixed iteration may end in any of the last two


def prefill_seen(run: ServedRun, experiments: tuple[Experiment, ...], rates: Rates) -> tuple[float, float] | None:
    """(seconds per iteration that carries prefill, its standard error); None without token times or with too few prompts to tell.

    `rates` are as served; their `c_prefill_s` is not used. Prompts beyond the captured graphs are left out: those wait for launches, too.
    """
    uncharged = replace(rates, c_prefill_s=0.0)
    found = np.concatenate([stalls(run, experiment, uncharged) for experiment in experiments])
    if found.size < LEAST_STALLS:
        return None
    return middle(found)


def stalls(run: ServedRun, experiment: Experiment, rates: Rates) -> Array:
    """Seconds [prompt] by which streams waited longer than priced around the first token of each prompt that came in alone."""
    found = []
    for i, beside in joins(experiment, BEFORE, AFTER):
        prompt = int(experiment.prompt_tokens[i])
        if len(beside) + prompt <= GRAPH_TOKENS and experiment.token_s is not None:
            waits = [experiment.token_s[j][k + AFTER] - experiment.token_s[j][k - BEFORE] for j, k in beside]
            contexts = [float(experiment.prompt_tokens[j] + k) for j, k in beside]
            found.append(float(np.median(waits)) - _priced(run, rates, contexts, prompt))
    return np.array(found)


def _priced(run: ServedRun, rates: Rates, contexts: Sequence[float], prompt: int) -> float:
    """Seconds of three decodes of streams of these contexts and one iteration in which a whole prompt joins them."""
    shapes = [mixed_shape(run.model, contexts, []), mixed_shape(run.model, contexts, [(float(prompt), float(prompt), True)])]
    decode, mixed = (
        float(step_time_s(iteration_bill(run.model, shape, run.precision, tp=run.tp, gpu=known_to(run.gpu)), rates)) for shape in shapes
    )
    return BEFORE * decode + mixed
