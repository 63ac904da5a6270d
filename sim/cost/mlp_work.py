"""Work of an MLP: one function per kind, from its shape to a layer's bytes, flops, kernels and launches on one GPU; experts by tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sim.cost.gemm import gemms_on
from sim.cost.layer_work import LayerWork, Setting
from sim.specs.checkpoint import GroupBytes
from sim.specs.gpu import GpuSpec
from sim.specs.mlps import DenseMlp, Mlp, MoeMlp, NoMlp
from sim.specs.model import ModelSpec
from sim.specs.precision import ACTIVATION_BYTES, Precision, arithmetic

# Launches of a mixture-of-experts layer over a dense layer's: step times and served loads of one such model on an H100.
EXPERT_LAUNCHES = 2.3
# A layer of experts beside its weights, in small kernels' time: routing, sorting of rows, two grouped GEMMs, sum. Profiles of four models'
# decodes on an H100.
EXPERT_KERNELS = 10.0
# More of them for experts in mxfp4 that Hopper computes in 16 bits, at any number of rows: one model's layer beside two of its shape in 16
# bits (docs/log/2026-11-25-kinds-never-measured.md).
MXFP4_KERNELS = 18.0


def mlp_work(mlp: Mlp, size: GroupBytes, at: Setting) -> LayerWork:
    """The work of an MLP of any kind; `size` says what one routed expert takes as it is stored."""
    return MLPS[mlp.kind](mlp, size, at)


def no_mlp(mlp: NoMlp, size: GroupBytes, at: Setting) -> LayerWork:
    """A layer that only mixes tokens: nothing."""
    return LayerWork()


def dense_mlp(mlp: DenseMlp, size: GroupBytes, at: Setting) -> LayerWork:
    """Two GEMMs and the activation between them: 3 I / tp elements per row (both halves of the gate and their product)."""
    return LayerWork(
        kernels=1.0,
        gemms=2.0,
        row_bytes=ACTIVATION_BYTES * 3.0 * mlp.intermediate / at.tp,
        row_inputs=at.hidden + mlp.intermediate / at.tp,
    )


def expert_mlp(mlp: MoeMlp, size: GroupBytes, at: Setting) -> LayerWork:
    """Router, `top_k` routed experts and the shared ones: 2 top_k P flops per row of experts of P parameters, shared out over their GPUs.

    A row passes 3 I elements of each chosen and shared expert, its experts' outputs twice, and their sum.
    """
    inner = mlp.top_k * mlp.intermediate + mlp.shared_intermediate
    return LayerWork(
        kernels=EXPERT_KERNELS + MXFP4_KERNELS * at.unpacks_experts,
        gemms=1.0 + 2.0 * (mlp.shared_intermediate > 0),
        row_bytes=ACTIVATION_BYTES * (3.0 * inner / at.tp + (2.0 * mlp.top_k + 1.0) * at.hidden),
        row_inputs=at.hidden + inner / at.tp,
        launches=EXPERT_LAUNCHES - 1.0,
        expert_flops=2.0 * mlp.top_k * mlp.expert_params(at.hidden) / at.expert_gpus,
        experts=((size.expert / at.expert_gpus, mlp.experts, mlp.top_k),),
    )


MLPS: dict[str, Callable[[Any, GroupBytes, Setting], LayerWork]] = {"dense": dense_mlp, "moe": expert_mlp, "none": no_mlp}


def unpacks_experts(model: ModelSpec, precision: Precision, gpu: GpuSpec | None) -> bool:
    """Whether experts stored in mxfp4 are computed in 16 bits, on a GPU whose chip was measured at it."""
    stored_so = precision.weights == "mxfp4" or model.expert_bits is not None
    return stored_so and gpu is not None and gemms_on(gpu) is not None and arithmetic("mxfp4", gpu) != "fp4"


def expected_experts(experts: Any, top_k: Any, tokens: Any) -> Any:
    """Expected distinct experts that `tokens` tokens route to, each choosing top_k of `experts` uniformly."""
    return experts * (1.0 - (1.0 - top_k / experts) ** tokens)


def busiest(mean: Any, gpus: int) -> Any:
    """Load of the busiest of `gpus`, of tokens or experts that fall on them at random, `mean` on each: sqrt(2 ln(gpus) mean) more."""
    return mean + (2.0 * math.log(gpus) * mean) ** 0.5


def busiest_experts(experts: int, top_k: int, tokens: Any, gpus: int) -> Any:
    """Experts that the GPU with the most of them reads, of experts / gpus, when `tokens` tokens choose at random."""
    held, share = experts / gpus, expected_experts(experts, top_k, tokens) / experts
    most = held * share + (2.0 * math.log(gpus) * held * share * (1.0 - share)) ** 0.5
    return most - (most - held) * (most > held)  # none reads more than it holds; of numbers and arrays alike
