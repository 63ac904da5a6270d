"""How much of each prompt another request of the workload also asks for.

Only those blocks need an identity of their own; the rest of a request's blocks can be counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def shared_depths(hashes: Sequence[Sequence[Hashable]]) -> list[int]:
    """For each list of chained block hashes, how many of its first hashes some other list also begins with.

    Hashes are chained, so a hash that only one list has ends what that list can share. Each list is followed only as
    far as others go; work grows with what is shared, not with the length of the prompts.
    """
    depths = [0] * len(hashes)
    owner: dict[Hashable, int] = {}  # hash -> the only list known to reach it, or -1 when several do
    for index, chain in enumerate(hashes):
        for depth, content in enumerate(chain):
            other = owner.setdefault(content, index)
            if other == index:
                break
            depths[index] = depth + 1
            if other < 0:
                continue
            owner[content] = -1
            depths[other] = max(depths[other], depth + 1)
            # the other list stopped here when it came; now that this one follows, it goes one step further
            if depth + 1 < len(hashes[other]):
                owner.setdefault(hashes[other][depth + 1], other)
    return depths
