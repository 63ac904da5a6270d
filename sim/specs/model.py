"""ModelSpec: the shape of a decoder, from which every count the bill needs is computed.

A model is a stack of layer groups; each layer is a token mixer followed by an MLP, either of which may be absent. Parameter counts are
sums over the shape, never typed in, so a wrong shape shows as a wrong count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.specs.blocks import Matrix, elements
from sim.specs.checkpoint import Checkpoint
from sim.specs.mixers import (
    Attention,
    CompressedAttention,
    ConstantState,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mixer,
    NoMixer,
    Recurrence,
)
from sim.specs.mlps import DenseMlp, Mlp, MoeMlp, NoMlp

__all__ = [
    "Attention",
    "CompressedAttention",
    "DenseMlp",
    "GatedDeltaNet",
    "Indexer",
    "LatentAttention",
    "LayerGroup",
    "Mixer",
    "Mlp",
    "ModelSpec",
    "MoeMlp",
    "NoMixer",
    "NoMlp",
    "Recurrence",
]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` identical layers. `norms` is the number of hidden-size norm vectors in each (2, or 4 with post-norms).

    `norm_width` is the vectors that a norm holds (2 with a bias, 0 for norms without weights). `extra` are matrices read for every token
    that belong to neither mixer nor MLP (Gemma 3n). `indices` say which layers these are, where a configuration says so.
    """

    count: int
    mixer: Mixer
    mlp: Mlp
    norms: int = 2
    norm_width: int = 1
    extra: tuple[Matrix, ...] = ()
    extra_params: int = 0
    indices: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def always_params(self, hidden: int) -> int:
        """Parameters of one layer that are read for every token: all but routed experts'."""
        mlp = self.mlp.always_params(hidden) if self.mlp.kind == "moe" else self.mlp.params(hidden)
        return self.mixer.params(hidden) + mlp + self.norm_params(hidden) + elements(self.extra)

    def norm_params(self, hidden: int) -> int:
        return self.norms * self.norm_width * hidden + self.extra_params

    def layer_params(self, hidden: int) -> int:
        return self.mixer.params(hidden) + self.mlp.params(hidden) + self.norm_params(hidden) + elements(self.extra)

    def matrices(self, hidden: int) -> tuple[Matrix, ...]:
        """All matrices of one layer but routed experts'."""
        return (*self.mixer.matrices(hidden), *self.mlp.matrices(hidden), *self.extra)

    @property
    def blocks(self) -> int:
        """Mixer and MLP, as far as the layer has them: what tensor parallelism sums over GPUs."""
        return (self.mixer.kind != "none") + (self.mlp.kind != "none")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's shape.

    `started` is (tokens, version): the length at which vLLM from that version on starts unasked, where that is less than `max_context`.
    `extra_params` are resident but not read by a text decode step (vision tower, projector, tables of positions); `tower_params` are
    those of a tower and its projector, `image_bytes` what encoding the largest image takes: (on each GPU, divided by tensor parallelism),
    none of towers whose widths are not known. `expert_bits` is set
    where the published checkpoint fixes the experts' precision (gpt-oss: MXFP4, 4.25 bits). `checkpoint` says how the weights are stored
    where they are quantised. `notes` are what an answer must say of how the configuration was read.
    """

    name: str
    hidden: int
    vocab: int
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool
    max_context: int
    started: tuple[int, tuple[int, int]] | None = None
    extra_params: int = 0
    tower_params: int = 0
    image_bytes: tuple[float, float] = (0.0, 0.0)
    expert_bits: float | None = None
    source: str = ""
    second_runner: bool = False  # one of those that vLLM 0.23 steps with its second model runner
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    final_norm: int = 1  # hidden-size vectors of the last norm
    head_bias: bool = False
    model_type: str = ""

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
    def outer_params(self) -> int:
        """Last norm and bias of the output projection."""
        return self.final_norm * self.hidden + self.vocab * self.head_bias

    @property
    def params(self) -> int:
        """All parameters, as a published count includes them."""
        tables = self.embedding_params * (1 if self.tied_embeddings else 2)
        body = sum(g.count * g.layer_params(self.hidden) for g in self.groups)
        return tables + body + self.outer_params + self.extra_params

    @property
    def active_params(self) -> int:
        """Parameters one token uses: top-k experts, all else; the input embedding's rows are not counted."""
        routed = sum(g.count * g.mlp.top_k * g.mlp.expert_params(self.hidden) for g in self.groups if g.mlp.kind == "moe")
        return sum(g.count * g.always_params(self.hidden) for g in self.groups) + routed + self.outer_params + self.lm_head_params

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
        """Tokens that a layer of limited reach reads at most: its window, or what its indexer selects. The widest, if they differ."""
        return max((reach for g in self.groups if (reach := reach_of(g.mixer))), default=None)

    @property
    def kv_layers(self) -> int:
        """Layers whose KV grows with the whole context."""
        return sum(g.count for g in self.groups if _grows(g.mixer))

    @property
    def window_layers(self) -> int:
        return sum(g.count for g in self.groups if _near(g.mixer))

    @property
    def state_layers(self) -> int:
        return sum(g.count for g in self.groups if isinstance(g.mixer, ConstantState))

    @property
    def kv_elements_per_token(self) -> int:
        """KV elements one token adds over the full-context layers, rounded where entries stand for several tokens."""
        return round(sum(g.count * kept_elements(g.mixer) for g in self.groups if _grows(g.mixer)))

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes of the indexers' keys that one token adds (8 bits, whatever the dtype of the KV cache)."""
        return sum(g.count * index_bytes(g.mixer) for g in self.groups)

    @property
    def window_kv_elements_per_token(self) -> float:
        """KV elements one token adds over the sliding-window layers (at most `window` tokens are kept and read)."""
        windows = sum(g.count * kept_elements(g.mixer) for g in self.groups if g.mixer.kind == "attention" and g.mixer.window)
        return windows + sum(g.count * g.mixer.head_dim for g in self.groups if g.mixer.kind == "compressed")

    @property
    def state_elements(self) -> int:
        """Recurrent-state elements (float32) of one sequence."""
        return sum(g.count * g.mixer.state_elements() for g in self.groups if isinstance(g.mixer, ConstantState))

    @property
    def conv_elements(self) -> int:
        return sum(g.count * g.mixer.conv_elements() for g in self.groups if isinstance(g.mixer, ConstantState))


