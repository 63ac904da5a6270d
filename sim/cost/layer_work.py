"""Work of one layer on one GPU, as terms that add: a model's is the sum over its layers of their norms, mixers and MLPs.

layer      norms + mixer (sim.cost.mixer_work) + MLP (sim.cost.mlp_work)
model      sum over groups of count * layer
iteration  sums of the batch shape times these (sim.cost.work)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Any, NamedTuple

from sim.specs.gpu import GpuSpec
from sim.specs.precision import Precision

# Launches of a layer's attention between captured pieces of a graph, over those of a whole layer outside one: two H200s at TP 2, and served
# models of 1 to 30 GB of weights.
PIECES = 0.5


class Setting(NamedTuple):
    """What layers are computed with. `expert_gpus` share the routed experts, which `unpacks_experts` computes in 16 bits from mxfp4."""

    hidden: int
    precision: Precision
    tp: int = 1
    gpu: GpuSpec | None = None
    expert_gpus: int = 1
    unpacks_experts: bool = False

    def shards(self, kv_heads: int) -> int:
        """GPUs that a layer's KV heads spread over: fewer heads than GPUs are replicated, as engines do."""
        return min(kv_heads, self.tp)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Bytes, flops, kernels and launches per GPU. Fields of one layer; of several, added and multiplied."""

    blocks: float = 0.0  # all-reduces of tensor parallelism
    kernels: float = 0.0  # small kernels
    row_kernels: float = 0.0  # more of them per row
    gemms: float = 0.0
    row_bytes: float = 0.0  # per row, through memory between GEMMs
    row_inputs: float = 0.0  # elements per row that enter GEMMs
    launches: float = 0.0  # by the host outside a captured graph, in those of a dense layer
    pieces: float = 0.0  # by the host when prefill runs in captured pieces of a graph
    linear_bytes: float = 0.0
    linear_flops: float = 0.0  # per row
    expert_flops: float = 0.0  # per row
    experts: tuple[tuple[float, int, int], ...] = ()  # bytes of one routed expert, experts, top_k
    kv_token_bytes: float = 0.0  # read per token of the context
    window_token_bytes: float = 0.0  # read per token of the window, or of what an indexer selects
    kept_token_bytes: float = 0.0  # that a token adds to the cache for good
    kept_window_token_bytes: float = 0.0  # while it is inside the window
    pair_flops: float = 0.0  # per query-key pair
    window_pair_flops: float = 0.0  # of pairs inside the window
    prefill_pair_flops: float = 0.0  # of long chunks, where attention computes them in another form
    expanding_flops: float = 0.0  # per cached token that such a chunk attends to
    expanding_bytes: float = 0.0
    state_seq_bytes: float = 0.0  # recurrent state per sequence, read and written
    state_token_flops: float = 0.0
    summary_unit_bytes: float = 0.0  # summary of one unit that attention may select

    def __add__(self, other: LayerWork) -> LayerWork:
        return LayerWork(*map(add, _values(self), _values(other)))

    def times(self, count: int) -> LayerWork:
        """The work of `count` such layers."""
        return LayerWork(*(_times(value, count) for value in _values(self)))


_values = attrgetter(*(field.name for field in fields(LayerWork)))


def _times(value: Any, count: int) -> Any:
    if isinstance(value, tuple):
        return tuple((one * count, experts, top_k) for one, experts, top_k in value)
    return value * count
