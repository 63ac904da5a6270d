"""KV pool of a server: blocks by the engine's own layout, requests and tokens that they hold, and states' slots."""

from __future__ import annotations

from dataclasses import dataclass

from sim.cost.coefficients import coefficients
from sim.deployment.kv_layout import KvGroup, KvLayout
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

SGLANG_WINDOW_SHARE = 0.8  # swa_full_tokens_ratio: tokens of SGLang's pool of windows over those of its full one
SGLANG_STATE_RATIO = 0.9  # mamba_full_memory_ratio: memory of states over that of KV
# Slots of a running request: its own, two kept by the radix cache of states, and two more that overlapped scheduling tracks in
# (MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO and _V2_ADDITIONAL_RATIO_OVERLAP of 0.5.16). Without the cache one.
SGLANG_SLOTS, SGLANG_SLOTS_OVERLAP = 3, 2
LOGGED_BY_CONCURRENCY = (0, 21)  # vLLM's start line: the first version whose tokens are concurrency times length
COUNTS_ALL_IN_FLIGHT = (0, 22)  # the first that counts every iteration in flight (one before: 0.21.0; all of them: 0.32)
PADS_PAGES = (0, 25)  # the first taken to pad pages that do not divide the largest (0.22.0: filled with tokens; 0.32: padded)
STARTS_NEED_STATES = (0, 25)  # the first that refuses to start when max_num_seqs exceeds the blocks of a model with states


@dataclass(frozen=True, slots=True)
class KvPool:
    """`free_bytes` of one GPU for blocks of a layout; `in_flight` tokens of iterations decided and not ended."""

    layout: KvLayout
    free_bytes: float
    in_flight: int

    @property
    def blocks(self) -> int:
        """Blocks, the one that stays empty with them."""
        return self.layout.blocks(self.free_bytes)

    def requests(self, tokens: float) -> float:
        """Requests of `tokens` that fit, unrounded."""
        return self.layout.at_once(self.free_bytes, tokens, self.in_flight)

    def request_bytes(self, tokens: float) -> float:
        """Bytes of the blocks that a request of `tokens` may hold."""
        return self.layout.request_blocks(tokens, self.in_flight) * self.layout.block_bytes

    def longest(self, most: int) -> int:
        """The longest request that fits, at most `most` tokens."""
        return self.layout.longest(self.free_bytes, self.in_flight, most)

    def most_running(self) -> int:
        """Requests of one token that fit: each holds a block of every group, and its states."""
        return max(0, self.blocks - 1) // self.layout.request_blocks(1)

    def token_blocks(self, context: float, block_size: int) -> int:
        """Blocks of `block_size` tokens of a pool that holds as many requests of `context` tokens in the mean; a block of one group is
        counted as it is.
        """
        layout = self.layout
        if len(layout.groups) == 1 and layout.groups[0].kind == "full":
            return self.blocks * layout.groups[0].block_tokens // block_size
        held = sum(mean_blocks(group, context) for group in layout.groups)
        return int(self.blocks / held * (context / block_size + 0.5))


def mean_blocks(group: KvGroup, context: float) -> float:
    """Blocks of a group that a request holds in the mean while it decodes around `context` tokens."""
    if group.kind == "state":
        return float(group.held)
    grown = context / group.block_tokens + 0.5  # the last block is half full
    if group.kind == "full":
        return grown
    return min(grown, group.reach / group.block_tokens + 1.0)


def sglang_layout(model: ModelSpec, precision: Precision, tp: int, block_size: int, draft: ModelSpec | None = None) -> KvLayout:
    """SGLang's pool of whole contexts: a token takes its KV in layers without a window, and its share of the windows' own pool."""
    token = 0.0
    for each in (model, draft):
        if each is not None:
            c = coefficients(each, precision, tp)
            windows = SGLANG_WINDOW_SHARE if each.kv_layers else 1.0
            token += c.kept_token_bytes + windows * c.kept_window_token_bytes
    return KvLayout((KvGroup("full", block_size),), max(1.0, token * block_size))


def sglang_states(free_bytes: float, state: float, cached: bool) -> tuple[int, int]:
    """(slots of recurrent state, requests that may run) of SGLang; `cached`: with its radix cache."""
    slots = int(free_bytes * SGLANG_STATE_RATIO / (1.0 + SGLANG_STATE_RATIO) // state)
    return slots, slots // (SGLANG_SLOTS + SGLANG_SLOTS_OVERLAP if cached else 1)
