"""Held-out errors of served predictions: a part of the deployment was left out of all that was learnt.

    host      rates of the model are known; the serving overhead is that of other hosts
    model     no grid of the model; others of its family are known
    family    no grid of any model of its family
    dtype     no grid of these weights' dtype
    tp        no grid of several GPUs; the served run is over several
    version   no grid of this version of the engine
    scheduling  no grid without asynchronous scheduling
    sibling   no grid on the GPU; one of the same chip was measured, and the datasheets of both are known
    kernels   no grid on the GPU, but latencies of its kernels; grids of one other GPU
    datasheet no grid on the GPU and no kernels of it; grids of one other GPU, and kernels of some

Runs that nothing was ever learnt from are of kinds that no served run had been of: an engine (predicted by vLLM's overhead), an
architecture, a precision (known by its GEMMs and layers alone), parallel (stages, ranks, experts apart), eager, adapters, drafts.

Nothing is fitted to the run that is predicted, and its width is that of its kinds without any run of the same model. A model with grids
of its own is left out by learning its GPU's rates anew without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from calibrate.measured_files import engine_grids
from calibrate.served.load_figures import FigureScore, figure_scores
from calibrate.served.overhead import ServedRates
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import Experiment, ServedRun, by_plugin
from calibrate.served.scores import Score, if_right, score
from calibrate.steps.grid_cells import Grid
from calibrate.steps.iterations import concatenate
from calibrate.steps.laplace import HOST_SD, fitted
from calibrate.steps.noise import with_hosts_of_visits
from calibrate.steps.random_rates import calibration_priors
from sim.cost.gemm_surface import BY_TABLES
from sim.cost.provenance import outside_measured
from sim.cost.rates import RateDraws, at_host
from sim.errors import UsageError
from sim.files import package_path
from sim.rates.kinds import kinds_of, packaged_seen, without
from sim.rates.load import family_known, load_rates, widened
from sim.rates.posterior import DECODE, host_factors, model_errors, moved, rates_for
from sim.rates.serving import ServingOverhead, packaged_overhead
from sim.rates.source import ahead
from sim.specs.gpu import GpuSpec
from sim.specs.lookup import key
from sim.specs.precision import Precision

Array = NDArray[np.float64]
PARTS = ("host", "model", "family", "dtype", "tp", "version", "scheduling", "sibling", "kernels", "datasheet")
KINDS = ("engine", "architecture", "precision", "parallel", "eager", "adapters", "drafts")
SAME_CHIP = {"H100": "H200", "H200": "H100"}
LOADS = ("low", "high", "closed", "burst", "long", "prefix")
LONG_TOKENS = 8192  # of a mean prompt
LEAST_REQUESTS = 20
LEFT_OUT = "left out"  # origin of a GPU whose own files are not to be found
REFIT_DRAWS = 200
WIDE_DRAWS = 2  # times the draws of a run that something was learnt from


@dataclass(frozen=True)
class LeftOut:
    """Scores of one load of a run, predicted without what is left out (of PARTS or KINDS); `load` is its kind, of LOADS.

    `figures` are the load's means and percentiles beside their intervals, as simulations print them.
    By metric: the shares of requests inside their 90 % interval were the predictions right [draw].
    """

    part: str
    run: str
    scores: tuple[Score, ...]
    load: str = "high"
    right: Mapping[str, Array] = field(default_factory=dict)
    figures: tuple[FigureScore, ...] = ()


def left_out(run: ServedRun, draws: int, held_out: bool = False) -> Iterator[LeftOut]:
    """The run's loads, each sent for the first time, predicted once with what is known of its model and once without, where that can be;
    of an `held_out` run, which nothing was learnt from, once (without grids of several GPUs, too), at more draws: the median of a few draws
    of a wide kind is off by chance.
    """
    if by_plugin(run):
        return
    draws *= WIDE_DRAWS if held_out else 1
    others = without(run.deployment, packaged_seen())
    known = load_rates(run.deployment, seen=others)
    others_overhead = packaged_overhead((run.gpu.name, run.name))  # of vLLM: any other engine is left out whole
    if others_overhead is None:
        raise UsageError("no packaged serving overhead")
    overhead = others_overhead.elsewhere(None)  # as simulations have it: of a host never seen, of any provider
    loads = [e for e in run.experiments if e.kind != "ladder" and not e.replicate and len(e.ttft_s) >= LEAST_REQUESTS]
    missing = outside_measured(known.source, run.gpu.name, run.precision.weights, run.tp, "", run.model.name)
    named = {"dtype": "dtype", "tp": "tp", "model": _of_model(run, known.source.models)}
    part = next((named[name] for name in named if name in missing), "host")
    elsewhere = _of_engine(run, known.source.engines)
    kind = kind_of_run(run) or elsewhere
    yield from _scored(kind or part, run, loads, known, overhead, draws)
    if run.tp > 1 and not kind and not {"dtype", "tp"} & set(missing):
        yield from _scored("tp", run, loads, widened(without_tp(run.gpu), run.deployment, seen=others), overhead, draws)
    if held_out:
        return
    if not missing and not elsewhere:
        held = without_model(run.gpu, run.model.name)
        rates = widened(held, run.deployment, seen=others)
        yield from _scored(_of_model(run, held.source.models), run, loads, rates, overhead, draws)
    if not elsewhere and "dtype" not in missing and "tp" not in missing:
        for held_part, elsewhere_run, rates in _without_gpu(run):
            yield from _scored(held_part, elsewhere_run, loads, rates, overhead, draws)


def _without_gpu(run: ServedRun) -> Iterator[tuple[str, ServedRun, RateDraws]]:
    """The run as if no engine had been stepped on its GPU: with rates of the same chip, and with those that `studies.population.build`
    wrote of a GPU known by kernels or less.
    """
    unknown = replace(run, gpu=replace(run.gpu, origin=LEFT_OUT, sibling_of=""))  # its own name would find its GEMMs
    if sibling := SAME_CHIP.get(run.gpu.name):
        like = replace(run, gpu=replace(unknown.gpu, sibling_of=sibling))
        yield "sibling", like, load_rates(like.deployment)
    folder = package_path("scenarios", "data", "posteriors", "left-out")
    by_tables = replace(run, gpu=replace(unknown.gpu, origin=BY_TABLES))
    for part, file, held in (("kernels", folder, by_tables), ("datasheet", folder / "datasheet", unknown)):
        if (path := file / f"{key(run.gpu.name)}.nc").is_file():
            yield part, held, load_rates(held.deployment, posterior=str(path))


@cache
def without_model(gpu: GpuSpec, model: str) -> RateDraws:
    """A GPU's rates learnt again from its packaged grids of other models. Raises UsageError where there are none."""
    return _from_grids(gpu, lambda grid: key(grid.model.name) != key(model), f"another model than {model}")


