"""One replica's engine over rows: decide an iteration, price it, let the time pass, send its tokens, decide again.

Host and GPU are two clocks that take turns (sim.engine.overlap): `decides` is when the next decision is made, `ends` when the GPU is
through. The loop stops where time passes (`wake`, behind what arrives at that instant with `after_arrivals`), so that whoever drives it
lets requests arrive. Results equal those of sim.engine.loop, to the tick.
"""

from __future__ import annotations

from sim.engine.rows.kv import cached_prefix
from sim.engine.rows.layout import (
    DECIDE,
    IDLE,
    LAST,
    LAUNCH,
    LLAMACPP,
    NEEDS_ROOM,
    NEVER,
    NOBODY,
    SENDS,
    SGLANG,
    STUCK,
    WAITS,
    Core,
    EngineRow,
)
from sim.engine.rows.llamacpp import collect_llamacpp, decide_llamacpp
from sim.engine.rows.log import log_is_full
from sim.engine.rows.offload import next_transfer, note_transfers, send_transfers
from sim.engine.rows.price import Given, occupied, price
from sim.engine.rows.radix import cached_pages, free_pages
from sim.engine.rows.sending import begin_sending, end_sending
from sim.engine.rows.sglang import collect_sglang, decide_sglang
from sim.engine.rows.vllm import collect, decide
from sim.engine.rows.waiting import add


def arrive(e: Core, s: EngineRow, r: int, now: int) -> None:
    """Queue a request that arrives now, no later than the engine goes on."""
    add(e, s, r)
    if s.phase == IDLE:
        s.wake, s.after_arrivals = now, 1


def advance(e: Core, s: EngineRow, given: Given) -> int:
    """Go on at `wake`, where the engine stopped; stop where it goes on next. Returns what is needed, or 0. The first `sent` of the tokens
    listed in its sends are those sent now.
    """
    s.now = max(s.wake, s.now)
    if s.phase == LAST:
        send(e, s, s.under_way)
        s.under_way = NOBODY
        return pause(s, DECIDE, s.now, 1)
    if s.phase == SENDS:
        send(e, s, s.under_way)
        s.phase = LAUNCH
    elif s.phase != LAUNCH:
        if s.keep and log_is_full(s):
            return NEEDS_ROOM
        if s.under_way == NOBODY:
            s.ends = max(s.now, s.ends)
            s.decides = s.ends
        reason = choose(e, s)
        if reason or s.phase != LAUNCH:
            return reason
    return launch(e, s, given)


def choose(e: Core, s: EngineRow) -> int:
    """Decide what runs next, if anything does. Where nothing is under way, a decision that only made room is made again."""
    i = 1 if s.under_way == 0 else 0
    it = e.iterations[s.first_iteration + i]
    decide_by_kind(e, s, i)
    if not it.shares + it.steady and it.preempted and s.under_way == NOBODY:
        s.evicted += it.preempted
        decide_by_kind(e, s, i)
    if not it.shares + it.steady:
        s.evicted += it.preempted
        if s.host_chunks:
            send_transfers(e, s, s.now, max(s.now, s.ends), s.decisions + 1)
        if s.under_way != NOBODY:
            return pause(s, LAST, s.ends, 0)
        if s.host_chunks and s.queued and next_transfer(e, s) < NEVER:
            s.polled = NEVER
            return pause(s, IDLE, next_transfer(e, s), 1)
        if s.queued + running_of(s):
            return STUCK
        s.evicted = 0
        return pause(s, IDLE, NEVER, 1)
    it.preempted += s.evicted
    s.evicted = 0
    it.decided, it.waiting, it.running = s.now, s.queued, running_of(s)
    it.used = used_blocks(s)
    it.host = occupied(s, it) if s.overlap else 0
    it.head_start = max(s.ends - s.decides, 0)
    s.decided = i
    if s.under_way != NOBODY:
        return pause(s, SENDS, max(s.decides + it.host, s.ends), 0)
    s.phase = LAUNCH
    return 0


def decide_by_kind(e: Core, s: EngineRow, i: int) -> None:
    """Decide iteration `i` as the engine does."""
    if s.host_chunks:
        note_transfers(e, s)
    if s.kind == SGLANG:
        decide_sglang(e, s, i)
    elif s.kind == LLAMACPP:
        decide_llamacpp(e, s, i)
    else:
        decide(e, s, i)


def used_blocks(s: EngineRow) -> int:
    """KV blocks that requests hold."""
    return s.end_block - s.first_block - (free_pages(s) if s.kind == SGLANG else s.free)


def cached_blocks(e: Core, s: EngineRow, r: int) -> int:
    """Leading KV blocks of a request's prompt that the cache holds."""
    return cached_pages(e, s, r) if s.kind == SGLANG else cached_prefix(e, s, r)


def running_of(s: EngineRow) -> int:
    """Requests that are inside and do not wait."""
    return s.inside if s.kind == SGLANG else s.running


def launch(e: Core, s: EngineRow, given: Given) -> int:
    """Let the iteration that is decided run."""
    i = s.decided
    it = e.iterations[s.first_iteration + i]
    price(e, s, i, given)
    it.started = s.now
    decides, ends = s.decides, s.ends
    if s.host_chunks:
        send_transfers(e, s, s.now, max(s.now, ends), s.decisions)
    s.ends = max(ends, decides) + s.priced
    s.decides = max(ends, decides + it.host)
    s.under_way, s.decided = i, NOBODY
    if s.overlap:
        return pause(s, DECIDE, s.decides, 1)
    return pause(s, LAST, s.ends, 0)


def pause(s: EngineRow, phase: int, wake: int, after_arrivals: int) -> int:
    """Stop, to go on with a phase."""
    s.phase, s.wake, s.after_arrivals = phase, wake, after_arrivals
    return WAITS


def send(e: Core, s: EngineRow, i: int) -> None:
    """The tokens of iteration `i` are sent now."""
    begin_sending(s)
    s.polled = e.iterations[s.first_iteration + i].started
    count = collect_by_kind(e, s, i)
    end_sending(e, s, e.iterations[s.first_iteration + i], count)


def collect_by_kind(e: Core, s: EngineRow, i: int) -> int:
    """Advance the requests of iteration `i` as the engine does. Returns how many got tokens."""
    if s.kind == SGLANG:
        return collect_sglang(e, s, i)
    return collect_llamacpp(e, s, i) if s.kind == LLAMACPP else collect(e, s, i)
