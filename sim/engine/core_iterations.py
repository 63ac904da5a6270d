"""Iterations of the array engine: what they cost, whose tokens they compute and sample, and how many alike follow one another."""

from __future__ import annotations

from typing import Any, NamedTuple

import sim.engine.core_state as at
from sim.cost.batch import ABSORBED_TOKENS, BatchShape, chunk_pairs, from_sums
from sim.cost.graphs import GRAPH_TOKENS
from sim.engine.core_decide import note_state
from sim.engine.core_kv import slot_of, take
from sim.engine.core_log_rows import log_chunk, log_row, log_setback
from sim.engine.core_parts import bisect_running, drop_decode, expect_shared, fill_shared, heap_pop, heap_push, leave, push_unsent, release
from sim.engine.core_state import Core, charged_in
from sim.engine.core_time import after, cut, let_pass, send_at_end
from sim.engine.step_clock import late_share, on_chord, staged_s
from sim.ticks import Stretch, elapsed, to_ticks


class Given(NamedTuple):
    """Inputs of the formula: attributes of the coefficients, of the rates and of the attention policy."""

    coefficients: Any
    rates: Any
    policy: Any


class Rows(NamedTuple):
    """Seconds by an iteration's rows, as sim.engine.step_clock has them."""

    kernels: float
    linear: float
    comm: float


def octave_of(mean: int, near: int) -> int:
    """The largest k with 2**k at most `mean`, sought from `near`."""
    while mean >> near == 0:
        near -= 1
    while mean >> near > 1:
        near += 1
    return near


