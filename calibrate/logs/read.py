"""Served logs by their content, not their suffix: results of benchmarks in JSON or JSON lines, or a CSV of one row per request."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.logs.bench_means import (
    bench_summary,
    genai_perf,
    inferencex,
    is_bench_summary,
    is_genai_perf,
    is_inferencex,
)
from calibrate.logs.lists import inference_perf, llmperf, multi_turn
from calibrate.logs.pasted import pasted_log
from calibrate.logs.requests import FEWEST, LoggedRequest, ServedLog, assemble, joined
from calibrate.logs.tools import aiperf, bench_serve, guidellm
from calibrate.served.runs import LOG_COLUMNS, ServedRun, read_experiments
from sim.errors import UsageError
from sim.files import text_of
from sim.json_text import MOST_VALUES, read_json
from sim.workload.content import BlockHashes, SystemPrompt
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace

SUFFIXES = (".json", ".jsonl", ".csv")
MOST_BYTES = 1 << 28
KNOWN = (
    "not a result of vllm bench serve, SGLang's bench_serving (ttfts), GuideLLM (benchmarks), AIPerf (metadata), llmperf "
    "(end_to_end_latency_s), inference-perf (info), genai-perf's summary, InferenceX (isl, osl, conc) or vLLM's multi-turn benchmark"
)
BLOCK = 512  # tokens of a block that one of prefix_ids stands for, by default: Mooncake's


def is_log(path: Path) -> bool:
    """Whether a file is a served log: anything but netCDF, which measurements of ours are. By its suffix where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4)[:3] not in (b"CDF", b"\x89HD")
    except OSError:
        return path.suffix.lower() in SUFFIXES


def measured_log(run: ServedRun) -> ServedLog:
    """The open loops of a measurement of ours as one log. UsageError where it has none."""
    loads = [e for e in run.experiments if e.kind == "open"]
    if not loads:
        raise UsageError(f"{run.name}: no open loop that is not void to learn from")
    note = f"{len(loads)} open loops of the measurement"
    return joined(
        [ServedLog(e, np.ones(len(e.ttft_s), dtype=np.bool_), np.full(len(e.ttft_s), np.nan), run.engine, (note,)) for e in loads]
    )


def read_log(
    path: Path,
    timeout_s: float | None = None,
    block_tokens: int = BLOCK,
    clients: int | None = None,
    assume_prefix: int = 0,
    fewest: int = FEWEST,
) -> ServedLog:
    """Read a log, whose tool its content tells. `timeout_s` is what clients waited for at most, where the log does not say; `block_tokens`
    what one of a CSV's `prefix_ids` stands for; `clients` how many requests were in flight, where it does not say; `assume_prefix` how many
    tokens prompts begin with alike, where nothing says what they share; `fewest` how many answered requests it must have.

    Raises UsageError naming the file, the request and the field; OSError when it cannot be read.
    """
    if not (text := text_of(path, MOST_BYTES, path.name)).strip():
        raise UsageError(f"{path.name}: an empty log")
    options = {"clients": clients, "assume_prefix": assume_prefix, "fewest": fewest}
    given: Mapping[str, Any] = {name: value for name, value in options.items() if value}
    if (pasted := pasted_log(text, given, path.name)) is not None:
        return pasted
    if text.lstrip()[:1] not in ("{", "["):
        if path.suffix.lower() in (".json", ".jsonl"):
            raise UsageError(f"{path.name}: not JSON: {KNOWN}")
        if "," not in text.lstrip().partition("\n")[0]:  # what another tool prints
            raise UsageError(f"{path.name}: {KNOWN}")
        return _csv(path.name, text, block_tokens, given)
    try:
        body = read_json(text)
    except ValueError as error:
        return _json_lines(path.name, text, timeout_s, given, error)
    if isinstance(body, list):
        return _records(path.name, body, timeout_s, given)
    return _object(path.name, body, timeout_s, given, text)


def _object(name: str, body: dict[str, Any], timeout_s: float | None, given: Mapping[str, Any], text: str) -> ServedLog:
    """One JSON object: a whole result, or the only line of one."""
    if "benchmarks" in body:
        return guidellm(name, body, timeout_s, given)
    if is_bench_summary(body):
        return bench_summary(name, body, given)
    if "input_lens" in body or "ttfts" in body or ("request_throughput" in body and not is_genai_perf(body)):
        return bench_serve(name, body, timeout_s, given)
    if is_inferencex(body):
        return inferencex(name, body, given)
    if is_genai_perf(body):
        return genai_perf(name, body, given)
    if "metadata" in body:
        return aiperf(name, text, timeout_s, given)
    if "experiments" in body:
        raise UsageError(f"{name}: genai-perf's raw export has no prompt token counts: use AIPerf's profile_export.jsonl")
    raise UsageError(f"{name}: {KNOWN}")


def _json_lines(name: str, text: str, timeout_s: float | None, given: Mapping[str, Any], error: ValueError) -> ServedLog:
    """JSON lines: AIPerf's records, or results of bench_serving, of which SGLang appends one for each of its runs."""
    first = text.lstrip().partition("\n")[0]
    try:
        body = read_json(first)
    except ValueError:
        raise UsageError(f"{name}: not JSON ({error})") from None
    if isinstance(body, dict) and ("ttfts" in body or "input_lens" in body or "request_throughput" in body):
        results = sum(1 for line in text.splitlines() if line.strip())
        log = bench_summary(name, body, given) if is_bench_summary(body) else bench_serve(name, body, timeout_s, given)
        return replace(log, notes=(*log.notes, f"the first of {results} results in the file")) if results > 1 else log
    return aiperf(name, text, timeout_s, given)


