"""Block-sparse decode attention over an engine's paged cache: what a server keeps beside its cache, and one step of it.

    settings = Settings(k=32)                       # or Settings.parse({"k": 32, "window": 4})
    layer = SparseLayer(settings, k_cache, v_cache, scratch)
    layer.update(table, query_starts, seq_lens, max_new)      # after the engine has written the new keys
    layer.attend(q, table, sparse_lens, out)                  # rows of length 0 are left to the engine's own attention

A sequence that decodes one token is sparse from `crossover` tokens on, where reading the keep-set is faster than reading everything;
below, and for prompts, the engine's own attention runs. `split_lens` says which is which on the device, so that one CUDA graph serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
import triton

from kernels import checks, gather_decode, page_summaries, partials, selector
from kernels.summaries import KINDS

BLOCK = 128  # tokens of a block, and of the engine's pages
TILE, CHUNK = 64, 64  # tokens a program gathers, blocks a program scores


@dataclass(frozen=True)
class Settings:
    """k selected blocks of 128 tokens besides the first `sink` and the last `window` blocks; `summaries` of the given kind. `dense_below`:
    tokens below which a sequence is read whole; None: where the regime map of an H100 has its crossing (`crossover`).
    """

    k: int = 32
    sink: int = 1
    window: int = 2
    summaries: str = "minmax_fp8"
    dense_below: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("sink", 0), ("window", 1)):
            checks.at_least(name, getattr(self, name), least)
        if self.k > 128:
            raise ValueError(f"k: {self.k} blocks, at most 128")
        if self.dense_below is not None:
            checks.at_least("dense_below", self.dense_below, 0)
        if self.summaries not in KINDS:
            raise ValueError(f"summaries: {self.summaries!r} is not one of {', '.join(KINDS)}")

    @classmethod
    def parse(cls, given: object) -> Settings:
        """Settings of a mapping, as an engine's command line has it. `ValueError` naming what is unknown or wrong."""
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise ValueError(f"sparse decode: {given!r} is not a mapping of {', '.join(known)}")
        if unknown := [str(name) for name in given if name not in known]:
            raise ValueError(f"sparse decode: unknown {', '.join(unknown)}; known: {', '.join(known)}")
        return cls(**given)

    def crossover(self, batch: int) -> int:
        """Tokens from which a batch of decoding sequences is sparse: `dense_below`, or the regime map's crossing of an H100 and
        Qwen2.5-7B within 1,024 tokens: half more than the keep-set, and what selection costs besides, which the batch shares.
        """
        if self.dense_below is not None:
            return self.dense_below
        return int(1.5 * (self.k + self.sink + self.window) * BLOCK + (2700 + 665 * self.k) / max(1, batch))


@dataclass(frozen=True)
class Scratch:
    """Buffers of one step, shared by the layers, which run one after the other."""

    selection: selector.SelectorWorkspace
    parts: partials.Workspace
    selected: torch.Tensor

    @classmethod
    def allocate(
        cls, settings: Settings, sequences: int, blocks: int, heads_q: int, heads_kv: int, d: int, device: torch.device | str
    ) -> Scratch:
        """For up to `sequences` sequences of `blocks` blocks."""
        rows = checks.pairs("sequences", sequences, heads_kv)
        parts = gather_decode.parts_of(settings.k, BLOCK, settings.sink, settings.window, TILE)
        return cls(
            selector.SelectorWorkspace.allocate(rows, blocks, CHUNK, device),
            partials.Workspace.allocate(rows, parts, checks.head_group(heads_q, heads_kv), d, device),
            torch.empty(rows * settings.k, dtype=torch.int32, device=device),
        )


def split_lens(
    query_starts: torch.Tensor, seq_lens: torch.Tensor, first_sparse: int, sparse: torch.Tensor, dense: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(lengths for block-sparse attention, for the engine's own), each 0 where the other has the sequence; views of the buffers
    `sparse` and `dense` [B or more] int32. Sparse are sequences with one new token and `first_sparse` tokens or more.
    """
    count = seq_lens.shape[0]
    decodes = (query_starts[1 : count + 1] - query_starts[:count] == 1) & (seq_lens >= first_sparse)
    torch.mul(seq_lens, decodes, out=sparse[:count])
    torch.sub(seq_lens, sparse[:count], out=dense[:count])
    return sparse[:count], dense[:count]


class SparseLayer:
    """One layer's cache [pages, KV heads, 128, D], any strides but the last, and the summaries beside it."""

    def __init__(self, settings: Settings, k_cache: torch.Tensor, v_cache: torch.Tensor, scratch: Scratch) -> None:
        if k_cache.shape[2] != BLOCK:
            raise ValueError(f"k_cache: pages of {k_cache.shape[2]} tokens, block-sparse decode needs {BLOCK}")
        self.settings, self.k_cache, self.v_cache, self.scratch = settings, k_cache, v_cache, scratch
        self.summaries = page_summaries.allocate(k_cache, settings.summaries)

    def update(self, table: torch.Tensor, query_starts: torch.Tensor, seq_lens: torch.Tensor, max_new: int) -> None:
        """Summarise the pages that the new tokens filled; arguments as in `page_summaries.update`."""
        page_summaries.update(self.summaries, self.k_cache, table, query_starts, seq_lens, max_new)

    def select(self, q: torch.Tensor, table: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        """[B, KV heads, k] int32: blocks that q [B, HQ, D] reads besides sink and window, -1 for none."""
        s, heads = self.settings, self.k_cache.shape[1]
        k = min(s.k, table.shape[1])
        out = self.scratch.selected[: q.shape[0] * heads * k].view(q.shape[0], heads, k)
        return selector.select(
            q,
            self.summaries,
            lens,
            k,
            table,
            sink_blocks=s.sink,
            local_blocks=s.window,
            out=out,
            workspace=self.scratch.selection,
            chunk=CHUNK,
        )

    def attend(self, q: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, out: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention of q [B, HQ, D] over each sequence's keep-set into out; rows of length 0 stay as they are. Returns the selection."""
        s = self.settings
        selected = self.select(q, table, lens)
        gather_decode.gather_decode(
            q, self.k_cache, self.v_cache, lens, selected, table, scale=scale, block=BLOCK, sink_blocks=s.sink, local_blocks=s.window,
            out=out, workspace=self.scratch.parts, tile=TILE, skip_empty=True,
        )  # fmt: skip
        return selected


def blocks_of(max_tokens: int) -> int:
    """Blocks of the longest sequence."""
    return triton.cdiv(max_tokens, BLOCK)
