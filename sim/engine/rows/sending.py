"""Tokens that the engine in rows sends: first and last ones by request, all of them in the log."""

from __future__ import annotations

from sim.engine.rows.layout import Core, EngineRow, IterationRow
from sim.engine.rows.log import note_return


def note_token(e: Core, s: EngineRow, it: IterationRow, r: int, took: int, place: int) -> None:
    """A request's tokens, `took` of them, are sent now, at a place of their iteration's."""
    row, before = e.requests[r], s.ahead + place
    s.sampled += took
    if row.generated == took:
        s.fresh_tokens += row.prompt
        row.first_sent, row.first_place = s.now, before
        note_sent(e, s, r, before, 0)
    elif row.sampled_in == s.number:
        s.gaps += 1
    elif s.keep and row.sampled_in >= 0:
        note_return(e, s, it, r, row.sampled_at, s.now)
    row.sampled_in, row.sampled_at = s.number + 1, s.now
    if row.generated >= row.output:
        row.last_sent, row.last_place = s.now, before
        note_sent(e, s, r, before, 1)


def note_sent(e: Core, s: EngineRow, r: int, place: float, last: int) -> None:
    """A request's first or last token is sent now."""
    each = e.sends[s.first_send + s.sent]
    each.request, each.place, each.last = r, place, last
    s.sent += 1


def begin_sending(s: EngineRow) -> None:
    """The tokens of an iteration are sent now."""
    s.sent = s.sampled = s.gaps = s.fresh_tokens = 0
    waits = max(s.through - s.now, 0)
    s.ahead = waits / s.token_ticks if waits else 0.0


def end_sending(e: Core, s: EngineRow, it: IterationRow, count: int) -> None:
    """They have been, to so many requests (sim.cost.api_server.SendQueue)."""
    s.through = max(s.through, s.now) + count * s.token_ticks
    if s.fresh_tokens:
        for seat in range(s.first_send, s.first_send + s.sent):
            if not e.sends[seat].last:
                e.requests[e.sends[seat].request].fresh = s.fresh_tokens
    s.number += 1
    if s.keep:
        log = e.log[it.row]
        log.started, log.sent, log.sampled, log.gaps = it.started, s.now, s.sampled, s.gaps
