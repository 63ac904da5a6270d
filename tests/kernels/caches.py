"""Random caches for the tests: paged or contiguous, token-major or head-major, NaN wherever no token lives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Cache:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seq_lens: torch.Tensor
    table: torch.Tensor | None

    @property
    def args(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k, self.v, self.seq_lens, self.table


def randn(gen: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=gen).to(dtype).to(DEVICE)


def make(
    seed: int,
    lens: list[int],
    heads_kv: int = 2,
    group: int = 3,
    d: int = 32,
    page: int | None = 16,
    dtype: torch.dtype = torch.bfloat16,
    token_major: bool = False,
    spare_pages: int = 2,
) -> Cache:
    """A cache for sequences of the given lengths; pages in random order, every slot that holds no token poisoned."""
    gen = torch.Generator().manual_seed(seed)
    batch, longest = len(lens), max(lens)
    if page is None:
        shape, table = (batch, heads_kv, longest + 3, d), None
    else:
        per_seq = -(-longest // page) + 1
        used = [-(-n // page) for n in lens]
        order = torch.randperm(sum(used) + spare_pages, generator=gen)
        table = torch.full((batch, per_seq), int(order[-1]), dtype=torch.int32)
        at = 0
        for b, n in enumerate(used):
            table[b, :n] = order[at : at + n]
            at += n
        shape = (sum(used) + spare_pages, heads_kv, page, d)
    q = randn(gen, batch, heads_kv * group, d, dtype=dtype)
    k, v = (torch.full(shape, float("nan"), dtype=dtype, device=DEVICE) for _ in range(2))
    if token_major:
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    for b, n in enumerate(lens):
        for cache in (k, v):
            tokens = randn(gen, heads_kv, n, d, dtype=dtype)
            if table is None:
                cache[b, :, :n] = tokens
            else:
                for i in range(-(-n // page)):
                    part = tokens[:, i * page : (i + 1) * page]
                    cache[table[b, i], :, : part.shape[1]] = part
    seq_lens = torch.tensor(lens, dtype=torch.int32, device=DEVICE)
    return Cache(q, k, v, seq_lens, None if table is None else table.to(DEVICE))


def random_blocks(cache: Cache, k: int, block: int, seed: int, sink: int = 1, local: int = 2) -> torch.Tensor:
    """Distinct candidate blocks for every row, -1 where a sequence has fewer."""
    gen = torch.Generator().manual_seed(seed)
    batch, heads = cache.q.shape[0], cache.k.shape[1]
    selected = torch.full((batch, heads, k), -1, dtype=torch.int32)
    for b in range(batch):
        candidates = torch.arange(sink, max(sink, -(-int(cache.seq_lens[b]) // block) - local), dtype=torch.int32)
        for h in range(heads):
            chosen = candidates[torch.randperm(len(candidates), generator=gen)[:k]]
            selected[b, h, : len(chosen)] = chosen
    return selected.to(DEVICE)


def far_apart(seed: int, tokens: int, d: int = 16) -> tuple[Cache, torch.Tensor]:
    """A sequence of three pages, and its keys once more in a cache whose pages are 2^31 elements from end to end by stride, in an
    address space that is reserved and barely touched. The table names pages of both caches; what holds no token is NaN."""
    page = 16
    apart = 2 * (2**31 // page + 64)
    storage = torch.empty(apart * page + page * d, dtype=torch.bfloat16)
    far = storage.as_strided((page + 1, 1, page, d), (apart, d * page, d, 1))
    near = make(seed, [tokens], heads_kv=1, group=2, d=d, page=page, spare_pages=page - 2)
    table = torch.tensor([[page, 0, page - 1]], dtype=torch.int32)
    for old, new in zip(near.table[0, :3].tolist(), table[0].tolist(), strict=True):
        far[new] = near.k[old]
    keys = torch.full_like(near.k, float("nan"))
    for old, new in zip(near.table[0, :3].tolist(), table[0].tolist(), strict=True):
        keys[new] = near.k[old]
    assert (page - 1) * apart > 2**31
    return Cache(near.q, keys, keys, near.seq_lens, table), far
