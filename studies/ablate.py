"""Ablation of the step-time formula without each of its terms, beside the full formula (docs/adr/04).

    python -m studies.ablate [--served] [TERM ...]        (make ablate)

Terms are the rates that engine grids show and the constants that sim.cost.terms_left_out lists; TERM is a part of the name of those wanted.
A term that iterations of the packaged 16-bit grids show is left out of a refit. Printed are median errors on held-out cells, on left-out
models (their GEMMs measured alone) and on left-out GPUs (each of two by the other's shares of its datasheet's peaks and its host costs);
with --served, scores in bound of served runs at the refitted rates, too, and crowds without terms of the API server.
Any other term is judged by the served runs of its kind (studies.ablate_kinds), from which no rate is learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import getsource
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np

import sim.cost.coefficients
import sim.cost.work
from calibrate.measured_files import engine_grids, packaged_measurements
from calibrate.steps.held_out import cell_folds, held_out, score
from calibrate.steps.iterations import StepCells, concatenate
from calibrate.steps.laplace import HOST_SD, fitted
from calibrate.steps.noise import with_hosts_of_visits
from calibrate.steps.random_rates import BY_ENGINES, calibration_priors
from calibrate.steps.step_model import log_times
from sim.cost.coefficients import layer_work
from sim.cost.layer_work import LayerWork
from sim.cost.mlp_work import expected_experts
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS, RateDraws, Rates
from sim.cost.terms_left_out import terms
from sim.errors import UsageError
from sim.rates.priors import Prior
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from sim.study.deployment import Deployment
from studies.ablate_api_server import api_server_table
from studies.ablate_kinds import kinds_table, step_times

GPUS, FOLDS = ("H100", "H200"), 5
NOTHING_S, WITHOUT_LIMIT = 1e-15, 1e30  # a cost that is none, a flop rate that never binds
FULL = "full formula"
HELD_SD = 0.01  # of the logarithm of a rate that is held
SERVED = ("served_qwen2.5-7b.nc", "served_qwen3-14b.nc")  # one run of a model with grids of its own each


@dataclass(frozen=True)
class Ablation:
    """A term left out, or one value for all cards: rates held at values, constants and functions of sim.cost replaced."""

    name: str
    rates: Mapping[str, float] = field(default_factory=dict)
    constants: Sequence[tuple[str, str, Any]] = ()
    patches: Sequence[tuple[Any, str, Any]] = ()


def without(*names: str) -> dict[str, float]:
    """Rates at which their terms vanish."""
    return {name: NOTHING_S if UNITS[name].startswith("s ") else WITHOUT_LIMIT for name in names}


def ablations() -> list[Ablation]:
    """The full formula first, then without each rate that engine grids show, without each term of a constant, then without groups."""

    def no_bytes(*layer: Any) -> LayerWork:
        return replace(layer_work(*layer), row_bytes=0.0, row_inputs=0.0)

    def even(experts: int, top_k: int, tokens: Any, gpus: int) -> Any:
        return expected_experts(experts, top_k, tokens) / gpus

    evenly = [(sim.cost.work, "busiest", lambda mean, _: mean), (sim.cost.work, "busiest_experts", even)]
    activations = [(sim.cost.coefficients, "layer_work", no_bytes)]
    single = [name for name in BY_ENGINES if name != "c0_s" and not name.startswith("beta")]
    return [
        Ablation(FULL),
        *(Ablation(f"without {name}", without(name)) for name in (*single, "comm_latency_s")),
        Ablation("one c_prefill_s, 250 us", {"c_prefill_s": 250e-6}),
        Ablation("without activation bytes", patches=activations),
        Ablation("without measured GEMMs", patches=[(sim.cost.coefficients, "over_roofline", lambda *_: None)]),
        *(Ablation(f"without {term.name}", constants=term.constants) for term in terms()),
        Ablation("experts evenly over GPUs", patches=evenly),
        Ablation("without kernels and activations", without("kernel_s"), patches=activations),
        Ablation("without launch and prefill", without("launch_layer_s", "c_prefill_s")),
        Ablation("without host costs but c0", without("launch_layer_s", "c_prefill_s", "c_seq_s")),
    ]


@contextmanager
def applied(ablation: Ablation) -> Iterator[None]:
    """The names of an ablation replaced, and what was remembered of them forgotten, before and after."""
    with ExitStack() as stack:
        stack.callback(forget)
        for module, name, value in ablation.patches:
            stack.enter_context(patch.object(module, name, value))
        for module, name, value in ablation.constants:
            replace_constant(stack, name, getattr(import_module(f"sim.cost.{module}"), name), value)
        forget()
        yield


def forget() -> None:
    """What functions of sim remember of the formula."""
    for name in [name for name in sys.modules if name.startswith(("sim.cost.", "sim.engine.", "sim.study."))]:
        for each in list(vars(sys.modules[name]).values()):
            if callable(clear := getattr(each, "cache_clear", None)):
                clear()


def replace_constant(stack: ExitStack, name: str, old: Any, new: Any) -> None:
    """A constant under its name in every module of sim, and as a default of their functions, until the stack is left."""
    for key in [key for key in sys.modules if key.startswith("sim.")]:
        module = sys.modules[key]
        if vars(module).get(name) is old:
            stack.enter_context(patch.object(module, name, new))
        for function in [each for each in vars(module).values() if isinstance(each, FunctionType)]:
            given = function.__defaults__ or ()
            # an equal number may be the same object
            if any(each is old for each in given) and f" = {name}" in getsource(function):
                changed = tuple(new if each is old else each for each in given)
                stack.enter_context(patch.object(function, "__defaults__", changed))


@dataclass(frozen=True)
class Fit:
    """Cells of a GPU, their priors without the ablated terms, and rates fitted to all of them."""

    gpu: GpuSpec
    cells: StepCells
    priors: dict[str, Prior]
    rates: Rates
    draws: Rates


def fit(name: str, ablation: Ablation) -> Fit:
    """Fit a GPU's packaged grids without the terms that `ablation` leaves out."""
    gpu = get_gpu(name)
    cells = concatenate([grid.cells for grid in engine_grids(gpu)])
    priors = calibration_priors(gpu, Precision())
    priors |= {rate: Prior(value, HELD_SD, "held") for rate, value in ablation.rates.items()}
    cells = with_hosts_of_visits(cells, priors)
    found = fitted(cells, priors)
    draws, _, _ = found.draws(200, np.random.default_rng(0))
    return Fit(gpu, cells, priors, found.rates, draws)


