"""Settings of llama.cpp's server (sim.engine.rows.llamacpp)."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sim.engine.config import EngineConfig
from sim.errors import UsageError

NEEDS = dict.fromkeys(("max_defer", "min_waiting"), ("prefill_first",))


@dataclass(frozen=True, slots=True)
class LlamaCppOptions:
    """Settings of `EngineConfig.options`. Slots are max_num_seqs, n_batch is max_num_batched_tokens, a slot holds max_model_len.

    Tokens; 0 switches a limit off. `prompt_tail_tokens` are computed in an iteration of their own (recurrent models; inferred from the
    reference's traces, which values from 1 to 4 reproduce). `kv_unified`: one KV buffer for all slots; without it, as where the number of
    slots is given, each slot has a stream of its own.
    """

    n_ubatch: int = 512
    prompt_tail_tokens: int = 0
    max_batch_tokens: int = 0
    prefill_cap: int = 0
    prefill_first: bool = False
    max_defer: int = 0
    min_waiting: int = 0
    slot_similarity: float = 0.1
    kv_unified: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> LlamaCppOptions:
        """The options of a config. Raises UsageError for one that does not exist or is out of range, and where slots do not fit."""
        options = cls(**config.own_options({each.name: each.default for each in fields(cls)}, NEEDS))
        if options.n_ubatch < 1 or min(options.prompt_tail_tokens, options.max_batch_tokens, options.prefill_cap) < 0:
            raise UsageError("llamacpp: n_ubatch must be at least 1 and token limits must not be negative")
        if min(options.max_defer, options.min_waiting) < 0:
            raise UsageError("llamacpp: max_defer and min_waiting must not be negative")
        if not config.enable_chunked_prefill:
            raise UsageError("llamacpp cuts prompts at its batch, always")
        if not options.kv_unified and config.max_num_seqs * config.max_model_len > config.kv_capacity_tokens:
            raise UsageError(
                f"llamacpp: {config.max_num_seqs} slots of {config.max_model_len} tokens each are more than the "
                f"{config.kv_capacity_tokens} tokens of the whole KV cache; lower max_num_seqs or max_model_len"
            )
        return options
