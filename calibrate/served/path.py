"""What serving changes about a rate learnt in process: async scheduling hides host work, the API server adds latency.

Engine grids are stepped in process with a device synchronisation after every iteration, so the host's work per iteration, per sequence and
per prefill shows in full. A served engine prepares the next iteration while the GPU runs this one (sim.engine.overlap). Seven unknowns
carry the difference:

    c0            the fixed cost as served
    shown         the share of the per-sequence host cost that shows even so (0..1)
    shown_prefill that of the cost of iterations that carry prefill
    launch        how much longer than in process the host takes to launch an iteration that no captured graph holds
    serial_s      the API server's own time per request, shared by requests that come together
    request_s     the rest of its latency per request
    token_s       its time per token sent, which tokens of an iteration wait for in turn

With a concurrency ladder, c0 and `shown` are linear in its true-decode windows, so they are solved draw by draw; `serial_s` is how much
later a large wave is first taken up for each of its clients; `launch` is how long the low load's streams wait before a prompt
beyond the captured graphs joins them (calibrate.served.launches); `token_s` is how far apart streams that decode together get the
tokens of an iteration (calibrate.served.sending); `shown_prefill` is how long the low load's prompts hold up the
streams beside them, where the file says when tokens came (calibrate.served.stalls), and `shown` elsewhere; `request_s` closes the
median TTFT of one run at low load, whose per-request residuals also give the noise that intervals of single requests need.
From the low load alone, c0 closes its median TPOT,
`serial_s` its median TTFT, and the rest follows from the schedule: an engine that decides ahead shows no host work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.floor import out_of_phase
from calibrate.served.launches import Launching, launching
from calibrate.served.noise import beyond_scatter, noise_of
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scatter import Scatter, late_launch_s, scatter_of
from calibrate.served.sending import sending_s
from calibrate.served.stalls import prefill_seen
from calibrate.served.waves import HOSTS_SERIAL_SD, own_time_s, weighed
from sim.bill import coefficients, decode_shape, iteration_bill
from sim.deployment import plan_engine
from sim.engine.boost import NO_BOOST, Boost
from sim.errors import UsageError
from sim.host import HostRates
from sim.price import step_terms
from sim.products import known_to
from sim.rates import RateDraws, Rates
from sim.served import ServedPath as PackagedPath
from sim.served import hidden_work

Array = NDArray[np.float64]
MIN_C0_S = 1e-5
ROUNDS = 3
HOSTS_HIDDEN_SD_S = 0.04e-3  # sd of the fixed cost that another host hides, by four that were measured: 1.26, 1.23, 1.19 and 1.20 ms
MIN_WAVE = 8  # clients; of smaller waves, waiting for one another is little of their time


@dataclass(frozen=True)
class ServedPath:
    """Rates and host latencies as served, the share of host cost that shows, per-request noise (log sd), and what they were learnt on."""

    rates: RateDraws
    host: HostRates
    shown: float
    shown_prefill: float
    launch: Launching
    noise: dict[str, float]  # all of it
    beyond: dict[str, float]  # what of it is left where iterations scatter as `scatter` says
    scatter: Scatter | None
    serial_sd: float  # of the logarithm of the API server's own time, of which waves say more or less
    run_noise: float  # log sd of what all requests of a run have in common, beyond the draws: the grids' word for it, or the ladder's
    learnt_on: tuple[str, ...]

    def hosts(self, count: int) -> list[HostRates]:
        """Host latencies [draw]. What a request takes alone is known better than how it divides, so that stays."""
        spread = np.exp(self.serial_sd * np.random.default_rng(15).standard_normal(count))
        whole = self.host.request_s + self.host.serial_s
        own = [self.host.serial_s * float(f) for f in spread]
        return [replace(self.host, serial_s=serial_s, request_s=max(0.0, whole - serial_s)) for serial_s in own]


def learn_path(
    run: ServedRun, rates: RateDraws, low_loads: tuple[Experiment, ...], ladder: tuple[Experiment, ...], boost: Boost = NO_BOOST
) -> ServedPath:
    """Learn the served path from ladder windows (two rungs or more) and a low-load experiment, sent once or several times, of a server
    whose GPU has `boost` when it has rested; single prompts beside decodes find it so.

    With fewer than two rungs, c0 closes the low load's median TPOT, and `shown` is what the schedule says: nothing of an engine that
    decides ahead, all of one that does not. Raises UsageError for too short a low-load run.
    """
    for low_load in low_loads:
        if len(low_load.ttft_s) < 5:
            count = len(low_load.ttft_s)
            raise UsageError(f"{low_load.name}: {count} requests are too few to learn a served path from; 5 or more are needed")
    rates = rates.at_middle_host()  # this run's own is about to be learnt
    in_process, overlaps = rates.point, plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)[0].overlaps
    uncut, shown, run_noise = rates, (0.0 if overlaps else 1.0), 0.0
    rungs = tuple(e for e in ladder if np.isfinite(e.window_step_s) and e.clients > 0)
    if len(rungs) >= 2:
        rates, shown, run_noise = _from_windows(run, rates, rungs)
    else:
        rates = _showing(rates, shown)
    shown_prefill = shown
    seen_prefill = prefill_seen(run, low_loads, boost.rested(rates.point)) if float(in_process.c_prefill_s) > 0 else None
    if seen_prefill is not None:
        runner2 = float(in_process.runner2_prefill) if run.model.second_runner else 0.0
        middle, error = (value / (float(in_process.c_prefill_s) * (1.0 + runner2)) for value in seen_prefill)
        shown_prefill = float(np.clip(middle, 0.0, 1.0))
        z = np.random.default_rng(11).standard_normal(np.size(uncut.draws.c_prefill_s))
        rates = _with_prefill(rates, uncut, shown_prefill, np.clip(middle + error * z, 0.0, 1.0))
    host = HostRates(
        basis=f"learnt on {low_loads[0].name}", token_s=sending_s(rungs), work=hidden_work(in_process, rates.point), boost=boost
    )
    model = coefficients(run.model, run.precision, run.tp)
    launches_s = model.layers * float(in_process.eager_layer_s) + model.expert_layers * float(in_process.eager_expert_layer_s)
    launch = launching(low_loads, launches_s, host.work) if overlaps else Launching()
    rates = _launched(rates, launch)
    waves = tuple(e for e in rungs if e.clients >= MIN_WAVE)
    serial_sd = 0.0
    if waves:
        serial_s, serial_sd = weighed(*own_time_s(run, rates, host, waves))
        host = replace(host, serial_s=serial_s)
    else:
        host = replace(host, request_s=0.0)
    for _ in range(ROUNDS):
        if len(rungs) < 2:
            gaps = [np.nanmedian(e.tpot_s) - np.nanmedian(replay(run, e, rates, host, draws=0).tpot_s) for e in low_loads]
            rates = _shift_c0(rates, float(np.mean(gaps)))
            host = replace(host, work=hidden_work(in_process, rates.point))
        # of few requests, one run's median jumps with the iterations that they happen to meet
        gap = float(np.mean([np.median(e.ttft_s) - np.median(out_of_phase(run, e, rates, host)) for e in low_loads]))
        # without waves to tell them apart, all of the latency is taken as the API server's own time
        closes = "request_s" if waves else "serial_s"
        host = replace(host, **{closes: max(0.0, getattr(host, closes) + gap)})
    late_s = late_launch_s(run, low_loads, rates.point, host) if overlaps else 0.0
    host = replace(host, work=replace(host.work, late_launch_s=late_s))
    noise = noise_of([(e, replay(run, e, rates, host, draws=0)) for e in low_loads])
    scatter = scatter_of(run, low_loads, rates.point, host)
    beyond = noise if scatter is None else beyond_scatter(noise, run, low_loads, rates, host, scatter)
    run_noise = max(run_noise, _whole_rungs(run, rates, host, rungs))
    learnt_on = tuple(e.name for e in (*low_loads, *rungs))
    return ServedPath(rates, host, shown, shown_prefill, launch, noise, beyond, scatter, serial_sd, run_noise, learnt_on)


def _whole_rungs(run: ServedRun, rates: RateDraws, host: HostRates, rungs: tuple[Experiment, ...]) -> float:
    """Log sd of what a replay of a whole rung misses in common: its median TPOT, prompts that come in beside decodes included. The path was
    solved from windows without them, so these runs say how far off one may be; one client alone has no such company.
    """
    missed = [
        float(np.nanmedian(np.log(e.tpot_s / replay(run, e, rates, host, draws=0).tpot_s)))
        for e in rungs
        if e.clients > 1 and np.isfinite(e.tpot_s).any()
    ]
    return float(np.sqrt(np.mean(np.square(missed)))) if missed else 0.0


def _from_windows(run: ServedRun, rates: RateDraws, rungs: tuple[Experiment, ...]) -> tuple[RateDraws, float, float]:
    """Solve window = rest + c0 + shown * c_seq * n for (c0, shown), in relative error, at the point and at every draw.

    Third comes the log sd of what the formula misses of one run, as the grids give it. Windows pin decode iterations of equal contexts;
    of iterations that carry prefill, and of unequal contexts, nothing but the grids says how far off the formula is.
    """
    n = np.array([float(e.clients) for e in rungs])
    # the window opens at the last first token and closes at the last token: half the output has been added to the context by its middle
    context = np.array([float(np.mean(e.prompt_tokens) + np.mean(e.output_tokens) / 2) for e in rungs])
    windows = np.array([e.window_step_s for e in rungs])
    bill = iteration_bill(
        run.model, decode_shape(run.model, n[:, None], context[:, None], xp=np), run.precision, tp=run.tp, gpu=known_to(run.gpu)
    )

    def solve(r: Rates) -> tuple[Array, Array]:
        c_seq = np.atleast_1d(np.asarray(r.c_seq_s, float))
        terms = step_terms(bill, replace(r, c0_s=0.0, c_seq_s=0.0), np)
        rest = np.broadcast_to(np.asarray(sum(terms), float), (len(n), len(c_seq)))
        c0, shown = np.empty(len(c_seq)), np.empty(len(c_seq))
        for d in range(len(c_seq)):
            design = np.column_stack([np.ones_like(n), c_seq[d] * n]) / windows[:, None]
            (c0[d], shown[d]), *_ = np.linalg.lstsq(design, 1 - rest[:, d] / windows, rcond=None)
        return np.maximum(c0, MIN_C0_S), np.clip(shown, 0.0, 1.0)

    c0, shown = solve(rates.point)
    low, high = np.quantile(np.log(rates.error), [0.05, 0.95]) if rates.error is not None else (0.0, 0.0)
    left = float(high - low) / (2 * 1.645)
    c0_draws, shown_draws = solve(rates.draws)
    solved = replace(
        rates,
        point=replace(rates.point, c0_s=float(c0[0])),
        draws=replace(rates.draws, c0_s=c0_draws),
        basis=rates.basis | {"c0_s": "true-decode windows as served"},
        summary=f"{rates.summary}; served path from {len(rungs)} decode windows",
    )
    return _showing(solved, float(shown[0]), shown_draws), float(shown[0]), left


def _showing(rates: RateDraws, shown: float, at_draws: Array | None = None) -> RateDraws:
    """Rates of which a share of the per-sequence and per-prefill host cost shows."""
    shares = shown if at_draws is None else at_draws
    names = ("c_seq_s", "c_prefill_s")
    return replace(
        rates,
        point=replace(rates.point, **{name: float(getattr(rates.point, name)) * shown for name in names}),
        draws=replace(rates.draws, **{name: getattr(rates.draws, name) * shares for name in names}),
        basis=rates.basis | {name: f"{rates.basis[name]}; {100 * shown:.0f} % of it shows when served" for name in names},
    )


def _with_prefill(rates: RateDraws, uncut: RateDraws, shown: float, at_draws: Array) -> RateDraws:
    """Rates of which another share of the cost of iterations that carry prefill shows."""
    name = "c_prefill_s"
    return replace(
        rates,
        point=replace(rates.point, c_prefill_s=float(uncut.point.c_prefill_s) * shown),
        draws=replace(rates.draws, c_prefill_s=uncut.draws.c_prefill_s * at_draws),
        basis=rates.basis | {name: f"{uncut.basis[name]}; {100 * shown:.0f} % of it shows when served"},
    )


def _launched(rates: RateDraws, launch: Launching) -> RateDraws:
    """Rates with the host's time to launch as served."""
    if not launch.seen:
        return rates
    names, factors = ("eager_layer_s", "eager_expert_layer_s"), launch.draws(rates.count)
    return replace(
        rates,
        point=replace(rates.point, **{name: float(getattr(rates.point, name)) * launch.factor for name in names}),
        draws=replace(rates.draws, **{name: getattr(rates.draws, name) * factors for name in names}),
        basis=rates.basis | {name: f"{rates.basis[name]}; x {launch.factor:.2f} as served" for name in names},
    )


def carried(path: PackagedPath, rates: RateDraws) -> ServedPath:
    """A packaged path as it is, for a run that it was not learnt on."""
    host = path.host(rates)
    launch = Launching(float(np.log(path.launch)), path.launch_sd, 0)
    noise = dict(path.noise)
    return ServedPath(
        path.applied(rates), host, path.shown, path.shown_prefill, launch, noise, noise, None, HOSTS_SERIAL_SD, path.run_noise, ()
    )


def _shift_c0(rates: RateDraws, shift_s: float) -> RateDraws:
    point = replace(rates.point, c0_s=max(MIN_C0_S, float(rates.point.c0_s) + shift_s))
    draws = replace(rates.draws, c0_s=np.maximum(MIN_C0_S, rates.draws.c0_s + shift_s))
    return RateDraws(point, draws, rates.basis | {"c0_s": "median TPOT at low load"}, rates.summary)
