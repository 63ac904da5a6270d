"""ModelSpec: the shape of a decoder, from which every count the bill needs is computed.

A model is a stack of layer groups; each layer is a token mixer (attention of some kind) followed by an MLP. Parameter counts are
sums over the shape, never typed in, so a wrong shape shows as a wrong count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with grouped KV heads. `window` limits how many past tokens are read (sliding window)."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False  # the query projection is doubled to gate the output (Qwen3-Next)
    sinks: bool = False  # one learned attention-sink logit per head (gpt-oss)

    kind: Literal["attention"] = field(default="attention", init=False)

    def params(self, hidden: int) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        q_out = 2 * q if self.output_gate else q
        count = hidden * (q_out + 2 * kv) + q * hidden
        if self.qkv_bias:
            count += q_out + 2 * kv
        if self.out_bias:
            count += hidden
        if self.qk_norm:
            count += 2 * self.head_dim
        if self.sinks:
            count += self.heads
        return count

    def kv_elements_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    def attention_flops_per_pair(self) -> int:
        """Flops of one query token against one key token, all heads: a dot product and a weighted sum."""
        return 4 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): the cache holds one compressed vector and one rotary key per token."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int

    kind: Literal["mla"] = field(default="mla", init=False)

    def params(self, hidden: int) -> int:
        q_out = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            query = hidden * q_out
        else:
            query = hidden * self.q_rank + self.q_rank + self.q_rank * q_out
        down = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        up = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return query + down + up + self.heads * self.v_dim * hidden

    def kv_elements_per_token(self) -> int:
        return self.kv_rank + self.rope_dim

    def attention_flops_per_pair(self) -> int:
        """Absorbed form, as engines decode: scores over kv_rank + rope_dim, values over kv_rank."""
        return 2 * self.heads * (2 * self.kv_rank + self.rope_dim)


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule: a constant state per sequence, whatever the context."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4

    kind: Literal["gdn"] = field(default="gdn", init=False)

    def params(self, hidden: int) -> int:
        key, value = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        projections = hidden * (2 * key + 2 * value) + hidden * 2 * self.value_heads  # q k v z, then beta and alpha
        conv = (2 * key + value) * self.conv_width
        gates = 2 * self.value_heads + self.value_dim  # A_log, dt_bias, output norm
        return projections + conv + gates + value * hidden

    def state_elements(self) -> int:
        """Recurrent state of one sequence, kept in float32."""
        return self.value_heads * self.key_dim * self.value_dim

    def conv_elements(self) -> int:
        """Convolution state of one sequence, kept in the activation dtype."""
        return (2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim) * (self.conv_width - 1)

    def flops_per_token(self) -> int:
        """State decay, read, rank-one update and query: about 7 flops per state element."""
        return 7 * self.state_elements()


Mixer = Attention | LatentAttention | GatedDeltaNet


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Gated MLP (gate, up, down)."""

    intermediate: int
    bias: bool = False

    kind: Literal["dense"] = field(default="dense", init=False)

    def params(self, hidden: int) -> int:
        return 3 * hidden * self.intermediate + ((2 * self.intermediate + hidden) if self.bias else 0)

    def active_params(self, hidden: int) -> int:
        return self.params(hidden)


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Mixture of experts: a router picks `top_k` of `experts` per token; shared experts see every token."""

    experts: int
    top_k: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False

    kind: Literal["moe"] = field(default="moe", init=False)

    def expert_params(self, hidden: int) -> int:
        bias = (2 * self.intermediate + hidden) if self.expert_bias else 0
        return 3 * hidden * self.intermediate + bias

    def expert_bytes(self, hidden: int, weight_bytes: float, expert_bits: float | None) -> float:
        """Bytes of one routed expert. A precision fixed by the checkpoint (`expert_bits`) is that of its matrices, not of its biases."""
        matrices = 3 * hidden * self.intermediate
        fixed = expert_bits / 8 if expert_bits else weight_bytes
        return matrices * fixed + (self.expert_params(hidden) - matrices) * weight_bytes

    def always_params(self, hidden: int) -> int:
        """Read for every token: router and shared experts."""
        router = hidden * self.experts + (self.experts if self.router_bias else 0)
        return router + 3 * hidden * self.shared_intermediate + (hidden if self.shared_gate else 0)

    def params(self, hidden: int) -> int:
        return self.experts * self.expert_params(hidden) + self.always_params(hidden)

    def active_params(self, hidden: int) -> int:
        return self.top_k * self.expert_params(hidden) + self.always_params(hidden)


Mlp = DenseMlp | MoeMlp


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers. `norms` is the number of hidden-size norm vectors in each (2, or 4 with post-norms)."""

    count: int
    mixer: Mixer
    mlp: Mlp
    norms: int = 2

    def layer_params(self, hidden: int) -> int:
        return self.mixer.params(hidden) + self.mlp.params(hidden) + self.norms * hidden


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's shape.

    `extra_params` are resident but not read by a text decode step (vision tower, projector, multi-token-prediction head).
    `expert_bits` is set where the published checkpoint fixes the experts' precision (gpt-oss: MXFP4, 4.25 bits).
    """

    name: str
    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool
    max_context: int
    extra_params: int = 0
    expert_bits: float | None = None
    source: str = ""
    second_runner: bool = False  # one of those that vLLM 0.23 steps with its second model runner

    @property
    def layers(self) -> int:
        return sum(g.count for g in self.groups)

    @property
    def embedding_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def lm_head_params(self) -> int:
        """Weights read by the output projection (the embedding table itself when tied)."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All parameters, as a published count includes them."""
        tables = self.embedding_params * (1 if self.tied_embeddings else 2)
        body = sum(g.count * g.layer_params(self.hidden) for g in self.groups)
        return tables + body + self.hidden + self.extra_params

    @property
    def active_params(self) -> int:
        """Parameters one token uses: top-k experts, all else; the input embedding's rows are not counted."""
        body = sum(g.count * (g.mixer.params(self.hidden) + g.mlp.active_params(self.hidden) + g.norms * self.hidden) for g in self.groups)
        return body + self.hidden + self.lm_head_params

    @property
    def expert_params(self) -> int:
        """All routed experts' parameters."""
        return sum(g.count * g.mlp.experts * g.mlp.expert_params(self.hidden) for g in self.groups if g.mlp.kind == "moe")

    def resident_bytes(self, weight_bytes: float) -> float:
        """Bytes of all parameters at `weight_bytes` each, but experts' matrices at `expert_bits` where the checkpoint fixes them."""
        moes = [(g.count * g.mlp.experts, g.mlp) for g in self.groups if g.mlp.kind == "moe"]
        experts = sum(n * mlp.expert_bytes(self.hidden, weight_bytes, self.expert_bits) for n, mlp in moes)
        return (self.params - self.expert_params) * weight_bytes + experts

    @property
    def window(self) -> int | None:
        """The sliding window of the windowed layers, or None. One window size per model."""
        windows = {g.mixer.window for g in self.groups if g.mixer.kind == "attention" and g.mixer.window}
        return next(iter(windows), None)

    @property
    def kv_layers(self) -> int:
        """Layers whose KV grows with the whole context."""
        return sum(g.count for g in self.groups if _grows(g.mixer))

    @property
    def window_layers(self) -> int:
        return sum(g.count for g in self.groups if g.mixer.kind == "attention" and g.mixer.window)

    @property
    def state_layers(self) -> int:
        return sum(g.count for g in self.groups if g.mixer.kind == "gdn")

    @property
    def kv_elements_per_token(self) -> int:
        """KV elements one token adds over the full-context layers."""
        return sum(g.count * g.mixer.kv_elements_per_token() for g in self.groups if g.mixer.kind != "gdn" and _grows(g.mixer))

    @property
    def window_kv_elements_per_token(self) -> int:
        """KV elements one token adds over the sliding-window layers (at most `window` tokens are kept and read)."""
        return sum(g.count * g.mixer.kv_elements_per_token() for g in self.groups if g.mixer.kind == "attention" and g.mixer.window)

    @property
    def state_elements(self) -> int:
        """Recurrent-state elements (float32) of one sequence."""
        return sum(g.count * g.mixer.state_elements() for g in self.groups if g.mixer.kind == "gdn")

    @property
    def conv_elements(self) -> int:
        return sum(g.count * g.mixer.conv_elements() for g in self.groups if g.mixer.kind == "gdn")


def _grows(mixer: Mixer) -> bool:
    return mixer.kind == "mla" or (mixer.kind == "attention" and not mixer.window)
