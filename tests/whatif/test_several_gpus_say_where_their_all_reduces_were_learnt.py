"""Answers for several GPUs say where the cost of all-reduces comes from; answers for one do not. Their intervals are the wider ones."""

import numpy as np
import pytest

from sim.rates.posterior import rates_for
from sim.specs.gpus import get_gpu
from tests.cli import run

ASKED = {
    "what-if": ["what-if", "--ctx", "8K", "--draws", "20", "--explain"],
    "simulate": ["simulate", "--model", "Llama-3.1-8B", "--num-prompts", "3", "--request-rate", "1", "--draws", "0", "--explain"],
}
SAID = {
    "H200": "the cost of all-reduces: learnt from one model over two of these GPUs;",
    "H100": "the cost of all-reduces: learnt from one model over two of these GPUs;",
    "A100-80G": "the cost of all-reduces: hierarchy over GPUs:",
    "L40S": "GPUs over host memory, without peer access: declared prior, 30 us an operation",
}


@pytest.mark.parametrize("command", ASKED)
@pytest.mark.parametrize("gpu", SAID)
def test_said_for_several_and_not_for_one(command, gpu):
    one, two, four = (run(*ASKED[command], "--gpu", gpu, "--tp", str(tp)) for tp in (1, 2, 4))
    assert one.code == two.code == four.code == 0
    texts = [" ".join(answer.stdout.split()) for answer in (one, two, four)]
    assert [SAID[gpu] in text for text in texts] == [False, True, True]
    linked = gpu != "L40S"  # of cards without direct links nobody measured any
    assert ["three models were served over two H100s" in text for text in texts] == [False, linked, False]
    assert ["nothing was measured over 4" in text for text in texts] == [False, False, linked]


@pytest.mark.parametrize("gpu", ["H200", "H100", "A100-80G", "L4"])
def test_what_the_formula_misses_is_more_over_several(gpu):
    one, two = (rates_for(get_gpu(gpu), draws=400, tp=tp) for tp in (1, 2))
    assert np.std(np.log(two.error)) > np.std(np.log(one.error))
