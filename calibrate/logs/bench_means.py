"""Result files of means alone: InferenceX (InferenceMAX) aggregates, genai-perf's summary, and the summary that `vllm bench serve` and
SGLang's bench_serving print, or write as JSON without the lists of single requests.

They say nothing of single requests, so they are read as a constraint: a closed loop of the concurrency stated, in which each request has
the stated lengths and the mean times. Means are compared; there are no percentiles to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from calibrate.logs.requests import LoggedRequest, ServedLog, assemble, count, number
from sim.errors import UsageError

MOST_REQUESTS = 100_000
ROUNDS, FEWEST, MOST = 10, 20, 2000  # requests a client sends, as InferenceX does, and within what bounds
ONLY_MEANS = "means alone: each request of a closed loop is given the mean times, and percentiles say nothing"


def is_inferencex(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an InferenceX aggregate."""
    return "isl" in body and "osl" in body and "conc" in body


def is_genai_perf(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object is genai-perf's summary."""
    return all(isinstance(body.get(metric), dict) for metric in ("time_to_first_token", "request_latency"))


def inferencex(name: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> ServedLog:
    """An aggregate of InferenceX: hw, tp, conc, isl, osl and mean_ttft, mean_tpot, mean_e2el in seconds."""
    prompt, output, clients = (count(name, field, body.get(field)) for field in ("isl", "osl", "conc"))
    ttft = number(name, "mean_ttft", body.get("mean_ttft"))
    if body.get("mean_e2el") is not None:
        whole = number(name, "mean_e2el", body["mean_e2el"])
    else:
        whole = ttft + (output - 1) * number(name, "mean_tpot", body.get("mean_tpot"))
    said = [f"{field} {body[field]}" for field in ("hw", "framework", "model", "precision", "tp", "ep", "image") if body.get(field)]
    notes = [ONLY_MEANS, f"it says {', '.join(said)}: check them against the options"]
    return _loop(name, "InferenceX", clients, (prompt, output, ttft, whole), notes, {**given, "model_id": str(body.get("model") or "")})


def genai_perf(name: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> ServedLog:
    """genai-perf's profile_export_genai_perf.json, or AIPerf's; concurrency or rate are in its input_config, or the first is asked for."""

    def mean(metric: str) -> float:
        entry = body.get(metric)
        if not isinstance(entry, dict):
            raise UsageError(f"{name}: lacks {metric}")
        scale = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}.get(str(entry.get("unit")), 1.0)
        return number(name, f"{metric}.avg", entry.get("avg")) * scale

    config = body.get("input_config") or {}
    load = (config.get("perf_analyzer") or {}).get("stimulus") or config.get("loadgen") or {}  # genai-perf's, AIPerf's
    clients = given.get("clients") or load.get("concurrency") or 0
    lengths = round(mean("input_sequence_length")), round(mean("output_sequence_length"))
    times = mean("time_to_first_token"), mean("request_latency")
    if not clients and load.get("request_rate"):
        requests = count(name, "request_count.avg", (body.get("request_count") or {}).get("avg"))
        tokens = dict(zip(("total_input_tokens", "total_output_tokens"), (requests * each for each in lengths), strict=True))
        means = dict(zip(("mean_ttft_ms", "mean_e2el_ms"), (1e3 * each for each in times), strict=True))
        return bench_summary(name, {"completed": requests, "request_rate": load["request_rate"], **tokens, **means}, given)
    if not clients:
        raise UsageError(f"{name}: lacks the concurrency and the request_rate of its input_config: say it with --max-concurrency N")
    return _loop(name, "genai-perf", count(name, "concurrency", clients), (*lengths, *times), [ONLY_MEANS], given)


# Lines of the printed summary -> names of the JSON
PRINTED = {
    "Successful requests": "completed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Mean TTFT (ms)": "mean_ttft_ms",
    "P99 TTFT (ms)": "p99_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms",
    "Mean E2EL (ms)": "mean_e2el_ms",
    "Mean E2E Latency (ms)": "mean_e2el_ms",
}


def is_bench_summary(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a result of a benchmark without its lists of single requests."""
    return "mean_ttft_ms" in body and "total_input_tokens" in body and not isinstance(body.get("ttfts"), list)


def printed_summary(text: str) -> dict[str, Any] | None:
    """The printed block as the JSON of the same result; None for another text."""
    if "Serving Benchmark Result" not in text:
        return None
    found: dict[str, Any] = {}
    for line in text.splitlines():
        what, colon, value = line.rpartition(":")
        if colon and what.strip() in PRINTED and value.strip() != "not set":
            said = value.split()[0] if value.split() else ""
            found[PRINTED[what.strip()]] = said if said == "inf" or not said else _printed_number(said)
    return found


def _printed_number(text: str) -> Any:
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def bench_summary(name: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> ServedLog:
    """A summary of bench serve: requests, tokens in all, mean TTFT and TPOT, and how they were sent, where it says so.

    Without a rate and a limit of concurrency all requests are taken to be sent at once. UsageError naming what it lacks.
    """

    def said(field: str) -> float:
        if body.get(field) in (None, ""):
            raise UsageError(f"{name}: lacks {field}: a summary needs it")
        return number(name, field, body[field])

    requests = count(name, "completed", body.get("completed"))
    if not 1 <= requests <= MOST_REQUESTS:
        raise UsageError(f"{name}: {requests} completed requests are not 1 to {MOST_REQUESTS}")
    prompt, output = (max(1, round(said(field) / requests)) for field in ("total_input_tokens", "total_output_tokens"))
    ttft = said("mean_ttft_ms") / 1e3
    whole = next((body[field] for field in ("mean_e2el_ms", "mean_e2e_latency_ms") if body.get(field)), None)
    e2el = number(name, "mean_e2el_ms", whole) / 1e3 if whole is not None else ttft + (output - 1) * said("mean_tpot_ms") / 1e3
    rate = math.inf if body.get("request_rate") in (None, "inf") else number(name, "request_rate", body["request_rate"])
    clients = given.get("clients") or (count(name, "max_concurrency", body["max_concurrency"]) if body.get("max_concurrency") else 0)
    notes = [ONLY_MEANS]
    if not clients and not math.isfinite(rate):
        notes.append("neither a rate nor a concurrency is in it: all requests at once, unless --max-concurrency says otherwise")
    seen = [LoggedRequest(f"{name}: request {i}", math.nan, prompt, output, ttft, e2el) for i in range(requests)]
    how: dict[str, Any] = {**given, "clients": min(clients, requests)} if clients else {**given, "rate_per_s": rate}
    how["stated"] = _means(output, ttft, e2el)
    if body.get("p99_ttft_ms"):
        how["stated"]["p99_ttft_s"] = said("p99_ttft_ms") / 1e3
    return assemble(
        seen,
        name=name,
        source=f"a summary ({body.get('model_id') or 'model not stated'})",
        notes=notes,
        model_id=str(body.get("model_id") or ""),
        **how,
    )


def _loop(
    name: str, source: str, clients: int, each: tuple[int, int, float, float], notes: list[str], given: Mapping[str, Any]
) -> ServedLog:
    if not 1 <= clients <= MOST:
        raise UsageError(f"{name}: a concurrency of {clients} is not 1 to {MOST}")
    requests = min(max(ROUNDS * clients, FEWEST), MOST)
    seen = [LoggedRequest(f"{name}: request {i}", math.nan, *each) for i in range(requests)]
    return assemble(seen, name=name, source=source, notes=notes, **{**given, "clients": clients}, stated=_means(*each[1:]))


def _means(output: int, ttft: float, e2el: float) -> dict[str, float]:
    """Mean times by metric, seconds; that of a token after the first only where there is one."""
    tpot = {"tpot_s": (e2el - ttft) / (output - 1)} if output > 1 and e2el > ttft else {}
    return {"ttft_s": ttft, **tpot, "e2el_s": e2el}
