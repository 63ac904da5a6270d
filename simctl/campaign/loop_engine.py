"""Steps of `simctl loop --gpu` where vLLM is installed: engine iterations learnt from, a served load predicted before and after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibrate.measured_files import engine_grids
from calibrate.served.runs import read_served
from calibrate.served.validation import ValidationReport, ValidationSettings, validate
from calibrate.steps.calibrate_question import Calibrate
from calibrate.steps.save import save
from hw.jobs import Job
from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision
from simctl.campaign.loop_kernels import Measure

RATE_PER_S = 4.0  # of the open loop, half a minute long
GRID_S, SERVED_S = 60.0, 60.0


def engine_jobs(model: str) -> tuple[Job, Job]:
    """(eight cells of an engine's grid and more, as the time goes; a served load)."""
    load = Job("served", "cuda", model, budget_s=SERVED_S, rates=(RATE_PER_S,), experiments=(f"open {RATE_PER_S:g}/s",))
    return Job("engine-grid", "cuda", model, budget_s=GRID_S), load


def engine_part(model: str, gpu: GpuSpec, out: Path, measured: Measure, how: dict[str, Any]) -> tuple[ValidationReport, ValidationReport]:
    """The served load as predicted before anything was learnt here, and after; the posterior is written before the load is sent.

    Nothing is fitted to the load in either: the serving overhead is the packaged one.
    """
    grid, load = engine_jobs(model)
    grids = engine_grids(gpu, [measured(grid, out / "engine", False)])
    result, _ = Calibrate(gpu, grids, folds=0, **how).answer()
    result.diagnostics.require()
    posterior = save(out / "engine-posterior.nc", result, grids, Precision().weights)
    run = read_served(measured(load, out / "served", False), gpu if gpu.origin != "catalogue" else None)
    before, after = (validate(run, ValidationSettings(posterior=rates, transferred=True)) for rates in (None, posterior))
    return before, after
