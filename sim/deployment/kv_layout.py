"""KV layout of an engine: groups of layers that share a block table, bytes of a block, and what a request holds of the pool.

vLLM cuts a model's layers into groups of one size (v1/core/kv_cache_utils.py of 0.32); a block of the pool holds one group's KV, and all
groups draw from one pool:
  full     ceil(tokens / block_tokens) blocks of a request
  window   those that the window and the tokens in flight reach, and one: blocks outside are freed
  state    one, one more for each draft token, and one more with prefix caching, whatever the length
Pages of all groups are of one size: layers of smaller pages take longer blocks; states set the length of attention's blocks.
SGLang keeps a pool for each kind instead (sglang_layout).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from sim.specs.mixers import ConstantState, Mixer
from sim.specs.model import ModelSpec, index_bytes, kept_elements
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES, Precision

FILLED_UP = 1.5  # kinds of layers whose numbers differ by less make groups of the larger number (vLLM 0.23 and later)
PACKED_TOKENS, PACKED_WINDOW_TOKENS = 256, 64  # tokens of DeepSeek V4's blocks: of entries, and of its windows
LATENT_BLOCK = 128  # tokens that blocks of latent attention beside states are a multiple of
SCALE_BYTES = 4.0  # of a key and of a value of each head in int8, which is scaled by token and head
SPARSE_LATENT_BYTES = 656  # of a token of DeepSeek's sparse attention in fp8: 512, four scales in 32 bits, a rotary part in 16
# Families whose recurrent state an engine keeps in 16 bits unless asked: `mamba_ssm_cache_dtype` auto of vLLM 0.32
HALF_STATES = frozenset(
    ("qwen3_next", "falcon_h1", "bamba", "granitemoehybrid", "jamba", "zamba2", "mamba", "mamba2", "minimax", "minimax_text_01")
)
ROTATING = frozenset(("llama4", "llama4_text"))  # windows that start at multiples of their length: no block more than they reach

Kind = Literal["full", "window", "chunk", "state"]


class Layers(NamedTuple):
    """Layers that are alike: `unit_bytes` of a token, or of a sequence's state, on one GPU; `reach` of a window in tokens."""

    kind: Kind
    number: int
    unit_bytes: float
    reach: int = 0


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table. `block_tokens` per block; `reach` of a window in tokens; `held` blocks of a state."""

    kind: Kind
    block_tokens: int
    reach: int = 0
    held: int = 1

    def blocks(self, tokens: float, in_flight: int) -> int:
        """Most blocks that a request of `tokens` holds, `in_flight` of them decided and not ended."""
        if self.kind == "state":
            return self.held
        if self.kind == "full":
            return math.ceil(tokens / self.block_tokens)
        before = self.reach - 1 if self.kind == "window" else self.reach
        return math.ceil(min(tokens, before + in_flight) / self.block_tokens) + (self.kind == "window")


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Groups that draw blocks of `block_bytes` per GPU from one pool."""

    groups: tuple[KvGroup, ...]
    block_bytes: float

    def request_blocks(self, tokens: float, in_flight: int = 1) -> int:
        """Most blocks that a request of `tokens` holds."""
        return sum(group.blocks(tokens, in_flight) for group in self.groups)

    def blocks(self, free_bytes: float) -> int:
        """Blocks of a pool, the one that stays empty with them."""
        return max(0, int(free_bytes // self.block_bytes))

    def at_once(self, free_bytes: float, tokens: float, in_flight: int = 1) -> float:
        """Requests of `tokens` that a pool holds, unrounded: the engine's "maximum concurrency"."""
        return self.blocks(free_bytes) / self.request_blocks(tokens, in_flight)

    def longest(self, free_bytes: float, in_flight: int, most: int) -> int:
        """The longest request that a pool holds, at most `most` tokens; 0 where it holds none."""
        blocks, low, high = self.blocks(free_bytes) - 1, 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle, in_flight) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def block_tokens(self) -> int:
        """Tokens of the shortest block that holds tokens; of states alone 0."""
        return min((group.block_tokens for group in self.groups if group.kind != "state"), default=0)

    def logged_tokens(self, free_bytes: float, longest: int, in_flight: int, shared_out: bool) -> int:
        """Tokens of the start's line "GPU KV cache size": requests of max_model_len that fit times that length; `shared_out`, as versions
        before 0.21 print it, the blocks over the groups times the tokens of the shortest.
        """
        if shared_out:
            return self.blocks(free_bytes) // len(self.groups) * self.block_tokens
        return int(self.at_once(free_bytes, longest, in_flight) * longest)


@lru_cache(maxsize=512)
def vllm_layout(
    model: ModelSpec,
    precision: Precision,
    tp: int = 1,
    block_size: int = 16,
    draft: ModelSpec | None = None,
    draft_tokens: int = 0,
    caching: bool = False,
    whole: bool = False,
    fills_pages: bool = False,
) -> KvLayout:
    """The layout that vLLM gives a model, and the `draft` model beside it, with blocks of at least `block_size` tokens.

    `caching`: prefix caching, with which a state is kept twice. `whole`: without the hybrid KV manager, windows are kept whole.
    `fills_pages`: pages that do not divide the largest take as many tokens as fit (0.21 and 0.22, by their logs), not one block's.
    Layers of a draft model or head join the groups of their kind.
    """
    layers = list(_alike(layers_of(model, precision, tp, draft_tokens), () if draft is None else layers_of(draft, precision, tp)))
    if whole:
        layers = list(_alike(each._replace(kind="full", reach=0) if each.reach else each for each in layers))
    if any(group.mixer.kind == "compressed" for group in model.groups):
        return _packed(layers)
    if not layers:
        return KvLayout((KvGroup("full", block_size),), 1.0)
    kinds = {(each.kind, each.reach) for each in layers}
    if len(kinds) == 1 and layers[0].kind != "state":  # one group, whatever the sizes of its layers
        page = sum(each.number * each.unit_bytes for each in layers) * block_size
        return KvLayout((KvGroup(layers[0].kind, block_size, layers[0].reach),), page)
    state_bytes = max((each.unit_bytes for each in layers if each.kind == "state"), default=0.0)
    widest = max((each.unit_bytes for each in layers if each.kind != "state"), default=0.0)
    if state_bytes and widest:
        multiple = max(block_size, LATENT_BLOCK) if any(g.mixer.kind == "mla" for g in model.groups) else block_size
        block_size = max(block_size, multiple * math.ceil(state_bytes / (multiple * _attention_bytes(layers))))
    page = max(block_size * widest, state_bytes)
    size = group_size([each.number for each in layers])
    groups = []
    for each in layers:
        # smaller pages take as many more tokens as fit; where they do not divide, one block is filled up
        ratio = 1 if each.kind == "state" else max(1, int(page // (block_size * each.unit_bytes)))
        if not fills_pages and each.kind != "state" and not math.isclose(page, ratio * block_size * each.unit_bytes):
            ratio = 1
        tokens = 0 if each.kind == "state" else block_size * ratio
        group = KvGroup(each.kind, tokens, each.reach, 1 + draft_tokens + caching)
        groups += [group] * math.ceil(each.number / size)
    return KvLayout(tuple(groups), size * page)


def _packed(layers: Iterable[Layers]) -> KvLayout:
    """Compressed attention (DeepSeek V4): a block holds entries of 256 tokens of all layers, or as many windows of 64 as take no more."""
    layers = list(layers)
    page = PACKED_TOKENS * sum(each.number * each.unit_bytes for each in layers if each.kind == "full")
    groups = [KvGroup("full", PACKED_TOKENS)]
    for each in layers:
        if each.kind == "window":
            together = max(1, int(page // (PACKED_WINDOW_TOKENS * each.unit_bytes)))
            groups += [KvGroup("window", PACKED_WINDOW_TOKENS, each.reach)] * math.ceil(each.number / together)
    return KvLayout(tuple(groups), page)


def _attention_bytes(layers: Iterable[Layers]) -> float:
    """Bytes of a token in the model's own attention layers: the first kind's."""
    return next(each.unit_bytes for each in layers if each.kind != "state")


def group_size(counts: Iterable[int]) -> int:
    """Layers of a group: the fewest of a kind, or the most where these are not many more."""
    counts = list(counts)
    return max(counts) if max(counts) < FILLED_UP * min(counts) else min(counts)


def _alike(*models: Iterable[Layers]) -> Iterator[Layers]:
    """Layers of all `models`, those that are alike together."""
    found: dict[tuple[Kind, float, int], int] = {}
    for layers in models:
        for each in layers:
            key = (each.kind, each.unit_bytes, each.reach)
            found[key] = found.get(key, 0) + each.number
    for (kind, unit, reach), count in found.items():
        yield Layers(kind, count, unit, reach)


def layers_of(model: ModelSpec, precision: Precision, tp: int = 1, draft_tokens: int = 0) -> tuple[Layers, ...]:
    """The layers that keep something for a sequence, by group of the model, bytes per GPU."""
    found = []
    for group in model.groups:
        mixer = group.mixer
        if isinstance(mixer, ConstantState):
            found.append(Layers("state", group.count, state_bytes(model, mixer, tp, draft_tokens)))
        elif mixer.kind == "compressed":  # its window beside its entries; these are no blocks of one size
            if mixer.ratio:
                entries = mixer.kv_elements_per_token() * precision.kv_bytes + mixer.key_bytes()
                found.append(Layers("full", group.count, entries))
            found.append(Layers("window", group.count, mixer.head_dim * precision.kv_bytes, mixer.window))
        elif unit := token_bytes(mixer, precision, tp):
            reach = mixer.window if mixer.kind == "attention" and mixer.window else 0
            kind: Kind = "full" if not reach else "chunk" if model.model_type in ROTATING else "window"
            found.append(Layers(kind, group.count, unit, reach))
    return tuple(found)


def token_bytes(mixer: Mixer, precision: Precision, tp: int = 1) -> float:
    """Bytes that a token adds to a layer of attention on one GPU; 0 where it reads another layer's, or keeps none."""
    if mixer.kind == "mla":
        latent = kept_elements(mixer) * precision.kv_bytes
        if mixer.indexer and precision.kv == "fp8":
            latent = SPARSE_LATENT_BYTES / 512 * mixer.kv_rank
        return latent + index_bytes(mixer)
    if mixer.kind != "attention":
        return 0.0
    shards = min(mixer.kv_heads, tp)  # fewer heads than GPUs are replicated
    scales = 2.0 * mixer.kv_heads * SCALE_BYTES if precision.kv == "int8" and mixer.kv_kept else 0.0
    return (kept_elements(mixer) * precision.kv_bytes + scales) / shards


def state_bytes(model: ModelSpec, mixer: Mixer, tp: int = 1, draft_tokens: int = 0) -> float:
    """Bytes of a layer's recurrent state of one sequence on one GPU: the state, and the rows that its convolution still reads."""
    if not isinstance(mixer, ConstantState):
        return 0.0
    width = ACTIVATION_BYTES if model.model_type.removesuffix("_text") in HALF_STATES else STATE_BYTES
    rows = mixer.conv_elements() + draft_tokens * mixer.row_elements()
    return (mixer.state_elements() * width + rows * ACTIVATION_BYTES) / tp


def sequence_state_bytes(model: ModelSpec, tp: int = 1) -> float:
    """Bytes of the recurrent state of one sequence on one GPU, as engines keep it."""
    return sum(group.count * state_bytes(model, group.mixer, tp) for group in model.groups)
