"""Validation of a served run: serving overhead fitted to one part of it, the rest replayed and scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from calibrate.served.alarms import cached_prompts
from calibrate.served.host_fit import MOST, learn_host
from calibrate.served.load_figures import FigureScore, figure_scores
from calibrate.served.overhead import ServedRates, as_learnt, fit_overhead, transferred
from calibrate.served.replay import METRICS, Prediction, replay
from calibrate.served.runs import Experiment, ServedRun
from calibrate.served.scores import BOUNDS, Replicates, Score, replicates, replicates_of, score
from sim.cost.rates import RateDraws
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.load import load_rates, on_another_machine
from sim.rates.serving import ServingOverhead, packaged_overhead
from sim.results.chance import STAGES
from sim.shown import Figures, Shown
from sim.study.simulate import DEFAULT_DRAWS

RATE_DRAWS = STAGES[-1]  # as simulate has; only as many as asked for are replayed
FIRST_SHARE, FIRST_LEAST = 0.1, 20  # of a log's requests that are learnt from, by default
KEEP = ". Next: simctl learn LOG --host-out FILE keeps this host for --host FILE of other questions"
NO_HOST = ". No host takes so long: something else holds this server back, and simctl check LOG looks for it"
COLD = 3.0  # medians of TTFT: the leading requests of a log that take longer met a server that was still warming up


@dataclass(frozen=True)
class ValidationSettings:
    """Settings of a validation. `skip` and `learn_from` count a log's requests; None leaves them to rules."""

    posterior: Path | None = None
    rates: RateDraws | None = None  # instead of those of a posterior
    draws: int = DEFAULT_DRAWS
    overhead: ServingOverhead | None = None  # taken as it is
    transferred: bool = False  # the packaged overhead taken as it is, of a host never seen
    host: Host | None = None  # the packaged overhead of this host
    learn_from: int | None = None
    skip: int | None = None


@dataclass(frozen=True, repr=False)
class ValidationReport(Shown):
    """A run as it was predicted: rates and overhead, each scored experiment with its replay, scores, and how far replicates lie apart."""

    run: ServedRun
    served: ServedRates
    pairs: list[tuple[Experiment, Prediction]]
    scores: list[Score]
    replicates: list[Replicates]
    notes: tuple[str, ...]
    figures: list[FigureScore] = field(default_factory=list)  # of whole loads

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return self.run.name, [(f"{each.experiment} {each.metric}", f"{each.median_abs:.1%} off in the median") for each in self.scores]


def validate(run: ServedRun, settings: ValidationSettings) -> ValidationReport:
    """Fit, replay, score. Raises UsageError where there is nothing to learn from or nothing is left to score."""
    given, never_seen = settings.overhead, False
    if settings.posterior is not None and (known := _rates(run, settings, settings.draws)).host_request_s is not None:
        if given is not None or settings.transferred:
            raise UsageError(f"{settings.posterior}: its rates were learnt as served: no serving overhead is applied to them a second time")
        served = as_learnt(known)
        pairs = [(e, replay(run, e, served.rates, served.host, draws=settings.draws)) for e in run.experiments]
        return _report(run, served, pairs, ("rates as served, from the posterior: nothing is fitted to the run",))
    alike = all(e.kind == "burst" or e.stated is not None for e in run.experiments)  # nothing to learn from
    if given is None and (settings.host or settings.transferred or alike):
        others = packaged_overhead((run.gpu.name, run.name), run.limits.engine)
        given = others and others.elsewhere(settings.host)
        never_seen = settings.host is None and settings.posterior is None and settings.rates is None
    if given is None and len(run.experiments) == 1:
        return _log(run, settings)
    shared = tuple(cached_prompts(run, run.experiments[0])) if len(run.experiments) == 1 else ()
    if given is not None:
        rates = _rates(run, settings, max(RATE_DRAWS, settings.draws))
        served = transferred(given, on_another_machine(rates) if never_seen else rates)
        scored = [e for e in run.experiments if e.kind != "ladder"]
    else:
        low = low_load(run)
        rungs = [e for e in run.experiments if e.kind == "ladder"]
        served = fit_overhead(run, _rates(run, settings, max(RATE_DRAWS, settings.draws)), low, rungs)
        scored = [e for e in run.experiments if not any(e is learnt for learnt in (*low, *rungs))]
    if not scored:
        raise UsageError(f"{run.name}: nothing is left to score")
    pairs = [(e, replay(run, e, served.rates, served.host, draws=settings.draws)) for e in scored]
    return _report(run, served, pairs, shared)


