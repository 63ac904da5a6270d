"""Text prompts through vLLM's own client, `vllm bench serve`: the server tokenizes them, and the client is not ours."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hw.serve.client import ServedRequest, Target
from hw.serve.identify import counters
from sim.errors import SimctlError

# `vllm bench serve` itself; the program `vllm` looks for a distribution of that name, which the CPU build has not
PROGRAM = """import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())"""
OTHER_TOKENS = 0.02  # share of the prompt tokens in which server and client may differ
RATIO = 0.5  # prompt and output lengths are uniform within so much of their mean


async def bench(
    target: Target, tokenizer: Path, rate_per_s: float, count: int, prompt_tokens: int, output_tokens: int, seed: int, keep: Path
) -> list[ServedRequest]:
    """An open loop of random text. The client's own JSON stays in `keep`. Raises SimctlError when the client fails."""
    command = [sys.executable, "-c", PROGRAM, "--base-url", target.url, "--model", target.model]
    command += ["--tokenizer", str(tokenizer), "--endpoint", "/v1/completions", "--dataset-name", "random", "--ignore-eos"]
    command += ["--random-input-len", str(prompt_tokens), "--random-output-len", str(output_tokens), "--random-range-ratio", str(RATIO)]
    command += [
        "--request-rate",
        f"{rate_per_s:g}",
        "--num-prompts",
        str(count),
        "--seed",
        str(seed),
        "--temperature",
        f"{target.temperature:g}",
    ]
    command += ["--save-result", "--save-detailed", "--result-dir", str(keep.parent), "--result-filename", keep.name]
    before = await counters(target)
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **os.environ}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=environment)
    said, _ = await process.communicate()
    if process.returncode or not keep.is_file():
        words = " ".join(said.decode(errors="replace").split())[-300:]
        raise SimctlError(f"vllm bench serve ended with code {process.returncode}: {words}")
    return same_tokens(records(json.loads(keep.read_text(encoding="utf-8"))), before, await counters(target))


def same_tokens(sent: list[ServedRequest], before: Mapping[str, float], after: Mapping[str, float]) -> list[ServedRequest]:
    """The records, marked as failed where the server counted other prompt tokens than the client: then they time another load.

    The client sends its first prompt once more, ahead of the others.
    """
    if "prompt_tokens" not in after:
        return sent
    counted, sent_tokens = after["prompt_tokens"] - before.get("prompt_tokens", 0.0), float(sum(record.prompt_tokens for record in sent))
    most = sent_tokens + max((record.prompt_tokens for record in sent), default=0)
    if (1 - OTHER_TOKENS) * sent_tokens <= counted <= (1 + OTHER_TOKENS) * most:
        return sent
    error = f"the server counted {counted:.0f} prompt tokens, the client {sent_tokens:.0f}"
    return [replace(record, error=record.error or error) for record in sent]


def records(result: Mapping[str, Any]) -> list[ServedRequest]:
    """Requests of a detailed result. Its gaps are between received pieces: tokens of one piece are spread evenly over the gap."""
    found = []
    columns = (result[name] for name in ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors"))
    for sent, prompt, tokens, ttft, gaps, error in zip(*columns, strict=True):
        pieces = sent + ttft + np.cumsum([0.0, *gaps])
        at = np.interp(np.linspace(0.0, 1.0, tokens), np.linspace(0.0, 1.0, len(pieces)), pieces).tolist() if tokens and not error else []
        text = str(error or ("" if at else "no token came"))
        found.append(ServedRequest(prompt, tokens, sent, token_s=at, finish_s=at[-1] if at else None, error=text[:200]))
    return sorted(found, key=lambda record: record.sent_s)
