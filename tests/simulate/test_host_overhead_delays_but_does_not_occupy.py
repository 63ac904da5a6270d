"""Host latencies come before the engine and after it; they are in TTFT once each, in TPOT and ITL not at all."""

import numpy as np
import pytest

from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.host import HostRates
from sim.metrics import pooled_itl_ms, request_latencies_ms
from tests.simulate.runs import run, trace_of

HOST = HostRates(request_s=0.004, prompt_token_s=0.0001, response_s=0.002, serial_s=0.0)


def test_by_hand():
    # host 4 ms + 10 x 0.1 ms, prefill 20 ms, response 2 ms; then two decodes of 11 ms
    record, _ = run(trace_of([(1.0, 10, 3)]), EngineConfig(num_gpu_blocks=64), host=HOST)
    latency = request_latencies_ms(record)
    assert latency["ttft"] == pytest.approx([27.0])
    assert latency["tpot"] == pytest.approx([11.0])
    assert latency["e2el"] == pytest.approx([49.0])
    assert pooled_itl_ms(record)[0] == pytest.approx([11.0, 11.0])
    assert record.iterations["start_s"][0] == pytest.approx(1.005)


def test_requests_reach_the_engine_when_the_host_is_through_with_them():
    # the long prompt arrives first and is tokenised longer, so the short one overtakes it
    record, _ = run(trace_of([(0.0, 500, 1), (0.001, 5, 1)]), EngineConfig(num_gpu_blocks=64, max_num_seqs=1), host=HOST)
    assert np.argsort(record.requests["scheduled_s"]).tolist() == [1, 0]


def test_a_closed_loop_waits_for_the_response():
    record, _ = run(trace_of([(0.0, 10, 2)] * 2), EngineConfig(num_gpu_blocks=64), host=HOST, max_concurrency=1)
    assert record.requests["arrival_s"][1] == pytest.approx(record.requests["finish_s"][0], abs=1e-12)


def test_absurd_rates_are_refused():
    for wrong in ({"request_s": -1.0}, {"response_s": float("nan")}, {"prompt_token_s": float("inf")}):
        with pytest.raises(UsageError, match="must be a finite time"):
            HostRates(**wrong)
