"""Steps of `simctl loop --gpu`: decode steps of this project's kernels predicted before and after a part of them is learnt from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.calibration import RateRow
from calibrate.steps.decode_cells import decode_question, read_decode
from calibrate.steps.grid_cells import Grid
from calibrate.steps.predict import predict
from calibrate.steps.save import save
from calibrate.steps.step_model import log_times
from hw.jobs import Job
from sim.errors import SimctlError
from sim.rates.source import RateSource
from sim.rates.stack_rates import stack_rates
from sim.specs.decode_stack import KERNELS
from sim.specs.gpu import GpuSpec
from sim.study.deployment import Deployment

Array = NDArray[np.float64]
Measure = Callable[["Job", Path, bool], Path]  # (job, folder, whether to go on with what is there) -> the file written
DRAWS = 2000
FIRST_SHARE = 0.4  # of the seconds for decode steps: what is learnt from; the rest is predicted, then measured
LEAST = 8  # cells that rates are learnt from, as `calibrate` wants


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A decode step: seconds measured, and (5 %, median, 95 %) predicted before anything was learnt here and after."""

    cell: str
    measured_s: float
    before_s: tuple[float, float, float]
    after_s: tuple[float, float, float]

    def error(self, which: str) -> float:
        """Relative error of the median, `before` or `after`."""
        return self._of(which)[1] / self.measured_s - 1

    def inside(self, which: str) -> bool:
        """Whether the measured time lies in the 90 % interval."""
        low, _, high = self._of(which)
        return low <= self.measured_s <= high

    def _of(self, which: str) -> tuple[float, float, float]:
        return self.before_s if which == "before" else self.after_s


def before_s(grid: Grid, gpu: GpuSpec, seed: int = 0) -> tuple[dict[str, tuple[float, float, float]], str]:
    """(5 %, 50 %, 95 % of every step of a grid as `what-if` answers it before anything was learnt here, what that rests on)."""
    rates = stack_rates(KERNELS, Deployment(grid.model, gpu), RateSource(None, seed=seed), DRAWS)
    low, middle, high = np.quantile(np.exp(log_times(grid.cells, rates.draws)), [0.05, 0.5, 0.95], axis=0)
    found = {str(name): (float(a), float(b), float(c)) for name, a, b, c in zip(grid.cells.cell, low, middle, high, strict=True)}
    return found, rates.source.evidence


def learn(files: Sequence[Path], gpu: GpuSpec, out: Path, how: dict[str, Any]) -> tuple[Path, list[RateRow], str]:
    """(the posterior's file, rates before and after, diagnostics) of the rates that decode, floor and host files teach.

    SimctlError where there are too few cells, or the sample has not converged.
    """
    question = decode_question(gpu, files, folds=0, **how)
    if (cells := sum(len(grid.cells) for grid in question.grids)) < LEAST:
        raise SimctlError(f"{cells} decode steps are too few to learn from ({LEAST} at least): a longer --budget, or a smaller --model")
    result, _ = question.answer()
    result.diagnostics.require()
    path = save(out, result, list(question.grids), "bf16")
    d = result.diagnostics
    said = f"R-hat <= {d.rhat_max:.3f}, effective sample size >= {d.ess_min:.0f}, {d.divergences} divergences"
    return path, [rate for rate in result.rates if rate.learnt], said


def decode_steps(job: Job, out: Path, measured: Measure, between: Callable[[Path], None], budget_s: float) -> tuple[Path, Path]:
    """(file of the first decode steps, file of all): after the first ones, `between` is called with their file, then the rest is measured.

    The second run goes on with the first one's journal, so that no step is measured twice.
    """
    first = measured(replace(job, budget_s=FIRST_SHARE * budget_s), out / "first", False)
    between(first)
    folder = out / "rest"
    folder.mkdir(parents=True, exist_ok=True)
    journal = first.with_suffix("").with_name(f"{first.stem}.journal.jsonl")
    if journal.exists():  # absent where the budget was enough for all of them
        shutil.copy(journal, folder / journal.name)
        return first, measured(replace(job, budget_s=(1 - FIRST_SHARE) * budget_s), folder, True)
    return first, first


def compared(first: Path, every: Path, posterior: Path, gpu: GpuSpec) -> tuple[list[ComparedStep], str]:
    """(steps that nothing was learnt from, as measured; what the first prediction rests on). SimctlError where there are none."""
    learnt = set(map(str, read_decode(first, gpu).cells.cell))
    grid = read_decode(every, gpu)
    after = {cell.cell: (cell.low_s, cell.predicted_s, cell.high_s) for cell in predict(grid, posterior, 0).cells}
    said, basis = before_s(grid, gpu)
    new = [(str(name), float(step)) for name, step in zip(grid.cells.cell, grid.cells.step_s, strict=True) if str(name) not in learnt]
    if not new:
        raise SimctlError("all decode steps were learnt from: nothing is left to predict")
    return [ComparedStep(name, step, said[name], after[name]) for name, step in new], basis
