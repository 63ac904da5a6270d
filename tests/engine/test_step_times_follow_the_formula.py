"""Ticks follow the one formula: mixed iterations to the rounding, decode iterations to the stated distance of a
chord.
"""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cost.batch import DENSE, mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import all_reduce_s, head_s, kernels_s, linear_s, step_time_s
from sim.cost.work import iteration_work
from sim.engine.iteration_cost import IterationCost
from sim.engine.rows.price import RowSeconds
from sim.engine.step_clock import StepTime, staged_s
from sim.specs.attention_policy import AttentionPolicy, blocks, dense, pages, sink_window
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision
from sim.ticks import TICK_S, to_ticks
from tests.price.shapes import HYBRID_MOE, LATENT, QWEN_7B, SLIDING, iteration_of, mixed_shapes, plausible_rates, rate_values

BATCHES = st.lists(st.integers(1, 2**17), min_size=1, max_size=64)


def formula_s(model: ModelSpec, rates: Rates, contexts: list[int], chunks: list[tuple[int, int, bool]]) -> float:
    return float(step_time_s(iteration_work(model, mixed_batch(model, contexts, chunks), Precision()), rates))


@pytest.mark.parametrize(("model", "most"), [(QWEN_7B, 1e-9), (LATENT, 1e-9), (HYBRID_MOE, 1e-4)], ids=["attention", "latent", "hybrid"])
@given(values=rate_values(), contexts=BATCHES)
def test_a_decode_iteration_is_on_its_chord(model: ModelSpec, most: float, values: dict[str, float], contexts: list[int]) -> None:
    rates = Rates(**values)
    batch, context = len(contexts), sum(contexts)
    ours = IterationCost(model, Precision(), rates)(iteration_of(contexts)).ticks * TICK_S
    formula = formula_s(model, rates, contexts, [])
    node = max(batch << octave for octave in range(18) if batch << octave <= context)
    ticks = 2 + context - node  # a chord's ends are whole numbers of ticks, and so is what a token adds to them
    assert abs(ours - formula) <= most * formula + ticks * TICK_S


@given(values=rate_values(), contexts=BATCHES, tokens=st.integers(1, 4096), past=st.integers(0, 2**16))
def test_a_mixed_iteration_is_the_formula(values: dict[str, float], contexts: list[int], tokens: int, past: int) -> None:
    rates = Rates(**values)
    chunks = [(tokens, past + tokens, True)]
    ours = IterationCost(QWEN_7B, Precision(), rates)(iteration_of(contexts, chunks)).ticks
    assert ours == to_ticks(formula_s(QWEN_7B, rates, contexts, chunks))


@pytest.mark.parametrize("model", [QWEN_7B, LATENT, HYBRID_MOE], ids=["attention", "latent", "hybrid"])
@given(data=st.data(), values=rate_values(), policy=st.sampled_from([DENSE, dense("host"), pages(8), blocks(4, "host"), sink_window()]))
def test_stages_add_up_to_the_formula_bit_for_bit(
    model: ModelSpec, data: st.DataObject, values: dict[str, float], policy: AttentionPolicy
) -> None:
    shape, rates = data.draw(mixed_shapes(model)), Rates(**values)
    steps = StepTime(model, Precision(), rates, policy=policy)
    work = steps.work(shape)
    rows = RowSeconds(kernels_s(work, rates), linear_s(work, rates), all_reduce_s(work, rates))
    assert staged_s(steps.given[0], shape, rates, policy, rows, head_s(work, rates)) == step_time_s(work, rates)


def test_jumps_only_where_the_price_depends_on_the_summed_context_alone() -> None:
    def jumps(model: ModelSpec, **policy: object) -> bool:
        return StepTime(model, Precision(), Rates(*[1.0] * len(UNITS)), **policy).jumps  # type: ignore[arg-type]

    assert jumps(QWEN_7B)
    assert jumps(HYBRID_MOE)
    assert not jumps(SLIDING)
    assert not jumps(QWEN_7B, policy=pages(8))
    assert not jumps(QWEN_7B, policy=dense("host"))


@pytest.mark.parametrize("streams", [False, True])
@given(
    contexts=st.lists(st.integers(1, 5000), max_size=40),
    chunks=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 500), st.booleans()), max_size=5),
    size=st.integers(1, 512),
    slots=st.permutations(range(60)),
)
def test_micro_batches_hold_the_same_work(
    streams: bool, contexts: list[int], chunks: list[tuple[int, int, bool]], size: int, slots: list[int]
) -> None:
    assume(contexts or chunks)
    whole = [(n, n + past, int(samples)) for n, past, samples in chunks]
    places = [*sorted(slots[: len(contexts)]), *sorted(slots[45 : 45 + len(chunks)])]
    apart = micro_batched(size, streams).batches_of(contexts, whole, places)
    tokens = [each.decode_seqs + each.prefill_tokens for each in apart]
    assert max(tokens) <= size
    assert streams or tokens[:-1] == [size] * (len(apart) - 1)
    together = mixed_batch(QWEN_7B, contexts, whole)
    for name in ("prefill_tokens", "prefill_pairs", "sampled", "decode_context"):
        assert sum(getattr(shape, name) for shape in apart) == getattr(together, name)


def micro_batched(size: int, streams: bool) -> IterationCost:
    return IterationCost(QWEN_7B, Precision(), plausible_rates(), micro_batch=size, streams=streams)


def test_a_micro_batch_with_streams_holds_equal_shares_of_consecutive_slots() -> None:
    # slots 3, 4 and 9 decode; 5 and 6 have prompts
    given = [10, 20, 30], [(3, 3, 1), (3, 3, 1)], [3, 4, 9, 5, 6]
    parts = [
        (each.decode_context, each.prefill_seqs, each.prefill_tokens, each.sampled) for each in micro_batched(512, True).batches_of(*given)
    ]
    assert parts == [(30.0, 2.0, 2.0, 2.0), (30.0, 0.0, 0.0, 1.0), (0.0, 2.0, 4.0, 2.0)]


def test_one_decode_beside_prompts_costs_a_batch_of_one_token_of_everybody() -> None:
    for contexts, expected in (([], [400]), ([7], [5, 396])):
        found = micro_batched(512, True).batches_of(contexts, [(100, 100, 1)] * 4)
        assert [each.decode_seqs + each.prefill_tokens for each in found] == expected
