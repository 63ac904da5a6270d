"""llama.cpp's server: a fixed number of slots, one batch per iteration, decodes first and then prompts in slot order.

Every slot owns its share of the context, so nothing is preempted; a request waits for a free slot. The batch holds one token of each
generating slot and then prompt tokens, slot after slot, until `n_batch` tokens are in it; the device computes it in micro-batches of
`n_ubatch`, of consecutive slots and equal shares (sim.engine.microbatch). A model with recurrent state has its prompt's last few tokens
computed in an iteration of their own, because the server checkpoints the state before them.

Beside the stock behaviour: a budget for the whole batch, a cap on one slot's prompt tokens, and prefill-first (while prompts wait, hold
decodes back so that first tokens come sooner), with a limit on how many are held back (the first in slot order) and a number of waiting
prompts below which none are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

from sim.engine.config import EngineConfig
from sim.engine.interface import BUDGET, SLOTS, Iteration, Outcome, Request
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
        """The options of a config. Raises UsageError for one that does not exist or is out of range."""
        options = cls(**config.own_options({each.name: each.default for each in fields(cls)}, NEEDS))
        if options.n_ubatch < 1 or min(options.prompt_tail_tokens, options.max_batch_tokens, options.prefill_cap) < 0:
            raise UsageError("llamacpp: n_ubatch must be at least 1 and token limits must not be negative")
        if min(options.max_defer, options.min_waiting) < 0:
            raise UsageError("llamacpp: max_defer and min_waiting must not be negative")
        return options


class LlamaCppScheduler:
    """The `Scheduler` protocol with the server's decisions."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.options = LlamaCppOptions.of(config)
        if not config.enable_chunked_prefill:
            raise UsageError("llamacpp cuts prompts at its batch, always")
        if not self.options.kv_unified and config.max_num_seqs * config.max_model_len > config.kv_capacity_tokens:
            raise UsageError(
                f"llamacpp: {config.max_num_seqs} slots of {config.max_model_len} tokens each are more than the "
                f"{config.kv_capacity_tokens} tokens of the whole KV cache; lower max_num_seqs or max_model_len"
            )
        self.slots: list[Request | None] = [None] * config.max_num_seqs
        self.queue: deque[Request] = deque()
        self._last_used = [0] * config.max_num_seqs
        self._contents: list[Sequence[object]] = [()] * config.max_num_seqs  # block hashes left in the slot's cache
        self._step = 0

    def add(self, request: Request) -> None:
        """Queue a request. Raises UsageError when it does not fit a slot."""
        total = request.prompt_tokens + request.output_tokens
        if min(request.prompt_tokens, request.output_tokens) < 1:
            raise UsageError(f"request {request.request_id!r} needs at least one prompt and one output token")
        if total > self.config.max_model_len:
            raise UsageError(
                f"request {request.request_id!r} needs {total} tokens, more than a slot's context of {self.config.max_model_len}"
            )
        self.queue.append(request)

    def unfinished(self) -> int:
        """Requests waiting or in a slot."""
        return len(self.queue) + sum(slot is not None for slot in self.slots)

    def waiting(self) -> int:
        """Requests without a slot."""
        return len(self.queue)

    def kv_blocks_used(self) -> int:
        """Blocks' worth of cells that the slots' requests hold."""
        return sum(-(-slot.computed_tokens // self.config.block_size) for slot in self.slots if slot is not None)

    def schedule(self) -> Iteration:
        """Fill the batch: waiting requests take free slots, decodes (less those held back), then prompts in slot order."""
        admitted = self._fill_slots()
        busy = [slot for slot in self.slots if slot is not None]
        decoding = [request for request in busy if request.generated_tokens and request.computed_tokens + 1 == request.known_tokens]
        prompts = [request for request in busy if request not in decoding]
        budget = self.options.max_batch_tokens or self.config.max_num_batched_tokens
        chosen = [(request, 1) for request in decoding[self._held_back(len(decoding), len(prompts)) :]]
        budget -= len(chosen)
        shares: list[tuple[Request, int]] = []
        for request in prompts:
            tokens = self._prompt_share(request, budget)
            if tokens < 1:
                break
            shares.append((request, tokens))
            budget -= tokens
        scheduled = chosen + shares
        place = {slot: number for number, slot in enumerate(self.slots) if slot is not None}
        places = [place[request] for request, _ in scheduled]
        short_of = SLOTS if self.queue else BUDGET if len(shares) < len(prompts) else 0
        return Iteration(scheduled, admitted, [], sum(tokens for _, tokens in scheduled), places=places, short_of=short_of)

    def complete(self, iteration: Iteration) -> Outcome:
        """Advance the requests that ran, sample where everything known is computed, free the slots of the finished."""
        self._step += 1
        sampled: list[Request] = []
        finished: list[Request] = []
        for request, tokens in iteration.scheduled:
            request.computed_tokens += tokens
            if request.computed_tokens < request.known_tokens:
                continue
            request.generated_tokens += 1
            sampled.append(request)
            if request.generated_tokens >= request.output_tokens:
                finished.append(request)
                place = next(i for i, slot in enumerate(self.slots) if slot is request)
                self.slots[place] = None
                self._last_used[place] = self._step
                self._contents[place] = request.prompt_hashes
        return Outcome(sampled, finished)

    def _fill_slots(self) -> list[Request]:
        admitted: list[Request] = []
        while self.queue and None in self.slots:
            request = self.queue.popleft()
            place, common = self._best_slot(request)
            self.slots[place] = request
            # at least one token is computed, so that there are logits to sample from
            request.cached_tokens = min(common * self.config.block_size, request.prompt_tokens - 1)
            request.computed_tokens = max(request.cached_tokens, min(request.computed_tokens, request.prompt_tokens - 1))
            admitted.append(request)
        return admitted

    def _best_slot(self, request: Request) -> tuple[int, int]:
        """(free slot, common blocks): the one whose cache shares most of the prompt, else the least recently used, last of equals."""
        free = [i for i, slot in enumerate(self.slots) if slot is None]
        if self.config.enable_prefix_caching and request.prompt_hashes:
            blocks = request.prompt_tokens // self.config.block_size
            shared = {i: _common(request.prompt_hashes[:blocks], self._contents[i]) for i in free}
            best = max(free, key=lambda i: shared[i])
            if shared[best] * self.config.block_size > self.options.slot_similarity * request.prompt_tokens:
                return best, shared[best]
        place = min(free, key=lambda i: (self._last_used[i], -i))
        return place, 0

    def _held_back(self, decoding: int, prompts: int) -> int:
        options = self.options
        if not options.prefill_first or not prompts or prompts < options.min_waiting:
            return 0
        return min(decoding, options.max_defer) if options.max_defer else decoding

    def _prompt_share(self, request: Request, budget: int) -> int:
        left = request.known_tokens - request.computed_tokens
        tail = self.options.prompt_tail_tokens
        if left > tail:
            left -= tail
        if self.options.prefill_cap:
            left = min(left, self.options.prefill_cap)
        return min(left, budget)


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
