"""Merging of split-KV attention: partial softmax results and the kernel that combines them.

Shapes: o [rows, parts, G, D] unnormalised outputs, m and l [rows, parts, G] running maximum and sum of exp2(x - m), float32;
a row is a (sequence, KV head), G its query heads. out = sum_p 2^(m_p - m) o_p / sum_p 2^(m_p - m) l_p.
Parts are merged in their order, so results repeat bit for bit. One program per query head: a merge by the last program of a row
took 40 us for 64 parts of 7 heads on an H100, more than the attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels import launch


@dataclass(frozen=True)
class Workspace:
    """Scratch of a split attention call; later calls of equal or smaller shape on the same stream may reuse it.

    o [rows, parts, G, D] float32; ml [rows, parts, 2, G] float32, maxima then sums; claims [1] int32, items claimed from the work
    queue, zero between calls.
    """

    o: torch.Tensor
    ml: torch.Tensor
    claims: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, parts: int, group: int, head_dim: int, device: torch.device | str) -> Workspace:
        return cls(
            torch.empty(rows * parts * group * head_dim, dtype=torch.float32, device=device),
            torch.empty(rows * parts * 2 * group, dtype=torch.float32, device=device),
            torch.zeros(1, dtype=torch.int32, device=device),
        )

    def check(self, rows: int, parts: int, group: int, head_dim: int, like: torch.Tensor) -> Workspace:
        """Itself, or `ValueError` where it is too small for the call or on another device."""
        if self.o.device != like.device:
            raise ValueError(f"workspace: on {self.o.device}, but the query is on {like.device}")
        need = rows * parts * group * head_dim
        if self.o.numel() < need or self.ml.numel() < rows * parts * 2 * group:
            raise ValueError(f"workspace: holds {self.o.numel()} output values, the call needs {need} in {rows} rows")
        return self


@triton.jit
def store(o, ml, i_part, b_o, b_m, b_l, GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr):
    """Store part `i_part` (row * parts + part): b_o [GP, D], b_m and b_l [GP], the first GROUP rows of each."""
    o_g = tl.arange(0, GP)
    o_d = tl.arange(0, D)
    real = o_g < GROUP
    base = i_part.to(tl.int64) * GROUP
    tl.store(o + (base + o_g[:, None]) * D + o_d[None, :], b_o, mask=real[:, None])
    tl.store(ml + base * 2 + o_g, b_m, mask=real)
    tl.store(ml + base * 2 + GROUP + o_g, b_l, mask=real)


@triton.jit
def store_halves(o, ml, i_part, b_o, b_m, b_l, GROUP: tl.constexpr, D: tl.constexpr):
    """`store` for half-token rows: b_o [16, D / 2], eight first halves, then eight second halves; b_m, b_l [8]."""
    o_r, o_d, o_g = tl.arange(0, 16), tl.arange(0, D // 2), tl.arange(0, 8)
    base = i_part.to(tl.int64) * GROUP
    p_o = o + (base + o_r[:, None] % 8) * D + o_r[:, None] // 8 * (D // 2) + o_d[None, :]
    tl.store(p_o, b_o, mask=o_r[:, None] % 8 < GROUP)
    tl.store(ml + base * 2 + o_g, b_m, mask=o_g < GROUP)
    tl.store(ml + base * 2 + GROUP + o_g, b_l, mask=o_g < GROUP)


@triton.jit
def _merge(
    o, ml, claims, out, parts,
    GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, PARTS_P2: tl.constexpr, STEP: tl.constexpr,
    SKIP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """WIDTH channels of one query head of one row a program. Empty parts have m = -inf and l = 0; a row of only those gives zeros, or
    nothing (SKIP).

    Resets the work queue, so that the next call, or the next replay of a graph, finds it full.
    """
    i_row, i_g = tl.program_id(0) // GROUP, tl.program_id(0) % GROUP
    o_p, o_s, o_d = tl.arange(0, PARTS_P2), tl.arange(0, STEP), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first = i_row.to(tl.int64) * parts
    launch.wait_for_previous(PDL)
    if tl.program_id(0) + tl.program_id(1) == 0:
        tl.store(claims, 0)
    p_ml = ml + (first + o_p) * 2 * GROUP + i_g
    b_m = tl.load(p_ml, mask=o_p < parts, other=-float("inf"))
    b_l = tl.load(p_ml + GROUP, mask=o_p < parts, other=0.0)
    b_o = tl.zeros([STEP, WIDTH], dtype=tl.float32)
    m = tl.max(b_m, 0)
    m = tl.where(m == -float("inf"), 0.0, m)
    for p in range(0, PARTS_P2, STEP):
        ok = p + o_s < parts
        b_part = tl.load(o + ((first + p + o_s[:, None]) * GROUP + i_g) * D + o_d[None, :], mask=ok[:, None], other=0.0)
        w = tl.exp2(tl.load(ml + (first + p + o_s) * 2 * GROUP + i_g, mask=ok, other=-float("inf")) - m)
        b_o += b_part * w[:, None]
    total = tl.sum(b_l * tl.exp2(b_m - m), 0)
    b_out = tl.sum(b_o, 0) / tl.where(total == 0.0, 1.0, total)
    p_out = out + tl.program_id(0).to(tl.int64) * D + o_d
    channel = o_d
    if SKIP:
        channel = tl.where(total != 0.0, o_d, D)
    tl.store(p_out, b_out.to(out.dtype.element_ty), mask=channel < D)


def merge(work: Workspace, out: torch.Tensor, rows: int, parts: int, group: int, skip_empty: bool = False) -> None:
    """Merge `parts` parts of each of `rows` rows into out [B, HQ, D], whose rows are rows * group heads in order. `skip_empty` leaves
    those of rows without a token as they are.
    """
    d = out.shape[-1]
    bucket = max(8, triton.next_power_of_2(parts))
    # Many parts of few heads: split the channels too, or a few multiprocessors would read everything.
    width = min(d, 32) if bucket >= 64 and rows * group < 256 else d
    _merge[(rows * group, d // width)](
        work.o, work.ml, work.claims, out, parts, GROUP=group, D=d, WIDTH=width, PARTS_P2=bucket, STEP=min(bucket, 128),
        SKIP=skip_empty, num_warps=4 if bucket <= 64 else 8, **launch.options(),
    )  # fmt: skip
