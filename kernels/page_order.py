"""Pages of a sequence in the order of their addresses, for attention that does not mind which page comes when.

Attention over a whole context is a sum over its tokens: full pages may be read in any order, only the last page, of which a part
counts, must stay last. Pages that an allocator under churn leaves in random order read about 1 % slower than ascending ones
(docs/kernels.md). Sorting is host-side bookkeeping of a few small launches, done when pages are handed out, not per step or layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import checks


@dataclass(frozen=True)
class SortedPages:
    """A page table whose full pages do not stand in the order of the sequence: no table for anything that counts positions.

    table [B, max pages] int32. It is right as long as no sequence is shorter than it was when sorted: a sequence that grows writes on in
    the page that was its last, and new entries are put after it in their own order, as in any table.
    """

    table: torch.Tensor


def sort_pages(page_table: torch.Tensor, seq_lens: torch.Tensor, page_tokens: int) -> SortedPages:
    """The same pages per sequence, full ones ascending, then the one that is not full and whatever the table held behind it.

    page_table [B, max pages] int32, seq_lens [B] int32 tokens on the same device, page_tokens the tokens of a page. Nothing is read back
    from the device. `ValueError` naming the argument on bad input.
    """
    checks.block_tokens(page_tokens, "page_tokens")
    checks.tensor("page_table", page_table, [None, None], [torch.int32])
    checks.tensor("seq_lens", seq_lens, [page_table.shape[0]], [torch.int32], page_table)
    place = torch.arange(page_table.shape[1], device=page_table.device)
    full = place < (seq_lens // page_tokens)[:, None]
    # What is not sorted ranks behind every page number, in its own order.
    rank = torch.where(full, page_table.long(), place + 2**31)
    return SortedPages(page_table.gather(1, rank.argsort(dim=1, stable=True)))
