"""Every surface takes the names of the terms of the step time from one table: text, JSON, run files, traces, reports, Python."""

import json

import pytest

from sim import Deployment, UsageError, load_rates, step_time
from sim.cost.step_time import NAMES
from sim.results.run_files import read_run
from simctl.report.of_run import part_of
from tests.cli import run

SERVED = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "5", "--draws", "0")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    done = run(*SERVED, "--explain", "--out", str(folder / "run"), "--chrome-trace", str(folder / "trace.json"))
    assert done.code == 0, done.stderr
    return folder, done.stdout


def test_runs_name_them_in_text_json_and_files(served):
    folder, text = served
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert set(summary["cost_shares"]) <= set(NAMES)
    largest = next(iter(summary["cost_shares"]))
    assert f"step time by term: {largest} " in text
    assert f"{largest.capitalize()}: " in text
    assert read_run(folder / "run")[0].term_names == tuple(NAMES)
    slices = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert any(f"{largest} (us)" in each.get("args", {}) for each in slices)


def test_explain_and_the_report_say_the_same(served):
    import xarray as xr

    folder, _ = served
    table = run("explain", str(folder / "run"), "3").stdout.split("by term of the step time")[1].splitlines()[1:]
    named = [line for line in table[: table.index("")] if line]
    assert named
    assert all(any(line.startswith(name) for name in NAMES) for line in named)
    with xr.open_dataset(folder / "run" / "run.nc") as dataset:
        report = part_of(read_run(folder / "run")[0], dataset.load())
    cost = next(each for each in report.pictures if each.name == "cost_by_term")
    assert {row[0] for row in cost.rows} <= set(NAMES)


def test_what_if_and_python_say_the_same():
    asked = ("what-if", "--ctx", "128K", "--gpu", "H100", "--model", "Llama-3.1-8B")
    options = json.loads(run(*asked, "--json").stdout)["options"]
    assert all(tuple(each["terms_s"]) == tuple(NAMES) and each["binding_term"] in NAMES for each in options)
    rows = [line for line in run(*asked).stdout.splitlines() if line.startswith(("dense", "first", "top"))]
    assert len(rows) > 4
    assert all(line.endswith(tuple(NAMES)) or " no: " in line for line in rows)
    deployment = Deployment.of("Llama-3.1-8B", "H100")
    assert set(step_time(deployment, [1024], rates=load_rates(deployment)).terms) <= set(NAMES)


@pytest.mark.parametrize(("decodes", "chunks"), [((), [(512, 128)]), ((), [(0, 10)]), ((0,), ())])
def test_a_chunk_ends_after_its_own_tokens_and_a_decode_has_a_context(decodes, chunks):
    with pytest.raises(UsageError, match=r"a chunk is|a decode's context"):
        step_time(Deployment.of("Llama-3.1-8B", "H100"), decodes, chunks)
