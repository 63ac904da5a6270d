"""A run over time adds up to the run: no second, token, preemption or request is lost between bins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.errors import SimctlError
from sim.results.metrics import request_latencies_ms
from sim.results.series import run_series
from tests.cli import run as command
from tests.runs import calls, configs, run, trace_of


@given(calls, configs, st.integers(1, 40))
@settings(max_examples=60)
def test_totals(requests, config, bins):
    record, _ = run(trace_of(requests), config)
    series, log = run_series(record, bins), record.iterations
    assert series.output_tokens_per_s.sum() * series.width_s == pytest.approx(log["sampled"].sum())
    assert series.preemptions.sum() == log["preempted"].sum()
    for i, name in enumerate(record.term_names):
        assert series.busy[name].sum() * series.width_s == pytest.approx(record.terms[:, i].sum())
    ttft = request_latencies_ms(record)["ttft"]
    assert np.nanmin(series.ttft_p50_ms) >= ttft.min() * (1 - 1e-12)
    assert np.nanmax(series.ttft_p99_ms) <= ttft.max() * (1 + 1e-12)
    for name in ("running", "waiting", "kv_blocks_used"):
        values = getattr(series, name)
        assert np.nanmin(values) >= log[name].min() - 1e-9
        assert np.nanmax(values) <= log[name].max() + 1e-9


def test_by_hand():
    # two requests of one 1-token iteration each: 0.011 s from 0, and 0.011 s from 1
    record, _ = run(trace_of([(0.0, 1, 1), (1.0, 1, 1)]), EngineConfig(num_gpu_blocks=64))
    series = run_series(record, 2)
    assert series.running.tolist() == [1.0, 1.0]
    assert series.ttft_p50_ms == pytest.approx([11.0, 11.0])
    assert series.hit_rate.tolist() == [0.0, 0.0]
    assert series.width_s == pytest.approx(1.011 / 2)


def test_plot_is_whole_or_an_error(tmp_path):
    common = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "30", "--request-rate", "5", "--draws", "0")
    target = tmp_path / "run.svg"
    assert command(*common, "--plot", str(target)).code == 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.svg"]
    assert target.read_text().rstrip().endswith("</svg>")
    result = command(*common, "--plot", str(tmp_path / "run.xyz"))
    assert (result.code, result.stderr.count("\n")) == (2, 1)


def test_no_log_no_series():
    record, _ = run(trace_of([(0.0, 1, 1)]), EngineConfig(num_gpu_blocks=64), keep_iterations=False)
    with pytest.raises(SimctlError, match="no iteration log"):
        run_series(record)
