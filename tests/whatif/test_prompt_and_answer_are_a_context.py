"""A what-if takes the lengths of prompt and answer, as `simulate` does, for the context that they add up to."""

import pytest

from tests.cli import run

ASKED = ("what-if", "--gpu", "H100", "--model", "Qwen3-8B")


def test_lengths_ask_what_their_sum_as_a_context_does():
    lengths = run(*ASKED, "--random-input-len", "1500", "--random-output-len", "300")
    assert lengths.stdout == run(*ASKED, "--ctx", "1800", "--random-output-len", "300").stdout
    assert run(*ASKED, "--random-input-len", "1872").stdout == run(*ASKED, "--ctx", "2000").stdout


@pytest.mark.parametrize("given", [(), ("--ctx", "8K", "--random-input-len", "100")])
def test_one_of_them_is_given(given):
    code, out, err = run(*ASKED, *given)
    assert (code, out) == (2, "")
    assert "--ctx" in err
    assert "--random-input-len" in err
    assert len(err.strip().splitlines()) == 1
