"""Steps of `simctl loop`: rates and serving overhead learnt from measurements, a load predicted, prediction and measurement compared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from calibrate.measurement import open_measurement
from calibrate.sampling import Diagnostics, Settings
from calibrate.served.overhead import ServedRates, fit_overhead
from calibrate.served.replay import Prediction, replay
from calibrate.served.runs import Experiment, ServedRun, read_served
from calibrate.served.scores import Replicates, Score, replicates, score
from calibrate.steps.fit import StepFit
from calibrate.steps.grid_cells import read_engine_grid
from calibrate.steps.iterations import check_enough
from calibrate.steps.random_rates import calibration_priors
from hw.suites.served_plan import CPU_PLAN, open_loops
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import RateDraws, Rates
from sim.errors import SimctlError, UsageError
from sim.files import write_text
from sim.specs.gpus import get_gpu

PEAK_OVER_FLOOR = 2.0  # a roofline microbenchmark reaches this share of a laptop's peak, which no datasheet gives
DRAWS = 20


@dataclass(frozen=True)
class LearntHere:
    """Serving overhead and rates of this machine, the served run they were learnt on, and the rates before it."""

    run: ServedRun
    served: ServedRates
    in_process: Rates
    cells: int
    diagnostics: str


def require_cells(grid_file: Path, out: Path, budget_s: float) -> None:
    """Raise SimctlError when the engine grid has too few cells to learn from: a busy machine takes more of the budget for each."""
    gpu = get_gpu(str(datasheet(dict(open_measurement(grid_file).attrs), out / "this-machine.yaml")))
    try:
        check_enough(read_engine_grid(grid_file, gpu).cells)
    except UsageError as error:
        raise SimctlError(f"{error}; {budget_s:g} s were too short for this machine now: --budget {3 * budget_s:g}, or less load") from None


def learn(grid_file: Path, served_file: Path, out: Path, settings: Settings) -> LearntHere:
    """Fit the step-time formula to the grid, then learn the serving overhead from the ladder and the lowest open loop of the served run."""
    attrs = dict(open_measurement(grid_file).attrs)
    gpu = get_gpu(str(datasheet(attrs, out / "this-machine.yaml")))
    grid, run = read_engine_grid(grid_file, gpu), read_served(served_file, gpu)
    blocks, size = int(attrs["kv_blocks"]), int(attrs["block_size_tokens"])
    run = replace(run, limits=replace(run.limits, num_gpu_blocks=blocks, block_size=size))
    posterior = StepFit(grid.cells, calibration_priors(gpu, grid.precision), settings).posterior()
    point = replace(posterior.rates, **{n: float(np.median(getattr(posterior.rates, n))) for n in posterior.rates.names()})
    own = Provenance(Origin.IN_PROCESS, "learnt by this loop", gpu.name)
    ladder = tuple(e for e in run.experiments if e.kind == "ladder")
    if not ladder:
        raise SimctlError("no usable rung in the served ladder: every batch was void")
    served = fit_overhead(run, RateDraws(point, posterior.rates, dict.fromkeys(posterior.learnt, own), own), lowest(run), ladder)
    return LearntHere(run, served, point, len(grid.cells), gates(posterior.diagnostics))


def gates(d: Diagnostics) -> str:
    """Convergence of the sample, and the verdict of `simctl calibrate`."""
    text = f"R-hat <= {d.rhat_max:.3f}, effective sample size >= {d.ess_min:.0f}, {d.divergences} divergences"
    found = d.failures()
    return f"{text}; `simctl calibrate` refuses such rates ({'; '.join(found)}): measure longer, --budget" if found else text


def lowest(run: ServedRun) -> tuple[Experiment, ...]:
    """The open loop of the lowest rate, with its replicates. SimctlError when every one was void."""
    loops = [e for e in run.experiments if e.kind == "open"]
    if not loops:
        raise SimctlError("the served run has no usable open loop")
    low = min(e.rate_per_s for e in loops)
    return tuple(e for e in loops if e.rate_per_s == low)


def datasheet(attrs: dict[str, Any], path: Path) -> Path:
    """A datasheet for a machine that has none: its roofline microbenchmarks, with room above them."""
    bandwidth = max(attrs["floor_copy_bytes_per_s"], attrs["floor_read_bytes_per_s"])
    sheet = {
        "name": "this-machine",
        "memory_bytes": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "memory_bandwidth": float(PEAK_OVER_FLOOR * bandwidth),
        "flops": {"fp32": float(PEAK_OVER_FLOOR * attrs["floor_matmul_fp32_flop_per_s"])},
        "host_link_bandwidth": float(bandwidth),
        "source": "floors of the same run",
    }
    write_text(path, yaml.safe_dump(sheet))
    return path


def predict_open_loop(learnt: LearntHere, rate_per_s: float, before: tuple[float, ...]) -> Prediction:
    """Predict the open loop that the second served run will add: the same arrivals and sizes, drawn in the same order."""
    planned = open_loops(1000, 0, (*before, rate_per_s), CPU_PLAN)[-1]
    assert planned.load is not None
    arrivals, sizes = planned.load
    prompts, outputs = np.array(sizes, dtype=np.int64).T
    times = np.ones(len(arrivals))  # not known yet
    load = Experiment(planned.name, planned.kind, np.array(arrivals), prompts, outputs, times, times, rate_per_s=rate_per_s)
    return replay(learnt.run, load, learnt.served.rates, learnt.served.host, draws=DRAWS)


def compare(learnt: LearntHere, predicted: Prediction, second: ServedRun, rate_per_s: float) -> tuple[list[Score], list[Replicates]]:
    """Scores of the new load, and how far the known loads lie apart in the two runs (SimctlError when the new one was void)."""
    loops = [e for e in second.experiments if e.kind == "open"]
    new = next((e for e in loops if e.rate_per_s == rate_per_s and not e.replicate), None)
    if new is None:
        raise SimctlError(f"the second served run has no usable open loop at {rate_per_s:g} requests/s")
    again = [replace(e, name=f"{e.load} again", replicate=1 + e.replicate) for e in loops if e.rate_per_s != rate_per_s]
    known = [e for e in learnt.run.experiments if e.kind == "open"]
    overhead = learnt.served.overhead
    return score(new, predicted, overhead.noise, overhead.run_noise), replicates([*known, *again])