def _records(name: str, body: list[Any], timeout_s: float | None, given: Mapping[str, Any]) -> ServedLog:
    """A list of one record per request."""
    if len(body) == 1 and isinstance(body[0], dict) and is_inferencex(body[0]):
        return inferencex(name, body[0], given)
    rows = [(f"{name}: request {i}", row) for i, row in enumerate(body)]
    for where, row in rows:
        if not isinstance(row, dict):
            raise UsageError(f"{where}: not a JSON object")
    first = rows[0][1] if rows else {}
    if is_inferencex(first):
        raise UsageError(f"{name}: holds {len(rows)} aggregates: give one of them")
    if "end_to_end_latency_s" in first:
        return llmperf(name, rows, given)
    if "info" in first:
        return inference_perf(name, rows, given, timeout_s)
    if "ttft_ms" in first and "latency_ms" in first:
        return multi_turn(name, rows, given)
    raise UsageError(f"{name}: {KNOWN}")


def load_log(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """A log's requests as a trace, sent as they were; what the log leaves open is in its notes. Errors as read_log."""
    if not is_log(path):
        experiments = read_experiments(path)
        chosen = next((each for each in experiments if each.kind == "open"), experiments[0])
        return replace(chosen.trace(), notes=(f"experiment {chosen.name!r}, of {len(experiments)} that were measured",))
    log = read_log(path, block_tokens=options.prefix_block or BLOCK, assume_prefix=options.assume_prefix)
    clients = log.experiment.clients
    closed = (f"closed loop of {clients} clients: --max-concurrency {clients} keeps it closed",) if clients else ()
    return replace(log.experiment.trace(), notes=log.notes + closed)


def _csv(name: str, text: str, block_tokens: int, given: Mapping[str, Any]) -> ServedLog:
    """Rows of LOG_COLUMNS, absolute seconds on one clock; a row with gave_up_s may leave first_token_s and finish_s blank. Optional are
    cached_tokens and what prompts share.

    `client` says which of a fixed number of clients sent a request when its last answer came back; prompts do not grow by that. A
    session's later requests repeat all that was said before. Prompts of the same `system_prompt` begin with the same `system_tokens`
    tokens. `prefix_ids`, in place of both, are ids of consecutive blocks of the prompt, separated by spaces: prompts that begin with the
    same ids share that prefix.
    """
    columns, rows = csv_rows(text, name)
    if {"ttft_ms", "latency_ms", "conversation_id"} <= set(columns):
        return multi_turn(name, [(f"{name}: line {line}", row) for line, row in rows], given)
    if "session" in columns and "client" in columns:
        raise UsageError(f"{name}: line 1: session and client both say who waits for whom: give one")
    if missing := [c for c in LOG_COLUMNS if c not in columns]:
        raise UsageError(f"{name}: line 1: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    for column in ("session", "system_prompt"):
        if column in columns and "prefix_ids" in columns:
            raise UsageError(f"{name}: line 1: {column} and prefix_ids both say what prompts share: give one")
    if ("system_prompt" in columns) != ("system_tokens" in columns):
        raise UsageError(f"{name}: line 1: system_prompt and system_tokens come together")
    return assemble([_row(f"{name}: line {line}", row, block_tokens) for line, row in rows], name=name, source="per-request log", **given)


def _row(where: str, row: Row, block_tokens: int) -> LoggedRequest:
    def value(column: str) -> float:
        try:
            return float(row.get(column) or "nan")
        except ValueError:
            raise UsageError(f"{where}: {column} must be a number, got {str(row.get(column))[:40]!r}") from None

    arrival_s, gave_up_s, counts = value("arrival_s"), value("gave_up_s"), (value("prompt_tokens"), value("output_tokens"))
    if math.isnan(arrival_s):
        raise UsageError(f"{where}: arrival_s is missing")
    for column, count in zip(("prompt_tokens", "output_tokens"), counts, strict=True):
        if not (math.isfinite(count) and count == int(count)):
            raise UsageError(f"{where}: {column} must be a whole number from 1 up")
    prompt, output = map(int, counts)
    ids = (row.get("prefix_ids") or "").split()
    if len(ids) > -(-prompt // block_tokens):
        raise UsageError(f"{where}: {len(ids)} prefix_ids of {block_tokens} tokens are more than a prompt of {prompt} has")
    system, length = row.get("system_prompt") or "", value("system_tokens")
    if system and not (1 <= length <= prompt and length == int(length)):
        raise UsageError(f"{where}: system_tokens must be a whole number from 1 to the prompt's {prompt}")
    gave_up = math.isfinite(gave_up_s)
    return LoggedRequest(
        where,
        arrival_s,
        prompt,
        output,
        ttft_s=math.nan if gave_up else value("first_token_s") - arrival_s,
        e2el_s=math.nan if gave_up else value("finish_s") - arrival_s,
        waited_s=gave_up_s - arrival_s,
        cached_tokens=value("cached_tokens"),
        session=row.get("session") or "",
        client=row.get("client") or "",
        content=BlockHashes(tuple(ids), block_tokens) if ids else SystemPrompt(system, int(length)) if system else None,
    )


Row = dict[str, str | None]


def csv_rows(text: str, name: str) -> tuple[tuple[str, ...], list[tuple[int, Row]]]:
    """(columns, (line number, row) of every row below them). UsageError naming the line that cannot be split into fields."""
    if text.count(",") + 16 * text.count("\n") > MOST_VALUES:
        raise UsageError(f"{name}: more than {MOST_VALUES:,} values")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        columns = tuple(reader.fieldnames or ())
        return columns, [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise UsageError(f"{name}: line {reader.line_num}: {error}") from None
