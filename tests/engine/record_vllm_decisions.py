"""Record the engine's decisions on a few seeded workloads, for replay where the engine is not installed.

python -m tests.engine.record_vllm_decisions tests/engine/data/vllm_0.33_decisions.json.gz
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

from sim.engine.versions import rules_of
from tests.engine.vllm_oracle import Ask, Workload, installed, steps_of_engine

# Each stresses one rule; all share the defaults in `seeded`.
CASES: dict[str, dict[str, object]] = {
    "plain": {},
    "kv starvation": {"num_gpu_blocks": 34},
    "kv starvation, no prefix caching": {"num_gpu_blocks": 34, "enable_prefix_caching": False},
    "kv starvation, priorities": {"num_gpu_blocks": 36, "policy": "priority"},
    "admission on the first chunk": {"num_gpu_blocks": 34, "reserve_full_prompt": False},
    "watermark": {"num_gpu_blocks": 60, "watermark": 0.1},
    "few sequences": {"max_num_seqs": 2},
    "small token budget": {"max_num_batched_tokens": 48},
    "long prefill threshold": {"long_prefill_token_threshold": 40},
    "whole prompts only": {"enable_chunked_prefill": False, "max_num_batched_tokens": 600, "max_model_len": 600},
    "small blocks": {"block_size": 4, "num_gpu_blocks": 150},
    "drafts": {"options": {"draft_tokens": 3}},
    "drafts, kv starvation": {"num_gpu_blocks": 36, "options": {"draft_tokens": 2}},
    "a draft model": {"num_gpu_blocks": 60, "options": {"draft_tokens": 2, "drafter": "draft_model"}},
    "eagle": {"num_gpu_blocks": 60, "options": {"draft_tokens": 3, "drafter": "eagle"}},
}
WITH_INTERVAL = {"prefill interval": {"prefill_schedule_interval": 4}}
# decided while the iteration before runs
OVERLAPPING = ("plain", "kv starvation", "kv starvation, priorities", "few sequences", "small token budget", "a draft model", "eagle")


def seeded(seed: int, limits: dict[str, object]) -> Workload:
    """Sixty requests: three shared texts, some conversations, bursts and lulls."""
    rng = random.Random(seed)
    asks: list[Ask] = []
    for index in range(60):
        follows = rng.randrange(index) if index and rng.random() < 0.2 and asks[index - 1].follows is None else None
        if follows is not None and asks[follows].follows is not None:
            follows = None
        asks.append(
            Ask(
                arrives=rng.choice([0, 0, 1, 3, 9]),
                own=rng.randint(1, 120),
                output=rng.randint(1, 50),
                text=rng.randrange(3),
                shared=16 * rng.randrange(5),
                priority=rng.randrange(3),
                follows=follows,
            )
        )
    defaults: dict[str, object] = {
        "num_gpu_blocks": 400,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": 2048,
    }
    return Workload(defaults | limits, asks)


def main(path: str) -> None:
    """Write the log of every case to `path`, with the version of the engine that made it."""
    records = []
    limits = CASES | (WITH_INTERVAL if rules_of(installed()).prefill_interval else {})
    cases = [(name, False) for name in limits] + [(name, True) for name in limits if name in (*OVERLAPPING, *WITH_INTERVAL)]
    for seed, (name, overlap) in enumerate(cases):
        workload = seeded(seed, limits[name] | {"engine_version": installed()})
        steps = steps_of_engine(workload, overlap)
        asks = [asdict(ask) for ask in workload.asks]
        title = name + (", overlapping" if overlap else "")
        records.append({"name": title, "overlap": overlap, "limits": workload.limits, "asks": asks, "steps": steps})
        print(f"{title}: {len(steps)} iterations, {sum(len(step[2]) for step in steps)} preemptions")
    log = json.dumps({"engine": "vllm " + installed(), "cases": records}, separators=(",", ":"))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # mtime 0 keeps the file identical when the decisions are
    target.write_bytes(gzip.compress(log.encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
