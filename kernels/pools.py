"""Inputs of a benchmark: one random key pool and one value pool, cut into as many independent caches as a cell needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import reference

PAGE = 128


@dataclass(frozen=True)
class Cell:
    """One (batch, context) point: `sets` caches over disjoint parts of the pools, so that repeated calls miss the L2 cache."""

    batch: int
    context: int
    q: list[torch.Tensor]  # [B, HQ, D] each
    k_pages: list[torch.Tensor]  # [B pages, KV heads, PAGE, D]
    v_pages: list[torch.Tensor]
    table: torch.Tensor  # [B, pages] int32, a random order
    seq_lens: torch.Tensor

    @property
    def sets(self) -> int:
        return len(self.q)

    @property
    def kv_bytes(self) -> int:
        return 2 * self.k_pages[0].numel() * self.k_pages[0].element_size()

    def contiguous(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same memory of set `i` read as contiguous caches [B, KV heads, context, D]."""
        heads, _, d = self.k_pages[i].shape[1:]
        return tuple(x.view(self.batch, heads, self.context, d) for x in (self.k_pages[i], self.v_pages[i]))

    def small_pages(self, i: int, page: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same memory as pages of `page` tokens, with a page table in random order."""
        heads, _, d = self.k_pages[i].shape[1:]
        k, v = (x.view(-1, heads, page, d) for x in (self.k_pages[i], self.v_pages[i]))
        order = torch.randperm(k.shape[0], device=k.device, dtype=torch.int32)
        return k, v, order.view(self.batch, -1)


def pool(tokens: int, heads_kv: int, d: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normal values for `tokens` tokens of `heads_kv` heads, flat, on the GPU."""
    out = torch.empty(tokens * heads_kv * d, dtype=dtype, device="cuda")
    for part in out.split(2**28):
        part.normal_()
    return out


def cell(k_pool: torch.Tensor, v_pool: torch.Tensor, batch: int, context: int, heads_q: int, heads_kv: int, d: int) -> Cell:
    """Cut a cell out of the pools: enough sets to exceed the L2 cache four times where the pools allow it."""
    numel = batch * context * heads_kv * d
    want = -(-200_000_000 // (4 * numel))
    sets = max(1, min(want, 16, k_pool.numel() // numel))
    q = [torch.randn(batch, heads_q, d, device="cuda").to(k_pool.dtype) for _ in range(sets)]
    k, v = ([p[i * numel : (i + 1) * numel].view(-1, heads_kv, PAGE, d) for i in range(sets)] for p in (k_pool, v_pool))
    table = torch.randperm(batch * context // PAGE, device="cuda", dtype=torch.int32).view(batch, -1)
    return Cell(batch, context, q, k, v, table, torch.full((batch,), context, dtype=torch.int32, device="cuda"))


def exact_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, step: int = 256) -> torch.Tensor:
    """Float64 attention of q [B, HQ, D] over whole paged caches, streamed `step` pages at a time to bound its memory."""
    batch, heads_q, d = q.shape
    heads = k.shape[1]
    out = torch.empty(batch, heads_q, d, dtype=torch.float64, device=q.device)
    for b in range(batch):
        q_b = q[b].view(heads, -1, d).double() * d**-0.5
        m = torch.full((heads, heads_q // heads, 1), -float("inf"), dtype=torch.float64, device=q.device)
        total, acc = torch.zeros_like(m), torch.zeros_like(q_b)
        for pages in table[b].long().split(step):
            k_b, v_b = (x[pages].transpose(0, 1).reshape(heads, -1, d).double() for x in (k, v))
            s = q_b @ k_b.transpose(1, 2)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p, alpha = torch.exp(s - m_new), torch.exp(m - m_new)
            total, acc, m = total * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ v_b, m_new
        out[b] = (acc / total).view(heads_q, d)
    return out


def exact_sparse(c: Cell, i: int, selected: torch.Tensor, sink_blocks: int = 1, local_blocks: int = 2) -> torch.Tensor:
    """Float64 attention of set `i` over sink, local and selected blocks of PAGE tokens, row by row."""
    heads, d = c.k_pages[i].shape[1], c.q[i].shape[2]
    n = c.context // PAGE
    always = [*range(sink_blocks), *range(max(sink_blocks, n - local_blocks), n)]
    out = torch.empty(c.q[i].shape, dtype=torch.float64, device="cuda")
    group = out.shape[1] // heads
    for b in range(c.batch):
        for h in range(heads):
            kept = always + [x for x in selected[b, h].tolist() if x >= 0]
            pages = c.table[b, torch.tensor(kept, device="cuda")].long()
            k, v = (x[pages, h].reshape(1, -1, d) for x in (c.k_pages[i], c.v_pages[i]))
            keep = torch.ones(1, k.shape[1], dtype=torch.bool, device="cuda")
            rows = slice(h * group, (h + 1) * group)
            out[b, rows] = reference.attend(c.q[i][b, rows], k, v, keep, d**-0.5)
    return out
