"""The SGLang preset decides what SGLang's own scheduler decides: the same batches, tokens, prefix hits, retractions, new-token
ratio, free and evictable KV after every iteration (`make test-sglang`).
"""

from __future__ import annotations

import gzip
import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from sim.engine.sglang_options import BETS, SglangOptions
from tests.engine.sglang_scheduler_oracle import steps_of_engine, steps_of_ours
from tests.engine.steps_alike import assert_steps_alike, over_workloads
from tests.engine.vllm_oracle import Ask, Workload

DEFAULTS = {each.name: each.default for each in fields(SglangOptions)}
RECORD: dict[str, Any] = json.loads(gzip.decompress((Path(__file__).parent / "data/sglang_decisions.json.gz").read_bytes()))


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    page = draw(st.sampled_from([1, 1, 4, 16]))
    unit = max(page, 4)
    own, output = draw(st.sampled_from([(20, 5), (6, 20), (6, 5), (20, 20)]))
    asks = [
        Ask(
            arrives=draw(st.sampled_from([0, 0, 0, 1, 2, 7])),
            own=draw(st.integers(1, own * unit)),
            output=draw(st.integers(1, output * unit)),
            text=draw(st.integers(0, 2)),
            shared=draw(st.integers(0, 8)) * unit,
            follows=draw(st.none() | st.none() | st.integers(0, index - 1)) if index else None,
        )
        for index in range(draw(st.integers(1, 24)))
    ]
    workload = Workload({}, asks)
    longest = max(len(prompt) + len(output) for prompt, output in workload.conversations())
    seqs = draw(st.integers(1, 16))
    whole = draw(st.sampled_from([False, False, False, True]))
    ignores = draw(st.sampled_from([False, False, True]))
    ratio = draw(st.sampled_from([0.0, 0.0, 0.1, 0.3, 0.7, 1.0]))
    bets = {"init_new_token_ratio": ratio, "min_new_token_ratio": 0.14 * ratio, "ratio_decay_steps": draw(st.sampled_from([5, 600]))}
    spare = draw(st.sampled_from([0, 1, 2, 5, 10, 40, 400])) * max(1, 4 // page)
    workload.limits = {
        "scheduler": "sglang",
        "num_gpu_blocks": -(-(longest + 2) // page) + 3 + spare,
        "block_size": page,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": longest + 17 if whole else max(draw(st.integers(1, 12 * unit)), seqs, page),
        "max_model_len": longest + 1,
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "enable_chunked_prefill": not whole,
        "options": {
            **({name: DEFAULTS[name] for name in BETS} if ignores else bets),
            "max_prefill_tokens": draw(st.sampled_from([16384, 6 * unit])),
            "schedule_policy": draw(st.sampled_from(["fcfs", "lpm"])),
            "ignore_eos": ignores,
            "overlap_schedule": draw(st.booleans()),
        },
    }
    return workload


@pytest.mark.sglang
@pytest.mark.filterwarnings("ignore")  # the engine's own imports
@over_workloads(2000)
@given(workloads())
def test_every_iteration_is_decided_alike(workload: Workload) -> None:
    logging.disable(logging.CRITICAL)  # the engine warns of every retraction
    ours, theirs = steps_of_ours(workload), steps_of_engine(workload)
    logging.disable(logging.NOTSET)
    assert_steps_alike(ours, theirs)
    options = workload.limits["options"]
    event("retracts" if any(step[2] for step in theirs) else "no retraction")
    event("prefix hits" if any(cached for step in theirs for _, cached in step[1]) else "no hits")
    event(f"page of {workload.limits['block_size']}")
    event(f"{options['schedule_policy']}, {'' if options['ignore_eos'] else 'not '}ignoring the end of sequence")
    event("with overlap" if options["overlap_schedule"] else "without overlap")
    event("chunked" if workload.limits["enable_chunked_prefill"] else "whole prompts")


def test_the_log_names_its_engine_and_stresses_retraction_and_hits() -> None:
    assert RECORD["engine"] == "sglang 0.5.23"
    steps = [step for case in RECORD["cases"] for step in case["steps"]]
    assert sum(len(step[2]) for step in steps) >= 25
    assert sum(cached > 0 for step in steps for _, cached in step[1]) > 50


@pytest.mark.parametrize("case", RECORD["cases"], ids=lambda case: case["name"])
def test_recorded_decisions_replay(case: dict[str, Any]) -> None:
    workload = Workload(case["limits"], [Ask(**ask) for ask in case["asks"]])
    assert steps_of_ours(workload) == case["steps"]
