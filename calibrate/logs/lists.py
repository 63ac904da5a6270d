"""Result files that are one record per request: llmperf, inference-perf and vLLM's multi-turn benchmark.

llmperf         *_individual_responses.json: a list of ttft_s, end_to_end_latency_s, number_input_tokens, number_output_tokens; no times
inference-perf  per_request_lifecycle_metrics.json: a list of start_time, end_time and info (input_tokens, output_tokens,
                output_token_times), seconds on one clock
multi-turn      benchmark_serving_multi_turn.py: rows of ttft_ms, latency_ms, start_time_ms, input_num_tokens, output_num_tokens,
                conversation_id
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calibrate.logs.requests import LoggedRequest, ServedLog, assemble, count, failures, number, with_typical_output
from sim.errors import UsageError

Rows = Sequence[tuple[str, Mapping[str, Any]]]


def llmperf(name: str, rows: Rows, given: Mapping[str, Any]) -> ServedLog:
    """llmperf's individual responses. UsageError where nobody says how many clients there were: the file has no sending times."""
    if not given.get("clients"):
        raise UsageError(f"{name}: llmperf writes no sending times: say how many requests were in flight (--max-concurrency N)")
    seen, failed = [], 0
    for where, row in rows:
        prompt = count(where, "number_input_tokens", row.get("number_input_tokens"))
        if row.get("error_code") is not None or not row.get("number_output_tokens"):
            failed += 1
            continue
        output = count(where, "number_output_tokens", row.get("number_output_tokens"))
        ttft, whole = (number(where, field, row.get(field)) for field in ("ttft_s", "end_to_end_latency_s"))
        seen.append(LoggedRequest(where, math.nan, prompt, output, ttft, whole))
    return assemble(seen, name=name, source="llmperf", notes=failures(failed, None), **given)


def inference_perf(name: str, rows: Rows, given: Mapping[str, Any], timeout_s: float | None) -> ServedLog:
    """inference-perf's per-request metrics."""
    seen, failed = [], 0
    for where, row in rows:
        info = row.get("info")
        if not isinstance(info, dict):
            raise UsageError(f"{where}: lacks info")
        start, end = (number(where, field, row.get(field)) for field in ("start_time", "end_time"))
        prompt, times = count(where, "info.input_tokens", info.get("input_tokens")), info.get("output_token_times")
        if row.get("error"):
            failed += 1
            if timeout_s is not None:
                seen.append(LoggedRequest(where, start, prompt, 1, waited_s=timeout_s))
            continue
        if not isinstance(times, list) or not times:
            raise UsageError(f"{where}: lacks info.output_token_times: stream the answers")
        output = count(where, "info.output_tokens", info.get("output_tokens", len(times)))
        came = tuple(number(where, "info.output_token_times", each) - start for each in times)
        seen.append(LoggedRequest(where, start, prompt, output, came[0], max(came[0], end - start), token_s=came))
    return assemble(with_typical_output(seen), name=name, source="inference-perf", notes=failures(failed, timeout_s), **given)


def multi_turn(name: str, rows: Rows, given: Mapping[str, Any]) -> ServedLog:
    """vLLM's multi-turn benchmark: a conversation is a session, whose later prompts repeat all that was said before."""
    seen = []
    for where, row in rows:
        sent = number(where, "start_time_ms", row.get("start_time_ms")) * 1e-3
        ttft, whole = (number(where, field, row.get(field)) * 1e-3 for field in ("ttft_ms", "latency_ms"))
        prompt, output = (count(where, field, row.get(field)) for field in ("input_num_tokens", "output_num_tokens"))
        seen.append(LoggedRequest(where, sent, prompt, output, ttft, whole, session=str(row.get("conversation_id") or "")))
    return assemble(seen, name=name, source="vllm's multi-turn benchmark", **given)
