"""A p99 of a few seconds of the run is said to be so, with that of the others; one of the whole run is not."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.results.slowest import burst_of
from tests.cli import run

ASK = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "400", "--random-output-len", "40", "--draws", "0")


def _record(arrival_s, ttft_s):
    return SimpleNamespace(requests={"arrival_s": np.array(arrival_s), "first_token_s": np.array(arrival_s) + np.array(ttft_s)})


@given(start=st.floats(0.0, 900.0), slow_s=st.floats(0.5, 60.0), seed=st.integers(0, 99))
def test_a_burst_is_found_where_it_was_put(start, slow_s, seed):
    rng = np.random.default_rng(seed)
    arrival = np.concatenate([rng.uniform(0.0, 1000.0, 900), rng.uniform(start, start + 20.0, 100)])
    found = burst_of(_record(arrival, np.concatenate([np.full(900, 0.1), slow_s * rng.uniform(1.0, 1.2, 100)])))
    assert start <= found.from_s <= found.to_s <= start + 20.0
    assert found.others_p99_ms <= found.p99_ms
    assert found.p99_ms == pytest.approx(1e3 * slow_s * 1.1, rel=0.1)


@given(seed=st.integers(0, 99))
def test_no_burst_is_found_where_slowness_comes_all_through(seed):
    rng = np.random.default_rng(seed)
    assert burst_of(_record(rng.uniform(0.0, 1000.0, 1000), rng.lognormal(-1.0, 1.0, 1000))) is None


def test_a_closed_loop_says_that_its_p99_is_of_the_start():
    start = " ".join(run(*ASK, "--max-concurrency", "64", "--random-length-cv", "0.7").stdout.split())
    assert "P99 TTFT is of the 64 requests that came at once at the start; of the others it is" in start
    assert "P99 TTFT is of" not in run(*ASK, "--request-rate", "8").stdout
