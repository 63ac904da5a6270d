"""One replica's engine as a loop over arrays: vLLM's decisions from aggregates, jumping over decode iterations in which nothing changes.

In steady decode every running request computes one token per iteration, so the batch is known by its size, its summed context, a heap of
finishing times on a clock that counts decode iterations, and how many sequences stand at each position inside a KV block. An iteration
costs its prefills and finishes, not its batch; a stretch without either is one integer polynomial (sim.cost.iteration), which an arrival
cuts short where it is seen.

The same source runs as plain Python over lists and compiled over numpy arrays (sim.engine.compiled). All arrivals are known beforehand, so
one call serves them all, except that the loop stops for prices that nobody has asked for yet, and goes on once they are filled in. Results
equal those of sim.engine.loop with the scheduler of sim.engine.vllm or vllm_async, to the tick; a property test compares them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import sim.engine.core_state as at
from sim.cost.batch import BatchShape, chunk_pairs, from_sums
from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.iteration import late_share, on_chord, staged_s
from sim.engine.core_parts import (
    add,
    bisect_running,
    drop_decode,
    heap_pop,
    heap_push,
    leave,
    log_chunk,
    log_is_full,
    log_row,
    log_setback,
    plan,
    preempt,
    push_unsent,
    queue_pop,
    release,
    take,
    take_back,
)
from sim.engine.core_state import Core
from sim.engine.interface import BLOCKS, BUDGET, SLOTS
from sim.ticks import MOST_TICKS, Stretch, elapsed, to_ticks


class Given(NamedTuple):
    """What the formula reads: attributes of the coefficients, of the rates and of the attention policy."""

    coefficients: Any
    rates: Any
    policy: Any


class Rows(NamedTuple):
    """Seconds by an iteration's rows, as sim.cost.iteration has them."""

    busy: float
    comm: float


def advance(e: Core, given: Given) -> int:
    """Serve all requests, or stop for what is needed: a price (sim.engine.core_state.supply) or room for the log."""
    s = e.s
    while True:
        phase = s[at.PHASE]
        if phase == at.DECIDE:
            if s[at.NOW] > MOST_TICKS:
                return at.TOO_LATE
            if s[at.KEEP] and log_is_full(e):
                return at.NEEDS_ROOM
            if s[at.QUEUED] or s[at.RUNNING]:
                decide(e)
            elif s[at.DECIDES] < s[at.ENDS] or s[at.UNSENT] or s[at.UNDER_WAY]:
                settle(e)
            else:
                if s[at.NEXT_ARRIVAL] == s[at.REQUESTS]:
                    return at.DONE
                arrival = e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES]
                s[at.NOW] = arrival if arrival > s[at.NOW] else s[at.NOW]
                arrive_until(e, s[at.NOW] + 1)
                idle_until(e, s[at.NOW])
        elif phase == at.MIXED:
            reason = mixed(e, given)
            if reason:
                return reason
        elif phase == at.JUMP:
            reason = jump(e)
            if reason:
                return reason
        elif phase == at.SEND:
            if s[at.SENDING]:
                wait(e, s[at.SENDS_AT], False)
                send(e)
            s[at.PHASE] = at.PASS if s[at.PLANNED] else at.NEXT
        elif phase == at.PASS:
            wait_for_plan(e)
            pass_stretch(e)
            if s[at.OVERLAP]:
                s[at.PHASE] = at.DECIDE
                continue
            if s[at.SENDING]:
                send(e)
            s[at.PHASE] = at.NEXT
        else:
            wait(e, s[at.DECIDES], True)
            s[at.PHASE] = at.DECIDE


# time


def arrive_until(e: Core, before: int) -> None:
    """Queue the requests that arrive before a time."""
    s, n = e.s, e.s[at.REQUESTS]
    while s[at.NEXT_ARRIVAL] < n and e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES] < before:
        add(e, s[at.NEXT_ARRIVAL])
        s[at.NEXT_ARRIVAL] += at.REQUEST


