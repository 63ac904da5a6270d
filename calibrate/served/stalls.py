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

from calibrate.served.middle import middle
from calibrate.served.runs import Experiment, ServedRun
from sim.bill import GRAPH_TOKENS, iteration_bill, mixed_shape
from sim.price import step_time_s
from sim.rates import Rates

Array = NDArray[np.float64]
ALONE_S = 0.07  # from any other first token: of two prompts close together, who held up whom cannot be told
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
    times = experiment.token_s
    if times is None:
        return np.empty(0)
    first = np.array([t[0] if len(t) else np.nan for t in times])
    found = []
    for i in range(len(times)):
        prompt = int(experiment.prompt_tokens[i])
        apart = np.abs(np.delete(first, i) - first[i])
        if not np.isfinite(first[i]) or (apart.size and np.nanmin(apart) < ALONE_S) or prompt > GRAPH_TOKENS:
            continue
        waits: list[float] = []
        contexts: list[float] = []
        for j, t in enumerate(times):
            if j == i or len(t) < 2 or not t[0] < first[i] < t[-1]:
                continue
            k = int(np.argmin(np.abs(t - first[i])))
            if k >= BEFORE and k + AFTER < len(t):
                waits.append(t[k + AFTER] - t[k - BEFORE])
                contexts.append(float(experiment.prompt_tokens[j] + k))
        if waits and len(waits) + prompt <= GRAPH_TOKENS:
            priced = _priced(run, rates, contexts, prompt)
            found.append(float(np.median(waits)) - priced)
    return np.array(found)


def _priced(run: ServedRun, rates: Rates, contexts: Sequence[float], prompt: int) -> float:
    """Seconds of three decodes of streams of these contexts and one iteration in which a whole prompt joins them."""
    shapes = [mixed_shape(run.model, contexts, []), mixed_shape(run.model, contexts, [(float(prompt), float(prompt), True)])]
    decode, mixed = (float(step_time_s(iteration_bill(run.model, shape, run.precision, tp=run.tp), rates)) for shape in shapes)
    return BEFORE * decode + mixed
