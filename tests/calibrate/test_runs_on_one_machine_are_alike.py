"""Starts of an engine on one machine have most of what hosts do in common: a run left out is known as far as its machine's others tell."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.measured_files import engine_grids, machines, packaged_measurements
from calibrate.measurement import open_measurement
from calibrate.steps.grid_cells import INGESTION_S, RUNNER2_PREFILL_S, RUNNER2_S, WORKERS_S, read_engine_grid
from calibrate.steps.held_out import held_out
from calibrate.steps.iterations import StepCells, concatenate, machines_of
from calibrate.steps.laplace import fitted
from calibrate.steps.noise import with_hosts_of_visits
from calibrate.steps.random_rates import calibration_priors
from calibrate.steps.step_model import SAME_MACHINE, step_model
from sim.cost.rates import at_host
from sim.specs.gpus import get_gpu
from tests.calibrate.steps import PRIORS, TRUE_RATES, synthetic

SLOW, FAST = 1.3, 0.8
RUNS = {"a": (SLOW, "one"), "b": (SLOW, "one"), "c": (FAST, "two"), "d": (1.0, "three")}


def cells_of(machine_known: bool = True) -> StepCells:
    rng = np.random.default_rng(0)
    parts = []
    for name, (factor, machine) in RUNS.items():
        cells = synthetic(rng, rates=at_host(TRUE_RATES, factor))
        label = machine if machine_known else ""
        parts.append(replace(cells, run=np.full(len(cells), name), machine=np.full(len(cells), label)))
    return concatenate(parts)


def test_covariance_of_hosts_is_what_machines_share() -> None:
    root = step_model(cells_of(), PRIORS, 0.2, runs="abc", machines=["x", "x", "y"]).host_root
    covariance = root @ root.T
    np.testing.assert_allclose(np.diag(covariance), 0.04)
    assert covariance[0, 1] == pytest.approx(SAME_MACHINE * 0.04)
    assert covariance[0, 2] == pytest.approx(0.0, abs=1e-12)


def test_a_run_is_on_a_machine_of_its_own_where_none_is_known() -> None:
    assert machines_of(cells_of(), list(RUNS)) == ["one", "one", "two", "three"]
    assert len(set(machines_of(cells_of(False), list(RUNS)))) == 4


def test_a_run_left_out_follows_the_others_on_its_machine() -> None:
    cells = cells_of()
    runs = cells.run_names()
    seen = cells.take(cells.run != "b")
    found = fitted(seen, PRIORS, 0.2, runs=runs, machines=machines_of(cells, runs))
    by_run = dict(zip(runs, np.log(found.hosts), strict=True))
    assert by_run["b"] == pytest.approx(SAME_MACHINE * by_run["a"], rel=1e-3)
    _, hosts, _ = found.draws(2000, np.random.default_rng(0))
    width = dict(zip(runs, np.log(hosts).std(axis=0), strict=True))
    assert width["a"] < width["b"] < 0.2
    errors = [held_out(cells_of(known), PRIORS, cells.run, 0.2, seed=0).scores(cells, cells.run == "b").median for known in (True, False)]
    assert errors[0] < errors[1]


def test_the_common_part_is_that_of_the_packaged_runs() -> None:
    shares = []
    for name in ("H100", "H200"):
        gpu = get_gpu(name)
        grids = engine_grids(gpu)
        priors = calibration_priors(gpu, grids[0].precision)
        cells = with_hosts_of_visits(concatenate([grid.cells for grid in grids]), priors)
        fit = fitted(cells, priors)
        labels, hosts = np.array(fit.model.machines), np.log(fit.hosts)
        groups = [hosts[labels == label] for label in set(labels) if (labels == label).sum() > 1]
        assert len(groups) >= 3
        within = sum(np.square(g - g.mean()).sum() for g in groups) / sum(len(g) - 1 for g in groups)
        shares.append(1 - within / np.square(hosts).mean())
    assert min(shares) - 0.05 < SAME_MACHINE < max(shares)


def test_the_list_of_machines_names_packaged_grids_and_all_of_them() -> None:
    names = {f"{p.parent.name}/{p.name}" for p in packaged_measurements() if p.name.startswith("engine-grid")}
    assert set(machines()) == names
    assert all(label.startswith(("H100 ", "H200 ")) for label in machines().values())


def test_packaged_grids_lie_in_the_folder_of_their_gpu() -> None:
    for name in ("H100", "H200"):
        grids = engine_grids(get_gpu(name))
        assert len(grids) > 5
        assert {grid.gpu.name for grid in grids} == {name}


def test_a_file_of_ones_own_says_its_machine_itself(tmp_path: Path) -> None:
    gpu = get_gpu("H100")
    packaged = next(p for p in packaged_measurements() if p.name == "engine-grid_qwen3-14b.nc" and p.parent.name == "h100")
    data = open_measurement(packaged)
    own = tmp_path / "h100" / packaged.name  # named as a packaged one is
    own.parent.mkdir()
    for machine, expected in (("0123456789ab", "0123456789ab"), ("", "")):
        data.assign_attrs(machine=machine).to_netcdf(own, engine="h5netcdf")
        (grid,) = engine_grids(gpu, [own])
        assert set(grid.cells.machine) == {expected}
    (grid,) = engine_grids(gpu, [packaged])
    assert set(grid.cells.machine) == {machines()["h100/engine-grid_qwen3-14b.nc"]}


def test_prompt_ingestion_is_subtracted_by_the_models_runner(tmp_path: Path) -> None:
    runners = {grid.model.name: grid.model.second_runner for grid in engine_grids(get_gpu("H100"))}
    assert runners == {"llama3.1-8b": True, "qwen3-14b": True, "qwen2.5-7b": False, "qwen3-coder-30b-a3b": False}
    packaged = next(p for p in packaged_measurements() if p.name == "engine-grid_llama3.1-8b.nc" and p.parent.name == "h100")
    data = open_measurement(packaged)
    other = tmp_path / "other.nc"
    data.assign_attrs(engine="sglang").to_netcdf(other, engine="h5netcdf")
    seconds = dict(zip(data["label"].values.astype(str), data["step_s_median"].values, strict=True))
    for path, token_s, prefill_s in ((packaged, INGESTION_S + RUNNER2_S, RUNNER2_PREFILL_S), (other, INGESTION_S, 0.0)):
        cells = read_engine_grid(path).cells
        at = dict(zip(cells.cell.tolist(), cells.step_s.tolist(), strict=True))
        subtracted = token_s * (16384 + 64) + prefill_s
        assert at["prefill:0+1x64@16384"] == pytest.approx(seconds["prefill:0+1x64@16384"] - subtracted)
        assert at["decode:8x2048"] == seconds["decode:8x2048"]


def test_what_worker_processes_of_several_gpus_take_is_subtracted() -> None:
    (path,) = (p for p in packaged_measurements() if p.name == "engine-grid_qwen3-14b_tp2.nc")
    data, cells = open_measurement(path), read_engine_grid(path).cells
    grid = data["role"].values.astype(str) == "grid"
    seconds = dict(zip(data["label"].values.astype(str)[grid], data["step_s_median"].values[grid], strict=True))
    for cell, step_s in zip(cells.cell.tolist(), cells.step_s.tolist(), strict=True):
        if cell.startswith("decode"):
            assert step_s == pytest.approx(seconds[cell] - WORKERS_S)
