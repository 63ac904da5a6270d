"""`simctl validate --grid`: errors and coverage of a posterior on grids that nothing was learnt from; bad input is one line."""

import json
import shutil
from dataclasses import replace

import h5netcdf
import numpy as np
import pytest
import xarray as xr

from calibrate.artifacts import write_posterior
from calibrate.sampling import Diagnostics, Settings
from calibrate.steps.grid_cells import Grid, read_engine_grid
from calibrate.steps.iterations import KINDS, concatenate
from calibrate.steps.predict import pooled, predict
from calibrate.steps.step_model import log_times, predictive
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS, Rates, at_host
from sim.quantiles import normal_quantile
from sim.rates.posterior import packaged_posterior
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.calibrate.grids import write_grid
from tests.calibrate.steps import TRUE, TRUE_RATES, synthetic
from tests.cli import run

SIGMA, HOST_SD, KNOWN = 0.02, 0.1, 0.03
RUNS = 80


def posterior(path, *, sigma=SIGMA, host_sd=HOST_SD, gpu="H100", kinds=KINDS, **more):
    """Draws around the true rates, known to 3 %."""
    rng = np.random.default_rng(0)
    rates = {name: (("chain", "draw"), v * np.exp(KNOWN * rng.standard_normal((4, 200)))) for name, v in TRUE.items()}
    if kinds:
        rates["sigma"] = (("chain", "draw", "kind"), np.full((4, 200, len(kinds)), sigma))
    return write_posterior(
        path, xr.Dataset(rates, coords={"kind": list(kinds)} if kinds else {}), family="step-time", gpu=gpu,
        source=Provenance(Origin.IN_PROCESS, "posterior for a test"),
        sources=dict.fromkeys(UNITS, Provenance(Origin.IN_PROCESS, "learnt from a test")),
        data_fingerprint="0" * 64, diagnostics=Diagnostics(1.0, 2000.0, 0),
        settings=Settings(), weight_dtype="bf16", host_sd=host_sd, **more,
    )  # fmt: skip


def grid(cells, name="made"):
    return Grid(replace(cells, run=np.full(len(cells), name)), get_gpu("H100"), get_model("Qwen2.5-7B"), Precision(), "vllm", name)


def test_intervals_cover_nine_in_ten_of_what_the_posterior_itself_would_see(tmp_path):
    path = posterior(tmp_path / "p.nc")
    rng, parts, every = np.random.default_rng(1), [], synthetic(np.random.default_rng(0), sigma=0.0)
    for i, rank in enumerate(rng.permutation(RUNS)):
        true = {n: np.array([v * np.exp(KNOWN * rng.standard_normal())]) for n, v in TRUE.items()}
        host = np.exp(HOST_SD * normal_quantile(np.array([[(rank + 0.5) / RUNS]])))  # cells of a run share one: hosts are spread evenly
        cells = every.take(rng.permutation(len(every))[:10])
        cells = replace(cells, repeat_sd=np.full(len(cells), 0.01), run=np.full(len(cells), f"run {i}"))
        seen = predictive(cells, log_times(cells, Rates(**true), host), np.full((1, len(KINDS)), SIGMA), rng)[0]
        parts.append(replace(cells, step_s=seen))
    found = predict(replace(grid(every), cells=concatenate(parts)), path, seed=0, draws=800)
    everything = found.parts[0].scores
    assert everything.n == 10 * RUNS
    assert 0.86 < everything.coverage < 0.94
    assert abs(everything.bias) < 0.01
    assert pooled([found, found])[0].scores.coverage == everything.coverage


def test_a_slow_host_is_seen_in_the_bias_and_gone_when_told(tmp_path):
    path = posterior(tmp_path / "p.nc", host_sd=0.2)
    slow = synthetic(np.random.default_rng(2), rates=at_host(TRUE_RATES, 1.3), sigma=0.005)
    found = predict(grid(slow), path, seed=0)
    assert found.host == pytest.approx(1.3, abs=0.04)
    assert found.parts[0].scores.bias < -0.03
    assert found.given_host.median < 0.5 * found.parts[0].scores.median
    assert abs(found.given_host.bias) < 0.01
    same = predict(grid(slow), posterior(tmp_path / "q.nc", host_sd=0.0), seed=0)
    assert same.host == 1.0  # of hosts that do not differ there is nothing to tell


def test_kinds_add_up_and_cells_are_listed_worst_first(tmp_path):
    found = predict(grid(synthetic(np.random.default_rng(3))), posterior(tmp_path / "p.nc"), seed=0)
    everything, *kinds = found.parts
    assert everything.cells == "all"
    assert sum(part.scores.n for part in kinds) == everything.scores.n == len(found.cells)
    sizes = [abs(cell.error) for cell in found.cells]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(everything.scores.worst)
    inside = [cell.low_s <= cell.measured_s <= cell.high_s for cell in found.cells]
    assert np.mean(inside) == pytest.approx(everything.scores.coverage)


def test_a_cells_noise_follows_the_share_its_host_has(tmp_path):
    cells = synthetic(np.random.default_rng(4))
    known = replace(cells, visits=np.full(len(cells), 1.0), visits_sd=np.full(len(cells), np.nan), within_sd=np.zeros(len(cells)))
    found = predict(grid(known), posterior(tmp_path / "p.nc"), seed=0)
    noise = {cell.cell: cell.noise for cell in found.cells}
    of = {name: cells.step_s[cells.cell == name].min() for name in noise}
    assert noise[min(of, key=of.get)] > 1.5 * noise[max(of, key=of.get)]


