"""What `vllm bench serve` kept becomes requests with token times; the client is asked for text of the plan's sizes."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hw.jobs import Job
from hw.serve import text_client
from hw.serve.client import Target
from hw.suites import served
from hw.suites.served_plan import CPU_PLAN, text_plan
from sim.errors import SimctlError

RESULT = {
    "start_times": [101.0, 100.0, 102.0], "input_lens": [20, 30, 10], "output_lens": [3, 5, 0], "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.2], [0.1, 0.3], []], "errors": ["", "", "Connection reset"],
}  # fmt: skip


def test_requests_come_back_in_order_of_sending_with_their_token_times() -> None:
    first, second, failed = text_client.records(RESULT)
    assert (second.prompt_tokens, second.requested_tokens, second.sent_s, second.ok) == (20, 3, 101.0, True)
    np.testing.assert_allclose(second.token_s, [101.5, 101.6, 101.8])
    # five tokens in three pieces: the first and the last where they were received, the others between
    np.testing.assert_allclose(first.token_s, [100.25, 100.3, 100.35, 100.5, 100.65])
    assert first.finish_s == pytest.approx(100.65)
    assert (failed.ok, failed.error) == (False, "Connection reset")


def test_the_client_is_told_the_load_and_what_it_kept_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "arguments"
    program = tmp_path / "client.sh"
    program.write_text(f'#!/bin/sh\necho "$@" > {seen}\ncat > {tmp_path}/bench_text_2_per_s.json <<END\n{json.dumps(RESULT)}\nEND\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    loop = text_plan(8192, tmp_path, tmp_path / "model", 7, (2.0,), CPU_PLAN)[0]
    records = asyncio.run(loop.send(Target("http://127.0.0.1:9", "tiny")))
    assert len(records) == 3
    assert (loop.kind, loop.n, loop.rate_per_s) == ("open", 24, 2.0)
    said = seen.read_text()
    for part in ("vllm.benchmarks.serve", "--request-rate 2", "--num-prompts 24", "--random-input-len 32", "--save-detailed", "--seed 7"):
        assert part in said


def test_prompts_that_the_server_counts_otherwise_void_the_load() -> None:
    sent = text_client.records(RESULT)[:2]
    assert text_client.same_tokens(sent, {}, {}) == sent  # a server that does not say
    assert text_client.same_tokens(sent, {"prompt_tokens": 100.0}, {"prompt_tokens": 170.0}) == sent  # the first prompt comes twice
    assert all("counted 20 prompt tokens" in r.error and not r.ok for r in text_client.same_tokens(sent, {}, {"prompt_tokens": 20.0}))


def test_a_client_that_fails_says_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "client.sh"
    program.write_text("#!/bin/sh\necho no such tokenizer\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    loop = text_plan(8192, tmp_path, tmp_path, 0, (1.0,), CPU_PLAN)[0]
    with pytest.raises(SimctlError, match="ended with code 3: no such tokenizer"):
        asyncio.run(loop.send(Target("http://127.0.0.1:9", "tiny")))


def test_the_plan_of_text_has_the_same_rates_as_text_and_as_token_ids() -> None:
    job = Job("served", "cpu", "tiny-25m", rates=(1.0, 3.0), client="text")
    assert [e.name for e in served.work_of("plan", 8192, job)] == [
        "text 1/s", "open 1/s", "text 3/s", "open 3/s", "text long", "sessions 8x4", "closed 32x3",
    ]  # fmt: skip
    assert job.stem == "served_tiny-25m_text"
