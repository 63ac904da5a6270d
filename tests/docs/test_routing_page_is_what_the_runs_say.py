"""The tables of the routing page are made of the committed runs, which have the published tail; one of them comes out the same again."""

import csv

import numpy as np
import pytest

from studies.replication.routing_page import DATA, FIGURES, PAGE, POLICIES, SEEDS, change, committed, run, sessions, table, tail_table


@pytest.mark.parametrize(("name", "made"), [("policies", table), ("tail", tail_table)])
def test_a_table_is_of_the_committed_runs(name, made):
    assert f"<!-- {name} -->\n" + "\n".join(made(committed())) + f"\n<!-- /{name} -->" in PAGE.read_text()


def test_every_policy_ran_on_the_same_draws():
    assert [list(runs) for runs in committed()] == SEEDS * [list(POLICIES)]


def test_slow_requests_and_fallbacks_are_as_many_as_published():
    means = {name: np.mean([runs["baseline"][name] for runs in committed()]) for name in FIGURES}
    assert 65 / 1.5 < means["above_20_s"] < 65 * 1.5
    assert 41 / 1.5 < means["above_30_s"] < 41 * 1.5
    assert means["fallback"] == pytest.approx(362 / 1214, abs=0.05)


def test_the_corrections_help_and_forced_turns_hurt():
    found = committed()
    base = [runs["baseline"] for runs in found]
    for policy, sign in (("A+B: idle replicas score their prompt", -1), ("A+B and one step from pick to reservation", -1)):
        assert all(sign * end > 0 for end in change([runs[policy] for runs in found], base))
    assert min(change([runs["turns forced apart: each to the fewest requests"] for runs in found], base)) > 0


@pytest.mark.slow
def test_a_run_comes_out_as_committed():
    policy = "A+B: idle replicas score their prompt"
    with DATA.open() as file:
        row = next(row for row in csv.DictReader(file) if row["policy"] == policy and row["seed"] == "3")
    again = run(policy, sessions(3))
    assert {name: f"{again[name]:.6g}" for name in FIGURES} == {name: row[name] for name in FIGURES}