def test_the_command_prints_a_table_and_the_same_as_json(tmp_path):
    files = [write_grid(tmp_path / f"{m}.nc", np.random.default_rng(0), m) for m in ("Qwen2.5-7B", "Llama-3.2-3B")]
    argv = ["validate", "--posterior", str(posterior(tmp_path / "p.nc")), *(a for f in files for a in ("--grid", str(f)))]
    said = run(*argv)
    assert (said.code, said.stderr) == (0, "")
    assert "Qwen2.5-7B.nc (Qwen2.5-7B bf16): vllm 0.0" in said.stdout
    assert said.stdout.count("all, given its host: ") == 2
    body = json.loads(run(*argv, "--json").stdout)
    assert [each["parts"]["all"]["n"] for each in body["files"]] == [24, 24]
    scores = body["files"][0]["parts"]["all"]
    line = next(line for line in said.stdout.splitlines() if line.startswith("all  "))
    assert line.split()[1:3] == ["24", f"{scores['median']:.2%}"]
    assert scores["median"] < 0.03
    assert not body["files"][0]["learnt_from"]
    assert said.stdout.split("all files\n")[1].splitlines()[1].split()[:2] == ["all", "48"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Llama-3.2-3B.nc", "Qwen2.5-7B.nc", "p.nc"]  # nothing was written


def test_files_that_were_learnt_from_are_no_prediction(tmp_path):
    file = write_grid(tmp_path / "g.nc", np.random.default_rng(0))
    other = write_grid(tmp_path / "h.nc", np.random.default_rng(1))
    mark = read_engine_grid(file).cells.mark()
    path = posterior(tmp_path / "p.nc", learnt_from=json.dumps([mark]))
    for measured, seen in ((file, True), (shutil.copy(file, tmp_path / "renamed.nc"), True), (other, False)):
        said = run("validate", "--posterior", str(path), "--grid", str(measured))
        assert said.code == 0
        assert ("a fit, no prediction" in said.stdout) is seen
    assert read_engine_grid(file).cells.mark() != concatenate([read_engine_grid(f).cells for f in (file, other)]).mark()


def test_a_packaged_posterior_is_found_by_the_files_gpu(tmp_path):
    file = write_grid(tmp_path / "g.nc", np.random.default_rng(0), gpu_name="NVIDIA H200")
    said = run("validate", "--grid", str(file), "--json")
    assert said.code == 0
    assert json.loads(said.stdout)["posterior"].startswith("posterior for H200 from")
    never = predict(read_engine_grid(file, get_gpu("L4")), packaged_posterior("population"), 0)
    assert never.parts[0].scores.n == 24


def edited(path):
    with h5netcdf.File(path, "a") as file:
        file.groups["posterior"].variables["beta"][0, 0] *= 1.01
    return path


def truncated(path):
    path.write_bytes(path.read_bytes()[:4000])
    return path


def foreign(path):
    xr.Dataset({"beta": ("draw", [1.0])}).to_netcdf(path, engine="h5netcdf")
    return path


def marks_that_are_none(path):
    return posterior(path, learnt_from="[")


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda p: edited(posterior(p)), 1, "does not match its digest: edited or damaged"),
        (lambda p: truncated(posterior(p)), 1, "damaged file"),
        (foreign, 1, "not a posterior of this project"),
        (lambda p: posterior(p, gpu="H200"), 1, "learnt on H200, not on H100"),
        (lambda p: posterior(p, kinds=()), 1, "says nothing of its model error"),
        (lambda p: posterior(p, kinds=KINDS[:2]), 1, "says nothing of its model error"),
        (marks_that_are_none, 1, "does not say what it was learnt from"),
        (lambda p: p, 1, "No such file"),
    ],
)
def test_a_posterior_that_is_none_is_one_line(tmp_path, make, code, says):
    path = make(tmp_path / "p.nc")
    said = run("validate", "--posterior", str(path), "--grid", str(write_grid(tmp_path / "g.nc", np.random.default_rng(0))))
    assert (said.code, said.stdout, said.stderr.count("\n")) == (code, "", 1)
    assert says in said.stderr


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (("--grid", "h100/floor.nc"), 2, "floor"),
        (("--grid", "h100/served_qwen2.5-7b.nc"), 2, "served"),
        (("--grid", "log.csv"), 2, "a served log is --run LOG"),
        (("--grid", "h100/engine-grid_qwen3-14b.nc", "--gpu", "h200"), 2, "measured on H100, not on H200"),
        (("--grid", "h100/engine-grid_qwen3-14b.nc", "--grid", "h200/engine-grid_qwen3-14b.nc"), 2, "measured on H200, not on H100"),
        (("--grid", "h100/engine-grid_qwen3-14b.nc", "--save-overhead", "x.json"), 2, "--grid learns nothing"),
        (("--grid", "nowhere.nc"), 1, "nowhere.nc"),
        (("--grid", "h100/engine-grid_qwen3-14b.nc", "--gpu", "H1000"), 2, "unknown GPU"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(argv, code, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("validate", *argv)
    assert (said.code, said.stdout, said.stderr.count("\n")) == (code, "", 1)
    assert says in said.stderr
    assert list(tmp_path.iterdir()) == []
