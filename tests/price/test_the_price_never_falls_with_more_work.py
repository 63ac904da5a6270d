"""An iteration never gets cheaper with a sequence, a token or a context more, nor dearer with a faster rate."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.cost.batch import ABSORBED_TOKENS, decode_batch, mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.engine.iteration_cost import IterationCost
from sim.specs.attention_policy import blocks, dense, pages, sink_window
from sim.specs.precision import Precision
from tests.examples import examples
from tests.price.shapes import HYBRID_MOE, LATENT, MODELS, iteration_of, plausible_rates, rate_values

POLICIES = [dense(), dense("host"), sink_window("host"), pages(8), blocks(8), blocks(32, "host")]
CONTEXTS = st.lists(st.integers(1, 2**17), max_size=24)
CHUNKS = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 2**17)), max_size=3)
BY_MODEL = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)


def reads_alike(model, tokens, more):
    """Whether a chunk grown by so many tokens is attended to in the same form: latent attention reads long chunks as heads."""
    return model is not LATENT or (tokens <= ABSORBED_TOKENS) == (tokens + more <= ABSORBED_TOKENS)


def seconds(model, contexts, chunks, rates, policy=POLICIES[0], tp=1):
    shape = mixed_batch(model, contexts, [(n, past + n, 1) for n, past in chunks], policy)
    return step_time_s(iteration_work(model, shape, Precision(), policy, tp), rates)


@BY_MODEL
@settings(max_examples=examples(80))
@given(
    contexts=CONTEXTS,
    chunks=CHUNKS,
    policy=st.sampled_from(POLICIES),
    tp=st.sampled_from([1, 2]),
    more=st.integers(1, 2**17),
    grown=st.integers(0, 30),
    values=rate_values(),
)
def test_a_sequence_a_context_a_token_or_a_chunk_more(model, contexts, chunks, policy, tp, more, grown, values):
    rates = Rates(**values)
    least = seconds(model, contexts, chunks, rates, policy, tp) * (1 - 1e-12)
    assert seconds(model, [*contexts, more], chunks, rates, policy, tp) >= least
    assert seconds(model, contexts, [*chunks, (1 + more % 8192, more // 2)], rates, policy, tp) >= least
    if contexts:
        i = grown % len(contexts)
        assert seconds(model, [*contexts[:i], contexts[i] + more, *contexts[i + 1 :]], chunks, rates, policy, tp) >= least
    if chunks:
        i = grown % len(chunks)
        (n, past), rest = chunks[i], (chunks[:i], chunks[i + 1 :])
        if reads_alike(model, n, 1):
            assert seconds(model, contexts, [*rest[0], (n + 1, past), *rest[1]], rates, policy, tp) >= least
        assert seconds(model, contexts, [*rest[0], (n, past + more), *rest[1]], rates, policy, tp) >= least


def in_parts(model, contexts, chunks, rates, size, streams=False):
    cost = IterationCost(model, Precision(), rates, micro_batch=size, streams=streams)
    return sum(step_time_s(cost.steps.work(each), rates) for each in cost.batches_of(contexts, chunks))


@BY_MODEL
@settings(max_examples=examples(60))
@given(
    contexts=st.lists(st.integers(1, 2**15), max_size=12),
    chunks=st.lists(st.tuples(st.integers(1, 700), st.integers(0, 2**15)), min_size=1, max_size=3),
    more=st.integers(1, 600),
    size=st.integers(4, 600),
    values=rate_values(),
)
def test_micro_batches_of_a_longer_prompt(model, contexts, chunks, more, size, values):
    """Cut where they are full: what the last prompt has more comes last."""
    rates, (*others, (n, past)) = Rates(**values), chunks
    assume(reads_alike(model, n, more))
    before, after = ([(m, behind + m, 1) for m, behind in (*others, last)] for last in ((n, past), (n + more, past)))
    if not model.state_layers:
        least = in_parts(model, contexts, before, rates, size) * (1 - 1e-12)
        assert in_parts(model, contexts, after, rates, size) >= least
    alone = [in_parts(model, [], asked[-1:], rates, size, True) for asked in (before, after)]
    assert alone[1] >= alone[0] * (1 - 1e-12)


def test_a_chunk_that_latent_attention_reads_as_heads_may_cost_less_than_one_of_a_token_less():
    """The engine goes by the chunk's length (512 tokens), not by which form is quicker."""
    rates = plausible_rates()
    short, long = (seconds(LATENT, [100] * 10, [(n, 0)], rates) for n in (ABSORBED_TOKENS, ABSORBED_TOKENS + 1))
    assert short * (1 - 1e-4) < long < short


def test_of_micro_batches_in_equal_shares_a_token_more_can_save_one():
    """Where requests keep a state, llama.cpp computes prompts of 2 and 3 tokens as 2 + 2 and 1, of 3 and 3 as 3 + 3."""
    asked = [[(n, n, 1), (3, 3, 1)] for n in (2, 3)]
    cost = IterationCost(HYBRID_MOE, Precision(), plausible_rates(), micro_batch=512)
    assert [len(cost.batches_of([], each)) for each in asked] == [2, 1]
    short, long = (in_parts(HYBRID_MOE, [], each, plausible_rates(), 512) for each in asked)
    assert long < short


@BY_MODEL
@settings(max_examples=examples(60))
@given(batch=st.integers(1, 600), mean=st.integers(1, 2**16), more=st.integers(1, 2**12), values=rate_values())
def test_ticks_of_decodes_on_their_chords(model, batch, mean, more, values):
    """As a simulation reads them: sums of contexts."""
    cost = IterationCost(model, Precision(), Rates(**values))
    if cost.steps.jumps:
        least, grown = (cost(iteration_of([*[mean] * (batch - 1), last])).ticks for last in (mean, mean + more))
        assert grown >= least


@pytest.mark.parametrize("rate", [name for name in UNITS if name.startswith("beta") or name.endswith("_per_s")])
@settings(max_examples=examples(40))
@given(
    model=st.sampled_from(MODELS),
    policy=st.sampled_from(POLICIES),
    batch=st.integers(1, 64),
    context=st.integers(1, 2**20),
    gain=st.floats(1.0, 10.0),
    tp=st.sampled_from([1, 2]),
    values=rate_values(),
)
def test_a_faster_rate(rate, model, policy, batch, context, gain, tp, values):
    work = iteration_work(model, decode_batch(model, float(batch), float(context), policy), Precision(), policy, tp)
    before = step_time_s(work, Rates(**values))
    after = step_time_s(work, replace(Rates(**values), **{rate: values[rate] * gain}))
    assert after <= before * (1 + 1e-12)
