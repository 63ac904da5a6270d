"""State of the fast engine: running decodes as aggregates, who finishes when, and which blocks become findable. What is decided from it is
in sim.engine.fast.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from heapq import heappop, heappush

from sim.cost.iteration import StepTime
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.kv.counted import CountedKv


class Slot:
    """A request as the aggregates know it."""

    __slots__ = ("admission", "depth", "generated", "hashes", "offset", "output", "prompt", "request")

    def __init__(self, request: Request, depth: int) -> None:
        self.request = request
        self.prompt = request.prompt_tokens
        self.output = request.output_tokens
        self.generated = request.generated_tokens  # at the latest admission, or preemption
        self.hashes: Sequence[Hashable] = request.prompt_hashes
        self.depth = depth  # leading blocks that others also ask for
        self.offset = 0  # computed tokens of a decode, less the decode clock
        self.admission = -1  # number of the latest admission; -1: not running


class Aggregates:
    """State of one engine. Where the order of two requests within one iteration matters (what is evicted first, who fills a block first),
    the order of their admission gives it. `shared` says of which requests how many leading blocks others also ask for.
    """

    def __init__(self, config: EngineConfig, steps: StepTime, shared: Mapping[str, int]) -> None:
        self.config = config
        self.steps = steps
        self._shared = shared if config.enable_prefix_caching else {}
        self._block_size = config.block_size
        self._most_tokens = min(config.max_model_len, config.kv_capacity_tokens + 1)  # of one request
        self._kv = CountedKv(config.num_gpu_blocks - 1, config.block_size)
        self._watermark = int(config.watermark * config.num_gpu_blocks)
        self._queue: deque[Slot] = deque()
        self._running: dict[Slot, None] = {}  # in order of admission, the partial prefill last
        self._partial: Slot | None = None  # the one running request whose known tokens are not all computed yet
        self._partial_done = 0
        self._batch = 0  # running decodes
        self._context = 0  # their computed tokens
        self._clock = 0  # decode iterations so far
        self._admissions = 0
        self._finishing: list[tuple[int, int, Slot]] = []  # (clock, admission, request); stale if admitted again or waiting
        # (clock, admission, request): when a decode fills a block that others may ask for
        self._becoming_shared: list[tuple[int, int, Slot]] = []
        # decodes that need a block when the clock, modulo the block size, is the index
        self._due = [0] * config.block_size
        # asynchronous scheduling: what finishes in the iteration under way still holds its place and blocks at the next decision
        self._overlap = config.overlaps
        self._leaving: list[tuple[Slot, int]] = []  # and computed tokens
        self._unsent: list[tuple[Request, int, bool]] = []  # tokens of the iteration under way: place in it, whether the last

    def _plan(self, slot: Slot, budget: int) -> tuple[Sequence[int], int, int, int] | None:
        """(shared blocks found, blocks of its own found again, first position, tokens) with which the request can start within `budget`
        tokens; None when it cannot.
        """
        config, kv = self.config, self._kv
        known = slot.prompt + slot.generated
        hits = kv.hits(slot.hashes, min(slot.depth, (known - 1) // self._block_size)) if slot.depth else ()
        own = kv.own(slot) if slot.request.preemptions else 0
        start = max((len(hits) + own) * self._block_size, min(slot.request.computed_tokens, known - 1))
        tokens = known - start
        if tokens > budget:
            if not config.enable_chunked_prefill:
                return None
            tokens = budget
        room = kv.free - (self._watermark if self._running else 0)
        reserve = known if config.reserve_full_prompt else start + tokens
        return None if kv.needed(reserve, hits) > room else (hits, own, start, tokens)

    def _give(self, slot: Slot, start: int, tokens: int, blocks: int) -> None:
        """Blocks for a share of prefill, and its full blocks made findable."""
        self._kv.take(blocks)
        if slot.depth:
            self._kv.remember(slot, slot.hashes, min((start + tokens) // self._block_size, slot.depth))

    def _partial_share(self) -> tuple[int, int]:
        """(tokens, new blocks) of the partial prefill in this iteration; zeros when there is none."""
        slot, done = self._partial, self._partial_done
        if slot is None:
            return 0, 0
        tokens = min(slot.prompt + slot.generated - done, self.config.max_num_batched_tokens - self._batch)
        block_size = self._block_size
        return tokens, -(-(done + tokens) // block_size) + (-done // block_size)

    def _sample(self, slot: Slot, computed: int, place: int) -> None:
        """A prefill is complete: its first (or, resumed, next) token, at this place of the iteration's, then decoding."""
        generated = slot.generated + 1
        if generated == 1:
            self._unsent.append((slot.request, place, False))
        if generated == slot.output:
            self._leave(slot, computed, place)
            return
        self._batch += 1
        self._context += computed
        offset = slot.offset = computed - self._clock
        self._due[-offset % self._block_size] += 1
        heappush(self._finishing, (self._clock + slot.output - generated, slot.admission, slot))
        if slot.depth:
            self._expect_shared(slot)

    def _finish_decodes(self) -> None:
        finishing, clock = self._finishing, self._clock
        gone = 0  # those of this iteration that have given up their place already came before
        while finishing and finishing[0][0] <= clock:
            _, admission, slot = heappop(finishing)
            if admission == slot.admission:
                place = list(self._running).index(slot)
                self._leave(slot, self._drop_decode(slot), place + gone)
                gone += not self._overlap

    def _drop_decode(self, slot: Slot) -> int:
        """Take a request out of the sums over decodes; returns its computed tokens."""
        offset = slot.offset
        self._batch -= 1
        self._context -= offset + self._clock
        self._due[-offset % self._block_size] -= 1
        return offset + self._clock

    def _leave(self, slot: Slot, computed: int, place: int) -> None:
        slot.request.generated_tokens = slot.output
        self._unsent.append((slot.request, place, True))
        self._leaving.append((slot, computed))
        if not self._overlap:
            self._release()

    def _release(self) -> None:
        """Take place and blocks from those who have finished."""
        if not self._leaving:
            return
        if self._becoming_shared:
            self._fill_shared(self._clock - 1 + self._overlap)
        for slot, computed in self._leaving:
            full = computed // self._block_size if self.config.enable_prefix_caching else 0
            if slot.depth:
                self._kv.remember(slot, slot.hashes, min(full, slot.depth))
            del self._running[slot]
            slot.admission = -1
            self._kv.release(slot, computed, full)
        self._leaving.clear()

    def _admit(self, slot: Slot) -> None:
        self._running[slot] = None
        self._admissions += 1
        slot.admission = self._admissions

    def _preempt(self, slot: Slot) -> None:
        """Take place and blocks from a running request. What the iteration under way computes for it is sent, but the token that a decode
        samples there was not known when its blocks were last made findable.
        """
        back = True
        if slot is self._partial:
            computed = findable = self._partial_done
            self._partial = None
        else:
            began = slot.prompt + slot.generated  # its tokens when it started to decode
            computed = next((tokens for leaves, tokens in self._leaving if leaves is slot), 0)
            back = not computed
            if computed:
                self._leaving = [each for each in self._leaving if each[0] is not slot]
            else:
                computed = self._drop_decode(slot)
                slot.generated = computed + 1 - slot.prompt
            findable = max(computed - self._overlap, began)
        del self._running[slot]
        slot.admission = -1
        full = findable // self._block_size if self.config.enable_prefix_caching else 0
        if slot.depth:
            self._kv.remember(slot, slot.hashes, min(full, slot.depth))
        self._kv.release(slot, computed, full, comes_back=back)
        slot.request.computed_tokens = 0
        slot.request.preemptions += 1
        if back:
            self._queue.appendleft(slot)

    def _expect_shared(self, slot: Slot) -> None:
        """Note when the decode will fill the next of its blocks that others may ask for."""
        held = self._kv.shared_held(slot)
        end = (held + 1) * self._block_size
        # with overlap a decode's token is known one decision later, and a last one only when the request leaves
        if held < slot.depth and end < slot.prompt + slot.output - self._overlap:
            heappush(self._becoming_shared, (end - 1 - slot.offset + self._overlap, slot.admission, slot))

    def _fill_shared(self, clock: int) -> None:
        """Make findable what decodes have filled by the iteration at `clock`, that one included."""
        expected = self._becoming_shared
        while expected and expected[0][0] <= clock:
            filled, admission, slot = heappop(expected)
            if admission == slot.admission:
                full = (slot.offset + filled + 1 - self._overlap) // self._block_size
                self._kv.remember(slot, slot.hashes, full)
                self._expect_shared(slot)
