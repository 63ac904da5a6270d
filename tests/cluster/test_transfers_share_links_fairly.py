"""Links are shared max-min fairly, and on one link that is exact processor sharing."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.network import Network, Transfer, set_fair_rates
from sim.ticks import ARRIVAL, TICK_S, to_ticks
from tests.examples import examples


def ends(sends, links, latency_s=0.0):
    """When each of (at_s, bytes, path) is over, seconds."""
    clock, over = Clock(), {}
    network = Network(clock, links, latency_s)
    for i, (at_s, size, path) in enumerate(sends):
        clock.call(to_ticks(at_s), ARRIVAL, CLIENTS, network.send, size, path, lambda i=i: over.setdefault(i, clock.now * TICK_S))
    clock.run()
    return [over[i] for i in range(len(sends))]


def shared_exactly(sends, bandwidth):
    """Processor sharing in rational numbers."""
    left, over, now = {}, {}, Fraction(0)
    due = sorted((Fraction(at_s), i) for i, (at_s, _, _) in enumerate(sends))
    while due or left:
        first = min(left.values()) * len(left) / bandwidth + now if left else None
        if first is None or (due and due[0][0] < first):
            at, i = due.pop(0)
            left = {k: v - (at - now) * bandwidth / len(left) for k, v in left.items()}
            left[i], now = Fraction(sends[i][1]), at
        else:
            least = min(left.values())
            over |= {k: first for k, v in left.items() if v == least}
            left, now = {k: v - least for k, v in left.items() if v != least}, first
    return [float(over[i]) for i in range(len(sends))]


SENDS = st.lists(st.tuples(st.integers(0, 400).map(lambda n: n / 64), st.integers(1, 10_000), st.just(["a"])), min_size=1, max_size=12)


@settings(max_examples=examples(300))
@given(SENDS)
def test_one_link_is_processor_sharing(sends):
    assert ends(sends, {"a": 1000.0}) == pytest.approx(shared_exactly(sends, 1000), rel=1e-9, abs=1e-9)


NAMES = "abcd"
PATHS = st.lists(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3).map(sorted), min_size=1, max_size=8)


@settings(max_examples=examples(300))
@given(PATHS, st.lists(st.integers(1, 100), min_size=4, max_size=4))
def test_every_transfer_is_held_by_a_full_link_on_which_none_is_faster(paths, sizes):
    links = dict(zip(NAMES, map(float, sizes), strict=True))
    transfers = [Transfer(path, 1.0, 0.0, lambda: None) for path in paths]
    set_fair_rates(dict.fromkeys(transfers), links)
    on = {name: [each.rate for each in transfers if name in each.path] for name in NAMES}
    assert all(sum(on[name]) <= links[name] * (1 + 1e-12) for name in NAMES)
    for each in transfers:
        assert any(sum(on[name]) >= links[name] * (1 - 1e-12) and each.rate >= max(on[name]) * (1 - 1e-12) for name in each.path)


def test_a_latency_comes_first_and_no_bytes_take_nothing_more():
    assert ends([(1.0, 500, ["a"]), (2.0, 0, ["a"]), (3.0, 7, [])], {"a": 1000.0}, 0.25) == [1.75, 2.25, 3.25]
