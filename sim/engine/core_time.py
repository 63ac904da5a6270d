"""The two clocks of the array engine (sim.engine.overlap), tokens that wait to be sent, and stretches that an arrival cuts."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_parts import add
from sim.engine.core_state import Core
from sim.ticks import elapsed


def arrive(e: Core, request: int, now: int) -> None:
    """Queue a request that arrives now, no later than the engine goes on."""
    s = e.s
    add(e, request)
    if s[at.PHASE] == at.IDLE:
        s[at.WAKE], s[at.AFTER_ARRIVALS] = now, 1
    elif s[at.PLANNED] and s[at.OPEN]:
        cut(e, now)


def cut(e: Core, now: int) -> None:
    """End the planned iterations where the next decision sees a request that arrives now."""
    s = e.s
    n = max(iterations_begun(s[at.FIRST], s[at.INCREMENT], now - s[at.ORIGIN]) + s[at.OVERLAP], 1)
    if n < s[at.PLANNED]:
        s[at.PLANNED] = n
        s[at.PLAN_ENDS] = after(e, n)
        if s[at.PHASE] == at.PASSES:
            s[at.WAKE] = s[at.PLAN_ENDS]


def iterations_begun(first: int, increment: int, since: int) -> int:
    """Number of iterations of a stretch that begin less than `since` ticks after its beginning."""
    if since <= 0:
        return 0
    n = -(-since // first)  # enough: none takes less than the first
    while n > 1:
        over = elapsed(first, increment, n - 1) - since
        if over < 0:
            break
        n -= 1 + over // (first + increment * (n - 2))  # Newton's step: none of these takes more than the last
    return n


def after(e: Core, n: int) -> int:
    """Time of the decision after `n` of the planned iterations: at the end of the last, or of the one before it."""
    s = e.s
    if s[at.OVERLAP]:
        return s[at.DECIDES] + elapsed(s[at.FIRST], s[at.INCREMENT], n - 1)
    return s[at.DECIDES] + elapsed(s[at.FIRST], s[at.INCREMENT], n) - s[at.FIRST]


def idle_until(e: Core, now: int) -> None:
    """Decide next at `now`, no sooner than the GPU is through, with nothing ahead of it."""
    s = e.s
    s[at.ENDS] = now if now > s[at.ENDS] else s[at.ENDS]
    s[at.DECIDES] = s[at.ENDS]


def let_pass(e: Core, host: int, ticks: int) -> None:
    """An iteration of `ticks` that keeps the host for `host` is launched."""
    s = e.s
    decides, ends = s[at.DECIDES], s[at.ENDS]
    if not s[at.OVERLAP]:
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
    if s[at.KEEP] and s[at.UNDER_WAY]:
        e.rows[(s[at.ROWS] - 1) * at.ROW + at.R_SETTLED] = ends if ends > s[at.NOW] else s[at.NOW]
    s[at.UNDER_WAY] = 0
    idle_until(e, s[at.DECIDES])
    s[at.PHASE] = at.SEND


def hand_to_send(e: Core, ticks: int) -> None:
    """The tokens of the iteration under way are sent at a time, and are noted at once where nobody hears of it."""
    s, w = e.s, e.w
    for seat in range(0, s[at.UNSENT] * at.SEAT, at.SEAT):
        request, place, last = w[seat + at.UNSENT_AT], w[seat + at.UNSENT_PLACE_AT], w[seat + at.UNSENT_LAST_AT]
        if s[at.HEARD]:
            w[seat + at.SENDING_AT], w[seat + at.SENDING_PLACE_AT], w[seat + at.SENDING_LAST_AT] = request, place, last
        else:
            note_sent(e, request, place, last, ticks if ticks > s[at.NOW] else s[at.NOW])
    s[at.SENDING], s[at.UNSENT], s[at.SENDS_AT] = s[at.HEARD] * s[at.UNSENT], 0, ticks


def send_at_end(e: Core) -> None:
    """Without overlap, tokens are sent at the end of their iteration."""
    if e.s[at.UNSENT]:
        hand_to_send(e, e.s[at.ENDS])


def send(e: Core) -> None:
    """The tokens are sent now."""
    s, w = e.s, e.w
    for seat in range(0, s[at.SENDING] * at.SEAT, at.SEAT):
        note_sent(e, w[seat + at.SENDING_AT], w[seat + at.SENDING_PLACE_AT], w[seat + at.SENDING_LAST_AT], s[at.NOW])
    s[at.SENT], s[at.SENDING] = s[at.SENDING], 0


def note_sent(e: Core, request: int, place: int, last: int, ticks: int) -> None:
    """A request's first or last token is sent."""
    if last:
        e.q[request + at.LAST_SENT], e.q[request + at.LAST_PLACE] = ticks, place
    else:
        e.q[request + at.FIRST_SENT], e.q[request + at.FIRST_PLACE] = ticks, place
