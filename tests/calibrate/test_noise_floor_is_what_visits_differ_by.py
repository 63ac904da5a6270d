"""A cell visited several times has the noise floor of its visits, pooled with the grid's; one visited once keeps its repeats'."""

import numpy as np
import pytest
import xarray as xr

from calibrate.measurement import open_measurement
from calibrate.sources import packaged_measurements
from calibrate.steps.engine_grid import ONE_VISIT, read_engine_grid, repeat_sd
from tests.calibrate.grids import write_grid


def with_visits(path, out, visits, sd):
    with xr.open_dataset(path, engine="h5netcdf") as data:
        data.load()
    n = data.sizes["cell"]
    data["visits"] = ("cell", np.full(n, visits, float) if np.isscalar(visits) else np.resize(visits, n))
    data["step_s_visits_sd"] = ("cell", np.full(n, sd, float) if np.isscalar(sd) else np.resize(sd, n))
    data.to_netcdf(out, engine="h5netcdf")
    return read_engine_grid(out).cells


@pytest.fixture
def plain(tmp_path):
    return write_grid(tmp_path / "a.nc", np.random.default_rng(0))


def test_one_visit_is_off_by_what_visits_are_beside_its_repeats(plain, tmp_path):
    repeats = repeat_sd(0.999, 1.001, 12)
    before = read_engine_grid(plain).cells.repeat_sd
    np.testing.assert_allclose(before, np.hypot(repeats, ONE_VISIT))
    once = with_visits(plain, tmp_path / "b.nc", 1, np.nan).repeat_sd
    np.testing.assert_array_equal(once, before)


def test_what_one_visit_is_off_by_is_what_packaged_grids_show():
    found = []
    for path in packaged_measurements():
        data = open_measurement(path)
        if data.attrs.get("protocol") == "engine-grid/3":
            sd, visits = data["step_s_visits_sd"].values, data["visits"].values
            several = (visits > 1) & (data["role"].values.astype(str) == "grid")
            # over the median of a chi-square, as the floor is pooled
            share = (1 - 2 / (9 * (visits[several] - 1))) ** 3
            found.append(np.sqrt(np.median(sd[several] ** 2 / share)))
    assert len(found) >= 4
    assert np.median(found) == pytest.approx(ONE_VISIT, rel=0.1)


def test_visits_that_differ_raise_the_floor_to_their_standard_error(plain, tmp_path):
    cells = with_visits(plain, tmp_path / "b.nc", 4, 0.05)
    # four visits' medians that differ by 5 %: their median's error is 1.25 x 5 % / 2, and pooling with equals changes little
    np.testing.assert_allclose(cells.repeat_sd, 1.2533 * 0.05 / 2, rtol=0.1)


def test_one_cell_that_stutters_stands_out_and_is_shrunk(plain, tmp_path):
    n = len(read_engine_grid(plain).cells)
    sd = np.full(n + 2, 0.01)
    sd[3] = 0.30
    found = with_visits(plain, tmp_path / "b.nc", 3, sd).repeat_sd
    raw = 1.2533 * 0.30 / np.sqrt(3)
    assert found[3] > 5 * np.median(found)
    assert 0.6 * raw < found[3] < raw


def test_the_floor_is_right_on_average(plain, tmp_path):
    rng = np.random.default_rng(2)
    logs = 0.04 * rng.standard_normal((400, 3))
    error = np.median(logs, axis=1).std()
    n = len(read_engine_grid(plain).cells) + 2
    found = [with_visits(plain, tmp_path / f"{i}.nc", 3, logs[i * n : (i + 1) * n].std(axis=1, ddof=1)).repeat_sd for i in range(8)]
    assert np.sqrt(np.mean(np.square(np.concatenate(found)))) == pytest.approx(error, rel=0.15)
