"""Of 200 truths, each a draw of rates and of requests, the ranks of what an SLO saw among trials of the plan are uniform."""

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from sim.planning.question import Plan
from sim.planning.trials import Here
from sim.rates.source import RateSource
from sim.slo import parse_slo
from sim.study.deployment import Deployment
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


@pytest.mark.slow
def test_fresh_seeds_and_ten_times_the_load_hold_the_stated_chance():
    card = Deployment.of("Llama-3.1-8B", "L40S", dtype="fp8", max_model_len="auto")

    def asked(seed):
        workload = Workload.drawn(100, input_len=8000, output_len=300, request_rate=30.0, seed=seed)
        return Plan([card], workload, ("ttft:p99<3s", "tpot:p95<60ms"), rates=RateSource(seed=seed), quick=True, workers=1)

    plan = asked(0).answer().plan
    candidate = [each for each in plan.candidates() if len(each.trials) == 200]
    assert candidate
    rng, truths = np.random.default_rng(1), {each.replicas: [] for each in candidate}
    for seed in range(1, 51):
        here = Here(asked(seed).choices()[0], plan.conditions)
        for each in candidate:
            here.requests[0, each.replicas] = 10 * here.one(0, each.replicas, 0).requests
            truths[each.replicas] += [here.one(0, each.replicas, int(draw)) for draw in rng.integers(1, 1600, 4)]
    for each in candidate:
        held, trials = truths[each.replicas], sorted(max(trial.used) for trial in each.trials)
        met = sum(trial.met for trial in held) / len(held)
        ranks = np.searchsorted(trials, [max(trial.used) for trial in held]) * RANKS // (len(trials) + 1)
        chance = chisquare(np.bincount(ranks, minlength=RANKS)).pvalue
        print(f"{each.replicas} replicas: {each.chance}; {met:.3f} of {len(held)} truths; ranks p {chance:.2f}")
        assert chance > 0.01
        error = 2 * np.sqrt(met * (1 - met) / len(held))
        assert each.chance.low - error <= met <= each.chance.high + error
