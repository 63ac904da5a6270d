"""Inputs of a report: a run, a plan, a posterior, a validation, a map or a replication, known by content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.netcdf import DamagedFileError, undamaged, whole
from sim.planning.plan_file import MARK, checked
from sim.rates.posterior import SCHEMA
from sim.results.run_files import FAMILY, RUN_FILE, read_run_dataset
from simctl.campaign.loop_gpu import FORMAT as LOOP
from simctl.report.page import ReportPart

MOST_BYTES = 64 << 20  # of a text
HDF = b"\x89HDF\r\n\x1a\n"
KINDS = (
    "simctl simulate --out, simctl plan -o or --json, simctl validate --json, simctl calibrate -o, simctl what-if --map --json, "
    "simctl replicate --json or simctl sweep -o"
)


def part_of(path: Path) -> ReportPart:
    """The part of a report that shows this file or folder. UsageError where it is no result of ours, OSError where it cannot be read."""
    from simctl.report import of_sweep

    file = path / RUN_FILE if path.is_dir() else path
    if (path / of_sweep.MARK).is_file():
        with undamaged(path):
            return of_sweep.part_of(path)
    if path.is_dir() and not file.is_file():
        raise UsageError(f"{path}: no {RUN_FILE} in it; a report shows what these save: {KINDS}")
    with file.open("rb") as handle:
        binary = handle.read(8) == HDF
    with undamaged(file):
        return _of_binary(file) if binary else _of_text(file)


def _of_binary(file: Path) -> ReportPart:
    import h5netcdf

    from simctl.report import of_posterior, of_run

    def marks() -> list[str]:
        with h5netcdf.File(file, "r") as opened:
            return [str(opened.attrs[name]) for name in ("schema", "format") if name in opened.attrs]

    try:
        found = whole(marks)
    except DamagedFileError as damage:
        raise UsageError(f"{file}: {damage}") from None
    if SCHEMA in found:
        return of_posterior.part_of(file)
    if any(each.startswith(FAMILY) for each in found):
        return of_run.part_of(*read_run_dataset(file))
    raise UsageError(f"{file}: neither a run nor a posterior; a report shows what these save: {KINDS}")


def _of_text(file: Path) -> ReportPart:
    from simctl.report import of_claims, of_compare, of_loop, of_plan, of_regime, of_validation

    text = text_of(file, MOST_BYTES)
    if text.startswith(of_validation.CSV_HEAD):
        return of_validation.part_of(of_validation.from_csv(text), file.name)
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{file}: no result of ours; a report shows what these save: {KINDS}") from None
    if isinstance(found, dict) and MARK in found:
        found = checked(found, str(file))["answer"]
    if isinstance(found, dict) and {"slo", "choices", "winner"} <= found.keys():
        return of_plan.part_of(found)
    if isinstance(found, dict) and {"slo", "cards", "cheapest"} <= found.keys():
        return of_compare.part_of(found)
    if isinstance(found, dict) and {"context_tokens", "batch", "speedup"} <= found.keys():
        return of_regime.part_of(found)
    if isinstance(found, dict) and found.get("format") == LOOP:
        return of_loop.part_of(found)
    if isinstance(found, list) and found and all(isinstance(each, dict) for each in found):
        if all("scores" in each for each in found):
            return of_validation.part_of(found, file.name)
        if all(each.keys() >= of_claims.KEYS for each in found):
            return of_claims.part_of(found)
    if isinstance(found, dict) and "mean_ttft_ms" in found:
        raise UsageError(f"{file}: the figures of a run alone; give the folder that simctl simulate --out wrote")
    raise UsageError(f"{file}: no result of ours; a report shows what these save: {KINDS}")
