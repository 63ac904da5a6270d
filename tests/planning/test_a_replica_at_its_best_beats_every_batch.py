"""Bounds take each token at its cheapest: no iteration within the limits costs less a token, and some costs as much."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.pools import DECODE, PREFILL
from sim.cost.batch import decode_batch, mixed_batch
from sim.planning.bounds import NO_LOAD, TRIALS, Bounds, Deadline, OfferedLoad, _lasting_load, _step_s, _Times
from sim.slo import parse_slo
from sim.study.run import planned
from sim.workload.trace import Trace
from sim.workload.workload import Workload
from tests.planning.offered import choices

BUDGET, SEQS, CONTEXT = 1024, 100, 1024
NONE = Deadline()


@cache
def pool(role="serve"):
    (choice,) = choices(Workload.drawn(20, request_rate=1.0), "L4", dtype="fp8", max_num_seqs=SEQS, max_num_batched_tokens=BUDGET)
    (found,) = planned(choice.study)
    return replace(found, spec=replace(found.spec, role=role))


def decode_s(batch, context=CONTEXT):
    d = pool().spec.deployment
    return _step_s(pool(), decode_batch(d.model, float(batch), float(context), d.limits.attention))


def prompts_s(lengths):
    """An iteration of whole prompts, at the draw of each trial."""
    return _step_s(pool(), mixed_batch(pool().spec.deployment.model, [], [(n, n, 1) for n in lengths]))


@given(st.integers(1, 3 * BUDGET))
def test_a_prompt_token_costs_what_it_does_in_a_full_iteration_of_its_like(typical):
    chunk = min(typical, BUDGET)
    several = BUDGET // chunk
    assert _Times(pool(), NONE, {})._prompt_s(typical) == pytest.approx(prompts_s([chunk] * several) / (several * chunk), rel=1e-12)


@given(st.lists(st.integers(64, 512), min_size=1, max_size=12).filter(lambda lengths: sum(lengths) <= BUDGET))
def test_no_iteration_of_prompts_at_least_as_long_is_cheaper_a_token(lengths):
    assert (_Times(pool(), NONE, {})._prompt_s(64) <= prompts_s(lengths) / sum(lengths)).all()


@given(batch=st.integers(1, SEQS), limit=st.floats(0.02, 0.3), trial=st.integers(0, TRIALS - 1))
def test_no_batch_within_the_limits_is_cheaper_a_token(batch, limit, trial):
    step = float(decode_s(batch)[trial])
    best = _Times(pool(), Deadline(token_share=0.9, token_s=limit), {})._token_s(CONTEXT, trial)
    assert step > limit or best <= step / batch * (1 + 1e-12)


def test_the_cheapest_is_the_largest_batch_up_to_the_next_power_of_two():
    times = _Times(pool(), NONE, {})
    assert [times._token_s(CONTEXT, trial) for trial in range(TRIALS)] == pytest.approx((decode_s(128) / 128).tolist(), rel=1e-12)
    long = 2 ** (pool().config.kv_capacity_tokens // 8).bit_length()  # memory holds fewer than 8 of them, and 16 with half of each to come
    assert times._token_s(long, 0) == pytest.approx(min(float(decode_s(n, long)[0]) / n for n in (1, 2, 4, 8, 16)), rel=1e-12)


def test_prefill_pools_need_nothing_for_tokens_and_decode_pools_nothing_for_prompts():
    load = OfferedLoad(2.0, 5000.0, 64, 10.0, 9000.0, CONTEXT)
    prompts = 5000.0 * _Times(pool(), NONE, {})._prompt_s(64)[3] / 2.0
    tokens = 9000.0 * _Times(pool(), NONE, {})._token_s(CONTEXT, 3) / 10.0
    assert _Times(pool(PREFILL), NONE, {}).needed(load, 3) == prompts
    assert _Times(pool(DECODE), NONE, {}).needed(load, 3) == tokens
    assert _Times(pool(), NONE, {}).needed(load, 3) == max(prompts, tokens)
    assert _Times(pool(), NONE, {}).needed(NO_LOAD, 3) == 0.0


def test_prompts_that_may_be_cached_cost_nothing():
    trace = Trace(np.arange(4.0), np.full(4, 100), np.full(4, 9), np.zeros(4), list("abcd"), [None] * 4, [0] * 4, [None] * 4)
    assert _lasting_load(trace, 0, 2**60, NONE).prompt_tokens == 400.0
    known = replace(trace, contents=[None, None, None, SimpleNamespace()])
    assert _lasting_load(known, 0, 2**60, NONE).prompt_tokens == 0.0


def test_pools_by_length_have_the_prompts_between_their_own_and_the_one_before(monkeypatch):
    asked = []
    monkeypatch.setattr(Bounds, "_replicas", lambda self, pool, *span: asked.append(span) or np.zeros(TRIALS))
    pools = [replace(pool(), spec=replace(pool().spec, max_prompt_tokens=most)) for most in (512, 2048, None)]
    for place, each in enumerate(pools):
        Bounds(parse_slo(["ttft:p99<1s"], {}))._units(each, place, pools)
    assert asked == [(0, 512), (512, 2048), (2048, 2**60)]


def test_alone_is_a_step_of_the_shortest_prompt_of_any_trial():
    bounds = Bounds(parse_slo(["tpot:p99<1s"], {}))
    bounds._traces = [SimpleNamespace(prompt_tokens=np.array(prompts)) for prompts in ([700, 900], [80, 4000])]
    assert bounds._unloaded_s(pool()) == pytest.approx(decode_s(1, 80), rel=1e-12)
