"""Simulation-based calibration of what is learnt from a server: the serving overhead from its windows, rates from its requests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.logs.learn import HOST, learn_rates, served_priors
from calibrate.logs.requests import ServedLog
from calibrate.sampling import Settings
from calibrate.served.overhead import fit_overhead
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.steps.random_rates import value
from sim.cost.batch import decode_batch
from sim.cost.rates import UNITS, RateDraws, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.priors import prior_rates
from sim.rates.serving import HostRates, hidden_work, host_of_log
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Limits
from studies.sbc.hosts import launch_rank
from studies.sbc.ranks import rank
from studies.sbc.sampled import KEPT, QUICK

Array = NDArray[np.float64]
CLIENTS = (1, 2, 3, 4, 5, 6, 7)
PROMPT, OUTPUT = 2048, 128
LOW_LOAD = 12
BLOCKS = 4096  # more than these loads ever hold: to lay out an H100's sixty thousand takes longer than to serve them
NOISE = {"ttft": 0.05, "tpot": 0.01}  # log sd of single requests


@dataclass(frozen=True)
class Load:
    """Requests, rates of arrival one after the other (1/s), and ranges of prompts and outputs (tokens)."""

    requests: int
    rates_per_s: tuple[float, ...]
    prompts: tuple[int, int]
    outputs: tuple[int, int]


OPEN = Load(160, (2.0, 8.0), (100, 6000), (20, 200))


def made_run() -> ServedRun:
    """The server that the data are made with."""
    limits = Limits(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=32768)
    return ServedRun("made", get_gpu("H100"), get_model("Qwen2.5-7B"), Precision(), limits, 1, "the simulator", ())


def served_ranks(runs: int, rng: np.random.Generator, _: Settings = QUICK) -> dict[str, Array]:
    """Ranks of all that the overhead has draws of: the fixed cost as served, the per-sequence cost that shows, the time to launch
    (studies.sbc.hosts). Latencies are points: they have no draws to rank among.

    The truth's rates are one draw of what the grids left open; the overhead is fitted with the others. Windows are exact here, as the fit
    takes them: what is tested is that the rates' uncertainty comes through the solving at its right width.
    """
    run = replace(made_run(), limits=replace(made_run().limits, num_gpu_blocks=BLOCKS))
    found: dict[str, list[float]] = {"c0_s": [], "c_seq_s": [], "launch": []}
    for _run in range(runs):
        every = prior_rates(run.gpu, run.precision, draws=KEPT + 1, seed=int(rng.integers(2**31)))
        in_process = Rates(**{name: float(getattr(every.draws, name)[-1]) for name in UNITS})
        rest = Rates(**{name: np.asarray(getattr(every.draws, name))[:-1] for name in UNITS})
        exposed_share = rng.uniform(0.2, 0.5)
        served = replace(in_process, c0_s=rng.uniform(2e-3, 4e-3), c_seq_s=exposed_share * in_process.c_seq_s)
        host = HostRates(request_s=rng.uniform(2e-3, 9e-3), work=hidden_work(in_process, served))
        learnt = fit_overhead(
            run, replace(every, draws=rest), [_low_load(run, served, host, rng)], [_rung(run, served, n) for n in CLIENTS]
        )
        for name in ("c0_s", "c_seq_s"):
            found[name].append(rank(float(getattr(served, name)), getattr(learnt.rates.draws, name), rng))
        found["launch"].append(launch_rank(run, in_process, rng))
    return {name: np.array(ranks) for name, ranks in found.items()}


def _held(rates: Rates) -> RateDraws:
    return RateDraws(rates, rates)


def _low_load(run: ServedRun, rates: Rates, host: HostRates, rng: np.random.Generator) -> Experiment:
    blank = np.ones(LOW_LOAD)
    arrival = np.cumsum(rng.exponential(1.0, LOW_LOAD))
    made = Experiment("low", "open", arrival, np.full(LOW_LOAD, 512), np.full(LOW_LOAD, 32), blank, 2 * blank)
    seen = replay(run, made, _held(rates), host, draws=0)
    return replace(made, ttft_s=seen.ttft_s, e2el_s=seen.e2el_s)


def _rung(run: ServedRun, rates: Rates, clients: int) -> Experiment:
    shape = decode_batch(run.model, float(clients), PROMPT + OUTPUT / 2)
    window = float(step_time_s(iteration_work(run.model, shape, run.precision, gpu=run.gpu), rates))
    ones = np.ones(clients)
    lengths = np.full(clients, PROMPT), np.full(clients, OUTPUT)
    return Experiment(f"n{clients}", "ladder", 0 * ones, *lengths, ones, 2 * ones, clients=clients, window_step_s=window)


def request_ranks(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Ranks of the rates that a log shows and of the host's time per request, from the priors that `simctl learn` starts from."""
    run = replace(made_run(), limits=replace(made_run().limits, num_gpu_blocks=2 * BLOCKS))
    priors, _ = served_priors(run)
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        z = {name: float(rng.standard_normal()) for name in (*UNITS, "host")}
        rates = Rates(**{name: float(value(priors[name], z[name])) for name in UNITS})
        host_s = float(value(HOST, z["host"]))
        log = made_log(run, rates, host_of_log(host_s, text=False), rng)
        learnt = learn_rates(run, log, priors, replace(settings, seed=int(rng.integers(2**31))))
        for name in learnt.free:
            draws = np.asarray(getattr(learnt.rates, name), dtype=np.float64)[:: settings.draws // KEPT]
            found.setdefault(name, []).append(rank(float(getattr(rates, name)), draws, rng))
        found.setdefault("host_request_s", []).append(rank(host_s, learnt.request_s[:: settings.draws // KEPT], rng))
    return {name: np.array(ranks) for name, ranks in found.items()}


def made_log(run: ServedRun, rates: Rates, host: HostRates, rng: np.random.Generator, load: Load = OPEN) -> ServedLog:
    """What a server of these rates logs, with NOISE."""
    gaps = np.concatenate([rng.exponential(1 / rate, load.requests // len(load.rates_per_s)) for rate in load.rates_per_s])
    count = len(gaps)
    lengths = rng.integers(*load.prompts, count), rng.integers(*load.outputs, count)
    made = Experiment("made", "open", np.cumsum(gaps) - gaps[0], *lengths, np.ones(count), np.full(count, 2.0))
    seen = replay(run, made, _held(rates), host, draws=0)
    ttft = seen.ttft_s * np.exp(NOISE["ttft"] * rng.standard_normal(count))
    rest = (seen.e2el_s - seen.ttft_s) * np.exp(NOISE["tpot"] * rng.standard_normal(count))
    return ServedLog(replace(made, ttft_s=ttft, e2el_s=ttft + rest), np.ones(count, dtype=bool), np.full(count, np.nan), "made")
