"""`simctl run` answers a scenario by what it contains: its command alone, a table over its sweep, or a store of many cells."""

import xarray as xr

from tests.cli import run

ONE = "question: How fast?\ncommand: what-if\noptions: {ctx: 8K, gpu: A10}\n"
TABLE = f"{ONE}sweep: {{tp: [1, 2]}}\nreport: [knee.batch]\n"
SAMPLED = f"{ONE}sweep: {{tp: [1, 2], ctx: {{low: 1000, high: 64000, scale: log}}}}\nsamples: 3\nreport: [knee.batch]\n"
PLAN = (
    "question: Which is cheapest?\ncommand: plan\noptions: {gpu: H100, model: Llama-3.1-8B, num-prompts: 30, request-rate: 2,"
    " slo: 'ttft:p99<9s', workers: 1, quick: true}\n"
)


def written(folder, text):
    path = folder / "s.yaml"
    path.write_text(text)
    return str(path)


def test_one_question_is_the_answer_of_its_command(tmp_path):
    path = written(tmp_path, ONE)
    assert run("run", path).stdout == run("what-if", "--ctx", "8K", "--gpu", "A10").stdout
    assert "meets ttft:p99<9s" in " ".join(run("run", written(tmp_path, PLAN)).stdout.split())


def test_a_sweep_is_a_table_or_a_store(tmp_path):
    path, out = written(tmp_path, TABLE), tmp_path / "a.zarr"
    lines = run("run", path).stdout.splitlines()
    assert len(lines) == 5
    assert lines[4].startswith("=> highest knee.batch: tp ")
    assert run("run", path, "-o", str(out)).code == 0
    assert xr.open_zarr(out)["knee.batch"].shape == (2,)


def test_samples_need_a_store(tmp_path):
    path, out = written(tmp_path, SAMPLED), tmp_path / "a.zarr"
    assert "give -o OUT.zarr" in run("run", path).stderr
    assert "leave out --json" in run("run", path, "-o", str(out), "--json").stderr
    assert run("run", path, "-o", str(out)).code == 0
    assert dict(xr.open_zarr(out).sizes) == {"sample": 3, "bound": 2}
