"""A fleet file means what the command's options mean, pools run alike on both paths, and a wrong file is one line that names the place."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Deployment, Workload, load_rates
from sim.cluster.autoscale import Scaling
from sim.cluster.network import NetworkSpec
from sim.cluster.replica import Change
from sim.cluster.router import ROUTERS
from sim.errors import UsageError
from sim.rates.serving import as_served
from sim.study.fleet_spec import Fleet, PoolSpec
from sim.study.run import is_quick, planned, run_pools
from sim.study.simulate import fleet_study, run_study
from sim.study.simulate_question import simulate
from tests.cli import run

DRAWN = ("--num-prompts", "60", "--request-rate", "6", "--random-length-cv", "0.5", "--draws", "0")
SIX_B = "{gpu: H100, model: Llama-3.1-8B, replicas: 2, router: lmetric, router-options: {decode-weight: 0.5}, max-num-seqs: 4}"


def test_one_pool_is_the_deployment_of_the_same_options(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(f"pools: [{SIX_B}]\n")
    as_file = run("simulate", "--fleet", str(file), *DRAWN, "--json")
    options = ("--replicas", "2", "--router", "lmetric", "--router-option", "decode_weight=0.5", "--max-num-seqs", "4")
    as_options = run("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", *options, *DRAWN, "--json")
    assert as_file.code == as_options.code == 0
    assert json.loads(as_file.stdout) == json.loads(as_options.stdout)


def test_python_and_file_give_the_same_fleet(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "pools:\n"
        "  - {name: p, role: prefill, gpu: H100, model: Llama-3.1-8B, link: ethernet-25, overlap: true}\n"
        "  - {name: d, role: decode, gpu: H200, model: Llama-3.1-8B, reserve-tokens: 64, max-replicas: 3,\n"
        "     scaling: {signal: prompts, target: 4000, period-s: 1, cold-start-s: 2, disk-gb-s: 8}}\n"
        "network: {latency-s: 0.001, shared-gb-s: 2}\n"
        "events: [{at-s: 3, pool: d, replica: 0, action: fail}, {at-s: 4, pool: d, action: start}]\n"
    )
    prefill = PoolSpec(Deployment.of("Llama-3.1-8B", "H100"), "p", "prefill", bytes_per_s=3.125e9, overlaps=True)
    scaling = Scaling(signal="prompts", target=4000, period_s=1, cold_start_s=2 + 16.060522496 / 8)  # GB of weights
    decode = PoolSpec(Deployment.of("Llama-3.1-8B", "H200"), "d", "decode", 3, reserve_tokens=64, scaling=scaling)
    events = (Change(3.0, 1, "fail"), Change(4.0, 1, "start"))
    fleet = Fleet((prefill, decode), NetworkSpec(0.001, 2e9), events)
    ours = simulate(fleet, Workload.drawn(60, request_rate=6.0, length_cv=0.5), draws=0)
    given = json.loads(run("simulate", "--fleet", str(file), *DRAWN, "--json").stdout)
    assert {key: given[key] for key in ours.summary} == ours.summary
    assert ours.summary["completed"] == 60
    assert ours.record.paid_s[3] < ours.record.paid_s[0]


def disaggregated(router, slow, seed, blocks):
    pools = tuple(
        PoolSpec(
            Deployment.of("Llama-3.1-8B", "A10", replicas=2, router=router, num_gpu_blocks=blocks, max_num_batched_tokens=512),
            role,
            role,
            bytes_per_s=1e8 if slow else 50e9,
        )
        for role in ("prefill", "decode")
    )
    workload = Workload.drawn(40, input_len=300, output_len=30, length_cv=0.3, turns=2, request_rate=20.0, seed=seed)
    return fleet_study(Fleet(pools), workload, lambda d: as_served(load_rates(d, draws=10)))


@settings(max_examples=25)
@given(router=st.sampled_from(sorted(ROUTERS)), slow=st.booleans(), seed=st.integers(0, 10**6), blocks=st.sampled_from([300, 2000]))
def test_disaggregated_fleets_run_in_rows_as_event_by_event(router, slow, seed, blocks):
    study = disaggregated(router, slow, seed, blocks)
    pools, trace = planned(study), study.workload.trace
    assert is_quick(study, pools, trace)
    fast = run_pools(study, pools, trace)
    with patch("sim.study.run.event_by_event", return_value="asked for"):
        logged = run_pools(study, pools, trace, keep_iterations=True)
    for column, values in logged.requests.items():
        np.testing.assert_array_equal(values, fast.requests[column], column)
    assert logged.paid_s == fast.paid_s


def test_replicas_in_turn_are_so_many_single_ones():
    workload = Workload.drawn(90, input_len=300, length_cv=1.0, request_rate=30.0)
    whole = run_study(_plain(workload, 3), draws=0).record
    columns = ("scheduled_s", "first_token_s", "finish_s", "cached_tokens")
    for index in range(3):
        own = workload.trace
        rows = slice(index, None, 3)
        alone = Workload(
            type(own)(
                own.arrival_s[rows],
                own.prompt_tokens[rows],
                own.output_tokens[rows],
                own.think_s[rows],
                own.request_ids[rows],
                own.session_ids[rows],
                own.turns[rows],
                own.contents[rows],
            )
        )
        single = run_study(_plain(alone, 1), draws=0).record
        for column in columns:
            np.testing.assert_array_equal(whole.requests[column][rows], single.requests[column], column)


def _plain(workload, replicas):
    deployment = Deployment.of("Llama-3.1-8B", "H100", replicas=replicas)
    fleet = Fleet((PoolSpec(deployment),))
    return fleet_study(fleet, workload, lambda d: as_served(load_rates(d, draws=10)))


WRONG = {
    "[]": "needs a mapping",
    "pools: []": "a fleet needs at least one pool",
    "pools: {}": "pools: needs a list",
    "pool: []": "no such key: 'pool'; did you mean 'pools'?",
    "pools: [{}]": "pools[0]: needs gpu",
    "pools: [{gpu: H1000}]": "pools[0]: unknown GPU 'H1000'",
    "pools: [{gpu: H100, replica: 2}]": "pools[0]: no such key: 'replica'; did you mean 'replicas'?",
    "pools: [{gpu: H100, replicas: 0}]": "pools[0].replicas: needs a number from 1 to 1024, got '0'",
    "pools: [{gpu: H100, replicas: 1.5}]": "pools[0].replicas: needs a whole number",
    "pools: [{gpu: H100, max-replicas: 3}]": "max_replicas is for pools with scaling",
    "pools: [{gpu: H100, role: decode}]": "a decode pool a prefill pool",
    "pools: [{gpu: H100, role: prefil}]": "pools[0].role: needs one of serve, prefill, decode, got 'prefil'",
    "pools: [{gpu: H100, name: a}, {gpu: H100, name: a}]": "pools need names of their own: a, a",
    "pools: [{gpu: H100, engine: os.path}]": "pools[0].engine: a fleet file cannot name a class",
    "pools: [{gpu: H100, link: 0}]": "pools[0].link: needs a number from 1e-06",
    "pools: [{gpu: H100, link: infiniband}]": "pools[0].link: needs one of nvlink, rdma-400",
    "pools: [{gpu: H100, overlap: 1}]": "pools[0].overlap: needs true or false",
    "pools: [{gpu: H100, scaling: {signal: cpu}}]": "pools[0].scaling.signal: needs one of requests, prompts, ttft",
    "pools: [{gpu: H100, scaling: {target: 0}}]": "pools[0].scaling: an autoscaler needs a target",
    "pools: [{gpu: H100, max-num-seqs: x}]": "pools[0]: Invalid value for '--max-num-seqs'",
    "pools: [{gpu: H100, max-prompt-tokens: 10}]": "no pool takes a prompt of 1024 tokens",
    "pools: [{gpu: H100, router: lmetric, router-options: {foo: 1}}]": "router lmetric has no option 'foo'",
    "pools: [{gpu: H100, router: lmetric, router-options: [1]}]": "pools[0].router-options: needs a mapping of names",
    "pools: [{gpu: A10, model: Llama-3.1-70B}]": "Llama-3.1-70B does not fit on 1 x A10",
    "pools: [{gpu: H100}]\nevents: [{at-s: 3, replica: 1, action: fail}]": "events[0].replica: needs a number from 0 to 0, got '1'",
    "pools: [{gpu: H100}]\nevents: [{at-s: 3, pool: b, action: fail}]": "events[0].pool: needs one of pool-1, got 'b'",
    "pools: [{gpu: H100}]\nevents: [{action: fail}]": "events[0]: needs at-s",
    "pools: [{gpu: H100}]\nnetwork: {latency-s: -1}": "network.latency-s: needs a number from 0",
    "pools: [{gpu: H100}]\nretries: {most: 1000}": "retries.most: needs a number from 0 to 100",
    "pools: [{gpu: H100}]\non-failure: retry": "on-failure: needs one of move, lose, got 'retry'",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_one_line_that_names_the_place(text, tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    result = run("simulate", "--fleet", str(file), "--num-prompts", "4")
    assert result.code != 0
    assert not result.stdout
    assert WRONG[text] in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_options_of_a_pool_are_not_given_beside_a_fleet(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text("pools: [{gpu: H100, model: Llama-3.1-8B}]\n")
    for option in (("--gpu", "H100"), ("--replicas", "2"), ("--max-num-seqs", "4"), ("--no-enable-prefix-caching",)):
        result = run("simulate", "--fleet", str(file), "--num-prompts", "4", *option)
        assert f"{option[0].replace('no-', '')}: with --fleet, a pool of fleet.yaml says that" in result.stderr
    assert "give --gpu NAME, or --fleet FILE" in run("simulate", "--num-prompts", "4").stderr


def test_a_fleet_that_cannot_be():
    deployment = Deployment.of("Llama-3.1-8B", "H100")
    with pytest.raises(UsageError, match="no replica 1: there are 1"):
        Fleet((PoolSpec(deployment),), changes=(Change(1.0, 1, "fail"),))
    other = PoolSpec(Deployment.of("Qwen2.5-7B", "H100"), "d", "decode")
    with pytest.raises(UsageError, match="pool p: KV goes to a decode pool of the same model"):
        Fleet((PoolSpec(deployment, "p", "prefill"), other))
    with pytest.raises(UsageError, match="loaded for each"):
        simulate(Fleet((PoolSpec(deployment),)), Workload.drawn(3), load_rates(deployment))