def reach_of(mixer: Mixer) -> int | None:
    """Tokens that a mixer's decode reads at most, None where it is the whole context."""
    if mixer.kind == "attention" or mixer.kind == "compressed":
        return mixer.window
    return mixer.indexer.top_k if mixer.kind == "mla" and mixer.indexer else None


def index_bytes(mixer: Mixer) -> float:
    """Bytes of an indexer's keys that a token adds to this layer."""
    if mixer.kind == "compressed":
        return mixer.key_bytes()
    return mixer.indexer.key_bytes() if mixer.kind == "mla" and mixer.indexer else 0.0


def kept_elements(mixer: Mixer) -> float:
    """KV elements that a token adds to this layer's own cache; none where it reads another layer's."""
    if mixer.kind == "mla" or mixer.kind == "compressed":
        return mixer.kv_elements_per_token()
    return mixer.kv_elements_per_token() if mixer.kind == "attention" and mixer.kv_kept else 0


def _near(mixer: Mixer) -> bool:
    return (mixer.kind == "attention" and bool(mixer.window)) or (mixer.kind == "compressed" and not mixer.ratio)


def _grows(mixer: Mixer) -> bool:
    if mixer.kind == "compressed":
        return mixer.ratio > 0
    return mixer.kind == "mla" or (mixer.kind == "attention" and not mixer.window)
