"""Spot replicas are lost at the stated rate and come back after the cold start, and the chance of a plan carries it."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sim import Plan, Workload, deployments
from sim.cluster.losses import Losses, changes_of
from sim.cluster.replica import Change
from sim.errors import UsageError
from sim.planning.emit import emitted
from sim.planning.race import Candidate, CandidateState, RaceResult
from sim.planning.spot import Spot
from sim.planning.trials import Here, Trial
from sim.results.metrics import request_latencies_ms
from sim.slo import parse_slo
from sim.study.run import planned, run_pools
from tests.cli import run
from tests.planning.offered import SLO
from tests.planning.synthetic import TTFT

FOR_S = 100.0
SPOT = Spot(1.0, 12.0, 30.0, 0.5e9)
OFFER = "- {{gpu: H100, usd_per_hour: 1, provider: a, date: b, {}}}\n"
WRONG = {
    "spot: true, losses_per_hour: 1": "losses_per_hour needs cold_start_s",
    "losses_per_hour: 1, cold_start_s: 9": "losses_per_hour is of an offer with spot: true",
    "spot: true, cold_start_s: 9": "cold_start_s is of an offer with spot: true and losses_per_hour",
    "spot: true, losses_per_hour: true, cold_start_s: 9": "others numbers",
    "spot: true, losses_per_hour: .inf, cold_start_s: 9": "others numbers",
    "spot: true, losses_per_hour: 61, cold_start_s: 9": "lost up to 60 times an hour",
    "spot: true, losses_per_hour: 1, cold_start_s: 9, lost_together: 2": "the share of losses that take all at once",
    "spot: true, losses_per_hour: 1, lost_together: 0.5": "losses_per_hour needs cold_start_s",
    "spot: true, notice_s: 30": "notice_s is of an offer with spot: true and losses_per_hour",
}


def plan(**more):
    workload = Workload.drawn(100, input_len=1000, output_len=50, request_rate=40.0)
    found = deployments("Llama-3.1-8B", ["H100"], router=["least-requests"])
    return Plan(found, workload, (SLO,), prices={"H100": 3.0}, spot={"H100": SPOT}, **more)


def test_losses_come_at_their_rate_and_are_made_good():
    losses, until_s = Losses(2.0, 300.0), 3.6e6
    changes = losses.changes(0, until_s, [0])
    lost, back = (np.array([each.at_s for each in changes if each.action == action]) for action in ("drain", "start"))
    np.testing.assert_allclose(back - lost, losses.down_s)
    up = np.diff(back, prepend=0.0) - losses.down_s  # 2 an hour while it is up, exponential: 1,714 of them in 1,000 hours
    assert up.mean() == pytest.approx(1800.0, abs=3 * 1800.0 / math.sqrt(len(up)))
    assert up.std() == pytest.approx(1800.0, rel=0.1)


def test_some_losses_take_all_at_once_and_each_replica_is_lost_as_often():
    losses = {i: Losses(2.0, 60.0, together=0.5) for i in range(4)}
    drains = [each for each in changes_of(losses, 3.6e6, [0]) if each.action == "drain"]
    at_once = Counter(each.at_s for each in drains)
    assert set(at_once.values()) <= {1, 2, 3, 4}  # a replica that is down is not lost again
    everywhere = sum(n == 4 for n in at_once.values())
    assert everywhere == pytest.approx(1000 * (1 - 60 / 3600) ** 4, abs=4 * math.sqrt(1000))
    assert len(drains) / 4 == pytest.approx(2000 / (1 + 2 / 60), abs=4 * math.sqrt(2000))
    all_of_them = changes_of({i: Losses(2.0, 60.0, together=1.0) for i in range(3)}, 3.6e5, [1])
    assert set(Counter(each.at_s for each in all_of_them if each.action == "drain").values()) == {3}


def test_requests_wait_where_all_that_serve_are_lost_at_once():
    asked = replace(plan(for_s=FOR_S), spot={"H100": replace(SPOT, losses_per_hour=60.0, lost_together=1.0, notice_s=5.0)})
    choices, _ = asked.choices()
    trials = [Here(choices, parse_slo([SLO], {}), FOR_S).one(1, 4, trial) for trial in range(2)]
    assert all(trial.used[0] > 5.0 and math.isfinite(trial.used[0]) for trial in trials)


def test_what_a_notice_is_too_short_for_is_served_anew():
    changes = changes_of({0: Losses(2.0, 60.0, notice_s=30.0)}, 3.6e4, [0])
    drain, fail, start = ([each.at_s for each in changes if each.action == action] for action in ("drain", "fail", "start"))
    np.testing.assert_allclose(fail, np.array(drain) + 30.0)
    np.testing.assert_allclose(start, np.array(drain) + 60.0)
    study = plan(for_s=FOR_S).choices()[0][0].study_of(2)
    trace = study.workload.redraw(0, 1500)

    def tokens(notice_s):
        changes = [Change(10.0, 0, "drain"), Change(10.0 + notice_s, 0, "fail"), Change(40.0, 0, "start")]
        lost = replace(study, fleet=replace(study.whole_fleet, changes=tuple(changes)))
        record = run_pools(lost, planned(lost), trace)
        return record.requests["finish_s"]

    short, long = tokens(0.1), tokens(25.0)
    assert not np.isnan(short).any()
    assert short.sum() > long.sum()


def test_a_replica_is_lost_alike_however_many_there_are():
    one, two = ({i: Losses(2.0, 60.0) for i in range(n)} for n in (1, 2))
    assert changes_of(one, 9e3, [7]) == tuple(each for each in changes_of(two, 9e3, [7]) if each.replica == 0)


def test_spot_is_a_choice_alone_and_beside_what_lasts():
    choices = {choice.name: choice for choice in plan(for_s=FOR_S).choices()[0]}
    assert {name: choice.cost(2) for name, choice in choices.items()} == {
        "1 x H100": 6.0,
        "1 x H100 on spot": 2.0,
        "1 lasting and 1 on spot of 1 x H100": 8.0,
        "2 lasting and 1 on spot of 1 x H100": 14.0,
    }
    assert list(choices["2 lasting and 1 on spot of 1 x H100"].lost(2)) == [4, 5]
    losses = choices["1 x H100 on spot"].lost(1)[0]
    assert losses.down_s == pytest.approx(30 + 16.06 / 0.5, rel=1e-3)  # 16.06 GB of weights


def test_a_trial_with_a_loss_is_worse_and_one_without_is_the_same():
    choices, _ = plan(for_s=FOR_S).choices()
    runs = Here(choices, parse_slo([SLO], {}), FOR_S)
    lasting, spot = ([runs.one(choice, 2, trial) for trial in range(8)] for choice in (0, 1))
    lost = [bool(changes_of(choices[1].lost(2), FOR_S, [0, trial])) for trial in range(8)]
    assert 0 < sum(lost) < 8
    for a, b, some in zip(lasting, spot, lost, strict=True):
        assert b.used[0] > a.used[0] if some else a == b


def test_what_a_lost_replica_finishes_hardly_shows():
    study = plan(for_s=FOR_S).choices()[0][0].study_of(3)
    traces = [study.workload.redraw(seed, 1500) for seed in range(3)]  # of one alone the 99th percentile differs by 15 %

    def p99(action):
        changes = (Change(10.0, 0, action), Change(25.0, 0, "start"))
        lost = replace(study, fleet=replace(study.whole_fleet, changes=changes))
        return np.mean([np.quantile(request_latencies_ms(run_pools(lost, planned(lost), each))["ttft"], 0.99) for each in traces])

    assert p99("drain") == pytest.approx(p99("fail"), rel=0.05)


def test_what_starts_it_says_how_many_are_on_spot():
    choices, _ = plan(for_s=FOR_S).choices()
    win = Candidate(2, 2)
    win.add([Trial((0.5,))] * 100)
    text = emitted(RaceResult(choices, TTFT, [CandidateState() for _ in choices], win), "vllm", "=> the answer")
    assert "# 2 replicas are for spot capacity: nothing here puts them there." in text
    assert "# vllm: 4 of these, each on 1 x H100" in text


@pytest.mark.parametrize("more", [{}, {"for_s": 36_000.0}])
def test_how_long_the_load_lasts_must_be_said(more):
    with pytest.raises(UsageError, match="losses_per_hour of spot prices: say for how long with --for, at most 32,000 requests"):
        plan(**more)


@pytest.mark.parametrize("said", WRONG)
def test_a_spot_offer_that_is_none_is_one_line(said, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(OFFER.format(said))
    result = run("plan", "--gpu", "H100", "--request-rate", "1", "--slo", "ttft:p99<2s", "--price", str(path))
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert WRONG[said] in result.stderr
