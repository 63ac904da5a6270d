"""`--url`: the whole command against a running server of known delays, on a real clock; wrong requests are named before anything is sent."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click.testing
import pytest

from hw.artifact import load
from hw.command import command
from sim.errors import UsageError
from tests.hw.toy_server import ToyServer, running


@contextmanager
def in_thread(server: ToyServer) -> Iterator[str]:
    """The toy server on a loop and a thread of its own: the suite runs a loop for each experiment."""
    loop, up, down, urls = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        async with running(server) as url:
            urls.append(url)
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    up.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join()
        loop.close()


def invoke(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, ["--suite", "served", *arguments])


def test_the_command_measures_a_running_server(tmp_path: Path) -> None:
    server = ToyServer(ttft_s=lambda prompt: 0.02, gap_s=lambda streams: 0.005)
    with in_thread(server) as url:
        result = invoke(
            "--hw", "cpu", "--url", url, "--model", "their/name", "-o", str(tmp_path), "--experiments", "ladder*", "--vocab-size", "500"
        )
    assert result.exception is None, result.output
    data = load(tmp_path / "served_their-name_url.nc", "served")
    assert data.attrs["finished"] == 1
    assert data.attrs["gpu_name"] == "unknown"
    assert data.void.values.astype(str).tolist() == [""] * 4
    # sleeps are never short, and a busy machine makes them long: a lower bound is exact, the upper one wide
    assert (data.window_step_s.values >= 0.005 - 1e-4).all()
    assert (data.window_step_s.values < 0.05).all()
    assert {seen["path"] for seen in server.seen} == {"/v1/completions"}
    assert max(max(seen["prompt"]) for seen in server.seen) < 500


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "host:80", "--model", "m"], "--url: not an http"),
        (["--url", "http://127.0.0.1:9"], "--url needs --model: one model"),
        (["--url", "http://127.0.0.1:9", "--model", "m", "--experiments", "nothing"], "names none of"),
        (["--url", "http://127.0.0.1:9", "--model", "m", "--suite", "floor"], "--url is for the suite served alone"),
    ],
)
def test_wrong_requests_are_named(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = invoke(*arguments, "-o", str(tmp_path))
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_nobody_there_voids_every_batch(tmp_path: Path) -> None:
    result = invoke("--hw", "cpu", "--url", "http://127.0.0.1:9", "--model", "m", "-o", str(tmp_path), "--experiments", "ladder*")
    assert result.exception is None
    data = load(tmp_path / "served_m_url.nc")
    assert all("streams failed" in text for text in data.void.values.astype(str))
    assert data.attrs["void_batches"] == 4
