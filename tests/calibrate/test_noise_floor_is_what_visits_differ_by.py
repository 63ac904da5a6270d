"""A cell has the noise floor of its visits, pooled with what its host's share of the step lets expect; one visited once that of others."""

from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from calibrate.measured_files import engine_grids, packaged_measurements
from calibrate.measurement import open_measurement
from calibrate.steps.grid_cells import ONE_VISIT, read_engine_grid, repeat_sd
from calibrate.steps.iterations import FIELDS, StepCells, concatenate
from calibrate.steps.laplace import fitted
from calibrate.steps.noise import LAUNCH_OF_VISIT, REST_OF_VISIT, SEQUENCES_OF_VISIT, floor, typical_scatter, with_hosts_of_visits
from calibrate.steps.random_rates import calibration_priors
from sim.quantiles import MEDIAN_SE
from sim.specs.gpus import get_gpu
from tests.calibrate.grids import write_grid
from tests.calibrate.steps import PRIORS, synthetic

MEASURED = Path(str(files("scenarios") / "data" / "measured"))


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
        data = open_measurement(path, ("step_s_visits_sd", "visits", "role"))
        if data.attrs.get("protocol") == "engine-grid/3":
            sd, visits = data["step_s_visits_sd"].values, data["visits"].values
            several = (visits > 1) & (data["role"].values.astype(str) == "grid")
            # over the median of a chi-square, as the floor is pooled
            share = (1 - 2 / (9 * (visits[several] - 1))) ** 3
            found.append(np.sqrt(np.median(sd[several] ** 2 / share)))
    assert len(found) >= 4
    assert np.median(found) == pytest.approx(ONE_VISIT, rel=0.1)


def test_visits_that_differ_raise_the_floor_to_their_standard_error(plain, tmp_path):
    cells = with_visits(plain, tmp_path / "b.nc", 11, 0.05)
    # eleven visits' medians that differ by 5 %: their median's error is 1.25 x 5 % / 3.3, and two visits' worth of others changes little
    np.testing.assert_allclose(cells.repeat_sd, 1.2533 * 0.05 / np.sqrt(11), rtol=0.1)


def test_one_cell_that_stutters_stands_out_and_is_shrunk(plain, tmp_path):
    n = len(read_engine_grid(plain).cells)
    sd = np.full(n + 2, 0.01)
    sd[3] = 0.30
    found = with_visits(plain, tmp_path / "b.nc", 3, sd).repeat_sd
    raw = 1.2533 * 0.30 / np.sqrt(3)
    assert found[3] > 5 * np.median(found)
    assert 0.6 * raw < found[3] < raw


@pytest.fixture(scope="module")
def visited() -> list[tuple[StepCells, np.ndarray]]:
    """Packaged cells of each GPU, and the scatter [n] of their visits that is expected."""
    out = []
    for name in ("H100", "H200"):
        gpu = get_gpu(name)
        grids = engine_grids(gpu)
        cells = concatenate([grid.cells for grid in grids])
        fit = fitted(cells, calibration_priors(gpu, grids[0].precision))
        out.append((cells, typical_scatter(cells, fit.rates, fit.hosts[fit.model.run][None, :])))
    return out


def seen_over_expected(cells: StepCells, expected: np.ndarray) -> np.ndarray:
    """Squared ratio [n] of visits' scatter to the expected one, each over the median of its chi-square."""
    return np.square(cells.visits_sd / expected) / (1 - 2 / (9 * (np.maximum(cells.visits, 2.0) - 1))) ** 3


def test_visits_differ_as_far_as_the_host_is_waited_for(visited):
    """Over the packaged grids, in bands of what is expected: the scatter of visits is what the host's, launching's and the rest's say."""
    found = {False: ([], []), True: ([], [])}  # by whether kernels are launched one by one: expected, and squared ratio of seen to expected
    for cells, expected in visited:
        launched = cells.as_work().launch_layers > 0
        for kind, (sizes, ratios) in found.items():
            mine = (cells.visits > 1) & (launched == kind)
            sizes.append(expected[mine])
            ratios.append(seen_over_expected(cells, expected)[mine])
    bands = {False: (0.0, 0.017, 0.024, 0.035, 1.0), True: (0.0, 0.011, 0.012, 0.03, 1.0)}
    for kind, (sizes, ratios) in found.items():
        size, ratio = np.concatenate(sizes), np.concatenate(ratios)
        assert len(size) > 400
        for low, high in pairwise(bands[kind]):
            band = (size >= low) & (size < high)
            assert band.sum() >= 40, (kind, low)
            assert 0.6 < np.sqrt(np.median(ratio[band])) < 1.4, (kind, low)


