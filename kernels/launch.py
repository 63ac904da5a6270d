"""Programmatic dependent launch (PDL) where the GPU has it, and the dot product of both compiler and interpreter.

With PDL the next kernel of a stream is scheduled while the previous one drains and waits on the device (`wait_for_previous`); it
saves about a microsecond a kernel. Every kernel launched with `options()` calls `wait_for_previous` before its first
dependent load and its first store, so chains stay ordered.
"""

from __future__ import annotations

import functools
import os

import torch
import triton
import triton.language as tl

# The interpreter multiplies the bit patterns of bf16 operands as integers, so there they are widened first.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@functools.cache
def has_dependent_launch() -> bool:
    """True on a CUDA device of compute capability 9.0 or later, unless KERNELS_PDL=0 turns it off."""
    if os.environ.get("TRITON_INTERPRET") == "1" or os.environ.get("KERNELS_PDL") == "0":
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


@functools.cache
def converts_e4m3() -> bool:
    """True where the GPU has instructions for e4m3 values (compute capability 8.9), and in the interpreter."""
    return INTERPRETED.value or (torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9))


def options() -> dict[str, object]:
    """Keyword arguments of a launch: the PDL constexpr and, where it is on, the launch attribute."""
    return {"PDL": True, "launch_pdl": True} if has_dependent_launch() else {"PDL": False}


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait until the previous kernel of the stream is complete and its writes are visible."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """a @ b + acc in float32; PRECISION is what float32 operands are multiplied with (ieee or tf32)."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision=PRECISION)
