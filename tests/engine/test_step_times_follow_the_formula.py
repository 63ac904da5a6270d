"""Ticks follow the one formula: mixed iterations to the rounding, decode iterations to the stated distance of a
chord.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cost.batch import mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.engine.microbatch import equal_micro_batches, micro_batches
from sim.engine.step_clock import StepTime, staged_s
from sim.specs.attention_policy import dense, pages
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision
from sim.ticks import TICK_S, elapsed, to_ticks
from tests.price.shapes import HYBRID_MOE, LATENT, QWEN_7B, SLIDING, mixed_shapes, rate_values

BATCHES = st.lists(st.integers(1, 2**17), min_size=1, max_size=64)


def formula_s(model: ModelSpec, rates: Rates, contexts: list[int], chunks: list[tuple[int, int, bool]]) -> float:
    return float(step_time_s(iteration_work(model, mixed_batch(model, contexts, chunks), Precision()), rates))


@pytest.mark.parametrize(("model", "most"), [(QWEN_7B, 1e-9), (LATENT, 1e-9), (HYBRID_MOE, 1e-4)], ids=["attention", "latent", "hybrid"])
@given(values=rate_values(), contexts=BATCHES)
def test_a_decode_iteration_is_on_its_chord(model: ModelSpec, most: float, values: dict[str, float], contexts: list[int]) -> None:
    rates = Rates(**values)
    steps = StepTime(model, Precision(), rates)
    batch, context = len(contexts), sum(contexts)
    ours, formula = steps.stretch(batch, context).first * TICK_S, formula_s(model, rates, contexts, [])
    node = max(batch << octave for octave in range(18) if batch << octave <= context)
    ticks = 2 + context - node  # a chord's ends are whole numbers of ticks, and so is what a token adds to them
    assert abs(ours - formula) <= most * formula + ticks * TICK_S


@given(values=rate_values(), contexts=BATCHES, tokens=st.integers(1, 4096), past=st.integers(0, 2**16))
def test_a_mixed_iteration_is_the_formula(values: dict[str, float], contexts: list[int], tokens: int, past: int) -> None:
    rates = Rates(**values)
    chunks = [(tokens, past + tokens, True)]
    total = sum(contexts)
    ours = StepTime(QWEN_7B, Precision(), rates).mixed(len(contexts), total, 0, total, chunks)
    assert ours == to_ticks(formula_s(QWEN_7B, rates, contexts, chunks))


@pytest.mark.parametrize("model", [QWEN_7B, LATENT, HYBRID_MOE], ids=["attention", "latent", "hybrid"])
@given(data=st.data(), values=rate_values())
def test_stages_add_up_to_the_formula_bit_for_bit(model: ModelSpec, data: st.DataObject, values: dict[str, float]) -> None:
    shape, rates = data.draw(mixed_shapes(model)), Rates(**values)
    steps = StepTime(model, Precision(), rates)
    rows = steps.rows(shape.decode_seqs + shape.prefill_tokens + shape.padding)
    staged = staged_s(steps.given[0], shape, rates, steps.policy, rows, steps.head(shape.sampled))
    assert staged == step_time_s(steps.work(shape), rates)


@given(batch=st.integers(1, 300), mean=st.integers(1, 5000), values=rate_values())
def test_a_stretch_is_its_iterations_one_by_one(batch: int, mean: int, values: dict[str, float]) -> None:
    steps = StepTime(QWEN_7B, Precision(), Rates(**values))
    whole = steps.stretch(batch, batch * mean)
    count = min(whole.most, 40)
    each = [steps.stretch(batch, batch * (mean + i)).first for i in range(count)]
    assert [elapsed(whole.first, whole.increment, n) for n in range(count + 1)] == [sum(each[:n]) for n in range(count + 1)]
    assert whole.most >= 1


def test_jumps_only_where_the_price_depends_on_the_summed_context_alone() -> None:
    def jumps(model: ModelSpec, **policy: object) -> bool:
        return StepTime(model, Precision(), Rates(*[1.0] * len(UNITS)), **policy).jumps  # type: ignore[arg-type]

    assert jumps(QWEN_7B)
    assert jumps(HYBRID_MOE)
    assert not jumps(SLIDING)
    assert not jumps(QWEN_7B, policy=pages(8))
    assert not jumps(QWEN_7B, policy=dense("host"))


@given(
    contexts=st.lists(st.integers(1, 5000), max_size=40),
    chunks=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 500), st.booleans()), max_size=5),
    size=st.integers(1, 512),
)
def test_micro_batches_hold_the_same_work(contexts: list[int], chunks: list[tuple[int, int, bool]], size: int) -> None:
    whole = [(n, n + past, samples) for n, past, samples in chunks]
    parts = micro_batches(contexts, whole, size)
    assert [len(c) + sum(n for n, _, _ in p) for c, p in parts[:-1]] == [size] * (len(parts) - 1)
    assert [c for part, _ in parts for c in part] == contexts
    together = mixed_batch(QWEN_7B, contexts, whole)
    apart = [mixed_batch(QWEN_7B, c, p) for c, p in parts]
    for name in ("prefill_tokens", "prefill_pairs", "sampled", "decode_context"):
        assert sum(getattr(shape, name) for shape in apart) == getattr(together, name)


@given(
    contexts=st.lists(st.integers(1, 5000), max_size=40),
    chunks=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 500), st.booleans()), max_size=5),
    size=st.integers(1, 512),
    slots=st.permutations(range(60)) | st.none(),
)
def test_equal_micro_batches_hold_the_same_work_in_equal_shares(
    contexts: list[int], chunks: list[tuple[int, int, bool]], size: int, slots: list[int] | None
) -> None:
    whole = [(n, n + past, int(samples)) for n, past, samples in chunks]
    places = [*sorted(slots[: len(contexts)]), *sorted(slots[45 : 45 + len(chunks)])] if slots else []
    parts = equal_micro_batches(contexts, whole, size, places)
    for part_contexts, part in parts:
        shares = {n for n, _, _ in part} | ({1} if part_contexts else set())
        assert len(shares) == 1
        assert len(part_contexts) + sum(n for n, _, _ in part) <= max(size, 1)
    assert sorted(c for part, _ in parts for c in part) == sorted(contexts)
    together = mixed_batch(QWEN_7B, contexts, whole)
    apart = [mixed_batch(QWEN_7B, c, p) for c, p in parts]
    for name in ("prefill_tokens", "prefill_pairs", "sampled", "decode_context"):
        assert sum(getattr(shape, name) for shape in apart) == getattr(together, name)


def test_a_micro_batch_with_streams_holds_consecutive_slots() -> None:
    # slots 3, 4 and 9 decode; 5 and 6 have prompts
    parts = equal_micro_batches([10, 20, 30], [(3, 3, 1), (3, 3, 1)], 512, [3, 4, 9, 5, 6])
    assert parts == [([10, 20], [(1, 1, 0), (1, 1, 0)]), ([30], []), ([], [(2, 3, 1), (2, 3, 1)])]
    assert equal_micro_batches([10, 20, 30], [(3, 3, 1), (3, 3, 1)], 512)[0] == ([10, 20, 30], [(1, 1, 0), (1, 1, 0)])


def test_one_decode_beside_prompts_costs_a_batch_of_one_token_of_everybody() -> None:
    prompts = [(100, 100, 1)] * 4
    assert [sum(n for n, _, _ in part) for _, part in equal_micro_batches([], prompts, 512)] == [400]
    assert [(len(c), sum(n for n, _, _ in part)) for c, part in equal_micro_batches([7], prompts, 512)] == [(1, 4), (0, 396)]
