"""Grids of a 70B over two H200s, of which nothing was learnt: the packaged rates price their iterations, in 16 and in 8 bits."""

from importlib.resources import files
from pathlib import Path

import pytest

from calibrate.measured_files import packaged_measurements
from calibrate.steps.grid_cells import read_engine_grid
from calibrate.steps.predict import predict
from sim.rates.posterior import packaged_posterior

VALIDATION = Path(str(files("scenarios") / "data" / "measured" / "validation"))
pytestmark = pytest.mark.skipif(not VALIDATION.is_dir(), reason="raw runs come with the source tree")


def test_nothing_is_learnt_from_what_is_kept_apart():
    assert len(list(VALIDATION.glob("*.nc"))) >= 7
    assert not [path for path in packaged_measurements() if path.parent.name in ("validation", "void")]


@pytest.mark.parametrize("weights", ["", "_fp8"])
def test_an_iteration_is_priced_to_three_per_cent_and_nine_in_ten_lie_in_their_intervals(weights):
    grid = read_engine_grid(VALIDATION / f"h200_engine-grid_llama3.1-70b{weights}_tp2.nc")
    found = predict(grid, packaged_posterior("h200"), seed=0)
    every = next(part.scores for part in found.parts if part.cells == "all")
    assert not found.learnt_from
    assert every.median <= 0.03
    assert every.coverage >= 0.9
