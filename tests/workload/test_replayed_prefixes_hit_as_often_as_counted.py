"""A Mooncake trace replayed call by call into a cache that forgets nothing hits exactly as often as its hashes say.

The published traces are replayed where SIMCTL_TRACES names a folder that holds them in mooncake_fast25.
"""

import json
import os
import random
from pathlib import Path

import pytest

from tests.cli import run

BLOCK = 512
PUBLISHED = Path(os.environ.get("SIMCTL_TRACES", ""), "mooncake_fast25")


def counted(path, block):
    """Share of prompt tokens, in whole blocks of `block`, that an earlier prompt began with; the last token is always computed."""
    held, found, total = {}, 0, 0  # tokens that prompts with these first hashes have in whole blocks
    for line in path.read_text().splitlines():
        call = json.loads(line)
        begins = [hash(tuple(call["hash_ids"][:depth])) for depth in range(1, len(call["hash_ids"]) + 1)]
        ends = [BLOCK * depth for depth in range(1, len(begins) + 1)]
        hit = 0
        for begin, end in zip(begins, ends, strict=True):
            hit = max(hit, held.get(begin, 0))
            if hit < end:
                break
        found += min(hit, call["input_length"] - 1) // block * block
        total += call["input_length"]
        for begin, end in zip(begins, ends, strict=True):
            held[begin] = max(held.get(begin, 0), min(end, call["input_length"] // block * block))
    return found / total


def simulated(path, block, blocks, *more):
    """The same, of a simulated engine with that many KV blocks that serves one call after another."""
    cache = ("--block-size", str(block), "--engine-option", f"num-gpu-blocks={blocks}", "--max-model-len", "256K", "--max-concurrency", "1")
    where = ("--gpu", "H100", "--model", "Qwen3-Coder-30B-A3B", "--no-iterations", "--draws", "0", "--json")
    result = run("simulate", "--trace", str(path), "--trace-format", "mooncake", *cache, *where, *more)
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)["prefix_cache_hit_rate"]


def made(path, calls=200, seed=0):
    """A trace of prompts that grow out of earlier ones, end in the middle of blocks, or come again as they were."""
    rng = random.Random(seed)
    told = [[0]]
    with path.open("w") as file:
        for call in range(calls):
            begun = rng.choice(told)
            ids = begun[: rng.randint(1, len(begun))] + [1000 * call + i for i in range(1, rng.randint(1, 6))]
            told.append(ids)
            length = BLOCK * (len(ids) - 1) + rng.randint(1, BLOCK)
            file.write(json.dumps({"timestamp": 3000 * call, "input_length": length, "output_length": 9, "hash_ids": ids}) + "\n")
    return path


@pytest.mark.parametrize("block", [16, 128, 512])
def test_a_made_trace(tmp_path, block):
    path = made(tmp_path / "made.jsonl")
    assert 0.2 < simulated(path, block, 20 * 200 * BLOCK // block) == pytest.approx(counted(path, block), rel=1e-12)


def test_a_cache_that_forgets_hits_less(tmp_path):
    path = made(tmp_path / "made.jsonl")
    assert simulated(path, 512, 60) < counted(path, 512)


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.exists(), reason="SIMCTL_TRACES names no folder with the published traces")
@pytest.mark.parametrize(("name", "share"), [("conversation", 0.3736), ("synthetic", 0.6512)])
def test_the_published_traces(name, share):
    path = PUBLISHED / f"{name}_trace.jsonl"
    assert counted(path, BLOCK) == pytest.approx(share, abs=0.001)
    assert simulated(path, BLOCK, 300_000) == pytest.approx(counted(path, BLOCK), rel=1e-12)
