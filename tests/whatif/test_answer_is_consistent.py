"""Whatever is asked, the answer agrees with itself: intervals bracket, feasibility follows the bytes, same seed gives the same answer."""

import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Deployment, load_rates
from sim.closed_form.knee import eta
from sim.closed_form.what_if import WhatIf, answer
from sim.cost.step_time import NAMES, Terms
from sim.rates.stack_rates import beyond
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from tests.cli import run
from tests.examples import examples

MODELS = ["Qwen2.5-7B-1M", "Llama-3.1-8B", "Gemma-3-12B", "Qwen3-Next-80B-A3B", "DeepSeek-V3"]
GPUS = ["A10", "H100", "H200", "GB10", "T4", "MI300X"]


@settings(max_examples=examples(60))
@given(
    model=st.sampled_from(MODELS),
    gpu=st.sampled_from(GPUS),
    context=st.integers(1, 2**22),
    batch=st.integers(1, 256),
    k=st.integers(1, 64),
    asked=st.sampled_from([None, "vllm", "kernels", "published-harness"]),
)
def test_answer_holds_together(model, gpu, context, batch, k, asked):
    deployment = Deployment.of(model, gpu)
    stack = None if asked and beyond(deployment, asked) else asked
    question = WhatIf(deployment, context, (batch,), (min(k, -(-context // 128)),), draws=60, stack=stack)
    result = question.answer()
    assert len(result.options) == 8
    assert len(result.recommendation) == 1
    for option in result.options:
        assert 0 < option.step_s.low <= option.step_s.high
        assert option.step_s.point == pytest.approx(sum(option.terms_s.values()), rel=1e-9)
        assert option.terms_s[option.binding] == max(option.terms_s.values())
        if option.feasible:
            assert option.hbm_bytes <= result.memory.allowed
            assert option.n_max >= batch or option.n_max == pytest.approx(batch)
            assert option.reason == ""
        else:
            assert option.reason
    feasible_dense = [o for o in result.options if o.policy.kind == "dense" and o.feasible]
    if feasible_dense:
        best = min(feasible_dense, key=lambda o: o.step_s.point)
        assert best.speedup.point == 1.0
        assert best.speedup.low == best.speedup.high == 1.0


def test_same_seed_same_answer_and_another_seed_another_interval():
    first, again, other = (run("what-if", "--ctx", "128K", "--gpu", "L40S", "--json", "--seed", s).stdout for s in ("3", "3", "4"))
    assert first == again
    a, b = json.loads(first)["options"][0], json.loads(other)["options"][0]
    assert a["step_s"]["point"] == b["step_s"]["point"]
    assert a["step_s"]["low"] != b["step_s"]["low"]


def test_knee_of_the_formula_lies_beyond_the_two_term_one():
    """Fixed cost is amortised by batching, so leaving it out finds the knee too early."""
    question = WhatIf(Deployment(get_model("Qwen2.5-14B"), get_gpu("H100")), 8192)
    result = answer(question, load_rates(question.deployment, draws=50))
    assert not result.knee.censored
    assert result.knee.batch > result.knee_closed_form
    assert eta(1, 0.1) == 1.0


def test_leave_it_off_at_8k_batch_1_on_h100():
    text = " ".join(run("what-if", "--ctx", "8K", "--gpu", "H100", "--k", "8", "--stack", "published-harness").stdout.split())
    assert "Leave sparse attention off" in text
    # published: 0.84x
    printed = float(re.search(r"would run at ([0-9.]+)x of that", text)[1])
    assert round(abs(printed - 0.84), 9) <= 0.02


def test_the_interval_splits_into_rates_and_what_the_formula_misses():
    from sim.rates.posterior import best_posterior, rates_from_file

    gpu = get_gpu("H100")
    question = WhatIf(Deployment(get_model("Llama-3.1-8B"), gpu), 32768, (1, 8), (8,))
    everywhere = load_rates(question.deployment, draws=4000)
    whole = everywhere.at_median_host()
    alone = rates_from_file(best_posterior(gpu), gpu, draws=4000, model_error=False)
    for with_error, without in zip(answer(question, whole).options, answer(question, alone).options, strict=True):
        assert with_error.step_s_rates.low == pytest.approx(without.step_s.low, rel=1e-9)
        assert with_error.step_s_rates.high == pytest.approx(without.step_s.high, rel=1e-9)
        both, rates, residual = (
            math.log(i.high / i.low) for i in (with_error.step_s, with_error.step_s_rates, answer(question, whole).residual)
        )
        # independent of each other, and near normal: off by up to 3 % with these draws, as with four times as many
        assert both == pytest.approx(math.hypot(rates, residual), rel=0.04)
        assert with_error.speedup == without.speedup or with_error.speedup.low == pytest.approx(without.speedup.low)
    for any_host, middle in zip(answer(question, everywhere).options, answer(question, whole).options, strict=True):
        # what hosts differ by belongs to the rates: it is no property of one run that a ratio would lose
        if any_host.policy.placement == "hbm":
            assert any_host.step_s_rates.high / any_host.step_s_rates.low > middle.step_s_rates.high / middle.step_s_rates.low


def test_knee_crossover_and_capacity_have_intervals_that_hold_their_points():
    question = WhatIf(Deployment(get_model("Qwen2.5-7B-1M"), get_gpu("H100")), 65536, (1, 16), (8,), draws=200)
    result = question.answer()
    assert set(result.crossovers) == {(8, 1), (8, 16)}
    low, high = result.knee_90
    assert low.batch <= result.knee.batch <= high.batch
    for key, context in result.crossovers.items():
        low, high = result.crossovers_90[key]
        assert low <= context <= high
    dense = next(o for o in result.options if o.policy.label.startswith("dense") and o.policy.placement == "hbm")
    assert result.n_max_90[0] < dense.n_max < result.n_max_90[1]


def test_brackets_are_explained_in_words_and_context_counts_are_rounded():
    text = run("what-if", "--ctx", "8K", "--gpu", "H100", "--batch", "1,32", "--k", "8,32", "--explain").stdout
    flat = " ".join(text.split())
    widest = re.search(r"steps within ([0-9.]+)(?: to [0-9.]+)? %\. .* One run differs from the formula by [0-9.]+ % more", flat)
    assert widest
    assert float(widest[1]) < 5
    assert re.search(r"Selected blocks beat dense, both in HBM, at batch 1: top 8 from about [\d.]+K tokens \[[\d.]+K-[\d.]+K\]", flat)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("context", "batch"), [(8192, 32), (32768, 8), (131072, 1), (2**20, 1)])
def test_what_is_recommended_is_faster_than_dense(context, batch):
    question = WhatIf(Deployment(get_model("Qwen2.5-7B-1M"), get_gpu("H100")), context, (batch,), (8, 32), draws=60)
    said = question.answer().recommendation[0]
    assert "turn sparse attention on" in said
    assert float(re.search(r"(?:per sequence|in all), ([\d.]+)x", said)[1]) > 1


def test_whatever_term_binds_has_a_word_in_the_table():
    assert len(set(NAMES)) == len(Terms._fields)
    code, out, err = run("what-if", "--model", "Qwen3-30B-A3B", "--gpu", "H200", "-tp", "4", "--ctx", "8K", "--sparse")
    assert (code, err) == (0, "")
    assert any(line.startswith("dense") and line.endswith("small kernels") for line in out.splitlines())
