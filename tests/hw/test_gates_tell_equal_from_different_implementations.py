"""Rounding passes the gates, a wrong implementation does not; servers are compared on the same scored tokens."""

import asyncio
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.gates import compare_servers, from_top
from hw.serve.client import Target
from sim.errors import SimctlError
from tests.hw.logits import from_logits
from tests.hw.virtual_time import run_virtual

RNG = np.random.default_rng(5)
LOGITS = 4 * RNG.standard_normal((40, 100))
TOKENS = RNG.integers(0, 100, 40)


def test_an_implementation_agrees_with_itself() -> None:
    found = from_logits(LOGITS, LOGITS + 3.0, TOKENS)  # a constant shift changes no probability
    assert found.top1 == 1.0
    assert found.kl_mean == pytest.approx(0.0, abs=1e-12)
    assert found.ppl_ratio_minus_1 == pytest.approx(0.0, abs=1e-12)
    assert found.failures() == []


def test_rounding_to_half_precision_passes_and_a_dropped_head_does_not() -> None:
    assert from_logits(LOGITS, LOGITS.astype(np.float16), TOKENS).failures() == []
    wrong = LOGITS + 1.5 * RNG.standard_normal(LOGITS.shape)
    assert len(from_logits(LOGITS, wrong, TOKENS).failures()) == 3


def test_nan_never_passes() -> None:
    broken = LOGITS.copy()
    broken[3] = np.nan
    assert len(from_logits(LOGITS, broken, TOKENS).failures()) >= 2


def test_kl_and_perplexity_of_two_coins() -> None:
    """p = (3/4, 1/4) against q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2); scoring token 0, perplexities 4/3 and 2."""
    p, q = np.log([[0.75, 0.25]]), np.log([[0.5, 0.5]])
    found = from_logits(p, q, np.array([0]))
    assert found.kl_mean == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert found.ppl_ratio_minus_1 == pytest.approx(0.5)


@given(st.integers(1, 30))
def test_top_k_is_a_lower_bound_that_reaches_the_full_kl(k: int) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((1, 30)), rng.standard_normal((1, 30))
    full = from_logits(a, b, np.array([0]))
    log_a, log_b = (x[0] - np.log(np.exp(x[0]).sum()) for x in (a, b))
    keep = np.argsort(log_a)[-k:]
    top_a, top_b = {str(i): float(log_a[i]) for i in keep}, {str(i): float(log_b[i]) for i in keep}
    found = from_top([top_a], [top_b], [float(log_a[0])], [float(log_b[0])])
    assert found.kl_mean <= full.kl_mean + 1e-9
    assert found.ppl_ratio_minus_1 == pytest.approx(full.ppl_ratio_minus_1)
    if k == 30:
        assert found.kl_mean == pytest.approx(full.kl_mean, abs=1e-9)


def _scoring_server(shift: float, scores: bool = True):  # type: ignore[no-untyped-def]
    """Says of every prompt token: log-probability -1 - shift, top two tokens with fixed odds."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        prompt = json.loads(await reader.readexactly(length))["prompt"]
        top = {"a": math.log(0.6 - shift), "b": math.log(0.3)}
        logprobs = {"top_logprobs": [None] + [top] * len(prompt), "token_logprobs": [None] + [-1.0 - shift] * len(prompt)}
        body = json.dumps({"choices": [{"text": "", "logprobs": logprobs if scores else None}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    return handle


def _compare(*handlers):  # type: ignore[no-untyped-def]
    async def program() -> object:
        servers = [await asyncio.start_server(h, "127.0.0.1", 0) for h in handlers]
        targets = [Target(f"http://127.0.0.1:{s.sockets[0].getsockname()[1]}", "m") for s in servers]
        try:
            return await compare_servers(*targets, [[1, 2, 3], [4, 5, 6, 7]])
        finally:
            for server in servers:
                server.close()

    return run_virtual(program())


def test_two_servers_are_scored_on_every_token_after_the_first() -> None:
    found = _compare(_scoring_server(0.0), _scoring_server(0.1))
    assert found.steps == 2 + 3
    assert found.top1 == 1.0
    assert found.ppl_ratio_minus_1 == pytest.approx(math.exp(0.1) - 1)


def test_a_server_without_logprobs_is_named() -> None:
    with pytest.raises(SimctlError, match="does not score prompts"):
        _compare(_scoring_server(0.0), _scoring_server(0.0, scores=False))
