"""Answers for several GPUs say that no rate was learnt over several; answers for one do not."""

import pytest

from tests.cli import run

ASKED = {
    "what-if": ["what-if", "--ctx", "8K", "--gpu", "H200", "--draws", "20"],
    "regime-map": ["regime-map", "--gpu", "H200", "--draws", "20"],
    "simulate": ["simulate", "--gpu", "H200", "--model", "Llama-3.1-8B", "--num-prompts", "3", "--request-rate", "1", "--draws", "0"],
}


@pytest.mark.parametrize("command", ASKED)
def test_said_for_two_and_not_for_one(command):
    one, two = run(*ASKED[command]), run(*ASKED[command], "--tp", "2")
    assert one.code == two.code == 0
    said = "is priced from one GPU's rates and the all-reduce"
    assert said in " ".join(two.stdout.split())
    assert said not in " ".join(one.stdout.split())
