"""Engines by name: one entry of ENGINES each. A dotted path names a user's own scheduler class instead.

An engine's module is imported when one is made: closed forms ask only for its limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from typing import Any

from sim.cost.graphs import GRAPH_TOKENS, sglang_sizes, vllm_sizes
from sim.deployment.memory import DEFAULT_UTILIZATION
from sim.engine.config import EngineConfig
from sim.engine.host_tier import HostTier, host_link
from sim.engine.interface import Scheduler
from sim.engine.overlap import NO_WORK, HostWork
from sim.engine.version_defaults import decodes_in_pieces, drafts_in_pieces
from sim.errors import UsageError
from sim.specs.lookup import did_you_mean

# limits that only vLLM knows, as a user calls them
VLLM_ALONE = {
    "policy": "scheduling policy but first come first served",
    "long_prefill_token_threshold": "long-prefill token threshold",
    "watermark": "admission watermark",
    "prefill_schedule_interval": "prefill schedule interval",
    "engine_version": "choice of version",
    "linear_backend": "choice of linear kernels",
}

NGRAM_SEQ_S = 0.17e-3  # to look for a sequence's n-grams in an iteration: waves of 16 and 32 streams of one 8B on one H100 host


def _graph_settings(config: EngineConfig, host: HostWork, sizes: Callable[[int], tuple[int, ...]] = vllm_sizes) -> dict[str, Any]:
    """Host work is taken to be hidden always, since nothing here says when it is not."""
    options = config.options
    most = int(options.get("cuda_graph_max_bs", 0))
    return {
        "decode_sizes": sizes(most or GRAPH_TOKENS),
        "decodes_alone": bool(most),
        "verify_s": float(options.get("verify_s", 0.0)),
        "graph_reuse": bool(options.get("graph_reuse", True)),
        "block_size": config.block_size,
    }


def _vllm_settings(config: EngineConfig, host: HostWork) -> dict[str, Any]:
    """A served vLLM hides host work behind the GPU; it shows where its schedule cannot."""
    found = {**_graph_settings(config, host), "host_copies": host_link(config) if HostTier.of(config).blocks else None, "host": host}
    drafter = config.options.get("drafter", "ngram")
    found["draft_pieces"] = drafts_in_pieces(drafter, config.engine_version)
    found["decode_pieces"] = bool(config.options.get("decode_pieces", decodes_in_pieces(config.engine_version)))
    return found | ({"verify_seq_s": NGRAM_SEQ_S} if drafter == "ngram" else {})


def _sglang_settings(config: EngineConfig, host: HostWork) -> dict[str, Any]:
    return _graph_settings(config, host, sglang_sizes)


def _llamacpp_settings(config: EngineConfig, host: HostWork) -> dict[str, Any]:
    from sim.engine.llamacpp_options import LlamaCppOptions

    own = LlamaCppOptions.of(config)
    return {"micro_batch": own.n_ubatch, "streams": not own.kv_unified}


@dataclass(frozen=True, slots=True)
class EngineKind:
    """An engine: its scheduler, the share of device memory that it takes by default, (max_num_seqs,
    max_num_batched_tokens) where they do not go by the GPU, whether each of its slots owns its share of the context, whether KV and states
    are pages of one pool (vLLM's), limits that it has no use for, and what its options say about the time of an iteration, as settings of
    sim.engine.step_clock.StepTime.
    """

    scheduler: Callable[[EngineConfig], Scheduler]
    memory_share: float
    batch_limits: tuple[int, int] | None = None
    slots_own_context: bool = False
    pages: bool = True
    lacks: Mapping[str, str] = field(default_factory=lambda: VLLM_ALONE)
    settings: Callable[[EngineConfig, HostWork], dict[str, Any]] = _graph_settings


def _vllm(config: EngineConfig) -> Scheduler:
    from sim.engine.schedulers import AsyncVllmScheduler, VllmScheduler

    return AsyncVllmScheduler(config) if config.overlaps else VllmScheduler(config)


def _sglang(config: EngineConfig) -> Scheduler:
    from sim.engine.schedulers import OverlapSglangScheduler, SglangScheduler
    from sim.engine.sglang_options import SglangOptions

    return (OverlapSglangScheduler if SglangOptions.of(config).overlap_schedule else SglangScheduler)(config)


def _llamacpp(config: EngineConfig) -> Scheduler:
    from sim.engine.schedulers import LlamaCppScheduler

    return LlamaCppScheduler(config)


# Memory: vLLM's own default; SGLang's mem-fraction-static as published in tr164; llama.cpp takes what it needs. Limits: llama.cpp's slots
# and n_batch.
ENGINES = {
    "vllm": EngineKind(_vllm, DEFAULT_UTILIZATION, lacks={}, settings=_vllm_settings),
    "sglang": EngineKind(_sglang, 0.82, pages=False, settings=_sglang_settings),
    "llamacpp": EngineKind(
        _llamacpp,
        0.95,
        (4, 2048),
        slots_own_context=True,
        pages=False,
        lacks=VLLM_ALONE | {"enforce_eager": "switch for CUDA graphs"},
        settings=_llamacpp_settings,
    ),
}


# Engines that people ask for, and what comes nearest
_NEAREST = "is not simulated; --engine vllm with its model, GPUs, batch limit (--max-num-seqs) and dtype is the nearest that is"
NOT_SIMULATED = {
    **dict.fromkeys(("trtllm", "tensorrtllm"), f"TensorRT-LLM {_NEAREST}"),
    **dict.fromkeys(("tgi", "textgenerationinference"), f"text-generation-inference {_NEAREST}"),
    **{name: f"{name} {_NEAREST}" for name in ("lmdeploy", "mlcllm", "exllamav2", "aphrodite")},
    "nim": "a NIM chooses its engine and settings by itself; --engine vllm with its model and GPUs is the nearest that is",
    "ollama": "Ollama runs llama.cpp: --engine llamacpp",
    **dict.fromkeys(("mlx", "mlxlm"), "MLX is not simulated; --engine llamacpp runs on the same cards"),
}


def engine_of(name: str) -> EngineKind:
    """The engine of that name; of a dotted path, that class with what holds for vLLM. Raises UsageError for an unknown name."""
    if name in ENGINES:
        return ENGINES[name]
    if (other := name.lower().replace("-", "").replace("_", "")) in NOT_SIMULATED:
        raise UsageError(f"engine {name!r}: {NOT_SIMULATED[other]}")
    if "." not in name.strip("."):
        hint = did_you_mean(name, ENGINES) or ";"
        raise UsageError(f"unknown engine {name!r}{hint} known: {', '.join(ENGINES)}, or the dotted path of a scheduler class")
    return replace(ENGINES["vllm"], scheduler=_named, settings=_graph_settings)


def _named(config: EngineConfig) -> Scheduler:
    needs = ("add", "schedule", "complete", "unfinished", "waiting", "kv_blocks_used")
    scheduler: Scheduler = made_by_path("engine", config.scheduler, needs, config)
    return scheduler


def made_by_path(kind: str, path: str, needs: Sequence[str], /, *given: Any, **options: Any) -> Any:
    """An object of the class at a dotted path. Raises UsageError where it cannot be made, or lacks one of the attributes that it needs."""
    module, _, name = path.rpartition(".")
    try:
        made = getattr(import_module(module), name)(*given, **options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{kind} {path!r} cannot be made: {error}") from None
    if missing := [each for each in needs if not hasattr(made, each)]:
        raise UsageError(f"{kind} {path!r} lacks {', '.join(missing)}")
    return made


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler that `config.scheduler` names. Raises UsageError when there is no such engine or class, or as `check_has`."""
    check_has(config.scheduler, config)
    return engine_of(config.scheduler).scheduler(config)


def check_has(engine: str, limits: Any) -> None:
    """Raises UsageError where the engine has no use for one of these limits (fields of a dataclass), which is not at its default."""
    lacks = engine_of(engine).lacks
    for limit in fields(limits):
        if limit.name in lacks and getattr(limits, limit.name) != limit.default:
            raise UsageError(f"{engine} has no {lacks[limit.name]}; vllm has")


def step_settings(config: EngineConfig, host: HostWork = NO_WORK) -> dict[str, Any]:
    """Settings of sim.engine.step_clock.StepTime for the engine; `host` is the work that one may hide behind the GPU."""
    return engine_of(config.scheduler).settings(config, host)
