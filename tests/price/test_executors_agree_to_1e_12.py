"""The one formula gives the same numbers in plain floats, numpy and PyTensor."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cost.batch import BatchShape, decode_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_terms
from sim.cost.work import iteration_work
from sim.specs.attention_policy import blocks, dense, pages, sink_window
from sim.specs.precision import Precision
from tests.price.shapes import MODELS, mixed_shapes, rate_values

POLICIES = [dense(), dense("host"), sink_window(), sink_window("host"), pages(8), blocks(32), blocks(8, "host")]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.label)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@settings(max_examples=10)
@given(batch=st.integers(1, 512), context=st.integers(1, 2**21), values=rate_values())
def test_float_equals_numpy_on_decode(model, policy, batch, context, values):
    rates = Rates(**values)
    arrays = Rates(**{name: np.full(3, value) for name, value in values.items()})
    one = iteration_work(model, decode_batch(model, float(batch), float(context), policy), Precision(), policy)
    shape = decode_batch(model, np.full(3, float(batch)), np.full(3, float(context)), policy, np)
    many = iteration_work(model, shape, Precision(), policy)
    plain_terms = step_terms(one, rates)
    for plain, array in zip(plain_terms, step_terms(many, arrays, np), strict=True):
        np.testing.assert_allclose(array, plain, rtol=1e-12, atol=1e-14 * sum(plain_terms))


@pytest.fixture(scope="module")
def compiled():
    """One PyTensor function per model: shape fields and rates in, terms out."""
    functions = {}
    for model in MODELS:
        shape = BatchShape(**{name: pt.dscalar(name) for name in BatchShape._fields})
        rates = Rates(**{name: pt.dscalar(name) for name in UNITS})
        policy = blocks(8, "host")
        terms = step_terms(iteration_work(model, shape, Precision(), policy), rates, pt)
        inputs = [getattr(shape, n) for n in BatchShape._fields] + [getattr(rates, n) for n in UNITS]
        outputs = [pt.as_tensor_variable(t) for t in terms]
        functions[model.name] = pytensor.function(inputs, outputs, on_unused_input="ignore", mode="FAST_COMPILE")
    return functions


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_float_equals_pytensor_on_mixed_iterations(model, compiled):
    @settings(max_examples=40)
    @given(shape=mixed_shapes(model, blocks(8, "host")), values=rate_values())
    def check(shape, values):
        policy = blocks(8, "host")
        plain = step_terms(iteration_work(model, shape, Precision(), policy), Rates(**values))
        inputs = [float(getattr(shape, n)) for n in BatchShape._fields] + [values[n] for n in UNITS]
        for name, a, b in zip(plain._fields, plain, compiled[model.name](*inputs), strict=True):
            # the exposed launch is a difference of two stage times, so its rounding is that of the step
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14 * sum(plain), err_msg=name)

    check()
