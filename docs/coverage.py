"""`python docs/coverage.py`: the site's page of what is read, priced and measured, from the tables that the code reads by."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from sim.engine.registry import ENGINES, make_scheduler
from sim.errors import SimctlError, UsageError
from sim.specs.architectures import TEXT_PARTS, supported
from sim.specs.attention_policy import blocks, dense
from sim.specs.coverage import BLOCKS, PRECISIONS, engine_architectures, unread_architectures
from sim.specs.gguf import GGUF
from sim.specs.gpus import list_gpus
from sim.specs.lora import Lora
from sim.specs.parallel import Parallel
from sim.specs.quantisation import METHODS
from sim.study.deployment import Deployment, plan_engine
from sim.workload.formats import FORMATS

INTRO = """# Coverage: models, precisions, GPUs and files

Made from the tables that the code reads by. `simctl models --check CONFIG` says the same of one model.

* **measured**: engine runs that contain it stand behind its rates
* **priced**: its bytes, flops and launches are in the formula; nobody ran it
* **checked**: predicted first, then run; its rates were not learnt from it
* **refused**: an error names the field, block or option
"""

MOE = "Qwen3-Coder-30B-A3B"
# What of a deployment -> (how it is asked for, the mark of measured runs that have it)
FEATURES: dict[str, tuple[dict[str, Any], str]] = {
    "tensor parallel, linked GPUs": ({"tp": 2}, "_tp2."),
    "tensor parallel, PCIe without peers": ({"gpu": "L40S", "tp": 2}, ""),
    "tensor parallel over two nodes": ({"tp": 16, "model": "Qwen3-235B-A22B"}, ""),
    "pipeline parallel": ({"parallel": Parallel(2, 1)}, "_pp2."),
    "data parallel attention": ({"model": MOE, "parallel": Parallel(1, 2)}, "_dp2."),
    "expert parallel": ({"model": MOE, "tp": 2, "parallel": Parallel(1, 1, True)}, "_ep."),
    "replicas behind a router": ({"replicas": 2}, "served_qwen3-14b_x2."),
    "chunked prefill": ({"enable_chunked_prefill": True}, "served_"),
    "whole prompts": ({"enable_chunked_prefill": False, "max_model_len": 8192, "max_num_batched_tokens": 8192}, ""),
    "prefix caching": ({"enable_prefix_caching": True}, ""),
    "asynchronous scheduling": ({}, "served_"),
    "synchronous scheduling": ({"options": {"async_scheduling": False}}, "_sync."),
    "no CUDA graphs": ({"enforce_eager": True}, "_eager."),
    "8-bit KV cache": ({"kv_dtype": "fp8"}, "_fp8kv."),
    "drafts of n-grams": ({"options": {"draft_tokens": 3, "drafter": "ngram"}}, "_ngram"),
    "drafts of a head (EAGLE)": ({"options": {"draft_tokens": 3, "drafter": "eagle"}}, "_eagle3"),
    "adapters (LoRA)": ({"lora": Lora()}, "_lora."),
    "priorities": ({"policy": "priority"}, ""),
    "prefill held back": ({"prefill_schedule_interval": 4}, ""),
    "evicted prefixes in host RAM": ({"kv_offloading_size": 16.0, "enable_prefix_caching": True}, ""),
    "KV in host RAM": ({"attention": dense("host"), "host_kv_bytes": 64e9}, ""),
    "decode over selected blocks": ({"attention": blocks(64)}, ""),
}


def measured_runs() -> dict[str, list[str]]:
    """Names of packaged runs: those that rates were learnt from, and those that were predicted first."""
    folder = files("scenarios").joinpath("data/measured")
    names = {part: [each.name for each in folder.joinpath(part).iterdir()] for part in ("h100", "h200", "validation")}
    return {"measured": names["h100"] + names["h200"], "checked": names["validation"]}


def status(engine: str, fields: dict[str, Any], mark: str, runs: dict[str, list[str]]) -> str:
    """Whether an engine takes what is asked for, and what stands behind the answer."""
    try:
        d = Deployment.of(**{"model": "Llama-3.1-8B", "gpu": "H100", "engine": engine} | fields)
        make_scheduler(plan_engine(d)[0])
    except (UsageError, SimctlError):
        return "refused"
    if engine != "vllm" or not mark:
        return "priced"
    return next((word for word, names in runs.items() if any(mark in name for name in names)), "priced")


def page() -> str:
    """The page as Markdown."""
    parts = [f"| {part.name} | {part.status} | {part.remark} |" for part in BLOCKS.values()]
    plain = [f"| {name} | {status} | {remark} |" for name, (status, remark) in PRECISIONS.items() if name not in GGUF]
    version, architectures = engine_architectures()
    unread = unread_architectures()
    share = f"{len(architectures) - len(unread)} of the {len(architectures)} text architectures of vLLM {version}"
    runs = measured_runs()
    features = [f"| {name} | {' | '.join(status(engine, *fields, runs) for engine in ENGINES)} |" for name, fields in FEATURES.items()]
    formats = [f"| `{name}` | {says} |" for name, (_, _, says) in FORMATS.items()]
    return "\n".join(
        [
            INTRO,
            "## Blocks of a model\n\n| block | status | how |\n|---|---|---|",
            *parts,
            "\n## Model types\n",
            f"`model_type` values: {', '.join(supported())}.\n",
            f"Multimodal checkpoints are read by their {', '.join(f'`{part}`' for part in TEXT_PARTS)}. Any other type is refused.\n",
            f"These read {share}; the others are {', '.join(unread)}.",
            "\n## Weight precisions\n\n| dtype | status | remark |\n|---|---|---|",
            *plain,
            f"\nGGUF types under llama.cpp, priced: {', '.join(GGUF)}.\n",
            f"`quantization_config` methods: {', '.join(METHODS)}. Any other is refused.",
            "\n## GPUs\n",
            f"H100 and H200 are measured; all others are priced by their datasheets or a chip of their kind: {', '.join(list_gpus())}.",
            f"\n## Parallelism and engines\n\n| what | {' | '.join(ENGINES)} |\n|---|{'---|' * len(ENGINES)}",
            *features,
            "\n## Workload files\n\n| format | what |\n|---|---|",
            *formats,
            "",
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
