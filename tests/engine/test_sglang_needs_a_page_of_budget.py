"""SGLang cuts prompts at whole pages: a token budget below one page would never prefill, and is refused instead."""

from types import SimpleNamespace

import pytest

from sim.engine.sglang_admission import PrefillBudget
from tests.cli import run

ON = ("simulate", "--gpu", "A10", "--num-prompts", "3", "--draws", "0", "--engine", "sglang", "--max-num-seqs", "4", "--block-size", "64")


@pytest.mark.parametrize("overlap", ["true", "false"])
def test_less_is_refused_and_a_page_is_enough(overlap):
    option = ("--engine-option", f"overlap_schedule={overlap}")
    result = run(*ON, *option, "--max-num-batched-tokens", "63")
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "sglang: a token budget of 63 holds no page of 64 tokens" in result.stderr
    assert run(*ON, *option, "--max-num-batched-tokens", "64").code == 0


@pytest.mark.parametrize(("promised", "chunk"), [(0.0, 8), (4.0, 6), (9.5, 8), (10.0, 8)])
def test_a_prompt_goes_on_by_what_kv_leaves_after_what_is_promised_or_else_by_a_chunk(promised, chunk):
    budget = PrefillBudget(SimpleNamespace(free_blocks=5, page_tokens=2), promised, 100, 8)
    assert (budget.next_chunk(100), budget.next_chunk(3)) == (chunk, 3)
