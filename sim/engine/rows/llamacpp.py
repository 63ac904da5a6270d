"""llama.cpp's server over rows: a fixed number of slots, one batch per iteration, decodes first and then prompts in slot order.

Every slot owns its share of the context, so nothing is preempted; a request waits for a free slot. The batch holds one token of each
generating slot and then prompt tokens, slot after slot, until `n_batch` tokens are in it; the device computes it in micro-batches
(sim.engine.rows.micro_batches). A model with recurrent state has its prompt's last few tokens computed in an iteration of their own,
because the server checkpoints the state before them.

Beside the stock behaviour: a budget for the whole batch, a cap on one slot's prompt tokens, and prefill-first (while prompts wait, hold
decodes back so that first tokens come sooner), with a limit on how many are held back (the first in slot order) and a number of waiting
prompts below which none are.
"""

from __future__ import annotations

from sim.engine.interface import BUDGET, SLOTS
from sim.engine.rows.kv import blocks_of
from sim.engine.rows.layout import NOBODY, OUTSIDE, RUNNING, Core, EngineRow, IterationRow
from sim.engine.rows.log import note_chunk
from sim.engine.rows.sending import note_token
from sim.engine.rows.shares import share_at
from sim.engine.rows.waiting import take_out


def decide_llamacpp(e: Core, s: EngineRow, i: int) -> None:
    """Decide iteration `i`: waiting requests take free slots, decodes (less those held back), then prompts in slot order."""
    it = e.iterations[s.first_iteration + i]
    it.shares = it.tokens = it.admitted = it.preempted = it.reads_prompt = it.shared = it.common = it.decodes = it.context = 0
    while s.queued and s.running < s.seqs:
        fill_slot(e, s, s.head)
        it.admitted += 1
    decodes = 0
    for slot in range(s.seqs):
        decodes += int(decoding(e, request_in(e, s, slot)))
    left_out = held_back(s, decodes, s.running - decodes)
    prompts, budget = s.running - decodes, s.budget - (decodes - left_out)
    for slot in range(s.seqs):
        r = request_in(e, s, slot)
        if decoding(e, r):
            if left_out:
                left_out -= 1
            else:
                give_tokens(e, s, it, i, r, 1)
    for slot in range(s.seqs):
        r = request_in(e, s, slot)
        if r == NOBODY or e.requests[r].under_way or decoding(e, r):
            continue
        tokens = prompt_share(e, s, r, budget)
        if tokens < 1:
            break
        give_tokens(e, s, it, i, r, tokens)
        budget -= tokens
        prompts -= 1
    it.lacks = SLOTS if s.queued else BUDGET if prompts else 0


def request_in(e: Core, s: EngineRow, slot: int) -> int:
    """The request in a slot, or NOBODY."""
    return e.running[s.first_running + slot]


def decoding(e: Core, r: int) -> bool:
    """Whether the next token of a request in a slot is all that is left to compute."""
    return r != NOBODY and e.requests[r].generated > 0 and e.requests[r].computed + 1 == e.requests[r].prompt + e.requests[r].generated


def held_back(s: EngineRow, decodes: int, prompts: int) -> int:
    """Decodes that wait for prompts."""
    if not s.prefill_first or not prompts or prompts < s.min_waiting:
        return 0
    return min(decodes, s.max_defer) if s.max_defer else decodes


def prompt_share(e: Core, s: EngineRow, r: int, budget: int) -> int:
    """Prompt tokens that a request gets."""
    row = e.requests[r]
    left = row.prompt + row.generated - row.computed
    if left > s.prompt_tail:
        left -= s.prompt_tail
    if s.prefill_cap:
        left = min(left, s.prefill_cap)
    return min(left, budget)


