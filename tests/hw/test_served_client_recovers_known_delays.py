"""Against a server whose delays are known, the client finds them exactly: TTFT, gaps, window throughput, step time of the ladder.

Times are compared on a virtual clock (see virtual_time): equality up to floating-point rounding, no allowance for jitter.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.serve import load_patterns as load
from hw.serve import windows
from hw.serve.client import Target, complete
from hw.suites import served, served_plan
from tests.hw.toy_server import ToyServer, running
from tests.hw.virtual_time import run_virtual

PROMPTS = load.Prompts(vocab=5000, seed=1)


@pytest.mark.parametrize("tell", ["ids", "usage", "text"])
def test_first_token_and_gaps(tell: str) -> None:
    server = ToyServer(ttft_s=lambda prompt: 0.25 + 0.001 * prompt, gap_s=lambda n: 0.02, tell=tell)

    async def program() -> None:
        async with running(server) as url:
            record = await complete(Target(url, "toy"), list(range(40)), 10)
            assert record.ok
            assert record.token_s[0] - record.sent_s == pytest.approx(0.29, abs=1e-9)
            assert np.diff(record.token_s) == pytest.approx(np.full(9, 0.02), abs=1e-9)
            assert record.finish_s - record.sent_s == pytest.approx(0.29 + 9 * 0.02, abs=1e-9)

    run_virtual(program())
    assert server.seen[0]["path"] == "/v1/completions"
    assert server.seen[0]["prompt"] == list(range(40))


def test_tokens_that_share_an_event_are_all_counted() -> None:
    async def program() -> None:
        async with running(ToyServer(manners="merged")) as url:
            record = await complete(Target(url, "toy"), [1, 2, 3], 9)
            assert record.ok
            assert len(record.token_s) == 9
            assert len(set(record.token_s)) == 5

    run_virtual(program())


@settings(max_examples=15)
@given(n=st.integers(1, 12), gap_ms=st.integers(5, 50), tokens=st.integers(20, 60))
def test_window_throughput_is_streams_over_gap(n: int, gap_ms: int, tokens: int) -> None:
    """Prompts of different length start decoding at different times; inside the window every stream yields 1/gap."""
    gap = gap_ms / 1000

    async def program() -> list:
        server = ToyServer(ttft_s=lambda prompt: gap * prompt, gap_s=lambda streams: gap)
        async with running(server) as url:
            target = Target(url, "toy")
            return await load.open_loop(target, PROMPTS, [0.0] * n, [(1 + i % 5, tokens) for i in range(n)])

    window = windows.decode_window(run_virtual(program()))
    assert isinstance(window, windows.Window)
    assert window.tokens_per_s == pytest.approx(n / gap, rel=1e-9)
    assert window.step_s == pytest.approx(gap, rel=1e-9)


def test_ladder_finds_the_step_time_of_every_rung() -> None:
    """Gap 10 ms + 1 ms per further stream."""

    async def program() -> list:
        async with running(ToyServer(gap_s=lambda streams: 0.010 + 0.001 * (streams - 1))) as url:
            experiments = served_plan.ladder(PROMPTS, (1, 2, 4, 8, 16), 32, 40)
            return [served.summary(e, await e.send(Target(url, "toy"))) for e in experiments]

    data = served.dataset(run_virtual(program()), {})
    steps = dict(zip(data.n.values.tolist(), data.window_step_s.values.tolist(), strict=True))
    assert steps == pytest.approx({n: 0.009 + 0.001 * n for n in (1, 2, 4, 8, 16)}, rel=1e-9)


def test_open_loop_sends_on_time_whatever_the_server_does() -> None:
    arrivals = load.poisson_arrivals(5.0, 30, np.random.default_rng(3))
    server = ToyServer(ttft_s=lambda prompt: 3.0)

    async def program() -> list:
        async with running(server) as url:
            return await load.open_loop(Target(url, "toy"), PROMPTS, arrivals, [(20, 4)] * 30)

    records = run_virtual(program())
    sent = [r.sent_s for r in records]
    assert np.diff(sent) == pytest.approx(np.diff(arrivals), abs=1e-9)
    assert sorted(s["at"] for s in server.seen) == pytest.approx(sorted(sent), abs=1e-9)


def test_closed_loop_keeps_n_clients_busy_one_request_each() -> None:
    async def program() -> list:
        async with running(ToyServer(ttft_s=lambda prompt: 0.5, gap_s=lambda n: 0.1)) as url:
            return await load.closed_loop(Target(url, "toy"), PROMPTS, 3, 4, 16, 6)

    records = run_virtual(program())
    assert len(records) == 12
    for client in range(3):
        turns = sorted((r for r in records if r.session == client), key=lambda r: r.turn)
        for before, after in itertools.pairwise(turns):
            assert after.sent_s == pytest.approx(before.finish_s, abs=1e-9)


def test_sessions_carry_their_history_so_that_a_prefix_cache_finds_it() -> None:
    """Turn k repeats all before it, the answer included: what is cached is the whole last prompt, and grows by answer plus new part."""

    async def program() -> list:
        async with running(ToyServer(cache=True)) as url:
            return await load.sessions(
                Target(url, "toy"), PROMPTS, 3, 4, first_tokens=50, turn_tokens=7, output_tokens=5, think_s=0.3
            )  # fmt: skip

    records = run_virtual(program())
    for session in range(3):
        turns = sorted((r for r in records if r.session == session), key=lambda r: r.turn)
        assert [r.prompt_tokens for r in turns] == [50, 62, 74, 86]
        assert [r.cached_tokens for r in turns[1:]] == [50, 62, 74]
        for before, after in itertools.pairwise(turns):
            assert after.sent_s - before.finish_s == pytest.approx(0.3, abs=1e-9)


def test_prompts_repeat_by_index_and_differ_from_each_other() -> None:
    prompts = load.Prompts(vocab=5000, seed=2)
    a, b = prompts.draw(0, 50), prompts.draw(1, 50)
    assert a[:3] != b[:3]
    assert a == prompts.draw(0, 50)
