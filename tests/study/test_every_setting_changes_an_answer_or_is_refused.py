"""Each setting of a deployment, under each engine, changes an answer or is refused: none is passed over."""

from dataclasses import fields, replace

import pytest

from sim import Deployment, Workload, simulate
from sim.engine.llamacpp_options import LlamaCppOptions
from sim.engine.sglang_options import SglangOptions
from sim.engine.speculative import KNOWN, OF_OTHERS
from sim.errors import SimctlError
from sim.specs.attention_policy import blocks
from sim.specs.lora import Lora
from sim.specs.models import get_model
from sim.study.deployment import Limits

DRAWN = Workload.drawn(32, request_rate=200.0, input_len=300, output_len=300, prefix_len=210, length_cv=0.6, turns=2, think_time_s=0.1)
CROWD = Workload(replace(DRAWN.trace, priorities=[i % 3 for i in range(len(DRAWN.trace))]))
DRAFTS = {"draft_tokens": 3}
FEW = {"num_gpu_blocks": 400}  # KV is short
WHOLE = {"max_model_len": 2700, "max_num_batched_tokens": 2700}
# a setting: a value that is not its default, and what else is set so that it can matter
LIMITS = {
    "max_num_seqs": (3, {}),
    "max_num_batched_tokens": (700, {}),
    "gpu_memory_utilization": (0.78, {}),
    "block_size": (64, {}),
    "max_model_len": (1000, {}),
    "num_gpu_blocks": (500, {}),
    "enable_prefix_caching": (False, {}),
    "enable_chunked_prefill": (False, WHOLE),
    "long_prefill_token_threshold": (100, {}),
    "policy": ("priority", FEW),
    "attention": (blocks(4), {}),
    "host_kv_bytes": (8e9, {}),
    "kv_offloading_size": (4.0, FEW),
    "draft": (get_model("Llama-3.2-1B"), {}),
    "enforce_eager": (True, {}),
    "lora": (Lora(), {}),
    "options": ({"nothing": 1}, {}),
    "prefill_schedule_interval": (4, {}),
    "engine_version": ("0.23", {"options": DRAFTS | {"drafter": "eagle"}}),
    "batch_knee": (0.9, {}),
    "linear_backend": ("marlin", {}),
}
VLLM = {
    "draft_tokens": (3, {}),
    "acceptance": (0.2, DRAFTS),
    "acceptance_decay": (0.5, DRAFTS),
    "drafter": ("eagle", DRAFTS),
    "seed": (5, DRAFTS),
    "acceptance_per_position": ("0.9,0.8,0.1", DRAFTS),
    "async_scheduling": (False, {}),
    "decode_pieces": (True, {}),
    "verify_s": (0.01, DRAFTS),
    "graph_reuse": (False, DRAFTS),
    "cuda_graph_max_bs": (4, {}),
    "host_blocks": (300, {}),
    "host_gb_per_s": (0.1, {"host_blocks": 300}),
    "host_latency_us": (1e5, {"host_blocks": 300}),
    "chunk_tokens": (64, {"host_blocks": 300}),
    "store_threshold": (2, {"host_blocks": 300}),
    "max_tracker_size": (5, {"host_blocks": 300, "store_threshold": 2}),
    "warm_prefixes": (True, {}),
}
SGLANG = {
    "max_prefill_tokens": (600, {}),
    "schedule_policy": ("lpm", {}),
    "init_new_token_ratio": (0.2, {}),
    "min_new_token_ratio": (0.7, {}),
    "ratio_decay_steps": (3, {}),
    "clip_new_tokens": (10, {}),
    "retract_decode_steps": (200, {"init_new_token_ratio": 0.1}),
    "overlap_schedule": (False, {}),
    "ignore_eos": (True, {}),
    "cuda_graph_max_bs": (4, {}),
}
LLAMACPP = {
    "n_ubatch": (128, {}),
    "prompt_tail_tokens": (4, {}),
    "max_batch_tokens": (600, {}),
    "prefill_cap": (300, {}),
    "prefill_first": (True, {}),
    "max_defer": (1, {"prefill_first": True}),
    "min_waiting": (2, {"prefill_first": True}),
    "slot_similarity": (0.9, {}),
    "kv_unified": (True, {}),
}
SLOTS = {"max_num_seqs": 4, "max_model_len": 6000}
ENGINES = {
    "vllm": ({}, FEW, VLLM),
    "sglang": ({}, FEW, SGLANG),
    "llamacpp": (SLOTS, SLOTS, LLAMACPP),
}
ANSWERS = {}


def answer(**limits):
    """Every figure of a run, or the line that refuses it."""
    return ANSWERS[key] if (key := repr(limits)) in ANSWERS else ANSWERS.setdefault(key, _asked(limits))


def _asked(limits):
    try:
        found = simulate(Deployment.of("Llama-3.1-8B", "A10", **limits), CROWD, draws=0, keep_iterations=False).to_dict()
    except SimctlError as refused:
        return str(refused)
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


@pytest.mark.parametrize("engine", ENGINES)
def test_limits(engine):
    base = {"engine": engine} | ENGINES[engine][0]
    for name, (value, more) in LIMITS.items():
        assert answer(**base | more | {name: value}) != answer(**base | more), f"{engine} passes over {name}"


@pytest.mark.parametrize("engine", ENGINES)
def test_options_of_an_engine(engine):
    _, limits, own = ENGINES[engine]
    for name, (value, more) in own.items():
        before, after = (answer(engine=engine, **limits, options=more | one) for one in ({}, {name: value}))
        assert {type(before), type(after)} == {dict}, f"{engine} does not run with {name}: {before}, {after}"
        assert after != before, f"{engine} passes over {name}"


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine in ENGINES for name, (_, more) in ENGINES[engine][2].items() if more]
)
def test_an_option_that_changes_nothing_alone_is_refused(engine, name):
    _, limits, own = ENGINES[engine]
    if name != "retract_decode_steps":  # what else is set there is a loss that a run may have anyway
        assert name in answer(engine=engine, **limits, options={name: own[name][0]})


def test_each_is_tried():
    assert {"engine", *LIMITS} == {each.name for each in fields(Limits)}
    of_towers = {"language_model_only"}  # of a model that sees: tests/deployment/test_public_start_lines_and_image_encoders.py
    of_pools = {"kv_cache_memory_bytes"}  # in place of what memory leaves, and behind a number of blocks
    assert set(VLLM) == {*KNOWN, *OF_OTHERS} - of_towers - of_pools
    assert answer(options={"kv_cache_memory_bytes": 5e8}) != answer()
    assert set(SGLANG) == {each.name for each in fields(SglangOptions)}
    assert set(LLAMACPP) == {each.name for each in fields(LlamaCppOptions)}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"options": {"draft_tokens": 3, "drafter": "draft_model"}}, "needs --engine-option draft-model=NAME"),
        ({"options": DRAFTS, "draft": get_model("Llama-3.2-1B")}, "a drafter that is a model"),
        ({"options": DRAFTS | {"acceptance": 0.5, "acceptance_per_position": "0.9,0.8,0.1"}}, "leave these out"),
        ({"engine": "sglang", "options": {"ignore_eos": True, "min_new_token_ratio": 0.5}}, "changes nothing with ignore_eos"),
    ],
)
def test_two_that_do_not_go_together_are_refused(more, says):
    assert says in answer(**more)
