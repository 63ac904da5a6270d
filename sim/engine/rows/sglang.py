"""SGLang's scheduler over rows: prefill first. An iteration is either a prefill batch or one token for every running request.

As long as waiting requests fit, prefill batches run and decodes stand still. A prompt longer than the chunk is cut, and its next chunk
opens the next prefill batch. Whether a request fits is a bet: its own tokens in full, and of what running requests may still generate only
a share, `ratio`, which shrinks with every decode iteration. When the bet is lost, requests with the fewest generated tokens are retracted
to the queue, and the share is raised. Decisions are those of SGLang 0.5.23, with its overlap mode or without.
"""

from __future__ import annotations

from sim.engine.rows.layout import NOBODY, OUTSIDE, RUNNING, Core, EngineRow, IterationRow
from sim.engine.rows.log import note_chunk, note_loss
from sim.engine.rows.radix import (
    allocate_pages,
    free_all,
    free_pages,
    full_pages,
    hold,
    keep_pages,
    make_room,
    match,
    name_of,
    pages_needed,
    unlocked,
)
from sim.engine.rows.sending import note_token
from sim.engine.rows.waiting import add, insert_behind, take_out

MOST_MATCHED = 128  # waiting requests beyond which the queue is left as it is
SHARED_TOKENS = 32  # a prefix of so many tokens in common with a request further up is worth waiting for
REFRESH_EVERY = 32  # looks at the queue between which prefixes of waiting requests are marked as used
ENDLESS = 2**60


def decide_sglang(e: Core, s: EngineRow, i: int) -> None:
    """Decide iteration `i`: a prefill batch when there is one to run, else a decode step."""
    it = e.iterations[s.first_iteration + i]
    take_in_prefilled(e, s)
    it.shares = it.tokens = it.admitted = it.preempted = it.lacks = it.reads_prompt = it.shared = it.common = it.prefill = it.decodes = (
        it.context
    ) = 0
    prefill_batch(e, s, it, i)
    if it.shares:
        it.prefill = 1
        it.reads_prompt = int(reads_prompt(e, s, it, i))
        s.prefilled, s.prefilled_in = it.shares, i
    elif s.running:
        decode_batch(e, s, it, i)
    begin = s.first_share + i * (s.seqs + 1)
    for place in range(begin, begin + it.shares):
        share = e.shares[place]
        row = e.requests[share.request]
        share.in_prefill = row.in_prefill
        share.samples = int(not s.prefilled or share.request != s.begun)
        if share.samples:
            row.in_prefill = 0
        it.tokens += share.tokens
        if share.tokens == 1 and row.computed >= row.prompt:
            it.decodes += 1
            it.context += row.computed
        row.computed += share.tokens
        row.under_way += share.tokens
    if not it.shares and s.under_way == NOBODY:
        s.ratio = s.first_ratio  # nothing runs


def reads_prompt(e: Core, s: EngineRow, it: IterationRow, i: int) -> bool:
    """Whether a share of the iteration has several tokens."""
    begin = s.first_share + i * (s.seqs + 1)
    several = False
    for place in range(begin, begin + it.shares):
        several = several or e.shares[place].tokens > 1
    return several


def is_done(e: Core, r: int) -> bool:
    """Whether a request has its last token."""
    return e.requests[r].generated >= e.requests[r].output


def take_in_prefilled(e: Core, s: EngineRow) -> None:
    """The latest prefill batch joins those that decode, its unfinished prompt enters the cache, and the finished leave."""
    begin, joining = s.first_share + s.prefilled_in * (s.seqs + 1), 0
    for place in range(begin, begin + s.prefilled):
        r = e.shares[place].request
        if r == s.begun:
            keep_pages(e, s, r, e.requests[r].computed)
        elif not is_done(e, r):
            joining += 1
    if joining < s.prefilled or (joining and not s.running):
        s.full = 0
    here = s.running
    s.running = 0
    for place in range(here):
        r = e.running[s.first_running + place]
        if not is_done(e, r):
            e.running[s.first_running + s.running] = r
            s.running += 1
    if s.running < here:
        s.full = 0
    for place in range(begin, begin + s.prefilled):
        r = e.shares[place].request
        if r != s.begun and not is_done(e, r):
            e.running[s.first_running + s.running] = r
            s.running += 1
    s.prefilled = 0


def to_come(e: Core, s: EngineRow, r: int) -> int:
    """Tokens that a request may still generate, as far as they count."""
    row = e.requests[r]
    return min(row.output - row.generated, s.clip)


