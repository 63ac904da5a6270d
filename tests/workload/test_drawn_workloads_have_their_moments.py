"""Arrivals and lengths that are drawn have the mean and spread they were asked for; sessions grow; seeds reproduce."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.workload.arrivals import arrival_times, jitter_within_buckets, with_arrivals
from sim.workload.content import SystemPrompt
from sim.workload.jsonl import load_jsonl
from sim.workload.sources import TraceSource
from sim.workload.synthetic import Synthetic, draw, draw_lengths, resampled, with_think_time

COUNT = 40_000


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variation_asked_for(burstiness):
    gaps = np.diff(arrival_times(COUNT, 5.0, burstiness, rng()), prepend=0.0)
    cv = 1 / math.sqrt(burstiness)
    assert gaps.mean() == pytest.approx(0.2, abs=4 * 0.2 * cv / math.sqrt(COUNT))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@given(st.integers(1, 200), st.floats(0.01, 1e4), st.floats(0.05, 20.0), st.integers(0, 99))
def test_the_last_leaves_at_count_over_rate_as_vllms_bench_sends_it(count, rate, burstiness, seed):
    times = arrival_times(count, rate, burstiness, rng(seed))
    assert times[-1] == pytest.approx(count / rate)
    gaps = rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), size=count)
    if gaps.sum() > 0.0:
        np.testing.assert_allclose(np.diff(times, prepend=0.0) * gaps.sum(), gaps * count / rate, rtol=1e-6, atol=1e-9 * count / rate)


def test_constant_and_immediate_arrivals():
    assert arrival_times(3, 4.0, math.inf, rng()).tolist() == [0.25, 0.5, 0.75]
    assert arrival_times(3, math.inf, 1.0, rng()).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, 0.0), (1.0, math.nan)])
def test_absurd_arrivals_are_refused(rate, burstiness):
    with pytest.raises(UsageError):
        arrival_times(3, rate, burstiness, rng())


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_lognormal_lengths(cv):
    lengths = draw_lengths(2000, cv, COUNT, rng())
    assert lengths.min() >= 1
    assert lengths.mean() == pytest.approx(2000, rel=5 * cv / math.sqrt(COUNT))
    assert lengths.std() / lengths.mean() == pytest.approx(cv, rel=0.1)
    assert set(draw_lengths(7, 0.0, 5, rng())) == {7}


@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 40), st.integers(0, 3))
def test_sessions_grow_by_what_was_said(turns, input_tokens, prefix, seed):
    spec = Synthetic(12, input_tokens, 5, length_cv=0.7, prefix_tokens=prefix, turns=turns, think_s=1.0, rate_per_s=3.0)
    trace = draw(spec, rng(seed))
    for i in range(len(trace)):
        turn = i % turns
        assert np.isnan(trace.arrival_s[i]) == (turn > 0)
        if turn:
            said = trace.prompt_tokens[i - 1] + trace.output_tokens[i - 1]
            assert trace.prompt_tokens[i] > said
            assert trace.contents[i].shared_tokens == said
        else:
            assert trace.prompt_tokens[i] > prefix
            assert trace.contents[i] == (SystemPrompt("system", prefix) if prefix else None)
    assert draw(spec, rng(seed)).arrival_s.tolist() == pytest.approx(trace.arrival_s.tolist(), nan_ok=True)


def test_the_system_prompt_is_shared_by_all():
    trace = draw(Synthetic(10, 50, 5, prefix_tokens=64), rng())
    names = [request.prompt_hashes for request in TraceSource(trace, 16).arrivals()]
    assert {len(each) for each in names} == {4}  # what follows is nobody else's, and has no name
    assert len({tuple(each) for each in names}) == 1
    turns = draw(Synthetic(10, 50, 5, prefix_tokens=64, turns=2), rng())  # of sessions it has
    names = [request.prompt_hashes for request in TraceSource(turns, 16).arrivals()]
    assert len({tuple(each[:4]) for each in names}) == 1
    assert len({each[4] for each in names}) == len(names) > 1


def test_new_arrivals_keep_sessions_in_order(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(
        "".join(
            f'{{"session_id": "{s}", "turn": {t}, "arrival_s": {t}, "prompt_tokens": {10 + 20 * t}, "output_tokens": 4}}\n'
            for t in range(3)
            for s in "ab"
        )
    )
    trace = with_arrivals(load_jsonl(file), 2.0, 1.0, rng())
    assert np.isnan(trace.arrival_s).tolist() == [False, False, True, True, True, True]


def test_think_time_goes_between_turns_only():
    trace = draw(Synthetic(4000, 5, 5, turns=2, rate_per_s=1.0), rng())
    thinking = with_think_time(trace, 3.0, rng(1))
    follows = np.isnan(trace.arrival_s)
    assert thinking.think_s[~follows].sum() == 0
    assert thinking.think_s[follows].mean() == pytest.approx(3.0, rel=0.1)
    with pytest.raises(UsageError):
        with_think_time(trace, math.inf, rng())


def test_resampling_keeps_pairs_of_lengths():
    trace = draw(Synthetic(50, 100, 20, length_cv=1.0), rng())
    drawn = resampled(trace, 500, rng(3))
    pairs = set(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert set(zip(drawn.prompt_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) <= pairs
    assert len(drawn) == 500


def test_spreading_fills_the_buckets_and_loses_nothing():
    trace = draw(Synthetic(2000, 100, 20, length_cv=1.0), rng())
    bucketed = trace.retimed(np.repeat(np.arange(20) * 3.0, 100))
    out = jitter_within_buckets(bucketed, 3.0, rng(1))
    assert (np.diff(out.arrival_s) >= 0).all()
    assert (np.floor(out.arrival_s / 3.0) * 3.0).tolist() == bucketed.arrival_s.tolist()
    assert np.diff(out.arrival_s).max() < 1.0
    assert sorted(out.request_ids) == sorted(bucketed.request_ids)
    where = {name: i for i, name in enumerate(bucketed.request_ids)}
    assert [bucketed.prompt_tokens[where[name]] for name in out.request_ids] == out.prompt_tokens.tolist()
    with pytest.raises(UsageError, match="sessions"):
        jitter_within_buckets(draw(Synthetic(4, 5, 5, turns=2), rng()), 3.0, rng())
    with pytest.raises(UsageError):
        jitter_within_buckets(bucketed, math.nan, rng())
