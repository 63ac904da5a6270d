"""Serving overhead fitted to a served run: a low load, and the true-decode windows of its concurrency ladder.

Rates learnt in process show all host work. What serving hides of it and adds, in the order in which it is fitted:

    c0, shown     fixed cost as served, share of the per-sequence cost that shows: linear in the ladder's windows, solved draw by draw;
                  without a ladder c0 closes the low load's median TPOT, and what shows follows from the schedule
    launch        the host's time to launch an iteration without CUDA graph, over the grids' (calibrate.served.launches)
    token_s       time per token sent, by the gaps inside the iterations of these loads (calibrate.served.send_times)
    request_s     closes the median TTFT; what requests share of it and the time per prompt token are those of other servers
    noise         of single requests about their replay, and what a run's requests have in common
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from calibrate.served.launches import HOSTS_SD, launch_factor
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.send_times import token_time_s
from sim.cost.batch import decode_batch
from sim.cost.coefficients import coefficients
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.cost.step_time import step_terms
from sim.errors import UsageError
from sim.rates.fingerprint import formula_fingerprint
from sim.rates.posterior import with_model_error
from sim.rates.serving import (
    LAUNCHING,
    MIN_C0_S,
    PARTLY_EXPOSED,
    HostRates,
    ServingOverhead,
    as_served,
    hidden_work,
    packaged_overhead,
    scaled,
    with_c0,
)
from sim.rates.serving import UNITS as LATENCIES
from sim.study.deployment import plan_engine

Array = NDArray[np.float64]
LEAST_REQUESTS = 5
ROUNDS = 3
PHASES, PHASES_SD = 12, 0.005  # runs with step times so far apart (log sd): one run's median TTFT jumps with the iterations that are met
HOSTS_HIDDEN_SD_S = 0.04e-3  # of the fixed cost that another host hides: four hid 1.26, 1.23, 1.19 and 1.20 ms
# The API server's own time per prompt token on either way. vLLM on an H200, cached prompts of 1,000 to 30,000 tokens: 0.40 us before its
# engine, 0.43 after it, where the first step of detokenizing reads the whole prompt; 0.90 in all. SGLang does not read it again: half of
# what parsing and checking take by themselves.
PROMPT_TOKEN_S = {"vllm": 0.45e-6, "sglang": 0.07e-6}
# Its own time per request but for that (five servers' prompts of 1,024 tokens: 1.5, 1.9, 2.0, 2.7 and 3.1 ms in all), and per token sent
# where no token times show it: median of 14 servers (42 to 84 us).
SERIAL_S, TOKEN_S = 1.3e-3, 66e-6


@dataclass(frozen=True)
class ServedRates:
    """Rates and host latencies as served, the overhead that they have over rates in process, and what it was fitted to."""

    rates: RateDraws
    host: HostRates
    overhead: ServingOverhead
    fitted_to: tuple[str, ...] = ()


def transferred(overhead: ServingOverhead, in_process: RateDraws) -> ServedRates:
    """An overhead fitted elsewhere, as it is."""
    return ServedRates(overhead.applied(in_process), overhead.host(in_process), overhead)


def as_learnt(rates: RateDraws) -> ServedRates:
    """Rates learnt as served, with their own latency per request. Of the packaged overhead only the noise of requests is taken."""
    known, host = packaged_overhead(), as_served(rates)[1]
    if known is None:
        raise UsageError("no packaged serving overhead: nothing says how single requests scatter")
    kept: dict[str, Any] = {"hidden_c0_s": 0.0, "hidden_c0_sd_s": 0.0, "exposed_share": 1.0, "launch": 1.0, "launch_sd": 0.0}
    kept |= {name: getattr(host, name) for name in LATENCIES}
    return ServedRates(rates, host, replace(known, **kept, learnt_on=rates.summary), ())


def fit_overhead(run: ServedRun, in_process: RateDraws, low: Sequence[Experiment], ladder: Sequence[Experiment]) -> ServedRates:
    """Fit the serving overhead to a load and its replicates, and to ladder rungs (two or more; fewer are not used).

    Raises UsageError for too short a load.
    """
    for count in (len(e.ttft_s) for e in low):
        if count < LEAST_REQUESTS:
            raise UsageError(f"{low[0].name}: {count} requests are too few to fit a serving overhead to: fewer than {LEAST_REQUESTS}")
    in_process = in_process.at_median_host()  # this run's own is about to be learnt
    rungs = [e for e in ladder if np.isfinite(e.window_step_s) and e.clients > 0]
    rungs = rungs if len(rungs) > 1 else []
    overlaps = plan_engine(run.deployment)[0].overlaps
    rates, exposed_share, run_noise = in_process, 0.0 if overlaps else 1.0, 0.0
    at_draws = np.full(rates.count, exposed_share)
    if rungs:
        rates, exposed_share, at_draws = _from_windows(run, in_process, rungs)
        if in_process.error is not None:  # windows pin decode iterations alone: of others the grids say how far off the formula is
            run_noise = robust_sd(np.log(in_process.error))
    rates = scaled(rates, PARTLY_EXPOSED, exposed_share, at_draws, f"{100 * exposed_share:.0f} % of it shows when served")
    work = hidden_work(in_process.point, rates.point)
    source = Provenance(Origin.SERVED, f"fitted to {low[0].name}", run.gpu.name)
    prompt_token_s, token_s = PROMPT_TOKEN_S.get(run.limits.engine, 0.0), token_time_s((*low, *rungs), TOKEN_S)
    host = HostRates(0.0, prompt_token_s, serial_s=SERIAL_S, source=source, token_s=token_s, work=work)
    launch, launch_sd = launch_factor(low, launching_s(run, in_process.point), work) if overlaps else (1.0, 0.0)
    if run.tp > 1 and (others := packaged_overhead((run.gpu.name, run.name), run.limits.engine)) is not None:
        launch, launch_sd = others.launch, others.launch_sd  # each GPU's worker launches in a process of its own: tokens do not wait for it
    factor = np.exp(launch_sd * np.random.default_rng(12).standard_normal(rates.count))
    rates = scaled(rates, LAUNCHING, launch, launch * factor, f"x {launch:.2f} as served")
    rates, host = _closed(run, in_process, rates, host, low, tpot=not rungs)
    fitted_to = tuple(e.name for e in (*low, *rungs))
    overhead = ServingOverhead(
        gpu=run.gpu.name,
        engine=run.engine,
        hidden_c0_s=float(in_process.point.c0_s - rates.point.c0_s),
        hidden_c0_sd_s=HOSTS_HIDDEN_SD_S,
        exposed_share=exposed_share,
        launch=launch,
        launch_sd=float(np.hypot(launch_sd, HOSTS_SD)),  # another run is another host
        request_s=host.request_s,
        prompt_token_s=host.prompt_token_s,
        response_s=host.response_s,
        serial_s=host.serial_s,
        token_s=host.token_s,
        noise=_noise(run, rates, host, low),
        run_noise=max(run_noise, _missed_by_rungs(run, rates, host, rungs)),
        learnt_on=f"{run.name}: {', '.join(fitted_to)}",
        formula=formula_fingerprint(),
    )
    return ServedRates(rates, host, overhead, fitted_to)


def launching_as_logged(run: ServedRun, log: Experiment, prior: ServingOverhead, in_process: RateDraws) -> ServingOverhead:
    """The overhead with launches as the gaps of a log show them; of several GPUs, whose workers launch by themselves, as it is."""
    if run.tp > 1 or not plan_engine(run.deployment)[0].overlaps:
        return prior
    work = prior.host(in_process).work
    launch, sd = launch_factor((log,), launching_s(run, in_process.point), work, (prior.launch, prior.launch_sd))
    return replace(prior, launch=launch, launch_sd=sd)


def launching_s(run: ServedRun, rates: Rates) -> float:
    """Seconds in which the host launches all kernels of an iteration one by one, in process."""
    return float(coefficients(run.model, run.precision, run.tp).launch_layers * rates.launch_layer_s)


def robust_sd(values: Array) -> float:
    """Standard deviation by the 5 % and 95 % quantiles: a few outliers are not the noise."""
    low, high = np.nanquantile(values, [0.05, 0.95])
    return float((high - low) / (2 * 1.645))


def _from_windows(run: ServedRun, rates: RateDraws, rungs: Sequence[Experiment]) -> tuple[RateDraws, float, Array]:
    """Solve window = rest + c0 + shown * c_seq * n for (c0, shown), in relative error, at the medians and at every draw."""
    n = np.array([float(e.clients) for e in rungs])
    # the window opens at the last first token and closes at the last token: half the output has been added to the context by its middle
    context = np.array([float(np.mean(e.prompt_tokens) + np.mean(e.output_tokens) / 2) for e in rungs])
    windows = np.array([e.window_step_s for e in rungs])
    work = run.deployment.work(decode_batch(run.model, n[:, None], context[:, None], xp=np))

    def solved(r: Rates) -> tuple[Array, Array]:
        c_seq = np.atleast_1d(np.asarray(r.c_seq_s, float))
        rest = np.asarray(sum(step_terms(work, replace(r, c0_s=0.0, c_seq_s=0.0), np)), float)
        target = 1 - np.broadcast_to(rest, (len(n), len(c_seq))) / windows[:, None]
        return least_squares(np.broadcast_to(1 / windows[:, None], target.shape), n[:, None] * c_seq / windows[:, None], target)

    (c0, exposed_share), (c0_draws, at_draws) = solved(rates.point), solved(rates.draws)
    fitted = with_c0(rates, float(c0[0]), c0_draws, Provenance(Origin.SERVED, "true-decode windows as served"))
    # a draw whose own per-sequence cost is too low shows more than all of it: cut at one, its cost as served would be wrong
    share = min(float(exposed_share[0]), 1.0)
    return replace(fitted, source=rates.source.after(f"serving overhead from {len(rungs)} decode windows")), share, at_draws


def least_squares(a: Array, b: Array, target: Array) -> tuple[Array, Array]:
    """(x, y), x at least MIN_C0_S and y at least 0, that bring a x + b y nearest to the target, column by column [row, column]: where the
    nearest is out of bounds, it lies on the nearer of their two edges.
    """
    aa, ab, bb, at, bt = (np.sum(u * v, axis=0) for u, v in ((a, a), (a, b), (b, b), (a, target), (b, target)))
    x, y = (at * bb - bt * ab) / (aa * bb - ab**2), (bt * aa - at * ab) / (aa * bb - ab**2)
    edges = (MIN_C0_S + 0 * aa, np.maximum((bt - MIN_C0_S * ab) / bb, 0.0)), (np.maximum(at / aa, MIN_C0_S), 0 * aa)
    first, other = (np.sum((a * x + b * y - target) ** 2, axis=0) for x, y in edges)
    inside = (x >= MIN_C0_S) & (y >= 0.0)
    return tuple(np.where(inside, free, np.where(first <= other, *pair)) for free, *pair in zip((x, y), *edges, strict=True))


def _closed(
    run: ServedRun,
    in_process: RateDraws,
    rates: RateDraws,
    host: HostRates,
    low: Sequence[Experiment],
    *,
    tpot: bool = True,
) -> tuple[RateDraws, HostRates]:
    """Fixed cost (where `tpot`) and latency per request that close the median TPOT and TTFT of these requests of the loads."""
    for _ in range(ROUNDS):
        if tpot:
            shift_s = _gap(run, rates, host, low, "tpot_s")
            source = Provenance(Origin.SERVED, "median TPOT as served")
            rates = with_c0(rates, float(rates.point.c0_s) + shift_s, rates.draws.c0_s + shift_s, source)
            host = replace(host, work=hidden_work(in_process.point, rates.point))
        whole_s = max(host.request_s + host.serial_s + _gap(run, rates, host, low, "ttft_s"), 0.0)
        serial_s = min(SERIAL_S, whole_s)
        host = replace(host, serial_s=serial_s, request_s=whole_s - serial_s)
    return rates, host


def _gap(run: ServedRun, rates: RateDraws, host: HostRates, low: Sequence[Experiment], metric: str) -> float:
    """Seconds by which the median of a metric is longer than replayed, mean over loads."""
    factors = np.exp(PHASES_SD * ndtri((np.arange(PHASES) + 0.5) / PHASES))
    point = {name: getattr(rates.point, name) for name in rates.point.names()}
    slowed = {name: np.broadcast_to(values, PHASES) for name, values in with_model_error(point, factors).items()}
    rates, draws, gaps = replace(rates, draws=Rates(**slowed)), PHASES if metric == "ttft_s" else 0, []
    for experiment in low:
        measured = getattr(experiment, metric)
        seen = replay(run, experiment, rates, host, draws=draws).times[metric]
        gaps.append(np.nanmedian(measured) - np.nanmedian(seen[:, np.isfinite(measured)]))
    return float(np.mean(gaps))


def _noise(run: ServedRun, rates: RateDraws, host: HostRates, low: Sequence[Experiment]) -> dict[str, float]:
    """Log sd of single requests about their replay, by metric."""
    pairs = [(e, replay(run, e, rates, host)) for e in low]
    return {m: robust_sd(np.concatenate([np.log(getattr(e, m) / seen.guess(m)) for e, seen in pairs])) for m in METRICS}


def _missed_by_rungs(run: ServedRun, rates: RateDraws, host: HostRates, rungs: Sequence[Experiment]) -> float:
    """Log sd of what a replay of a whole rung misses in common: its median TPOT, prompts that come in beside decodes included. The
    overhead was solved from windows without them; one client alone has no such company.
    """
    several = [e for e in rungs if e.clients > 1 and np.isfinite(e.tpot_s).any()]
    missed = [float(np.nanmedian(np.log(e.tpot_s / replay(run, e, rates, host).tpot_s))) for e in several]
    return float(np.sqrt(np.mean(np.square(missed)))) if missed else 0.0
