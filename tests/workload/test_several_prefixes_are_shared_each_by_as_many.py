"""`num-prefixes=N` puts one of N prefixes before each prompt, each before as many, as vLLM's benchmark of repeated prefixes does."""

from collections import Counter

import pytest

from sim import Deployment, simulate
from sim.errors import UsageError
from sim.workload.workload import Workload


def test_each_is_before_as_many_in_random_order():
    trace = Workload.drawn(100, prefix_len=512, prefixes=8).trace
    names = [content.group for content in trace.contents]
    assert sorted(Counter(names).values()) == [12] * 4 + [13] * 4
    assert names[:8] != sorted(names)[:8]


def test_a_session_keeps_its_prefix():
    trace = Workload.drawn(12, prefix_len=512, prefixes=3, turns=4, input_len=10, output_len=10).trace
    assert len({content.group for content in trace.contents[::4]}) == 3
    assert trace.prompt_tokens.tolist() == [522, 542, 562, 582] * 3


def test_all_but_the_first_request_of_each_find_it_cached():
    load = Workload.drawn(60, request_rate=1.0, input_len=64, output_len=2, prefix_len=1024, prefixes=6)
    found = simulate(Deployment.of("Llama-3.1-8B", "H100"), load, draws=0, keep_iterations=False).to_dict()
    assert found["prefix_cache_hit_rate"] == pytest.approx(54 / 60 * 1024 / 1088)


@pytest.mark.parametrize(("given", "says"), [({"prefixes": 11, "prefix_len": 8}, "1 to the 10 "), ({"prefixes": 2}, "need a length")])
def test_prefixes_of_no_length_or_more_than_requests_are_refused(given, says):
    with pytest.raises(UsageError, match=says):
        Workload.drawn(10, **given)
