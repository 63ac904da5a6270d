"""Traces of months, and of Unix times: served on the fast path, from the first arrival on, in epochs between idle moments."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim.rates.load import load_rates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.study import epochs
from sim.study.deployment import Deployment
from sim.study.run import planned, run_pools
from sim.study.studied import Study
from sim.ticks import TICK_S
from sim.workload.trace import TraceBuilder
from sim.workload.workload import Workload
from tests.cli import run

DAY_S = 86_400.0
ASKED = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--json", "--draws", "2")


def written(path, arrivals):
    lines = (
        f'{{"arrival_s": {float(at)}, "prompt_tokens": {9 + i % 700}, "output_tokens": {1 + i % 90}}}\n' for i, at in enumerate(arrivals)
    )
    path.write_text("".join(lines))
    return path


def answered(path, *options):
    result = run(*ASKED, "--trace", str(path), *options)
    assert result.code == 0, result.stderr
    return json.loads(result.stdout.replace(path.name, "trace.jsonl").replace(str(path.parent), ""))


def test_unix_times_give_the_answer_of_the_shifted_trace(tmp_path):
    arrivals = np.cumsum(np.random.default_rng(1).integers(0, 2000, 60)) / 1024.0
    answers = []
    for name, shift in {"a": 0.0, "b": 1_700_000_000.0}.items():
        path = written(tmp_path / f"{name}.jsonl", arrivals - arrivals[0] + shift)
        answers.append(answered(path))
        del answers[-1]["provenance"]
    assert answers[0] == answers[1]


def test_milliseconds_are_refused_by_their_unit(tmp_path):
    result = run(*ASKED, "--trace", str(written(tmp_path / "ms.jsonl", [1.7e12])))
    assert result.code == 2
    assert "milliseconds" in result.stderr


def test_four_months_take_the_fast_path(tmp_path):
    arrivals = np.sort(np.random.default_rng(2).uniform(0.0, 121 * DAY_S, 400))
    answer = answered(written(tmp_path / "months.jsonl", arrivals))
    assert answer["completed"] == 400
    assert answer["duration"] == pytest.approx(arrivals[-1] - arrivals[0], rel=1e-4)
    assert "event_by_event" not in answer


@pytest.mark.parametrize(("replicas", "rate_per_s"), [(1, 0.2), (3, 0.6), (1, 1.5)])
def test_epochs_agree_to_the_tick(monkeypatch, replicas, rate_per_s):
    """Below 1024 s every tick is a float: a clock that begins anew moves no instant by more than rounding one sum of seconds does."""
    draw, builder = np.random.default_rng(3), TraceBuilder("drawn")
    for i, at in enumerate(np.cumsum(draw.exponential(1.0 / rate_per_s, int(900 * rate_per_s))).tolist()):
        builder.add(str(i), arrival_s=min(at, 1000.0), prompt_tokens=int(draw.integers(1, 3000)), output_tokens=int(draw.integers(1, 200)))
    trace, deployment = builder.build(), Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), replicas=replicas)
    study = Study(deployment, Workload(trace), load_rates(deployment, draws=2))
    pools = planned(study)
    whole = run_pools(study, pools, trace)
    monkeypatch.setattr(epochs, "LONGEST_S", 0.0)
    monkeypatch.setattr(epochs, "EPOCH_S", 60.0)
    parts = []
    monkeypatch.setattr(epochs, "_moved", lambda *given, moved=epochs._moved: parts.append(given) or moved(*given))
    record = run_pools(study, pools, trace)
    assert len(parts) > 5
    for name, column in whole.requests.items():
        np.testing.assert_allclose(record.requests[name], column, rtol=0.0, atol=TICK_S, err_msg=name)
    assert record.paid_s == pytest.approx(whole.paid_s, abs=TICK_S)
    assert record.request_ids == whole.request_ids
