"""ITL kept per iteration equals ITL computed token by token, stalls and preemptions included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.results.metrics import pooled_itl_ms, request_latencies_ms, statistics, weighted_percentiles
from tests.runs import calls, configs, run, trace_of


@given(calls, configs)
@settings(max_examples=150)
def test_against_the_token_times(requests, config):
    record, scheduler = run(trace_of(requests), config)
    ends = record.iterations["start_s"] + record.iterations["duration_s"]
    times = {name: ends[where] for name, where in scheduler.sampled_in.items()}
    expected = np.sort(1e3 * np.concatenate([np.diff(each) for each in times.values()]))
    values, weights = pooled_itl_ms(record)
    assert np.sort(np.repeat(values, weights)) == pytest.approx(expected, abs=1e-9)
    first = [times[name][0] for name in record.request_ids]
    last = [times[name][-1] for name in record.request_ids]
    assert record.requests["first_token_s"].tolist() == first
    assert record.requests["finish_s"].tolist() == last


def test_starvation_makes_stalls_that_the_pool_contains():
    from sim.engine.config import EngineConfig

    # three requests that outgrow ten blocks of 16: somebody is preempted in mid-decode
    config = EngineConfig(num_gpu_blocks=11, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=160)
    record, _ = run(trace_of([(0.0, 40, 40)] * 3), config)
    assert record.requests["preemptions"].sum() > 0
    assert len(record.stall_s) > 0
    assert (record.stall_s > 0).all()
    _, weights = pooled_itl_ms(record)
    assert weights.sum() == (record.requests["output_tokens"] - 1).sum()


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=40),
    st.lists(st.floats(0, 100), min_size=1, max_size=4),
)
def test_weighted_percentiles_are_numpys(pairs, percentiles):
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    expected = np.percentile(np.repeat(values, weights), percentiles)
    assert weighted_percentiles(values, weights, percentiles) == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_latencies_by_hand():
    from sim.engine.config import EngineConfig

    # prefill 10 tokens: 0.01 + 0.010; then two decodes of 0.011 each
    record, _ = run(trace_of([(1.0, 10, 3)]), EngineConfig(num_gpu_blocks=64))
    latency = request_latencies_ms(record)
    assert latency["ttft"] == pytest.approx([20.0])
    assert latency["tpot"] == pytest.approx([11.0])
    assert latency["e2el"] == pytest.approx([42.0])
    assert statistics("itl", *pooled_itl_ms(record))["p99_itl_ms"] == pytest.approx(11.0)
