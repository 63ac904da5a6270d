"""Engines by name: which scheduler class a config gets. A dotted path names a user's own class instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

from sim.engine.boost import NO_BOOST, Boost
from sim.engine.config import EngineConfig
from sim.engine.llamacpp import LlamaCppOptions, LlamaCppScheduler
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.sglang import OverlapSglangScheduler, SglangScheduler
from sim.engine.sglang_options import SglangOptions
from sim.engine.tiers import tiers_of
from sim.engine.types import Scheduler
from sim.engine.vllm import VllmScheduler
from sim.engine.vllm_async import AsyncVllmScheduler
from sim.errors import UsageError


def _vllm(config: EngineConfig) -> Scheduler:
    return AsyncVllmScheduler(config) if config.overlaps else VllmScheduler(config)


# limits that the other presets do not know, as a user calls them
VLLM_ALONE = {
    "policy": "scheduling policy but first come first served",
    "long_prefill_token_threshold": "long-prefill token threshold",
    "watermark": "admission watermark",
}


def _sglang(config: EngineConfig) -> Scheduler:
    return (OverlapSglangScheduler if SglangOptions.of(config).overlap_schedule else SglangScheduler)(config)


PRESETS: dict[str, Callable[[EngineConfig], Scheduler]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": LlamaCppScheduler,
}


def capture_sizes(most: int) -> list[int]:
    """Batch sizes that vLLM 0.32 captures decode graphs for, up to `most`: 1, 2, 4, every 8 below 256, every 16 from
    there.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    return [size for size in sizes if size <= most]


def step_settings(config: EngineConfig, host: HostWork = NO_WORK, boost: Boost = NO_BOOST) -> dict[str, Any]:
    """What the engine's options say about the time of an iteration, as settings of sim.engine.steptime.StepTime.

    `host` is the work that a served vLLM hides behind the GPU; it shows where its schedule cannot. Of other engines it is
    taken to be hidden always, since nothing here says when it is not. Nor do the other presets have vLLM's second model runner:
    what its iterations with prefill take longer is no cost of theirs. `boost` is what a rested GPU computes faster, of an
    engine that keeps its two clocks (sim.engine.overlap).
    """
    options = config.options
    if config.scheduler == "llamacpp":
        own = LlamaCppOptions.of(config)
        return {"micro_batch": own.n_ubatch, "streams": not own.kv_unified, "second_runner": False}
    graphs = capture_sizes(int(options.get("cuda_graph_max_bs", 0)))
    return {
        "capture_sizes": graphs,
        "verify_s": float(options.get("verify_s", 0.0)),
        "graph_reuse": bool(options.get("graph_reuse", True)),
        "tiers": tiers_of(config) if config.scheduler == "vllm" else (),
        "tier_overlap": float(options.get("tier_overlap", 0.0)),
        "block_size": config.block_size,
        "host": host if config.scheduler == "vllm" else NO_WORK,
        "second_runner": config.scheduler != "sglang",  # of an unknown class what holds for vLLM
        "boost": boost if config.scheduler == "vllm" else NO_BOOST,
    }


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler that `config.scheduler` names. Raises UsageError when there is no such preset or class, or when a preset has no use
    for a limit that is set.
    """
    name = config.scheduler
    if name in PRESETS and name != "vllm":
        if name == "llamacpp" and not config.enable_chunked_prefill:
            raise UsageError("llamacpp cuts prompts at its batch, always")
        for field in fields(EngineConfig):
            if field.name in VLLM_ALONE and getattr(config, field.name) != field.default:
                raise UsageError(f"{name} has no {VLLM_ALONE[field.name]}; vllm has")
    if name in PRESETS:
        return PRESETS[name](config)
    module_name, _, class_name = name.rpartition(".")
    if not module_name:
        raise UsageError(f"unknown engine {name!r}; known: {', '.join(PRESETS)}, or the dotted path of a scheduler class")
    try:
        scheduler = getattr(import_module(module_name), class_name)(config)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"engine {name!r} cannot be made: {error}") from None
    missing = [each for each in ("add", "schedule", "complete", "unfinished", "waiting", "kv_blocks_used") if not hasattr(scheduler, each)]
    if missing:
        raise UsageError(f"engine {name!r} lacks {', '.join(missing)}")
    return scheduler  # type: ignore[no-any-return]
