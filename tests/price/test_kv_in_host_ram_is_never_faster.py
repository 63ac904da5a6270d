"""An iteration whose KV comes from host RAM takes at least as long as one whose KV is in HBM."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.specs.attention_policy import dense, sink_window
from sim.specs.precision import Precision
from tests.price.shapes import HYBRID_MOE, QWEN_7B, plausible_rates

CONTEXTS = st.lists(st.floats(1, 1e6), min_size=1, max_size=20)


@pytest.mark.parametrize("model", [QWEN_7B, HYBRID_MOE], ids=lambda model: model.name)
@pytest.mark.parametrize("policy", [dense, sink_window])
@given(contexts=CONTEXTS, chunk=st.none() | st.tuples(st.integers(1, 8192), st.integers(0, 100_000)))
def test_host_takes_at_least_as_long(model, policy, contexts, chunk):
    took = {}
    for place in ("hbm", "host"):
        here = policy(placement=place)
        if chunk is None:
            shape = decode_batch(model, float(len(contexts)), sum(contexts) / len(contexts), here)
        else:
            tokens, before = chunk
            shape = mixed_batch(model, contexts, [(tokens, before + tokens, 1)], here)
        took[place] = step_time_s(iteration_work(model, shape, Precision(), here), plausible_rates())
    assert took["host"] >= took["hbm"] * (1 - 1e-12)
