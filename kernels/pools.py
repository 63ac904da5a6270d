"""Inputs of a benchmark: one random pool of keys and values, cut into as many independent caches as a cell needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import page_order, reference

PAGE = 128


@dataclass(frozen=True)
class Cell:
    """One (batch, context) point: `sets` caches over disjoint parts of one pool, so that repeated calls miss the L2 cache.

    The memory of a set is read in two ways: as pages that hold the keys, then the values of each of their heads, and, by its halves,
    as keys and values apart.
    """

    batch: int
    context: int
    q: list[torch.Tensor]  # [B, HQ, D] each
    memory: list[torch.Tensor]  # [2 B context KV heads D] each
    heads_kv: int
    table: torch.Tensor  # [B, pages] int32, a random order
    seq_lens: torch.Tensor

    @property
    def sets(self) -> int:
        return len(self.q)

    @property
    def kv_bytes(self) -> int:
        return self.memory[0].numel() * self.memory[0].element_size()

    @property
    def d(self) -> int:
        return self.q[0].shape[2]

    def pages(self, i: int, page: int = PAGE) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of set `i` beside each other: views [B pages, KV heads, page, D] of pages [KV heads, 2, page, D]."""
        both = self.memory[i].view(-1, self.heads_kv, 2, page, self.d)
        return both[:, :, 0], both[:, :, 1]

    def pages_apart(self, i: int, page: int = PAGE) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B pages, KV heads, page, D] of set `i` in one half of its memory, values in the other."""
        k, v = self.memory[i].view(2, -1, self.heads_kv, page, self.d)
        return k, v

    def pages_by_head(self, i: int, page: int = PAGE) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of set `i` beside each other, all pages of a head before those of the next: neighbouring pages are one run."""
        both = self.memory[i].view(self.heads_kv, -1, 2, page, self.d).transpose(0, 1)
        return both[:, :, 0], both[:, :, 1]

    def contiguous(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Set `i` as contiguous caches [B, KV heads, context, D]."""
        k, v = self.memory[i].view(2, self.batch, self.heads_kv, self.context, self.d)
        return k, v

    def sorted_table(self) -> page_order.SortedPages:
        """The table with the pages of every sequence ascending: with gaps, where the other sequences have theirs."""
        return page_order.sort_pages(self.table, self.seq_lens, PAGE)

    def ascending_table(self, in_turn: bool = False) -> torch.Tensor:
        """What a fresh pool hands out: each sequence its pages in a run, or, `in_turn`, a page to every sequence before the next one."""
        ids = torch.arange(self.table.numel(), device=self.table.device, dtype=torch.int32)
        return ids.view(-1, self.batch).t().contiguous() if in_turn else ids.view(self.batch, -1)

    def random_table(self, page: int) -> torch.Tensor:
        """A page table in random order for pages of `page` tokens."""
        count = self.batch * self.context // page
        return torch.randperm(count, device=self.table.device, dtype=torch.int32).view(self.batch, -1)


def pool(tokens: int, heads_kv: int, d: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normal values for `tokens` tokens of `heads_kv` heads, flat, on the GPU."""
    out = torch.empty(tokens * heads_kv * d, dtype=dtype, device="cuda")
    for part in out.split(2**28):
        part.normal_()
    return out


def cell(flat: torch.Tensor, batch: int, context: int, heads_q: int, heads_kv: int, d: int) -> Cell:
    """Cut a cell out of a pool: enough sets to exceed the L2 cache four times where the pool allows it."""
    numel = 2 * batch * context * heads_kv * d
    want = -(-200_000_000 // (2 * numel))
    sets = max(1, min(want, 16, flat.numel() // numel))
    q = [torch.randn(batch, heads_q, d, device="cuda").to(flat.dtype) for _ in range(sets)]
    memory = [flat[i * numel : (i + 1) * numel] for i in range(sets)]
    table = torch.randperm(batch * context // PAGE, device="cuda", dtype=torch.int32).view(batch, -1)
    return Cell(batch, context, q, memory, heads_kv, table, torch.full((batch,), context, dtype=torch.int32, device="cuda"))


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
    k_pages, v_pages = c.pages(i)
    heads, d = c.heads_kv, c.d
    n = c.context // PAGE
    always = [*range(sink_blocks), *range(max(sink_blocks, n - local_blocks), n)]
    out = torch.empty(c.q[i].shape, dtype=torch.float64, device="cuda")
    group = out.shape[1] // heads
    for b in range(c.batch):
        for h in range(heads):
            kept = always + [x for x in selected[b, h].tolist() if x >= 0]
            pages = c.table[b, torch.tensor(kept, device="cuda")].long()
            k, v = (x[pages, h].reshape(1, -1, d) for x in (k_pages, v_pages))
            keep = torch.ones(1, k.shape[1], dtype=torch.bool, device="cuda")
            rows = slice(h * group, (h + 1) * group)
            out[b, rows] = reference.attend(c.q[i][b, rows], k, v, keep, d**-0.5)
    return out
