"""Requests of the array engine: waiting, running, decoding and leaving ones. Decisions are in sim.engine.core_decide."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_kv import find_hits, give_blocks, remember
from sim.engine.core_log_rows import log_entry, log_setback
from sim.engine.core_state import Core
from sim.engine.interface import BLOCKS, BUDGET

# waiting and running


def add(e: Core, request: int) -> None:
    """Queue a request."""
    s = e.s
    if s[at.RANKED]:
        s[at.QUEUED] += 1
        e.q[request + at.BEHIND] = e.q[request + at.BEGAN] = -1
        s[at.QUEUE_HEAD] = merged(e, s[at.QUEUE_HEAD], request)
        return
    e.q[request + at.BEHIND] = -1
    if s[at.QUEUED]:
        e.q[s[at.QUEUE_TAIL] + at.BEHIND] = request
    else:
        s[at.QUEUE_HEAD] = request
    s[at.QUEUE_TAIL] = request
    s[at.QUEUED] += 1


def put_back(e: Core, request: int) -> None:
    """Queue a preempted request before all others, or by its rank."""
    s = e.s
    if s[at.RANKED]:
        add(e, request)
        return
    e.q[request + at.BEHIND] = s[at.QUEUE_HEAD] if s[at.QUEUED] else -1
    if not s[at.QUEUED]:
        s[at.QUEUE_TAIL] = request
    s[at.QUEUE_HEAD] = request
    s[at.QUEUED] += 1


def queue_pop(e: Core) -> None:
    """The first of the queue leaves it."""
    s, head = e.s, e.s[at.QUEUE_HEAD]
    s[at.QUEUED] -= 1
    s[at.QUEUE_HEAD] = merged(e, e.q[head + at.BEHIND], e.q[head + at.BEGAN]) if s[at.RANKED] else e.q[head + at.BEHIND]


def merged(e: Core, a: int, b: int) -> int:
    """First of two skew heaps of requests by (priority, arrival, name), -1 for an empty one, when they are one."""
    q, root, last = e.q, -1, -1
    while b >= 0:
        if a < 0 or before(e, b, a):
            a, b = b, a
        if last >= 0:
            q[last + at.BEHIND] = a
        else:
            root = a
        if b < 0:
            break
        last = a
        a = q[last + at.BEGAN]
        q[last + at.BEGAN] = q[last + at.BEHIND]
    return root if root >= 0 else a


def before(e: Core, a: int, b: int) -> bool:
    """Whether a request is to be served before another."""
    one, other = a // at.REQUEST, b // at.REQUEST
    if e.ranks[2 * one] != e.ranks[2 * other]:
        return e.ranks[2 * one] < e.ranks[2 * other]
    if e.arrival_s[one] != e.arrival_s[other]:
        return e.arrival_s[one] < e.arrival_s[other]
    return e.ranks[2 * one + 1] < e.ranks[2 * other + 1]


def place_of_victim(e: Core) -> int:
    """Place among the running of the one that leaves next: the last, or the latest to come of those with the highest priority number."""
    last, head = e.s[at.RUNNING] - 1, e.s[at.RUNNING_HEAD]
    if not e.s[at.RANKED]:
        return last
    found = 0
    for place in range(1, last + 1):
        one = e.w[(head + place) * at.SEAT + at.RUNNING_AT] // at.REQUEST
        other = e.w[(head + found) * at.SEAT + at.RUNNING_AT] // at.REQUEST
        ahead = e.ranks[2 * one] - e.ranks[2 * other]
        if ahead > 0 or (ahead == 0 and e.arrival_s[one] > e.arrival_s[other]):
            found = place
    return found


def plan(e: Core, request: int, budget: int) -> bool:
    """Whether the request can start within `budget` tokens, with (HITS and OWN blocks found, START, TOKENS); if not, what it LACKS."""
    s, q, block = e.s, e.q, e.s[at.BLOCK]
    known = q[request + at.PROMPT] + q[request + at.GENERATED]
    idle = find_hits(e, request)
    own = q[request + at.RUN] if q[request + at.PREEMPTIONS] else 0
    start = max((s[at.HITS] + own) * block, min(q[request + at.COMES_WITH], known - 1))
    tokens = known - start
    s[at.LACKS] = BUDGET
    if tokens > budget:
        if not s[at.CHUNKED]:
            return False
        tokens = budget
    room = s[at.FREE] - (s[at.WATERMARK] if s[at.RUNNING] else 0)
    reserve = known if s[at.RESERVE] else start + tokens
    s[at.LACKS] = BLOCKS
    # what it finds again of its own is free, too
    if -(-reserve // block) - s[at.HITS] + idle > room:
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
    if s[at.LEAVING]:
        fill_shared(e, s[at.CLOCK] - 1 + s[at.OVERLAP], s[at.ADMISSIONS])
    for i in range(s[at.LEAVING]):
        request = e.w[i * at.SEAT + at.LEAVING_AT]
        drop_running(e, bisect_running(e, e.q[request + at.ADMISSION]))
        give_blocks(e, request, e.q[request + at.COMPUTED], e.q[request + at.COMPUTED])
        e.q[request + at.COMPUTED] = 0
    s[at.LEAVING] = 0


def preempt(e: Core, place: int, ahead: int) -> None:
    """Take place and blocks from the running request at a place. What the iteration under way computes for it is sent, but the token that
    a decode samples there was not known when its blocks were last made findable; that of one which is ahead of who needs them, and has
    been given its token of this iteration, was.
    """
    s, request = e.s, e.w[(e.s[at.RUNNING_HEAD] + place) * at.SEAT + at.RUNNING_AT]
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
            back = ahead = 0
            forget_leaving(e, request)
        else:
            computed = drop_decode(e, request)
            heap_drop(e, request, at.FINISHING, at.FINISH_AT, at.FINISHES)
            if e.q[request + at.FILLS] >= 0:
                heap_drop(e, request, at.FILLING, at.FILL_AT, at.FILLS)
            e.q[request + at.GENERATED] = computed + 1 - e.q[request + at.PROMPT]
        findable = max(computed + ahead - e.s[at.OVERLAP], began)
    drop_running(e, place)
    give_blocks(e, request, computed + ahead, findable)
    e.q[request + at.COMES_WITH] = 0
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


def push_running(e: Core, request: int) -> None:
    """A request runs, behind all others. Where their list ends, it goes back to its beginning: it has room for twice as many."""
    s, w = e.s, e.w
    end = (s[at.RUNNING_HEAD] + s[at.RUNNING]) * at.SEAT
    if end == len(w):
        for i in range(s[at.RUNNING]):
            w[i * at.SEAT + at.RUNNING_AT] = w[(s[at.RUNNING_HEAD] + i) * at.SEAT + at.RUNNING_AT]
        s[at.RUNNING_HEAD], end = 0, s[at.RUNNING] * at.SEAT
    w[end + at.RUNNING_AT] = request
    s[at.RUNNING] += 1


def drop_running(e: Core, place: int) -> None:
    """The running request at a place runs no more: those before it move back or those behind it move up, whoever are fewer."""
    s, w = e.s, e.w
    s[at.RUNNING] -= 1
    begin = s[at.RUNNING_HEAD] * at.SEAT + at.RUNNING_AT
    if 2 * place < s[at.RUNNING]:
        for i in range(begin + place * at.SEAT, begin, -at.SEAT):
            w[i] = w[i - at.SEAT]
        s[at.RUNNING_HEAD] += 1
    else:
        for i in range(begin + place * at.SEAT, begin + s[at.RUNNING] * at.SEAT, at.SEAT):
            w[i] = w[i + at.SEAT]


def bisect_running(e: Core, admission: int) -> int:
    """Place of the request of that admission among the running."""
    q, w, head = e.q, e.w, e.s[at.RUNNING_HEAD] * at.SEAT + at.RUNNING_AT
    low, high = 0, e.s[at.RUNNING] - 1
    if q[w[head] + at.ADMISSION] == admission:
        return 0
    while low < high:
        mid = (low + high) // 2
        if q[w[head + mid * at.SEAT] + at.ADMISSION] < admission:
            low = mid + 1
        else:
            high = mid
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
    s, w, seat = e.s, e.w, e.s[at.UNSENT] * at.SEAT
    w[seat + at.UNSENT_AT], w[seat + at.UNSENT_PLACE_AT], w[seat + at.UNSENT_LAST_AT] = request, place, last
    s[at.UNSENT] += 1


# heaps of decodes by (clock of what they wait for, admission): `size`, `place` and `key` say where their length, places and clocks are


def sooner(e: Core, a: int, b: int, key: int) -> bool:
    """Whether what a request waits for comes before what another one does."""
    return e.q[a + key] < e.q[b + key] or (e.q[a + key] == e.q[b + key] and e.q[a + at.ADMISSION] < e.q[b + at.ADMISSION])


def heap_push(e: Core, request: int, size: int, column: int, key: int) -> None:
    """A decode begins to wait."""
    place = e.s[size]
    e.s[size] += 1
    lift(e, request, place, column, key)


def lift(e: Core, request: int, place: int, column: int, key: int) -> int:
    """Put a request at an empty place of a heap, or nearer to the top. Returns where."""
    w = e.w
    while place and sooner(e, request, w[(place - 1) // 2 * at.SEAT + column], key):
        w[place * at.SEAT + column] = w[(place - 1) // 2 * at.SEAT + column]
        place = (place - 1) // 2
    w[place * at.SEAT + column] = request
    return place


def heap_pop(e: Core, place: int, size: int, column: int, key: int) -> int:
    """The decode at a place of the heap waits no more."""
    w, s = e.w, e.s
    found = w[place * at.SEAT + column]
    s[size] -= 1
    count, moved = s[size], w[s[size] * at.SEAT + column]
    if place == count:
        return found
    place = lift(e, moved, place, column, key)
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and sooner(e, w[(child + 1) * at.SEAT + column], w[child * at.SEAT + column], key):
            child += 1
        if not sooner(e, w[child * at.SEAT + column], moved, key):
            break
        w[place * at.SEAT + column] = w[child * at.SEAT + column]
        place = child
    w[place * at.SEAT + column] = moved
    return found


def heap_drop(e: Core, request: int, size: int, column: int, key: int) -> None:
    """A request that waits, waits no more."""
    place = 0
    while e.w[place * at.SEAT + column] != request:
        place += 1
    heap_pop(e, place, size, column, key)


# blocks that decodes fill and others may ask for


def expect_shared(e: Core, request: int) -> None:
    """Note when the decode will fill the next of its blocks that others may ask for."""
    s, q = e.s, e.q
    end = (q[request + at.HELD] + 1) * s[at.BLOCK]
    q[request + at.FILLS] = -1
    # with overlap a decode's token is known one decision later, and a last one only when the request leaves
    if q[request + at.HELD] < q[request + at.DEPTH] and end < q[request + at.PROMPT] + q[request + at.OUTPUT] - s[at.OVERLAP]:
        q[request + at.FILLS] = end - 1 - q[request + at.OFFSET] + s[at.OVERLAP]
        heap_push(e, request, at.FILLING, at.FILL_AT, at.FILLS)


def fill_shared(e: Core, clock: int, admission: int) -> None:
    """Make findable what decodes have filled before the iteration at `clock`, and in it, up to the one of that admission."""
    s, q = e.s, e.q
    while s[at.FILLING]:
        request = e.w[at.FILL_AT]
        if q[request + at.FILLS] > clock or (q[request + at.FILLS] == clock and q[request + at.ADMISSION] > admission):
            return
        request = heap_pop(e, 0, at.FILLING, at.FILL_AT, at.FILLS)
        remember(e, request, (q[request + at.OFFSET] + q[request + at.FILLS] + 1 - s[at.OVERLAP]) // s[at.BLOCK])
        expect_shared(e, request)
