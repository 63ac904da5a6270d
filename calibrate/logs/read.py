"""Served logs by their content: JSON of a benchmark, JSON lines of AIPerf, or a CSV of one row per request."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from calibrate.logs.requests import Log, Seen, assemble
from calibrate.logs.tools import aiperf, bench_serve, guidellm
from calibrate.served.runs import LOG_COLUMNS
from calibrate.text_files import Row, csv_rows
from sim.errors import UsageError
from sim.files import text_of
from sim.json_text import read_json
from sim.workload.content import BlockHashes, SystemPrompt
from sim.workload.options import DEFAULT, LoadOptions
from sim.workload.trace import Trace

SUFFIXES = (".json", ".jsonl", ".csv")
MOST_BYTES = 1 << 28
BLOCK = 512  # tokens of a block that one of prefix_ids stands for, unless told: Mooncake's


def is_log(path: Path) -> bool:
    """Whether a file is a served log by its suffix (engine grids are netCDF)."""
    return path.suffix.lower() in SUFFIXES


def read_log(path: Path, timeout_s: float | None = None, block_tokens: int = BLOCK) -> Log:
    """Read a log. `timeout_s` is what clients waited for at most, where the log does not say; `block_tokens` what one of a CSV's
    `prefix_ids` stands for.

    Raises UsageError naming the file, the request and the field; OSError when it cannot be read.
    """
    text = text_of(path, MOST_BYTES, path.name)
    if path.suffix.lower() == ".csv":
        return _csv(path.name, text, block_tokens)
    if path.suffix.lower() == ".jsonl":
        return aiperf(path.name, text, timeout_s)
    try:
        body = read_json(text)
    except ValueError as error:
        raise UsageError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(body, dict):
        raise UsageError(f"{path.name}: not a benchmark result: needs a JSON object")
    if "benchmarks" in body:
        return guidellm(path.name, body, timeout_s)
    if "input_lens" in body or "ttfts" in body or "request_throughput" in body:
        return bench_serve(path.name, body, timeout_s)
    if "experiments" in body:
        raise UsageError(f"{path.name}: genai-perf's raw export has no prompt token counts: use AIPerf's profile_export.jsonl")
    raise UsageError(f"{path.name}: not a result of vllm bench serve (ttfts), GuideLLM (benchmarks) or AIPerf (.jsonl)")


def load_log(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """A log's requests as a trace, sent as they were; what the log leaves open is in its notes. Errors as read_log."""
    log = read_log(path)
    clients = log.experiment.clients
    closed = (f"closed loop of {clients} clients: --max-concurrency {clients} keeps it closed",) if clients else ()
    return replace(log.experiment.trace(), notes=log.notes + closed)


def _csv(name: str, text: str, block_tokens: int) -> Log:
    """Rows of LOG_COLUMNS, absolute seconds on one clock; a row with gave_up_s may leave first_token_s and finish_s blank. Optional are
    cached_tokens and what prompts share.

    A session's later requests repeat all that was said before. Prompts of the same `system_prompt` begin with the same `system_tokens`
    tokens. `prefix_ids`, in place of both, are ids of consecutive blocks of the prompt, separated by spaces: prompts that begin with the
    same ids share that prefix.
    """
    columns, rows = csv_rows(text, name)
    if missing := [c for c in LOG_COLUMNS if c not in columns]:
        raise UsageError(f"{name}: line 1: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    for column in ("session", "system_prompt"):
        if column in columns and "prefix_ids" in columns:
            raise UsageError(f"{name}: line 1: {column} and prefix_ids both say what prompts share: give one")
    if ("system_prompt" in columns) != ("system_tokens" in columns):
        raise UsageError(f"{name}: line 1: system_prompt and system_tokens come together")
    return assemble([_row(f"{name}: line {line}", row, block_tokens) for line, row in rows], name=name, source="per-request log")


def _row(where: str, row: Row, block_tokens: int) -> Seen:
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
    times = {"ttft_s": value("first_token_s") - arrival_s, "e2el_s": value("finish_s") - arrival_s}
    return Seen(
        where,
        arrival_s,
        prompt,
        output,
        **({"waited_s": gave_up_s - arrival_s} if math.isfinite(gave_up_s) else times),
        cached_tokens=value("cached_tokens"),
        session=row.get("session") or "",
        content=BlockHashes(tuple(ids), block_tokens) if ids else SystemPrompt(system, int(length)) if system else None,
    )
