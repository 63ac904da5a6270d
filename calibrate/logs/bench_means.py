"""Result files of means alone: InferenceX (InferenceMAX) aggregates and genai-perf's summary.

They say nothing of single requests, so they are read as a constraint: a closed loop of the concurrency stated, in which each request has
the stated lengths and the mean times. Means are compared; there are no percentiles to compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from calibrate.logs.requests import LoggedRequest, ServedLog, assemble, count, number
from sim.errors import UsageError

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
    return _loop(name, "InferenceX", clients, (prompt, output, ttft, whole), notes, given)


def genai_perf(name: str, body: Mapping[str, Any], given: Mapping[str, Any]) -> ServedLog:
    """genai-perf's profile_export_genai_perf.json; the concurrency is in its input_config, or asked for."""

    def mean(metric: str) -> float:
        entry = body.get(metric)
        if not isinstance(entry, dict):
            raise UsageError(f"{name}: lacks {metric}")
        scale = {"ms": 1e-3, "us": 1e-6, "ns": 1e-9, "s": 1.0}.get(str(entry.get("unit")), 1.0)
        return number(name, f"{metric}.avg", entry.get("avg")) * scale

    stimulus = ((body.get("input_config") or {}).get("perf_analyzer") or {}).get("stimulus") or {}
    clients = given.get("clients") or stimulus.get("concurrency") or 0
    if not clients:
        raise UsageError(f"{name}: lacks input_config.perf_analyzer.stimulus.concurrency: say it with --max-concurrency N")
    lengths = round(mean("input_sequence_length")), round(mean("output_sequence_length"))
    times = mean("time_to_first_token"), mean("request_latency")
    return _loop(name, "genai-perf", count(name, "concurrency", clients), (*lengths, *times), [ONLY_MEANS], given)


def _loop(
    name: str, source: str, clients: int, each: tuple[int, int, float, float], notes: list[str], given: Mapping[str, Any]
) -> ServedLog:
    if not 1 <= clients <= MOST:
        raise UsageError(f"{name}: a concurrency of {clients} is not 1 to {MOST}")
    requests = min(max(ROUNDS * clients, FEWEST), MOST)
    seen = [LoggedRequest(f"{name}: request {i}", math.nan, *each) for i in range(requests)]
    return assemble(seen, name=name, source=source, notes=notes, **{**given, "clients": clients})
