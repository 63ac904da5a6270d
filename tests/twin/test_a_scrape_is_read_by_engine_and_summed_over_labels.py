"""A scrape is read by engine and summed over labels; what it lacks is named."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import SimctlError
from sim.twin.prometheus import Histogram, Snapshot, read_snapshot, window_between

VLLM = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0"} 0.2
vllm:kv_cache_usage_perc{engine="1"} 0.4
vllm:prompt_tokens_total{engine="0"} %(prompt)d
vllm:generation_tokens_total{engine="0"} %(output)d
vllm:request_success_total{finished_reason="stop"} %(stop)d
vllm:request_success_total{finished_reason="length"} 2.0
vllm:time_to_first_token_seconds_bucket{le="0.1",engine="0"} %(quick)d
vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0"} %(all)d
vllm:time_to_first_token_seconds_sum{engine="0"} %(first)f
vllm:request_time_per_output_token_seconds_bucket{le="0.05"} %(all)d
vllm:request_time_per_output_token_seconds_bucket{le="+Inf"} %(all)d
vllm:request_time_per_output_token_seconds_sum 1.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} %(all)d
vllm:e2e_request_latency_seconds_sum %(whole)f
"""
BEFORE = {"prompt": 1000, "output": 50, "stop": 8, "quick": 6, "all": 10, "first": 1.0, "whole": 30.0}
AFTER = {"prompt": 3000, "output": 450, "stop": 18, "quick": 12, "all": 20, "first": 2.0, "whole": 90.0}


def test_gauges_counters_and_histograms_are_sums_and_shares_are_means() -> None:
    found = read_snapshot(VLLM % BEFORE, 5.0)
    assert (found.engine, found.running, found.waiting) == ("vllm", 7.0, 1.0)
    assert found.kv_share == pytest.approx(0.3)
    assert found.counters == {"prompt_tokens": 1000, "output_tokens": 50, "finished": 10}
    assert found.histograms["ttft_s"] == Histogram((0.1, math.inf), (6, 10), 1.0)


def test_a_window_has_mean_lengths_of_what_came_in_it() -> None:
    window = window_between(read_snapshot(VLLM % BEFORE, 5.0), read_snapshot(VLLM % AFTER, 15.0))
    assert window is not None
    assert (window.seconds, window.arrivals, window.finished) == (10.0, 10.0, 10.0)
    assert (window.prompt_tokens, window.output_tokens) == (200.0, 40.0)
    assert window.latency["ttft_s"].mean_s == pytest.approx(0.1)
    assert window.decoding == pytest.approx((60.0 - 1.0) / 10.0)  # 6 s each, 0.1 of them before the first token


def test_the_cached_share_is_of_the_window() -> None:
    def scrape(values: dict[str, float], found: int, asked: int, at_s: float) -> Snapshot:
        return read_snapshot(
            VLLM % values + f'vllm:prefix_cache_hits_total{{engine="0"}} {found}\nvllm:prefix_cache_queries_total{{engine="0"}} {asked}\n',
            at_s,
        )

    window = window_between(scrape(BEFORE, 900, 1000, 5.0), scrape(AFTER, 1400, 3000, 15.0))
    assert window is not None
    assert window.cached_share == pytest.approx(0.25)
    plain = window_between(read_snapshot(VLLM % BEFORE, 5.0), read_snapshot(VLLM % AFTER, 15.0))
    assert plain is not None
    assert plain.cached_share == 0.0


def test_counters_that_fall_are_a_server_that_began_anew() -> None:
    assert window_between(read_snapshot(VLLM % AFTER, 5.0), read_snapshot(VLLM % BEFORE, 15.0)) is None


@pytest.mark.parametrize("name", ["num_requests_waiting", "prompt_tokens_total", "time_to_first_token_seconds_bucket"])
def test_a_name_that_lacks_is_named(name: str) -> None:
    text = "\n".join(line for line in (VLLM % BEFORE).splitlines() if f"vllm:{name}" not in line)
    with pytest.raises(SimctlError, match=f"vllm:{name.removesuffix('_total')}"):
        read_snapshot(text, 0.0)


@pytest.mark.parametrize("text", ["", "<html>", "up 1\nprocess_cpu_seconds_total 3", '{"a": 1}'])
def test_what_is_no_engines_is_refused(text: str) -> None:
    with pytest.raises(SimctlError, match="no metrics of an engine"):
        read_snapshot(text, 0.0)


@given(st.text(alphabet=st.sampled_from('vllm:_{}="0123456789.eE+-Infa \n#'), max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(SimctlError):
        read_snapshot(VLLM % BEFORE + text, 0.0)


@given(st.lists(st.floats(1e-4, 20.0), min_size=1, max_size=200), st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    bounds = (0.001, 0.01, 0.1, 1.0, 10.0, math.inf)
    found = Histogram(bounds, tuple(float(sum(v <= b for v in values)) for b in bounds), sum(values))
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    at = next(i for i, b in enumerate(bounds) if true <= b)
    low, high = (bounds[at - 1] if at else 0.0), bounds[at]
    assert low <= found.quantile_s(share) <= min(high, 10.0)
