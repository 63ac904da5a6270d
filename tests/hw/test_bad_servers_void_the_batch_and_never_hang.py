"""A server that hangs, stalls, drops, refuses or talks nonsense: every stream ends with its reason, and the batch is void."""

import asyncio

import numpy as np
import pytest

from hw.journal import Journal
from hw.pace import Budget
from hw.serve import load_patterns as load
from hw.serve import windows
from hw.serve.client import Target
from hw.suites import served
from hw.suites.served_plan import PlannedLoad, ladder
from tests.hw.toy_server import ToyServer, running
from tests.hw.virtual_time import run_virtual

PROMPTS = load.Prompts(vocab=5000, seed=1)
SAYS = {
    "hang": "nothing for 120 s",
    "stall": "nothing for 60 s",
    "drop": "broken off inside the stream",
    "short": "got 19 of 20 tokens",
    "garbage": "not HTTP",
    "nonsense": "an event is not JSON",
    "refuse": "HTTP 500: {\"error\": \"out of memory\"}",
    "truncate": "ended without [DONE]",
}  # fmt: skip


@pytest.mark.parametrize("manners", SAYS)
def test_each_failure_is_recorded_and_voids_its_batch(manners: str) -> None:
    server = ToyServer(manners=manners, bad=lambda number: number == 2)

    async def program() -> list:
        async with running(server) as url:
            return await load.wave(Target(url, "toy"), PROMPTS, 5, 16, 20)

    records = run_virtual(program())
    assert len(records) == 5
    failed = [r for r in records if not r.ok]
    assert len(failed) == 1
    assert SAYS[manners] in failed[0].error
    reason = windows.decode_window(records)
    assert isinstance(reason, str)
    assert reason.startswith("1 of 5 streams failed")


@pytest.mark.parametrize("manners", ["stall", "drop", "nonsense", "short"])
def test_tokens_received_before_the_failure_are_kept(manners: str) -> None:
    async def program() -> list:
        async with running(ToyServer(manners=manners)) as url:
            return await load.wave(Target(url, "toy"), PROMPTS, 1, 16, 20)

    (record,) = run_virtual(program())
    assert len(record.token_s) == (19 if manners == "short" else 10)


def test_a_void_batch_is_kept_and_marked(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async def program() -> list:
        server = ToyServer(manners="drop", bad=lambda number: number == 2)
        async with running(server) as url:
            experiments = ladder(PROMPTS, (1, 2, 4), 16, 20)
            return [served.summary(e, await e.send(Target(url, "toy"))) for e in experiments]

    data = served.dataset(run_virtual(program()), {})
    assert data.attrs["void_batches"] == 1
    assert data.sizes["request"] == 7
    assert "streams failed" in str(data.void.values[data.n.values == 4][0])
    assert np.isnan(data.window_step_s.values[data.n.values == 4]).all()


def test_nobody_listening_is_an_error_in_the_record() -> None:
    async def program() -> list:
        return await load.wave(Target("http://127.0.0.1:9", "toy"), PROMPTS, 2, 16, 4)

    records = asyncio.run(program())
    assert all("refused" in r.error.lower() or "connect" in r.error.lower() for r in records)


@pytest.mark.parametrize("url", ["ftp://host/", "host:80", "file:///etc/passwd", ""])
def test_only_http_urls_are_loaded(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        run_virtual(load.wave(Target(url, "toy"), PROMPTS, 1, 4, 4))


def test_a_suite_over_budget_keeps_what_it_has(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Time is up after the second experiment: two are in the journal, and resuming does only the rest."""
    done: list[str] = []

    def experiment(name: str) -> PlannedLoad:
        async def send(target: Target) -> list:
            done.append(name)
            async with running(ToyServer(ttft_s=lambda p: 0.0, gap_s=lambda n: 0.0)) as url:
                return await load.wave(Target(url, "toy"), PROMPTS, 1, 4, 4)

        return PlannedLoad(name, "burst", send, 1, 4, 4)

    plan = [experiment(name) for name in ("a", "b", "c", "d")]
    ticks = iter([0.0, 0.0, 0.0, 1.0, 1.0, *[99.0] * 50])
    path = tmp_path / "run.journal.jsonl"

    async def warm_server() -> None:
        async with running(ToyServer(ttft_s=lambda p: 0.0, gap_s=lambda n: 0.0)) as url:
            target = Target(url, "toy")
            budget = Budget(10.0, clock=lambda: next(ticks))
            await asyncio.to_thread(served.measure, plan, target, 5000, Journal(path, {"run": 1}), budget, "test", local=False)
            assert done == ["a", "b"]
            rest = await asyncio.to_thread(
                served.measure, plan, target, 5000, Journal(path, {"run": 1}, resume=True), Budget(None), "test", local=False
            )  # fmt: skip
            assert rest == {"finished": 1}

    asyncio.run(warm_server())
    assert done == ["a", "b", "c", "d"]
