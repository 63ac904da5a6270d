"""Benchmark inputs beyond the L2 cache, and their exact attention in float64.

Shapes: a cell has `sets` caches of `batch` sequences of `context` tokens, cut from one random pool, so that a repeated call finds its
inputs in device memory. The memory of a set is viewed as pages [KV heads, 2, page, D] (keys beside values) or, by its halves, as
contiguous keys and values [B, KV heads, context, D].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

PAGE = 128
BEYOND_L2 = 200_000_000  # bytes of all input sets of a candidate, four times an H100's L2 cache
KV = tuple[torch.Tensor, torch.Tensor]
Stream = Callable[[int], Iterable[KV]]  # sequence -> keys and values [KV heads, tokens, D], in parts


@dataclass(frozen=True)
class BenchCell:
    """One (batch, context) point of the benchmark."""

    batch: int
    context: int
    heads_kv: int
    q: list[torch.Tensor]  # [B, HQ, D] of each set
    memory: list[torch.Tensor]  # [2 B context KV heads D] of each set
    table: torch.Tensor  # [B, pages] int32, pages in random order
    seq_lens: torch.Tensor  # [B] int32

    @property
    def sets(self) -> int:
        return len(self.q)

    @property
    def d(self) -> int:
        return self.q[0].shape[2]

    @property
    def kv_bytes(self) -> int:
        return self.memory[0].numel() * self.memory[0].element_size()

    def pages(self, i: int) -> KV:
        """Keys and values of set `i`, views [B pages, KV heads, page, D]."""
        both = self.memory[i].view(-1, self.heads_kv, 2, PAGE, self.d)
        return both[:, :, 0], both[:, :, 1]

    def contiguous(self, i: int) -> KV:
        """Set `i` as contiguous caches [B, KV heads, context, D]."""
        k, v = self.memory[i].view(2, self.batch, self.heads_kv, self.context, self.d)
        return k, v

    def token_major(self, i: int) -> KV:
        """Set `i` as pages [B pages, page, KV heads, D]."""
        k, v = self.memory[i].view(2, -1, PAGE, self.heads_kv, self.d)
        return k, v

    def table_in_order(self) -> torch.Tensor:
        """Page table [B, pages] of consecutive pages, as a fresh allocator hands them out."""
        return torch.arange(self.table.numel(), device=self.table.device, dtype=torch.int32).view(self.batch, -1)


def pool(tokens: int, heads_kv: int, d: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> torch.Tensor:
    """Standard normal values of `tokens` keys or values, flat."""
    out = torch.empty(tokens * heads_kv * d, dtype=dtype, device=device)
    for part in out.split(2**28):
        part.normal_()
    return out


def cell(flat: torch.Tensor, batch: int, context: int, heads_q: int, heads_kv: int, d: int) -> BenchCell:
    """A cell cut from a pool: enough sets to exceed the L2 cache, as far as the pool allows."""
    numel = 2 * batch * context * heads_kv * d
    sets = max(1, min(-(-BEYOND_L2 // (2 * numel)), 16, flat.numel() // numel))
    q = [torch.randn(batch, heads_q, d, device=flat.device).to(flat.dtype) for _ in range(sets)]
    memory = [flat[i * numel : (i + 1) * numel] for i in range(sets)]
    table = torch.randperm(batch * context // PAGE, device=flat.device, dtype=torch.int32).view(batch, -1)
    return BenchCell(batch, context, heads_kv, q, memory, table, torch.full((batch,), context, dtype=torch.int32, device=flat.device))


def random_blocks(c: BenchCell, k: int, sink: int = 1, local: int = 2) -> torch.Tensor:
    """k distinct candidate blocks of each (sequence, KV head) [B, KV heads, k] int32; -1 where there are fewer."""
    candidates = max(0, c.context // PAGE - sink - local)
    order = torch.rand(c.batch, c.heads_kv, max(candidates, k), device=c.table.device)
    order[..., candidates:] = -1.0
    chosen = order.topk(k, dim=-1).indices.int() + sink
    return torch.where(chosen < candidates + sink, chosen, -1).contiguous()


def stream_pages(k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, step: int = 256) -> Stream:
    """Paged caches [pages, KV heads, page, D], `step` pages at a time."""
    return lambda b: (tuple(x[pages].transpose(0, 1).flatten(1, 2) for x in (k, v)) for pages in table[b].long().split(step))


def stream_contiguous(k: torch.Tensor, v: torch.Tensor, step: int = 256 * PAGE) -> Stream:
    """Contiguous caches [B, KV heads, N, D], `step` tokens at a time."""
    return lambda b: zip(k[b].split(step, dim=1), v[b].split(step, dim=1), strict=True)


def stream_kept(k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, selected: torch.Tensor, sink: int = 1, local: int = 2) -> Stream:
    """The sink, local and selected [B, KV heads, k] blocks of paged caches whose blocks are pages."""
    blocks, heads = table.shape[1], torch.arange(k.shape[1], device=k.device)[:, None]
    always = [*range(min(sink, blocks)), *range(max(sink, blocks - local), blocks)]

    def kept(b: int) -> Iterable[KV]:
        rows = [always + [x for x in row if x >= 0] for row in selected[b].tolist()]
        pages = table[b, torch.tensor(rows, device=table.device)].long().to(k.device)
        yield k[pages, heads].flatten(1, 2), v[pages, heads].flatten(1, 2)

    return kept


def exact_attention(q: torch.Tensor, stream: Stream) -> torch.Tensor:
    """Float64 attention [B, HQ, D] of q [B, HQ, D] over streamed keys and values: a naive softmax whose memory is bounded."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for b in range(q.shape[0]):
        state = None
        for k_b, v_b in stream(b):
            q_b = q[b].view(k_b.shape[0], -1, q.shape[2]).double() * q.shape[2] ** -0.5
            s = q_b @ k_b.double().transpose(1, 2)
            m = s.amax(-1, keepdim=True) if state is None else torch.maximum(state[0], s.amax(-1, keepdim=True))
            p = torch.exp(s - m)
            total, acc = p.sum(-1, keepdim=True), p @ v_b.double()
            if state is not None:
                alpha = torch.exp(state[0] - m)
                total, acc = total + state[1] * alpha, acc + state[2] * alpha
            state = m, total, acc
        assert state is not None, "no blocks"
        out[b] = (state[2] / state[1]).view(q.shape[1:])
    return out
