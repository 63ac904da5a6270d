"""What is recommended serves as many tokens per second as any batch of the question, or smaller, that fits without losing anything."""

import numpy as np
import pytest

from sim import Deployment, WhatIf
from sim.closed_form.prefill import prefill_s
from sim.closed_form.what_if import step_seconds
from sim.cost.batch import mixed_batch
from sim.cost.step_time import step_time_s
from sim.deployment.memory import n_max
from sim.specs.attention_policy import dense
from tests.cli import run
from tests.examples import examples

MODELS = ("Qwen2.5-7B-1M", "Qwen2.5-14B", "Llama-3.1-8B", "Qwen3-8B", "Gemma-3-12B", "Qwen3-Next-80B-A3B")
GPUS = ("A10", "L4", "L40S", "RTX-4090", "RTX-5090", "A100-80G", "H100", "H200", "B200", "GB10")


def test_of_drawn_questions():
    rng = np.random.default_rng(48)
    for _ in range(examples(60)):
        model, gpu = rng.choice(MODELS), rng.choice(GPUS)
        context, batch = int(2 ** rng.uniform(13, 21)), int(2 ** rng.uniform(0, 6))
        ks = tuple(sorted({int(k) for k in rng.choice([8, 16, 32, 64], 2)}))
        question = WhatIf(Deployment.of(str(model), str(gpu)), context, (batch,), ks, draws=20).settled()
        rates = question.rates()
        best = question.answer(rates).ways[batch]
        fit = min(batch, int(min(n_max(question.deployment.memory(), question.deployment.request_bytes(context, dense())[0]), batch)))
        served = [b / step_seconds(question, dense(), float(b), float(context), rates.point) for b in range(1, fit + 1)]
        assert not served or best[0].total >= max(served) * (1 - 1e-9), (model, gpu, context, batch, ks)


def test_a_setting_that_costs_nothing_comes_before_a_method_that_loses():
    """1M tokens on an H100: dense fits with a larger --gpu-memory-utilization, and is what selection is compared with."""
    answer = WhatIf(Deployment.of("Qwen2.5-7B-1M", "H100"), 2**20, draws=50).answer()
    lossless = next(way for way in answer.ways[1] if way.lossless)
    option, share = lossless.set.split()
    assert option == "--gpu-memory-utilization"
    assert lossless.set in answer.recommendation[0]
    assert answer.ways[1][0].total / lossless.total < 5
    for less, fits in ((0.0, True), (0.01, False)):
        raised = Deployment.of("Qwen2.5-7B-1M", "H100", gpu_memory_utilization=float(share) - less)
        assert next(o for o in WhatIf(raised, 2**20, draws=20).answer().options if o.policy == dense()).feasible is fits


def test_what_would_hold_the_whole_batch_is_named():
    text = run("what-if", "--ctx", "256K", "--gpu", "H100", "--batch", "16", "--model", "Gemma-3-12B").stdout
    assert "All 16 fit at once with --tp" in " ".join(text.split())


@pytest.mark.parametrize("context", [5000, 100_000])
def test_prefill_is_the_sum_over_its_chunks(context):
    question = WhatIf(Deployment.of("Llama-3.1-8B", "H100"), context, draws=20, stack="vllm")
    rates, d = question.rates(), question.deployment
    budget, total = d.batch_limits()[1], 0.0
    for start in range(0, context, budget):
        end = min(start + budget, context)
        shape = mixed_batch(d.model, (), [(float(end - start), float(end), float(end == context))])
        total += float(step_time_s(d.work(shape, dense()), rates.point))
    assert prefill_s(d, context, rates).point == pytest.approx(total, rel=1e-9)
