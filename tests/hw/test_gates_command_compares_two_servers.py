"""`simctl gates` against two scoring servers on a real clock: figures, exit codes, and sequences from a file."""

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

from hw.gates_command import command
from sim.errors import SimctlError, UsageError


@contextlib.contextmanager
def scoring(*shifts: float | None) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """One server per shift: each says log-probability -1 - shift of every token; None scores nothing. Yields URLs and what was asked."""
    loop, up, down, urls, seen = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), [], []

    def handler(shift: float | None) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            asked = json.loads(await reader.readexactly(length))
            seen.append(asked)
            top = {"a": math.log(0.6 - (shift or 0.0)), "b": math.log(0.3)}
            logprobs = {
                "top_logprobs": [None] + [top] * len(asked["prompt"]),
                "token_logprobs": [None] + [-1.0 - (shift or 0.0)] * len(asked["prompt"]),
            }
            body = json.dumps({"choices": [{"text": "", "logprobs": None if shift is None else logprobs}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        return handle

    async def serve() -> None:
        servers = [await asyncio.start_server(handler(shift), "127.0.0.1", 0) for shift in shifts]
        urls.extend(f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}" for s in servers)
        up.set()
        await down.wait()
        for server in servers:
            server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    up.wait(10)
    try:
        yield urls, seen
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join()
        loop.close()


def invoke(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, list(arguments))


def test_equal_servers_pass_and_a_server_that_differs_fails_with_the_gate_named() -> None:
    with scoring(0.0, 0.0, 0.1) as (urls, seen):
        same = invoke(urls[0], urls[1] + "/v1/", "--model", "m", "--sequences", "2", "--length", "9", "--vocab-size", "200")
        other = invoke(urls[0], urls[2], "--model", "m", "--second-model", "n", "--json")
    assert (same.exit_code, same.output.splitlines()[-1]) == (0, "all gates hold")
    assert "steps scored        16" in same.output
    assert max(max(asked["prompt"]) for asked in seen[:4]) < 200
    found = json.loads(other.output)
    assert other.exit_code == 1
    assert found["ppl_ratio_minus_1"] == pytest.approx(math.exp(0.1) - 1)
    # p = (0.6, 0.3, 0.1) against q = (0.5, 0.3, 0.2)
    assert found["kl_mean"] == pytest.approx(0.6 * math.log(0.6 / 0.5) + 0.1 * math.log(0.1 / 0.2))
    assert [text.split()[0] for text in found["failures"]] == ["KL", "perplexity"]
    assert {asked["model"] for asked in seen[4:]} == {"m", "n"}


def test_sequences_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[5, 6, 7]\n\n[8, 9]\n")
    with scoring(0.0, 0.0) as (urls, seen):
        result = invoke(*urls, "--model", "m", "--tokens", str(path), "--token-ids")
    assert result.exit_code == 0, result.output
    assert sorted(asked["prompt"] for asked in seen) == [[5, 6, 7], [5, 6, 7], [8, 9], [8, 9]]
    assert all(asked["return_tokens_as_token_ids"] for asked in seen)


@pytest.mark.parametrize("text", ["[5]", "[1, -2]", "[1, true]", "{}", "not json", ""])
def test_a_bad_file_of_tokens_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text(text)
    result = invoke("http://127.0.0.1:9", "http://127.0.0.1:9", "--model", "m", "--tokens", str(path))
    assert isinstance(result.exception, UsageError)
    assert "tokens.jsonl" in str(result.exception)


def test_servers_that_are_no_url_are_down_or_do_not_score_are_named() -> None:
    assert isinstance(invoke("host", "http://127.0.0.1:9", "--model", "m").exception, UsageError)
    down = invoke("http://127.0.0.1:9", "http://127.0.0.1:9", "--model", "m").exception
    assert isinstance(down, SimctlError)
    assert "http://127.0.0.1:9" in str(down)
    with scoring(0.0, None) as (urls, _):
        mute = invoke(*urls, "--model", "m").exception
    assert isinstance(mute, SimctlError)
    assert f"{urls[1]} does not score prompts" in str(mute)
