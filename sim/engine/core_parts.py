"""Parts of the array engine: KV blocks, waiting and running requests, finishing times, and the log. Decisions are in sim.engine.core."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_state import Core
from sim.engine.interface import BLOCKS, BUDGET

# KV blocks: free ones without contents, then the contents of those who left, the longest gone first to be evicted


def take(e: Core, count: int) -> None:
    """Hand out `count` blocks, evicting the least recently used contents."""
    s = e.s
    s[at.FREE] -= count
    if count <= s[at.UNHASHED]:
        s[at.UNHASHED] -= count
        return
    count -= s[at.UNHASHED]
    s[at.UNHASHED] = 0
    while count:
        oldest = s[at.RUN_HEAD]
        if e.q[oldest + at.RUN] > count:
            e.q[oldest + at.RUN] -= count
            return
        count -= e.q[oldest + at.RUN]
        drop_run(e, oldest)


def drop_run(e: Core, request: int) -> None:
    """Take a request's contents out of the eviction order."""
    s = e.s
    before, behind = e.q[request + at.RUN_BEFORE], e.q[request + at.RUN_AFTER]
    if before >= 0:
        e.q[before + at.RUN_AFTER] = behind
    else:
        s[at.RUN_HEAD] = behind
    if behind >= 0:
        e.q[behind + at.RUN_BEFORE] = before
    else:
        s[at.RUN_TAIL] = before
    e.q[request + at.RUN] = 0


