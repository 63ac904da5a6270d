"""Decisions of the array engine: vLLM's, from aggregates. Who computes prefill, who is admitted, and who loses its place."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_kv import adopt, remember, take, take_back
from sim.engine.core_parts import fill_shared, place_of_victim, plan, preempt, push_running, queue_pop, release
from sim.engine.core_state import Core
from sim.engine.core_time import settle
from sim.engine.interface import BLOCKS, BUDGET, SLOTS


def decide(e: Core) -> None:
    """One decision: an iteration with prefill, a stretch of decode iterations, or none."""
    s = e.s
    s[at.SHARES] = s[at.ADMITTED] = s[at.LACKS] = s[at.WATCH] = 0
    due = e.due[s[at.CLOCK] % s[at.BLOCK]]
    if s[at.PARTIAL] >= 0:
        tokens, blocks = partial_share(e)
        if due + blocks > s[at.FREE]:
            starved(e)
            return
        take(e, due)
        fill_shared(e, s[at.CLOCK], s[at.ADMISSIONS])  # decodes come before it
        begin_mixed(e, tokens, blocks)
        return
    if due > s[at.FREE]:
        starved(e)
        return
    if due:
        take(e, due)
    if s[at.QUEUED] and s[at.RUNNING] < s[at.SEQS]:
        s[at.WATCH] = 1
        if s[at.FILLING]:
            fill_shared(e, s[at.CLOCK], s[at.ADMISSIONS])
        if plan(e, s[at.QUEUE_HEAD], s[at.BUDGET] - s[at.BATCH]):
            begin_mixed(e, 0, 0)
            return
    if s[at.BATCH]:
        s[at.PHASE] = at.JUMP
    else:
        release(e)
        settle(e)


def partial_share(e: Core) -> tuple[int, int]:
    """(tokens, new blocks) of the partial prefill in this iteration."""
    s, block = e.s, e.s[at.BLOCK]
    request, done = s[at.PARTIAL], s[at.PARTIAL_DONE]
    tokens = min(e.q[request + at.PROMPT] + e.q[request + at.GENERATED] - done, e.s[at.BUDGET] - s[at.BATCH])
    return tokens, -(-(done + tokens) // block) + (-done // block)


def share(e: Core, request: int, tokens: int, start: int) -> None:
    """The iteration computes `tokens` of a request's prefill."""
    i = e.s[at.SHARES]
    e.w[i * at.SEAT + at.SHARE_AT], e.w[i * at.SEAT + at.SHARE_TOKENS_AT], e.w[i * at.SEAT + at.SHARE_START_AT] = request, tokens, start
    e.s[at.SHARES] = i + 1


def begin_mixed(e: Core, tokens: int, blocks: int) -> None:
    """Choose an iteration with prefill: the partial prefill first, then admissions, the first of them as planned."""
    s = e.s
    budget = s[at.BUDGET] - s[at.BATCH]
    planned = True
    if s[at.PARTIAL] >= 0:
        take(e, blocks)
        share(e, s[at.PARTIAL], tokens, s[at.PARTIAL_DONE])
        remember_shared(e, s[at.PARTIAL], s[at.PARTIAL_DONE] + tokens)
        budget -= tokens
        planned = False
    while s[at.QUEUED] and budget > 0 and s[at.RUNNING] < s[at.SEQS]:
        request = s[at.QUEUE_HEAD]
        if not planned and not plan(e, request, budget):
            break
        planned = False
        queue_pop(e)
        push_running(e, request)
        s[at.ADMISSIONS] += 1
        s[at.ADMITTED] += 1
        e.q[request + at.ADMISSION] = s[at.ADMISSIONS]
        found, start, tokens = s[at.HITS] + s[at.OWN], s[at.START], s[at.TOKENS]
        if e.q[request + at.DEPTH]:
            adopt(e, request)
        if s[at.OWN]:
            take_back(e, request)
        if not e.q[request + at.PREEMPTIONS]:
            e.q[request + at.SCHEDULED] = s[at.DECIDES]
            if not e.q[request + at.COMES_WITH]:
                e.q[request + at.CACHED] = found * s[at.BLOCK]
        take(e, -(-(start + tokens) // s[at.BLOCK]) - found)
        remember_shared(e, request, start + tokens)
        share(e, request, tokens, start)
        budget -= tokens
    note_state(e, budget)
    if s[at.LEAVING]:
        release(e)
    s[at.PHASE] = at.MIXED


def remember_shared(e: Core, request: int, computed: int) -> None:
    """Make what a share of prefill fills findable, as far as others may ask for it."""
    if e.q[request + at.DEPTH]:
        remember(e, request, min(computed // e.s[at.BLOCK], e.q[request + at.DEPTH]))


def note_state(e: Core, budget: int) -> None:
    """State of the engine at the decision, for the price and the log, and the reason that keeps the first waiting request out: LACKS is
    what its plan found, with a budget.
    """
    s = e.s
    s[at.WAS_SHARED], s[at.WAS_COMMON] = s[at.SHARED], s[at.COMMON]
    if not s[at.KEEP]:
        return
    s[at.WAS_RUNNING], s[at.WAS_USED] = s[at.RUNNING], s[at.BLOCKS] - s[at.FREE]
    if not s[at.QUEUED]:
        s[at.LACKS] = 0
    elif s[at.RUNNING] >= s[at.SEQS]:
        s[at.LACKS] = SLOTS
    elif budget <= 0:
        s[at.LACKS] = BUDGET


def starved(e: Core) -> None:
    """Choose an iteration in which KV blocks run out: in order of admission, each gets its blocks, for which those admitted last leave, or
    those that rank last. Nobody is admitted in it.
    """
    s = e.s
    fill_shared(e, s[at.CLOCK] - 1, s[at.ADMISSIONS])
    place, prefills, tokens = 0, False, 0
    while place < s[at.RUNNING]:
        request = e.w[(s[at.RUNNING_HEAD] + place) * at.SEAT + at.RUNNING_AT]
        needed, stays = 0, True
        if e.q[request + at.COMPUTED]:
            pass  # its last token is on the way, and it needs no more
        elif request == s[at.PARTIAL]:
            tokens, needed = partial_share(e)
            prefills = True
        else:
            needed = int((e.q[request + at.OFFSET] + s[at.CLOCK]) % s[at.BLOCK] == 0)
        while needed > s[at.FREE] and stays:
            victim = place_of_victim(e)
            stays = victim != place
            preempt(e, victim, int(victim < place))
            place -= int(victim < place)
        if stays:
            if needed:
                take(e, needed)
            if s[at.FILLING]:
                fill_shared(e, s[at.CLOCK], e.q[request + at.ADMISSION])
            place += 1
    note_state(e, 1)
    s[at.LACKS] = BLOCKS
    release(e)
    if prefills and s[at.PARTIAL] >= 0:
        share(e, s[at.PARTIAL], tokens, s[at.PARTIAL_DONE])
    if s[at.BATCH] or s[at.SHARES]:
        s[at.PHASE] = at.MIXED
    else:
        settle(e)
