"""Served runs that options mean: which, read how, validated against what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calibrate.logs.read import is_log
from calibrate.measured_files import VALIDATION, served_files
from calibrate.served.in_processes import in_processes
from calibrate.served.left_out import LeftOut, left_out
from calibrate.served.runs import ServedRun, read_served
from calibrate.served.time_units import check_times
from calibrate.served.validation import ValidationReport, ValidationSettings, validate
from sim.errors import UsageError
from sim.files import package_path
from sim.rates.serving import parse_overhead
from sim.specs.lookup import did_you_mean
from simctl.from_options.logs import read_served_log, served_by
from simctl.from_options.questions import host_of

PACKAGED = "data/measured"
Progress = Callable[[int, int], None] | None


def _packaged() -> dict[str, Path]:
    root = package_path("scenarios", PACKAGED)
    return {f"{p.parent.name}/{p.stem}": p for p in sorted(root.glob("*/served_*.nc"))}


def chosen_runs(name: str | None) -> list[Path]:
    """The packaged run of this name, this file, or all packaged runs. Raises UsageError for an unknown name."""
    packaged = _packaged()
    if name is None:
        if not packaged:
            raise UsageError("served runs come with the source tree, not with an installed package: give one with --run FILE")
        return list(packaged.values())
    if name in packaged:
        return [packaged[name]]
    if Path(name).is_file():
        return [Path(name)]
    raise UsageError(
        f"unknown run {name!r}{did_you_mean(name, tuple(packaged)) or ';'} known: {', '.join(packaged) or 'none'}; or the path of a file"
    )


def left_out_of_all(paths: list[Path], draws: int, report: Progress) -> list[LeftOut]:
    """Errors of every run with parts of its deployment left out of all that was learnt, and of those that nothing was learnt from."""
    paths = [*paths, *(path for path in served_files() if path.parent.name == VALIDATION)]
    return [each for several in in_processes(_left_out_of, paths, (draws,), report) for each in several]


def _left_out_of(path: Path, draws: int) -> list[LeftOut]:
    return list(left_out(read_served(path), draws, path.parent.name == VALIDATION))


def validate_all(paths: list[Path], options: Mapping[str, Any], report: Progress) -> list[ValidationReport]:
    """Reports in the order of the runs; several runs are replayed in processes of their own."""
    settings = _settings(options)
    if len(paths) == 1:
        return [_validated(paths[0], options, settings)]
    return in_processes(_validated, paths, (options, settings), report)


def _settings(options: Mapping[str, Any]) -> ValidationSettings:
    file = options["overhead"]
    overhead, on = parse_overhead(Path(file).read_bytes(), file) if file else None, host_of(options)
    if on is not None and overhead is not None:
        raise UsageError("--host is of the packaged serving overhead: leave out --overhead")
    return ValidationSettings(
        **{name: options[name] for name in ("posterior", "draws", "transferred", "learn_from", "skip")}, overhead=overhead, host=on
    )


def _validated(path: Path, options: Mapping[str, Any], settings: ValidationSettings) -> ValidationReport:
    run = _read(path, options)
    check_times(run)
    return validate(run, settings)


def _read(path: Path, options: Mapping[str, Any]) -> ServedRun:
    return read_served_log(path, options)[1] if is_log(path) else read_served(path, given=served_by(options))
