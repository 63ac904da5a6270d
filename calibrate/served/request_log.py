"""A per-request log of any engine (CSV) as a served run of one experiment."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from calibrate.served.runs import LOG_COLUMNS, LONGEST_S, MOST_TOKENS, Experiment, ServedRun
from calibrate.text_files import Row, csv_rows, utf8
from sim.deployment import Limits
from sim.errors import UsageError
from sim.precision import Precision
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec


def read_log(path: Path, gpu: GpuSpec, model: ModelSpec, precision: Precision, limits: Limits, tp: int = 1) -> ServedRun:
    """Read a per-request log, CSV with the columns arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s (all absolute seconds
    on one clock) and optionally cached_tokens. Raises UsageError naming the line.
    """
    columns, lines = csv_rows(utf8(path, path.name), path.name)
    missing = [c for c in LOG_COLUMNS if c not in columns]
    if missing:
        raise UsageError(f"{path.name}: line 1: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
    rows = [_log_row(path.name, number, row) for number, row in lines]
    if not rows:
        raise UsageError(f"{path.name}: no requests")
    rows.sort(key=lambda r: r["arrival_s"])
    if not rows[-1]["arrival_s"] - rows[0]["arrival_s"] < LONGEST_S:
        raise UsageError(f"{path.name}: arrivals span {rows[-1]['arrival_s'] - rows[0]['arrival_s']:g} s: not in seconds?")
    column = {name: np.array([r[name] for r in rows]) for name in LOG_COLUMNS}
    cached = np.array([r["cached_tokens"] for r in rows]) if all("cached_tokens" in r for r in rows) else None
    experiment = Experiment(
        name=path.stem,
        kind="open",
        arrival_s=column["arrival_s"],
        prompt_tokens=column["prompt_tokens"].astype(np.int64),
        output_tokens=column["output_tokens"].astype(np.int64),
        ttft_s=column["first_token_s"] - column["arrival_s"],
        e2el_s=column["finish_s"] - column["arrival_s"],
        cached_tokens=cached,
    )
    return ServedRun(path.stem, gpu, model, precision, limits, tp, "per-request log", (experiment,))


def _log_row(name: str, number: int, row: Row) -> dict[str, float]:
    values: dict[str, float] = {}
    for column in (*LOG_COLUMNS, "cached_tokens"):
        text = row.get(column)
        if text is None or text == "":
            if column == "cached_tokens":
                continue
            raise UsageError(f"{name}: line {number}: {column} is missing")
        try:
            values[column] = float(text)
        except ValueError:
            raise UsageError(f"{name}: line {number}: {column} must be a number, got {text[:40]!r}") from None
        if not math.isfinite(values[column]):
            raise UsageError(f"{name}: line {number}: {column} must be finite, got {text!r}")
    for column in ("prompt_tokens", "output_tokens"):
        if not 1 <= values[column] <= MOST_TOKENS or values[column] != int(values[column]):
            raise UsageError(f"{name}: line {number}: {column} must be a whole number from 1 up")
    if values["arrival_s"] < 0:
        raise UsageError(f"{name}: line {number}: arrival_s is negative ({values['arrival_s']:g} s)")
    if not values["arrival_s"] < values["first_token_s"] <= values["finish_s"]:
        raise UsageError(f"{name}: line {number}: needs arrival_s < first_token_s <= finish_s")
    if not values["finish_s"] - values["arrival_s"] < LONGEST_S:
        raise UsageError(f"{name}: line {number}: takes {values['finish_s'] - values['arrival_s']:g} s: not in seconds?")
    return values
