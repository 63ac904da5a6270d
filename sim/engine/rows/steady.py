"""Steady decodes: running requests of which every iteration decodes one token and nothing else, counted instead of visited.

An epoch is a decision that gives each of them a token. What an iteration costs and which KV blocks it takes follow from their number, the
sum of their contexts, and how many of them stand at each place of a block. A request is visited again for its last token, and all are
where KV blocks may fall short or a client gives up: its row then says what it would, had it been visited all along.
"""

from __future__ import annotations

from sim.engine.rows.kv import blocks_of, hand_out
from sim.engine.rows.layout import NEVER, Core, EngineRow, IterationRow
from sim.engine.rows.shares import insert_plain


def settle(e: Core, s: EngineRow, r: int) -> None:
    """A request that has just got a token is counted from the next decision on, unless its last one is near or KV blocks are scarce."""
    row = e.requests[r]
    left = row.prompt + row.output - 1 - row.computed
    nameable = s.caching and row.hashed < row.depth  # blocks of its answer, for which others ask
    offers = s.host_chunks and (row.offered + 1) * s.chunk_tokens <= row.prompt
    if left < 2 or nameable or offers or row.held != blocks_of(s, row.computed) or s.free < s.running + s.budget // s.block:
        return
    row.entered, row.final = s.epoch, s.epoch + left
    e.phases[phase_of(s, row.computed, row.entered)] += 1
    s.steady += 1
    s.steady_context += row.computed
    s.next_final = min(s.next_final, row.final)


def phase_of(s: EngineRow, computed: int, epoch: int) -> int:
    """Where those are counted that take a new KV block together, of one with so many tokens at the end of an epoch."""
    return s.first_phase + (computed - epoch - 1) % s.block


def unsettle(e: Core, s: EngineRow, place: int) -> None:
    """The running request at a place is visited again."""
    row = e.requests[e.running[s.first_running + place]]
    given, sent = s.epoch - row.entered, max(s.sent_epoch - row.entered, 0)
    e.phases[phase_of(s, row.computed, row.entered)] -= 1
    s.steady -= 1
    s.steady_context -= row.computed + given
    s.settled = min(s.settled, place)
    for i in range(2):
        it = e.iterations[s.first_iteration + i]
        if it.epoch > row.entered and (i == s.under_way or i == s.decided):
            it.steady -= 1
            it.steady_context -= row.computed + it.epoch - row.entered - 1
            insert_plain(e, s, it, i, place)
    row.computed += given
    row.generated += sent
    row.under_way += given - sent
    row.coming += given - sent
    row.held = blocks_of(s, row.computed)
    if s.caching and given:
        row.hashed = max(row.hashed, (row.computed - s.overlap) // s.block)  # a token that is under way is found when it is known
    row.final = 0


def unsettle_all(e: Core, s: EngineRow) -> None:
    """All running requests are visited again."""
    for place in range(s.running):
        if e.requests[e.running[s.first_running + place]].final:
            unsettle(e, s, place)
    s.next_final = NEVER


def steady_shares(e: Core, s: EngineRow, it: IterationRow) -> None:
    """A decision gives each steady request a token, but for those whose last one it is: they are visited."""
    if s.epoch + 1 == s.next_final:
        end_some(e, s)
    needed = e.phases[s.first_phase + -(s.epoch + 1) % s.block]
    if falls_short(e, s, needed):
        unsettle_all(e, s)
    if not s.steady:
        return
    s.epoch += 1
    hand_out(e, s, needed)
    it.steady = it.decodes = it.tokens = s.steady
    it.steady_context = it.context = s.steady_context
    s.steady_context += s.steady


def end_some(e: Core, s: EngineRow) -> None:
    """Those whose last token comes next are visited again."""
    s.next_final = NEVER
    for place in range(s.running):
        row = e.requests[e.running[s.first_running + place]]
        if row.final == s.epoch + 1:
            unsettle(e, s, place)
        elif row.final:
            s.next_final = min(s.next_final, row.final)


def falls_short(e: Core, s: EngineRow, needed: int) -> bool:
    """Whether running requests may need more KV blocks than are free, `needed` of them by steady ones."""
    if s.free >= needed + s.budget // s.block + s.running - s.steady + 1:
        return False
    for place in range(s.settled, s.running):
        row = e.requests[e.running[s.first_running + place]]
        if not row.final:
            known = row.prompt + row.generated + row.coming
            needed += max(blocks_of(s, min(known, row.computed + s.budget)) - row.held, 0)
    return needed > s.free


def steady_before(e: Core, s: EngineRow, it: IterationRow, r: int) -> int:
    """Steady requests of an iteration that run before another."""
    count = 0
    for place in range(s.running):
        other = e.running[s.first_running + place]
        if other == r:
            break
        row = e.requests[other]
        count += int(row.final > 0 and row.entered < it.epoch)
    return count
