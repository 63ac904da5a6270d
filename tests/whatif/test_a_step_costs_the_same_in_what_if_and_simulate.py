"""One default of rates: what-if prices the decode step that simulate runs, as served, and both as stepped in process if asked."""

from __future__ import annotations

import json

import pytest

from tests.cli import run

ASK = ("--gpu", "H100", "--model", "Qwen2.5-7B")
# one long answer: its time per token is the decode step at the context in its middle
LOAD = ("--num-prompts", "1", "--random-input-len", "4000", "--random-output-len", "192", "--draws", "0", "--host-rate", "none", "--json")


@pytest.mark.parametrize("flag", ["--served", "--in-process", None])
def test_the_same_rates_stand_behind_both(flag):
    flags = (flag,) if flag else ()
    answer = json.loads(run("what-if", "--ctx", "4096", *ASK, *flags, "--json").stdout)
    step_ms = 1e3 * next(o for o in answer["options"] if o["policy"] == "dense" and o["kv_in"] == "hbm")["step_s"]["point"]
    shown_ms = json.loads(run("simulate", *ASK, *LOAD, *flags).stdout)["mean_tpot_ms"]
    assert shown_ms == pytest.approx(step_ms, rel=1e-3)
