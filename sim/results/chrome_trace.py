"""A run as a Chrome trace (for Perfetto): a process per replica, iterations as slices, queues as counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sim.files import replacing
from sim.results.record import RunRecord

ENGINE_TRACK, FIRST_REQUEST_TRACK = 0, 1
_COUNTERS = (("requests", ("running", "waiting")), ("KV blocks", ("kv_blocks_used",)))


def write_chrome_trace(path: Path, record: RunRecord) -> None:
    """Write the trace-event JSON of a run, event by event; it replaces `path` when it is whole. Times in microseconds."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for i, event in enumerate(events(record)):
            file.write((",\n" if i else "") + json.dumps(event, separators=(",", ":"), allow_nan=False))
        file.write("\n]}\n")


def events(record: RunRecord) -> Iterator[dict[str, Any]]:
    """The trace events: names, then iterations and counters in order of time, then requests."""
    replicas = sorted({int(r) for r in np.unique(np.asarray(record.requests["replica"]))})
    for replica in replicas:
        yield {"ph": "M", "pid": replica, "name": "process_name", "args": {"name": f"replica {replica}"}}
        yield {"ph": "M", "pid": replica, "tid": ENGINE_TRACK, "name": "thread_name", "args": {"name": "iterations"}}
    yield from _iterations(record)
    yield from _requests(record)


def _iterations(record: RunRecord) -> Iterator[dict[str, Any]]:
    log = record.iterations
    last: dict[tuple[int, str], tuple[int, ...]] = {}
    for i in range(len(log["start_s"])):
        row = {name: int(log[name][i]) for name in ("scheduled", "tokens", "prefill_tokens", "sampled", "admitted", "preempted")}
        replica, at = int(log["iteration_replica"][i]), 1e6 * float(log["start_s"][i])
        decodes = row["tokens"] - row["prefill_tokens"]
        parts = [f"prefill {row['prefill_tokens']}"] * bool(row["prefill_tokens"]) + [f"decode {decodes}"] * bool(decodes)
        terms = {f"{name} (us)": round(1e6 * float(v), 3) for name, v in zip(record.term_names, record.terms[i], strict=True) if v}
        yield {
            "ph": "X",
            "pid": replica,
            "tid": ENGINE_TRACK,
            "ts": at,
            "dur": 1e6 * float(log["duration_s"][i]),
            "name": " + ".join(parts),
            "args": row | terms,
        }
        for title, names in _COUNTERS:
            values = tuple(int(log[name][i]) for name in names)
            if last.get((replica, title)) != values:
                last[replica, title] = values
                yield {"ph": "C", "pid": replica, "ts": at, "name": title, "args": dict(zip(names, values, strict=True))}


def _requests(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Each request as nested asynchronous slices: the whole of it, and within it its wait, its prefill and its decode."""
    columns = record.requests
    for i, name in enumerate(record.request_ids):
        arrival, scheduled, first, finish = (float(columns[c][i]) for c in ("arrival_s", "scheduled_s", "first_token_s", "finish_s"))
        if not np.isfinite(finish):
            continue
        common = {"cat": "request", "id": i, "pid": int(columns["replica"][i]), "tid": FIRST_REQUEST_TRACK}
        facts = {c: int(columns[c][i]) for c in ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")}
        yield {"ph": "b", **common, "ts": 1e6 * arrival, "name": f"request {name}", "args": facts}
        for phase, begin, end in (("wait", arrival, scheduled), ("prefill", scheduled, first), ("decode", first, finish)):
            yield {"ph": "b", **common, "ts": 1e6 * begin, "name": phase}
            yield {"ph": "e", **common, "ts": 1e6 * end, "name": phase}
        yield {"ph": "e", **common, "ts": 1e6 * finish, "name": f"request {name}"}
