"""Attention kernels: query heads by KV head, and the query rows that a block holds.

Attention is dealt out to multiprocessors in waves, and some idle in the last one. Neither the waves themselves nor a smooth mean of them
improved left-out models or served runs (docs/adr/04): they are not in the formula.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil

from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision

# Elements of an 8-bit cache that FlashAttention 3 reads in a second on Hopper, whatever the memory's bandwidth: kernel tables of an H100
# (2.8e12) and an H200 (3.1e12). Blackwell's and Ada's kernels read 8 bits at the bandwidth of 16.
HOPPER, HOPPER_8_BIT_ELEMENTS_PER_S = ("H100", "H200"), 2.95e12
READ_SHARE = 0.9  # of the datasheet's bandwidth that decode attention reaches in 16 bits there
# Bytes of 16-bit KV that an H100 and an H200, of one chip, read in a second from L2, by head size, and of latent KV for each block of 64
# query heads, whose flops bound it: 0.94 of kernels alone (`python -m studies.shared_kv`), as first reads in engines are. Elsewhere such a
# read takes an H100's share of a first one.
HOPPER_REREAD_BYTES_PER_S, LATENT_REREAD_BYTES_PER_S, LATENT_ROWS, REREAD_SHARE = {64: 5.0e12, 128: 7.5e12, 256: 5.6e12}, 5.5e12, 64, 0.4
BLOCKS_AT_ONCE = 132  # of attention: multiprocessors of that chip
BLOCK_ROWS = 128  # query rows of a block of FlashAttention 3


def reread(model: ModelSpec, precision: Precision, gpu: GpuSpec | None, tp: int, beta_kv: float) -> tuple[float, int]:
    """(time of reading KV from L2 over that of a first read at `beta_kv` bytes/s, blocks of one sequence's attention on each GPU).

    On Hopper a kernel of 8 bits is bound by its elements, and saves nothing.
    """
    share, blocks = REREAD_SHARE, 1
    hopper = gpu is not None and {gpu.name, gpu.sibling_of} & set(HOPPER)
    for group in model.groups:
        mixer = group.mixer
        if mixer.kind == "mla":
            blocks = ceil(mixer.heads / tp / LATENT_ROWS)
            share = beta_kv * blocks / LATENT_REREAD_BYTES_PER_S if hopper else share
        elif mixer.kind == "attention" and not mixer.window:
            blocks = max(1, mixer.kv_heads // tp)
            share = beta_kv / HOPPER_REREAD_BYTES_PER_S.get(mixer.head_dim, HOPPER_REREAD_BYTES_PER_S[128]) if hopper else share
    return min(share, 1.0) if precision.kv_bytes > 1.0 or not hopper else 1.0, blocks


@lru_cache(maxsize=256)
def query_heads(model: ModelSpec, tp: int = 1) -> tuple[int, int]:
    """(KV heads, query heads to each of them) per GPU of the model's full-context attention; (0, 0) where it has none."""
    for group in model.groups:
        mixer = group.mixer
        if mixer.kind == "attention" and not mixer.window:
            return max(1, mixer.kv_heads // tp), max(1, mixer.heads // max(mixer.kv_heads, tp))
    return 0, 0


def mixed_fill(heads: tuple[int, int]) -> float:
    """Query rows that a decode's block holds beside prefill chunks, over those that it needs."""
    group = heads[1]
    return ceil(group / BLOCK_ROWS) * BLOCK_ROWS / group if group else 1.0


def kv_read_factor(model: ModelSpec, precision: Precision, gpu: GpuSpec | None) -> float:
    """Time of reading the cache over that of its bytes at the bandwidth of 16 bits: above 1 for 8 bits on Hopper."""
    attention = any(group.mixer.kind == "attention" for group in model.groups)  # a latent cache has kernels of its own
    if gpu is None or not attention or precision.kv_bytes > 1.0 or not {gpu.name, gpu.sibling_of} & set(HOPPER):
        return 1.0
    return max(1.0, READ_SHARE * gpu.memory_bandwidth / HOPPER_8_BIT_ELEMENTS_PER_S)
