"""The same use of host RAM stepped through vLLM's own CPUOffloadingManager and through ours, as comparable logs.

A trace is plain data: requests with common and own blocks, which are offered, written, read and finish in a drawn order. After every
operation both sides say of each request how many of its leading blocks host RAM has, and -1 where one of them is being written or read.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from sim.engine.config import EngineConfig
from sim.engine.rows import layout as at
from sim.engine.rows.made import make_core
from sim.engine.rows.offload import finish_use, host_hits, note_transfers, offer, pin_hits, unpin_hits

Op = tuple[str, int, int]
"""("new", common text, own blocks) | ("offer", request, end) | ("written" | "read" | "loaded" | "again" | "finish", request, 0)."""
BLOCK = 4
TEXTS = ((0, 1, 2, 3, 4, 5), (0, 1, 2, 6), (7, 8, 9), ())


class Ours:
    """sim.engine.rows.offload."""

    def __init__(self, blocks: int, least_offers: int, most_counted: int) -> None:
        offers = {"store_threshold": least_offers, "max_tracker_size": most_counted} if least_offers else {}
        config = EngineConfig(block_size=BLOCK, options={"host_blocks": blocks} | offers)
        self.e: Any = make_core(config, None, at.records(at.RequestRow, 0), np.zeros(0, dtype=np.int64), most_tokens=BLOCK)
        self.s = self.e.engines[0]
        self.read_from: dict[int, int] = {}

    def new(self, text: tuple[int, ...], own: int) -> None:
        row = at.RequestRow(prompt=BLOCK * (len(text) + own), names=len(self.e.names), seen=len(self.e.names), depth=len(text))
        self.e.names.extend(text)
        self.e.requests.append(row)

    def offer(self, r: int, end: int) -> None:
        offer(self.e, self.s, r, end)

    def written(self, count: int) -> None:
        chunk = self.s.writes
        for _ in range(count):
            self.e.chunks[chunk].over = 0
            chunk = self.e.chunks[chunk].behind
        note_transfers(self.e, self.s)

    def read(self, r: int, count: int) -> None:
        pin_hits(self.e, self.s, r, 0, count)
        self.read_from[r] = count
        self.e.requests[r].offered = count

    def loaded(self, r: int) -> None:
        unpin_hits(self.e, self.s, r, 0, self.read_from.pop(r))

    def again(self, r: int) -> None:
        self.e.requests[r].offered = 0

    def finish(self, r: int) -> None:
        finish_use(self.e, self.s, r)

    def in_flight(self) -> list[int]:
        """Blocks of each write under way, oldest first, as (request, blocks) runs."""
        found, chunk = [], self.s.writes
        while chunk != at.NOBODY:
            found.append(self.e.chunks[chunk].request)
            chunk = self.e.chunks[chunk].behind
        return found

    def hits(self, r: int) -> int:
        return host_hits(self.e, self.s, r, 0)


class Theirs:
    """vLLM's manager with its least-recently-used policy."""

    def __init__(self, blocks: int, least_offers: int, most_counted: int) -> None:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        self.lookup_result, self.context, self.key = LookupResult, ReqContext, make_offload_key
        self.manager = CPUOffloadingManager(blocks, store_threshold=least_offers, max_tracker_size=most_counted)
        self.requests: list[tuple[Any, list[Any]]] = []
        self.offered: list[int] = []
        self.writes: list[tuple[int, list[Any]]] = []
        self.reads: dict[int, list[Any]] = {}
        self.being_read: set[Any] = set()

    def new(self, text: tuple[int, ...], own: int) -> None:
        context = self.context(str(len(self.requests)))
        names = [*map(str, text), *(f"{len(self.requests)} {i}" for i in range(own))]
        keys = [self.key(name.encode(), 0) for name in names]
        for place, key in enumerate(keys):
            context.set_offload_key_position(key, BLOCK * (place + 1))
        self.manager.on_new_request(context)
        self.requests.append((context, keys))
        self.offered.append(0)

    def offer(self, r: int, end: int) -> None:
        context, keys = self.requests[r]
        offered = keys[self.offered[r] : end]
        found = self.manager.prepare_store(offered, context) if offered else None
        if found is not None:
            self.offered[r] = end
            self.writes += [(r, [key]) for key in found.keys_to_store]

    def written(self, count: int) -> None:
        for r, keys in self.writes[:count]:
            self.manager.complete_store(keys, self.requests[r][0])
        del self.writes[:count]

    def read(self, r: int, count: int) -> None:
        context, keys = self.requests[r]
        self.reads[r] = keys[:count]
        self.manager.prepare_load(self.reads[r], context)
        self.being_read.update(self.reads[r])
        self.offered[r] = count

    def loaded(self, r: int) -> None:
        keys = self.reads.pop(r)
        self.manager.complete_load(keys, self.requests[r][0])
        self.being_read.difference_update(keys)

    def again(self, r: int) -> None:
        self.offered[r] = 0

    def finish(self, r: int) -> None:
        self.manager.on_request_finished(self.requests[r][0])

    def in_flight(self) -> list[int]:
        return [r for r, _ in self.writes]

    def hits(self, r: int) -> int:
        context, keys = self.requests[r]
        count, busy = 0, False
        for key in keys:
            found = self.manager.lookup(key, context)
            if found is self.lookup_result.MISS:
                break
            busy = busy or found is self.lookup_result.HIT_PENDING or key in self.being_read
            count += 1
        return -1 if busy else count


def drawn(rng: Random) -> tuple[tuple[int, int, int], list[Op]]:
    """Blocks of host RAM, offers that one needs, and blocks whose offers are counted; operations; those that a side cannot do are left out
    when it is stepped.
    """
    ops: list[Op] = []
    count = 0
    for _ in range(rng.randint(5, 60)):
        if not count or rng.random() < 0.2:
            ops.append(("new", rng.randrange(len(TEXTS)), rng.choice([0, 1, 3, 8])))
            count += 1
        name = rng.choice(["offer", "offer", "offer", "written", "read", "loaded", "again", "finish"])
        ops.append((name, rng.randrange(count), rng.randint(1, 14)))
    return (rng.choice([4, 9, 14, 40]), rng.choice([0, 1, 2, 2, 3]), rng.choice([1, 3, 8, 20, 64_000])), ops


def steps_of(side: Ours | Theirs, ops: list[Op]) -> list[list[int]]:
    """After each operation: what writes are under way, then the leading blocks of each request that are there."""
    sizes: list[int] = []
    finished: set[int] = set()
    log: list[list[int]] = []
    for name, r, number in ops:
        if name == "new":
            side.new(TEXTS[r], number)
            sizes.append(len(TEXTS[r]) + number)
        elif name == "written":
            side.written(min(number, len(side.in_flight())))
        elif name == "loaded":
            if r in reads(side):
                side.loaded(r)
        elif r not in finished and r not in reads(side):
            if name == "offer":
                side.offer(r, min(number, sizes[r]))
            elif name == "read":
                if r not in side.in_flight() and (found := side.hits(r)) > 0:
                    side.read(r, found)
            elif name == "again":
                side.again(r)
            else:
                side.finish(r)
                finished.add(r)
        log.append([*side.in_flight(), -2, *map(side.hits, range(len(sizes)))])
    return log


def reads(side: Ours | Theirs) -> Any:
    """Requests whose blocks are being read."""
    return side.read_from if isinstance(side, Ours) else side.reads
