"""Of 200 truths, each a draw of rates and of requests, the ranks of what an SLO saw among five trials of the plan are uniform."""

from collections import Counter

import numpy as np
from scipy.stats import chisquare

from sim.planning.trials import Here
from sim.slo import parse_slo
from sim.workload.workload import Workload
from tests.planning.offered import choices

TRUTHS, RANKS = 200, 6


def test_ranks_are_uniform_and_stated_chances_come_true():
    workload = Workload.drawn(40, output_len=32, request_rate=5.0)
    here = Here(choices(workload, "L40S"), parse_slo(["ttft:p99<340ms"], {}), for_s=8.0)
    used = np.array([here.one(0, 1, trial).used[0] for trial in range(TRUTHS * RANKS)]).reshape(TRUTHS, RANKS)
    ranks = Counter((used[:, 1:] < used[:, :1]).sum(axis=1).tolist())
    assert chisquare([ranks[rank] for rank in range(RANKS)]).pvalue > 0.01
    stated, true = (used[:, 1:] <= 1).mean(axis=1), used[:, 0] <= 1
    assert 0.2 < true.mean() < 0.8  # neither always nor never
    assert abs(stated.mean() - true.mean()) < 3 * np.sqrt(true.mean() * (1 - true.mean()) / TRUTHS)
