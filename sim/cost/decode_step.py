"""Work of one decode step on a stack: the formula's work, with the keep-set, summaries and launches of whoever runs the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.cost.batch import BatchShape
from sim.cost.work import Work, iteration_work
from sim.specs.attention_policy import BLOCK_TOKENS, AttentionPolicy
from sim.specs.decode_stack import DecodeStack
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

FIRST_CONTEXT = 2.0**13  # tokens, from which on `per_doubling` counts
FORMULA_SUMMARY_BYTES = 4.0  # per block, KV head and key channel: two bounds of 16 bits


def decode_step_work(stack: DecodeStack, model: ModelSpec, shape: BatchShape, precision: Precision, policy: AttentionPolicy) -> Work:
    """Work of a decode step of `shape` sequences on a stack other than an engine, on one GPU: bytes, flops and counts.

    Weights are those of the roofline: an engine's measured GEMMs are not this stack's. What a selection reads lies beside the sink and the
    local window, which stay in HBM when the cache is in host RAM. `policy` is the stack's own (`DecodeStack.policy`).
    """
    work = iteration_work(model, shape, precision, policy)
    if stack.layer_kernels is None:
        return work
    sequences: Any = shape.decode_seqs
    rows = 1.0 + (stack.several_rows - 1.0) * (sequences > 1.0)
    link = work.link_bytes
    if policy.selects and policy.placement == "host":
        link = link * (policy.k * BLOCK_TOKENS / policy.keep_tokens)
    return with_selection(stack, work, shape)._replace(
        sequences=work.sequences * 0.0,  # a graph has no host work by sequence
        kernels=work.kernels * 0.0 + stack.layer_kernels * sum(group.count for group in model.groups) + 2.0,
        linear_bytes=work.linear_bytes * rows,
        head_bytes=work.head_bytes * rows,
        kv_bytes=work.kv_bytes + (work.link_bytes - link),
        link_bytes=link,
    )


def with_selection(stack: DecodeStack, work: Work, shape: BatchShape) -> Work:
    """The work with what a selection of the stack reads and does; an engine's own step remains what it is."""
    sequences: Any = shape.decode_seqs
    doublings: Any = np.log2(np.maximum(shape.decode_context / sequences / FIRST_CONTEXT, 1.0))
    more = (1.0 + stack.per_sequence * (sequences - 1.0)) * (1.0 + stack.per_doubling * doublings)
    return work._replace(
        summary_bytes=work.summary_bytes * (stack.summary_bytes / FORMULA_SUMMARY_BYTES), selected_units=work.selected_units * more
    )
