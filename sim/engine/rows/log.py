"""The log of the engine in rows: one row an iteration, and entries for what happens to requests in it (layout.LogRow, EntryRow)."""

from __future__ import annotations

from sim.cost.batch import BatchShape
from sim.engine.rows.layout import CAME_BACK, CHUNK, LOST_PLACE, Core, EngineRow, IterationRow


def log_is_full(s: EngineRow) -> bool:
    """Whether an iteration may find no room in the log."""
    return s.rows + 1 + s.most_rows > s.row_room or s.entries + 4 * s.seqs + 4 > s.entry_room


def open_row(e: Core, s: EngineRow, it: IterationRow) -> None:
    """An iteration is about to be launched."""
    it.row = s.first_row + s.rows
    s.rows += 1
    row = e.log[it.row]
    row.decided, row.scheduled, row.running, row.waiting = it.decided, it.shares, it.running, it.waiting
    row.tokens, row.used, row.admitted, row.preempted, row.lacks = it.tokens, it.used, it.admitted, it.preempted, it.lacks
    row.sampled = row.gaps = row.prefill_tokens = row.extra = row.more = 0
    row.decode_kv_s = -1.0


def note_shape(e: Core, s: EngineRow, it: IterationRow, shape: BatchShape, extra: int, prefill_tokens: int) -> None:
    """What the iteration costs: its batch shape, and ticks beyond the formula's."""
    open_row(e, s, it)
    row = e.log[it.row]
    row.extra, row.prefill_tokens = extra, prefill_tokens
    row.decode_seqs, row.decode_context, row.decode_window = shape.decode_seqs, shape.decode_context, shape.decode_window
    row.decode_kept = 0.0 if s.plain else shape.decode_kept
    row.prefill_seqs, row.chunk_tokens, row.prefill_context = shape.prefill_seqs, shape.prefill_tokens, shape.prefill_context
    row.prefill_pairs, row.prefill_window_context = shape.prefill_pairs, shape.prefill_window_context
    row.prefill_window_pairs, row.logits, row.has_prefill = shape.prefill_window_pairs, shape.sampled, shape.has_prefill
    row.eager, row.pieces, row.padding, row.others = shape.eager, shape.pieces, shape.padding, shape.others
    row.head_pairs, row.head_cached = shape.head_pairs, shape.head_cached


def note_entry(e: Core, s: EngineRow, kind: int, row: int, request: int, first: int, second: int) -> None:
    """Something happens to a request; `row` counts all rows of the log so far."""
    entry = e.entries[s.first_entry + s.entries]
    entry.kind, entry.row, entry.request, entry.first, entry.second = kind, row, request, first, second
    s.entries += 1


def note_loss(e: Core, s: EngineRow, r: int) -> None:
    """A request loses its place in the iteration that is decided."""
    note_entry(e, s, LOST_PLACE, s.logged + s.rows, r, 0, 0)


def note_chunk(e: Core, s: EngineRow, it: IterationRow, r: int, tokens: int, end: int) -> None:
    """A request computed a chunk of prefill."""
    note_entry(e, s, CHUNK, s.logged + it.row - s.first_row, r, tokens, max(end, tokens))


def note_return(e: Core, s: EngineRow, it: IterationRow, r: int, since: int, now: int) -> None:
    """A request has a token again, its last one was sent at `since`."""
    note_entry(e, s, CAME_BACK, s.logged + it.row - s.first_row, r, since, now)
