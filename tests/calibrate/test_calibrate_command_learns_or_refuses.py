"""`simctl calibrate` turns measurement files into a posterior that the simulator reads; bad input leaves no artifact."""

import contextlib
import gc
import json
import sys

import numpy as np
import pytest
import xarray as xr

from calibrate.measurement import open_measurement
from calibrate.sampling import Diagnostics
from sim.errors import UsageError
from sim.rates.posterior import packaged_posteriors, rates_from_file
from sim.specs.gpus import get_gpu
from tests.calibrate.grids import write_grid
from tests.calibrate.steps import TRUE
from tests.cli import run
from tests.examples import examples

FAST = ("--fit-option", "chains=2")


def test_a_grid_becomes_a_posterior_with_held_out_errors(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    files = [write_grid(tmp_path / f"{m}.nc", rng, m) for m in ("Qwen2.5-7B", "Llama-3.2-3B")]
    argv = ["--hw", "H100", *FAST, "--fit-option", "draws=500", "--fit-option", "folds=2", "--out", str(tmp_path / "p.nc"), "--json"]
    code, out, err = run("calibrate", *argv, *(a for f in files for a in ("--from", str(f))))
    assert (code, err.count("\n")) == (0, 1)
    report = json.loads(out)
    assert set(report["noise_floor"]) == {"median", "p90", "cells_above_6_percent"}
    assert {row["folds"] for row in report["held_out"]} == {
        "2-fold by cell",
        "leave one model out",
        "leave one model out, its GEMMs not measured",
    }
    everything = next(row["scores"] for row in report["held_out"] if row["part"] == "all")
    assert everything["n"] == 48  # the failed cell and the control were not learnt from
    assert everything["median"] < 0.02
    assert np.median([abs(cell["error"]) for cell in report["held_out_cells"]]) == pytest.approx(everything["median"])
    rates = rates_from_file(tmp_path / "p.nc", get_gpu("H100"))
    assert rates.point.beta == pytest.approx(TRUE["beta"], rel=0.05)
    assert "48 measured cells" in rates.summary
    assert rates.basis["gather_s"].startswith("prior")
    assert 0.005 < np.std(np.log(rates.error)) < 0.02  # the cells were made a hundredth off the formula
    # a gate that fails: exit 1, no artifact; allowed, it is marked
    monkeypatch.setattr("calibrate.steps.fit.judge", lambda *_: Diagnostics(1.3, 12.0, 4))
    bad = [
        "--hw",
        "H100",
        *(a for f in files for a in ("--from", str(f))),
        *FAST,
        "--fit-option",
        "draws=100",
        "--fit-option",
        "folds=0",
        "--out",
        str(tmp_path / "bad.nc"),
    ]
    code, out, err = run("calibrate", *bad)
    assert code == 1
    assert max(map(len, out.splitlines())) <= 80
    assert out.index("before them: the datasheet of H100") < out.index("posterior, 5-95 %") < out.index("R-hat")
    assert err == "simctl: the posterior did not converge: R-hat 1.300 > 1.01; effective sample size 12 < 400; 4 divergent transitions\n"
    assert not (tmp_path / "bad.nc").exists()
    code, out, err = run("calibrate", *bad, "--allow-unconverged")
    assert code == 0
    assert "NOT CONVERGED" in rates_from_file(tmp_path / "bad.nc", get_gpu("H100")).summary


def edit(path, **columns):
    with xr.open_dataset(path) as opened:
        data = opened.load()
    for name, change in columns.items():
        data[name] = change(data[name])
    data.to_netcdf(path, engine="h5netcdf")


def put(value, where=3):
    def change(column):
        column = column.copy()
        column[where] = value
        return column

    return change


def few(path):
    edit(path, status=lambda c: xr.where(np.arange(c.size) < 5, c, "error"))


def one(path):
    edit(path, status=lambda c: xr.where(np.arange(c.size) < 1, c, "error"))


def nothing(path):
    edit(path, status=lambda c: xr.where(np.arange(c.size) < 0, c, "error"))


def flipped(path):
    """Bits turned over in the middle of a structure."""
    path.write_bytes(bytes(b ^ 0xFF if 4000 < i < 4400 else b for i, b in enumerate(path.read_bytes())))


def one_composition(path):
    edit(path, status=lambda c: xr.where(np.arange(c.size) < 12, c, "error"), decode_seqs_median=lambda c: 0 * c + 1,
         decode_context_tokens_median=lambda c: 0 * c + 128)  # fmt: skip


def milliseconds(path):
    edit(path, step_s_median=lambda c: c.assign_attrs(units="ms"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (few, "too few cells to calibrate on: 5, at least"),
        (one_composition, "same one or two compositions"),
        (lambda p: edit(p, step_s_median=lambda c: 0 * c + 0.01), "zero variance"),
        (milliseconds, "step_s_median is in 'ms', want 's'"),
        (lambda p: edit(p, step_s_median=lambda c: 1e6 * c), "wrong unit?"),
        (lambda p: edit(p, step_s_median=lambda c: 1e3 * c), "step times are [0-9]+ times as long .* 24 cells.: wrong unit?"),
        (lambda p: edit(p, step_s_median=put(np.nan)), "decode:8x128.*time is not a number"),
        (lambda p: edit(p, step_s_median=put(-0.1)), "decode:8x128.*time is not positive"),
        (lambda p: edit(p, kind=put("speculative")), "kind is none of"),
        (lambda p: edit(p, decode_seqs_median=lambda c: c.rename(cell="iteration")), "not along the cell dimension"),
        (lambda p: edit(p, step_s_median=put(np.inf)), "decode:8x128.*time is not a number"),
        (lambda p: edit(p, step_s_median=put(0.0)), "decode:8x128.*time is not positive"),
        (lambda p: edit(p, step_s_median=put(12.0)), "decode:8x128.* and 0 others are [0-9]+ times longer than the rest.*mixed units"),
        (lambda p: edit(p, step_s_median=lambda c: xr.where(np.arange(c.size) % 3 == 0, 1000 * c, c)), "7 others are .* mixed units"),
        (lambda p: edit(p, step_s_median=put(9e-6)), "shorter than the rest.*mixed units"),
        (lambda p: edit(p, step_s_median=lambda c: c.astype(str)), "step_s_median not in numbers"),
        (lambda p: edit(p, step_s_p25=put(-0.1)), "decode:8x128.*step_s_p25 is negative"),
        (lambda p: edit(p, decode_seqs_median=put(-4.0)), "decode:8x128.*decode_seqs_median is not a count"),
        (lambda p: edit(p, decode_seqs_median=put(np.nan)), "decode:8x128.*decode_seqs_median is not a count"),
        (lambda p: edit(p, decode_seqs_median=put(1e12)), "decode:8x128.*decode_seqs_median is not a count .1e.12."),
        (lambda p: edit(p, chunks=put(1e300)), "decode:8x128.*chunks is not a count"),
        (lambda p: edit(p, step_s_n=lambda c: c.astype(str)), "step_s_n not in numbers"),
        (lambda p: edit(p, chunk_tokens=put(-5)), "decode:8x128.*chunk_tokens is not a count"),
        (one, "too few cells to calibrate on: 1,"),
        (nothing, "too few cells to calibrate on: 0,"),
        (lambda p: p.write_text("not a file"), "not a netCDF measurement"),
        (lambda p: p.write_bytes(b""), "grid.nc: not a netCDF measurement"),
        (lambda p: p.write_bytes(p.read_bytes()[:5000]), "grid.nc: not a netCDF measurement.*truncated"),
        (flipped, "grid.nc: not a netCDF measurement"),
        (lambda p: p.write_bytes(b"CDF"), "grid.nc: not a netCDF measurement"),
        (lambda p: p.write_bytes(b"CDF\x01" + bytes(90)), "grid.nc"),
    ],
)
def test_measurements_that_cannot_be_learnt_from_are_refused_by_name(tmp_path, spoil, says):
    path = write_grid(tmp_path / "grid.nc", np.random.default_rng(0))
    spoil(path)
    code, out, err = run("calibrate", "--hw", "h100", "--from", str(path), "--out", str(tmp_path / "p.nc"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    import re

    assert re.search(says, err), err
    assert not (tmp_path / "p.nc").exists()


def test_what_a_damaged_file_leaves_behind_is_thrown_away_in_silence(tmp_path, monkeypatch):
    whole = write_grid(tmp_path / "grid.nc", np.random.default_rng(0)).read_bytes()
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    for seed in range(examples(12)):
        rng, spoilt = np.random.default_rng(seed), bytearray(whole)
        for place in rng.integers(0, len(spoilt), 200):
            spoilt[place] = rng.integers(256)
        path = tmp_path / f"{seed}.nc"
        path.write_bytes(bytes(spoilt))
        with contextlib.suppress(UsageError):
            open_measurement(path)
    gc.collect()
    assert printed == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gpu_name": "NVIDIA A100-SXM4-80GB"}, "not on H100"),
        ({"schema": "other/1"}, "not a measurement of engine-grid or weight-axis"),
        ({"suite": np.array([1.0, 2.0])}, "not a measurement of engine-grid or weight-axis"),
        ({"suite": "floor"}, "no decode steps of H100"),
        ({"weight_dtype": None}, "lacks weight_dtype"),
        ({"weight_dtype": "int3"}, "unknown weight dtype"),
        ({"weight_dtype": 5}, "unknown weight dtype '5'"),
        ({"gpu_name": "Voodoo 2"}, "unknown GPU 'Voodoo 2'"),
        ({"model_config": "{not json"}, "grid.nc: model_config is not JSON"),
        ({"model_config": "[1]"}, "must be a mapping"),
        ({"tensor_parallel_size": "two"}, "tensor_parallel_size is not a whole number"),
        ({"tensor_parallel_size": 3}, "do not split over tensor-parallel size 3"),
    ],
)
def test_files_of_something_else_are_refused(tmp_path, changes, says):
    path = write_grid(tmp_path / "grid.nc", np.random.default_rng(0), **changes)
    code, _, err = run("calibrate", "--hw", "h100", "--from", str(path))
    assert code == 2
    assert says in err


def test_an_unknown_gpu_a_missing_file_and_no_gpu_are_one_line(tmp_path):
    for argv, expected in ((["--hw", "H1OO"], 2), ([], 2), (["--hw", "H100", "--from", str(tmp_path / "no.nc")], 1)):
        code, out, err = run("calibrate", *argv)
        assert (code, out, err.count("\n")) == (expected, "", 1)


@pytest.mark.parametrize("argv", [["calibrate", "--hw", "H100"], ["learn", "log.csv", "--gpu", "H100", "--model", "Qwen2.5-7B"]])
def test_a_place_that_cannot_be_written_is_found_before_anything_is_learnt(tmp_path, argv):
    said = run(*argv, "--out", str(tmp_path / "none" / "p.nc"))
    assert (said.code, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert "none is not a folder" in said.stderr


def test_a_packaged_grid_goes_by_its_name_in_the_list():
    code, _, err = run("calibrate", "--hw", "h100", "--from", "h200/engine-grid_qwen2.5-7b.nc")
    assert code == 2
    assert "measured on H200, not on H100" in err


def test_the_list_names_what_is_packaged():
    code, out, _ = run("validate", "--list")
    assert code == 0
    assert out.startswith("measurements:\n")
    assert "\n    h100/decode_qwen2.5-7b.nc\n" in out
    assert "  h200/engine-grid_qwen2.5-7b.nc\n" in out
    told = out[out.index("posteriors (") :]
    assert all(f"\n  {path.name}: posterior for " in told for path in packaged_posteriors())
