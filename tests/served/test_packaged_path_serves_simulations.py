"""The packaged served path belongs to the formula of today, applies to rates learnt in process only, and says so."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from calibrate.served.rested import BOOST
from sim.engine.boost import NO_BOOST
from sim.errors import SimctlError
from sim.posterior import rates_for
from sim.priors import prior_rates
from sim.served import IN_PROCESS, as_served, packaged_path, parse_path
from sim.specs.gpus import get_gpu
from tests.cli import run


def test_it_is_packaged_and_of_this_formula():
    path = packaged_path()
    assert path is not None
    assert path.gpu == "H100"
    assert 0 < path.hidden_c0_s < 3e-3
    assert 0 <= path.shown <= 1


def test_it_makes_steps_cheaper_never_negative():
    before = rates_for(get_gpu("H100"))
    assert before.summary.startswith(IN_PROCESS)
    after, host = as_served(before)
    for name in ("c0_s", "c_seq_s", "c_prefill_s"):
        assert getattr(after.point, name) <= getattr(before.point, name)
        assert (getattr(after.draws, name) >= 0).all()
        assert "served" in after.basis[name]
    assert np.array_equal(after.draws.beta, before.draws.beta)
    assert "H100" in host.basis


def test_what_another_host_hides_is_uncertain_by_the_amount_it_says():
    path, before = packaged_path(), rates_for(get_gpu("H100"), draws=2000)
    before = replace(before, draws=replace(before.draws, c0_s=before.draws.c0_s + 5e-3))  # enough to hide from
    assert path.hidden_c0_sd_s > 0
    hidden = before.draws.c0_s - path.applied(before).draws.c0_s
    assert hidden.std() == pytest.approx(path.hidden_c0_sd_s, rel=0.1)
    assert np.median(hidden) == pytest.approx(path.hidden_c0_s, rel=0.02)
    known = replace(path, hidden_c0_sd_s=0.0).applied(before)
    np.testing.assert_allclose(before.draws.c0_s - known.draws.c0_s, path.hidden_c0_s)


def test_a_rested_gpu_is_faster_where_its_own_grids_were_measured():
    assert as_served(rates_for(get_gpu("H100")))[1].boost == packaged_path().boost == BOOST
    assert as_served(rates_for(get_gpu("A10")))[1].boost == NO_BOOST


def test_declared_priors_stay_as_they_are():
    rates = prior_rates(get_gpu("T4"))
    same, host = as_served(rates)
    assert same is rates
    assert host.basis == "declared prior"


def test_simulate_says_which_path_it_took():
    arguments = ["simulate", "--gpu", "H100", "--num-prompts", "20", "--request-rate", "2", "--json"]
    served, stepped = (json.loads(run(*arguments, *flag).stdout) for flag in ([], ["--in-process"]))
    assert served["mean_tpot_ms"] < stepped["mean_tpot_ms"]
    assert "served path" in served["provenance"]["rates_basis"]
    assert "served path" not in stepped["provenance"]["rates_basis"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(asdict(replace(packaged_path(), shown=1.5))),
        json.dumps(asdict(packaged_path()) | {"boost": {"share": -0.1, "budget_s": 0.1, "refill": 1.0}}),
        json.dumps(asdict(packaged_path()) | {"boost": {"share": 0.1}}),
        json.dumps(asdict(packaged_path()) | {"boost": 0.1}),
        json.dumps(asdict(replace(packaged_path(), shown_prefill=-0.1))),
        json.dumps(asdict(replace(packaged_path(), noise={"ttft_s": float("inf")}))),
        json.dumps(asdict(replace(packaged_path(), noise=[0.1]))),
        json.dumps(asdict(replace(packaged_path(), hidden_c0_s=float("nan")))),
        json.dumps(asdict(replace(packaged_path(), schema="other/1"))),
        json.dumps(asdict(replace(packaged_path(), formula="0" * 64))),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(text):
    with pytest.raises(SimctlError, match=r"path\.json"):
        parse_path(text, "path.json")


def test_rates_of_floats_are_one_draw_of_it():
    known = rates_for(get_gpu("H100"))
    alone, _ = as_served(replace(known, draws=known.point))
    assert alone.draws == alone.point
