"""Agents may be of several kinds, send subagents that their next turn waits for, and sum their context up at a limit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from sim import Workload
from sim.errors import UsageError
from sim.workload.agent_sessions import SUMMARY_TOKENS, TURNS, AgentMixture, AgentSessions, draw_sessions
from sim.workload.content import Grown
from sim.workload.redraw import Redraw
from sim.workload.sources import TraceSource

KINDS = "- {share: 0.6, opening-len: 7000, opening-cv: 0.3}\n- {share: 0.4, opening-len: 98000, opening-cv: 0.03, turns: 12}\n"
SMALL = AgentSessions(num_sessions=150, opening_tokens=500, input_tokens=300, output_tokens=40, prefix_tokens=100, most_tokens=30_000)


def drawn(spec, seed=0):
    return draw_sessions(spec, np.random.default_rng(seed))


def test_first_prompts_of_two_kinds_have_two_peaks_with_their_shares(tmp_path):
    (tmp_path / "kinds.yaml").write_text(KINDS)
    trace = Workload.agents(2000, kinds=tmp_path / "kinds.yaml", most_tokens=131_072).trace
    first = trace.prompt_tokens[np.array(trace.turns) == 0] - 5200
    long = (first > 85_000) & (first < 112_000)
    assert np.mean(long) == pytest.approx(0.4, abs=0.04)
    assert np.mean(first < 25_000) == pytest.approx(0.6, abs=0.04)
    assert np.mean(first[first < 25_000]) == pytest.approx(7000, rel=0.03)
    turns = Counter(trace.session_ids)
    sessions = [name for name, turn in zip(trace.session_ids, trace.turns, strict=True) if turn == 0]
    assert np.mean([turns[name] for name, those in zip(sessions, long, strict=True) if those]) == pytest.approx(12, rel=0.15)


def test_kinds_share_no_system_prompt(tmp_path):
    trace = Workload.agents(40, kinds=[{"share": 1, "opening-len": 90}, {"share": 1, "opening-len": 95}]).trace
    assert len({content.group for content in trace.contents if not isinstance(content, Grown)}) == 2


def test_a_turn_waits_for_all_its_subagents_and_they_for_the_turn_before():
    trace = drawn(replace(SMALL, subagents=1.5))
    row = {name: i for i, name in enumerate(trace.request_ids)}
    crowds = [len(after) for after, turn in zip(trace.after, trace.turns, strict=True) if turn and after]
    assert max(crowds) >= 4  # they come in crowds
    for i, after in enumerate(trace.after):
        if trace.turns[i] and after:  # a join: the last calls of subagents of this very turn
            names = {trace.session_ids[row[each]] for each in after}
            assert names == {f"{trace.session_ids[i]}/{trace.turns[i]}.{n}" for n in range(len(after))}
        elif after:  # a subagent's first call, after the turn before the one that waits for it
            assert trace.session_ids[i].partition("/")[0] == trace.session_ids[row[after[0]]]
    assert len(trace) / 150 == pytest.approx(replace(SMALL, subagents=1.5).calls, rel=0.25)


def test_every_call_of_a_crowd_is_sent_once_all_answers_are_there():
    trace = drawn(replace(SMALL, num_sessions=20, subagents=2.0))
    source, due = TraceSource(trace, 16), []
    due.extend(source.arrivals())
    done = {}
    while due:
        request = due.pop(0)
        done[request.request_id] = len(done)
        due.extend(source.after(request, 1.0))
    assert len(done) == len(trace)
    for name, after in zip(trace.request_ids, trace.after, strict=True):
        assert all(done[each] < done[name] for each in after)


def test_a_session_at_its_limit_sends_its_context_once_more_and_goes_on_with_the_summary():
    spec = replace(SMALL, turns=40.0, compact_at=8000)
    trace = drawn(spec)
    sums = [i for i in range(1, len(trace)) if trace.turns[i] and trace.output_tokens[i] == SUMMARY_TOKENS]
    assert len(sums) > 100
    assert (trace.prompt_tokens + trace.output_tokens).max() <= 8000 + SUMMARY_TOKENS
    for i in sums:
        context = trace.prompt_tokens[i - 1] + trace.output_tokens[i - 1]
        assert (trace.prompt_tokens[i], trace.contents[i], trace.think_s[i]) == (context, Grown(context), 0.0)
        assert trace.contents[i + 1] == Grown(100)
        assert 100 + SUMMARY_TOKENS < trace.prompt_tokens[i + 1] <= 8000
    others = np.delete(np.arange(len(trace)), sums)
    assert (trace.prompt_tokens + trace.output_tokens)[others].max() <= 8000


def test_giant_sessions_reach_the_context_of_the_engine():
    trace = Workload.agents(20, turns=200, input_len=20_000, compact_at=900_000, most_tokens=2**20).trace
    assert 800_000 < trace.prompt_tokens.max() <= 900_000


def test_another_draw_of_a_mixture_has_as_many_requests_as_asked_for():
    mixture = AgentMixture(10, ((1.0, SMALL), (3.0, replace(SMALL, turns=8.0, subagents=0.5))), 1.0)
    assert mixture.calls == pytest.approx(0.25 * TURNS + 0.75 * (8 + 7 * 0.5 * TURNS))
    redraw = Redraw(draw_sessions, mixture, 0)
    assert redraw.rate_per_s == pytest.approx(mixture.calls)
    assert np.mean([len(redraw(repeat, 2000)) for repeat in range(20)]) == pytest.approx(2000, rel=0.2)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ([], "must be a list of 1 to 100 kinds"),
        ([{"opening-len": 7}], "kind 0: field 'share' is missing"),
        ([{"share": 1, "opening": 7}], "kind 0: field 'opening' is unknown; did you mean 'opening-cv'"),
        ([{"share": 1}, {"share": 1, "turns": 0.5}], "at least one session and one turn"),
        ([{"share": 1, "compact-at": 199_000}], "lack room for 2000 more in contexts of 200000"),
        ([{"share": 1, "opening-len": 199_000, "opening-cv": 0}], "first prompts of 5200 \\+ 199000 tokens do not fit"),
        ([{"share": 1, "subagents": 1e9}], "subagents of a turn"),
        ([3], "kind 0"),
    ],
)
def test_bad_kinds_are_named(kinds, message):
    with pytest.raises(UsageError, match=message):
        Workload.agents(5, kinds=kinds)
