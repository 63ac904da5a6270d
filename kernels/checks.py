"""Argument checks shared by the kernels: each raises a `ValueError` that names the argument, before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def tensor(
    name: str,
    x: object,
    shape: Sequence[int | None],
    dtypes: Sequence[torch.dtype],
    like: torch.Tensor | None = None,
    contiguous: bool = False,
    pinned: bool = False,
) -> torch.Tensor:
    """Check one tensor argument and return it.

    `shape` gives one size per dimension, None where any size of at least 1 is right; `like` is a tensor whose device it must
    share; `contiguous` asks for a dense layout, otherwise only the last dimension must be dense; `pinned` asks for page-locked
    host memory instead of `like`'s device (any host memory where `like` is on the CPU).
    """
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(x).__name__}")
    if x.dtype not in dtypes:
        raise ValueError(f"{name}: dtype {x.dtype} is not one of {', '.join(str(d) for d in dtypes)}")
    if x.dim() != len(shape):
        raise ValueError(f"{name}: expected {len(shape)} dimensions {_text(shape)}, got shape {tuple(x.shape)}")
    for i, (want, have) in enumerate(zip(shape, x.shape, strict=True)):
        if have < 1:
            raise ValueError(f"{name}: dimension {i} is empty, shape {tuple(x.shape)}")
        if want is not None and have != want:
            raise ValueError(f"{name}: expected shape {_text(shape)}, got {tuple(x.shape)}")
    if contiguous and not x.is_contiguous():
        raise ValueError(f"{name}: must be contiguous, strides are {x.stride()}")
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ValueError(f"{name}: the last dimension must be contiguous, strides are {x.stride()}")
    if pinned and like is not None and like.is_cuda:
        if x.is_cuda or not x.is_pinned():
            raise ValueError(f"{name}: must be pinned host memory")
    elif like is not None and x.device != like.device:
        raise ValueError(f"{name}: on {x.device}, but the query is on {like.device}")
    return x


def query(q: object) -> torch.Tensor:
    """Check q [B, HQ, D]: the heads of a sequence lie together, sequences at any distance (a slice of a fused projection)."""
    x = tensor("q", q, [None, None, None], FLOATS)
    if x.stride(1) != x.shape[2] and x.shape[1] > 1:
        raise ValueError(f"q: the heads of a sequence must be contiguous, strides are {x.stride()}")
    return x


def _text(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("*" if n is None else str(n) for n in shape) + "]"


def head_group(q_heads: int, kv_heads: int, name: str = "q") -> int:
    """Query heads per KV head; they must divide evenly."""
    if q_heads % kv_heads:
        raise ValueError(f"{name}: {q_heads} query heads are not a multiple of {kv_heads} KV heads")
    return q_heads // kv_heads


def head_dim(size: int, name: str = "q") -> int:
    """A head size the kernels tile: a power of two from 16 to 256."""
    if not is_power_of_two(size) or not 16 <= size <= 256:
        raise ValueError(f"{name}: head dimension {size} is not a power of two from 16 to 256")
    return size


def block_tokens(size: int, name: str) -> int:
    """A block or page size: a power of two from 16 to 256 tokens."""
    if not is_power_of_two(size) or not 16 <= size <= 256:
        raise ValueError(f"{name}: {size} tokens is not a power of two from 16 to 256")
    return size


def at_least(name: str, value: int, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: {value!r} is not an integer of at least {least}")
    return value


def pairs(name: str, batch: int, heads: int) -> int:
    """Pairs of sequence and head, each a row of programs: at most the 65535 a launch can hold."""
    if batch * heads > 65535:
        raise ValueError(f"{name}: {batch} sequences of {heads} heads are more than the 65535 pairs a launch can hold")
    return batch * heads


def softmax_scale(scale: float | None, head_dim: int) -> float:
    """The factor of the scores: by default head_dim^-0.5; it must be finite."""
    value = head_dim**-0.5 if scale is None else scale
    if not math.isfinite(value):
        raise ValueError(f"scale: {scale!r} is not finite")
    return value
