"""Tokens that come sooner than a card reads the weights are an alarm, whatever their first ones take; later ones, and drafts, are none."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.alarms import tokens_too_soon
from calibrate.served.runs import Experiment
from tests.served.made_runs import RUN

# 7.07e9 weights of Qwen2.5-7B that a token reads (its table of embeddings is not), of two bytes each, at 3.35 TB/s: 4.22 ms.
# The formula has an eighth more for products of a single row.
LEAST_S = 7.07e9 * 2 / 3.35e12


def log(tpot_s, first_s=1.0, tokens=65):
    """Four requests whose tokens after the first take so long."""
    sent = np.arange(4.0)
    same = np.full(4, first_s), np.full(4, first_s + tpot_s * (tokens - 1))
    return Experiment("log", "open", sent, np.full(4, 512), np.full(4, tokens), *same)


@pytest.mark.parametrize(("share", "alarms"), [(0.5, 1), (0.97, 1), (1.2, 0), (2.0, 0)])
def test_by_hand(share, alarms):
    assert len(tokens_too_soon(RUN, log(share * LEAST_S))) == alarms


def test_drafts_and_answers_of_one_token_say_nothing():
    drafted = replace(RUN, limits=replace(RUN.limits, options={"draft_tokens": 3}))
    assert tokens_too_soon(drafted, log(0.5 * LEAST_S)) == []
    assert tokens_too_soon(RUN, log(0.5 * LEAST_S, tokens=1)) == []
