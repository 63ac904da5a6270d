"""One replica's engine as a loop over arrays: vLLM's decisions from aggregates, jumping over decode iterations in which nothing changes.

In steady decode every running request computes one token per iteration, so the batch is known by its size, its summed context, a heap of
finishing times on a clock that counts decode iterations, and how many sequences stand at each position inside a KV block. An iteration
costs its prefills and finishes, not its batch; a stretch without either is one integer polynomial (sim.engine.step_clock), which an arrival
cuts short where it is seen.

The same source runs as plain Python over lists and compiled over numpy arrays (sim.engine.compiled). It stops where time passes, so that
whoever drives it lets requests arrive (`arrive`), and for prices that nobody has asked for yet. Results equal those of sim.engine.loop with
the scheduler of sim.engine.vllm or vllm_async, to the tick; property tests compare them.
"""

from __future__ import annotations

import sim.engine.core_state as at
from sim.engine.core_decide import decide
from sim.engine.core_iterations import Given, jump, mixed, pass_stretch
from sim.engine.core_log_rows import log_is_full
from sim.engine.core_state import Core
from sim.engine.core_time import arrive, idle_until, send, settle
from sim.ticks import MOST_TICKS


def serve(e: Core, given: Given) -> int:
    """Serve all requests of `q`, in order of arrival, or stop for what is needed."""
    s, q, end = e.s, e.q, len(e.q)
    arrives = q[s[at.NEXT_ARRIVAL] + at.ARRIVES] if s[at.NEXT_ARRIVAL] < end else at.NEVER
    while True:
        while arrives < s[at.WAKE] + s[at.AFTER_ARRIVALS] and s[at.NEXT_ARRIVAL] < end:
            arrive(e, s[at.NEXT_ARRIVAL], arrives)
            s[at.NEXT_ARRIVAL] += at.REQUEST
            arrives = q[s[at.NEXT_ARRIVAL] + at.ARRIVES] if s[at.NEXT_ARRIVAL] < end else at.NEVER
        if s[at.WAKE] >= MOST_TICKS:
            return at.DONE if s[at.WAKE] == at.NEVER else at.TOO_LATE
        reason = advance(e, given)
        if reason:
            return reason


def advance(e: Core, given: Given) -> int:
    """Go on at WAKE, where the engine stopped; stop where it goes on next, WAKE again: before what arrives at that instant, or, with
    AFTER_ARRIVALS, behind. Returns what is needed, or 0. The first SENT of the tokens listed as being sent are those sent now.
    """
    s = e.s
    if s[at.WAKE] > s[at.NOW]:
        s[at.NOW] = s[at.WAKE]
    phase = s[at.PHASE]
    if phase == at.PASSES:
        pass_stretch(e)
        if not s[at.OVERLAP]:
            if s[at.SENDING]:
                send(e)
            return pause(e, at.DECIDE, s[at.DECIDES], 1)
        s[at.PHASE] = phase = at.DECIDE
    elif phase == at.IDLE:
        idle_until(e, s[at.NOW])
        s[at.PHASE] = phase = at.DECIDE
    if phase == at.DECIDE:
        if s[at.KEEP] and log_is_full(e):
            return at.NEEDS_ROOM
        if s[at.QUEUED] or s[at.RUNNING]:
            decide(e)
        elif s[at.DECIDES] < s[at.ENDS] or s[at.UNSENT] or s[at.UNDER_WAY]:
            settle(e)
        else:
            return pause(e, at.IDLE, at.NEVER, 1)
        phase = s[at.PHASE]
    if phase == at.MIXED or phase == at.JUMP:
        reason = mixed(e, given) if phase == at.MIXED else jump(e)
        if reason:
            return reason
    if s[at.SENDING]:
        if phase != at.SENDS:
            return pause(e, at.SENDS, s[at.SENDS_AT], 0)
        send(e)
    if s[at.PLANNED]:
        return pause(e, at.PASSES, s[at.PLAN_ENDS], s[at.OVERLAP])
    return pause(e, at.DECIDE, s[at.DECIDES], 1)


def pause(e: Core, phase: int, wake: int, after_arrivals: int) -> int:
    """Stop, to go on with a phase."""
    s = e.s
    s[at.PHASE], s[at.WAKE], s[at.AFTER_ARRIVALS] = phase, wake, after_arrivals
    return at.WAITS
