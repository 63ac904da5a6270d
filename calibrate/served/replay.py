"""Replay a measured experiment through the simulator: same arrivals, lengths and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scatter import Scatter, ScatteredSteps
from sim.deployment import plan_engine
from sim.engine.presets import step_settings
from sim.host import HostRates
from sim.products import known_to
from sim.rates import RateDraws, Rates
from sim.runlog import RunRecord
from sim.serve import Study, run_study
from sim.serve_fast import run_fast, run_fast_clients

Array = NDArray[np.float64]
Columns = tuple[Array, Array, Array, NDArray[np.int64]]


@dataclass(frozen=True)
class Prediction:
    """Predicted per-request times at the point rates, shape [request], and at draws, shape [draw, request] (empty without draws)."""

    ttft_s: Array
    tpot_s: Array
    e2el_s: Array
    cached_tokens: NDArray[np.int64]
    draws: dict[str, Array]

    def guess(self, metric: str) -> Array:
        """The best single guess of each request: its median over the draws, where there are any. At one set of rates a request meets an
        iteration at one place in it, which is as likely to be any other; the median over draws does not pretend to know.
        """
        draws = self.draws.get(metric)
        return np.asarray(np.median(draws, axis=0)) if draws is not None and len(draws) > 1 else getattr(self, metric)

    def p99_ttft_s(self) -> float:
        """The run's 99th percentile, its median over the draws."""
        draws = self.draws.get("ttft_s")
        runs = draws if draws is not None and len(draws) > 1 else self.ttft_s[None]
        return float(np.median(np.quantile(runs, 0.99, axis=1)))


def replay(
    run: ServedRun,
    experiment: Experiment,
    rates: RateDraws,
    host: HostRates,
    *,
    draws: int,
    hosts: Sequence[HostRates] = (),
    scatter: Scatter | None = None,
) -> Prediction:
    """Simulate `experiment` at the point rates and at the first `draws` draws, each with its own of `hosts` where there are any, and with
    iterations that scatter as told.

    Clients that wait for their answers do so here too; a closed loop whose chains are not recorded is replayed with its number of
    clients; every other request is sent when it really was.
    """
    base = study_of(run, experiment, rates, host)
    rng = np.random.default_rng(21)

    def at(point: Rates, own: HostRates, scatter: Scatter | None = None) -> Columns:
        study = replace(base, rates=replace(rates, point=point), host=own)
        found = scattered(study, scatter, rng) if scatter is not None else None
        return found or columns_of(run_study(study, draws=0, keep_iterations=False).record)

    ttft, tpot, e2el, cached = at(rates.point, host)
    rows = [at(rates.draws.at(d), hosts[d] if hosts else host, scatter)[:3] for d in range(draws)]
    names = ("ttft_s", "tpot_s", "e2el_s")
    return Prediction(ttft, tpot, e2el, cached, {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)})


def scattered(study: Study, scatter: Scatter, rng: np.random.Generator) -> Columns | None:
    """`columns_of` one run at the study's point rates with iterations that scatter; None where the fast path does not apply."""
    config, _ = plan_engine(study.model, study.gpu, study.precision, study.tp, study.limits)
    settings = step_settings(config, study.host.work, study.host.boost)
    settings |= {"tp": study.tp, "gpu": known_to(study.gpu)}
    steps = ScatteredSteps(study.model, study.precision, study.rates.point, scatter=scatter, rng=rng, **settings)
    if study.max_concurrency is None and not np.isnan(study.trace.arrival_s).any():
        record = run_fast(study.trace, config, steps, study.host)
    else:
        record = run_fast_clients(study.trace, config, steps, study.host, study.max_concurrency)
    return columns_of(record) if record is not None else None


def study_of(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> Study:
    """The experiment as a study."""
    trace = experiment.trace()
    closed = experiment.kind == "closed" and experiment.clients > 0 and experiment.session is None
    return Study(
        trace=trace.retimed(np.zeros(len(trace))) if closed else trace,
        model=run.model,
        gpu=run.gpu,
        precision=run.precision,
        rates=rates,
        tp=run.tp,
        limits=experiment.limits or run.limits,
        host=host,
        max_concurrency=experiment.clients if closed else None,
    )


def columns_of(record: RunRecord) -> Columns:
    """TTFT, TPOT, E2EL and cached tokens, in the experiment's order (ids are positions)."""
    order = np.argsort(np.array([int(i) for i in record.request_ids]))
    column = {name: np.asarray(record.requests[name])[order].astype(float) for name in ("arrival_s", "first_token_s", "finish_s")}
    tokens = np.asarray(record.requests["output_tokens"])[order]
    ttft, e2el = column["first_token_s"] - column["arrival_s"], column["finish_s"] - column["arrival_s"]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(tokens > 1, (e2el - ttft) / (tokens - 1), np.nan)
    return ttft, np.asarray(tpot), e2el, np.asarray(record.requests["cached_tokens"])[order].astype(np.int64)