def wait(e: Core, ticks: int, decision: bool) -> None:
    """Let requests arrive up to a time: a decision sees those of its instant, and what is sent comes before them."""
    s, n = e.s, e.s[at.REQUESTS]
    if s[at.NEXT_ARRIVAL] < n and e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES] < ticks + decision:
        while s[at.NEXT_ARRIVAL] < n and e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES] < ticks + decision:
            arrival = e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES]
            add(e, s[at.NEXT_ARRIVAL])
            s[at.NEXT_ARRIVAL] += at.REQUEST
            if s[at.PLANNED] and s[at.OPEN]:
                cut(e, arrival)
    if ticks > s[at.NOW]:
        s[at.NOW] = ticks


def wait_for_plan(e: Core) -> None:
    """Let requests arrive up to the end of the planned iterations, which they may cut."""
    s, n, overlap = e.s, e.s[at.REQUESTS], e.s[at.OVERLAP]
    while s[at.NEXT_ARRIVAL] < n and e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES] < s[at.PLAN_ENDS] + overlap:
        arrival = e.q[s[at.NEXT_ARRIVAL] + at.ARRIVES]
        add(e, s[at.NEXT_ARRIVAL])
        s[at.NEXT_ARRIVAL] += at.REQUEST
        if s[at.OPEN]:
            cut(e, arrival)
    if s[at.PLAN_ENDS] > s[at.NOW]:
        s[at.NOW] = s[at.PLAN_ENDS]


def cut(e: Core, now: int) -> None:
    """End the planned iterations where the next decision sees a request that arrives now."""
    s = e.s
    since = now - s[at.ORIGIN]
    n = iterations_begun(Stretch(s[at.FIRST], s[at.INCREMENT], 0), since) + e.s[at.OVERLAP]
    if n < 1:
        n = 1
    if n < s[at.PLANNED]:
        s[at.PLANNED] = n
        s[at.PLAN_ENDS] = after(e, n)


def iterations_begun(stretch: Stretch, since: int) -> int:
    """How many iterations of a stretch begin less than `since` ticks after its beginning."""
    if since <= 0:
        return 0
    low, high = 0, 1
    while elapsed(stretch, high) < since:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if elapsed(stretch, middle) < since:
            low = middle
        else:
            high = middle
    return high


def after(e: Core, n: int) -> int:
    """When the decision after `n` of the planned iterations is made: at the end of the last, or of the one before it."""
    s = e.s
    stretch = Stretch(s[at.FIRST], s[at.INCREMENT], 0)
    if e.s[at.OVERLAP]:
        return s[at.DECIDES] + elapsed(stretch, n - 1)
    return s[at.DECIDES] + elapsed(stretch, n) - stretch.first


def idle_until(e: Core, now: int) -> None:
    """Decide next at `now`, no sooner than the GPU is through, with nothing ahead of it."""
    s = e.s
    s[at.ENDS] = now if now > s[at.ENDS] else s[at.ENDS]
    s[at.DECIDES] = s[at.ENDS]


def let_pass(e: Core, host: int, ticks: int) -> None:
    """An iteration of `ticks` that keeps the host for `host` is launched."""
    s = e.s
    decides, ends = s[at.DECIDES], s[at.ENDS]
    if not e.s[at.OVERLAP]:
        s[at.ENDS] = s[at.DECIDES] = ends + ticks
        return
    s[at.UNDER_WAY] = 1
    s[at.ENDS] = (ends if ends > decides else decides) + ticks
    s[at.DECIDES] = ends if ends > decides + host else decides + host
    if s[at.KEEP]:
        e.rows[(s[at.ROWS] - 1) * at.ROW + at.R_LAUNCHED] = s[at.DECIDES]
    if s[at.UNSENT]:
        hand_to_send(e, s[at.DECIDES])


def settle(e: Core) -> None:
    """Nothing follows the iteration under way: its tokens are sent, and the next decision made, at its end."""
    s = e.s
    ends = s[at.ENDS]
    hand_to_send(e, ends)
    if e.s[at.KEEP] and s[at.UNDER_WAY]:
        e.rows[(s[at.ROWS] - 1) * at.ROW + at.R_SETTLED] = ends if ends > s[at.NOW] else s[at.NOW]
    s[at.UNDER_WAY] = 0
    idle_until(e, s[at.DECIDES])
    s[at.PHASE] = at.SEND


