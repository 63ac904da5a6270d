"""Token mixers: attention with a KV cache that grows, and recurrences with a constant state per sequence.

Every mixer has `matrices(hidden)` (what is multiplied by, quantisable), `vectors(hidden)` (norms, biases, gates), their sum `params`,
and `heads`, the unit that tensor parallelism splits. Those with a cache have `kv_elements_per_token` and `attention_flops_per_pair`;
recurrent ones are of ConstantState.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sim.specs.blocks import Absent, Matrix, elements


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with grouped KV heads. `window` limits how many past tokens are read (sliding window).

    `value_dim` is the width of a value head where it differs from a key's. `qk_norm_elements` counts the norms of queries and keys where
    they are not one per channel of a head. `kv_kept` is false where a layer reads an earlier layer's cache. `value_is_key` layers have no
    value projection. `head_gate` is a gate of one number per head. `extra_params` are small vectors of one architecture alone.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False  # the query projection is doubled to gate the output (Qwen3-Next)
    sinks: bool = False  # one learned attention-sink logit per head (gpt-oss)
    value_dim: int | None = None
    qk_norm_elements: int | None = None
    kv_kept: bool = True
    value_is_key: bool = False
    head_gate: bool = False
    extra_params: int = 0
    q_rank: int | None = None  # of queries that pass a narrower projection and a norm first (Step 3)

    kind: Literal["attention"] = field(default="attention", init=False)

    @property
    def _widths(self) -> tuple[int, int, int, int]:
        """Outputs of the query, key, value projections and inputs of the output projection."""
        value_dim = self.value_dim or self.head_dim
        q = self.heads * self.head_dim
        own = self.kv_kept
        values = 0 if self.value_is_key or not own else self.kv_heads * value_dim
        return (2 * q if self.output_gate else q), self.kv_heads * self.head_dim if own else 0, values, self.heads * value_dim

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        q, k, v, out = self._widths
        query: tuple[Matrix, ...] = (Matrix("self_attn.q_proj", q, hidden),)
        if self.q_rank is not None:
            query = (Matrix("self_attn.q_a_proj", self.q_rank, hidden), Matrix("self_attn.q_b_proj", q, self.q_rank))
        inputs = (*query, Matrix("self_attn.k_proj", k, hidden), Matrix("self_attn.v_proj", v, hidden))
        gate = (Matrix("self_attn.g_proj", self.heads, hidden, kept=True),) if self.head_gate else ()
        return (*(m for m in inputs if m.rows), Matrix("self_attn.o_proj", hidden, out), *gate)

    def vectors(self, hidden: int) -> int:
        q, k, v, _ = self._widths
        norms = 2 * self.head_dim if self.qk_norm_elements is None else self.qk_norm_elements
        count = (q + k + v) * self.qkv_bias + hidden * self.out_bias + norms * self.qk_norm + self.heads * self.sinks
        return count + self.extra_params + (self.q_rank or 0)

    def params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def kv_elements_per_token(self) -> int:
        """Elements of a token's key and value that a decode reads, its own layer's or an earlier one's."""
        return self.kv_heads * (self.head_dim + (self.value_dim or self.head_dim))

    def attention_flops_per_pair(self) -> int:
        """Flops of one query token against one key token, all heads: a dot product and a weighted sum."""
        return 2 * self.heads * (self.head_dim + (self.value_dim or self.head_dim))

    def prefill_flops_per_pair(self) -> int:
        """The same in prefill."""
        return self.attention_flops_per_pair()


