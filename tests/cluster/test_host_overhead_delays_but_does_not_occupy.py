"""Host latencies come before the engine and after it; they are in TTFT once each, in TPOT and ITL not at all."""

import json

import numpy as np
import pytest

from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.results.metrics import pooled_itl_ms, request_latencies_ms
from tests.cli import run as cli
from tests.runs import run, trace_of

HOST = HostRates(request_s=0.004, prompt_token_s=0.0001, response_s=0.002, serial_s=0.0)


def test_by_hand():
    # host 4 ms + 10 x 0.1 ms, prefill 20 ms, 10 x 0.1 ms again, response 2 ms; two decodes of 11 ms from the prefill's end
    record, _ = run(trace_of([(1.0, 10, 3)]), EngineConfig(num_gpu_blocks=64), host=HOST)
    latency = request_latencies_ms(record)
    assert latency["ttft"] == pytest.approx([28.0])
    assert latency["tpot"] == pytest.approx([10.5])
    assert latency["e2el"] == pytest.approx([49.0])
    assert pooled_itl_ms(record)[0] == pytest.approx([11.0, 11.0])
    assert record.iterations["start_s"][0] == pytest.approx(1.005)


def test_requests_reach_the_engine_when_the_host_is_through_with_them():
    # the long prompt takes 50 ms to read, and the short one that comes 1 ms later waits for it
    record, _ = run(trace_of([(0.0, 500, 1), (0.001, 5, 1)]), EngineConfig(num_gpu_blocks=64), host=HOST)
    assert record.requests["submitted_s"] == pytest.approx([0.0545, 0.0545], abs=1e-3)
    assert record.requests["submitted_s"][0] < record.requests["submitted_s"][1]


def test_first_tokens_wait_until_the_prompts_of_all_new_ones_are_read_again_and_the_engine_goes_on():
    calls = [(0.0, 300, 1), (0.0, 200, 2), (0.0, 100, 30)]
    hosts = HostRates(0.1, 1e-4, 2e-3, 0.0), HostRates(0.1, 0.0, 2e-3, 0.0)
    read, unread = (run(trace_of(calls), EngineConfig(num_gpu_blocks=64), host=host)[0].requests for host in hosts)
    took_s = 0.06  # all 600 tokens, once before the engine and once more after it
    assert read["first_sampled_s"] - unread["first_sampled_s"] == pytest.approx([took_s] * 3)
    assert read["first_token_s"] - unread["first_token_s"] == pytest.approx([2 * took_s] * 3)
    # no token comes before the first; where the last comes later anyway, it comes as soon as it would
    later_s = np.where(read["output_tokens"] == 30, unread["finish_s"] + took_s, read["first_token_s"])
    assert read["finish_s"] == pytest.approx(later_s)


def test_a_closed_loop_waits_for_the_response():
    record, _ = run(trace_of([(0.0, 10, 2)] * 2), EngineConfig(num_gpu_blocks=64), host=HOST, max_concurrency=1)
    assert record.requests["arrival_s"][1] == pytest.approx(record.requests["finish_s"][0], abs=1e-12)


def test_absurd_rates_are_refused():
    for wrong in ({"request_s": -1.0}, {"response_s": float("nan")}, {"prompt_token_s": float("inf")}):
        with pytest.raises(UsageError, match="must be a finite time"):
            HostRates(**wrong)


ONE = (
    "--gpu",
    "H100",
    "--model",
    "Llama-3.1-8B",
    "--num-prompts",
    "1",
    "--random-input-len",
    "100",
    "--random-output-len",
    "11",
    "--draws",
    "0",
)


def simulated(*rates: str) -> dict:
    result = cli("simulate", *ONE, "--json", *(part for rate in rates for part in ("--host-rate", rate)))
    assert result.code == 0, result.stderr
    return json.loads(result.stdout)


def test_each_rate_can_be_set_by_its_name():
    base = simulated("request_s=0.001", "prompt_token_s=0", "response_s=0", "serial_s=0")
    slow = simulated("request_s=0.021", "prompt_token_s=0.0001", "response_s=0.005", "serial_s=0")
    assert slow["mean_ttft_ms"] - base["mean_ttft_ms"] == pytest.approx(20.0 + 20.0 + 5.0)
    assert slow["mean_tpot_ms"] == pytest.approx(base["mean_tpot_ms"] - 10.0 / 10)  # the engine does not wait for the second reading
    assert slow["provenance"]["host_request_s"] == 0.021
    assert slow["provenance"]["host_basis"].endswith("serial_s as given")


def test_an_engines_own_work_shows_where_the_gpu_waits_for_it():
    # longer than any iteration of this model: nothing hides it
    idle, busy = (simulated(f"iteration_s={seconds}", "sequence_s=0", "prefill_s=0") for seconds in (0, 0.05))
    assert busy["median_itl_ms"] == pytest.approx(50.0)
    # nothing follows the last iteration: its token waits for the GPU alone
    assert busy["mean_tpot_ms"] == pytest.approx((9 * 50.0 + idle["mean_tpot_ms"]) / 10, rel=0.02)


@pytest.mark.parametrize(
    ("rate", "message"),
    [("speed_s=1", "no rate 'speed_s'"), ("request_s", "needs NAME=SECONDS"), ("request_s=-1", "must be a finite time")],
)
def test_a_wrong_rate_is_one_line(rate, message):
    result = cli("simulate", *ONE, "--host-rate", rate)
    assert result.code == 2
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


def test_tokens_of_an_iteration_go_out_one_after_another_those_of_new_requests_last():
    # two still decode when the last one comes: its first token waits for theirs; who moves up is served sooner
    calls = [(0.0, 10, 5), (0.0, 10, 30), (0.0, 10, 30), (0.1, 10, 20)]
    alike, apart = (
        run(trace_of(calls), EngineConfig(num_gpu_blocks=64), host=HostRates(1e-3, 0.0, 1e-3, 0.0, token_s=token_s))[0].requests
        for token_s in (0.0, 1e-3)
    )
    waits = {name: 1e3 * (apart[name] - alike[name]) for name in ("first_token_s", "finish_s")}
    assert waits["first_token_s"] == pytest.approx([0.0, 1.0, 2.0, 2.0])
    assert waits["finish_s"] == pytest.approx([0.0, 0.0, 1.0, 2.0])


def test_tokens_wait_for_those_of_earlier_iterations_and_the_engine_does_not():
    # decodes take 11 ms and more, sending 40 ms a token: of two streams of 5 tokens the last is the tenth to go out
    ends = [
        run(trace_of([(0.0, 10, 5), (0.0, 10, 5)]), EngineConfig(num_gpu_blocks=64), host=HostRates(0.0, 0.0, 2e-3, 0.0, token_s=token_s))
        for token_s in (0.0, 0.04)
    ]
    (alone, _), (queued, _) = ends
    assert queued.requests["last_sampled_s"] == pytest.approx(alone.requests["last_sampled_s"])
    first_s = queued.requests["first_sampled_s"]
    assert queued.requests["first_token_s"] == pytest.approx(first_s + 0.002 + 0.04 * np.array([0, 1]))
    assert queued.requests["finish_s"] == pytest.approx(first_s + 0.002 + 0.04 * np.array([8, 9]))
