"""Work of LoRA adapters beside a model's linear layers: of all layers, whatever adapters an iteration uses, and of each that it uses.

Of rank r a projection of [in, out] has r (in + out) parameters. Its input is read, its output read and written, in 16 bits.
"""

from __future__ import annotations

from sim.cost.layer_work import LayerWork
from sim.specs.lora import Lora, projections
from sim.specs.model import ModelSpec
from sim.specs.precision import ACTIVATION_BYTES

# Shrink and expand of qkv, o, gate_up and down, in small kernels' time: of a projection, and of it for every adapter that rows use.
# What the host launches for it, in layers' launches, outside a graph: both by iterations of seven servers at 2 requests/s (medians between
# tokens); in pieces of graphs: quickest first tokens of one 8B with and without adapters. Its rows pass at a quarter of the bandwidth:
# bursts of 8,192 tokens, of which half asked for an adapter.
KERNELS_PER_PROJECTION, KERNELS_PER_ADAPTER = 3.0, 1.8
LAUNCHES_PER_PROJECTION, PIECES_PER_PROJECTION = 0.5, 0.1
SLOWER_ROWS = 4.0


def adapter_work(lora: Lora, model: ModelSpec, tp: int) -> LayerWork:
    """Work of LoRA in all layers, on one GPU: 2 flops per parameter and row, and memory time of the rows that use an adapter."""
    count, width = fused_projections(model), sum(width for width, _ in projections(model))
    return LayerWork(
        kernels=KERNELS_PER_PROJECTION * count,
        row_bytes=lora.share * SLOWER_ROWS * ACTIVATION_BYTES * 1.5 * width / tp,
        launches=LAUNCHES_PER_PROJECTION * count,
        pieces=PIECES_PER_PROJECTION * count,
        linear_flops=lora.share * 2.0 * lora.params(model) / tp,
    )


def one_adapter(lora: Lora, model: ModelSpec, tp: int) -> tuple[float, int, float, float]:
    """`sim.cost.coefficients.Coefficients.adapter`."""
    return lora.params(model) * ACTIVATION_BYTES / tp, lora.adapters, lora.share, KERNELS_PER_ADAPTER * fused_projections(model)


def fused_projections(model: ModelSpec) -> int:
    """Projections of all layers as engines fuse them: qkv, o, gate_up and down."""
    return sum(count for _, count in projections(model))
