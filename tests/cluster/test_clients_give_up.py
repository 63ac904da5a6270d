"""Clients give up: the engine drops their requests as if they were not there from then on, and the run counts them as failed."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.admission import Admission, AdmissionLimits
from sim.cluster.replica import Change, SteppedEngine
from sim.cluster.router import make_router
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import make_scheduler
from sim.engine.step_clock import StepTime
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.results.metrics import summarise
from sim.specs.precision import Precision
from sim.workload.formats import load_trace
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.examples import examples
from tests.price.shapes import QWEN_7B, plausible_rates
from tests.runs import AffinePrice, Listed, calls, run_fast

CONFIG = EngineConfig(num_gpu_blocks=60, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=4096)
SYNC = {"async_scheduling": False}
HOST = HostRates(request_s=0.001, response_s=0.004, serial_s=0.002)


def engines(count=1, **limits):
    config = EngineConfig(num_gpu_blocks=60, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=4096, **limits)
    return [SteppedEngine(make_scheduler(config), AffinePrice()) for _ in range(count)]


def run(requests, own=None, **more):
    own = own or engines()
    return simulate(Listed(requests), own, **more), own


@pytest.mark.parametrize("options", [SYNC, {}])
def test_a_cancelled_request_frees_its_blocks_and_counts_as_failed(options):
    own = engines(options=options)
    record, _ = run([Request("stays", 0.0, 40, 20), Request("goes", 0.0, 40, 500, cancel_s=0.5)], own)
    scheduler = own[0].scheduler
    assert (scheduler.unfinished(), scheduler.kv_blocks_used()) == (0, 0)
    figures = summarise(record)
    assert (figures["completed"], figures["failed"], figures["cancelled"], figures["total_output_tokens"]) == (1, 1, 1, 20)
    assert record.requests["cancelled_s"].tolist()[1] == 0.5
    assert np.isnan(record.requests["finish_s"]).tolist() == [False, True]
    assert 0 < record.requests["generated_tokens"][1] < 500
    assert figures["duration"] == 0.5  # until the last client has left, as `vllm bench serve` measures it
    ends = record.iterations["start_s"] + record.iterations["duration_s"]
    assert ends.max() < 0.53  # what was under way or decided


@pytest.mark.parametrize("options", [SYNC, {}])
def test_others_go_on_as_if_it_had_not_been_there(options):
    """A request that gives up before anybody else comes leaves nothing behind but its contents in the prefix cache."""
    rest = [(1.0 + 0.01 * i, 30 + 7 * i, 10 + i) for i in range(8)]

    def later():
        return [Request(f"r{i}", at, prompt, output) for i, (at, prompt, output) in enumerate(rest)]

    calm, _ = run(later(), engines(options=options))
    record, _ = run([Request("goes", 0.0, 200, 400, cancel_s=0.7), *later()], engines(options=options))
    for name in ("scheduled_s", "first_token_s", "finish_s", "preemptions"):
        np.testing.assert_array_equal(record.requests[name][1:], calm.requests[name])


def test_one_that_gives_up_while_waiting_is_never_computed():
    own = engines(options=SYNC)
    blocked = [Request(f"r{i}", 0.0, 16, 30) for i in range(4)]
    calm, _ = run([Request(f"r{i}", 0.0, 16, 30) for i in range(4)], engines(options=SYNC))
    record, _ = run([*blocked, Request("goes", 0.0, 16, 30, cancel_s=0.2)], own)
    assert np.isnan(record.requests["scheduled_s"][4])
    np.testing.assert_array_equal(record.requests["finish_s"][:4], calm.requests["finish_s"])
    assert record.iterations["tokens"].sum() == calm.iterations["tokens"].sum()


@settings(max_examples=examples(150))
@given(
    calls,
    st.lists(st.sampled_from([0.01, 0.1, 0.3, 1.0, 5.0, math.inf]), min_size=25, max_size=25),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 3]),
    st.sampled_from([{}, {"dispatch_s": 0.02, "reserve_s": 0.02}, {"dispatch_s": 0.2, "snapshot_s": 0.1}]),
    st.sampled_from([(), (Change(0.4, 1, "fail"), Change(0.6, 0, "fail"), Change(0.9, 2, "start"))]),
)
def test_all_come_through_in_time_or_fail_and_nothing_stays_behind(given_calls, patience, ahead, hosted, clients, routing, changes):
    builder = TraceBuilder("test")
    for i, ((arrival_s, prompt, output), cancel_s) in enumerate(zip(sorted(given_calls), patience, strict=False)):
        builder.add(f"call {i}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, cancel_s=cancel_s)
    trace = builder.build()
    own = engines(3, options={"async_scheduling": ahead})
    router = make_router("least-requests", 3, 16, 60, routing)
    record = simulate(
        TraceSource(trace, 16),
        own,
        router=router,
        host=HOST if hosted else HostRates(),
        max_concurrency=clients,
        admission=Admission(AdmissionLimits(max_queue=1000)),
        changes=list(changes),
    )
    assert all((load.requests, load.pending_prefill_tokens, load.ongoing_tokens) == (0, 0, 0) for load in router._loads)
    columns = record.requests
    assert len(record.request_ids) == len(trace)
    finished, cancelled = ~np.isnan(columns["finish_s"]), ~np.isnan(columns["cancelled_s"])
    assert (finished ^ cancelled).all()
    of = {name: patience[i] for i, name in enumerate(trace.request_ids)}
    waits = np.array([of[name] for name in record.request_ids])
    assert (columns["finish_s"] <= columns["arrival_s"] + waits)[finished].all()
    np.testing.assert_array_equal(columns["cancelled_s"][cancelled], (columns["arrival_s"] + waits)[cancelled])
    assert (columns["generated_tokens"][finished] == columns["output_tokens"][finished]).all()
    for index, engine in enumerate(own):
        if not changes or index == 2:
            assert (engine.scheduler.unfinished(), engine.scheduler.kv_blocks_used()) == (0, 0)


def test_a_turn_that_is_given_up_ends_its_session_and_frees_its_client(tmp_path):
    lines = [
        {"arrival_s": 0.0, "prompt_tokens": 20, "output_tokens": 5, "session_id": "s", "cancel_s": 9.0},
        {"prompt_tokens": 30, "output_tokens": 300, "session_id": "s", "cancel_s": 0.3},
        {"prompt_tokens": 40, "output_tokens": 5, "session_id": "s"},
        {"arrival_s": 0.1, "prompt_tokens": 20, "output_tokens": 5},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = load_trace(path, "jsonl")
    assert trace.cancel_s == [9.0, 0.3, math.inf, math.inf]
    record = simulate(TraceSource(trace, 16), engines(), max_concurrency=1)
    assert record.request_ids == ["0", "1", "3"]  # and no third turn
    assert record.requests["arrival_s"][2] == pytest.approx(record.requests["cancelled_s"][1])  # at the same tick
    assert summarise(record)["failed"] == 1
    path.write_text('{"arrival_s": 0.0, "prompt_tokens": 1, "output_tokens": 1, "cancel_s": 0}\n')
    with pytest.raises(UsageError, match="line 1: a client gives up after a finite time above 0"):
        load_trace(path, "jsonl")


def test_a_full_queue_has_room_again():
    """What gave up before its first token waits for none."""
    limits = Admission(AdmissionLimits(max_queue=1))
    record, _ = run([Request("goes", 0.0, 750, 5, cancel_s=0.05), Request("stays", 0.1, 16, 5)], admission=limits)
    assert record.requests["rejected"].tolist() == [0, 0]
    assert np.isfinite(record.requests["finish_s"][1])


def test_engines_that_cannot_drop_requests_say_so_and_the_fast_path_stands_aside():
    with pytest.raises(UsageError, match="cannot drop requests; vllm can"):
        run([Request("r", 0.0, 16, 5, cancel_s=1.0)], [SteppedEngine(make_scheduler(EngineConfig("sglang")), AffinePrice())])
    builder = TraceBuilder("test")
    builder.add("call", arrival_s=0.0, prompt_tokens=16, output_tokens=5, cancel_s=1.0)
    assert run_fast(builder.build(), CONFIG, StepTime(QWEN_7B, Precision(), plausible_rates()), HostRates()) is None