@dataclass(frozen=True, slots=True)
class Indexer:
    """DeepSeek sparse attention: `heads` small query heads score every earlier token by one 8-bit key of `dim`; `top_k` are attended to.

    A layer with `shared` selection uses the selection of the layer before it: neither projections nor keys. `pool` tokens share a key.
    """

    heads: int
    dim: int
    top_k: int
    shared: bool = False
    pool: int = 1

    def matrices(self, hidden: int, q_inputs: int) -> tuple[Matrix, ...]:
        if self.shared:
            return ()
        return (
            Matrix("self_attn.indexer.wq_b", self.heads * self.dim, q_inputs),
            Matrix("self_attn.indexer.wk", self.dim, hidden),
            Matrix("self_attn.indexer.weights_proj", self.heads, hidden, kept=True),
            *((Matrix("self_attn.indexer.kpool_gate", self.dim, hidden, kept=True),) if self.pool > 1 else ()),
        )

    def vectors(self) -> int:
        pooled = self.pool * self.dim if self.pool > 1 else 0
        return 0 if self.shared else 2 * self.dim + pooled  # LayerNorm of the key

    def key_bytes(self) -> float:
        """A token's key in 8 bits with one 32-bit scale for every 128 channels."""
        return 0.0 if self.shared else (self.dim + 4.0 * -(-self.dim // 128)) / self.pool

    def flops_per_pair(self) -> float:
        return 0.0 if self.shared else 2.0 * self.heads * (self.dim + 1) / self.pool


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): the cache holds one compressed vector and one rotary key per token."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    indexer: Indexer | None = None
    bias: bool = False  # of the down projections and of the output
    head_gate: bool = False
    output_gate: bool = False
    extra_params: int = 0

    kind: Literal["mla"] = field(default="mla", init=False)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        q_out = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            query: tuple[Matrix, ...] = (Matrix("self_attn.q_proj", q_out, hidden),)
        else:
            query = (Matrix("self_attn.q_a_proj", self.q_rank, hidden), Matrix("self_attn.q_b_proj", q_out, self.q_rank))
        gate = self.heads if self.head_gate else self.heads * self.v_dim if self.output_gate else 0
        return (
            *query,
            Matrix("self_attn.kv_a_proj_with_mqa", self.kv_rank + self.rope_dim, hidden),
            Matrix("self_attn.kv_b_proj", self.heads * (self.nope_dim + self.v_dim), self.kv_rank),
            Matrix("self_attn.o_proj", hidden, self.heads * self.v_dim),
            *((Matrix("self_attn.g_proj", gate, hidden),) if gate else ()),
            *(self.indexer.matrices(hidden, self.q_rank or hidden) if self.indexer else ()),
        )

    def vectors(self, hidden: int) -> int:
        biases = ((self.q_rank or 0) + self.kv_rank + self.rope_dim + hidden) * self.bias
        return (self.q_rank or 0) + self.kv_rank + biases + (self.indexer.vectors() if self.indexer else 0) + self.extra_params

    def params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def kv_elements_per_token(self) -> int:
        return self.kv_rank + self.rope_dim

    def attention_flops_per_pair(self) -> int:
        """Absorbed form, as engines decode: scores over kv_rank + rope_dim, values over kv_rank."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)

    def prefill_flops_per_pair(self) -> int:
        """Expanded form, as engines prefill: keys of nope_dim + rope_dim and values of v_dim, as in multi-head attention."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim)

    def expanding_flops(self) -> int:
        """Flops of a cached token's keys and values of all heads from its latent."""
        return 2 * self.kv_rank * self.heads * (self.nope_dim + self.v_dim)

    def expanding_elements(self) -> int:
        """Elements moved for it: latents gathered, keys and values written, rotary parts joined to every key, all read by attention."""
        latent, key, value = self.kv_rank + self.rope_dim, self.nope_dim + self.rope_dim, self.v_dim
        return 3 * latent + self.heads * (2 * (self.nope_dim + value) + 2 * key + value)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over a window of tokens and over entries that each stand for `ratio` tokens (DeepSeek V4); keys are values, of one head.

    Entries of layers with an index are scored by `index_heads` small heads, one 8-bit key of `index_dim` an entry, and `top_k` are
    attended to. Ratio 0: the window alone.
    """

    heads: int
    head_dim: int
    q_rank: int
    out_groups: int
    out_rank: int
    window: int
    ratio: int
    index_heads: int = 0
    index_dim: int = 0
    top_k: int = 0

    kind: Literal["compressed"] = field(default="compressed", init=False)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        q = self.heads * self.head_dim
        wide = self.head_dim * (2 if self.index_heads else 1)
        compressor = (
            Matrix("self_attn.compressor.kv_proj", wide, hidden),
            Matrix("self_attn.compressor.gate_proj", wide, hidden),
        )
        index = (
            Matrix("self_attn.indexer.compressor.kv_proj", 2 * self.index_dim, hidden),
            Matrix("self_attn.indexer.compressor.gate_proj", 2 * self.index_dim, hidden),
            Matrix("self_attn.indexer.wq_b", self.index_heads * self.index_dim, self.q_rank),
            Matrix("self_attn.indexer.weights_proj", self.index_heads, hidden, kept=True),
        )
        return (
            Matrix("self_attn.wq_a", self.q_rank, hidden),
            Matrix("self_attn.wq_b", q, self.q_rank),
            Matrix("self_attn.wkv", self.head_dim, hidden),
            Matrix("self_attn.wo_a", self.out_groups * self.out_rank, q // self.out_groups),
            Matrix("self_attn.wo_b", hidden, self.out_groups * self.out_rank),
            *(compressor if self.ratio else ()),
            *(index if self.index_heads else ()),
        )

    def vectors(self, hidden: int) -> int:
        wide = self.head_dim * (2 if self.index_heads else 1)
        compressor = (self.ratio * wide + self.head_dim) if self.ratio else 0
        index = (self.ratio * 2 * self.index_dim + self.index_dim) if self.index_heads else 0
        return self.heads + self.q_rank + self.head_dim + compressor + index

    def params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def kv_elements_per_token(self) -> float:
        """Elements that a token adds for good: its share of a compressed entry."""
        return self.head_dim / self.ratio if self.ratio else 0.0

    def key_bytes(self) -> float:
        """Bytes of the index that a token adds."""
        return (self.index_dim + 4.0) / self.ratio if self.index_heads else 0.0

    def window_elements(self) -> float:
        """Elements read for each token of the window: its own, and its part of what an index selects."""
        return self.head_dim * (1.0 + self.top_k / self.window if self.index_heads else 1.0)

    def attention_flops_per_pair(self) -> int:
        return 4 * self.heads * self.head_dim

    def index_flops_per_pair(self) -> float:
        return 2.0 * self.index_heads * (self.index_dim + 1) / self.ratio if self.index_heads else 0.0


class ConstantState:
    """What a mixer has whose state per sequence is constant, whatever the context: others keep KV, or nothing."""

    __slots__ = ()

    def state_elements(self) -> int:
        """Recurrent state of one sequence, kept in float32."""
        raise NotImplementedError

    def conv_elements(self) -> int:
        """Convolution state of one sequence, kept in the activation dtype."""
        raise NotImplementedError

    def row_elements(self) -> int:
        """Elements of a token that enter it."""
        raise NotImplementedError

    def flops_per_token(self) -> int:
        """Flops of a token of one sequence."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(ConstantState):
    """Linear attention with a gated delta rule: a constant state per sequence, whatever the context."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4

    kind: Literal["gdn"] = field(default="gdn", init=False)

    @property
    def heads(self) -> int:
        return self.value_heads

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        key, value = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return (
            Matrix("linear_attn.in_proj_qkv", 2 * key + value, hidden),
            Matrix("linear_attn.in_proj_z", value, hidden),
            Matrix("linear_attn.in_proj_ba", 2 * self.value_heads, hidden),
            Matrix("linear_attn.out_proj", hidden, value),
        )

    def vectors(self, hidden: int) -> int:
        gates = 2 * self.value_heads + self.value_dim  # A_log, dt_bias, output norm
        return self.row_elements() * self.conv_width + gates

    def params(self, hidden: int) -> int:
        return elements(self.matrices(hidden)) + self.vectors(hidden)

    def row_elements(self) -> int:
        """Queries, keys and values of one token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def state_elements(self) -> int:
        """Recurrent state of one sequence, kept in float32."""
        return self.value_heads * self.key_dim * self.value_dim

    def conv_elements(self) -> int:
        """Convolution state of one sequence, kept in the activation dtype."""
        return self.row_elements() * (self.conv_width - 1)

    def flops_per_token(self) -> int:
        """State decay, read, rank-one update and query: about 7 flops per state element."""
        return 7 * self.state_elements()


@dataclass(frozen=True, slots=True)
class Recurrence(ConstantState):
    """A mixer with a constant state per sequence, by its counts: Mamba, Mamba-2, Kimi delta or lightning attention, convolution.

    `name` says which; `projections` are its matrices; `row` elements of a token pass the convolution and enter the recurrence.
    """

    name: str
    heads: int
    projections: tuple[Matrix, ...]
    small: int  # parameters that are no matrices: convolution, decays, norms, biases
    row: int
    state: int  # elements of one sequence, float32
    conv: int  # elements of one sequence, 16-bit
    flops_per_state: int = 7

    kind: Literal["recurrent"] = field(default="recurrent", init=False)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        return self.projections

    def vectors(self, hidden: int) -> int:
        return self.small

    def params(self, hidden: int) -> int:
        return elements(self.projections) + self.small

    def row_elements(self) -> int:
        return self.row

    def state_elements(self) -> int:
        return self.state

    def conv_elements(self) -> int:
        return self.conv

    def flops_per_token(self) -> int:
        return self.flops_per_state * self.state


@dataclass(frozen=True, slots=True)
class NoMixer(Absent):
    """A layer that is an MLP alone (Nemotron-H)."""

    kind: Literal["none"] = field(default="none", init=False)


Mixer = Attention | LatentAttention | CompressedAttention | GatedDeltaNet | Recurrence | NoMixer