def _report(
    run: ServedRun, served: ServedRates, pairs: list[tuple[Experiment, Prediction]], notes: tuple[str, ...] = ()
) -> ValidationReport:
    apart = replicates(run.experiments)
    floors, o = {each.experiment: each.floor for each in apart}, served.overhead
    scores = [s for e, predicted in pairs for s in score(e, predicted, o.noise, o.run_noise, floors.get(e.load))]
    wholes = [each for each in pairs if any(each[0] is e for e in run.experiments) and len(each[1].times["ttft_s"]) > 1]
    figures = [found for e, predicted in wholes for found in figure_scores(run, e, served, predicted)]
    return ValidationReport(run, served, pairs, scores, apart, (*run.notes, *notes), figures)


def _rates(run: ServedRun, settings: ValidationSettings, draws: int) -> RateDraws:
    return settings.rates or load_rates(run.deployment, posterior=settings.posterior, draws=draws)


def low_load(run: ServedRun) -> list[Experiment]:
    """The open loop of the lowest rate, with its replicates. Raises UsageError where there is none."""
    firsts = [e for e in run.experiments if not e.replicate]
    opens = [e for e in firsts if e.kind == "open"]
    if not opens:
        raise UsageError(f"{run.name}: no open-loop experiment to fit the serving overhead to; --transferred fits nothing")
    return replicates_of(min(opens, key=lambda e: len(e.arrival_s) / max(1e-9, float(np.ptp(e.arrival_s)))), run.experiments)


def _log(run: ServedRun, settings: ValidationSettings) -> ValidationReport:
    """A log: the host is learnt from its first part (calibrate.served.host_fit), and used where it predicts a second part better than a
    host never seen does, all of it replayed; only the rest after both is scored.
    """
    (log,), packaged = run.experiments, packaged_overhead(engine=run.limits.engine)
    first, last = learnt_part(log, settings.learn_from, settings.skip)
    in_process = _rates(run, settings, max(RATE_DRAWS, settings.draws))
    part = log.part(slice(first, last), "first")
    if packaged is None or not in_process.source.stepped:
        run_of_part = replace(run, experiments=(part,))
        own = fit_overhead(run_of_part, in_process, run_of_part.experiments, ())
        seen = replay(run, log, own.rates, own.host, draws=settings.draws)
        return _report(run, own, [_of_part(log, seen, slice(last, None))])
    never = packaged.elsewhere(None)
    learnt = learn_host(run, [part], in_process, never).host  # of the same load: all of it
    choices = [replace(transferred(packaged.elsewhere(learnt), in_process), fitted_to=(part.name,)), transferred(never, in_process)]
    replays = [replay(run, log, served.rates, served.host, draws=settings.draws) for served in choices]
    judged = judging_part(log, first, last)
    fitted, given = (
        sum(s.median_abs / BOUNDS[s.metric] for s in _report(run, served, [_of_part(log, seen, judged)]).scores if s.metric in METRICS)
        for served, seen in zip(choices, replays, strict=True)
    )
    best = 0 if fitted <= given else 1
    what = f"requests {first + 1} to {last}", f"requests {judged.start + 1} to {judged.stop}"
    shared = cached_prompts(run, log)
    note = _on_the_fit(learnt, best == 0, *what, KEEP if not shared else "")
    rest = slice(judged.stop, None)
    return _report(run, choices[best], [_of_part(log, replays[best], rest)], (*shared, note))


def _on_the_fit(learnt: Host, kept: bool, fitted: str, judged: str, next_step: str = KEEP) -> str:
    if not kept:
        return f"fitting to {fitted} did not lower the errors on {judged}: the packaged overhead is used as it is; neither is scored"
    found = f"launches {learnt.launch:.2f}, work {learnt.work:.2f}, iterations {learnt.step:.2f} times the packaged hosts'"
    then = NO_HOST if max(learnt.launch, learnt.work) > 0.99 * MOST else next_step
    return f"fitted to {fitted} ({found}), which lowered the errors on {judged}; neither is scored{then}"


def _of_part(log: Experiment, seen: Prediction, part: slice) -> tuple[Experiment, Prediction]:
    return log.part(part, "rest"), seen.part(part)


def judging_part(log: Experiment, first: int, last: int) -> slice:
    """Requests after those learnt from by which the overhead is chosen: as many again, and at most half of what is left."""
    left = len(log.ttft_s) - last
    return slice(last, last + max(min(last - first, left // 2), 1))


def learnt_part(log: Experiment, count: int | None, skip: int | None) -> tuple[int, int]:
    """(first, last + 1) of a log's requests to learn from: after cold ones, a tenth of it. UsageError where none would be left to score."""
    total = len(log.ttft_s)
    wanted = count if count is not None else max(min(FIRST_LEAST, total // 2), int(FIRST_SHARE * total))
    warm = np.flatnonzero(~(log.ttft_s > COLD * np.nanmedian(log.ttft_s[: max(wanted, 1)])))
    first = skip if skip is not None else int(warm[0]) if len(warm) else 0
    if wanted < 1 or first + wanted >= total - 1:
        few = f"{log.name}: {total} requests are too few to skip {first}, learn from {wanted} and check the rest"
        raise UsageError(f"{few}; --transferred learns nothing")
    return first, first + wanted
