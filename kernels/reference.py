"""Naive float64 references, written to be read: every kernel of this package is compared with one of these.

They loop, they allocate, they run on whatever device their inputs are on. Shapes as in the kernels they stand beside.
"""

from __future__ import annotations

import torch

F64 = torch.float64


def tokens_of(cache: torch.Tensor, table: torch.Tensor | None, i_b: int, n: int) -> torch.Tensor:
    """The first `n` tokens of sequence `i_b`: [KV heads, n, D], from cache [pages, KV heads, page, D]."""
    if table is None or n == 0:
        return cache[i_b if table is None else 0, :, :n]
    page = cache.shape[2]
    pages = table[i_b, : -(-n // page)].long()
    return torch.cat([cache[p] for p in pages], dim=1)[:, :n]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(q k^T scale) v over the tokens where keep [KV heads, n] is true: q [HQ, D], k and v [KV heads, n, D]."""
    heads_q, heads_kv = q.shape[0], k.shape[0]
    group = heads_q // heads_kv
    out = torch.zeros(heads_q, v.shape[-1], dtype=F64, device=q.device)
    for h in range(heads_q):
        idx = keep[h // group].nonzero()[:, 0]
        if idx.numel():
            score = k[h // group, idx].to(F64) @ q[h].to(F64) * scale
            out[h] = torch.softmax(score, 0) @ v[h // group, idx].to(F64)
    return out


def dense_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None = None,
    scale: float | None = None,
    sink: int = 0,
    window: int | None = None,
) -> torch.Tensor:
    """[B, HQ, D] float64; with a window: the first `sink` and the last `window` tokens only."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty(q.shape, dtype=F64, device=q.device)
    for b in range(q.shape[0]):
        n = int(seq_lens[b])
        k, v = (tokens_of(c, page_table, b, n) for c in (k_cache, v_cache))
        t = torch.arange(n, device=q.device)
        keep = torch.ones_like(t, dtype=torch.bool) if window is None else (t < sink) | (t >= n - window)
        out[b] = attend(q[b], k, v, keep.expand(k.shape[0], n), scale)
    return out


def kept_tokens(seq_len: int, selected: torch.Tensor, block: int, sink_blocks: int, local_blocks: int) -> torch.Tensor:
    """Mask [KV heads, seq_len]: sink blocks, the last `local_blocks` (counting a partial one), selected [KV heads, k] >= 0."""
    n_blocks = -(-seq_len // block)
    keep = torch.zeros(selected.shape[0], n_blocks, dtype=torch.bool)
    keep[:, :sink_blocks] = True
    keep[:, max(0, n_blocks - local_blocks) :] = True
    for h in range(selected.shape[0]):
        keep[h, [int(i) for i in selected[h] if i >= 0]] = True
    return keep.repeat_interleave(block, dim=1)[:, :seq_len].to(selected.device)


def gather_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    selected: torch.Tensor,
    page_table: torch.Tensor | None = None,
    scale: float | None = None,
    block: int = 128,
    sink_blocks: int = 1,
    local_blocks: int = 2,
) -> torch.Tensor:
    """[B, HQ, D] float64 over the keep-set of each (sequence, KV head): selected [B, KV heads, k] int, -1 for no block."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty(q.shape, dtype=F64, device=q.device)
    for b in range(q.shape[0]):
        n = int(seq_lens[b])
        k, v = (tokens_of(c, page_table, b, n) for c in (k_cache, v_cache))
        out[b] = attend(q[b], k, v, kept_tokens(n, selected[b], block, sink_blocks, local_blocks), scale)
    return out


def block_scores(q: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Upper bound of q.k over a block, the largest over the query group: q [B, HQ, D], low and high [B, KV heads, NB, D].

    Returns [B, KV heads, NB] float64. With low = high = mean it is the score of mean pooling.
    """
    b, heads_kv, _, d = low.shape
    grouped = q.to(F64).reshape(b, heads_kv, -1, 1, d)
    bound = torch.maximum(grouped * low.to(F64)[:, :, None], grouped * high.to(F64)[:, :, None]).sum(-1)
    return bound.amax(2)


def top_blocks(scores: torch.Tensor, seq_len: int, k: int, block: int, sink_blocks: int, local_blocks: int) -> torch.Tensor:
    """The k best candidate blocks of scores [KV heads, NB], best first, ties to the lower block, -1 where there are fewer."""
    n_blocks = -(-seq_len // block)
    out = torch.full((scores.shape[0], k), -1, dtype=torch.int32)
    candidates = range(sink_blocks, max(sink_blocks, n_blocks - local_blocks))
    for h in range(scores.shape[0]):
        best = sorted(candidates, key=lambda i: (-float(scores[h, i]), i))[:k]
        out[h, : len(best)] = torch.tensor(best, dtype=torch.int32)
    return out


def gdn_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    scale: float,
    l2norm: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the gated delta rule, out [B, HV, V] and the new state [B, HV, V, K], both float64.

    q, k [B, HK, K]; v [B, HV, V]; log_decay [B, HV] or [B, HV, K]; beta [B, HV]; state [B, HV, V, K]. Per head:
    S' = S exp(log_decay); delta = (v - S' k) beta; S_new = S' + delta k^T; out = S_new q scale.
    """
    repeat = v.shape[1] // q.shape[1]
    q, k = (x.to(F64).repeat_interleave(repeat, dim=1) for x in (q, k))
    if l2norm:
        q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    decay = torch.exp(log_decay.to(F64))
    decay = decay[..., None, None] if decay.dim() == 2 else decay[..., None, :]
    old = state.to(F64) * decay
    delta = (v.to(F64) - (old * k[:, :, None]).sum(-1)) * beta.to(F64)[..., None]
    new = old + delta[..., None] * k[:, :, None]
    return (new * q[:, :, None]).sum(-1) * scale, new


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """||out - ref|| / ||ref|| in float64; NaN anywhere gives NaN, which passes no bound."""
    return float(torch.linalg.vector_norm(out.to(F64) - ref.to(F64)) / torch.linalg.vector_norm(ref.to(F64)))
