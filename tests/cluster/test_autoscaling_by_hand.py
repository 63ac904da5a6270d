"""What an autoscaler orders and drains, look by look, against traces worked out by hand: ceil(replicas * signal / target) is wanted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sim.cluster.autoscale import Autoscaler, Scaling
from sim.cluster.replica import State
from sim.ticks import to_ticks

EVERY = {"period_s": 10.0, "cold_start_s": 25.0, "down_after_s": 60.0, "target": 4.0}


@dataclass(eq=False)
class Replica:
    index: int
    state: State


class Fleet:
    """Replicas 0, 1, ... of which the first so many are up; a drained one is gone at once."""

    def __init__(self, most: int, up: int) -> None:
        self.replicas = [Replica(i, State.UP if i < up else State.DOWN) for i in range(most)]
        self.pools = [self]
        self.ttfts, self.said, self.inside = None, [], 0.0

    @property
    def up(self):
        return [each for each in self.replicas if each.state is State.UP]

    def in_flight(self, pool, prompts):
        return self.inside

    def busy(self):
        return True

    def order(self, replica):
        self.said.append(f"order {replica.index}")

    def start(self, replica):
        replica.state = State.UP
        self.said.append(f"start {replica.index}")

    def drain(self, replica):
        replica.state = State.DOWN
        self.said.append(f"drain {replica.index}")


class Clock:
    """Runs what is due in order of time, then of calling."""

    def __init__(self) -> None:
        self.now, self.calls, self.count = 0, [], 0

    def call(self, at, order, rank, function, *given):
        self.count += 1
        self.calls.append((at, self.count, function, given))

    def called(self):
        return self.count

    def pending(self):
        return len(self.calls) + 1  # a request is to come, always

    def run_to(self, seconds):
        while min(self.calls)[0] <= to_ticks(seconds):
            self.now, _, function, given = due = min(self.calls)
            self.calls.remove(due)
            function(*given)


def followed(fleet, loads, **settings):
    """What is said at each look, the first after a period, with so many requests in flight."""
    clock, found = Clock(), []
    scaler = Autoscaler(clock, fleet, [Scaling(**EVERY | settings)])
    scaler.begin()
    for look, load in enumerate(loads, 1):
        fleet.said, fleet.inside = [], load
        clock.run_to(10.0 * look)
        found.append(", ".join(fleet.said))
    return found


def test_starts_under_way_are_not_ordered_again():
    # 16 requests: 4 wanted by 1. They come at 35 s; until then 3 are under way. 20 requests at 30 s: 5 wanted, and 1 more is ordered
    assert followed(Fleet(8, 1), [16, 16, 20, 20, 16, 16]) == [
        "order 1, order 2, order 3",
        "",
        "order 4",
        "start 1, start 2, start 3",  # at 35 s; at 40 s 20 requests over 4 replicas are 5, of which 1 is under way
        "",  # 4 wanted; 4 up, and 1 more is coming
        "start 4",  # at 55 s; 4 wanted, but 5 were, less than 60 s ago
    ]


def test_fewer_are_kept_only_after_nothing_more_was_wanted_for_a_while():
    # 4 are wanted at 10 s, 2 from 20 s on, 1 at 50 s: 4 stay until their want is more than 60 s old, then 2 until 80 + 60 s
    loads = [16, 8, 8, 8, 4, 8, 8, 8] + [4] * 7
    said = followed(Fleet(4, 4), loads)
    assert [(10 * (look + 1), what) for look, what in enumerate(said) if what] == [(80, "drain 3, drain 2"), (150, "drain 1")]


def test_a_peak_between_begins_the_while_again():
    loads = [16, 8, 8, 8, 8, 16, *[8] * 8]
    said = followed(Fleet(4, 4), loads)
    assert [(10 * (look + 1), what) for look, what in enumerate(said) if what] == [(130, "drain 3, drain 2")]


@pytest.mark.parametrize(
    ("inside", "up", "wanted"),
    [(0, 3, 1), (4, 1, 1), (4.001, 1, 2), (8, 2, 2), (9, 2, 3), (9, 3, 3), (12, 1, 3), (100, 2, 8)],
)
def test_wanted_is_the_ceiling_of_the_load_over_the_target(inside, up, wanted):
    fleet = Fleet(8, up)
    said = followed(fleet, [inside], down_after_s=0.0)[0]
    ordered, drained = said.count("order"), said.count("drain")
    assert (ordered, drained) == (max(wanted - up, 0), max(up - wanted, 0))


def test_never_below_the_least():
    assert followed(Fleet(4, 3), [0], least=2, down_after_s=0.0) == ["drain 2"]
