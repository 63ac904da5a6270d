"""Any log by its content: JSON of a benchmark, JSON lines of AIPerf, or a per-request CSV."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from calibrate.logs.prefixes import BLOCK, with_prefixes
from calibrate.logs.requests import Log, Seen, assemble, checked
from calibrate.logs.tools import aiperf, bench_serve, guidellm
from calibrate.served.runs import LOG_COLUMNS
from calibrate.text_files import csv_rows, utf8
from sim.errors import UsageError

SUFFIXES = (".json", ".jsonl", ".csv")
MOST_BYTES = 1 << 30


def is_log(path: Path) -> bool:
    """Whether a file is a served log by its suffix (engine grids are netCDF)."""
    return path.suffix.lower() in SUFFIXES


def read_any(path: Path, timeout_s: float | None = None, block_tokens: int = BLOCK) -> Log:
    """Read a log. `timeout_s` is what clients waited for at most, where the log does not say; `block_tokens` what one of a CSV's
    `prefix_ids` stands for.

    Raises UsageError naming the file, the request and the field; OSError when it cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES >> 20} MiB")
    text = utf8(path, path.name)
    if path.suffix.lower() == ".csv":
        return _csv(path.name, text, block_tokens)
    if path.suffix.lower() == ".jsonl":
        return aiperf(path.name, text, timeout_s)
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path.name}: not JSON ({error.msg}, line {error.lineno})") from None
    except RecursionError:
        raise UsageError(f"{path.name}: not a benchmark result: nested too deep") from None
    if not isinstance(body, dict):
        raise UsageError(f"{path.name}: not a benchmark result: needs a JSON object")
    if "benchmarks" in body:
        return guidellm(path.name, body, timeout_s)
    if "input_lens" in body or "ttfts" in body or "request_throughput" in body:
        return bench_serve(path.name, body, timeout_s)
    if "experiments" in body:
        raise UsageError(f"{path.name}: genai-perf's raw export has no prompt token counts: use AIPerf's profile_export.jsonl")
    raise UsageError(f"{path.name}: not a result of vllm bench serve (ttfts), GuideLLM (benchmarks) or AIPerf (.jsonl)")


def _csv(name: str, text: str, block_tokens: int) -> Log:
    """Our own columns; a row with gave_up_s (same clock) may leave first_token_s and finish_s blank: its client gave up then."""
    columns, rows = csv_rows(text, name)
    missing = [c for c in LOG_COLUMNS if c not in columns]
    if missing:
        raise UsageError(f"{name}: line 1: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    seen = []
    for number, row in rows:
        where = f"{name}: line {number}"

        def value(column: str, row: dict[str, str | None] = row, where: str = where) -> float:
            try:
                return float(row.get(column) or "nan")
            except ValueError:
                raise UsageError(f"{where}: {column} must be a number, got {str(row.get(column))[:40]!r}") from None

        arrival, gave_up = value("arrival_s"), value("gave_up_s")
        tokens = [value("prompt_tokens"), value("output_tokens")]
        for column, count in zip(("prompt_tokens", "output_tokens"), tokens, strict=True):
            if not (math.isfinite(count) and count >= 1 and count == int(count)):
                raise UsageError(f"{where}: {column} must be a whole number from 1 up")
        if not math.isfinite(arrival):
            raise UsageError(f"{where}: arrival_s is missing")
        prompt, output = (int(count) for count in tokens)
        if math.isfinite(gave_up):
            seen.append(checked(where, Seen(arrival, prompt, output, waited_s=gave_up - arrival)))
        else:
            seen.append(checked(where, Seen(arrival, prompt, output, value("first_token_s") - arrival, value("finish_s") - arrival)))
    log = assemble(seen, name=name, source="per-request log")
    experiment, notes = with_prefixes(log.experiment, columns, rows, name, block_tokens)
    return replace(log, experiment=experiment, notes=(*log.notes, *notes))
