"""Why the selector has one level: bounds of groups of blocks are exact to refine, and on keys without structure refine all."""

import pytest
import torch

from kernels import reference


@pytest.mark.parametrize("group", [4, 16])
def test_every_group_of_blocks_reaches_the_best_single_blocks(group: int) -> None:
    gen = torch.Generator().manual_seed(group)
    keys = torch.randn(1024, 128, 64, generator=gen)
    low, high = keys.amin(1)[None, None], keys.amax(1)[None, None]
    q = torch.randn(1, 7, 64, generator=gen)
    kth = reference.block_scores(q, low, high)[0, 0].topk(8).values[-1]
    wide_low = low.view(1, 1, -1, group, 64).amin(3)
    wide_high = high.view(1, 1, -1, group, 64).amax(3)
    assert float((reference.block_scores(q, wide_low, wide_high) >= kth).double().mean()) == 1.0


def test_groups_that_hold_no_large_key_are_pruned() -> None:
    gen = torch.Generator().manual_seed(1)
    keys = torch.randn(1024, 128, 64, generator=gen) * 0.1
    keys[::128] *= 20
    low, high = keys.amin(1)[None, None], keys.amax(1)[None, None]
    q = torch.randn(1, 7, 64, generator=gen)
    kth = reference.block_scores(q, low, high)[0, 0].topk(8).values[-1]
    bounds = reference.block_scores(q, low.view(1, 1, -1, 16, 64).amin(3), high.view(1, 1, -1, 16, 64).amax(3))[0, 0]
    assert int((bounds >= kth).sum()) == 8
