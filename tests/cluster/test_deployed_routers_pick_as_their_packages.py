"""Routers as deployed: two pick as their packages did for 1,000 requests, two by their published formulas, and none prefers a replica."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import Deployment, Simulate, Workload
from sim.cluster.router import ROUTERS, make_router
from sim.errors import UsageError
from sim.ticks import to_ticks
from tests.cluster.record_router_picks import GATE, REQUESTS, SERVERS, drawn_events
from tests.runs import request as bare

DATA = Path(__file__).parent / "data"
DEPLOYED = ("vllm-router", "sglang-router", "llm-d", "dynamo", "kubernetes-service")


def request(request_id, prompt, hashes=()):
    asked = bare(request_id, prompt=prompt)
    asked.prompt_hashes = hashes
    return asked


def picks_of(name, seed):
    """What our router of this name picks for the drawn events, a token a block."""
    router, inside, found = make_router(name, SERVERS, 1, 10_000, GATE), {}, []
    for kind, number, prompt in drawn_events(seed):
        if kind != "release":
            asked = request(str(number), prompt=len(prompt), hashes=tuple(prompt[: end + 1] for end in range(len(prompt))))
            inside[number] = asked, router.pick(asked, range(SERVERS), 0)
            found.append(inside[number][1])
        if kind != "hold":
            router.finished(*inside.pop(number), 0)
    return found


@pytest.mark.parametrize("name", ["vllm-router", "sglang-router"])
def test_every_pick_is_the_packages(name):
    record = json.loads(gzip.decompress((DATA / f"picks_{name}.json.gz").read_bytes()))
    assert len(record["picks"]) == REQUESTS
    assert picks_of(name, record["seed"]) == record["picks"]


def test_the_two_packages_differ():
    assert picks_of("vllm-router", 1) != picks_of("sglang-router", 1)


def test_llm_d_scores_by_hand():
    router = make_router("llm-d", 3, 16, 1000)
    # waiting 4, 0, 2: min-max 0, 1, 1/2; KV used 500, 1000, 0 of 1,000 blocks; 640 tokens are 10 blocks of 64, of which 5, 0, 10 are there
    read, known = [(4, 9, 500), (0, 9, 1000), (2, 0, 0)], [5, 0, 10]
    assert router.scores(read, known, 640) == [0.0 + 1.0 + 1.5, 2.0 + 0.0 + 0.0, 1.0 + 2.0 + 3.0]


def test_llm_d_sees_engines_as_they_were_at_the_last_scrape():
    router, waiting = make_router("llm-d", 2, 16, 1000), [0, 5]
    router.gauges = lambda i: (waiting[i], 0, 0)
    assert router.pick(request("a", prompt=64), [0, 1], 0) == 0
    waiting[:] = [5, 0]
    late = [router.pick(request(f"b{i}", prompt=64), [0, 1], to_ticks(0.01)) for i in range(5)]
    assert late == [0] * 5
    assert router.pick(request("c", prompt=64), [0, 1], to_ticks(0.06)) == 1


def test_dynamo_costs_by_hand():
    router = make_router("dynamo", 2, 16, 1000)
    cached = {0: 0, 1: 0}
    router.cached = lambda i, _: cached[i]
    assert router.cost(request("short", prompt=17), 0, 0) == 2 + 2  # a block that is not full is one
    first = request("a", prompt=160, hashes=("x", "y"))
    assert router.cost(first, 0, 4) == (10 - 4) + 10  # ten blocks, four of them cached, none active
    chosen = router.pick(first, [0, 1], 0)
    other = 1 - chosen
    again = request("b", prompt=160, hashes=("x", "y"))
    # there: 160 tokens are still to prefill, 10 blocks are active, of the prompt's ten two are among them; on the other replica nothing is
    assert router.cost(again, chosen, 0) == (10 + 10) + 10 + 8
    assert router.cost(again, other, 0) == 10 + 10
    router.first_token(first, chosen, 0)
    assert router.cost(again, chosen, 2) == (10 - 2) + 10 + 8
    router.finished(first, chosen, 0)
    assert router.cost(again, chosen, 0) == 10 + 10


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 3)), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_dynamos_book_is_empty_once_all_have_left(prompts, rng):
    router = make_router("dynamo", 3, 16, 1000)
    inside = []
    for i, (tokens, shared) in enumerate(prompts):
        asked = request(str(i), prompt=tokens, hashes=tuple(range(shared)))
        inside.append((asked, router.pick(asked, range(3), 0)))
        if rng.random() < 0.5:
            router.first_token(*inside[-1], 0)
    rng.shuffle(inside)
    for asked, replica in inside:
        router.finished(asked, replica, 0)
    assert [router.cost(request("z", prompt=16), i, 0) for i in range(3)] == [2.0] * 3


@pytest.mark.parametrize("name", [name for name in ROUTERS if name not in ("vllm-router", "sglang-router", "adapter-affinity")])
def test_equal_replicas_get_equal_shares(name):
    """A light load of prompts that share nothing. The two left out send an idle fleet's requests to the first of their servers."""
    router = make_router(name, 4, 16, 1000)
    shares = Counter()
    for i in range(2000):
        asked = request(str(i), prompt=100)
        chosen = router.pick(asked, range(4), to_ticks(i))
        shares[chosen] += 1
        router.finished(asked, chosen, to_ticks(i) + 1)
    np.testing.assert_allclose([shares[i] for i in range(4)], 500, atol=4 * np.sqrt(500 * 0.75))


@pytest.mark.parametrize("name", DEPLOYED)
def test_a_fleet_is_served_through_each(name):
    load = Workload.drawn(60, request_rate=8.0, input_len=400, output_len=30, turns=3)
    run = Simulate(Deployment.of("Llama-3.1-8B", "L4", replicas=3, router=name), load, draws=0).answer()
    assert run.summary["completed"] == 60


@pytest.mark.parametrize("mode", ["iptables", "ipvs"])
def test_a_service_has_two_modes(mode):
    router = make_router("kubernetes-service", 3, 16, 10, {"mode": mode})
    picks = [router.pick(request(str(i), prompt=10), range(3), 0) for i in range(6)]
    assert (picks == [0, 1, 2, 0, 1, 2]) == (mode == "ipvs")


def test_another_mode_is_refused():
    with pytest.raises(UsageError, match="mode must be iptables or ipvs, got 'lc'"):
        make_router("kubernetes-service", 3, 16, 10, {"mode": "lc"})
