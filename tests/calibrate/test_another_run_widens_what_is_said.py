"""Two runs of one grid tell what runs differ by; draws of a posterior move by that as a whole, its rates stay."""

from dataclasses import replace
from pathlib import Path

import h5netcdf
import numpy as np
import pytest

from calibrate.sources import engine_grids, repeated_grids, unseen_grids
from calibrate.steps.engine_grid import Grid, read_engine_grid
from calibrate.steps.repeats import log_ratios, run_sd
from sim.posterior import run_effects
from sim.specs.gpus import get_gpu
from tests.calibrate.grids import write_grid


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Grid, Grid]:
    first = read_engine_grid(write_grid(tmp_path / "a.nc", np.random.default_rng(0), sigma=0.0))
    cells = first.cells
    again = replace(cells, step_s=1.06 * cells.step_s).take(np.arange(3, len(cells)))
    return first, replace(first, cells=again)


def test_what_runs_differ_by_is_the_median_over_shared_cells(pair: tuple[Grid, Grid]) -> None:
    assert len(log_ratios(*pair)) == len(pair[1].cells)
    assert run_sd([pair]) == pytest.approx(np.log(1.06) / np.sqrt(2), rel=1e-9)
    other = replace(pair[0], source="of another model")
    assert run_sd([pair, (other, other)]) == pytest.approx(np.log(1.06) / 2, rel=1e-9)
    # three runs of one model: 0, 6 % and nothing more than the first
    assert run_sd([pair, (pair[0], pair[0])]) == pytest.approx(np.std([0.0, np.log(1.06), 0.0], ddof=1), rel=1e-9)
    assert run_sd([]) == 0.0


def test_a_runs_effect_is_one_factor_for_each_draw_of_that_size() -> None:
    effect = run_effects(0.04, 4000, 0)
    assert np.log(effect).std() == pytest.approx(0.04, rel=0.05)
    assert (run_effects(0.0, 10, 0) == 1.0).all()


def test_packaged_repeats_judge_and_are_not_learnt_from() -> None:
    gpu = get_gpu("H100")
    learnt = {grid.source.split(" ")[0] for grid in engine_grids(gpu)}
    judged = {grid.source.split(" ")[0] for _, grid in unseen_grids(gpu)}
    assert learnt
    assert judged
    assert not learnt & judged
    assert 0 < run_sd(repeated_grids(gpu)) < 0.2


def test_packaged_posteriors_of_measured_gpus_carry_it() -> None:
    from sim.posterior import packaged_posterior

    for name in ("H100", "H200", "population"):
        path = packaged_posterior(name)
        assert path is not None
        with h5netcdf.File(path, "r") as file:
            assert float(file.attrs["run_sd"]) == pytest.approx(run_sd(), rel=1e-6)
