"""`--url`: the whole command against a running server of known delays, on a real clock; wrong requests are named before they are sent."""

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click.testing
import pytest

from hw.artifact import load
from hw.command import command
from hw.serve.client import Target
from hw.serve.identify import counters, describe
from sim.errors import SimctlError, UsageError
from tests.hw.toy_server import ToyServer, running
from tests.hw.virtual_time import run_virtual

# what such servers answer to GET, and what of it belongs into the file
ANSWERS: dict[str, tuple[dict[str, str], dict[str, object]]] = {
    "vllm": (
        {
            "/version": json.dumps({"version": "0.23.0"}),
            "/v1/models": json.dumps({"data": [{"id": "their/name", "owned_by": "vllm", "max_model_len": 8192}]}),
            "/metrics": '# HELP vllm:cache_config_info x\nvllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1024"} 1.0\n',
        },
        {
            "engine": "vllm",
            "engine_version": "0.23.0",
            "max_model_len": 8192,
            "kv_blocks": 1024,
            "block_size_tokens": 16,
            "kv_tokens": 16384,
        },
    ),
    "sglang": (
        {"/get_server_info": json.dumps({"tp_size": 1, "version": "0.5.1", "max_total_num_tokens": 90000, "max_running_requests": 64})},
        {"engine": "sglang", "engine_version": "0.5.1", "kv_tokens": 90000, "max_num_seqs": 64},
    ),
    "llama.cpp": (
        {"/props": json.dumps({"total_slots": 4, "build_info": "b1-abc", "default_generation_settings": {"n_ctx": 512}})},
        {"engine": "llama.cpp", "engine_version": "b1-abc", "kv_tokens": 2048, "max_num_seqs": 4},
    ),
    "tgi": (
        {"/info": json.dumps({"version": "3.3.4", "max_total_tokens": 4096, "max_concurrent_requests": 128})},
        {"engine": "tgi", "engine_version": "3.3.4", "max_model_len": 4096, "max_num_seqs": 128},
    ),
    "another that has a version": ({"/version": json.dumps({"version": "9"}), "/props": "[]", "/info": "not JSON"}, {"engine": "unknown"}),
    "one that tells nothing": ({}, {"engine": "unknown"}),
}


@contextmanager
def in_thread(server: ToyServer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The toy server on a loop and a thread of its own: the suite runs a loop for each experiment."""
    loop, up, down, urls = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), []

    async def serve() -> None:
        async with running(server, tls) as url:
            urls.append(url)
            up.set()
            await down.wait()

    def whole() -> None:
        loop.run_until_complete(serve())
        loop.run_until_complete(asyncio.sleep(0.1))  # connections that never became requests, such as failed handshakes, close, too

    thread = threading.Thread(target=whole)
    thread.start()
    up.wait(60)
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
    assert max(max(seen["prompt"]) for seen in server.seen) < 500
    assert {seen["path"] for seen in server.seen} == {"/v1/completions"}


def test_a_url_may_end_in_v1(tmp_path: Path) -> None:
    server = ToyServer(manners="refuse")
    with in_thread(server) as url:
        invoke("--hw", "cpu", "--url", f"{url}/v1/", "--model", "m", "-o", str(tmp_path))
    assert [seen["path"] for seen in server.seen] == ["/v1/completions"]


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


@pytest.mark.parametrize(("manners", "says"), [("refuse", "HTTP 500: .*out of memory"), ("garbage", "not HTTP"), ("short", "got 3 of 4")])
def test_a_server_that_completes_nothing_is_an_error_at_once(manners: str, says: str, tmp_path: Path) -> None:
    server = ToyServer(manners=manners)
    with in_thread(server) as url:
        result = invoke("--hw", "cpu", "--url", url, "--model", "m", "-o", str(tmp_path))
    assert isinstance(result.exception, SimctlError)
    assert re.search(says, str(result.exception))
    assert len([seen for seen in server.seen if "prompt" in seen]) == 1
    assert not list(tmp_path.glob("*.nc"))


def test_nobody_there_is_an_error(tmp_path: Path) -> None:
    result = invoke("--hw", "cpu", "--url", "http://127.0.0.1:9", "--model", "m", "-o", str(tmp_path))
    assert isinstance(result.exception, SimctlError)
    assert "http://127.0.0.1:9: " in str(result.exception)


@pytest.mark.parametrize(("answers", "told"), ANSWERS.values(), ids=ANSWERS)
def test_the_file_says_what_the_server_says_of_itself(answers: dict[str, str], told: dict[str, object]) -> None:
    async def program() -> dict[str, object]:
        async with running(ToyServer(answers=answers)) as url:
            return await describe(Target(url, "their/name"))

    assert asyncio.run(program()) == told


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ('vllm:num_preemptions_total{engine="0"} 3.0\nvllm:num_preemptions_total{engine="1"} 2.0\n', {"preemptions": 5.0}),
        ('vllm:num_preemptions_created{engine="0"} 1.7e9\n', {}),
        ("", {}),
    ],
)
def test_preemptions_are_counted_over_the_engines_of_a_server(metrics: str, told: dict[str, float]) -> None:
    async def program() -> dict[str, float]:
        async with running(ToyServer(answers={"/metrics": metrics})) as url:
            return await counters(Target(url, "m"))

    assert asyncio.run(program()) == told


def test_a_server_that_hangs_on_every_question_is_unknown() -> None:
    async def program() -> dict[str, object]:
        async with running(ToyServer(manners="hang")) as url:
            return await describe(Target(url, "m"))

    assert run_virtual(program()) == {"engine": "unknown"}
