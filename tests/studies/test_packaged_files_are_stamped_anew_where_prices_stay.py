"""A packaged file gets today's fingerprint where what it was learnt from costs the same, and is left where it does not."""

import json

import numpy as np

from calibrate.artifacts import write_posterior
from calibrate.measured_files import packaged_measurements
from calibrate.sampling import Diagnostics, Settings
from sim.cost.provenance import GIVEN
from sim.rates.fingerprint import formula_fingerprint
from sim.rates.posterior import read_posterior
from studies.restamp import changed, learnt_from, measured_prices, stamped_json, stamped_netcdf

BEFORE = {"h100/engine-grid_a.nc": [[1.0, 2.0]], "validation/h100_served_b.nc": [[3.0, 4.0]]}


def test_a_price_within_a_billionth_is_the_same():
    assert changed(BEFORE, {name: [[a * (1 + 1e-10) for a in row] for row in rows] for name, rows in BEFORE.items()}) == []
    assert changed(BEFORE, {**BEFORE, "h100/engine-grid_a.nc": [[1.0 + 1e-8, 2.0]]}) == ["h100/engine-grid_a.nc"]
    assert changed(BEFORE, {**BEFORE, "new": [[1.0]]}) == ["new"]


def test_terms_that_change_against_each_other_are_another_price():
    assert changed(BEFORE, {**BEFORE, "h100/engine-grid_a.nc": [[1.1, 1.9]]}) == ["h100/engine-grid_a.nc"]


def test_a_held_out_run_is_what_only_kinds_were_learnt_from():
    files = ("h100.nc", "population.nc", "serving_overhead.json", "kinds.json")
    assert [file for file in files if any(learnt_from(file, list(BEFORE)[1:]))] == ["kinds.json"]
    assert list(learnt_from("h200.nc", list(BEFORE))) == []


def test_what_a_model_ran_on_is_priced():
    paths = [path for path in packaged_measurements() if path.name in ("engine-grid_qwen3-14b_tp2.nc", "floor.nc")]
    assert list(measured_prices(paths)) == ["h100/engine-grid_qwen3-14b_tp2.nc"]


def test_a_stamped_posterior_loads_and_its_draws_stay(tmp_path, monkeypatch):
    import xarray as xr

    path, draws = tmp_path / "a.nc", np.linspace(1.0, 2.0, 8, dtype=np.float32).reshape(2, 4)
    posterior = xr.Dataset({"beta": (("chain", "draw"), draws)})
    with monkeypatch.context() as patch:
        patch.setattr("calibrate.artifacts.formula_fingerprint", lambda: "another")
        write_posterior(
            path, posterior, family="step-time", gpu="H100", source=GIVEN, sources={"beta": GIVEN}, data_fingerprint="",
            diagnostics=Diagnostics(1.0, 1e4, 0), settings=Settings(), thin_to=8,
        )  # fmt: skip
    stamped_netcdf(path)
    found = read_posterior(path)
    assert found.attrs["formula"] == formula_fingerprint()
    assert found.variables["beta"].tolist() == draws.ravel().tolist()


def test_each_host_of_a_file_is_stamped(tmp_path):
    path = tmp_path / "hosts.json"
    path.write_text(json.dumps({"schema": "x", "hosts": [{"formula": "a"}, {"formula": "b", "gpu": "H100"}]}))
    stamped_json(path)
    assert json.loads(path.read_text())["hosts"] == [{"formula": formula_fingerprint()}, {"formula": formula_fingerprint(), "gpu": "H100"}]
