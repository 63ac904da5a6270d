"""The packed log of the engine in rows is the rows that came; the tree of a fleet's wakes names who goes on first."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import sim.cluster.fleet_state as on
from sim.cluster.fleet_events import first_of, note_departure, note_wake
from sim.cluster.fleet_runs import first_places
from sim.engine.rows import layout as at
from sim.engine.rows.served import NAMES_OF_LOG, Columns, Log
from tests.examples import examples

VALUES = st.sampled_from([0, 0, 0, 0, 1, 7, -1, 2**31 - 1, 2**31, -(2**40), 2**61])


@settings(max_examples=examples(60))
@given(parts=st.lists(st.lists(VALUES, max_size=20), min_size=1, max_size=5))
def test_columns_of_a_log_are_the_rows_that_came(parts):
    kept, came = Columns(), []
    for values in parts:
        rows = at.records(at.LogRow, len(values))
        for place, name in enumerate(NAMES_OF_LOG):
            rows[name] = np.roll(values, place) if values else 0
        kept.add(rows)
        came.append(rows)
    whole = np.concatenate(came)
    assert kept.count == len(whole) == sum(piece.count for piece in kept.pieces())
    for name in NAMES_OF_LOG:
        assert kept[name].dtype == whole[name].dtype
        np.testing.assert_array_equal(kept[name], whole[name])


def test_of_a_log_that_is_moved_the_row_under_way_stays():
    log = at.records(at.LogRow, 8)
    log["tokens"] = range(8)
    e = SimpleNamespace(log=log, entries=at.records(at.EntryRow, 4), iterations=[at.IterationRow(row=4)])
    s = SimpleNamespace(under_way=0, first_iteration=0, first_row=2, first_entry=0, rows=3, entries=0, logged=10)
    moved = Log()
    moved.drain(e, s)
    assert moved.served(np.zeros(0, dtype=np.int64)).rows["tokens"].tolist() == [2, 3]
    assert (log["tokens"][2], e.iterations[0].row) == (4, 2)
    assert (s.rows, s.logged) == (1, 12)


@settings(max_examples=examples(60))
@given(replicas=st.integers(1, 9), changes=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 1)), max_size=30))
def test_the_root_of_a_tree_is_the_first_of_all_replicas(replicas, changes):
    c = [0] * on.COUNTS
    c[on.REPLICAS] = c[on.ALL] = replicas
    never = [at.NEVER] * replicas
    f = SimpleNamespace(c=c, wakes=[*never], ranks=[1] * replicas, departs=[*never])
    f.first_awake, f.first_left = first_places(replicas), first_places(replicas)
    for replica, tick, rank in changes:
        i = replica % replicas
        note_wake(f, i, at.EngineRow(wake=tick, after_arrivals=rank))
        note_departure(f, i, tick + rank)
        every = range(replicas)
        assert first_of(f.first_awake, replicas, 1) == min(every, key=lambda one: (f.wakes[one], f.ranks[one], one))
        assert first_of(f.first_left, replicas, 1) == min(every, key=lambda one: (f.departs[one], one))