def stretch_of(e: Core, batch: int, context: int) -> Stretch:
    """The decode iterations of a batch up to its chord's end; none (first 0) where the chord is not known, which is then needed."""
    s, octave = e.s, octave_of(context // batch, e.s[at.OCTAVE])
    s[at.OCTAVE] = octave
    place = 2 * (batch * at.OCTAVES + octave)
    if e.chords[place] < 0:
        s[at.NEEDED], s[at.NEEDED_OCTAVE] = batch, octave
        return Stretch(0, 0, 0)
    return on_chord(e.chords[place], e.chords[place + 1], batch, octave, context)


def preparing(e: Core, sequences: int, prefill: int) -> int:
    """Ticks of host work before an iteration can be launched, as StepTime.preparing."""
    s = e.s
    if s[at.PARTS] > 1:
        sequences = -(-sequences // s[at.PARTS])
    return s[at.HOST_EACH] + sequences * s[at.HOST_SEQUENCE] + prefill * s[at.HOST_PREFILL]


def mixed(e: Core, given: Given) -> int:
    """Let the time of the chosen iteration pass: all decodes, and its shares of prefill. Returns what is needed, or 0."""
    s, q, w = e.s, e.q, e.w
    batch, context, total, several = s[at.BATCH], s[at.CONTEXT], s[at.BATCH], 0
    count, tokens, read, pairs, sampled, head_pairs, head_cached, samples = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0
    for seat in range(0, s[at.SHARES] * at.SEAT, at.SEAT):
        request, n, start = w[seat + at.SHARE_AT], w[seat + at.SHARE_TOKENS_AT], w[seat + at.SHARE_START_AT]
        end = start + n
        total += n
        if n > 1:
            several = 1
        whole = int(end == q[request + at.PROMPT] + q[request + at.GENERATED])
        samples += whole
        if n == 1 and start >= q[request + at.PROMPT]:
            batch, context = batch + 1, context + start
        else:
            count, tokens, read, pairs, sampled = count + 1.0, tokens + n, read + end, pairs + chunk_pairs(n, end), sampled + whole
            if n > ABSORBED_TOKENS:
                head_pairs, head_cached = head_pairs + chunk_pairs(n, end), head_cached + start
    head_start = max(s[at.ENDS] - s[at.DECIDES], 0)
    chunks = int(count)
    if s[at.WAS_SHARED]:
        context = charged_in(s, context, batch, chunks, s[at.WAS_SHARED], s[at.WAS_COMMON])
    ready = preparing(e, batch + chunks, int(chunks > 0))
    exposed, left = max(ready - head_start, 0), max(head_start - ready, 0)
    if chunks and not s[at.WHOLE]:
        if s[at.PRICED] < 0:
            return at.NEEDS_PRICE
        own, exposed = s[at.PRICED], 0
        s[at.PRICED] = -1
    elif chunks:
        sums = (count, tokens, read, pairs, 0.0, 0.0, sampled, head_pairs, head_cached)
        shape = from_sums(float(batch), float(context), 0.0, float(context), sums)
        rows, logits = int(shape.decode_seqs + shape.prefill_tokens + shape.padding), int(shape.sampled)
        if e.by_rows[3 * rows] < 0.0:
            s[at.NEEDED] = rows
            return at.NEEDS_ROWS
        if e.heads[logits] < 0.0:
            s[at.NEEDED] = logits
            return at.NEEDS_HEAD
        launching = s[at.LAUNCHING] if shape.eager else s[at.LAUNCHING_PIECES] if shape.pieces else 0
        if left and launching:
            late = late_share(left, launching)
            shape = with_launches(shape, shape.eager * late, shape.pieces * late)
        by_rows = Rows(e.by_rows[3 * rows], e.by_rows[3 * rows + 1], e.by_rows[3 * rows + 2])
        own = to_ticks(staged_s(given.coefficients, shape, given.rates, given.policy, by_rows, e.heads[logits]))
    else:
        own = stretch_of(e, batch, context).first
        if not own:
            return at.NEEDS_CHORD
    reading = s[at.LAUNCHING] if total > s[at.PARTS] * GRAPH_TOKENS else s[at.LAUNCHING_PIECES]
    host = preparing(e, batch + chunks, several) + (reading if several else s[at.LAUNCHING_DECODES])
    if s[at.KEEP]:
        row, log = log_row(e, batch, context, total, head_start, exposed + own), e.rows
        log[row + at.R_CHUNKS], log[row + at.R_CHUNK_TOKENS], log[row + at.R_CHUNK_CONTEXT] = chunks, int(tokens), int(read)
        log[row + at.R_CHUNK_PAIRS], log[row + at.R_CHUNK_SAMPLED] = int(pairs), int(sampled)
        log[row + at.R_HEAD_PAIRS], log[row + at.R_HEAD_CACHED] = int(head_pairs), int(head_cached)
        log[row + at.R_SAMPLED], log[row + at.R_FRESH] = s[at.BATCH] + samples, samples
    let_pass(e, host, exposed + own)
    s[at.CLOCK] += 1
    s[at.CONTEXT] += s[at.BATCH]
    place = s[at.BATCH]  # tokens of decodes come first
    finish_decodes(e)
    s[at.PARTIAL], fresh = -1, 0
    for seat in range(0, s[at.SHARES] * at.SEAT, at.SEAT):
        request = w[seat + at.SHARE_AT]
        if not q[request + at.GENERATED] and w[seat + at.SHARE_START_AT] + w[seat + at.SHARE_TOKENS_AT] == q[request + at.PROMPT]:
            fresh += q[request + at.PROMPT]
    for seat in range(0, s[at.SHARES] * at.SEAT, at.SEAT):
        request, end = w[seat + at.SHARE_AT], w[seat + at.SHARE_START_AT] + w[seat + at.SHARE_TOKENS_AT]
        if s[at.KEEP]:
            log_chunk(e, request, w[seat + at.SHARE_TOKENS_AT], end)
        if end == q[request + at.PROMPT] + q[request + at.GENERATED]:
            q[request + at.FRESH] = q[request + at.FRESH] or fresh
            sample(e, request, end, place)
            place += 1
        else:
            s[at.PARTIAL], s[at.PARTIAL_DONE] = request, end
    if not s[at.OVERLAP]:
        send_at_end(e)
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
        shape.head_pairs,
        shape.head_cached,
    )


def jump(e: Core) -> int:
    """Plan decode iterations up to the next change: a finish, an arrival (see `cut`) or blocks running out. The first iteration has its
    blocks already. Returns what is needed, or 0.
    """
    s = e.s
    batch = s[at.BATCH]
    context = s[at.CONTEXT]
    if s[at.SHARED]:
        context = charged_in(s, context, batch, 0, s[at.SHARED], s[at.COMMON])
    stretch = stretch_of(e, batch, context)
    first, n = stretch.first, stretch.most
    if not first:
        return at.NEEDS_CHORD
    n = min(n, e.q[e.w[at.FINISH_AT] + at.FINISHES] - s[at.CLOCK])
    exposed, ready = 0, preparing(e, batch, 0)
    host = ready + s[at.LAUNCHING_DECODES]
    head_start = max(s[at.ENDS] - s[at.DECIDES], 0)
    if host:
        if not s[at.OVERLAP]:
            first += ready
        elif host > head_start or host > first:
            exposed, n = max(ready - head_start, 0), 1  # not like those that follow it
    note_state(e, s[at.BUDGET] - batch)
    if s[at.LEAVING]:
        if s[at.QUEUED] or s[at.SHARED]:
            n = 1  # the next decision has what they leave, and reads what is left
        release(e)
    if s[at.WATCH] and s[at.FILLING]:
        n = min(n, max(e.q[e.w[at.FILL_AT] + at.FILLS] - s[at.CLOCK], 1))  # a shared block then becomes findable
    s[at.OPEN] = int((s[at.RANKED] or not s[at.QUEUED]) and s[at.RUNNING] < s[at.SEQS])
    if n > 1:
        n = with_room(e, n)
    s[at.ORIGIN], s[at.FIRST], s[at.INCREMENT] = s[at.ENDS], first, stretch.increment
    if s[at.KEEP]:
        row = log_row(e, batch, context, batch, head_start, exposed + first)
        e.rows[row + at.R_INCREMENT], e.rows[row + at.R_SAMPLED] = stretch.increment, batch
    let_pass(e, host, exposed + first)
    s[at.PLANNED] = n
    if n == 1:
        pass_stretch(e)
    else:
        s[at.PLAN_ENDS] = after(e, n)
    return 0


def pass_stretch(e: Core) -> None:
    """The planned decode iterations are over."""
    s = e.s
    n = s[at.PLANNED]
    s[at.PLANNED] = 0
    if s[at.KEEP]:
        e.rows[(s[at.ROWS] - 1) * at.ROW + at.R_N] = n
    if n > 1:
        if not s[at.TAKEN]:
            take(e, blocks_due(e, n))
        s[at.TAKEN] = 0
        s[at.DECIDES] = s[at.PLAN_ENDS]
        if s[at.OVERLAP]:
            s[at.ENDS] += elapsed(s[at.FIRST], s[at.INCREMENT], n) - s[at.FIRST]
        else:
            s[at.ENDS] = s[at.PLAN_ENDS]
    s[at.CONTEXT] += n * s[at.BATCH]
    s[at.CLOCK] += n
    finish_decodes(e)
    if not s[at.OVERLAP]:
        send_at_end(e)


def blocks_due(e: Core, n: int) -> int:
    """Blocks that the second and later of the next `n` decode iterations take."""
    s, size, due = e.s, e.s[at.BLOCK], e.due
    blocks, clock = (n - 1) // size * s[at.BATCH], s[at.CLOCK] + 1
    for i in range(clock, clock + (n - 1) % size):
        blocks += due[i % size]
    return blocks


def cached_blocks(e: Core, request: int, now: int) -> int:
    """Leading blocks of a request's prompt that the cache holds: of the planned iterations those have their blocks that were decided before
    `now`. Blocks of answers are found as those do who ask when the answer is over.
    """
    s, found = e.s, 0
    if s[at.PLANNED] > 1 and not s[at.TAKEN]:
        cut(e, now)
        if s[at.PLANNED] > 1:
            take(e, blocks_due(e, s[at.PLANNED]))
            s[at.TAKEN] = 1
    fill_shared(e, s[at.CLOCK] + s[at.PLANNED] - 1, s[at.ADMISSIONS])
    most, name = min(e.q[request + at.DEPTH], (e.q[request + at.PROMPT] - 1) // s[at.BLOCK]), e.q[request + at.NAMES]
    while found < most and e.table[slot_of(e, e.names[name + found])]:
        found += 1
    return found


def with_room(e: Core, most: int) -> int:
    """Number of the next `most` iterations that find their blocks, those of the first taken."""
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
    s, q = e.s, e.q
    generated = q[request + at.GENERATED] + 1
    if generated == 1:
        push_unsent(e, request, place, 0)
    elif s[at.KEEP]:
        log_setback(e, request, at.CAME_BACK)
    if generated == q[request + at.OUTPUT]:
        leave(e, request, computed, place)
        return
    s[at.BATCH] += 1
    s[at.CONTEXT] += computed
    offset = computed - s[at.CLOCK]
    e.due[-offset % s[at.BLOCK]] += 1
    q[request + at.OFFSET], q[request + at.BEGAN] = offset, s[at.CLOCK]
    q[request + at.FINISHES] = s[at.CLOCK] + q[request + at.OUTPUT] - generated
    heap_push(e, request, at.FINISHING, at.FINISH_AT, at.FINISHES)
    if q[request + at.DEPTH]:
        expect_shared(e, request)


def finish_decodes(e: Core) -> None:
    """Those whose last token this iteration samples leave."""
    s, q, w = e.s, e.q, e.w
    gone = 0  # those of this iteration that have given up their place already came before
    while s[at.FINISHING] and q[w[at.FINISH_AT] + at.FINISHES] <= s[at.CLOCK]:
        request = heap_pop(e, 0, at.FINISHING, at.FINISH_AT, at.FINISHES)
        place = bisect_running(e, q[request + at.ADMISSION])
        leave(e, request, drop_decode(e, request), place + gone)
        gone += 1 - e.s[at.OVERLAP]
