"""SGLang's prefill admission: the order of the queue, and the tokens that a prefill batch may still take."""

from __future__ import annotations

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.kv.radix import RadixKv, RadixTree
from sim.engine.sglang_options import SglangOptions
from sim.errors import UsageError

MOST_MATCHED = 128  # waiting requests beyond which the queue is left as it is
SHARED_TOKENS = 32  # a prefix of so many tokens in common with a request further up is worth waiting for
REFRESH_EVERY = 32  # looks at the queue between which prefixes of waiting requests are marked as used


def check_admitted(request: Request, config: EngineConfig, options: SglangOptions) -> None:
    """Raises UsageError for a request that is never admitted, though it would fit."""
    total, page = request.prompt_tokens + min(request.output_tokens, options.clip_new_tokens), config.block_size
    if options.ignore_eos and not config.enable_prefix_caching:  # this admission counts whole pages, and a token more
        total = -(-(request.prompt_tokens + request.output_tokens) // page) * page + 1
    if total + page >= config.kv_capacity_tokens:
        raise UsageError(
            f"request {request.request_id!r} needs {total + page} tokens, a spare page included, and is admitted "
            f"only below the {config.kv_capacity_tokens} of the whole cache"
        )


class QueueOrder:
    """First come first served, or longest cached prefix first (`lpm`), with the look-ups in the cache that either makes."""

    def __init__(self, kv: RadixKv, policy: str) -> None:
        self._kv = kv
        self._by_prefix = policy == "lpm" and kv.prefix_caching
        self._looks = 0

    def arrange(self, queue: list[Request]) -> None:
        """Put the queue into the order in which requests are admitted."""
        if not queue or not self._kv.prefix_caching:
            return
        if self._by_prefix and len(queue) <= MOST_MATCHED:
            keys = self._keys(queue)
            queue.sort(key=lambda request: keys[request])
            return
        if self._looks % REFRESH_EVERY == 0:
            for request in reversed(queue[:MOST_MATCHED]):
                self._kv.match(request)
        self._looks += 1

    def _keys(self, queue: list[Request]) -> dict[Request, float]:
        """Longest cached prefix first; last those that share a long uncached prefix with one further up, so that they find it cached once
        that one has run.
        """
        page = self._kv.page_tokens
        ahead = RadixTree()
        keys: dict[Request, float] = {}
        for request in queue:
            count, _ = self._kv.match(request)
            cached = count * page
            keys[request] = -min(cached, request.known_tokens - 1)
            if cached <= SHARED_TOKENS:
                contents = self._kv.contents(request, request.known_tokens // page)
                if ahead.match(contents)[0] * page >= SHARED_TOKENS:
                    keys[request] = float("inf")
                else:
                    ahead.insert(contents)
        return keys


class Endings:
    """Whether KV lasts until requests of known lengths end, one after the other: how the engine admits requests that ignore the end of
    sequence where no prefix is cached. Kept over one prefill batch, and as it keeps it, the last of the list included.
    """

    def __init__(self, running: list[Request]) -> None:
        self._running = running
        self._known: list[tuple[int, int]] | None = None  # (tokens to come, tokens held), soonest first

    def leave_room(self, request: Request, batch: list[Request], budget: PrefillBudget) -> bool:
        """Whether `request` may join those running and those in the `batch`."""
        needed = budget.page_up(request.known_tokens)
        if not budget.holds(needed):
            return False
        if self._known is None:
            everybody = (request, *self._running, *batch)
            self._known = sorted((each for each in map(_ending, everybody) if each[0] > 0), key=lambda ending: ending[0])
        elif (ending := _ending(request))[0] > 0:
            last = len(self._known) - 1
            place = next((i for i, each in enumerate(self._known) if ending[0] <= each[0]), max(last, 0))
            self._known.insert(place, ending)
        freed, left = 0, budget.room - needed
        for number, (to_come, held) in enumerate(self._known):
            alive = len(self._known) - number
            if left + freed - to_come * alive <= alive:
                return False
            freed += held
        return True


def _ending(request: Request) -> tuple[int, int]:
    return request.output_tokens - request.generated_tokens, request.known_tokens


class NewTokenRatio:
    """Share of what running requests may still generate that admission reserves."""

    def __init__(self, options: SglangOptions) -> None:
        self._options = options
        self.value = options.init_new_token_ratio

    def reset(self) -> None:
        """Nothing runs."""
        self.value = self._options.init_new_token_ratio

    def decay(self) -> None:
        """A decode iteration passed."""
        options = self._options
        step = (options.init_new_token_ratio - options.min_new_token_ratio) / options.ratio_decay_steps
        self.value = max(self.value - step, options.min_new_token_ratio)

    def lost(self, kept: list[Request]) -> None:
        """Requests were retracted, these kept: it was too low."""
        generated = sum(request.generated_tokens for request in kept)
        requested = sum(request.output_tokens for request in kept)
        self.value = min(1.0, (generated + self._options.retract_decode_steps * len(kept)) / (requested + 1))


class PrefillBudget:
    """Tokens left to one prefill batch: to compute (`inputs`, and `chunk`, None where prompts are not cut), and of KV, of which `committed`
    are expected to go to running requests.
    """

    def __init__(self, kv: RadixKv, committed: float, inputs: int, chunk: int | None) -> None:
        self._kv = kv
        self._page = kv.page_tokens
        self._promised = committed
        self._taken = 0
        self._inputs = inputs
        self._chunk = chunk

    @property
    def has_room(self) -> bool:
        """Whether KV is left."""
        free = self._kv.free_blocks * self._page
        return free - self._promised > 0 and free - self._taken > 0

    @property
    def spent(self) -> bool:
        """Whether nothing more may be computed, though there is KV."""
        return self.has_room and (self._inputs <= 0 or (self._chunk is not None and self._chunk <= 0))

    def next_chunk(self, left: int) -> int:
        """Tokens of a prompt already begun that has `left` to go."""
        if self._chunk is None:
            return left
        free = min(self._chunk, int(self._kv.free_blocks * self._page - self._promised))
        return min(left, free if free > 0 else self._chunk)

    def admits(self, tokens: int, locks: int) -> bool:
        """Whether KV is left for so many tokens and a page, with `locks` pages of cached prefix no longer to be evicted."""
        return tokens + self._page < (self._kv.free_blocks - locks) * self._page - self._promised

    @property
    def room(self) -> int:
        """KV tokens left beside those of this batch alone."""
        return self._kv.free_blocks * self._page - self._taken

    def page_up(self, tokens: int) -> int:
        """Tokens reserved for a request of so many prompt tokens: whole pages, and one more."""
        return self._rounded(tokens) + self._page

    def holds(self, tokens: int) -> bool:
        """Whether so many tokens are left."""
        return tokens <= min(self.room, self._kv.free_blocks * self._page - self._promised)

    def exact_share(self, tokens: int) -> int:
        """`share` where chunks need not end with a page."""
        return tokens if self._chunk is None else min(tokens, self._chunk)

    def share(self, tokens: int, first: bool) -> int:
        """Of `tokens` prompt tokens how many the batch takes; 0 for none."""
        rounded = self._rounded(tokens)
        if self._chunk is None:
            return tokens if first or rounded < self._inputs else 0
        return tokens if rounded <= self._chunk else self._chunk // self._page * self._page

    def reserve(self, tokens: int, to_come: int) -> None:
        """Book a request that takes `tokens` now and may generate `to_come`."""
        rounded = self._rounded(tokens)
        self._promised += rounded + self._page + to_come
        self._taken += rounded + self._page
        self._inputs -= rounded
        if self._chunk is not None:
            self._chunk -= rounded

    def _rounded(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page
