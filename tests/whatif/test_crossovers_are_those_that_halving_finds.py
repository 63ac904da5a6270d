"""The contexts at which selection meets dense attention, at each draw, are those that halving the range finds."""

import numpy as np
import pytest

from sim import Deployment, WhatIf
from sim.closed_form.what_if import MAX_CROSSOVER, apart, step_seconds
from sim.specs.attention_policy import blocks, dense


@pytest.mark.parametrize(
    ("model", "gpu", "batch", "k"), [("Qwen3-8B", "A10", 1, 8), ("Llama-3.1-8B", "H100", 8, 32), ("Qwen3-8B", "L4", 8, 128)]
)
def test_to_the_last_bit(model, gpu, batch, k):
    question = WhatIf(Deployment.of(model, gpu), 2**20, (batch,), (k,), draws=200, stack="kernels")
    draws = (known := question.rates()).draws
    low, high = np.ones(200), np.full(200, float(MAX_CROSSOVER))
    for _ in range(24):
        middle = (low + high) / 2
        times = [step_seconds(question, policy, float(batch), middle, draws, np) for policy in (dense(), question.runner.policy(blocks(k)))]
        beyond = apart(question, known) * times[0] >= times[1]
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    assert question.answer(known).crossovers_90[k, batch] == pytest.approx(np.quantile(high, (0.05, 0.95)), rel=1e-15)
