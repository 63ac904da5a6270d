"""The page of a run does not grow with its requests: distributions are quantiles, and time is bins."""

import numpy as np
import pytest

from sim.errors import UsageError
from sim.results.record import RunRecord
from sim.results.run_files import CHUNK_VARIABLES, EVENT_VARIABLES, ITERATION_VARIABLES, REQUEST_VARIABLES, to_dataset
from simctl.report.of_run import part_of
from simctl.report.page import render


def made_up(count, iterations):
    """A run that nobody simulated: requests every millisecond, iterations without a gap."""
    rng = np.random.default_rng(0)
    requests = {name: np.zeros(count) for name in REQUEST_VARIABLES}
    requests["arrival_s"] = np.arange(count) / 1e3
    for name, after in (
        ("reached_s", 0.001),
        ("submitted_s", 0.002),
        ("scheduled_s", 0.01),
        ("first_sampled_s", 0.04),
        ("first_token_s", 0.05),
    ):
        requests[name] = requests["arrival_s"] + after * (1 + rng.random(count))
    requests["last_sampled_s"] = requests["finish_s"] = requests["first_token_s"] + rng.random(count)
    requests["cancelled_s"] = np.full(count, np.nan)
    requests["prompt_tokens"], requests["generated_tokens"] = np.full(count, 100), np.full(count, 10)
    log = {name: np.ones(iterations) for name in ITERATION_VARIABLES}
    log["duration_s"] = np.full(iterations, count / 1e3 / max(iterations, 1))
    log["start_s"] = log["decided_s"] = np.arange(iterations) * log["duration_s"]
    log["iteration_replica"] = np.arange(iterations) % 400.0
    log["scheduled"] = log["running"] = rng.integers(1, 200, iterations).astype(float)
    log["prefill_tokens"] = np.zeros(iterations)
    none = {name: np.empty(0) for name in CHUNK_VARIABLES}, {name: np.empty(0) for name in EVENT_VARIABLES}
    names = [f"request {i}" for i in range(count)]
    terms = np.stack([log["duration_s"] / 2] * 2, axis=1)
    return RunRecord(names, [None] * count, requests, log, ("weights", "kv"), terms, np.empty(0), (), *none, ("round-robin",))


def test_size():
    few, many = (render([part_of(record, to_dataset(record, {}))], "") for record in (made_up(2_000, 4_000), made_up(200_000, 300_000)))
    assert len(many) < 1.05 * len(few)
    assert len(many.encode()) < 1_500_000


@pytest.mark.slow
def test_ten_million_requests():
    """Six gigabytes, and two minutes."""
    record = made_up(10_000_000, 2_000_000)
    assert len(render([part_of(record, to_dataset(record, {}))], "").encode()) < 1_500_000


@pytest.mark.parametrize(("count", "iterations"), [(1, 0), (1, 1), (2, 1)])
def test_short_runs_are_whole(count, iterations):
    record = made_up(count, iterations)
    text = render([part_of(record, to_dataset(record, {}))], "")
    assert "</html>" in text
    assert "NaN" not in text.split("<script>")[0]


def test_a_run_of_no_request_says_so():
    record = made_up(0, 0)
    with pytest.raises(UsageError, match="no request"):
        part_of(record, to_dataset(record, {}))
