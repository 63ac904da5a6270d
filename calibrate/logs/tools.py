"""Readers of other tools' result files, by the layouts their documentation shows.

    vllm bench serve   --save-result --save-detailed, vLLM 0.6 to 0.11: input_lens, output_lens, ttfts (s), itls (s, per gap), errors,
                       request_rate, max_concurrency; start_times (s) since late 2025. SGLang's bench_serving --output-details has the
                       same names
    GuideLLM           benchmarks.json, 0.2 and 0.3 (start_time, first_token_time, end_time) and 0.4 (request_start_time, ...), seconds
    AIPerf             profile_export.jsonl, 0.1 to 0.3: one {"metadata": ..., "metrics": {NAME: {"value", "unit"}}} a line

Field names were written down from those layouts, not from files of every version: a field that is not there is an error that names it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from calibrate.logs.requests import LoggedRequest, ServedLog, assemble, count, failures, first_of, number, with_typical_output
from sim.errors import UsageError
from sim.json_text import read_json

UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "milliseconds": 1e-3, "nanoseconds": 1e-9}
TIMEOUT_WORDS = ("timeout", "timed out", "deadline", "cancel")
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "errors")
NOTHING: Mapping[str, Any] = {}
START, END = ("start_time", "request_start_time"), ("end_time", "request_end_time")


def bench_serve(name: str, body: Mapping[str, Any], timeout_s: float | None, given: Mapping[str, Any] = NOTHING) -> ServedLog:
    """`vllm bench serve` JSON. A failed request counts as given up after `timeout_s`, where that is given; else it is left out."""
    sglang = body.get("backend") == "sglang"
    if not isinstance(body.get("ttfts"), list):
        details = "--output-details" if sglang else "--save-result --save-detailed"
        raise UsageError(f"{name}: lacks ttfts: save it with {details}")
    if "errors" not in body:
        body = {**body, "errors": [""] * len(body["ttfts"])}
    if missing := [field for field in LISTS if not isinstance(body.get(field), list)]:
        raise UsageError(f"{name}: lacks {', '.join(missing)}")
    columns = {field: body[field] for field in LISTS}
    starts = body.get("start_times")
    columns["start_times"] = starts if isinstance(starts, list) else [math.nan] * len(columns["ttfts"])
    if len({len(column) for column in columns.values()}) != 1:
        raise UsageError(f"{name}: its lists differ in length: {', '.join(f'{k} {len(v)}' for k, v in columns.items())}")
    seen, failed = [], 0
    for i, (prompt, output, ttft, gaps, error, start) in enumerate(zip(*columns.values(), strict=True)):
        where = f"{name}: request {i}"
        sent, lengths = number(where, "start_times", start), (count(where, "input_lens", prompt), count(where, "output_lens", output))
        if error or not output:
            failed += 1
            if timeout_s is not None:
                seen.append(LoggedRequest(where, sent, lengths[0], max(1, lengths[1]), waited_s=timeout_s))
            continue
        if not isinstance(gaps, list):
            raise UsageError(f"{where}: itls must be a list of gaps")
        first = number(where, "ttfts", ttft)
        came = tuple(accumulate((number(where, "itls", gap) for gap in gaps), initial=first))
        seen.append(LoggedRequest(where, sent, *lengths, first, came[-1], token_s=came))
    rate = math.inf if body.get("request_rate") in (None, "inf") else number(name, "request_rate", body["request_rate"])
    burstiness = number(name, "burstiness", body["burstiness"]) if body.get("burstiness") else 1.0
    for field, value, most in (("request_rate", rate, math.inf), ("burstiness", burstiness, 1e6)):
        if not 1e-6 <= value <= most:
            raise UsageError(f"{name}: {field} must be a number above 0, got {value:g}")
    return assemble(
        with_typical_output(seen),
        name=name,
        source="SGLang's bench_serving" if sglang else f"vllm bench serve ({body.get('model_id', 'model not stated')})",
        notes=failures(failed, timeout_s),
        rate_per_s=rate,
        burstiness=burstiness,
        model_id=str(body.get("model_id") or ""),
        **{**given, "clients": given.get("clients") or count(name, "max_concurrency", body.get("max_concurrency") or 0)},
    )


def guidellm(name: str, body: Mapping[str, Any], timeout_s: float | None, given: Mapping[str, Any] = NOTHING) -> ServedLog:
    """GuideLLM JSON; of several benchmarks the first with requests is read. Incomplete requests were given up when they ended."""
    benchmarks = body.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise UsageError(f"{name}: lacks benchmarks")
    groups = [each["requests"] for each in benchmarks if isinstance(each, dict) and isinstance(each.get("requests"), dict)]
    chosen = next((group for group in groups if group.get("successful")), None)
    if chosen is None:
        raise UsageError(f"{name}: lacks benchmarks[].requests.successful: save it with all requests")
    seen = []
    for where, row in _records(name, chosen, "successful"):
        start, end = first_of(where, row, START), first_of(where, row, END)
        prompt = count(where, "prompt_tokens", first_of(where, row, ("prompt_tokens", "input_tokens")))
        output = count(where, "output_tokens", first_of(where, row, ("output_tokens", "generated_tokens")))
        if row.get("time_to_first_token_ms") is not None:
            ttft = number(where, "time_to_first_token_ms", row["time_to_first_token_ms"]) * 1e-3
        else:
            ttft = first_of(where, row, ("first_token_time", "first_token_iteration")) - start
        seen.append(LoggedRequest(where, start, prompt, output, ttft, end - start))
    failed = [*_records(name, chosen, "incomplete"), *_records(name, chosen, "errored")]
    for i, (where, row) in enumerate(failed):
        incomplete = i < len(chosen.get("incomplete") or [])
        if row.get("prompt_tokens") and (incomplete or timeout_s is not None):
            start = first_of(where, row, START)
            waited = first_of(where, row, END) - start if incomplete else timeout_s
            seen.append(LoggedRequest(where, start, count(where, "prompt_tokens", row["prompt_tokens"]), 1, waited_s=waited or 0.0))
    return assemble(with_typical_output(seen), name=name, source="GuideLLM", notes=failures(len(failed), timeout_s), **given)


def aiperf(name: str, text: str, timeout_s: float | None, given: Mapping[str, Any] = NOTHING) -> ServedLog:
    """AIPerf profile_export.jsonl. A cancelled or timed-out request was given up at its end; other errors are left out."""
    seen, failed = [], 0
    line_number, at = 1, 0
    for match in re.finditer(r"[^\n]+", text):  # not line by line: a file of nothing but line ends takes no time
        line_number, at, line = line_number + text.count("\n", at, match.start()), match.start(), match[0]
        if not line.strip():
            continue
        where = f"{name}: line {line_number}"
        try:
            row = read_json(line)
        except ValueError as error:
            raise UsageError(f"{where}: not JSON ({error})") from None
        if not isinstance(row, dict) or not isinstance(row.get("metadata"), dict):
            raise UsageError(f"{where}: lacks metadata: not a profile_export.jsonl record")
        meta, metrics = row["metadata"], row.get("metrics") or {}
        if not isinstance(metrics, dict):
            raise UsageError(f"{where}: metrics is no object")
        if meta.get("benchmark_phase", "profiling") != "profiling":
            continue
        start = number(where, "metadata.request_start_ns", meta.get("request_start_ns")) * 1e-9
        error_text = json.dumps(row["error"]).lower() if row.get("error") else ""
        if meta.get("was_cancelled") or error_text:
            failed += 1
            waited = meta.get("was_cancelled") or any(word in error_text for word in TIMEOUT_WORDS)
            if waited and "input_sequence_length" in metrics:
                end = number(where, "metadata.request_end_ns", meta.get("request_end_ns")) * 1e-9
                seen.append(LoggedRequest(where, start, int(_metric(where, metrics, "input_sequence_length")), 1, waited_s=end - start))
            continue
        prompt, output = (int(_metric(where, metrics, f"{side}_sequence_length")) for side in ("input", "output"))
        ttft, whole = (_metric(where, metrics, m) for m in ("time_to_first_token", "request_latency"))
        seen.append(LoggedRequest(where, start, prompt, output, ttft, whole))
    return assemble(with_typical_output(seen), name=name, source="AIPerf", notes=failures(failed, timeout_s), **given)


def _records(name: str, groups: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(where, record) of the requests of one kind. UsageError for a record that is no object."""
    rows = groups.get(kind) or []
    named = [(f"{name}: {kind} request {i}", row) for i, row in enumerate(rows if isinstance(rows, list) else [rows])]
    for where, row in named:
        if not isinstance(row, dict):
            raise UsageError(f"{where}: not a JSON object")
    return named


def _metric(where: str, metrics: Mapping[str, Any], name: str) -> float:
    """A metric in seconds or tokens."""
    entry = metrics.get(name)
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: lacks metrics.{name}")
    value, unit = number(where, f"metrics.{name}.value", entry.get("value")), str(entry.get("unit", ""))
    if name.endswith("_length"):
        return count(where, f"metrics.{name}.value", value)
    if unit not in UNIT_S:
        raise UsageError(f"{where}: metrics.{name} is in {unit!r}, want one of {', '.join(UNIT_S)}")
    return value * UNIT_S[unit]
