"""The log that the array engine keeps: rows and entries (sim.engine.core_state), which sim.engine.core_log expands."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_state import Core


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
    for column in (at.R_CHUNK_TOKENS, at.R_CHUNK_CONTEXT, at.R_CHUNK_PAIRS, at.R_CHUNK_SAMPLED, at.R_HEAD_PAIRS, at.R_HEAD_CACHED):
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
    log_entry(e, kind, e.s[at.ROWS] - (kind == at.CAME_BACK), request, e.s[at.UNDER_WAY], 0)
