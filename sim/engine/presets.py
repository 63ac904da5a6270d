"""Engines by name: which scheduler class a config gets. A dotted path names a user's own class instead."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from sim.engine.config import EngineConfig
from sim.engine.llamacpp import LlamaCppScheduler
from sim.engine.types import Scheduler
from sim.engine.vllm import VllmScheduler
from sim.errors import UsageError

PRESETS: dict[str, Callable[[EngineConfig], Scheduler]] = {
    "vllm": VllmScheduler,
    "llamacpp": LlamaCppScheduler,
}


def make_scheduler(config: EngineConfig) -> Scheduler:
    """The scheduler that `config.scheduler` names. Raises UsageError when there is no such preset or class."""
    name = config.scheduler
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