def give_blocks(e: Core, request: int, tokens: int, findable: int) -> None:
    """Take the blocks of a request that computed `tokens` tokens; those of the `findable` first ones keep their contents."""
    s, block = e.s, e.s[at.BLOCK]
    total, full = -(-tokens // block), findable // block if e.s[at.CACHING] else 0
    s[at.UNHASHED] += total - full
    s[at.FREE] += total
    if not full:
        return
    last = s[at.RUN_TAIL]
    e.q[request + at.RUN], e.q[request + at.RUN_BEFORE], e.q[request + at.RUN_AFTER] = full, last, -1
    if last >= 0:
        e.q[last + at.RUN_AFTER] = request
    else:
        s[at.RUN_HEAD] = request
    s[at.RUN_TAIL] = request


def take_back(e: Core, request: int) -> None:
    """Give a preempted request what it finds again of its own blocks."""
    e.s[at.FREE] -= e.q[request + at.RUN]
    drop_run(e, request)


# waiting and running


def add(e: Core, request: int) -> None:
    """Queue a request."""
    s = e.s
    e.q[request + at.BEHIND] = -1
    if s[at.QUEUED]:
        e.q[s[at.QUEUE_TAIL] + at.BEHIND] = request
    else:
        s[at.QUEUE_HEAD] = request
    s[at.QUEUE_TAIL] = request
    s[at.QUEUED] += 1


def put_back(e: Core, request: int) -> None:
    """Queue a preempted request before all others."""
    s = e.s
    e.q[request + at.BEHIND] = s[at.QUEUE_HEAD] if s[at.QUEUED] else -1
    if not s[at.QUEUED]:
        s[at.QUEUE_TAIL] = request
    s[at.QUEUE_HEAD] = request
    s[at.QUEUED] += 1


def queue_pop(e: Core) -> None:
    """The first of the queue leaves it."""
    s = e.s
    s[at.QUEUE_HEAD] = e.q[s[at.QUEUE_HEAD] + at.BEHIND]
    s[at.QUEUED] -= 1


def plan(e: Core, request: int, budget: int) -> bool:
    """Whether the request can start within `budget` tokens, with (OWN blocks found again, START, TOKENS); if not, what it LACKS."""
    s = e.s
    known = e.q[request + at.PROMPT] + e.q[request + at.GENERATED]
    own = e.q[request + at.RUN] if e.q[request + at.PREEMPTIONS] else 0
    start = own * s[at.BLOCK]
    tokens = known - start
    s[at.LACKS] = BUDGET
    if tokens > budget:
        if not s[at.CHUNKED]:
            return False
        tokens = budget
    room = s[at.FREE] - (s[at.WATERMARK] if s[at.RUNNING] else 0)
    reserve = known if s[at.RESERVE] else start + tokens
    s[at.LACKS] = BLOCKS
    # what it finds again is free, too
    if -(-reserve // s[at.BLOCK]) > room:
        return False
    s[at.OWN], s[at.START], s[at.TOKENS], s[at.LACKS] = own, start, tokens, 0
    return True


def leave(e: Core, request: int, computed: int, place: int) -> None:
    """A request has its last token in this iteration."""
    s = e.s
    push_unsent(e, request, place, 1)
    e.w[s[at.LEAVING] * at.SEAT + at.LEAVING_AT] = request
    s[at.LEAVING] += 1
    e.q[request + at.COMPUTED] = computed
    if not e.s[at.OVERLAP]:
        release(e)


def release(e: Core) -> None:
    """Take place and blocks from those who have finished."""
    s = e.s
    for i in range(s[at.LEAVING]):
        request = e.w[i * at.SEAT + at.LEAVING_AT]
        place = bisect_running(e, e.q[request + at.ADMISSION])
        for j in range(place, s[at.RUNNING] - 1):
            e.w[j * at.SEAT + at.RUNNING_AT] = e.w[(j + 1) * at.SEAT + at.RUNNING_AT]
        s[at.RUNNING] -= 1
        give_blocks(e, request, e.q[request + at.COMPUTED], e.q[request + at.COMPUTED])
        e.q[request + at.COMPUTED] = 0
    s[at.LEAVING] = 0


def preempt(e: Core, request: int) -> None:
    """Take place and blocks from the request admitted last. What the iteration under way computes for it is sent, but the token that a
    decode samples there was not known when its blocks were last made findable.
    """
    s = e.s
    back = 1
    if request == s[at.PARTIAL]:
        computed = findable = s[at.PARTIAL_DONE]
        s[at.PARTIAL] = -1
        kind = at.LOST_PREFILL
    else:
        began = e.q[request + at.PROMPT] + e.q[request + at.GENERATED]  # its tokens when it started to decode
        computed = e.q[request + at.COMPUTED]
        kind = at.LOST_PLACE
        if computed:
            back = 0
            forget_leaving(e, request)
        else:
            computed = drop_decode(e, request)
            place = 0
            while e.w[place * at.SEAT + at.HEAP_AT] != request:
                place += 1
            heap_pop(e, place)
            e.q[request + at.GENERATED] = computed + 1 - e.q[request + at.PROMPT]
        findable = max(computed - e.s[at.OVERLAP], began)
    s[at.RUNNING] -= 1
    give_blocks(e, request, computed, findable)
    e.q[request + at.PREEMPTIONS] += 1
    s[at.PREEMPTED] += 1
    s[at.REQUEUED] += back
    if e.s[at.KEEP]:
        log_setback(e, request, kind if back else at.LEFT_EARLY)
    if back:
        put_back(e, request)


def forget_leaving(e: Core, request: int) -> None:
    """A request that is leaving has given up its place already."""
    s = e.s
    kept = 0
    for i in range(s[at.LEAVING]):
        if e.w[i * at.SEAT + at.LEAVING_AT] != request:
            e.w[kept * at.SEAT + at.LEAVING_AT] = e.w[i * at.SEAT + at.LEAVING_AT]
            kept += 1
    s[at.LEAVING] = kept
    e.q[request + at.COMPUTED] = 0


def bisect_running(e: Core, admission: int) -> int:
    """Place of the request of that admission among the running."""
    low, high = 0, e.s[at.RUNNING] - 1
    while low < high:
        middle = (low + high) // 2
        if e.q[e.w[middle * at.SEAT + at.RUNNING_AT] + at.ADMISSION] < admission:
            low = middle + 1
        else:
            high = middle
    return low


def drop_decode(e: Core, request: int) -> int:
    """Take a request out of the sums over decodes; returns its computed tokens."""
    s, offset = e.s, e.q[request + at.OFFSET]
    computed = offset + s[at.CLOCK]
    s[at.BATCH] -= 1
    s[at.CONTEXT] -= computed
    e.due[-offset % e.s[at.BLOCK]] -= 1
    if e.s[at.KEEP]:
        log_entry(e, at.EPISODE, e.q[request + at.BEGAN], s[at.CLOCK], offset, 0)
    return computed


def push_unsent(e: Core, request: int, place: int, last: int) -> None:
    """The iteration under way samples a request's first or last token."""
    i = e.s[at.UNSENT]
    e.w[i * at.SEAT + at.UNSENT_AT], e.w[i * at.SEAT + at.UNSENT_PLACE_AT], e.w[i * at.SEAT + at.UNSENT_LAST_AT] = request, place, last
    e.s[at.UNSENT] = i + 1


# decodes by (clock of their last token, admission)


def sooner(e: Core, a: int, b: int) -> bool:
    """Whether a request finishes before another."""
    return e.q[a + at.FINISHES] < e.q[b + at.FINISHES] or (
        e.q[a + at.FINISHES] == e.q[b + at.FINISHES] and e.q[a + at.ADMISSION] < e.q[b + at.ADMISSION]
    )


def heap_push(e: Core, request: int) -> None:
    """A decode begins."""
    w, place = e.w, e.s[at.DECODING]
    e.s[at.DECODING] += 1
    while place and sooner(e, request, w[(place - 1) // 2 * at.SEAT + at.HEAP_AT]):
        w[place * at.SEAT + at.HEAP_AT] = w[(place - 1) // 2 * at.SEAT + at.HEAP_AT]
        place = (place - 1) // 2
    w[place * at.SEAT + at.HEAP_AT] = request


def heap_pop(e: Core, place: int) -> int:
    """The decode at a place of the heap ends."""
    w, s = e.w, e.s
    found = w[place * at.SEAT + at.HEAP_AT]
    s[at.DECODING] -= 1
    size, moved = s[at.DECODING], w[s[at.DECODING] * at.SEAT + at.HEAP_AT]
    if place == size:
        return found
    while place and sooner(e, moved, w[(place - 1) // 2 * at.SEAT + at.HEAP_AT]):
        w[place * at.SEAT + at.HEAP_AT] = w[(place - 1) // 2 * at.SEAT + at.HEAP_AT]
        place = (place - 1) // 2
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and sooner(e, w[(child + 1) * at.SEAT + at.HEAP_AT], w[child * at.SEAT + at.HEAP_AT]):
            child += 1
        if not sooner(e, w[child * at.SEAT + at.HEAP_AT], moved):
            break
        w[place * at.SEAT + at.HEAP_AT] = w[child * at.SEAT + at.HEAP_AT]
        place = child
    w[place * at.SEAT + at.HEAP_AT] = moved
    return found


# log


def log_is_full(e: Core) -> bool:
    """Whether a decision may find no room in the log."""
    s = e.s
    return s[at.ROWS] + 2 > s[at.ROW_ROOM] or s[at.ENTRIES] + 4 * s[at.SEQS] + 4 > s[at.ENTRY_ROOM]


def log_row(e: Core, batch: int, context: int, tokens: int, head_start: int, ticks: int) -> int:
    """An iteration that is about to be launched, or the first of a stretch. Returns where its row begins."""
    s, log = e.s, e.rows
    row = s[at.ROWS] * at.ROW
    log[row + at.R_N], log[row + at.R_DECIDED], log[row + at.R_SETTLED] = 1, s[at.DECIDES], -1
    log[row + at.R_UNDER_WAY], log[row + at.R_HEAD_START], log[row + at.R_FIRST] = s[at.UNDER_WAY], head_start, ticks
    log[row + at.R_INCREMENT], log[row + at.R_CLOCK], log[row + at.R_DECODES] = 0, s[at.CLOCK], s[at.BATCH]
    log[row + at.R_BATCH], log[row + at.R_CONTEXT], log[row + at.R_SHARES] = batch, context, s[at.SHARES]
    log[row + at.R_TOKENS], log[row + at.R_CHUNKS], log[row + at.R_FRESH] = tokens, 0, 0
    for column in (at.R_CHUNK_TOKENS, at.R_CHUNK_CONTEXT, at.R_CHUNK_PAIRS, at.R_CHUNK_SAMPLED):
        log[row + column] = 0
    log[row + at.R_RUNNING], log[row + at.R_USED], log[row + at.R_LEFT] = s[at.WAS_RUNNING], s[at.WAS_USED], s[at.BLOCKS] - s[at.FREE]
    log[row + at.R_ADMITTED], log[row + at.R_PREEMPTED], log[row + at.R_REQUEUED] = s[at.ADMITTED], s[at.PREEMPTED], s[at.REQUEUED]
    log[row + at.R_LACKS] = s[at.LACKS]
    s[at.PREEMPTED] = s[at.REQUEUED] = 0
    s[at.ROWS] += 1
    return row


def log_entry(e: Core, kind: int, first: int, second: int, third: int, fourth: int) -> None:
    """Something that happens to a request."""
    place = e.s[at.ENTRIES] * at.ENTRY
    log = e.entries
    log[place], log[place + 1], log[place + 2], log[place + 3], log[place + 4] = kind, first, second, third, fourth
    e.s[at.ENTRIES] += 1


def log_chunk(e: Core, request: int, tokens: int, end: int) -> None:
    """A share of prefill in the latest row."""
    log_entry(e, at.CHUNK, e.s[at.ROWS] - 1, request, tokens, end)


def log_setback(e: Core, request: int, kind: int) -> None:
    """A request comes back in the latest row, or loses its place in the next."""
    log_entry(e, kind, e.s[at.ROWS] - (kind == at.CAME_BACK), request, 0, 0)
