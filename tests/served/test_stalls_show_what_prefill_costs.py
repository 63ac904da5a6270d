"""Streams that a prompt holds up say what carrying prefill costs beyond its bytes; without token times nobody knows."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.joins import ALONE_S
from calibrate.served.runs import Experiment
from calibrate.served.stalls import prefill_seen
from sim.bill import iteration_bill, mixed_shape
from sim.price import step_time_s
from sim.products import known_to
from tests.served.made import IN_PROCESS, RUN

EXTRA_S, PROMPT, PROMPTS = 0.7e-3, 256, 12
RATES = replace(IN_PROCESS.point, c_prefill_s=0.0)


def two_streams_and_a_prompt_now_and_then(extra_s: float, early_s: float = 0.0) -> Experiment:
    """Two long streams; every 30 tokens a prompt of one output token joins, and its iteration takes `extra_s` longer than priced. The
    tokens of the iteration before come `early_s` late, as where launching keeps them waiting.
    """

    def price(seqs: int, context: float, chunk: int) -> float:
        shape = mixed_shape(RUN.model, [context] * seqs, [(float(chunk), float(chunk), True)] if chunk else [])
        return float(step_time_s(iteration_bill(RUN.model, shape, RUN.precision, gpu=known_to(RUN.gpu)), RATES))

    count = 30 * (PROMPTS + 1)
    times, now, firsts = [], 0.0, []
    for token in range(count):
        joins = token % 30 == 29
        now += price(2, 512.0 + token, PROMPT if joins else 0) + (extra_s if joins else 0.0)
        times.append(now + (early_s if token % 30 == 28 else 0.0))
        if joins:
            firsts.append(now)
    streams = np.array(times)
    tokens = (streams, streams, *(np.array([first]) for first in firsts))
    first = np.array([t[0] for t in tokens])
    arrival = np.concatenate([[0.0, 0.0], np.array(firsts) - 0.02])
    prompts, outputs = np.array([512, 512] + [PROMPT] * len(firsts)), np.array([count, count] + [1] * len(firsts))
    last = np.array([t[-1] for t in tokens])
    return Experiment("made", "open", arrival, prompts, outputs, first - arrival, last - arrival, token_s=tokens)


@pytest.mark.parametrize("early_s", [0.0, 3e-3])
@pytest.mark.parametrize("extra_s", [0.0, EXTRA_S])
def test_the_cost_that_made_the_stalls_is_found(extra_s: float, early_s: float) -> None:
    seen = prefill_seen(RUN, (two_streams_and_a_prompt_now_and_then(extra_s, early_s),), IN_PROCESS.point)
    assert seen is not None
    assert seen[0] == pytest.approx(extra_s, abs=2e-5)
    assert seen[1] < 1e-4


def test_nothing_is_said_without_token_times_or_with_prompts_together() -> None:
    made = two_streams_and_a_prompt_now_and_then(EXTRA_S)
    assert prefill_seen(RUN, (replace(made, token_s=None),), IN_PROCESS.point) is None
    assert made.token_s is not None
    crowded = tuple(t if i < 2 else made.token_s[2] + 0.1 * ALONE_S * i for i, t in enumerate(made.token_s))
    assert prefill_seen(RUN, (replace(made, token_s=crowded),), IN_PROCESS.point) is None
