"""Decode, floor and host files of a card that was made up give back the rates that they were made from, within their intervals."""

import json
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
import yaml

from calibrate.steps.decode_cells import decode_question, read_decode, suite_of
from calibrate.steps.laplace import fitted
from calibrate.steps.random_rates import prior_draws
from sim.cost.step_time import step_time_s
from sim.rates.host import INTERPRETER_S, LAUNCH_S
from sim.rates.stack_rates import stack_priors
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from tests.cli import run
from tests.examples import examples

NOISE = 0.006  # log scale of a step around the formula, Student t of five degrees of freedom as it is learnt
CONTEXTS = (8192, 16384, 32768, 65536, 98304)  # beside the weights a card of 24 GB holds one of the last
CELLS = [(mode, b, c, k) for b in (1, 2, 4) for c in CONTEXTS if b * c <= 98304 for mode, k in
         (("dense", 0), ("sparse", 8), ("sparse", 16), ("sparse", 32))] + [("tiered", 1, 65536, k) for k in (8, 16, 32)]  # fmt: skip


@pytest.fixture
def card(tmp_path):
    """A card that no catalogue knows: an A10 with other figures."""
    sheet = {
        "name": "Invented-24G", "memory_bytes": 24e9, "memory_bandwidth": 700e9, "flops": {"bf16": 150e12, "fp16": 150e12},
        "host_link_bandwidth": 32e9, "source": "made up",
    }  # fmt: skip
    path = tmp_path / "invented.yaml"
    path.write_text(yaml.safe_dump(sheet))
    return path


def decode_file(path, times=None, device="Invented-24G", cells=None):
    columns = {
        "mode": [c[0] for c in CELLS], "status": ["ok"] * len(CELLS), "batch": [c[1] for c in CELLS],
        "context_tokens": [c[2] for c in CELLS], "k_blocks": [c[3] for c in CELLS], "step_s_n": [10] * len(CELLS),
    }  # fmt: skip
    times = np.full(len(CELLS), 0.01) if times is None else times
    columns |= {"step_s_median": times, "step_s_p25": times * 0.999, "step_s_p75": times * 1.001}
    attrs = {"schema": "simctl-measurement/1", "suite": "decode", "gpu_name": device, "model": "qwen2.5-7b"}
    data = xr.Dataset({name: ("cell", values) for name, values in columns.items()}, attrs=attrs)
    (data if cells is None else data.isel(cell=cells)).to_netcdf(path)


def other_files(folder, rng):
    attrs = {"schema": "simctl-measurement/1", "gpu_name": "Invented-24G"}
    read, link = 700e9 * rng.uniform(0.8, 0.95), 32e9 * rng.uniform(0.7, 0.9)
    rows = {"what": ["read", "host_to_device", "host_to_device"], "size_bytes": [2e9, 1e6, 2.7e8], "value_median": [read, 0.7 * link, link]}
    xr.Dataset({name: ("row", values) for name, values in rows.items()}, attrs=attrs | {"suite": "floor"}).to_netcdf(folder / "floor.nc")
    rows = {"what": ["layer_compiled_queue", "json_round_trip"], "value_median": [1.5 * LAUNCH_S, 1.2 * INTERPRETER_S]}
    xr.Dataset({name: ("row", values) for name, values in rows.items()}, attrs=attrs | {"suite": "host"}).to_netcdf(folder / "host.nc")


def made(folder, gpu, rng):
    """Files of a card whose rates are drawn from what is known of kernels once its microbenchmarks have run; the rates."""
    path, files = folder / "decode.nc", [folder / f"{name}.nc" for name in ("decode", "floor", "host")]
    decode_file(path)
    other_files(folder, rng)
    cells, drawn = read_decode(path, gpu).cells, prior_draws(decode_question(gpu, files).known[0], 1, rng)
    truth = replace(drawn, **{name: float(getattr(drawn, name)[0]) for name in drawn.names()})
    times = np.asarray(step_time_s(cells.as_work(), truth, np)) * np.exp(NOISE * rng.standard_t(5, len(cells)))
    decode_file(path, times)
    return files, truth


def test_of_40_truths(tmp_path, card):
    gpu, rng, inside = get_gpu(str(card)), np.random.default_rng(4), []
    for _ in range(examples(40)):
        files, truth = made(tmp_path, gpu, rng)
        question = decode_question(gpu, files)
        fit = fitted(question.grids[0].cells, question.known[0])
        rates, _, _ = fit.draws(1000, rng)
        assert {"beta", "beta_kv", "link_bytes_per_s", "kernel_s", "c1_unit_s"} <= set(fit.model.free)
        for name in fit.model.free:
            low, high = np.quantile(getattr(rates, name), [0.05, 0.95])
            inside.append(low <= getattr(truth, name) <= high)
    assert 0.85 <= np.mean(inside) <= 0.97


def test_what_measure_wrote_is_learnt_by_one_command_and_answers(tmp_path, card):
    files, truth = made(tmp_path, get_gpu(str(card)), np.random.default_rng(7))
    out = tmp_path / "own.nc"
    how = ("--fit-option", "draws=150", "--fit-option", "chains=2", "--fit-option", "folds=0", "--fit-option", "allow-unconverged")
    done = run("calibrate", "--hw", str(card), "--from", *map(str, files), *how, "--out", str(out), "--json")
    assert done.code == 0
    learnt = {row["name"]: row["posterior"] for row in json.loads(done.stdout)["rates"]}
    assert learnt["beta_kv"][0] * 0.99 <= truth.beta_kv <= learnt["beta_kv"][2] * 1.01
    assert learnt["launch_layer_s"][1] == pytest.approx(
        1.5 * stack_priors(get_gpu(str(card)), Precision())["launch_layer_s"].median, rel=0.1
    )
    answer = json.loads(run("what-if", "--ctx", "64K", "--gpu", str(card), "--posterior", str(out), "--json").stdout)
    assert answer["question"]["stack"] == "kernels"
    found = next(o for o in answer["options"] if (o["policy"], o["kv_in"]) == ("dense", "hbm"))
    measured = xr.open_dataset(files[0])
    want = float(measured.step_s_median[CELLS.index(("dense", 1, 65536, 0))])
    assert found["step_s"]["low"] <= want <= found["step_s"]["high"]


def test_bad_files_are_one_line(tmp_path, card):
    files, _ = made(tmp_path, get_gpu(str(card)), np.random.default_rng(1))
    decode_file(tmp_path / "other.nc", device="NVIDIA H100 80GB HBM3")
    assert suite_of(tmp_path / "other.nc") == "decode"
    grid = "scenarios/data/measured/h100/engine-grid_qwen2.5-7b.nc"
    for given, why in {
        ("--hw", str(card), "--from", str(tmp_path / "other.nc")): "measured on 'NVIDIA H100 80GB HBM3'",
        ("--hw", "H200", "--from", str(tmp_path / "other.nc")): "measured on H100, not on H200",
        ("--hw", str(card), "--from", str(files[1])): "no decode steps of Invented-24G",
        ("--hw", "H100", "--from", grid, "--from", str(tmp_path / "other.nc")): "learnt one at a time",
        ("--hw", "H100", str(files[0])): "files to learn from follow --from",
    }.items():
        done = run("calibrate", *given)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1), (given, done.stderr)
        assert why in done.stderr
