"""`--out` of what-if and its map: every draw behind the printed intervals, with the same rates in draw i throughout."""

import json

import numpy as np
import pytest
import xarray as xr

from tests.cli import run

ASK = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--draws", "200")


def test_the_printed_intervals_are_quantiles_over_the_draws(tmp_path):
    path = tmp_path / "draws.nc"
    done = run("what-if", "--ctx", "32K", "--batch", "1,8", *ASK, "--out", str(path), "--json")
    assert done.code == 0
    options = json.loads(done.stdout)["options"]
    with xr.open_dataset(path) as opened:
        data = opened.load()
    assert dict(data.sizes) == {"option": len(options), "draw": 200}
    assert (data.attrs["model"], data.attrs["context_tokens"], data.attrs["seed"]) == ("Llama-3.1-8B", 32768, 0)
    for i, option in enumerate(options):
        row = data.isel(option=i)
        assert (str(row.policy.values), str(row.kv_in.values), int(row.batch)) == (option["policy"], option["kv_in"], option["batch"])
        low, high = np.quantile(row.step_s, [0.05, 0.95])
        assert [low, high] == pytest.approx([option["step_s"]["low"], option["step_s"]["high"]])
        low, high = np.quantile(row.step_s / data.residual_factor, [0.05, 0.95])
        assert [low, high] == pytest.approx([option["step_s_rates_only"]["low"], option["step_s_rates_only"]["high"]])


def test_a_map_has_draw_context_and_batch(tmp_path):
    path = tmp_path / "map.nc"
    done = run("what-if", "--map", "hbm", *ASK, "--ctx", "32K", "--out", str(path), "--json")
    assert done.code == 0
    answer = json.loads(done.stdout)
    with xr.open_dataset(path) as opened:
        data = opened.load()
    assert data.sizes["draw"] == 200
    np.testing.assert_allclose(data.speedup.quantile(0.05, "draw"), answer["speedup_p05"])


@pytest.mark.parametrize("command", [("what-if", "--ctx", "8K"), ("what-if", "--ctx", "8K", "--map", "hbm")])
def test_a_target_that_cannot_be_written_is_one_line_before_any_work(tmp_path, command):
    done = run(*command, *ASK, "--out", str(tmp_path / "no" / "x.nc"))
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_another_posterior_gives_other_draws_and_a_wrong_one_is_refused(tmp_path):
    from importlib.resources import files

    posteriors = files("scenarios") / "data" / "posteriors"
    of_engine, of_kernels = ("h100.nc", "population.nc", "h200.nc"), ("h100kernels.nc", None, "h200kernels.nc")
    for command, names in ((("what-if", "--ctx", "8K"), of_engine), (("what-if", "--ctx", "16K", "--map", "hbm"), of_kernels)):
        base, same, population, wrong = (
            run(*command, *ASK, "--json", *more)
            for more in ((), *(("--posterior", str(posteriors / name)) if name else ("--seed", "1") for name in names))
        )
        points = [[o["step_s"]["point"] for o in json.loads(each.stdout).get("options", [])] for each in (base, same)]
        assert points[0] == points[1]  # a file of one's own is of one's own machine: narrower about the same medians
        assert population.code == 0
        assert population.stdout != base.stdout
        assert (wrong.code, wrong.stdout) == (1, "")
        assert "learnt on H200, not on H100" in wrong.stderr
