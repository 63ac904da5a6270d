"""Rates learnt from one load of a packaged server: intervals hold on another load, and nothing that was known is wider."""

from pathlib import Path

import numpy as np

from calibrate.logs.learn import learn_rates, served_priors
from calibrate.logs.log_rates import save
from calibrate.logs.requests import ServedLog
from calibrate.measured_files import resolved
from calibrate.sampling import Settings
from calibrate.served.runs import read_served
from sim.rates.load import OUTSIDE, load_rates, scope_notes
from studies.learned_logs import HELD, judged, summary

SETTINGS = Settings(draws=300, chains=2)


def test_a_14b_learnt_at_2_a_second_predicts_its_other_loads(tmp_path):
    draws = 160  # of 40 the ratio of widths is off by a third
    rows = list(judged(read_served(resolved(Path("h100/served_qwen3-14b.nc"))), SETTINGS, draws, tmp_path))
    assert {row["load"] for row in rows} == {"open 8/s", "open 16/s", "sessions 8x4", "closed 16x4"}
    told = summary(rows)
    assert told["wider"] == []
    # a load of 2 a second says little of the GPU, of the host much: closed loops, which wait for it, are known best
    assert told["narrower"] < 0.9  # seeds 0 to 2: 0.82, 0.71, 0.85; that widths are right is what ranks say (studies.sbc requests)
    first = {row["load"]: row for row in rows if row["metric"] == "ttft_s"}
    closed = first.pop("closed 16x4")
    assert closed["width"] < min(closed["width_before"], *(row["width"] for row in first.values()))
    assert all(share >= HELD for share in told["held"].values())


def test_what_was_served_is_no_longer_outside_what_was_measured(tmp_path):
    run = read_served(resolved(Path("h200/served_gemma3-12b.nc")))
    low = next(e for e in run.experiments if e.name == "open 2/s")
    log = ServedLog(low, np.ones(len(low.ttft_s), dtype=bool), np.full(len(low.ttft_s), np.nan), "GuideLLM")
    priors, _ = served_priors(run, log=log)
    learnt = learn_rates(run, log, priors, SETTINGS)
    rates = load_rates(run.deployment, posterior=save(tmp_path / "own.nc", run, log, learnt, priors, SETTINGS))
    assert not [note for note in scope_notes(run.deployment, rates) if note.startswith(OUTSIDE)]
    assert [note for note in scope_notes(run.deployment, load_rates(run.deployment)) if note.startswith(OUTSIDE)]
