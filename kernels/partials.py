"""Parts of a softmax: where split attention leaves its pieces, and how the last program to finish puts them together.

Each part p of a (sequence, KV head) row holds, for the G query heads that share the KV head, an unnormalised output
o [G, D] float32, a running maximum m [G] and a sum l [G], both in base 2: exp2(x - m). Merged: sum_p 2^(m_p - m) o_p over
sum_p 2^(m_p - m) l_p. Parts are merged in their own order whatever the order of arrival, so results repeat bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Workspace:
    """Scratch of one split attention call; reusable by later calls on the same stream of equal or smaller shape.

    o: [rows, parts, G, D] float32; ml: [rows, parts, 2, G] float32; arrived: [rows] int32, zero between calls.
    """

    o: torch.Tensor
    ml: torch.Tensor
    arrived: torch.Tensor

    @classmethod
    def allocate(cls, rows: int, parts: int, group: int, head_dim: int, device: torch.device | str) -> Workspace:
        return cls(
            torch.empty(rows * parts * group * head_dim, dtype=torch.float32, device=device),
            torch.empty(rows * parts * 2 * group, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
        )

    def check(self, rows: int, parts: int, group: int, head_dim: int, like: torch.Tensor) -> Workspace:
        """Itself, or `ValueError` where it is too small for the call or on another device."""
        if self.o.device != like.device:
            raise ValueError(f"workspace: on {self.o.device}, but the query is on {like.device}")
        need = rows * parts * group * head_dim
        if self.o.numel() < need or self.ml.numel() < rows * parts * 2 * group or self.arrived.numel() < rows:
            raise ValueError(f"workspace: holds {self.o.numel()} output values, the call needs {need} in {rows} rows")
        return self


@triton.jit
def leave(o, ml, i_part, b_o, b_m, b_l, GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr):
    """Store part `i_part` (row * parts + part): b_o [GP, D], b_m [GP], b_l [GP], of which the first GROUP rows count."""
    o_g = tl.arange(0, GP)
    o_d = tl.arange(0, D)
    real = o_g < GROUP
    base = i_part.to(tl.int64) * GROUP
    tl.store(o + (base + o_g[:, None]) * D + o_d[None, :], b_o, mask=real[:, None])
    tl.store(ml + base * 2 + o_g, b_m, mask=real)
    tl.store(ml + base * 2 + GROUP + o_g, b_l, mask=real)


@triton.jit
def is_last(arrived, i_row, n_parts):
    """True in the program that finishes row `i_row` last; it also sets the row's counter back to zero."""
    tl.debug_barrier()  # every thread's part is stored before one thread announces it
    before = tl.atomic_add(arrived + i_row, 1, sem="acq_rel", scope="gpu")
    last = before == n_parts - 1
    if last:
        tl.store(arrived + i_row, 0)
    return last


@triton.jit
def merge(
    o,
    ml,
    out,
    i_row,
    GROUP: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_P2: tl.constexpr,
    STEP: tl.constexpr,
):
    """Merge the PARTS parts of row `i_row` and store out [GROUP, D] (a pointer to the row's first query head).

    Parts that saw no token have m = -inf and l = 0. A row without any token gives zeros.
    """
    o_p = tl.arange(0, PARTS_P2)
    o_g = tl.arange(0, GP)
    o_d = tl.arange(0, D)
    first = i_row.to(tl.int64) * PARTS
    real = (o_p[:, None] < PARTS) & (o_g[None, :] < GROUP)
    p_ml = ml + (first + o_p[:, None]) * 2 * GROUP + o_g[None, :]
    b_m = tl.load(p_ml, mask=real, other=-float("inf"), cache_modifier=".cg")
    b_l = tl.load(p_ml + GROUP, mask=real, other=0.0, cache_modifier=".cg")
    m = tl.max(b_m, 0)
    m = tl.where(m == -float("inf"), 0.0, m)
    total = tl.sum(b_l * tl.exp2(b_m - m[None, :]), 0)
    b_o = tl.zeros([GP, D], dtype=tl.float32)
    o_s = tl.arange(0, STEP)
    for p in range(0, PARTS, STEP):
        here = (p + o_s)[:, None]
        ok = (here < PARTS) & (o_g[None, :] < GROUP)
        p_m = ml + (first + here) * 2 * GROUP + o_g[None, :]
        w = tl.exp2(tl.load(p_m, mask=ok, other=-float("inf"), cache_modifier=".cg") - m[None, :])
        p_o = o + ((first + here[:, :, None]) * GROUP + o_g[None, :, None]) * D + o_d[None, None, :]
        part = tl.load(p_o, mask=ok[:, :, None], other=0.0, cache_modifier=".cg")
        b_o += tl.sum(part * w[:, :, None], 0)
    b_o = b_o / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + o_g[:, None] * D + o_d[None, :], b_o.to(out.dtype.element_ty), mask=o_g[:, None] < GROUP)
