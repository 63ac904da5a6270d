"""SGLang cuts prompts at whole pages: a token budget below one page would never prefill, and is refused instead."""

import pytest

from tests.cli import run

ON = ("simulate", "--gpu", "A10", "--num-prompts", "3", "--draws", "0", "--engine", "sglang", "--max-num-seqs", "4", "--block-size", "64")


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_less_is_refused_and_a_page_is_enough(overlap):
    option = ("--engine-option", f"overlap_schedule={overlap}")
    result = run(*ON, *option, "--max-num-batched-tokens", "63")
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "sglang: a token budget of 63 holds no page of 64 tokens" in result.stderr
    assert run(*ON, *option, "--max-num-batched-tokens", "64").code == 0
