"""Probes of the formula: iterations of small models with every kind of layer, by precision, parallelism, attention policy and adapters.

Priced on no GPU, which has no tables of kernels, and on four GPUs of different chips.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.cost.batch import BatchShape, decode_batch, mixed_batch
from sim.cost.gemm import Gemm, Measured, Roofline
from sim.cost.gemm_surface import KERNEL_BYTES
from sim.specs.attention_policy import AttentionPolicy, blocks, dense, sink_window
from sim.specs.lora import Lora
from sim.specs.mixers import Attention, CompressedAttention, GatedDeltaNet, Indexer, LatentAttention, NoMixer, Recurrence
from sim.specs.mlps import DenseMlp, MoeMlp, NoMlp
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.parallel import NO_PARALLEL, Link, Parallel
from sim.specs.precision import Precision

DENSE_ATTENTION, ROWS = dense(), np.arange(1.0, 9.0)
DENSE, MOE = DenseMlp(4096), MoeMlp(32, 4, 512)


def _probe(name: str, *groups: LayerGroup, hidden: int = 1024) -> ModelSpec:
    return ModelSpec(name, hidden, 32_000, groups, tied_embeddings=False, max_context=2**20)


# Its GEMMs are in the packaged table: to price some like them takes a tenth of a second.
PLAIN = _probe("plain", LayerGroup(6, Attention(32, 8, 128), DenseMlp(14336)), hidden=4096)
EXPERTS = _probe("experts", LayerGroup(4, Attention(32, 8, 128), MOE), LayerGroup(2, Attention(32, 8, 128, window=512), MOE), hidden=4096)
EVERY_MIXER = _probe(
    "every mixer",
    LayerGroup(1, Attention(16, 8, 64, qk_norm=True, output_gate=True), DENSE),
    LayerGroup(2, Attention(16, 8, 64, window=512), MoeMlp(32, 4, 512, shared_intermediate=512)),
    LayerGroup(1, LatentAttention(16, 256, 512, 128, 64, 128), DENSE),
    LayerGroup(2, LatentAttention(16, 256, 512, 128, 64, 128, Indexer(64, 128, 2048)), DENSE),
    LayerGroup(1, CompressedAttention(16, 64, 256, 2, 128, window=128, ratio=4, index_heads=16, index_dim=64, top_k=256), DENSE),
    LayerGroup(2, GatedDeltaNet(8, 8, 64, 64), DENSE),
    LayerGroup(2, Recurrence("Mamba-2", 16, (), 512, 2304, 131_072, 6912), NoMlp()),
    LayerGroup(1, NoMixer(), DENSE),
)
CHIPS = ("A100-80G", "L40S", "H100", "B200")
OF_CHIP = ("H200", "RTX-4090")  # with other memory; with power to spare
PARALLELS = (
    (2, NO_PARALLEL),
    (4, NO_PARALLEL),
    (8, NO_PARALLEL),
    (1, Parallel(pp=2, hand_over=Link(2.0, 3.0))),
    (2, Parallel(dp=2, all_reduce=Link(2.0, 3.0), all_to_all=Link(4.0, 5.0))),
    (1, Parallel(dp=4, expert=True)),
)


class Probe(NamedTuple):
    """Arguments of `sim.cost.work.iteration_work`: a model's iteration, of what shape and on what."""

    model: ModelSpec
    shape: BatchShape
    precision: Precision
    policy: AttentionPolicy
    tp: int
    gpu: str | None
    parallel: Parallel
    lora: Lora | None = None


def probes() -> Iterator[Probe]:
    """All probes: precisions by chip; experts by chip; mixers by chip; policies, parallelism and adapters."""
    for gpu in (None, *CHIPS):
        for weights in ("bf16", "fp8", "int4"):
            yield from _of(PLAIN, Precision(weights, "fp8" if weights == "fp8" else "bf16"), gpu)
        for weights in ("bf16", "mxfp4"):
            yield from _of(EXPERTS, Precision(weights), gpu)
        yield from _of(EVERY_MIXER, Precision(), gpu)
    yield from _of(PLAIN, Precision(), OF_CHIP[1])
    for weights in ("fp16", "fp32", "int8", "w8a16", "nvfp4", "q4_k_m"):
        yield from _of(PLAIN, Precision(weights), "H100")
    for kernel in KERNEL_BYTES:
        for gpu in ("H100", OF_CHIP[0]):
            yield from _of(PLAIN, Precision("int4", kernel=kernel), gpu)
    for policy in (sink_window(), blocks(8), dense("host"), blocks(8, "host")):
        yield from _of(EVERY_MIXER, Precision(), None, policy)
    for tp, parallel in PARALLELS:
        yield from _of(EVERY_MIXER, Precision("fp8"), None, tp=tp, parallel=parallel)
        yield from _of(EVERY_MIXER, Precision(), "H100", tp=tp, parallel=parallel)
    yield from _of(PLAIN, Precision(), None, lora=Lora(16, 4))
    yield from _of(PLAIN, Precision(), None, lora=Lora(64, 8, 0.5))


# A table of two GEMMs, and one that is not in it; numbers of rows of which some are whole tiles or in graphs
TABLE = {Gemm(1024, 1024, False): Measured(ROWS, 4e-6 + 2e-8 * ROWS), Gemm(4096, 4096, False): Measured(ROWS, 8e-6 + 9e-8 * ROWS)}
NOT_IN_TABLE, BEST = Gemm(2560, 2560, False), Roofline(3e12, 8e14)
MEASURED_ROWS = np.array([256.0, 512.0, 520.0, 1000.0, 1024.0, 1027.0, 2048.0, 2057.0])


def rereads() -> Iterator[tuple[ModelSpec, Precision, int, str | None]]:
    """Arguments of reads of KV that sequences share: (model, precision, TP, GPU)."""
    for gpu in (None, *CHIPS):
        for heads in (64, 128, 256):
            yield _probe("", LayerGroup(1, Attention(16, 8, heads), DENSE)), Precision(), 1, gpu
        for tp in (1, 2):
            yield _probe("", LayerGroup(1, LatentAttention(130, 256, 512, 128, 64, 128), DENSE)), Precision(), tp, gpu
    yield PLAIN, Precision(kv="fp8"), 1, "H100"


def _of(
    model: ModelSpec,
    precision: Precision,
    gpu: str | None,
    policy: AttentionPolicy = DENSE_ATTENTION,
    *,
    tp: int = 1,
    parallel: Parallel = NO_PARALLEL,
    lora: Lora | None = None,
) -> Iterator[Probe]:
    """Decodes, a chunk in pieces of graphs, and one beyond graphs with and without decodes."""
    for shape in (
        decode_batch(model, 3.0, 500_000.0 if policy.selects else 5000.0, policy),
        mixed_batch(model, [100.0, 70_000.0], [(300, 900, 1)], policy),
        mixed_batch(model, [100.0], [(515, 1900, 0)], policy),
        mixed_batch(model, [], [(90_000, 90_000, 1)], policy),
    ):
        yield Probe(model, shape._replace(others=50.0 * (parallel.dp - 1)), precision, policy, tp, gpu, parallel, lora)
