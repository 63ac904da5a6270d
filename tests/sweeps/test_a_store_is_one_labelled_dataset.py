"""A sweep leaves one dataset: a dimension for each option varied, figures with units and intervals, NaN where nothing is done yet."""

import json

import numpy as np
import xarray as xr

from tests.cli import run
from tests.sweeps.made_sweeps import figures, opened, scenario

SIMULATED = """\
question: Which batch cap is cheapest?
command: simulate
options: {gpu: A10, model: Qwen2.5-7B, num-prompts: 12, request-rate: 2, random-output-len: 20, max-model-len: auto,
  draws: 3, iterations: false}
sweep: {max-num-seqs: [1, 8]}
report: [usd_per_mtok]
"""


def swept(*arguments, code=0):
    result = run("sweep", *arguments, "--workers", "1")
    assert result.code == code, result.stderr
    return result


def test_it_can_be_read_while_it_grows(tmp_path):
    with opened(tmp_path / "a.zarr") as store:
        for place in (4, 1):
            store.put(place, figures(place))
            store.flush(now=True)
            found = xr.open_zarr(tmp_path / "a.zarr").load()
            assert found.done.values.ravel().tolist() == store.done.tolist()
            assert (np.isnan(found.ttft_ms) == ~found.done).all()
        assert found.ttft_ms.sel(gpu="H100", rate=1.0) == 14.0
        assert found.ttft_ms_rates_90.sel(gpu="A10", rate=1.0, bound="high") == 13.0
        assert found.ttft_ms.attrs["units"] == "ms"


def test_a_product_has_a_dimension_for_each_option_varied(tmp_path):
    out = tmp_path / "a.zarr"
    swept(scenario(tmp_path), "-o", str(out), "--vary", "ctx=4K,8K")
    found = xr.open_zarr(out)
    assert dict(found["knee.batch"].sizes) == {"gpu": 2, "tp": 2, "ctx": 2}
    assert found.done.all()
    answer = json.loads(run("what-if", "--ctx", "8K", "--gpu", "H100", "--tp", "2", "--json").stdout)
    assert found["knee.batch"].sel(gpu="H100", tp=2, ctx="8K") == answer["knee"]["batch"]


def test_a_hypercube_has_one_dimension_and_a_coordinate_for_each_option(tmp_path):
    out = tmp_path / "a.zarr"
    swept(scenario(tmp_path), "-o", str(out), "--vary", "ctx=1000:64000:log", "--samples", "5", "--seed", "3")
    found = xr.open_zarr(out)
    assert dict(found.done.sizes) == {"sample": 5}
    assert set(found.coords) == {"gpu", "tp", "ctx", "bound"}
    assert found.ctx.dtype.kind == "i"


def test_simulations_have_latencies_throughput_and_cost_with_intervals(tmp_path):
    out = tmp_path / "a.zarr"
    shown = swept(scenario(tmp_path, SIMULATED), "-o", str(out)).stdout
    found = xr.open_zarr(out).load()
    assert "=> usd_per_mtok" in shown
    assert "at max-num-seqs 8" in " ".join(shown.split())
    for name in ("median_ttft_ms", "p90_tpot_ms", "p99_e2el_ms", "output_throughput", "usd_per_mtok"):
        low, high = found[f"{name}_rates_90"].transpose("bound", ...)
        assert (low <= high).all()
        assert (found[f"{name}_run_noise_90"].isel(bound=0) > 0).all()
    summary = json.loads(run(*_line(out)).stdout)
    assert found.p99_ttft_ms[1] == summary["p99_ttft_ms"]
    assert found.p99_ttft_ms_rates_90[1].values.tolist() == summary["rates_90"]["p99_ttft_ms"]


def _line(out):
    options = json.loads(xr.open_zarr(out).attrs["options"]) | {"max-num-seqs": "8"}
    pairs = [part for key, value in options.items() if key != "iterations" for part in (f"--{key}", value)]
    return ["simulate", *pairs, "--no-iterations", "--json"]


def test_a_cell_that_cannot_be_says_why(tmp_path):
    out = tmp_path / "a.zarr"
    shown = swept(scenario(tmp_path, SIMULATED), "-o", str(out), "--vary", "model=Qwen2.5-7B,Qwen2.5-72B").stdout
    found = xr.open_zarr(out).sel(model="Qwen2.5-72B")
    assert "2 cells have no figures" in shown
    assert found.done.all()
    assert np.isnan(found.usd_per_mtok).all()
    assert (found.reason != "").all()
