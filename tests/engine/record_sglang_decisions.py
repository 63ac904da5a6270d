"""Record SGLang's decisions on a few seeded workloads, for replay where it is not installed.

`python -m tests.engine.record_sglang_decisions` where the package is installed (`make test-sglang` installs it).
"""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from tests.engine.record_vllm_decisions import seeded
from tests.engine.sglang_scheduler_oracle import steps_of_engine

LIMITS = {"scheduler": "sglang", "max_num_batched_tokens": 128, "max_model_len": 2000, "max_num_seqs": 16}
STARVED = {"num_gpu_blocks": 40}  # 624 tokens; the longest request has 541
OPTIONS = {
    "init_new_token_ratio": 0.7,
    "min_new_token_ratio": 0.098,
    "ratio_decay_steps": 600,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "ignore_eos": False,
    "overlap_schedule": False,
}
BET = {"init_new_token_ratio": 1.0, "min_new_token_ratio": 0.0, "ratio_decay_steps": 5}
# Each stresses one rule: limits, options
CASES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "plain": ({}, {}),
    "longest prefix first": ({}, {"schedule_policy": "lpm"}),
    "kv starvation": (STARVED, BET),
    "kv starvation, longest prefix first": (STARVED, {**BET, "schedule_policy": "lpm"}),
    "kv starvation, no prefix caching": ({**STARVED, "enable_prefix_caching": False}, BET),
    "pages of one token": ({"block_size": 1, "num_gpu_blocks": 625}, BET),
    "few sequences": ({"max_num_seqs": 2}, {}),
    "fast decay of the ratio": (STARVED, {"ratio_decay_steps": 5}),
    "overlapping": ({}, {"overlap_schedule": True}),
    "overlapping, kv starvation": (STARVED, {**BET, "overlap_schedule": True}),
    "overlapping, pages of one token": ({"block_size": 1, "num_gpu_blocks": 625}, {**BET, "overlap_schedule": True}),
    "whole prompts": ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2000}, {"max_prefill_tokens": 200}),
    "ignoring the end of sequence": (STARVED, {"ignore_eos": True}),
    "the same without prefix caching": ({**STARVED, "enable_prefix_caching": False}, {"ignore_eos": True}),
}


def main() -> None:
    """Write the log of every case, with the version of the engine that made it."""
    records = []
    logging.disable(logging.CRITICAL)  # the engine warns of every retraction
    for seed, (name, (limits, options)) in enumerate(CASES.items()):
        workload = seeded(seed, {**LIMITS, **limits, "options": {**OPTIONS, **options}})
        for ask in workload.asks:  # answers longer than prompts, so that bets on an early end are lost
            ask.own, ask.output = ask.own // 3 + 1, 4 * ask.output
        steps = steps_of_engine(workload)
        records.append({"name": name, "limits": workload.limits, "asks": [asdict(ask) for ask in workload.asks], "steps": steps})
        print(f"{name}: {len(steps)} iterations, {sum(len(step[2]) for step in steps)} retractions")
    log = json.dumps({"engine": "sglang " + version("sglang"), "cases": records}, separators=(",", ":"))
    # mtime 0 keeps the file identical when the decisions are
    (Path(__file__).parent / "data/sglang_decisions.json.gz").write_bytes(gzip.compress(log.encode(), mtime=0))


if __name__ == "__main__":
    main()