def scores(ablation: Ablation, served: bool) -> tuple[str, ...]:
    """The table's row of an ablation."""
    with applied(ablation):
        fits = [fit(name, ablation) for name in GPUS]
        cells = [_left_out(each, cell_folds(each.cells, FOLDS, np.random.default_rng(0))) for each in fits]
        models = [_left_out(each, each.cells.model) for each in fits]
        gpus = [_other_gpu(one, other) for one, other in (fits, fits[::-1])]
        columns = [f"{value:.2%}" for value in (*cells, *models, *gpus)]
        return (ablation.name, *columns, *(_served(fits[0]) if served else ()))


def grid_prices() -> list[Any]:
    """Prices of iterations of the packaged grids' models, on their GPUs and at their degrees of tensor parallelism."""
    asked = sorted({(grid.model.name, name, grid.tp) for name in GPUS for grid in engine_grids(get_gpu(name))})
    return [step_times(Deployment.of(model, gpu, tp=tp)) for model, gpu, tp in asked]


def shown_by_grids(ablation: Ablation, full: Sequence[Any]) -> bool:
    """Whether such iterations take another time without the term."""
    if ablation.rates or ablation.name == FULL:
        return True
    with applied(ablation):
        return grid_prices() != full


def _left_out(of: Fit, folds: Any) -> float:
    held = held_out(of.cells, of.priors, folds, HOST_SD, seed=0)
    return held.scores(of.cells).median


def _other_gpu(judged: Fit, known: Fit) -> float:
    """Median error on a GPU's grids of one GPU each, at another's shares of the datasheet's peaks and its costs as they are."""
    values = {}
    for name in UNITS:
        theirs, ours = known.priors[name].upper, judged.priors[name].upper
        scale = ours / theirs if np.isfinite(theirs) and np.isfinite(ours) else 1.0
        values[name] = getattr(known.rates, name) * scale
    cells = judged.cells.take(judged.cells.kind != "multi-gpu")
    predicted = np.exp(log_times(cells, Rates(**values))[0])
    return score(cells.step_s, predicted, predicted, predicted).median


def _served(of: Fit) -> tuple[str, ...]:
    """(scores in bound, median errors of TTFT, TPOT and E2EL averaged over loads) of served runs at the refitted rates."""
    from calibrate.served.runs import read_served
    from calibrate.served.validation import ValidationSettings, validate

    source = Provenance(Origin.IN_PROCESS, "ablation", of.gpu.name, ("bf16",), (1,))
    rates = RateDraws(of.rates, of.draws, dict.fromkeys(UNITS, source), source)
    paths = [path for path in packaged_measurements(of.gpu) if path.name in SERVED]
    if not paths:
        raise UsageError("served runs are in a checkout only")
    found = [each for path in paths for each in validate(read_served(path), ValidationSettings(draws=8, rates=rates)).scores]
    errors = (np.mean([s.median_abs for s in found if s.metric == metric]) for metric in ("ttft_s", "tpot_s", "e2el_s"))
    return (f"{sum(s.within for s in found)}/{len(found)}", " / ".join(f"{100 * error:.2f}" for error in errors))


def main(argv: Sequence[str]) -> int:
    """Print the tables. Returns the exit code."""
    served, wanted = "--served" in argv, [each for each in argv if each != "--served"]
    heads = [f"{what} {gpu}" for what in ("cells", "models", "GPU") for gpu in GPUS]
    heads += ["served, in bound", "TTFT / TPOT / E2EL, %"] if served else []
    print("| formula | " + " | ".join(heads) + " |\n|" + " --- |" * (1 + len(heads)))
    chosen = [each for each in ablations() if not wanted or any(word in each.name for word in wanted)]
    full, of_kinds = grid_prices(), []
    for ablation in chosen:
        if shown_by_grids(ablation, full):
            print("| " + " | ".join(scores(ablation, served)) + " |", flush=True)
        else:
            of_kinds.append(ablation)
    print(f"\n{kinds_table([(each.name, applied(each)) for each in of_kinds])}")
    if served and not wanted:
        print(f"\n{api_server_table()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
