"""Scenario files: one question each, as the options of one command, with what to sweep and what to report.

    question: Which batch cap keeps TTFT low on an A10?
    command: simulate
    options: {gpu: A10, model: Qwen2.5-7B, num-prompts: 400, request-rate: 1.0}
    sweep: {max-num-seqs: [8, 32, 128]}
    report: [p99_ttft_ms, mean_tpot_ms, output_throughput]

The command's own options are the schema: a key it does not have is refused with its path in the file. Relative paths in a scenario
are taken from the scenario's folder.
"""

from __future__ import annotations

import importlib
import itertools
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import yaml

from sim.errors import UsageError
from sim.specs.lookup import did_you_mean

KEYS = ("question", "command", "options", "sweep", "report")
MAX_BYTES = 1 << 20
MAX_RUNS = 10_000
# Commands whose answer is plain data: `json_answer(options)` of their module.
ANSWERED = {"simulate": "simctl.simulate", "what-if": "simctl.what_if", "regime-map": "simctl.regime_map"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the sweep: its label values by option, and all options as given."""

    command: str
    label: dict[str, str]
    given: dict[str, Any]

    def options(self) -> dict[str, Any]:
        """The options as the command reads them, with its defaults. Raises click.UsageError for a value that it refuses."""
        command = _command(self.command)
        known = _options_of(command)
        values = {known[name].name: value for name, value in self.given.items()}
        return dict(command.make_context(self.command, [], default_map=values).params)

    def answer(self) -> dict[str, Any]:
        """The command's answer as plain data."""
        found: dict[str, Any] = importlib.import_module(ANSWERED[self.command]).json_answer(self.options())
        return found

    def shell(self) -> str:
        """The same as a command line."""
        known = _options_of(_command(self.command))
        parts = [part for name, value in self.given.items() for part in _arguments(name, value, known[name])]
        return f"simctl {self.command} {shlex.join(parts)}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question and the cells that answer it."""

    name: str
    question: str
    command: str
    report: tuple[str, ...]
    cells: tuple[Cell, ...]


def load_scenario(path: Path, overrides: dict[str, str] | None = None) -> Scenario:
    """Read and check a scenario: a file, or the name of one that comes with simctl. `overrides` replace options.

    Raises UsageError naming the file and the key at fault.
    """
    overrides = overrides or {}
    if not path.exists():
        packaged = {file.stem: file for file in sorted(Path(str(files("scenarios"))).glob("*.yaml"))}
        if path.name not in packaged:
            hint = did_you_mean(path.name, packaged)
            raise UsageError(f"{path}: no such scenario file{hint}; those of simctl: {', '.join(packaged)}")
        path = packaged[path.name]
    body = _read(path)
    for key in body:
        if key not in KEYS:
            raise UsageError(f"{path.name}: {key}: unknown key{did_you_mean(str(key), KEYS)}; known: {', '.join(KEYS)}")
    question, command = body.get("question"), body.get("command")
    if not isinstance(question, str) or not question.strip().endswith("?"):
        raise UsageError(f"{path.name}: question: needs one question, ending in '?'")
    if command not in ANSWERED:
        raise UsageError(f"{path.name}: command: must be one of {', '.join(ANSWERED)}, not {command!r}")
    known = _options_of(_command(command))
    options, sweep = _mapping(body, "options", path) | overrides, _mapping(body, "sweep", path)
    for section, keys in (("options", options), ("sweep", sweep)):
        for key in keys:
            if str(key) not in known:
                raise UsageError(f"{path.name}: {section}.{key}: no such option of {command}{did_you_mean(str(key), known)}")
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{path.name}: sweep.{key}: needs a list of values")
    report = body.get("report", [])
    if not isinstance(report, list) or not all(isinstance(item, str) for item in report):
        raise UsageError(f"{path.name}: report: needs a list of names")
    swept = {key: values for key, values in sweep.items() if key not in overrides}
    combinations = list(itertools.product(*swept.values()))
    if len(combinations) > MAX_RUNS:
        raise UsageError(f"{path.name}: sweep: {len(combinations)} runs, more than {MAX_RUNS}")
    cells = []
    for values in combinations:
        chosen = dict(zip(swept, values, strict=True))
        given = {str(key): _value(str(key), value, known[str(key)], path) for key, value in {**options, **chosen}.items()}
        cells.append(Cell(command, {str(key): str(value) for key, value in chosen.items()}, given))
    return Scenario(path.stem, question.strip(), command, tuple(report), tuple(cells))


def _read(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such scenario file")
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path.name}: larger than {MAX_BYTES} bytes: not a scenario")
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path.name}:{where} not YAML: {getattr(error, 'problem', None) or 'cannot be read'}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name}: not UTF-8 text") from error
    if not isinstance(body, dict):
        raise UsageError(f"{path.name}: needs a mapping with {', '.join(KEYS)}")
    return body


def _mapping(body: dict[Any, Any], key: str, path: Path) -> dict[Any, Any]:
    value = body.get(key) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{path.name}: {key}: needs a mapping")
    return value


def _command(name: str) -> click.Command:
    command: click.Command = importlib.import_module(ANSWERED[name]).command
    return command


def _options_of(command: click.Command) -> dict[str, click.Option]:
    """The command's options by their long names, without the dashes."""
    found = [p for p in command.params if isinstance(p, click.Option) and p.name not in ("as_json", "out", "plot", "chrome_trace")]
    return {name.removeprefix("--"): option for option in found for name in option.opts if name.startswith("--")}


def _value(key: str, value: Any, option: click.Option, path: Path) -> Any:
    """A value of a scenario as the option takes it. Raises UsageError."""
    if option.is_flag:
        if isinstance(value, str) and value.casefold() in ("true", "false"):  # of --set
            value = value.casefold() == "true"
        if not isinstance(value, bool):
            raise UsageError(f"{path.name}: {key}: needs true or false")
        return value
    if isinstance(value, dict | bool) or value is None:
        raise UsageError(f"{path.name}: {key}: needs a value")
    if option.multiple:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return str(path.parent / text) if isinstance(option.type, click.Path) and not Path(text).is_absolute() else text


def _arguments(key: str, value: Any, option: click.Option) -> list[str]:
    if option.is_flag:
        return [f"--{key}"] if value else list(option.secondary_opts[:1])
    return [part for item in (value if option.multiple else [value]) for part in (f"--{key}", item)]
