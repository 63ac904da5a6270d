"""`simctl gates` against two scoring servers on a real clock: figures, exit codes, and sequences from a file."""

import asyncio
import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click.testing
import pytest

from hw.gates_of_servers import command
from sim.errors import SimctlError, UsageError

Answer = Callable[[list[int]], Any]  # prompt -> the `logprobs` of the answer


@contextlib.contextmanager
def serving(*answers: Answer) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """One server per answer, on a thread of their own. Yields their URLs and what they were asked."""
    loop, up, down, urls, seen = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), [], []
    tasks: list[asyncio.Task[None]] = []

    def handler(answer: Answer) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            asked = json.loads(await reader.readexactly(length))
            seen.append(asked)
            body = json.dumps({"choices": [{"text": "", "logprobs": answer(asked["prompt"])}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            await handle(reader, writer)

        return tracked

    async def serve() -> None:
        servers = [await asyncio.start_server(handler(answer), "127.0.0.1", 0) for answer in answers]
        urls.extend(f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}" for s in servers)
        up.set()
        await down.wait()
        for server in servers:
            server.close()
        await asyncio.gather(*tasks)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    up.wait(60)
    try:
        yield urls, seen
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join()
        loop.close()


def whole(shift: float) -> Answer:
    """Scores every token of the prompt with log-probability -1 - shift."""

    def answer(prompt: list[int]) -> Any:
        top = {"a": math.log(0.6 - shift), "b": math.log(0.3)}
        return {"top_logprobs": [None] + [top] * len(prompt), "token_logprobs": [None] + [-1.0 - shift] * len(prompt)}

    return answer


def mute(prompt: list[int]) -> Any:
    return None


def following(step: int) -> Answer:
    """llama.cpp's form: the likeliest next tokens by id, here last + step and the one after it; no prompt is scored."""

    def answer(prompt: list[int]) -> Any:
        best = prompt[-1] + step
        top = [{"id": best, "token": " x", "logprob": math.log(0.7)}, {"id": best + 1, "token": " x", "logprob": math.log(0.2)}]
        return {"content": [{"id": best, "top_logprobs": top}]}

    return answer


def invoke(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, list(arguments))


def test_servers_that_tell_only_the_next_token_are_compared_by_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[1, 2, 3, 4, 50]\n")  # counting up is what both expect most; 50 is on no list
    with serving(following(1), following(1), following(0)) as ((one, same, other), _):
        equal = invoke(one, same, "--model", "m", "--tokens", str(path), "--token-ids", "--json")
        apart = invoke(one, other, "--model", "m", "--tokens", str(path), "--token-ids", "--json")
        unasked = invoke(one, same, "--model", "m", "--tokens", str(path))
    assert equal.exit_code == 0, equal.output
    assert json.loads(equal.output) == {
        "steps": 4, "top1": 1.0, "kl_mean": 0.0, "kl_max": 0.0, "ppl_ratio_minus_1": 0.0, "scored": 3, "failures": [],
    }  # fmt: skip
    found = json.loads(apart.output)
    assert (apart.exit_code, found["top1"]) == (1, 0.0)
    assert found["ppl_ratio_minus_1"] == pytest.approx(0.7 / 0.2 - 1)  # the right token is the other's second
    assert "--token-ids" in str(unasked.exception)


def test_perplexity_of_mostly_unlisted_tokens_is_unknown_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[1, 2, 70, 90]\n")
    with serving(following(1), following(1)) as ((one, same), _):
        result = invoke(one, same, "--model", "m", "--tokens", str(path), "--token-ids")
    assert result.exit_code == 1
    assert "FAILED: perplexity is not known: only 1 of 3 tokens were scored by both" in result.output


def test_equal_servers_pass_and_a_server_that_differs_fails_with_the_gate_named() -> None:
    with serving(whole(0.0), whole(0.0), whole(0.1)) as (urls, seen):
        same = invoke(urls[0], urls[1] + "/v1/", "--model", "m", "--vocab-size", "200")
        other = invoke(urls[0], urls[2], "--model", "m", "--model", "n", "--json")
    assert (same.exit_code, same.output.splitlines()[-1]) == (0, "all gates hold")
    assert "steps scored        1016" in same.output
    assert max(max(asked["prompt"]) for asked in seen[:16]) < 200
    found = json.loads(other.output)
    assert other.exit_code == 1
    assert found["ppl_ratio_minus_1"] == pytest.approx(math.exp(0.1) - 1)
    # p = (0.6, 0.3, 0.1) against q = (0.5, 0.3, 0.2)
    assert found["kl_mean"] == pytest.approx(0.6 * math.log(0.6 / 0.5) + 0.1 * math.log(0.1 / 0.2))
    assert [text.split()[0] for text in found["failures"]] == ["KL", "perplexity"]
    assert {asked["model"] for asked in seen[16:]} == {"m", "n"}


def test_sequences_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    path.write_text("[5, 6, 7]\n\n[8, 9]\n")
    with serving(whole(0.0), whole(0.0)) as (urls, seen):
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
    with serving(whole(0.0), mute) as (urls, _):
        silent = invoke(*urls, "--model", "m").exception
    assert isinstance(silent, SimctlError)
    assert f"{urls[1]} does not score prompts" in str(silent)
