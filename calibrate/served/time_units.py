"""Whether the times of a served run can be compared: seconds, all of them, by an engine's own attention."""

from __future__ import annotations

import numpy as np

from calibrate.served.runs import PLUGIN, ServedRun, by_plugin
from sim.cost.batch import decode_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.errors import UsageError
from sim.rates.priors import priors

LEAST_TOKENS = 8  # of an answer, so that one stall is not what its tokens take
MIXED_UNITS = 100.0  # no request waits for its tokens so much longer than the next slowest; milliseconds among seconds do
WRONG_UNIT = 300.0  # no server takes so much longer for its median token than one sequence by the datasheet


def check_times(run: ServedRun) -> None:
    """Raise UsageError naming the run where a plugin's attention served, every request took as long as every other, some take hundreds of
    times as long per token as the rest, or all do of what the datasheet says.
    """
    if by_plugin(run):
        raise UsageError(f"{run.name}: its server's attention is a plugin's ({PLUGIN}), which would be priced as vLLM's own")
    every = run.experiments
    took = np.concatenate([e.e2el_s[np.isfinite(e.e2el_s)] for e in every])
    if took.size > 1 and np.ptp(took) == 0 and any(e.stated is None for e in every):
        raise UsageError(f"{run.name}: every request took exactly as long as every other: zero variance, nothing to learn from")
    times = np.concatenate([e.tpot_s[e.output_tokens >= LEAST_TOKENS] for e in every])
    times = np.sort(times[np.isfinite(times) & (times > 0)])
    if not times.size:
        return
    slower = times[len(times) // 4 :]  # the fastest may come all at once, from where answers are held back
    gaps = slower[1:] / slower[:-1]
    if gaps.size and gaps.max() > MIXED_UNITS:
        apart = len(slower) - 1 - int(np.argmax(gaps))
        raise UsageError(
            f"{run.name}: {apart} of {times.size} requests take {gaps.max():.0f} times as long per token as all the others: mixed units?"
        )
    declared = priors(run.gpu, run.precision)
    context = float(np.mean(np.concatenate([e.prompt_tokens for e in every])))
    work = run.deployment.work(decode_batch(run.model, 1.0, context))
    one_s = float(step_time_s(work, Rates(**{name: declared[name].median for name in UNITS})))
    if (typical := float(np.median(times))) > WRONG_UNIT * one_s:
        raise UsageError(
            f"{run.name}: in the median of requests a token takes {typical:g} s, {typical / one_s:.0f} times what one sequence alone takes "
            f"by the datasheet of {run.gpu.name}: wrong unit?"
        )
