"""The packaged serving overhead belongs to the formula of today, applies to rates learnt in process only, and says so."""

import json
from dataclasses import asdict, replace
from importlib.resources import files

import numpy as np
import pytest

from sim.cost.provenance import Origin
from sim.errors import SimctlError
from sim.rates import serving
from sim.rates.posterior import rates_for
from sim.rates.priors import prior_rates
from sim.rates.serving import (
    HOSTS_SCHEMA,
    PACKAGED,
    TEXT_S,
    TEXT_TOKEN_S,
    HostRates,
    as_served,
    packaged_overhead,
    parse_overhead,
    parse_overheads,
    write_overheads,
)
from sim.specs.gpus import get_gpu
from tests.cli import run


def test_it_is_packaged_and_of_this_formula():
    overhead = packaged_overhead()
    assert overhead is not None
    assert overhead.gpu == "H100 and H200"
    assert 0 < overhead.hidden_c0_s < 3e-3
    assert 0 <= overhead.exposed_share <= 1


def test_it_makes_steps_cheaper_never_negative():
    before = rates_for(get_gpu("H100"))
    assert before.source.stepped
    after, host = as_served(before)
    for name in ("c0_s", "c_seq_s", "c_prefill_s"):
        assert getattr(after.point, name) <= getattr(before.point, name)
        assert (getattr(after.draws, name) >= 0).all()
        assert "served" in after.basis[name]
    assert np.array_equal(after.draws.beta, before.draws.beta)
    assert host.source.gpu == "H100 and H200"


def test_it_is_the_middle_of_hosts_less_the_one_that_is_predicted():
    every = parse_overheads((files("scenarios") / PACKAGED).read_text(), PACKAGED)
    hosts = [host for host in every if host.engine.startswith("vllm")]
    assert len(hosts) > 10
    assert packaged_overhead().launch == np.median([host.launch for host in hosts])
    for left in hosts[:3]:
        others = [host.launch for host in hosts if (host.gpu, host.run) != (left.gpu, left.run)]
        assert len(others) == len(hosts) - 1
        assert packaged_overhead((left.gpu, left.run)).launch == np.median(others)
    one = write_overheads(hosts[:1])
    assert parse_overhead(one, "one") == hosts[0]
    assert parse_overheads(write_overheads(hosts), "all") == hosts


def test_another_engine_has_hosts_of_its_own_where_any_were_seen(monkeypatch):
    ours = [each for each in parse_overheads((files("scenarios") / PACKAGED).read_text(), PACKAGED) if each.engine.startswith("vllm")]
    other = replace(ours[0], engine="sglang 0.5.15", launch=9.0)
    monkeypatch.setattr(serving, "parse_overheads", lambda *_: [*ours, other])
    found = packaged_overhead.__wrapped__  # past its cache
    assert found(engine="sglang") == other
    assert found().launch == np.median([each.launch for each in ours])
    assert found(engine="llamacpp").launch == np.median([each.launch for each in (*ours, other)])  # none of its own


def test_text_prompts_take_longer_to_their_first_token():
    host = HostRates()
    text = host.sent(text=True)
    assert text.request_s == pytest.approx(host.request_s + TEXT_S)
    assert text.server_s(10_000) == pytest.approx(host.server_s(10_000) + 10_000 * TEXT_TOKEN_S)
    assert text.sent(text=False).server_s(10_000) == pytest.approx(host.server_s(10_000))
    assert as_served(rates_for(get_gpu("H100")))[1].request_s >= TEXT_S


def test_what_another_host_hides_is_uncertain_by_the_amount_it_says():
    overhead, before = packaged_overhead(), rates_for(get_gpu("H100"), draws=2000).at_median_host()
    before = replace(before, draws=replace(before.draws, c0_s=before.draws.c0_s + 5e-3))  # enough to hide from
    assert overhead.hidden_c0_sd_s > 0
    hidden = before.draws.c0_s - overhead.applied(before).draws.c0_s
    assert hidden.std() == pytest.approx(overhead.hidden_c0_sd_s, rel=0.1)
    assert np.median(hidden) == pytest.approx(overhead.hidden_c0_s, rel=0.02)
    known = replace(overhead, hidden_c0_sd_s=0.0).applied(before)
    np.testing.assert_allclose(before.draws.c0_s - known.draws.c0_s, overhead.hidden_c0_s)


def test_declared_priors_stay_as_they_are():
    rates = prior_rates(get_gpu("T4"))
    same, host = as_served(rates)
    assert same is rates
    assert host.source.origin is Origin.PRIOR


def test_simulate_says_which_overhead_it_took():
    arguments = ["simulate", "--gpu", "H100", "--num-prompts", "20", "--request-rate", "2", "--json"]
    served, stepped = (json.loads(run(*arguments, *flag).stdout) for flag in ([], ["--in-process"]))
    assert served["mean_tpot_ms"] < stepped["mean_tpot_ms"]
    assert "serving overhead" in served["provenance"]["rates_basis"]
    assert "serving overhead" not in stepped["provenance"]["rates_basis"]


def test_an_engine_is_served_with_the_overhead_of_its_own_servers():
    hosts = parse_overheads((files("scenarios") / PACKAGED).read_text(), PACKAGED)
    assert [host.run for host in hosts if host.engine == "sglang 0.5.15"] == ["served_llama3.1-8b_sglang"]
    asked = ["simulate", "--gpu", "H100", "--engine", "sglang", "--num-prompts", "20", "--request-rate", "2", "--json"]
    assert "serving overhead of sglang 0.5.15 measured on H100" in json.loads(run(*asked).stdout)["provenance"]["rates_basis"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(asdict(replace(packaged_overhead(), exposed_share=1.5))),
        json.dumps(asdict(replace(packaged_overhead(), exposed_share=-0.1))),
        json.dumps(asdict(replace(packaged_overhead(), launch=0.0))),
        json.dumps(asdict(replace(packaged_overhead(), noise={"ttft_s": float("inf")}))),
        json.dumps(asdict(replace(packaged_overhead(), noise=[0.1]))),
        json.dumps(asdict(replace(packaged_overhead(), noise={"ttft_s": 0.1}))),
        json.dumps({"schema": HOSTS_SCHEMA, "hosts": []}),
        json.dumps({"schema": HOSTS_SCHEMA, "hosts": 5}),
        json.dumps(asdict(replace(packaged_overhead(), hidden_c0_s=float("nan")))),
        json.dumps(asdict(replace(packaged_overhead(), schema="other/1"))),
        json.dumps(asdict(replace(packaged_overhead(), formula="0" * 64))),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(text):
    with pytest.raises(SimctlError, match=r"overhead\.json"):
        parse_overhead(text, "overhead.json")


def test_rates_of_floats_are_one_draw_of_it():
    known = rates_for(get_gpu("H100"))
    alone, _ = as_served(replace(known, draws=known.point))
    assert alone.draws == alone.point
