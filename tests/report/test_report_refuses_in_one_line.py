"""What is no result of ours, or damaged, or cannot be drawn here, is one line on stderr and leaves no file."""

import json
import shutil
import sys

import h5py
import pytest

from tests.cli import run
from tests.report.results import results


def refused(tmp_path, *arguments):
    result = run("report", *map(str, arguments), "-o", str(tmp_path / "out" / "report.html"))
    assert result.code != 0
    assert result.stderr.count("\n") == 1, result.stderr
    assert list((tmp_path / "out").iterdir()) == []
    return result.stderr


@pytest.fixture(autouse=True)
def _out(tmp_path):
    (tmp_path / "out").mkdir()


def saved(tmp_path, text):
    (tmp_path / "given").write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / "given"


@pytest.mark.parametrize("text", ["", "hello", "{}", "[]", "[[]]", '{"slo": 1}', "[" * 100_000, b"\x89HDF\r\n\x1a\n garbage", b"\xff\xfe"])
def test_no_result(text, tmp_path):
    refused(tmp_path, saved(tmp_path, text))


@pytest.mark.parametrize("name", ["winner", "choices", "front", "slo"])
def test_a_damaged_plan(name, tmp_path):
    plan = json.loads(results()["plan"].read_text())
    plan[name] = 7
    assert "damaged" in refused(tmp_path, saved(tmp_path, json.dumps(plan)))


def test_a_verdict_that_there_is_not(tmp_path):
    claims = json.loads(results()["claims"].read_text())
    claims[0]["verdict"] = "maybe"
    assert "damaged" in refused(tmp_path, saved(tmp_path, json.dumps(claims)))


def test_a_cut_run(tmp_path):
    shutil.copytree(results()["run"], tmp_path / "run")
    whole = (tmp_path / "run" / "run.nc").read_bytes()
    (tmp_path / "run" / "run.nc").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path, tmp_path / "run")


def test_a_run_of_another_version(tmp_path):
    shutil.copytree(results()["run"], tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.nc", "r+") as file:
        file.attrs["format"] = "simctl run 99"
    assert "another version" in refused(tmp_path, tmp_path / "run")
    explained = run("explain", str(tmp_path / "run"), "--slowest", "1")
    assert explained.code == 2
    assert "another version" in explained.stderr


def test_a_run_whose_step_times_are_no_numbers(tmp_path):
    shutil.copytree(results()["run"], tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.nc", "r+") as file:
        file["term_s"][...] = float("nan")
    assert "term_s" in refused(tmp_path, tmp_path / "run")


def test_figures_alone_name_the_folder(tmp_path):
    assert "folder" in refused(tmp_path, results()["run"] / "summary.json")


def test_an_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "run.nc" in refused(tmp_path, tmp_path / "empty")


def test_a_store_that_is_no_sweep(tmp_path):
    shutil.copytree(results()["sweep"], tmp_path / "s.zarr")
    for name in (".zattrs", ".zmetadata"):
        (tmp_path / "s.zarr" / name).unlink(missing_ok=True)
    refused(tmp_path, tmp_path / "s.zarr")


def test_scores_that_are_no_csv(tmp_path):
    head, row, *_ = results()["scores"].read_text().splitlines()
    assert "damaged" in refused(tmp_path, saved(tmp_path, f"{head}\n{row[:5]}\r{row[5:]}\n"))


def test_a_sweep_without_its_consolidated_copy_is_reported_quietly(tmp_path):
    shutil.copytree(results()["sweep"], tmp_path / "s.zarr")
    (tmp_path / "s.zarr" / ".zmetadata").unlink()
    result = run("report", str(tmp_path / "s.zarr"), "-o", str(tmp_path / "r.html"))
    assert (result.code, result.stderr) == (0, f"wrote {tmp_path / 'r.html'}\n")


def test_what_is_not_there(tmp_path):
    result = run("report", str(tmp_path / "none"), "-o", str(tmp_path / "r.html"))
    assert (result.code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_names_the_extra(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert "[report]" in refused(tmp_path, results()["map"])
