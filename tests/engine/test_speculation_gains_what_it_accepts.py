"""Speculative decoding: tokens per verification follow the acceptance, rows are priced as rows, and the slow paths
stay slow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sim.cost.batch import decode_batch
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.rows.drafts import luck as draw
from sim.engine.rows.made import luck_of
from sim.engine.schedulers import VllmScheduler
from sim.engine.speculative import Speculation
from sim.engine.step_clock import StepTime
from sim.errors import UsageError
from sim.specs.precision import Precision
from sim.ticks import TICK_S
from studies.replication.gb10_runs import table
from tests.price.shapes import QWEN_7B, plausible_rates
from tests.runs import serve

RATES = plausible_rates()
COST = IterationCost(QWEN_7B, Precision(), RATES)


def run(options: dict[str, float], cost: IterationCost = COST, count: int = 8, output: int = 400):
    config = EngineConfig(max_model_len=4096, options=options)
    requests = [Request(str(i), 0.0, 64, output) for i in range(count)]
    return serve(requests, VllmScheduler(config), lambda iteration: cost(iteration).ticks), requests


def expected_tokens(drafts: Speculation) -> float:
    """Tokens gained per verification, the sampled one included."""
    return 1.0 + float(np.cumprod([drafts.position_probability(i) for i in range(drafts.draft_tokens)]).sum())


@pytest.mark.parametrize(("k", "acceptance", "decay"), [(3, 0.8, 1.0), (5, 0.6, 0.9), (1, 0.5, 1.0), (4, 0.0, 1.0), (4, 1.0, 1.0)])
def test_tokens_per_verification_follow_the_acceptance(k: int, acceptance: float, decay: float) -> None:
    options = {"draft_tokens": k, "acceptance": acceptance, "acceptance_decay": decay}
    expected = expected_tokens(Speculation.of(EngineConfig(options=options)))
    gained = []
    for seed in range(20):
        record, requests = run(options | {"seed": seed}, count=1, output=500)
        assert requests[0].generated_tokens == 500
        gained.append(499 / (len(record.iterations["start_s"]) - 1))
    mean, error = float(np.mean(gained)), float(np.std(gained, ddof=1) / np.sqrt(len(gained)))
    # the last verification may be cut by the end of the request: at most k of 500 tokens
    assert abs(mean - expected) < 3.2 * error + expected * k / 500


def test_acceptance_by_position_is_what_engines_log() -> None:
    # three draft tokens as the GB10 reference counted them (Phase 62): 3.33 tokens per verification
    row = next(row for row in table("mtp_counters.csv") if row["acc_rate_pos1"])
    shares = [float(row[f"acc_rate_pos{position}"]) for position in (1, 2, 3)]
    options = {"draft_tokens": 3, "acceptance_per_position": ",".join(map(str, shares))}
    drafts = Speculation.of(EngineConfig(options=options))
    assert expected_tokens(drafts) == pytest.approx(float(row["mean_acceptance_len"]), abs=0.01)
    chances = [drafts.position_probability(position) for position in range(3)]
    luck = [next((p for p in range(3) if draw(0, key, key, p) >= chances[p]), 3) for key in luck_of(map(str, range(4000)))]
    for position, share in enumerate(shares):
        assert np.mean([kept > position for kept in luck]) == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5)


@pytest.mark.parametrize("shares", ["0.5", "0.5,0.6", "1.2,0.5", "0.5,-0.1", "a,b", "0.5,nan"])
def test_acceptance_by_position_that_cannot_be_is_refused(shares: str) -> None:
    with pytest.raises(UsageError, match="acceptance_per_position"):
        Speculation.of(EngineConfig(options={"draft_tokens": 2, "acceptance_per_position": shares}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drafter": "oracle"}, "unknown drafter 'oracle'; known: ngram, draft_model, eagle, eagle3"),
        ({"drafter": "eagle", "host_blocks": 10}, "drafter=eagle with KV in host RAM is not modelled"),
    ],
)
def test_drafters_that_are_not_modelled_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Speculation.of(EngineConfig(options={"draft_tokens": 2, **options}))


@pytest.mark.parametrize(
    ("drafter", "version", "rows", "blocks", "hits"),
    [
        ("ngram", "0.33", 48, 4, 48),
        ("draft_model", "0.33", 47, 5, 48),
        ("eagle", "0.33", 48, 5, 48),
        ("eagle", "0.32", 48, 5, 32),
    ],
)
def test_drafters_take_kv_slots_budget_and_hits(drafter: str, version: str, rows: int, blocks: int, hits: int) -> None:
    """A budget of 48 tokens; blocks of a prompt of 62 tokens; its hits, asked again."""
    config = EngineConfig(
        max_num_batched_tokens=48, max_num_seqs=4, engine_version=version, options={"draft_tokens": 3, "drafter": drafter}
    )
    scheduler = VllmScheduler(config)
    scheduler.add(Request("first", 0.0, 62, 1, prompt_hashes=[1, 2, 3]))
    first = scheduler.schedule()
    assert first.total_tokens == rows
    scheduler.complete(first)
    second = scheduler.schedule()
    ((request, _),) = second.scheduled
    assert scheduler.blocks_held(request) == blocks
    scheduler.complete(second)
    again = Request("again", 0.0, 62, 1, prompt_hashes=[1, 2, 3])
    scheduler.add(again)
    scheduler.schedule()
    assert again.cached_tokens == hits


def test_lost_graphs_launch_every_kernel_of_a_verification_and_of_nothing_else() -> None:
    lost = IterationCost(QWEN_7B, Precision(), RATES, graph_reuse=False)
    verifying = Iteration([(Request("r", 0.0, 100, 50, computed_tokens=109, generated_tokens=10), 4)])
    plain = Iteration([(Request("r", 0.0, 100, 50, computed_tokens=109, generated_tokens=10), 1)])
    assert lost(plain) == COST(plain)
    (shape,) = lost.batches(verifying)
    assert (shape.eager, shape.padding) == (1.0, 0.0)
    launching_s = QWEN_7B.layers * RATES.launch_layer_s
    longer_s = (lost(verifying).ticks - COST(verifying).ticks) * TICK_S
    # what launching takes shows as far as it outlasts the GPU
    assert 0.0 < longer_s < launching_s


def test_without_drafts_nothing_changes() -> None:
    drafted, plain = run({"draft_tokens": 0})[0], run({})[0]
    np.testing.assert_array_equal(drafted.requests["finish_s"], plain.requests["finish_s"])


def test_good_drafts_pay_at_a_small_batch_and_bad_ones_cost() -> None:
    plain = run({})[0].requests["finish_s"].max()
    good = run({"draft_tokens": 3, "acceptance": 0.8})[0].requests["finish_s"].max()
    bad = run({"draft_tokens": 3, "acceptance": 0.0})[0].requests["finish_s"].max()
    assert good < 0.5 * plain
    assert bad > plain


def test_a_verification_is_priced_as_rows_of_one_pass_without_prefill_cost() -> None:
    request = Request("r", 0.0, 100, 50, computed_tokens=109, generated_tokens=10)
    cost = IterationCost(QWEN_7B, Precision(), replace(RATES, launch_layer_s=1e-9))  # a verification is one graph, prefill is in pieces
    (shape,) = cost.batches(Iteration([(request, 4)]))
    assert (shape.decode_seqs, shape.prefill_tokens, shape.sampled, shape.has_prefill) == (0.0, 4.0, 4.0, 0.0)
    verified = cost(Iteration([(request, 4)])).ticks * TICK_S
    prefill = cost(Iteration([(Request("r", 0.0, 113, 50, computed_tokens=109), 4)])).ticks * TICK_S
    head_s = 3 * 2 * QWEN_7B.lm_head_params / RATES.linear_flops_per_s
    assert prefill - verified == pytest.approx(RATES.c_prefill_s, abs=head_s)


def test_drafting_and_lost_graphs_are_charged_per_verification() -> None:
    request = Request("r", 0.0, 100, 50, computed_tokens=109, generated_tokens=10)
    iteration = Iteration([(request, 4)])
    slow = IterationCost(QWEN_7B, Precision(), RATES, verify_s=0.002, verify_seq_s=0.001)
    assert slow(iteration).ticks * TICK_S == pytest.approx(COST(iteration).ticks * TICK_S + 0.003)
    small = StepTime(replace(QWEN_7B, groups=(replace(QWEN_7B.groups[0], count=2),)), Precision(), RATES)
    drafted = IterationCost(QWEN_7B, Precision(), RATES, draft=small)
    one_draft_s = small.priced(decode_batch(small.model, 1.0, 109.0)) * TICK_S
    assert drafted(iteration).ticks * TICK_S == pytest.approx(COST(iteration).ticks * TICK_S + 3 * one_draft_s, rel=1e-6)


@pytest.mark.parametrize("options", [{"drafts": 1}, {"draft_tokens": -1}, {"draft_tokens": 100}, {"acceptance": 1.5}])
def test_absurd_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"drafts|draft_tokens|acceptance"):
        VllmScheduler(EngineConfig(options=options))
