"""A GPU that has rested computes its first products faster, by an account that time without products fills again."""

import numpy as np
import pytest

from sim.engine.boost import NO_BOOST, Boost, Rested
from sim.engine.config import EngineConfig
from sim.engine.fast import FastReplica
from sim.engine.fast_books import Arrivals
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.errors import UsageError
from sim.precision import Precision
from tests.price.shapes import QWEN_7B, plausible_rates

BOOST = Boost(share=0.1, budget_s=0.05, refill=0.5)
AHEAD = {"async_scheduling": True}
MS = to_ticks(1e-3)


def steps(boost: Boost = NO_BOOST) -> StepTime:
    return StepTime(QWEN_7B, Precision(), plausible_rates(), boost=boost)


def first_s(boost: Boost, arrival_s: list[float], prompt: int, *, overlap: bool = True) -> np.ndarray:
    """When each of these requests of one token is answered, seconds."""
    config = EngineConfig(max_model_len=8192, max_num_batched_tokens=prompt, options={"async_scheduling": overlap})
    count = len(arrival_s)
    return FastReplica(Arrivals(arrival_s, [prompt] * count, [1] * count), config, steps(boost)).run().first_token_s


def test_the_account_by_hand() -> None:
    account = Rested(BOOST)  # 50 ms
    assert account.covers(0, 40 * MS)
    account.computed(0, 40 * MS, rested=True)  # 10 ms are left, none earned while products are computed
    assert not account.covers(40 * MS, 40 * MS)
    account.computed(40 * MS, 40 * MS, rested=False)
    assert not account.covers(90 * MS, 40 * MS)  # 10 ms without products earned 5: 15 of 40
    assert account.covers(101 * MS, 40 * MS)  # and 21 are more than half
    account.computed(101 * MS, 40 * MS, rested=True)  # 20 ms overdrawn
    assert not account.covers(180 * MS, 5 * MS)
    assert account.covers(to_ticks(10.0), 99 * MS)  # full, and no more than full
    assert not account.covers(to_ticks(10.0), 101 * MS)


def test_a_rest_ends_after_the_budget_and_comes_back_with_quiet() -> None:
    prompt, slowly = 512, Boost(BOOST.share, BOOST.budget_s, 0.01)
    rested, plain = first_s(slowly, [0.0] * 8, prompt), first_s(NO_BOOST, [0.0] * 8, prompt)
    each, slow = np.diff(rested, prepend=0.0), np.diff(plain, prepend=0.0)
    faster = each < slow - 1e-9
    alone = steps(slowly).products(0, [(prompt, prompt, 1)]) * TICK_S
    assert faster.sum() == round(BOOST.budget_s / alone)
    assert faster[: faster.sum()].all()
    np.testing.assert_allclose(each[~faster], slow[~faster], atol=1e-12)
    after_quiet = first_s(slowly, [0.0] * 8 + [10.0], prompt)
    assert after_quiet[-1] - 10.0 == pytest.approx(rested[0], abs=1e-9)


def test_products_alone_are_faster() -> None:
    """By the share where products are all that is waited for; what waits for memory hardly."""
    ours, theirs = steps(BOOST), steps()
    long, short = [(8192, 8192, 1)], [(8, 8, 1)]
    assert ours.mixed(0, 0, 0, 0, long) == theirs.mixed(0, 0, 0, 0, long)
    gain = [1 - ours.mixed(0, 0, 0, 0, chunks, rested=True) / theirs.mixed(0, 0, 0, 0, chunks) for chunks in (long, short)]
    assert gain[0] == pytest.approx(BOOST.share / (1 + BOOST.share), rel=0.05)
    assert 0 <= gain[1] < 1e-3
    assert ours.products(3, []) == 0
    assert ours.products(0, short) < 0.01 * ours.products(0, long)


def test_an_engine_that_waits_for_its_gpu_has_no_account() -> None:
    np.testing.assert_array_equal(first_s(BOOST, [0.0] * 3, 512, overlap=False), first_s(NO_BOOST, [0.0] * 3, 512, overlap=False))


def test_what_is_no_boost_is_refused() -> None:
    for wrong in ((-0.1, 1.0, 1.0), (0.1, float("nan"), 1.0), (0.1, 1.0, float("inf"))):
        with pytest.raises(UsageError, match="boost"):
            Boost(*wrong)
