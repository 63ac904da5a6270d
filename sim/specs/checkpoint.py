"""Checkpoint: how a model's published weights are stored, in bytes by block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """Bytes of one layer of a group (mean over its layers): what every token reads, one routed expert, and what of the former every GPU of
    a tensor-parallel group holds whole.
    """

    layer: float
    expert: float = 0.0
    replicated: float = 0.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Stored bytes of quantised weights, scales and zero points included.

    `dtype` is the precision that most of the quantised bytes have, by the names of `sim.specs.precision`; `kv_dtype` that of the KV cache
    where the checkpoint asks for one. `groups` stand as in ModelSpec; `embedding` and `head` are the two tables (`head` 0 when tied),
    `other` norms and parameters that no text decode reads. `said` is what was read, in a sentence. `kernel` is the storage
    format, by which kernels are chosen, of most of the weights that every token reads (sim.specs.linear_kernels).
    """

    dtype: str
    kv_dtype: str | None
    groups: tuple[GroupBytes, ...]
    embedding: float
    head: float
    other: float
    total: float
    said: str
    kernel: str = ""