def hand_to_send(e: Core, ticks: int) -> None:
    """The tokens of the iteration under way are sent at a time."""
    s = e.s
    for i in range(s[at.UNSENT]):
        e.w[i * at.SEAT + at.SENDING_AT] = e.w[i * at.SEAT + at.UNSENT_AT]
        e.w[i * at.SEAT + at.SENDING_PLACE_AT] = e.w[i * at.SEAT + at.UNSENT_PLACE_AT]
        e.w[i * at.SEAT + at.SENDING_LAST_AT] = e.w[i * at.SEAT + at.UNSENT_LAST_AT]
    s[at.SENDING], s[at.UNSENT], s[at.SENDS_AT] = s[at.UNSENT], 0, ticks


def send_at_end(e: Core) -> None:
    """Without overlap, tokens are sent at the end of their iteration."""
    if e.s[at.UNSENT]:
        hand_to_send(e, e.s[at.ENDS])


def send(e: Core) -> None:
    """The tokens are sent now."""
    s = e.s
    for i in range(s[at.SENDING]):
        request = e.w[i * at.SEAT + at.SENDING_AT]
        if e.w[i * at.SEAT + at.SENDING_LAST_AT]:
            e.q[request + at.LAST_SENT], e.q[request + at.LAST_PLACE] = s[at.NOW], e.w[i * at.SEAT + at.SENDING_PLACE_AT]
        else:
            e.q[request + at.FIRST_SENT], e.q[request + at.FIRST_PLACE] = s[at.NOW], e.w[i * at.SEAT + at.SENDING_PLACE_AT]
    s[at.SENDING] = 0


# decisions


