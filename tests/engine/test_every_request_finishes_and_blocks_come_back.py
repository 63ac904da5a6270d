"""Every arrived request finishes or is resident, whatever the load, and a drained engine holds no KV block."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runs import calls, configs, run, trace_of


@given(calls, configs, st.none() | st.integers(1, 4))
@settings(max_examples=150)
def test_a_drained_run_has_finished_everything(requests, config, max_concurrency):
    trace = trace_of(requests)
    record, scheduler = run(trace, config, max_concurrency=max_concurrency)
    assert len(record.request_ids) == len(trace)
    assert np.isfinite(record.requests["finish_s"]).all()
    assert (record.requests["generated_tokens"] == record.requests["output_tokens"]).all()
    assert sorted(record.requests["output_tokens"]) == sorted(trace.output_tokens)
    assert scheduler.unfinished() == 0
    assert scheduler.kv_blocks_used() == 0


@given(calls, configs)
@settings(max_examples=60)
def test_times_of_a_request_are_in_order(requests, config):
    record, _ = run(trace_of(requests), config)
    columns = record.requests
    assert (columns["arrival_s"] <= columns["scheduled_s"]).all()
    assert (columns["scheduled_s"] < columns["first_token_s"]).all()
    assert (columns["first_token_s"] <= columns["finish_s"]).all()


@given(calls, configs, st.floats(0.001, 3.0))
@settings(max_examples=60)
def test_a_run_cut_short_leaves_the_rest_resident(requests, config, horizon_s):
    trace = trace_of(requests)
    record, scheduler = run(trace, config, horizon_s=horizon_s)
    arrived = len(record.request_ids)
    finished = int(np.isfinite(record.requests["finish_s"]).sum())
    assert arrived == (trace.arrival_s <= horizon_s).sum()
    assert arrived - finished == scheduler.unfinished()
    assert (record.iterations["start_s"] + record.iterations["duration_s"] <= horizon_s + 1e-12).all()


@given(calls, configs)
@settings(max_examples=60)
def test_tokens_computed_are_prompts_and_outputs_and_what_preemption_repeats(requests, config):
    record, _ = run(trace_of(requests), config)
    columns, log = record.requests, record.iterations
    needed = int((columns["prompt_tokens"] + columns["output_tokens"] - 1 - columns["cached_tokens"]).sum())
    assert log["sampled"].sum() == columns["output_tokens"].sum()
    assert log["admitted"].sum() == len(columns["turn"]) + log["preempted"].sum()
    assert log["preempted"].sum() == columns["preemptions"].sum()
    if log["preempted"].sum():
        assert log["tokens"].sum() >= needed
    else:
        assert log["tokens"].sum() == needed
