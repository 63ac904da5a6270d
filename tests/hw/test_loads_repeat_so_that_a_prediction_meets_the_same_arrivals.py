"""The same seed and leading rates give the same arrivals and sizes, whatever rates follow: what is predicted is what will be sent."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.serve import load_patterns as load
from hw.serve.client import ServedRequest, Target
from hw.suites.served_plan import CPU_PLAN, GPU_PLAN, LOCKSTEP_SENT, named_only, open_loops, plan
from simctl.commands.loop_command import KNOWN_RATES, NEW_RATE
from tests.hw.virtual_time import run_virtual

TARGET = Target("http://127.0.0.1:9", "toy")


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), rates=st.lists(st.floats(0.2, 8.0), min_size=1, max_size=4))
def test_leading_rates_give_the_same_loads(seed: int, rates: list[float]) -> None:
    short = open_loops(1000, seed, tuple(rates), CPU_PLAN)
    longer = open_loops(1000, seed, (*rates, 3.0), CPU_PLAN)
    assert [e.load for e in short] == [e.load for e in longer[:-1]]


def test_the_predicted_load_is_the_one_the_served_run_will_send() -> None:
    predicted = open_loops(1000, 0, (*KNOWN_RATES, NEW_RATE), CPU_PLAN)[-1]
    sent = plan(8192, 0, (*KNOWN_RATES, NEW_RATE), CPU_PLAN)
    assert [e.load for e in sent if e.name == f"open {NEW_RATE:g}/s"] == [predicted.load]


def test_a_gpu_load_has_the_sizes_and_the_rate_it_names() -> None:
    (loop,) = open_loops(1000, 1, (400.0,), replace(GPU_PLAN, duration_s=25.0))
    assert loop.load is not None
    arrivals, sizes = loop.load
    assert len(arrivals) == len(sizes) == loop.n == 10_000
    assert abs(np.mean(np.diff(arrivals)) * 400 - 1) < 0.05
    assert abs(np.median([p for p, _ in sizes]) / 512 - 1) < 0.05
    assert abs(np.median([o for _, o in sizes]) / 128 - 1) < 0.05
    assert max(p for p, _ in sizes) <= 4096


def test_open_loops_are_sent_again_with_the_same_arrivals_and_sizes_and_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[int]] = {}

    async def sent(
        target: Target, prompts: object, arrivals: list[float], sizes: list[tuple[int, int]], first: int = 0
    ) -> list[ServedRequest]:
        drawn[f"{first}"] = list(range(first, first + len(sizes)))
        return []

    monkeypatch.setattr(load, "open_loop", sent)
    every = plan(8192, 0, (2.0, 8.0), GPU_PLAN)
    loops = {e.name: e for e in every if e.kind == "open"}
    assert list(loops) == ["open 2/s", "open 8/s", "open 2/s again", "open 8/s again"]
    for rate in ("2", "8"):
        assert loops[f"open {rate}/s again"].load == loops[f"open {rate}/s"].load
    for loop in loops.values():
        asyncio.run(loop.send(TARGET))
    prompts = [index for indices in drawn.values() for index in indices]
    assert len(drawn) == 4
    assert len(prompts) == len(set(prompts))


def test_sessions_and_the_closed_loop_are_sent_again_with_the_same_sizes_and_other_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[int]] = []

    async def complete(target: Target, prompt: list[int], output_tokens: int, session: int = -1, turn: int = 0) -> ServedRequest:
        sent.append(prompt)
        return ServedRequest(len(prompt), output_tokens, 0.0, session=session, turn=turn, token_s=[0.1] * output_tokens, finish_s=0.1)

    monkeypatch.setattr(load, "complete", complete)
    every = plan(8192, 0, (2.0, 8.0), CPU_PLAN)
    sizes = {}
    talk = next(e for e in every if e.kind == "sessions")
    assert talk.load is not None
    assert [r.prompt_tokens for r in sorted(run_virtual(talk.send(TARGET)), key=lambda r: (r.turn, r.session))] == [
        p for p, _ in talk.load[1]
    ]
    sent.clear()
    for kind, name in (("sessions", "sessions 8x4"), ("closed", "closed 16x4")):
        waves = [e for e in every if e.kind == kind]
        assert [e.name for e in waves] == [name, f"{name} again", *(f"{name} again {n}" for n in range(2, LOCKSTEP_SENT))]
        told = [[(r.session, r.turn, r.prompt_tokens, r.requested_tokens) for r in run_virtual(e.send(TARGET))] for e in waves]
        assert all(one == told[0] for one in told)
        sizes[kind] = len(told[0])
    assert sizes == {"sessions": 32, "closed": 64}
    # a turn begins with all that was said before: what no two conversations or requests share is how they begin
    begins = {tuple(prompt[:16]) for prompt in sent}
    assert len(sent) == LOCKSTEP_SENT * (32 + 64)
    assert len(begins) == LOCKSTEP_SENT * (8 + 64)


def test_prompts_share_the_prefix_that_the_load_tells_and_nothing_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[list[int]] = []

    async def complete(target: Target, prompt: list[int], output_tokens: int, session: int = -1, turn: int = 0) -> ServedRequest:
        sent.append(prompt)
        return ServedRequest(len(prompt), output_tokens, 0.0, session=session, turn=turn, token_s=[0.1] * output_tokens, finish_s=0.1)

    monkeypatch.setattr(load, "complete", complete)
    named = {one.name.rpartition(" ")[0]: one for one in named_only(8192, 0, CPU_PLAN)}
    for one, prefixes in ((named["long"], 4 * 3), (named["shared"], 1), (named["revisit"], 4 * 6), (named["revisit later"], 4 * 12)):
        sent.clear()
        run_virtual(one.send(TARGET))
        assert one.load is not None
        assert [len(prompt) for prompt in sent] == [prompt for prompt, _ in one.load[1]]
        head = one.shared_tokens or 16
        assert len({tuple(prompt[:head]) for prompt in sent}) == prefixes
        assert len({tuple(prompt[head : head + 4]) for prompt in sent}) == len(sent)
