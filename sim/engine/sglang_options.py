"""Settings of the SGLang preset, under the engine's own names where it has one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sim.engine.config import EngineConfig
from sim.errors import UsageError

SCHEDULE_POLICIES = ("fcfs", "lpm")
BETS = ("init_new_token_ratio", "min_new_token_ratio", "ratio_decay_steps")


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Settings of `EngineConfig.options`. chunked_prefill_size is max_num_batched_tokens, max_running_requests is max_num_seqs.

    `schedule_policy` lpm takes the longest cached prefix first. The new-token ratio starts at `init_new_token_ratio`, falls to
    `min_new_token_ratio` over `ratio_decay_steps` decode iterations, and counts at most `clip_new_tokens` tokens of a request.
    """

    max_prefill_tokens: int = 16384
    schedule_policy: str = "fcfs"
    init_new_token_ratio: float = 0.7
    min_new_token_ratio: float = 0.098
    ratio_decay_steps: int = 600
    clip_new_tokens: int = 4096
    retract_decode_steps: int = 20
    overlap_schedule: bool = True  # decide a batch while the one before it runs
    ignore_eos: bool = False  # requests say so, as benchmarks do: nothing is bet on an early end
    cuda_graph_max_bs: int = 0  # decode batches up to this run padded graphs, larger ones eagerly; 0: as vLLM does

    @classmethod
    def of(cls, config: EngineConfig) -> SglangOptions:
        """The options of a config. Raises UsageError for one that does not exist or is out of range."""
        options = cls(**config.own_options({each.name: each.default for each in fields(cls)}))
        if options.schedule_policy not in SCHEDULE_POLICIES:
            raise UsageError(f"unknown schedule_policy {options.schedule_policy!r}; known: {', '.join(SCHEDULE_POLICIES)}")
        if not 0.0 <= options.min_new_token_ratio <= options.init_new_token_ratio <= 1.0:
            raise UsageError("sglang: 0 <= min_new_token_ratio <= init_new_token_ratio <= 1 must hold")
        if min(options.max_prefill_tokens, options.ratio_decay_steps, options.clip_new_tokens) < 1:
            raise UsageError("sglang: max_prefill_tokens, ratio_decay_steps and clip_new_tokens must be at least 1")
        if options.ignore_eos and (bets := [name for name in BETS if name in config.options]):
            raise UsageError(f"sglang option {bets[0]} changes nothing with ignore_eos: nothing is bet on an early end")
        if config.enable_chunked_prefill and config.max_num_batched_tokens < config.block_size:  # a chunk is whole pages
            raise UsageError(
                f"sglang: a token budget of {config.max_num_batched_tokens} holds no page of {config.block_size} tokens (block size)"
            )
        return options