@pytest.mark.parametrize(("least", "most"), [(1, 9), (16, 70), (96, 128), (180, 256)])
def test_visits_of_many_decodes_differ_as_the_work_for_every_sequence_does(visited, least, most):
    """One speed for all that a host does is 1.7 times too little for 180 sequences and more, and right for the leanest."""
    ratios = []
    for cells, expected in visited:
        sequences = cells.as_work().sequences
        mine = (cells.kind == "decode") & (cells.visits > 1) & (sequences >= least) & (sequences <= most)
        ratios.append(seen_over_expected(cells, expected)[mine])
    assert sum(map(len, ratios)) > 80
    assert np.sqrt(np.median(np.concatenate(ratios))) == pytest.approx(1.0, abs=0.2)


def test_a_cell_that_waits_for_its_host_is_noisier_than_one_of_the_gpu_alone():
    cells = synthetic(np.random.default_rng(0))
    seen = replace(cells, visits=np.ones(len(cells)))
    noise = with_hosts_of_visits(seen, PRIORS).repeat_sd
    assert noise.min() < 1.2 * REST_OF_VISIT
    work = seen.as_work()
    lean = (work.launch_layers == 0) & (work.sequences == 1) & (work.has_prefill == 0) & (work.kv_bytes < 1e9)
    assert lean.any()
    assert noise[lean].min() > 2 * REST_OF_VISIT
    assert with_hosts_of_visits(cells, PRIORS) is cells


def test_launching_scatters_as_far_as_it_shows():
    """Of iterations whose GPU has next to nothing to do, all of the launching's scatter; of those that it is busy with, none."""
    cells = synthetic(np.random.default_rng(0))
    rates = fitted(cells, PRIORS).rates
    launched = cells.take(np.flatnonzero(cells.as_work().launch_layers > 0)[:1])
    idle, busy = launched.work.copy(), launched.work.copy()
    idle[:] = 0.0
    idle[:, FIELDS.index("launch_layers")] = 1e3 * launched.as_work().launch_layers  # beside which the fixed cost is nothing
    busy[:, FIELDS.index("linear_flops")] *= 1e3
    alone, hidden = (typical_scatter(replace(launched, work=work), rates)[0] for work in (idle, busy))
    assert alone == pytest.approx(np.hypot(LAUNCH_OF_VISIT, REST_OF_VISIT), rel=0.02)
    assert hidden == pytest.approx(REST_OF_VISIT, rel=0.05)


def test_the_floor_is_right_on_average():
    rng = np.random.default_rng(2)
    logs = 0.04 * rng.standard_normal((4000, 3))
    error = np.median(logs, axis=1).std()
    found = floor(np.zeros(4000), np.full(4000, 3.0), logs.std(axis=1, ddof=1), 0.04)
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(error, rel=0.15)


def test_outside_the_models_call_visits_differ_by_a_fifth():
    """Of decodes of 64 sequences and more: what surrounds the model's call scatters from visit to visit as that work does, the call by less
    than a fifth of it; what repeats of a visit scatter would let their medians differ by less than a third.
    """
    of_visits = {"outside": [], "call": [], "repeats": []}
    for path in MEASURED.glob("h[12]00/engine-grid_*.nc"):
        if "_tp" in path.name:
            continue
        data = open_measurement(path, ("role", "label", "cell_index", "visit", "step_s", "model_s", "decode_seqs", "warmup"))
        if "visit" not in data:
            continue
        labels = np.where(data.role == "grid", data.label, "")[data.cell_index]
        columns = (data[name].values for name in ("visit", "step_s", "model_s", "decode_seqs", "warmup"))
        visits = {}
        for label, visit, step, call, seqs, warmup in zip(labels, *columns, strict=True):
            if not warmup and label.startswith("decode:") and seqs >= 64:
                visits.setdefault(label, {}).setdefault(visit, []).append(np.log([step - call, call]))
        for each in visits.values():
            medians = np.array([np.median(logs, axis=0) for logs in each.values()])
            if len(medians) > 1:
                of_visits["outside"].append(np.var(medians[:, 0], ddof=1))
                of_visits["call"].append(np.var(medians[:, 1], ddof=1))
                of_visits["repeats"].append(np.mean([np.var([log[0] for log in logs], ddof=1) / len(logs) for logs in each.values()]))
    assert len(of_visits["outside"]) > 150
    outside, call = (float(np.sqrt(np.mean(of_visits[name]))) for name in ("outside", "call"))
    assert outside == pytest.approx(SEQUENCES_OF_VISIT, abs=0.04)
    assert call < outside / 5
    assert MEDIAN_SE * np.sqrt(np.median(of_visits["repeats"])) < outside / 3