@cache
def without_tp(gpu: GpuSpec) -> RateDraws:
    """A GPU's rates learnt again from its packaged grids over one GPU. Raises UsageError where there are none."""
    return _from_grids(gpu, lambda grid: grid.tp == 1, "one GPU")


def _from_grids(gpu: GpuSpec, kept: Callable[[Grid], bool], what: str) -> RateDraws:
    grids = [grid for grid in engine_grids(gpu) if kept(grid)]
    if not grids:
        raise UsageError(f"{gpu.name}: no packaged grid of {what}")
    priors = calibration_priors(gpu, Precision())
    found = fitted(with_hosts_of_visits(concatenate([grid.cells for grid in grids]), priors), priors)
    values, _, sigma = found.draws(REFIT_DRAWS, np.random.default_rng(0))
    packaged, host = rates_for(gpu), host_factors(HOST_SD, REFIT_DRAWS, 0)
    models, tps = tuple(sorted({grid.model.name for grid in grids})), tuple(sorted({grid.tp for grid in grids}))
    source = replace(packaged.source, models=models, tps=tps)
    known = RateDraws(found.rates, at_host(values, host), packaged.sources, source, host=host)
    return moved(known, model_errors(np.asarray(sigma[:, DECODE]), 0))


def kind_of_load(load: Experiment, run: ServedRun) -> str:
    """Shared prompts first, then long ones, then how requests are sent: the lowest of the run's open loops is `low`."""
    if load.content or load.kind == "sessions":
        return "prefix"
    if float(np.mean(load.prompt_tokens)) >= LONG_TOKENS:
        return "long"
    if load.kind in ("burst", "closed"):
        return load.kind
    lowest = min((e.rate_per_s for e in run.experiments if e.kind == "open"), default=np.nan)
    return "low" if load.rate_per_s == lowest else "high"


def kind_of_run(run: ServedRun) -> str:
    """Of KINDS, what of the run no packaged run had been; nothing where that is a part of the deployment alone."""
    return "engine" if run.limits.engine != "vllm" else next((kind for kind in kinds_of(run.deployment) if kind != "tp"), "")


def _of_engine(run: ServedRun, engines: Sequence[str]) -> str:
    """Part of the run's engine that no grid had, or nothing."""
    if run.engine not in engines:
        return "version"
    return "" if ahead(run.deployment) else "scheduling"


def _of_model(run: ServedRun, models: Sequence[str]) -> str:
    return "model" if family_known(run.model.name, models) else "family"


def _scored(
    part: str, run: ServedRun, loads: Sequence[Experiment], rates: RateDraws, overhead: ServingOverhead, draws: int
) -> Iterator[LeftOut]:
    served, host = overhead.applied(rates), overhead.host(rates)
    for load in loads:
        predicted = replay(run, load, served, host, draws=draws)
        noise = overhead.noise, overhead.run_noise
        scores = tuple(s for s in score(load, predicted, *noise) if s.metric in METRICS)
        right = {m: if_right(load, predicted, m, *noise) for m in METRICS}
        found = tuple(figure_scores(run, load, ServedRates(served, host, overhead), predicted))
        yield LeftOut(part, f"{run.gpu.name} {run.name}", scores, kind_of_load(load, run), right, found)
