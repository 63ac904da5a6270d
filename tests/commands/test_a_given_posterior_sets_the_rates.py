"""`--posterior FILE` takes the rates from that file, for the GPU it was learnt on and no other."""

import json

from sim.rates.posterior import packaged_posterior
from tests.cli import run

WORK = ("simulate", "--model", "Llama-3.1-8B", "--num-prompts", "30", "--request-rate", "5", "--json")


def test_the_packaged_file_by_name_is_of_ones_own_machine():
    path = packaged_posterior("H100")
    assert path is not None
    default, named = (run(*WORK, "--gpu", "H100", *more) for more in ((), ("--posterior", str(path))))
    assert default.code == named.code == 0
    one, other = json.loads(default.stdout), json.loads(named.stdout)
    assert one["mean_e2el_ms"] == other["mean_e2el_ms"]
    for name in ("mean_tpot_ms", "median_tpot_ms"):  # without an owner's own clocks and cooling
        (low, high), (own_low, own_high) = one["rates_90"][name], other["rates_90"][name]
        assert low < own_low < own_high < high


def test_another_gpus_posterior_is_refused():
    result = run(*WORK, "--gpu", "A10", "--posterior", str(packaged_posterior("H100")))
    assert (result.code, result.stderr.count("\n")) == (1, 1)
    assert "not on A10" in result.stderr


def test_a_file_that_is_none_is_refused(tmp_path):
    nothing = tmp_path / "x.nc"
    nothing.write_text("no")
    for path, code in ((nothing, 1), (tmp_path / "missing.nc", 1)):
        result = run(*WORK, "--gpu", "H100", "--posterior", str(path))
        assert (result.code, result.stderr.count("\n")) == (code, 1)