def decide(e: Core) -> None:
    """One decision: an iteration with prefill, a stretch of decode iterations, or none."""
    s = e.s
    s[at.SHARES] = s[at.ADMITTED] = s[at.LACKS] = 0
    due = e.due[s[at.CLOCK] % s[at.BLOCK]]
    if s[at.PARTIAL] >= 0:
        tokens, blocks = partial_share(e)
        if due + blocks > s[at.FREE]:
            starved(e)
            return
        take(e, due)
        begin_mixed(e, tokens, blocks)
        return
    if due > s[at.FREE]:
        starved(e)
        return
    if due:
        take(e, due)
    if s[at.QUEUED] and s[at.RUNNING] < s[at.SEQS] and plan(e, s[at.QUEUE_HEAD], s[at.BUDGET] - s[at.BATCH]):
        begin_mixed(e, 0, 0)
    elif s[at.BATCH]:
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
        budget -= tokens
        planned = False
    while s[at.QUEUED] and budget > 0 and s[at.RUNNING] < s[at.SEQS]:
        request = s[at.QUEUE_HEAD]
        if not planned and not plan(e, request, budget):
            break
        planned = False
        queue_pop(e)
        e.w[s[at.RUNNING] * at.SEAT + at.RUNNING_AT] = request
        s[at.RUNNING] += 1
        s[at.ADMISSIONS] += 1
        s[at.ADMITTED] += 1
        e.q[request + at.ADMISSION] = s[at.ADMISSIONS]
        own, start, tokens = s[at.OWN], s[at.START], s[at.TOKENS]
        if own:
            take_back(e, request)
        if not e.q[request + at.PREEMPTIONS]:
            e.q[request + at.SCHEDULED] = s[at.DECIDES]
        take(e, -(-(start + tokens) // s[at.BLOCK]) - own)
        share(e, request, tokens, start)
        budget -= tokens
    s[at.LACKS] = lacking(e, budget, s[at.LACKS])
    note_state(e)
    release(e)
    s[at.PHASE] = at.MIXED


def lacking(e: Core, budget: int, lacks: int) -> int:
    """What keeps the first waiting request out; `lacks` is what its plan found."""
    s = e.s
    if not s[at.QUEUED]:
        return 0
    if s[at.RUNNING] >= e.s[at.SEQS]:
        return SLOTS
    return BUDGET if budget <= 0 else lacks


def note_state(e: Core) -> None:
    """What the engine looks like at the decision, for the log."""
    s = e.s
    s[at.WAS_RUNNING], s[at.WAS_USED] = s[at.RUNNING], e.s[at.BLOCKS] - s[at.FREE]


def starved(e: Core) -> None:
    """Choose an iteration in which KV blocks run out: in order of admission, the last admitted leave until the others have theirs. Nobody
    is admitted in it.
    """
    s = e.s
    place, prefills, tokens = 0, False, 0
    while place < s[at.RUNNING]:
        request = e.w[place * at.SEAT + at.RUNNING_AT]
        needed = 0
        if e.q[request + at.COMPUTED]:
            pass  # its last token is on the way, and it needs no more
        elif request == s[at.PARTIAL]:
            tokens, needed = partial_share(e)
            prefills = True
        else:
            needed = int((e.q[request + at.OFFSET] + s[at.CLOCK]) % s[at.BLOCK] == 0)
        while needed > s[at.FREE] and s[at.RUNNING] > place:
            preempt(e, e.w[(s[at.RUNNING] - 1) * at.SEAT + at.RUNNING_AT])
        if s[at.RUNNING] > place:
            take(e, needed)
        place += 1
    s[at.LACKS] = BLOCKS
    note_state(e)
    release(e)
    if prefills and s[at.PARTIAL] >= 0:
        share(e, s[at.PARTIAL], tokens, s[at.PARTIAL_DONE])
    if s[at.BATCH] or s[at.SHARES]:
        s[at.PHASE] = at.MIXED
    else:
        settle(e)


def octave_of(mean: int) -> int:
    """The largest k with 2**k at most `mean`."""
    k = 0
    while mean > 1:
        mean //= 2
        k += 1
    return k


def stretch_of(e: Core, batch: int, context: int) -> Stretch:
    """The decode iterations of a batch up to its chord's end; none (first 0) where the chord is not known, which is then needed."""
    octave = octave_of(context // batch)
    place = 2 * (batch * at.OCTAVES + octave)
    if e.chords[place] < 0:
        e.s[at.NEEDED], e.s[at.NEEDED_OCTAVE] = batch, octave
        return Stretch(0, 0, 0)
    return on_chord(e.chords[place], e.chords[place + 1], batch, octave, context)


def preparing(e: Core, sequences: int, prefill: int) -> int:
    """Ticks of host work before an iteration can be launched, as StepTime.preparing."""
    s = e.s
    return s[at.HOST_EACH] + sequences * s[at.HOST_SEQUENCE] + prefill * s[at.HOST_PREFILL]


def mixed(e: Core, given: Given) -> int:
    """Let the time of the chosen iteration pass: all decodes, and its shares of prefill. Returns what is needed, or 0."""
    s = e.s
    batch, context, total, several = s[at.BATCH], s[at.CONTEXT], s[at.BATCH], 0
    count, tokens, read, pairs, sampled, samples = 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for i in range(s[at.SHARES]):
        request, n = e.w[i * at.SEAT + at.SHARE_AT], e.w[i * at.SEAT + at.SHARE_TOKENS_AT]
        start = e.w[i * at.SEAT + at.SHARE_START_AT]
        end = start + n
        total += n
        if n > 1:
            several = 1
        whole = int(end == e.q[request + at.PROMPT] + e.q[request + at.GENERATED])
        samples += whole
        if n == 1 and start >= e.q[request + at.PROMPT]:
            batch, context = batch + 1, context + start
        else:
            count, tokens, read, pairs, sampled = count + 1.0, tokens + n, read + end, pairs + chunk_pairs(n, end), sampled + whole
    head_start = max(s[at.ENDS] - s[at.DECIDES], 0)
    chunks = int(count)
    ready = preparing(e, batch + chunks, int(chunks > 0))
    shown, left = max(ready - head_start, 0), max(head_start - ready, 0)
    if chunks:
        sums = (count, tokens, read, pairs, 0.0, 0.0, sampled)
        shape = from_sums(float(batch), float(context), 0.0, float(context), sums)
        rows, logits = int(shape.decode_seqs + shape.prefill_tokens + shape.padding), int(shape.sampled)
        if e.by_rows[2 * rows] < 0.0:
            s[at.NEEDED] = rows
            return at.NEEDS_ROWS
        if e.heads[logits] < 0.0:
            s[at.NEEDED] = logits
            return at.NEEDS_HEAD
        launching = s[at.LAUNCHING] if shape.eager else s[at.LAUNCHING_PIECES] if shape.pieces else 0
        if left and launching:
            late = late_share(left, launching)
            shape = with_launches(shape, shape.eager * late, shape.pieces * late)
        by_rows = Rows(e.by_rows[2 * rows], e.by_rows[2 * rows + 1])
        own = to_ticks(staged_s(given.coefficients, shape, given.rates, given.policy, by_rows, e.heads[logits]))
    else:
        own = stretch_of(e, batch, context).first
        if not own:
            return at.NEEDS_CHORD
    host = preparing(e, batch + chunks, several)
    if several:
        host += s[at.LAUNCHING] if total > GRAPH_TOKENS else s[at.LAUNCHING_PIECES]
    if s[at.KEEP]:
        row, log = log_row(e, batch, context, total, head_start, shown + own), e.rows
        log[row + at.R_CHUNKS], log[row + at.R_CHUNK_TOKENS], log[row + at.R_CHUNK_CONTEXT] = chunks, int(tokens), int(read)
        log[row + at.R_CHUNK_PAIRS], log[row + at.R_CHUNK_SAMPLED] = int(pairs), int(sampled)
        log[row + at.R_SAMPLED], log[row + at.R_FRESH] = s[at.BATCH] + samples, samples
    let_pass(e, host, shown + own)
    s[at.CLOCK] += 1
    s[at.CONTEXT] += s[at.BATCH]
    place = s[at.BATCH]  # tokens of decodes come first
    finish_decodes(e)
    s[at.PARTIAL] = -1
    for i in range(s[at.SHARES]):
        request, end = e.w[i * at.SEAT + at.SHARE_AT], e.w[i * at.SEAT + at.SHARE_START_AT] + e.w[i * at.SEAT + at.SHARE_TOKENS_AT]
        if s[at.KEEP]:
            log_chunk(e, request, e.w[i * at.SEAT + at.SHARE_TOKENS_AT], end)
        if end == e.q[request + at.PROMPT] + e.q[request + at.GENERATED]:
            sample(e, request, end, place)
            place += 1
        else:
            s[at.PARTIAL], s[at.PARTIAL_DONE] = request, end
    if not s[at.OVERLAP]:
        send_at_end(e)
    s[at.PHASE] = at.SEND
    return 0


def with_launches(shape: Any, eager: float, pieces: float) -> Any:
    """The shape with other shares of its launches."""
    return BatchShape(
        shape.decode_seqs,
        shape.decode_context,
        shape.decode_window,
        shape.decode_kept,
        shape.prefill_seqs,
        shape.prefill_tokens,
        shape.prefill_context,
        shape.prefill_pairs,
        shape.prefill_window_context,
        shape.prefill_window_pairs,
        shape.sampled,
        shape.has_prefill,
        eager,
        pieces,
        shape.padding,
        shape.others,
        shape.expands,
    )


def jump(e: Core) -> int:
    """Plan decode iterations up to the next change: a finish, an arrival (see `cut`) or blocks running out. The first iteration has its
    blocks already. Returns what is needed, or 0.
    """
    s = e.s
    batch = s[at.BATCH]
    stretch = stretch_of(e, batch, s[at.CONTEXT])
    first, n = stretch.first, stretch.most
    if not first:
        return at.NEEDS_CHORD
    n = min(n, e.q[e.w[at.HEAP_AT] + at.FINISHES] - s[at.CLOCK])
    exposed, host = 0, preparing(e, batch, 0)
    head_start = max(s[at.ENDS] - s[at.DECIDES], 0)
    if host:
        if not s[at.OVERLAP]:
            first += host
        elif host > head_start or host > first:
            exposed, n = max(host - head_start, 0), 1  # not like those that follow it
    s[at.LACKS] = lacking(e, s[at.BUDGET] - batch, s[at.LACKS])
    note_state(e)
    if s[at.LEAVING]:
        if s[at.QUEUED]:
            n = 1  # the next decision has what they leave
        release(e)
    s[at.OPEN] = int(not s[at.QUEUED] and s[at.RUNNING] < s[at.SEQS])
    if n > 1:
        n = with_room(e, n)
    s[at.ORIGIN], s[at.FIRST], s[at.INCREMENT] = s[at.ENDS], first, stretch.increment
    if s[at.KEEP]:
        row = log_row(e, batch, s[at.CONTEXT], batch, head_start, exposed + first)
        e.rows[row + at.R_INCREMENT], e.rows[row + at.R_SAMPLED] = stretch.increment, batch
    let_pass(e, host, exposed + first)
    s[at.PLANNED] = n
    if n == 1:
        pass_stretch(e)
    else:
        s[at.PLAN_ENDS] = after(e, n)
    s[at.PHASE] = at.SEND
    return 0


def pass_stretch(e: Core) -> None:
    """The planned decode iterations are over."""
    s = e.s
    n = s[at.PLANNED]
    s[at.PLANNED] = 0
    if s[at.KEEP]:
        e.rows[(s[at.ROWS] - 1) * at.ROW + at.R_N] = n
    if n > 1:
        take(e, blocks_due(e, n))
        s[at.DECIDES] = s[at.PLAN_ENDS]
        if s[at.OVERLAP]:
            s[at.ENDS] += elapsed(Stretch(s[at.FIRST], s[at.INCREMENT], 0), n) - s[at.FIRST]
        else:
            s[at.ENDS] = s[at.PLAN_ENDS]
    s[at.CONTEXT] += n * s[at.BATCH]
    s[at.CLOCK] += n
    finish_decodes(e)
    if not s[at.OVERLAP]:
        send_at_end(e)


def blocks_due(e: Core, n: int) -> int:
    """Blocks that the second and later of the next `n` decode iterations take."""
    s, size = e.s, e.s[at.BLOCK]
    blocks = (n - 1) // size * s[at.BATCH]
    for i in range((n - 1) % size):
        blocks += e.due[(s[at.CLOCK] + 1 + i) % size]
    return blocks


def with_room(e: Core, most: int) -> int:
    """How many of the next `most` iterations find their blocks, those of the first taken."""
    s, size = e.s, e.s[at.BLOCK]
    if s[at.BATCH] * (1 + (most - 2) // size) <= s[at.FREE]:  # at most one block for each, every `size` iterations
        return most
    blocks = 0
    for n in range(1, most):
        blocks += e.due[(s[at.CLOCK] + n) % size]
        if blocks > s[at.FREE]:
            return n
    return most


def sample(e: Core, request: int, computed: int, place: int) -> None:
    """A prefill is complete: its first (or, resumed, next) token, at this place of the iteration's, then decoding."""
    s = e.s
    generated = e.q[request + at.GENERATED] + 1
    if generated == 1:
        push_unsent(e, request, place, 0)
    elif e.s[at.KEEP]:
        log_setback(e, request, at.CAME_BACK)
    if generated == e.q[request + at.OUTPUT]:
        leave(e, request, computed, place)
        return
    s[at.BATCH] += 1
    s[at.CONTEXT] += computed
    e.q[request + at.OFFSET] = computed - s[at.CLOCK]
    e.due[-e.q[request + at.OFFSET] % e.s[at.BLOCK]] += 1
    e.q[request + at.FINISHES] = s[at.CLOCK] + e.q[request + at.OUTPUT] - generated
    e.q[request + at.BEGAN] = s[at.CLOCK]
    heap_push(e, request)


def finish_decodes(e: Core) -> None:
    """Those whose last token this iteration samples leave."""
    s = e.s
    gone = 0  # those of this iteration that have given up their place already came before
    while s[at.DECODING] and e.q[e.w[at.HEAP_AT] + at.FINISHES] <= s[at.CLOCK]:
        request = heap_pop(e, 0)
        place = bisect_running(e, e.q[request + at.ADMISSION])
        leave(e, request, drop_decode(e, request), place + gone)
        gone += 1 - e.s[at.OVERLAP]
