"""Readers of other tools' result files, by the layouts their documentation shows.

    vllm bench serve   --save-result --save-detailed, vLLM 0.6 to 0.11: input_lens, output_lens, ttfts (s), itls (s, per gap), errors,
                       request_rate, max_concurrency; start_times (s) since late 2025
    GuideLLM           benchmarks.json, 0.2 and 0.3 (start_time, first_token_time, end_time) and 0.4 (request_start_time, ...), seconds
    AIPerf             profile_export.jsonl, 0.1 to 0.3: one {"metadata": ..., "metrics": {NAME: {"value", "unit"}}} a line

Field names were written down from those layouts, not from files of every version: a field that is not there is an error that names it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from calibrate.logs.requests import Log, Seen, assemble, checked, first_of, number
from sim.errors import UsageError

UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "milliseconds": 1e-3, "nanoseconds": 1e-9}
TIMEOUT_WORDS = ("timeout", "timed out", "deadline", "cancel")


def bench_serve(name: str, body: Mapping[str, Any], timeout_s: float | None) -> Log:
    """`vllm bench serve` JSON. A failed request counts as given up after `timeout_s`, where that is given; else it is left out."""
    if not isinstance(body.get("ttfts"), list):
        raise UsageError(f"{name}: lacks ttfts: save it with --save-result --save-detailed")
    columns = {}
    for field in ("input_lens", "output_lens", "ttfts", "itls", "errors"):
        if not isinstance(body.get(field), list):
            raise UsageError(f"{name}: lacks {field}")
        columns[field] = body[field]
    starts = body.get("start_times")
    columns["start_times"] = starts if isinstance(starts, list) else [math.nan] * len(columns["ttfts"])
    if len({len(column) for column in columns.values()}) != 1:
        raise UsageError(f"{name}: its lists differ in length: {', '.join(f'{k} {len(v)}' for k, v in columns.items())}")
    seen, failed = [], 0
    for i, (prompt, output, ttft, gaps, error, start) in enumerate(zip(*columns.values(), strict=True)):
        where = f"{name}: request {i}"
        sent, prompt_tokens = number(where, "start_times", start), int(number(where, "input_lens", prompt))
        if error or not output:
            failed += 1
            if timeout_s is not None:
                asked = max(1, int(number(where, "output_lens", output)))
                seen.append(checked(where, Seen(sent, prompt_tokens, asked, waited_s=timeout_s)))
            continue
        if not isinstance(gaps, list):
            raise UsageError(f"{where}: itls must be a list of gaps")
        first = number(where, "ttfts", ttft)
        whole = first + sum(number(where, "itls", gap) for gap in gaps)
        seen.append(checked(where, Seen(sent, prompt_tokens, int(number(where, "output_lens", output)), first, whole)))
    rate = body.get("request_rate", "inf")
    return assemble(
        _with_typical_output(seen),
        name=name,
        source=f"vllm bench serve ({body.get('model_id', 'model not stated')})",
        notes=_failures(failed, timeout_s),
        rate_per_s=math.inf if str(rate) == "inf" or rate is None else number(name, "request_rate", rate),
        burstiness=float(body.get("burstiness") or 1.0),
        clients=int(body.get("max_concurrency") or 0),
    )


def guidellm(name: str, body: Mapping[str, Any], timeout_s: float | None) -> Log:
    """GuideLLM JSON; of several benchmarks the first with requests is read. Incomplete requests were given up when they ended."""
    benchmarks = body.get("benchmarks")
    if not isinstance(benchmarks, list) or not benchmarks:
        raise UsageError(f"{name}: lacks benchmarks")
    chosen: dict[str, list[Any]] | None = None
    for benchmark in benchmarks:
        groups = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if isinstance(groups, dict) and groups.get("successful"):
            chosen = groups
            break
    if chosen is None:
        raise UsageError(f"{name}: lacks benchmarks[].requests.successful: save it with all requests")
    seen, failed = [], 0
    for i, row in enumerate(chosen["successful"]):
        where = f"{name}: successful request {i}"
        start = first_of(where, row, ("start_time", "request_start_time"))
        end = first_of(where, row, ("end_time", "request_end_time"))
        prompt, output = _tokens(where, row)
        if row.get("time_to_first_token_ms") is not None:
            ttft = number(where, "time_to_first_token_ms", row["time_to_first_token_ms"]) * 1e-3
        else:
            ttft = first_of(where, row, ("first_token_time", "first_token_iteration")) - start
        seen.append(checked(where, Seen(start, prompt, output, ttft, end - start)))
    for kind in ("incomplete", "errored"):
        for i, row in enumerate(chosen.get(kind) or []):
            failed += 1
            where = f"{name}: {kind} request {i}"
            waited = timeout_s
            if kind == "incomplete":
                waited = first_of(where, row, ("end_time", "request_end_time")) - first_of(where, row, ("start_time", "request_start_time"))
            if waited is not None and row.get("prompt_tokens"):
                start = first_of(where, row, ("start_time", "request_start_time"))
                seen.append(checked(where, Seen(start, int(row["prompt_tokens"]), 1, waited_s=waited)))
    return assemble(_with_typical_output(seen), name=name, source="GuideLLM", notes=_failures(failed, timeout_s))


def aiperf(name: str, text: str, timeout_s: float | None) -> Log:
    """AIPerf profile_export.jsonl. A cancelled or timed-out request was given up at its end; other errors are left out."""
    seen, failed = [], 0
    for line_number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{name}: line {line_number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where}: not JSON ({error.msg})") from None
        except RecursionError:
            raise UsageError(f"{where}: nested too deep") from None
        if not isinstance(row, dict) or not isinstance(row.get("metadata"), dict):
            raise UsageError(f"{where}: lacks metadata: not a profile_export.jsonl record")
        meta, metrics = row["metadata"], row.get("metrics") or {}
        if meta.get("benchmark_phase", "profiling") != "profiling":
            continue
        start = number(where, "metadata.request_start_ns", meta.get("request_start_ns")) * 1e-9
        error_text = json.dumps(row["error"]).lower() if row.get("error") else ""
        if meta.get("was_cancelled") or error_text:
            failed += 1
            if meta.get("was_cancelled") or any(word in error_text for word in TIMEOUT_WORDS):
                end = number(where, "metadata.request_end_ns", meta.get("request_end_ns")) * 1e-9
                if "input_sequence_length" in metrics:
                    prompt = int(_metric(where, metrics, "input_sequence_length"))
                    seen.append(checked(where, Seen(start, prompt, 1, waited_s=end - start)))
            continue
        prompt, output = (int(_metric(where, metrics, f"{side}_sequence_length")) for side in ("input", "output"))
        ttft, whole = (_metric(where, metrics, m) for m in ("time_to_first_token", "request_latency"))
        seen.append(checked(where, Seen(start, prompt, output, ttft, whole)))
    return assemble(_with_typical_output(seen), name=name, source="AIPerf", notes=_failures(failed, timeout_s))


def _metric(where: str, metrics: Mapping[str, Any], name: str) -> float:
    """A metric in seconds or tokens."""
    entry = metrics.get(name)
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: lacks metrics.{name}")
    value, unit = number(where, f"metrics.{name}.value", entry.get("value")), str(entry.get("unit", ""))
    if name.endswith("_length"):
        return value
    if unit not in UNIT_S:
        raise UsageError(f"{where}: metrics.{name} is in {unit!r}, want one of {', '.join(UNIT_S)}")
    return value * UNIT_S[unit]


def _tokens(where: str, row: Mapping[str, Any]) -> tuple[int, int]:
    prompt = first_of(where, row, ("prompt_tokens", "input_tokens"))
    return int(prompt), int(first_of(where, row, ("output_tokens", "generated_tokens")))


def _with_typical_output(seen: list[Seen]) -> list[Seen]:
    """Requests that were given up, with the median output of those that were answered: what they asked for is not in the log."""
    from dataclasses import replace

    lengths = sorted(s.output_tokens for s in seen if not math.isfinite(s.waited_s))
    typical = lengths[len(lengths) // 2] if lengths else 1
    return [replace(s, output_tokens=max(s.output_tokens, typical)) if math.isfinite(s.waited_s) else s for s in seen]


def _failures(failed: int, timeout_s: float | None) -> list[str]:
    if not failed:
        return []
    if timeout_s is not None:
        return [f"{failed} requests failed; those without an end of their own count as given up after {timeout_s:g} s"]
    return [f"{failed} requests failed; those whose wait the file does not tell are left out (--timeout censors them)"]