def at_most(e: Core, s: EngineRow, r: int) -> int:
    """Tokens that a request may generate in all, as far as they count."""
    return min(e.requests[r].output, s.clip)


def paged(s: EngineRow, tokens: int) -> int:
    """Tokens of so many in whole pages."""
    return -(-tokens // s.block) * s.block


def reserve(s: EngineRow, tokens: int, later: int) -> None:
    """Book a request that takes `tokens` now and may need `later` more."""
    rounded = paged(s, tokens)
    s.promised += rounded + s.block + later
    s.taken += rounded + s.block
    s.inputs -= rounded
    s.chunk_left -= rounded


def has_room(s: EngineRow) -> bool:
    """Whether KV is left to a prefill batch."""
    free = free_pages(s) * s.block
    return free - s.promised > 0 and free - s.taken > 0


def look_at_queue(e: Core, s: EngineRow) -> None:
    """Put the queue into the order of admission; where that is first come first served, mark the prefixes of waiting requests as used, now
    and then, the first one last.
    """
    if not s.queued or not s.caching:
        return
    if s.by_prefix and s.queued <= MOST_MATCHED:
        order_by_prefix(e, s)
        return
    if s.looks % REFRESH_EVERY == 0:
        r, count = s.head, 1
        while count < MOST_MATCHED and e.requests[r].behind != NOBODY:
            r = e.requests[r].behind
            count += 1
        while r != NOBODY:
            match(e, s, r, full_pages(e, s, r, 0))
            r = e.requests[r].before
    s.looks += 1


def order_by_prefix(e: Core, s: EngineRow) -> None:
    """Longest cached prefix first; last those that share a long uncached prefix with one further up, so that they find it cached once that
    one has run.
    """
    r = s.head
    while r != NOBODY:
        row = e.requests[r]
        cached = match(e, s, r, full_pages(e, s, r, 0)) * s.block
        row.rank, row.leads = -min(cached, row.prompt + row.generated - 1), 0
        if cached <= SHARED_TOKENS:
            row.leads = int(not follows(e, s, r))
            if not row.leads:
                row.rank = ENDLESS
        r = row.behind
    r = e.requests[s.head].behind
    while r != NOBODY:
        behind, place = e.requests[r].behind, e.requests[r].before
        while place != NOBODY and e.requests[place].rank > e.requests[r].rank:
            place = e.requests[place].before
        if place != e.requests[r].before:
            take_out(e, s, r)
            insert_behind(e, s, r, place)
        r = behind


def follows(e: Core, s: EngineRow, r: int) -> bool:
    """Whether a request further up, whose prefix is not cached either, begins with as many of the same tokens as are worth waiting for."""
    pages = -(-SHARED_TOKENS // s.block)
    other, found = s.head, False
    while other != r and not found:
        if e.requests[other].leads and min(full_pages(e, s, r, 0), full_pages(e, s, other, 0)) >= pages:
            same = 0
            while same < pages and name_of(e, r, same) == name_of(e, other, same):
                same += 1
            found = same == pages
        other = e.requests[other].behind
    return found


def share_for(e: Core, s: EngineRow, it: IterationRow, i: int, r: int, tokens: int) -> None:
    """The iteration computes tokens of a request."""
    share = e.shares[s.first_share + i * (s.seqs + 1) + it.shares]
    share.request, share.tokens, share.drafts, share.blind, share.admitted = r, tokens, 0, 0, 0
    it.shares += 1


def leaves_room(e: Core, s: EngineRow, it: IterationRow, i: int, r: int) -> bool:
    """Whether KV lasts until requests of known lengths end, one after the other, if this one joins those running and those in the batch:
    how the engine admits requests that ignore the end of sequence where no prefix is cached. Pairs of tokens to come and tokens held, the
    soonest to end first, are kept over one batch, and as the engine keeps them, the last of the list included.
    """
    row = e.requests[r]
    needed = paged(s, row.prompt + row.generated) + s.block
    room = free_pages(s) * s.block - s.taken
    if needed > min(room, free_pages(s) * s.block - s.promised):
        return False
    if s.endings == NOBODY:
        s.endings = 0
        note_ending(e, s, r, False)
        for place in range(s.running):
            note_ending(e, s, e.running[s.first_running + place], False)
        begin = s.first_share + i * (s.seqs + 1)
        for place in range(begin, begin + it.shares):
            note_ending(e, s, e.shares[place].request, False)
    else:
        note_ending(e, s, r, True)
    freed, left = 0, room - needed
    for number in range(s.endings):
        alive = s.endings - number
        if left + freed - e.held[s.first_held + 2 * number] * alive <= alive:
            return False
        freed += e.held[s.first_held + 2 * number + 1]
    return True


def note_ending(e: Core, s: EngineRow, r: int, late: bool) -> None:
    """Add a request to the endings: behind those that end as soon; `late` before these, and never behind the last."""
    row = e.requests[r]
    to_come = row.output - row.generated
    if to_come <= 0:
        return
    place = 0
    if late:
        while place < s.endings and to_come > e.held[s.first_held + 2 * place]:
            place += 1
        if place == s.endings:
            place = max(s.endings - 1, 0)
    else:
        while place < s.endings and to_come >= e.held[s.first_held + 2 * place]:
            place += 1
    for moved in range(2 * s.endings - 1, 2 * place - 1, -1):
        e.held[s.first_held + moved + 2] = e.held[s.first_held + moved]
    e.held[s.first_held + 2 * place], e.held[s.first_held + 2 * place + 1] = to_come, row.prompt + row.generated
    s.endings += 1


def prefill_batch(e: Core, s: EngineRow, it: IterationRow, i: int) -> None:
    """The chunk that goes on, then waiting requests in order, stopping at the first that does not fit."""
    if not s.running:
        s.full = 0
    if s.begun == NOBODY:
        if s.full or not s.queued:
            return
        if s.running >= s.seqs:
            s.full = 1
            return
    look_at_queue(e, s)
    s.promised = 0.0
    ratio = 1.0 if s.ignores_end else s.ratio
    for place in range(s.running):
        s.promised += to_come(e, s, e.running[s.first_running + place]) * ratio
    s.taken, s.inputs, s.chunk_left = 0, s.most_prefill, s.budget if s.chunked_prefill else ENDLESS
    new, exact = 0, s.ignores_end > 0 and not s.caching
    s.endings = NOBODY
    if s.begun != NOBODY:
        r = s.begun
        row = e.requests[r]
        left = row.prompt + row.generated - row.computed
        tokens = left
        if s.chunked_prefill:
            free = min(s.chunk_left, int(free_pages(s) * s.block - s.promised))
            tokens = min(left, free if free > 0 else s.chunk_left)
        if pages_needed(e, s, r, row.computed + tokens) > free_pages(s):
            return
        share_for(e, s, it, i, r, tokens)
        new += tokens
        if tokens == left:
            s.begun = NOBODY
        reserve(s, tokens, 0 if s.begun != NOBODY else at_most(e, s, r))
    while s.queued:
        if has_room(s) and (s.inputs <= 0 or s.chunk_left <= 0):
            break
        if s.running + it.shares >= s.seqs:
            s.full = 1
            break
        r = s.head
        row = e.requests[r]
        known = row.prompt + row.generated
        count = match(e, s, r, full_pages(e, s, r, 1))
        node, cached = s.found, count * s.block
        start = max(cached, min(row.comes_with, known - 1))  # transferred KV: the last token is computed anew
        tokens = known - start
        if exact:
            fitting = leaves_room(e, s, it, i, r)
        else:
            room = (free_pages(s) - unlocked(e, s, node)) * s.block - s.promised
            fitting = known - cached + to_come(e, s, r) + s.block < room
        if not fitting:
            s.full = int(s.running > 0 or it.shares > 0)
            break
        share, rounded = tokens, paged(s, tokens)
        if exact:
            if s.chunked_prefill:
                share = min(tokens, s.chunk_left)
        elif not s.chunked_prefill:
            if it.shares and rounded >= s.inputs:
                share = 0
        elif rounded > s.chunk_left:
            share = s.chunk_left // s.block * s.block
        if not share:
            break
        take_out(e, s, r)
        row.state, row.in_prefill = RUNNING, 1
        s.inside += 1
        if share < tokens:
            s.begun = r
        hold(e, s, r, count, node)
        if not row.preemptions:
            row.cached = cached
        if row.scheduled == NOBODY:
            row.scheduled = s.now
        row.computed, row.comes_with = start, 0
        it.admitted += 1
        share_for(e, s, it, i, r, share)
        new += share
        reserve(s, share, start - cached + (0 if share < tokens else at_most(e, s, r)))
        if not has_room(s):
            s.full = 1
            break
    if not it.shares:
        return
    # the engine makes room for a page more of every request than it needs
    make_room(e, s, new + (it.shares * s.block if s.block > 1 else 0))
    begin = s.first_share + i * (s.seqs + 1)
    for place in range(begin, begin + it.shares):
        r = e.shares[place].request
        allocate_pages(e, s, r, e.requests[r].computed + e.shares[place].tokens)


def fits(e: Core, s: EngineRow) -> bool:
    """Whether all running requests have pages for their next token."""
    due = 0
    for place in range(s.running):
        r = e.running[s.first_running + place]
        due += pages_needed(e, s, r, e.requests[r].computed + 1)
    return make_room(e, s, due * s.block)


def decode_batch(e: Core, s: EngineRow, it: IterationRow, i: int) -> None:
    """One token for every running request, but for those whose last one is under way."""
    here = s.running
    s.running = 0
    for place in range(here):
        r = e.running[s.first_running + place]
        row = e.requests[r]
        if not (row.under_way and row.generated + 1 >= row.output):
            e.running[s.first_running + s.running] = r
            s.running += 1
    if s.running < here:
        s.full = 0
        if not s.running:
            return
    if fits(e, s):
        s.ratio = max(s.ratio - s.ratio_step, s.least_ratio)
    elif s.running < here:
        return  # they will make room
    else:
        retract(e, s, it)
    make_room(e, s, s.running * s.block)
    for place in range(s.running):
        r = e.running[s.first_running + place]
        allocate_pages(e, s, r, e.requests[r].computed + 1)
        share_for(e, s, it, i, r, 1)
    it.shared, it.common = s.shared, s.common


def retract(e: Core, s: EngineRow, it: IterationRow) -> None:
    """Send requests back to the queue, fewest generated and longest prompt first, until the next step has its pages."""
    first = s.first_running
    for place in range(first + 1, first + s.running):  # most generated first
        r, to = e.running[place], place
        while to > first and goes_before(e, r, e.running[to - 1]):
            e.running[to] = e.running[to - 1]
            to -= 1
        e.running[to] = r
    sent = 0
    while s.running > 1 and not (sent and fits(e, s)):
        s.running -= 1
        send_back(e, s, it, e.running[first + s.running])
        sent += 1
        make_room(e, s, s.running * s.retract_steps)
    if s.begun != NOBODY and not fits(e, s):
        send_back(e, s, it, s.begun)
        s.begun = NOBODY
    s.full = 0
    generated = requested = 0
    for place in range(s.running):
        row = e.requests[e.running[first + place]]
        generated += row.generated
        requested += row.output
    s.ratio = min(1.0, (generated + s.retract_steps * s.running) / (requested + 1))


def goes_before(e: Core, one: int, other: int) -> bool:
    """Whether a request is kept longer than another when requests are sent back."""
    a, b = e.requests[one], e.requests[other]
    return a.generated > b.generated or (a.generated == b.generated and a.prompt < b.prompt)


def send_back(e: Core, s: EngineRow, it: IterationRow, r: int) -> None:
    """A request loses its pages and waits again; what a batch under way gives it is lost."""
    row = e.requests[r]
    free_all(e, s, r)
    row.stale += int(row.under_way > 0)
    row.computed = row.under_way = row.in_prefill = row.comes_with = 0
    row.preemptions += 1
    s.inside -= 1
    it.preempted += 1
    if s.keep:
        note_loss(e, s, r)
    add(e, s, r)


def collect_sglang(e: Core, s: EngineRow, i: int) -> int:
    """The tokens of iteration `i` are sent now: advance its requests, free the finished. Returns how many got one."""
    it, begin, place = e.iterations[s.first_iteration + i], s.first_share + i * (s.seqs + 1), 0
    for seat in range(begin, begin + it.shares):
        share = e.shares[seat]
        r = share.request
        row = e.requests[r]
        lost = row.stale > 0
        row.stale -= int(lost)
        if not lost:
            row.under_way -= share.tokens
        if s.keep and share.in_prefill:
            note_chunk(e, s, it, r, share.tokens, row.computed - row.under_way)
        if lost or not share.samples:
            continue
        row.generated += 1
        if s.keep or row.generated == 1 or row.generated >= row.output:
            note_token(e, s, it, r, 1, place)
        place += 1
        done = row.generated >= row.output
        if it.prefill or done:
            keep_pages(e, s, r, row.computed - row.under_way)
        if done:
            free_all(e, s, r)
            row.state = OUTSIDE
            s.inside -= 1
    return place
