"""The two clocks of the array engine (sim.engine.overlap), tokens that wait to be sent, and stretches that an arrival cuts."""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_parts import add
from sim.engine.core_state import Core
from sim.ticks import Stretch, elapsed


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
    n = max(iterations_begun(Stretch(s[at.FIRST], s[at.INCREMENT], 0), now - s[at.ORIGIN]) + s[at.OVERLAP], 1)
    if n < s[at.PLANNED]:
        s[at.PLANNED] = n
        s[at.PLAN_ENDS] = after(e, n)
        if s[at.PHASE] == at.PASSES:
            s[at.WAKE] = s[at.PLAN_ENDS]


def iterations_begun(stretch: Stretch, since: int) -> int:
    """Number of iterations of a stretch that begin less than `since` ticks after its beginning."""
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
    """Time of the decision after `n` of the planned iterations: at the end of the last, or of the one before it."""
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
    s[at.SENT], s[at.SENDING] = s[at.SENDING], 0
