"""Drawn agent sessions have the counts, lengths, gaps and reuse that their defaults were fitted to, and really share their prefixes."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from sim import Deployment, Workload, load_rates
from sim.errors import UsageError
from sim.rates.serving import as_served
from sim.study.simulate import Study, run_study
from sim.workload.agent_sessions import AgentSessions, draw_sessions
from sim.workload.content import Grown, SystemPrompt
from sim.workload.sources import TraceSource

SEEDS = 200
BLOCK = 16


@pytest.fixture(scope="module")
def drawn():
    return [draw_sessions(AgentSessions(), np.random.default_rng(seed)) for seed in range(SEEDS)]


@pytest.fixture(scope="module")
def calls(drawn):
    """All calls of all draws: prompt, output and think columns."""
    return {
        name: np.concatenate([getattr(trace, name) for trace in drawn]) for name in ("prompt_tokens", "output_tokens", "think_s", "turns")
    }


def test_a_draw_has_274_sessions_in_600_seconds_and_1214_requests_in_expectation(drawn):
    assert {len(set(trace.session_ids)) for trace in drawn} == {274}
    assert np.mean([np.nanmax(trace.arrival_s) for trace in drawn]) == pytest.approx(600, rel=0.02)
    assert np.mean([len(trace) for trace in drawn]) == pytest.approx(1214, rel=0.02)


def test_most_sessions_are_short_and_a_few_have_twenty_turns_and_more(drawn):
    turns = np.array([count for trace in drawn for count in Counter(trace.session_ids).values()])
    assert np.median(turns) in (2, 3)
    assert 0.01 < np.mean(turns >= 22) < 0.03  # published: one of the sessions of one worker in eight
    assert 0.03 < np.mean(turns >= 15) < 0.06  # three of them


def test_most_prompts_are_short_and_one_in_twelve_has_100k_tokens(calls):
    prompts = calls["prompt_tokens"]
    assert np.median(prompts) < 30_000
    assert np.mean(prompts >= 100_000) == pytest.approx(0.086, abs=0.01)
    assert (prompts + calls["output_tokens"]).max() <= 200_000


def test_prompts_of_long_sessions_pass_130k_tokens_after_ten_turns(calls):
    assert np.mean(calls["prompt_tokens"] >= 130_000) > 0.02
    assert np.mean(calls["turns"][calls["prompt_tokens"] >= 130_000] >= 9) > 0.5


def test_outputs_and_gaps_have_their_means(calls):
    later = calls["turns"] > 0
    assert calls["output_tokens"].mean() == pytest.approx(180, rel=0.02)
    assert np.median(calls["output_tokens"]) == pytest.approx(180 * math.exp(-0.5), rel=0.02)
    assert calls["think_s"][later].mean() == pytest.approx(5.3, rel=0.02)
    assert calls["think_s"][~later].max() == 0.0


def test_three_fifths_of_the_later_turns_repeat_only_a_part_of_their_context(drawn):
    shares = []
    for trace in drawn[:20]:
        for i in range(1, len(trace)):
            if trace.turns[i] and trace.prompt_tokens[i] > trace.prompt_tokens[i - 1]:
                context = trace.prompt_tokens[i - 1] + trace.output_tokens[i - 1]
                shares.append((trace.contents[i].shared_tokens - 5200) / (context - 5200))
    edited = np.array([share for share in shares if share < 1])
    assert len(edited) / len(shares) == pytest.approx(0.6, abs=0.02)
    assert edited.mean() == pytest.approx(1 / 3, abs=0.01)


def test_the_blocks_that_turns_are_said_to_share_are_the_ones_that_they_share():
    trace = draw_sessions(AgentSessions(num_sessions=40), np.random.default_rng(3))
    source = TraceSource(trace, BLOCK)
    names = {}
    for request in source.arrivals():
        following = request
        while following is not None:
            names[following.session_id, following.turn] = following.prompt_hashes
            following = next(iter(source.after(following, following.arrival_s)), None)
    first = [each for (_, turn), each in names.items() if turn == 0]
    assert {shared(a, b) for a, b in pairwise(first)} == {5200 // BLOCK}  # the system prompt, and no more
    for i, (session, turn) in enumerate(zip(trace.session_ids, trace.turns, strict=True)):
        if turn:
            kept = min(trace.contents[i].shared_tokens // BLOCK, len(names[session, turn - 1]))
            assert shared(names[session, turn - 1], names[session, turn]) == kept >= 5200 // BLOCK


def shared(first, second):
    """How many leading blocks two requests have in common."""
    return next((depth for depth, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second)))


def test_a_turn_is_sent_after_the_answer_to_the_one_before_and_a_gap():
    trace = draw_sessions(AgentSessions(num_sessions=5, turns=4), np.random.default_rng(1))
    source = TraceSource(trace, BLOCK)
    request = next(r for r in source.arrivals() if source.after(r, 0.0))
    row = trace.request_ids.index(request.request_id)
    again = TraceSource(trace, BLOCK)
    request = next(r for r in again.arrivals() if r.request_id == request.request_id)
    assert again.after(request, 1000.0)[0].arrival_s == 1000.0 + trace.think_s[row + 1] > 1000.0


def test_a_session_that_would_outgrow_its_context_goes_on_with_a_short_one():
    spec = AgentSessions(num_sessions=1, turns=400, opening_tokens=500, input_tokens=900, prefix_tokens=100, most_tokens=8000)
    trace = draw_sessions(spec, np.random.default_rng(0))
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 8000
    restarts = [i for i in range(1, len(trace)) if trace.prompt_tokens[i] == trace.prompt_tokens[0]]
    assert len(restarts) > 10
    assert all(trace.contents[i] == Grown(100) for i in restarts)
    assert trace.contents[0] == SystemPrompt("agent", 100)


def test_the_same_seed_gives_the_same_sessions_and_another_draw_others():
    first, again, other = (Workload.agents(20, seed=seed) for seed in (1, 1, 2))
    assert first.trace.prompt_tokens.tolist() == again.trace.prompt_tokens.tolist() != other.trace.prompt_tokens.tolist()
    assert first.redraw(0).prompt_tokens.tolist() == again.redraw(0).prompt_tokens.tolist() != first.redraw(1).prompt_tokens.tolist()
    assert first.origin["agent_sessions"] == 20


def test_contexts_end_where_the_engine_does():
    assert Workload.agents(50, most_tokens=20_000).trace.prompt_tokens.max() < 20_000
    assert Workload.agents(50, most_tokens=10**6).trace.prompt_tokens.max() < 200_000


def test_on_eight_h100s_half_of_the_prompt_tokens_are_in_cache_and_most_turns_are_fast(drawn):
    """Published: hit rate 0.505 on one worker; median TTFT 520 ms and E2E 1,761 ms."""
    limits = {"kv_dtype": "fp8", "max_model_len": 200_000}  # a KV cache of 200,000 tokens does not fit beside the weights in 16 bits
    deployment = Deployment.of(
        "Qwen3-Coder-30B-A3B", "H100", replicas=8, router="unified", router_options={"overload_factor": 2.0}, **limits
    )
    rates, host = as_served(load_rates(deployment, draws=1))
    studies = [Study(deployment, Workload(trace), rates, host) for trace in drawn[:2]]
    figures = [run_study(study, draws=0, keep_iterations=False).summary for study in studies]
    assert np.mean([each["prefix_cache_hit_rate"] for each in figures]) == pytest.approx(0.505, abs=0.05)
    assert np.mean([each["median_ttft_ms"] for each in figures]) == pytest.approx(520, rel=0.4)
    assert np.mean([each["median_e2el_ms"] for each in figures]) == pytest.approx(1761, rel=0.3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_sessions": 0}, "at least one session"),
        ({"turns": 0.5}, "at least one session and one turn"),
        ({"turns": math.nan}, "at least one session and one turn"),
        ({"num_sessions": 10**6, "turns": 100.0}, "at most 10,000,000 calls"),
        ({"input_tokens": 0}, "must be at least 1"),
        ({"prefix_tokens": -1}, "not negative"),
        ({"opening_tokens": 2**40}, "at most 2\\*\\*32"),
        ({"prefix_tokens": 100_000}, "leaves agents no room"),
        ({"edited_share": 1.01}, "must lie in 0..1"),
        ({"edited_share": math.nan}, "must lie in 0..1"),
        ({"think_s": -1.0}, "think time"),
        ({"think_s": math.inf}, "think time"),
        ({"rate_per_s": 0.0}, "request rate must be positive"),
        ({"burstiness": 0.0}, "burstiness must be positive"),
    ],
)
def test_bad_numbers_are_named(wrong, message):
    with pytest.raises(UsageError, match=message):
        draw_sessions(AgentSessions(**wrong), np.random.default_rng(0))
