"""The first draws of the rates are spread as all of them: each is there once, and of few trials about the right share is slow."""

import numpy as np
import pytest

from sim import Deployment, Simulate, Workload
from sim.rates.source import RateSource
from sim.study.strata import stratified_order


@pytest.mark.parametrize("count", [1, 2, 37, 1600])
def test_every_point_comes_once(count):
    points = np.random.default_rng(0).standard_normal((2, count))
    assert sorted(stratified_order(*points)) == list(range(count))


@pytest.mark.parametrize("first", [20, 40, 100, 200])
def test_no_share_of_the_first_ones_is_far_from_that_of_all(first):
    points = np.random.default_rng(0).standard_normal((2, 1600))
    rank = np.sort(points[0].argsort().argsort()[stratified_order(*points)[:first]]) / 1600
    assert np.abs(rank - np.arange(first) / first).max() < 0.4 / np.sqrt(first)  # so close are independent ones in 2 to 7 of 100


def test_a_question_has_the_same_draws_in_that_order():
    deployment = Deployment.of("Llama-3.1-8B", "L40S")
    found = Simulate(deployment, Workload.drawn(9, request_rate=1.0)).study().rates
    assert sorted(found.draws.beta) == sorted(RateSource().of(deployment, 1600)[0].draws.beta)
    assert found.draws.beta[:200].mean() == pytest.approx(found.draws.beta.mean(), rel=0.003)
