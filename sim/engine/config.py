"""Engine configuration: the limits its scheduler obeys, under the names its own command line uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.engine.version_defaults import drafts_in_pieces, schedules_ahead
from sim.engine.versions import NEWEST, rules_of
from sim.errors import UsageError
from sim.specs.lookup import did_you_mean

POLICIES = ("fcfs", "priority")
NO_NEEDS: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one replica. Token and block counts, not bytes: memory is turned into `num_gpu_blocks` before this point.

    Names and meanings are those of vLLM 0.33; `num_gpu_blocks` includes the one block that vLLM sets aside as its null block. `scheduler`
    is a preset name or the dotted path of a class taking this config; `options` are the preset's own settings.
    """

    scheduler: str = "vllm"
    num_gpu_blocks: int = 16384
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 131072
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    reserve_full_prompt: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    prefill_schedule_interval: int = 1
    engine_version: str = NEWEST  # of vLLM: whose decisions are taken (sim.engine.versions)
    max_loras: int = 0  # adapters that the requests of one batch ask for at most; 0: any number

    def __post_init__(self) -> None:
        at_least_one = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "prefill_schedule_interval")
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_gpu_blocks < 2:
            raise UsageError(f"num_gpu_blocks must be at least 2, got {self.num_gpu_blocks}")
        if self.long_prefill_token_threshold < 0:
            raise UsageError(f"long_prefill_token_threshold must not be negative, got {self.long_prefill_token_threshold}")
        if self.long_prefill_token_threshold > self.max_model_len:
            raise UsageError(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) must not exceed max_model_len ({self.max_model_len})"
            )
        if not 0.0 <= self.watermark < 1.0:
            raise UsageError(f"watermark must lie in [0, 1), got {self.watermark}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs})")
        if self.policy not in POLICIES:
            raise UsageError(f"unknown policy {self.policy!r}; known: {', '.join(POLICIES)}")
        if self.prefill_schedule_interval > 1 and not rules_of(self.engine_version).prefill_interval:
            raise UsageError(f"vLLM {self.engine_version} has no prefill_schedule_interval; 0.33 has")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise UsageError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must reach "
                f"max_model_len ({self.max_model_len})"
            )

    def own_options(self, defaults: Mapping[str, Any], needs: Mapping[str, tuple[str, ...]] = NO_NEEDS) -> dict[str, Any]:
        """`options`, checked against an engine's own names and the types of their defaults (a whole number may stand for a float). `needs`
        maps one to those without which it changes nothing: one of them must be given, too. Raises UsageError for one that does not exist,
        is of another type, or stands alone.
        """
        for name, value in self.options.items():
            if name not in defaults:
                if name.startswith(("draft", "acceptance")):
                    from sim.engine.other_flags import DRAFTS  # patterns that no answer needs

                    raise UsageError(f"{self.scheduler} has no option {name!r}: {DRAFTS}")
                raise UsageError(
                    f"{self.scheduler} has no option {name!r}{did_you_mean(name, defaults) or ';'} known: {', '.join(defaults)}"
                )
            wanted = type(defaults[name])
            fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
            if not fits or (isinstance(value, bool) and wanted is not bool):
                kind = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}[wanted]
                raise UsageError(f"{self.scheduler} option {name} must be {kind}, got {value!r}")
            if name in needs and not any(each in self.options for each in needs[name]):
                raise UsageError(f"{self.scheduler} option {name} changes nothing without {' or '.join(needs[name])}")
        return dict(self.options)

    @property
    def overlaps(self) -> bool:
        """Whether the engine decides an iteration while the one before it runs."""
        return overlaps(self.scheduler, self.options, self.engine_version)

    @property
    def kv_capacity_tokens(self) -> int:
        """KV slots that requests can fill."""
        return (self.num_gpu_blocks - 1) * self.block_size


def overlaps(engine: str, options: Mapping[str, Any], engine_version: str) -> bool:
    """Whether an engine decides an iteration while the one before it runs: vLLM's default, except with drafts from n-grams, or an older
    version's from a model.
    """
    drafter = options.get("drafter", "ngram")
    waits = options.get("draft_tokens") and (drafter == "ngram" or drafts_in_pieces(drafter, engine_version))
    return engine == "vllm" and bool(options.get("async_scheduling", not waits and schedules_ahead(engine_version)))
