"""Coefficients of the work: what a model's layers move and compute per token, pair, row or iteration, on each GPU of a deployment."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.attention import kv_read_factor, mixed_fill, query_heads
from sim.cost.gemm import GEMM_KERNELS, over_roofline, quantised_gemm_surface
from sim.cost.layer_work import PIECES, LayerWork, Setting
from sim.cost.lora_work import adapter_work, one_adapter
from sim.cost.mixer_work import mixer_work
from sim.cost.mlp_work import mlp_work, unpacks_experts
from sim.cost.traffic import traffic
from sim.errors import UsageError
from sim.specs.checkpoint import GroupBytes
from sim.specs.gpu import GpuSpec
from sim.specs.lora import Lora
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import ACTIVATION_BYTES, Precision, quantises
from sim.specs.stored import group_bytes, head_bytes, stored


class Coefficients(NamedTuple):
    """Work of a (model, precision, tp, GPU) per token, pair or iteration. All per GPU."""

    linear_bytes: float  # read by every iteration
    linear_flops: float  # per row
    over_roofline: NDArray[np.float64] | None  # by rows, where the GEMMs of the model's layers were measured
    head_bytes: float
    head_flops: float  # per sampled row
    experts: tuple[tuple[float, int, int], ...]  # per MoE group: bytes of one expert x layers, experts, top_k
    expert_flops: float  # per row
    kernels: float
    row_kernels: float  # per row
    activation_bytes: float  # per row
    kv_token_bytes: float  # full-context layers
    kv_read: float  # time of reading cached bytes over that at the bandwidth of 16 bits
    window_token_bytes: float  # of layers that read no more than the window or a selection
    kept_token_bytes: float  # that a token adds to the cache for good
    kept_window_token_bytes: float  # while it is inside the window
    pair_flops: float
    window_pair_flops: float
    prefill_pair_flops: float  # of full-context layers, where long chunks are attended to in another form
    expanding_flops: float  # per cached token that a chunk attends to in that form
    expanding_bytes: float
    state_seq_bytes: float  # read + write
    state_token_flops: float
    summary_unit_bytes: float  # one unit's summary, all full-context layers
    kv_layers: int
    comm_row_bytes: float  # beside all-reduces
    comm_ops: float
    reduces: float  # all-reduces, in units of the slowest link's bytes
    reduce_row_bytes: float  # of one's message
    reduce_gpus: int
    reduce_on: GpuSpec | None
    launch_layers: float  # of an iteration outside a captured graph
    piece_layers: float  # of one that carries prefill and is in pieces of graphs
    mixed_fill: float
    adapter: tuple[float, int, float, float] = (0.0, 1, 0.0, 0.0)  # LoRA: bytes of one, adapters, share of rows with one, its kernels
    expert_gpus: int = 1  # GPUs that hold different experts: the busiest is waited for


# Coefficients that are sums over layers, by the same names
SUMMED = tuple(name for name in LayerWork.__dataclass_fields__ if name in Coefficients._fields and name not in ("kernels", "linear_bytes"))


def check_tensor_parallel(model: ModelSpec, tp: int) -> None:
    """Raise UsageError unless the model's heads split evenly over `tp` GPUs."""
    if tp < 1:
        raise UsageError(f"tensor-parallel size must be at least 1, got {tp}")
    for group in model.groups:
        if group.mixer.kind != "none" and group.mixer.heads % tp:
            raise UsageError(f"{model.name}: {group.mixer.heads} heads do not split over tensor-parallel size {tp}")


@lru_cache(maxsize=256)
def coefficients(
    model: ModelSpec,
    precision: Precision,
    tp: int = 1,
    gpu: GpuSpec | None = None,
    parallel: Parallel = NO_PARALLEL,
    lora: Lora | None = None,
) -> Coefficients:
    """Per-GPU coefficients of the work, on a GPU or on any: of all layers, whatever stage they are in. Raises UsageError when the heads do
    not split over `tp`.
    """
    check_tensor_parallel(model, tp)
    sharing, measured = tp * parallel.dp, over_roofline(model, precision, tp, gpu)
    at = Setting(model.hidden, precision, tp, gpu, sharing, unpacks_experts(model, precision, gpu))
    layers = all_layers(model, at, lora)
    quantising = quantises(precision.weights, gpu) and (measured is None or quantised_gemm_surface(model, precision, gpu) is None)
    outer_bytes = precision.weight_bytes if stored(model, precision.weights) is None else ACTIVATION_BYTES
    return Coefficients(
        **{name: getattr(layers, name) for name in SUMMED},
        linear_bytes=layers.linear_bytes + model.outer_params * outer_bytes / tp,
        over_roofline=measured,
        head_bytes=head_bytes(model, precision) / tp,
        head_flops=2.0 * model.lm_head_params / tp,
        kernels=layers.kernels + layers.gemms * ((0.0 if measured is not None else GEMM_KERNELS) + quantising),
        activation_bytes=layers.row_bytes
        + model.hidden * ACTIVATION_BYTES  # one row of the embedding
        + quantising * layers.row_inputs * (ACTIVATION_BYTES + precision.weight_bytes),  # read in 16 bits, written in 8
        kv_read=kv_read_factor(model, precision, gpu),
        kv_layers=model.kv_layers,
        **communication(model, layers.blocks, tp, gpu, parallel),
        launch_layers=layers.launches,
        piece_layers=layers.pieces,
        mixed_fill=mixed_fill(query_heads(model, tp)),
        adapter=one_adapter(lora, model, tp) if lora else Coefficients._field_defaults["adapter"],
        expert_gpus=sharing if parallel.expert else 1,
    )


def all_layers(model: ModelSpec, at: Setting, lora: Lora | None = None) -> LayerWork:
    """Work of all layers, and of adapters."""
    layers = adapter_work(lora, model, at.tp) if lora else LayerWork()
    for group, size in zip(model.groups, group_bytes(model, at.precision), strict=True):
        layers += layer_work(group, size, at).times(group.count)
    return layers


def communication(model: ModelSpec, blocks: float, tp: int, gpu: GpuSpec | None, parallel: Parallel) -> dict[str, Any]:
    """Coefficients of what GPUs send one another: all-reduces of `blocks` layer halves, and the rest."""
    comm_bytes, comm_ops = traffic(model, blocks, tp, parallel)
    return {
        "comm_row_bytes": comm_bytes,
        "comm_ops": comm_ops,
        "reduces": blocks * parallel.all_reduce.byte,  # of one GPU with itself no byte
        "reduce_row_bytes": model.hidden * ACTIVATION_BYTES,
        "reduce_gpus": tp,
        "reduce_on": gpu,
    }


def layer_work(group: LayerGroup, size: GroupBytes, at: Setting) -> LayerWork:
    """Work of one layer: norms, GEMMs' weights as stored and their flops (2 per parameter and row), mixer and MLP.

    A norm adds the residual: it reads two rows and writes two.
    """
    multiplied = group.always_params(at.hidden) - group.norm_params(at.hidden)
    own = LayerWork(
        blocks=group.blocks,
        kernels=group.norms,
        row_bytes=ACTIVATION_BYTES * 4.0 * at.hidden * group.norms,
        launches=1.0,
        pieces=PIECES,
        linear_bytes=size.layer / at.tp,
        linear_flops=2.0 * multiplied / at.tp,
    )
    return own + mixer_work(group.mixer, at) + mlp_work(group.mlp, size, at)
