"""The table of the routing page is made of the committed runs, which hold the published order; one of them comes out the same again."""

import csv

import numpy as np
import pytest

from docs.routing import DATA, FIGURES, PAGE, POLICIES, committed, run, table
from sim import Workload


def test_the_table_is_of_the_committed_runs():
    assert "<!-- policies -->\n" + "\n".join(table(committed())) + "\n<!-- /policies -->" in PAGE.read_text()


def p90():
    found = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["policy"], {})[int(row["seed"])] = float(row["p90_ttft_ms"])
    return found


def test_every_policy_ran_on_the_same_thirty_draws():
    assert {policy: sorted(runs) for policy, runs in p90().items()} == {policy: list(range(30)) for policy in POLICIES}


def test_the_published_order_holds_in_the_mean_over_seeds():
    runs = p90()
    logs = [np.mean([np.log(runs[list(POLICIES)[i]][seed]) for seed in range(30)]) for i in range(5)]
    assert logs == sorted(logs, reverse=True)


@pytest.mark.slow
def test_a_run_comes_out_as_committed():
    policy = "A+B: idle replicas score their prompt"
    with DATA.open() as file:
        row = next(row for row in csv.DictReader(file) if row["policy"] == policy and row["seed"] == "3")
    again = run(policy, Workload.agents(seed=3))
    assert {name: f"{again[name]:.6g}" for name in FIGURES} == {name: row[name] for name in FIGURES}
