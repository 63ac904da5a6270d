"""After its first token a request that is left out of iterations is stalled until it samples again, or to the end where it never does."""

import pytest

from sim.results.record import PAUSED, SAMPLED_AGAIN
from sim.results.timeline import DECODE, PREFILL, STALLED, _Event, _Life, _stages, _Step

# four iterations of ten ticks each; the first computes the prompt and gives the first token
STEPS = [_Step(place, 10 * place, 10 * place + 10, 10 * place) for place in range(4)]


@pytest.mark.parametrize(
    ("events", "stages"),
    [
        ([], [PREFILL, DECODE, DECODE, DECODE]),
        ([(20, PAUSED), (40, SAMPLED_AGAIN)], [PREFILL, DECODE, STALLED, DECODE]),
        ([(10, PAUSED), (20, SAMPLED_AGAIN), (30, PAUSED)], [PREFILL, DECODE, DECODE, STALLED]),
        ([(20, PAUSED)], [PREFILL, DECODE, STALLED, STALLED]),
    ],
)
def test_by_hand(events, stages):
    noted = [_Event(ticks, kind, 0) for ticks, kind in events]
    assert list(_stages(_Life(0, 0, 40), STEPS, noted, {0}, 10)) == stages
