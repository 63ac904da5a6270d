"""Replay of a measured experiment in the simulator: same arrivals, lengths and limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibrate.served.runs import Experiment, ServedRun, tpot
from sim.cost.rates import RateDraws
from sim.rates.serving import HostRates
from sim.results.record import RunRecord
from sim.study.simulate import requests_of
from sim.study.strata import stratified, typical
from sim.study.studied import Study
from sim.workload.workload import Workload

Array = NDArray[np.float64]
METRICS = ("ttft_s", "tpot_s", "e2el_s")


@dataclass(frozen=True)
class Prediction:
    """Times per request by metric, [draw, request], one row at the median rates where there are no draws; and what the first one cached."""

    times: dict[str, Array]
    cached_tokens: NDArray[np.int64]

    def guess(self, metric: str) -> Array:
        """The best single guess of each request: its median over draws. At one set of rates a request meets an iteration at one place in
        it, which is as likely to be any other; the median does not pretend to know.
        """
        return np.asarray(np.median(self.times[metric], axis=0))

    @property
    def ttft_s(self) -> Array:
        """Time to first token [request]."""
        return self.guess("ttft_s")

    @property
    def tpot_s(self) -> Array:
        """Time per output token after the first [request]."""
        return self.guess("tpot_s")

    @property
    def e2el_s(self) -> Array:
        """Time to the last token [request]."""
        return self.guess("e2el_s")

    def part(self, chosen: slice | NDArray[np.bool_]) -> Prediction:
        """The prediction of some of the requests."""
        return Prediction({name: values[:, chosen] for name, values in self.times.items()}, self.cached_tokens[chosen])


def replay(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates, *, draws: int = 0) -> Prediction:
    """Simulate `experiment` at the first `draws` draws of the rates, stratified, or once at their medians where that is 0.

    Which drafts a server accepted is not known: each draw has its own luck.
    Clients that wait for their answers do so here too; a closed loop whose chains are not recorded is replayed with its number of
    clients; every other request is sent when it really was.
    """
    study = study_of(run, experiment, rates, host)
    chosen: list[int | None] = [*range(draws)] or [None]
    if study.deployment.limits.options.get("draft_tokens"):
        rows = [_columns(next(requests_of(_with_luck(study, seed), [draw]))) for seed, draw in enumerate(chosen)]
    else:
        rows = [_columns(record) for record in requests_of(study, chosen)]
    return Prediction({name: np.array([row[i] for row in rows]) for i, name in enumerate(METRICS)}, rows[0][3])


def _with_luck(study: Study, seed: int) -> Study:
    limits = study.deployment.limits
    return replace(study, deployment=replace(study.deployment, limits=replace(limits, options={**limits.options, "seed": seed})))


def study_of(run: ServedRun, experiment: Experiment, rates: RateDraws, host: HostRates) -> Study:
    """The experiment to be simulated."""
    trace = experiment.trace()
    closed = experiment.kind == "closed" and experiment.clients > 0 and experiment.session is None
    workload = Workload(trace.retimed(np.zeros(len(trace))) if closed else trace, experiment.clients if closed else None)
    host = host.sent(experiment.text)
    deployment, fleet = replace(run.deployment, limits=experiment.limits or run.limits), run.fleet
    rates = stratified(rates, deployment, *typical(trace))
    others = len(fleet.pools) - 1 if fleet else 0
    return Study(deployment, workload, rates, host, fleet=fleet, others=[(rates, host)] * others)


def _columns(record: RunRecord) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """TTFT, TPOT, E2EL and cached tokens, in the experiment's order (ids are positions)."""
    order = np.argsort(np.array([int(i) for i in record.request_ids]))
    sent, first, last = (np.asarray(record.requests[name])[order] for name in ("arrival_s", "first_token_s", "finish_s"))
    tokens, cached = (np.asarray(record.requests[name])[order].astype(np.int64) for name in ("output_tokens", "cached_tokens"))
    return first - sent, tpot(first - sent, last - sent, tokens), last - sent, cached
