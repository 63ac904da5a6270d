"""A step never gets cheaper with more tokens, and never dearer with more bandwidth."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.bill import decode_shape, iteration_bill, mixed_shape
from sim.dealing import idle_keys
from sim.policy import blocks, dense, pages, sink_window
from sim.precision import Precision
from sim.price import step_time_s
from sim.rates import Rates
from sim.turns import query_heads, turns
from tests.price.shapes import MODELS, rate_values

POLICIES = [dense(), dense("host"), sink_window("host"), pages(8), blocks(8), blocks(32, "host")]
SPEEDS = ["beta", "beta_kv", "beta_state", "linear_flops_per_s", "attention_flops_per_s", "link_bytes_per_s", "comm_bytes_per_s"]


def seconds(model, policy, batch, context, rates, tp=1):
    shape = decode_shape(model, float(batch), float(context), policy)
    return step_time_s(iteration_bill(model, shape, Precision(), policy, tp), rates)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    batch=st.integers(1, 256),
    context=st.integers(1, 2**20),
    more=st.integers(1, 2**18),
    values=rate_values(),
)
def test_more_context_or_batch_never_cheaper_unless_the_batch_is_dealt_out_better(model, policy, batch, context, more, values):
    rates = Rates(**values)
    base = seconds(model, policy, batch, context, rates)
    assert seconds(model, policy, batch, context + more, rates) >= base * (1 - 1e-12)
    if policy == dense():  # one more may fill a wave: four sequences over 16 KV heads are done before three are (sim.dealing)
        heads = query_heads(model)[0]
        assume(
            (batch + 1) * context + idle_keys(heads, batch + 1, (batch + 1) * context, 0)
            >= batch * context + idle_keys(heads, batch, batch * context, 0)
        )
    assert seconds(model, policy, batch + 1, context, rates) >= base * (1 - 1e-12)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@settings(max_examples=60, deadline=None)
@given(chunk=st.integers(1, 8192), past=st.integers(0, 2**17), decodes=st.lists(st.integers(1, 2**17), max_size=6), values=rate_values())
def test_more_prefill_never_cheaper_unless_it_takes_fewer_turns(model, chunk, past, decodes, values):
    rates, heads = Rates(**values), query_heads(model)
    if heads != (0, 0):  # keys split into other parts: 128 tokens of 28 heads take two turns of a fifth, 146 one of a quarter (sim.turns)
        assume(turns(heads, chunk + 1) >= turns(heads, chunk))

    def price(n):
        return step_time_s(iteration_bill(model, mixed_shape(model, decodes, [(n, past + n, True)]), Precision()), rates)

    assert price(chunk + 1) >= price(chunk) * (1 - 1e-12)


@pytest.mark.parametrize("speed", SPEEDS)
@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    policy=st.sampled_from(POLICIES),
    batch=st.integers(1, 64),
    context=st.integers(1, 2**20),
    gain=st.floats(1.0, 10.0),
    tp=st.sampled_from([1, 2]),
    values=rate_values(),
)
def test_more_bandwidth_never_dearer(speed, model, policy, batch, context, gain, tp, values):
    rates = Rates(**values)
    faster = replace(rates, **{speed: values[speed] * gain})
    before, after = (seconds(model, policy, batch, context, r, tp) for r in (rates, faster))
    assert after <= before * (1 + 1e-12)
