"""Knees, recall, memory, serving overhead and the hierarchy over GPUs: truths from the prior have uniform ranks. (make sbc runs more.)"""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.sampling import Settings
from calibrate.steps.random_rates import BY_ENGINES
from studies.population.hierarchy import bounded
from studies.population.kernel_efficiency import OPERATIONS
from studies.sbc.ranks import LEAST_RUNS, family_p, judge
from studies.sbc.sampled import QUICK
from studies.sbc.studies import STUDIES

SHORT = Settings(draws=150, tune=300, chains=1, cores=1, target_accept=0.9)
SHORTER = replace(SHORT, draws=100, tune=200)  # of those that take longest: many dimensions, or small steps
RATES = sorted({*BY_ENGINES, *(operation.rate for operation in OPERATIONS)})
# means and spreads of every rate, the loss of those with a datasheet's peak, and the slope of matrix products
POPULATION = 2 * len(RATES) + int(bounded(RATES).sum()) + 1
PARAMETERS = {"knees": 3, "memory": 7, "served": 3, "recall": 11, "population": POPULATION}


# Their recovery tests, in files of their own, say in seconds what this says in half a minute.
LONG = ("memory", "recall", "population", "knees")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PARAMETERS])
def test_ranks_are_uniform(name):
    found = judge(STUDIES[name](LEAST_RUNS, np.random.default_rng(3), SHORTER if name in ("population", "recall", "memory") else SHORT))
    assert len(found) == PARAMETERS[name]
    assert all(u.runs == LEAST_RUNS for u in found)
    # a fixed seed: one draw of a test that a calibrated sampler fails once in a thousand
    assert family_p(found) > 1e-3, found[0]


@pytest.mark.slow
def test_ranks_of_rates_learnt_from_requests_are_uniform():
    found = judge(STUDIES["requests"](LEAST_RUNS, np.random.default_rng(3), QUICK))
    assert {"host_request_s", "c0_s", "beta"} <= {u.parameter for u in found}
    assert family_p(found) > 1e-3, found[0]


def test_the_long_study_of_step_times_ranks_every_rate_its_cells_show():
    found = STUDIES["step"](2, np.random.default_rng(3), SHORTER)
    assert {"c0_s", "beta", "beta_kv", "kernel_s", "sigma[2]"} <= set(found)
    assert all(((ranks >= 0) & (ranks <= 1)).all() and len(ranks) == 2 for ranks in found.values())
