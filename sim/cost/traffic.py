"""Traffic between the GPUs of a replica in one pass through all layers, in units of its slowest link."""

from __future__ import annotations

from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import ACTIVATION_BYTES

# Dispatch to experts on other GPUs, or combine, for each GPU, over the latency of an all-reduce of a few kB: 80 us over eight H100s or
# H200s for 16 to 64 tokens (vLLM 0.24, DeepEP, published table); over two H100s of one host it was 2.8 for both.
ALL_TO_ALL_OPS = 9.0 / 8.0
# Hand-over of a micro-batch to the next stage: about 0.2 ms, mostly the host's, declared. One stream over two stages took 0.25 ms longer.
HAND_OVER_OPS = 20.0


def traffic(model: ModelSpec, reduces: float, tp: int, parallel: Parallel = NO_PARALLEL) -> tuple[float, float]:
    """(bytes per row beside all-reduces, operations) between GPUs in one pass through all layers with `reduces` all-reduces, in units of
    the replica's slowest link.

    A token goes to each GPU that holds one of its experts, and comes back, once: n (1 - (1 - 1/n)**top_k) of n, its own left out.
    """
    reduce, swap, hand = parallel.all_reduce, parallel.all_to_all, parallel.hand_over
    moved = 0.0
    ops = (reduces if tp > 1 else 0.0) * reduce.latency
    if parallel.dp > 1:
        gpus = tp * parallel.dp
        for group in model.groups:
            if group.mlp.kind == "moe":
                ops += group.count * 2.0 * ALL_TO_ALL_OPS * gpus * swap.latency
                reached = (gpus - 1) * (1.0 - (1.0 - 1.0 / gpus) ** group.mlp.top_k)
                moved += group.count * 2.0 * reached * model.hidden * ACTIVATION_BYTES / tp * swap.byte
    if parallel.pp > 1:
        ops += parallel.pp * HAND_OVER_OPS * hand.latency
        moved += (parallel.pp - 1) * 2.0 * model.hidden * ACTIVATION_BYTES * hand.byte  # hidden states and residual
    return moved, ops
