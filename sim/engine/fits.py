"""Requests that no schedule can finish, refused by name when they are queued."""

from __future__ import annotations

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.sglang_options import SglangOptions
from sim.errors import UsageError


def check_fits(request: Request, config: EngineConfig, spare_tokens: int = 0) -> None:
    """Raises UsageError naming a request that is too long for the model or for the whole KV cache.

    `spare_tokens` are KV slots it needs past its own (draft tokens).
    """
    if request.prompt_tokens < 1 or request.output_tokens < 1:
        raise UsageError(
            f"request {request.request_id!r} needs at least one prompt and one output token, "
            f"got {request.prompt_tokens} and {request.output_tokens}"
        )
    total = request.prompt_tokens + request.output_tokens
    if total > config.max_model_len:
        raise UsageError(
            f"request {request.request_id!r} needs {total} tokens (prompt {request.prompt_tokens} + output "
            f"{request.output_tokens}), more than max_model_len {config.max_model_len}"
        )
    # The last token is sampled and sent but its own KV is never written.
    slots = min(total - 1 + spare_tokens, config.max_model_len)
    if slots > config.kv_capacity_tokens:
        raise UsageError(
            f"request {request.request_id!r} needs {slots} KV slots, more than the {config.kv_capacity_tokens} "
            f"of the whole cache ({config.num_gpu_blocks} blocks of {config.block_size}, one of them reserved)"
        )


def check_admitted(request: Request, config: EngineConfig, options: SglangOptions) -> None:
    """Raises UsageError for a request that SGLang never admits, though it would fit."""
    total, page = request.prompt_tokens + min(request.output_tokens, options.clip_new_tokens), config.block_size
    if options.ignore_eos and not config.enable_prefix_caching:  # this admission counts whole pages, and a token more
        total = -(-(request.prompt_tokens + request.output_tokens) // page) * page + 1
    if total + page >= config.kv_capacity_tokens:
        raise UsageError(
            f"request {request.request_id!r} needs {total + page} tokens, a spare page included, and is admitted "
            f"only below the {config.kv_capacity_tokens} of the whole cache"
        )