def give_tokens(e: Core, s: EngineRow, it: IterationRow, i: int, r: int, tokens: int) -> None:
    """The iteration computes tokens of a request, and samples where these are all that is known."""
    share, row = e.shares[share_at(s, i) + it.shares], e.requests[r]
    share.plain, share.request, share.tokens, share.drafts, share.blind, share.admitted = NOBODY, r, tokens, 0, 0, 0
    share.in_prefill = row.in_prefill
    row.computed += tokens
    row.under_way = tokens
    share.samples = int(row.computed == row.prompt + row.generated)
    if share.samples:
        row.in_prefill = 0
    it.shares += 1
    it.tokens += tokens


def fill_slot(e: Core, s: EngineRow, r: int) -> None:
    """A waiting request takes a free slot, and what is cached there."""
    take_out(e, s, r)
    row, slot = e.requests[r], best_slot(e, s, r)
    e.running[s.first_running + slot] = r
    s.running += 1
    row.state, row.seat, row.in_prefill = RUNNING, slot, 1
    common = common_blocks(e, s, r, slot)
    # at least one token is computed, so that there are logits to sample from
    row.cached = min(common * s.block, row.prompt - 1) if alike(e, s, r, common) else 0
    row.computed = max(row.cached, min(row.comes_with, row.prompt - 1))
    if row.scheduled == NOBODY:
        row.scheduled = s.now
    s.free -= blocks_of(s, row.computed)


def best_slot(e: Core, s: EngineRow, r: int) -> int:
    """The free slot whose cache shares most of the prompt, where that is enough, else the least recently used, last of equals."""
    best = oldest = NOBODY
    most = used = -1
    for slot in range(s.seqs):
        if request_in(e, s, slot) != NOBODY:
            continue
        common, last = common_blocks(e, s, r, slot), e.held[s.first_held + 2 * slot + 1]
        if common > most:
            best, most = slot, common
        if oldest == NOBODY or last <= used:
            oldest, used = slot, last
    return best if alike(e, s, r, most) else oldest


def alike(e: Core, s: EngineRow, r: int, common: int) -> bool:
    """Whether so many blocks are enough of a request's prompt to take the slot that has them."""
    return common * s.block > s.similarity * e.requests[r].prompt


def common_blocks(e: Core, s: EngineRow, r: int, slot: int) -> int:
    """Leading blocks of a request's prompt that a slot computed for its latest request."""
    latest = e.held[s.first_held + 2 * slot] - 1
    if latest < 0:
        return 0
    row, other = e.requests[r], e.requests[latest]
    most, common = min(row.depth, row.prompt // s.block, other.depth), 0
    while common < most and e.names[row.names + common] == e.names[other.names + common]:
        common += 1
    return common


def collect_llamacpp(e: Core, s: EngineRow, i: int) -> int:
    """The tokens of iteration `i` are sent now: advance requests, free the slots of the finished. Returns how many got one."""
    it, begin, place = e.iterations[s.first_iteration + i], share_at(s, i), 0
    for seat in range(begin, begin + it.shares):
        share = e.shares[seat]
        r = share.request
        row = e.requests[r]
        s.free -= blocks_of(s, row.computed) - blocks_of(s, row.computed - row.under_way)
        row.under_way = 0
        if s.keep and share.in_prefill:
            note_chunk(e, s, it, r, share.tokens, row.computed)
        if not share.samples:
            continue
        row.generated += 1
        if s.keep or row.generated == 1 or row.generated >= row.output:
            note_token(e, s, it, r, 1, place)
        place += 1
        if row.generated >= row.output:
            leave(e, s, r)
    return place


def leave(e: Core, s: EngineRow, r: int) -> None:
    """A request is done; its slot keeps its prompt and when that was."""
    row = e.requests[r]
    e.running[s.first_running + row.seat] = NOBODY
    e.held[s.first_held + 2 * row.seat], e.held[s.first_held + 2 * row.seat + 1] = r + 1, s.number + 1
    s.running -= 1
    s.free += blocks_of(s, row.computed)
    row.state, row.seat = OUTSIDE, NOBODY
