"""Peak concurrency and peak output throughput, on runs small enough to count by hand."""

import pytest

from sim.engine.config import EngineConfig
from sim.results.metrics import summarise
from tests.runs import AffinePrice, run, trace_of


def test_peaks():
    # half a second an iteration, whatever is in it: requests of 4 tokens live 2 s
    record, _ = run(trace_of([(0.0, 1, 4), (1.0, 1, 4), (1.0, 1, 4), (5.0, 1, 1)]), EngineConfig(num_gpu_blocks=64), AffinePrice(0.5, 0.0))
    figures = summarise(record)
    assert figures["max_concurrent_requests"] == 3
    # ends at .5 | 1, 1.5 | 2, 2.5 | 3 | 5.5: seconds [0,1) [1,2) [2,3) [3,4) sample 1, 1 + 3, 3 + 2, 2 tokens
    assert figures["max_output_tokens_per_s"] == 5.0
    assert figures["failed"] == 0


def test_a_finish_frees_its_place_before_a_send_of_the_same_instant():
    record, _ = run(trace_of([(0.0, 1, 1), (0.5, 1, 1), (1.0, 1, 1)]), EngineConfig(num_gpu_blocks=64), AffinePrice(0.5, 0.0))
    assert record.requests["finish_s"].tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert summarise(record)["max_concurrent_requests"] == 1
