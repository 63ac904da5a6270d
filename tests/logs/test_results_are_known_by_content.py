"""A result is known by what is in it, whatever it is called; one of means alone is a closed loop of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.logs.read import is_log, read_log
from calibrate.served.runs import Experiment
from sim.errors import UsageError
from tests.logs.made_logs import as_bench_serve, as_csv, made, rates_at


@pytest.fixture(scope="module")
def truth() -> Experiment:
    return made(rates_at({}), count=40)


def written(path: Path, body: Any) -> Path:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def rows(e: Experiment, row: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    columns = (e.arrival_s, e.ttft_s, e.e2el_s, e.prompt_tokens, e.output_tokens)
    return [row(*(value.item() for value in values)) for values in zip(*columns, strict=True)]


def as_inference_perf(e: Experiment) -> list[dict[str, Any]]:
    return rows(
        e,
        lambda sent, ttft, e2el, prompt, output: {
            "start_time": 5.0 + sent,
            "end_time": 5.0 + sent + e2el,
            "info": {"input_tokens": prompt, "output_tokens": output, "output_token_times": [5.0 + sent + ttft, 5.0 + sent + e2el]},
            "error": None,
        },
    )


def as_multi_turn(e: Experiment) -> list[dict[str, Any]]:
    return rows(
        e,
        lambda sent, ttft, e2el, prompt, output: {
            "ttft_ms": 1e3 * ttft,
            "latency_ms": 1e3 * e2el,
            "start_time_ms": 1e3 * sent,
            "input_num_tokens": prompt,
            "output_num_tokens": output,
        },
    )


def as_llmperf(e: Experiment) -> list[dict[str, Any]]:
    return rows(
        e,
        lambda sent, ttft, e2el, prompt, output: {
            "error_code": None,
            "ttft_s": ttft,
            "end_to_end_latency_s": e2el,
            "number_input_tokens": prompt,
            "number_output_tokens": output,
        },
    )


@pytest.mark.parametrize("name", ["result.jsonl", "result.json", "result.txt", "result"])
@pytest.mark.parametrize("make", [as_inference_perf, as_multi_turn, as_bench_serve])
def test_the_suffix_says_nothing(tmp_path: Path, truth: Experiment, name: str, make: Callable[[Experiment], Any]) -> None:
    path = written(tmp_path / name, make(truth))
    assert is_log(path)
    e = read_log(path).experiment
    np.testing.assert_array_equal(e.prompt_tokens, truth.prompt_tokens)
    for column in ("arrival_s", "ttft_s", "e2el_s"):
        np.testing.assert_allclose(getattr(e, column), getattr(truth, column), rtol=1e-5, atol=1e-6)


def test_sglang_appends_its_results_and_the_first_is_read(tmp_path: Path, truth: Experiment) -> None:
    first, second = (as_bench_serve(truth, backend="sglang", max_concurrency=n, start_times=None) for n in (8, 16))
    del first["errors"]
    log = read_log(written(tmp_path / "r.jsonl", json.dumps(first) + "\n" + json.dumps(second) + "\n"))
    assert log.experiment.clients == 8
    assert log.source == "SGLang's bench_serving"
    assert "the first of 2 results in the file" in log.notes


def test_llmperf_needs_to_be_told_its_clients(tmp_path: Path, truth: Experiment) -> None:
    path = written(tmp_path / "individual_responses.json", as_llmperf(truth))
    with pytest.raises(UsageError, match="no sending times: say how many requests were in flight"):
        read_log(path)
    log = read_log(path, clients=4)
    assert (log.experiment.kind, log.experiment.clients) == ("closed", 4)
    np.testing.assert_allclose(np.sort(log.experiment.ttft_s), np.sort(truth.ttft_s))


def test_means_alone_are_a_closed_loop_of_them(tmp_path: Path) -> None:
    body = {"hw": "h200", "tp": 8, "conc": 16, "isl": 1024, "osl": 512, "framework": "vllm", "mean_ttft": 0.2, "mean_tpot": 0.01}
    log = read_log(written(tmp_path / "agg.json", body))
    e = log.experiment
    assert (e.kind, e.clients, len(e.ttft_s)) == ("closed", 16, 160)
    assert set(e.prompt_tokens) == {1024}
    assert set(e.output_tokens) == {512}
    np.testing.assert_allclose(e.tpot_s, 0.01)
    assert "percentiles say nothing" in log.notes[0]
    assert "hw h200" in log.notes[1]
    metric = {"avg": 250.0, "unit": "ms"}
    lengths = {"input_sequence_length": {"avg": 550.2}, "output_sequence_length": {"avg": 256.0}}
    perf = {"time_to_first_token": metric, "request_latency": {"avg": 3e9, "unit": "ns"}, **lengths}
    path = written(tmp_path / "genai_perf.json", perf)
    with pytest.raises(UsageError, match="--max-concurrency"):
        read_log(path)
    assert read_log(path, clients=3).experiment.e2el_s[0] == pytest.approx(3.0)
    rated = perf | {"request_count": {"avg": 40.0}, "input_config": {"loadgen": {"request_rate": 5.0}}}
    e = read_log(written(tmp_path / "aiperf.json", rated)).experiment
    assert (e.kind, len(e.ttft_s), e.stated["e2el_s"]) == ("open", 40, pytest.approx(3.0))


def test_clients_come_from_the_limit_that_was_kept_full(tmp_path: Path, truth: Experiment) -> None:
    """A loop of 4: each client sends when its last answer came back."""
    free, sent = [0.0] * 4, []
    for e2el in truth.e2el_s.tolist():
        client = int(np.argmin(free))
        sent.append(free[client])
        free[client] += e2el
    busy = as_bench_serve(truth, start_times=sent, max_concurrency=4)
    log = read_log(written(tmp_path / "busy.json", busy))
    e = log.experiment
    assert (e.kind, e.clients) == ("closed", 4)
    assert e.session is not None
    assert set(e.session) == {0, 1, 2, 3}
    for client in range(4):
        mine = np.flatnonzero(e.session == client)
        np.testing.assert_allclose(e.arrival_s[mine[1:]], (e.arrival_s + e.e2el_s)[mine[:-1]], atol=1e-6)
    idle = read_log(written(tmp_path / "idle.json", as_bench_serve(truth, max_concurrency=500)))
    assert (idle.experiment.kind, idle.experiment.clients) == ("open", 0)
    assert "was not kept full" in idle.notes[0]


def test_a_csv_says_clients_and_prefixes(tmp_path: Path, truth: Experiment) -> None:
    head, *lines = as_csv(truth).splitlines()
    rows = [f"{line},{'ab'[i % 2]},1 2" for i, line in enumerate(lines)]
    log = read_log(written(tmp_path / "log.csv", "\n".join([f"{head},client,prefix_ids", *rows])), block_tokens=16)
    assert (log.experiment.kind, log.experiment.clients) == ("closed", 2)
    assert all(content is not None for content in log.experiment.content)
    with pytest.raises(UsageError, match="session and client"):
        read_log(written(tmp_path / "both.csv", f"{head},client,session\n"))


def test_an_assumed_prefix_is_shared_by_all(tmp_path: Path, truth: Experiment) -> None:
    content = read_log(written(tmp_path / "b.json", as_bench_serve(truth)), assume_prefix=64).experiment.content
    assert {(c.group, c.tokens) for c in content} == {("assumed", 64)}  # type: ignore[union-attr]


def test_what_is_no_result_names_all_that_are(tmp_path: Path) -> None:
    for body in ({"a": 1}, [{"a": 1}], []):
        with pytest.raises(UsageError, match="llmperf"):
            read_log(written(tmp_path / "x.json", body))


SUMMARY = {
    "num_prompts": 64,
    "request_rate": "inf",
    "max_concurrency": 16,
    "completed": 64,
    "total_input_tokens": 65536,
    "total_output_tokens": 16384,
    "mean_ttft_ms": 110.0,
    "p99_ttft_ms": 300.0,
    "mean_tpot_ms": 7.9,
    "request_throughput": 2.13,
}
PRINTED = """============ Serving Benchmark Result ============
Successful requests:                     64
Maximum request concurrency:             16
Total input tokens:                      65536
Total generated tokens:                  16384
Mean TTFT (ms):                          110.00
P99 TTFT (ms):                           300.00
Mean TPOT (ms):                          7.90
=================================================="""


@pytest.mark.parametrize("text", [json.dumps(SUMMARY), json.dumps(SUMMARY | {"backend": "sglang"}) + "\n", PRINTED])
def test_a_summary_is_the_load_and_the_figures_that_it_states(tmp_path: Path, text: str) -> None:
    e = read_log(written(tmp_path / "summary.txt", text)).experiment
    assert (e.kind, e.clients, len(e.ttft_s), set(e.prompt_tokens), set(e.output_tokens)) == ("closed", 16, 64, {1024}, {256})
    assert e.stated == pytest.approx({"ttft_s": 0.11, "tpot_s": 0.0079, "e2el_s": 0.11 + 255 * 0.0079, "p99_ttft_s": 0.3})


def test_a_summary_says_how_it_was_sent_or_is_taken_for_a_burst(tmp_path: Path) -> None:
    rated = SUMMARY | {"request_rate": 4.0, "max_concurrency": None}
    assert read_log(written(tmp_path / "a.json", json.dumps(rated))).experiment.rate_per_s != 0
    limit = "Maximum request concurrency:             16\n"
    for other in ("", "Max request concurrency:                 not set\n"):
        burst = read_log(written(tmp_path / "b.txt", PRINTED.replace(limit, other)))
        assert (burst.experiment.kind, burst.experiment.clients) == ("open", 0)
        assert any("all requests at once" in note for note in burst.notes)


@pytest.mark.parametrize("field", ["completed", "total_input_tokens", "total_output_tokens", "mean_tpot_ms"])
def test_what_a_summary_lacks_is_named(tmp_path: Path, field: str) -> None:
    body = {key: value for key, value in SUMMARY.items() if key != field}
    with pytest.raises(UsageError, match=f"lacks {field}" if field != "total_input_tokens" else "lacks ttfts"):
        read_log(written(tmp_path / "a.json", json.dumps(body)))
