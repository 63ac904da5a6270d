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
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import yaml

from sim.errors import UsageError
from simctl.cli import COMMANDS

KEYS = ("question", "command", "options", "sweep", "report")
MAX_BYTES = 1 << 20
MAX_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question and the runs that answer it: each run is a list of command-line arguments."""

    name: str
    question: str
    command: str
    report: tuple[str, ...]
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of the sweep: its label values by option, and the arguments of the command."""

    cell: dict[str, str]
    arguments: tuple[str, ...]


def load_scenario(path: Path, overrides: dict[str, str] | None = None) -> Scenario:
    """Read and check a scenario: a file, or the name of one that comes with simctl. `overrides` replace options.

    Raises UsageError naming the file and the key at fault.
    """
    if not path.exists():
        packaged = {file.stem: file for file in sorted(Path(str(files("scenarios"))).glob("*.yaml"))}
        if path.name not in packaged:
            raise UsageError(f"{path}: no such scenario file{_hint(path.name, tuple(packaged))}; those of simctl: {', '.join(packaged)}")
        path = packaged[path.name]
    body = _read(path)
    for key in body:
        if key not in KEYS:
            raise UsageError(f"{path.name}: {key}: unknown key{_hint(str(key), KEYS)}; known: {', '.join(KEYS)}")
    question, command = body.get("question"), body.get("command")
    if not isinstance(question, str) or not question.strip().endswith("?"):
        raise UsageError(f"{path.name}: question: needs one question, ending in '?'")
    if command not in COMMANDS or command == "run":
        raise UsageError(f"{path.name}: command: unknown {command!r}{_hint(str(command), tuple(COMMANDS))}")
    known = _options_of(command)
    options = _mapping(body, "options", path) | (overrides or {})
    sweep = _mapping(body, "sweep", path)
    for section, keys in (("options", options), ("sweep", sweep)):
        for key in keys:
            if str(key) not in known:
                raise UsageError(f"{path.name}: {section}.{key}: no such option of {command}{_hint(str(key), tuple(known))}")
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{path.name}: sweep.{key}: needs a list of values")
    report = body.get("report", [])
    if not isinstance(report, list) or not all(isinstance(item, str) for item in report):
        raise UsageError(f"{path.name}: report: needs a list of names")
    cells = list(itertools.product(*(values for key, values in sweep.items() if key not in (overrides or {}))))
    names = [str(key) for key in sweep if key not in (overrides or {})]
    if len(cells) > MAX_RUNS:
        raise UsageError(f"{path.name}: sweep: {len(cells)} runs, more than {MAX_RUNS}")
    runs = []
    for values in cells:
        chosen = dict(zip(names, values, strict=True))
        arguments = [part for key, value in {**options, **chosen}.items() for part in _arguments(str(key), value, known[str(key)], path)]
        runs.append(Run({key: str(value) for key, value in chosen.items()}, tuple(arguments)))
    return Scenario(path.stem, question.strip(), command, tuple(report), tuple(runs))


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


def _options_of(command: str) -> dict[str, click.Option]:
    """The command's options by their long names, without the dashes."""
    found: click.Command = importlib.import_module(COMMANDS[command][0]).command
    options = {}
    for parameter in found.params:
        if isinstance(parameter, click.Option) and parameter.name not in ("as_json", "out", "help"):
            for name in parameter.opts:
                if name.startswith("--"):
                    options[name.removeprefix("--")] = parameter
    return options


def _arguments(key: str, value: Any, option: click.Option, path: Path) -> list[str]:
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{path.name}: {key}: needs true or false")
        if value:
            return [f"--{key}"]
        return [option.secondary_opts[0]] if option.secondary_opts else []
    if isinstance(value, (dict, bool)) or value is None:
        raise UsageError(f"{path.name}: {key}: needs a value")
    if isinstance(value, list):
        value = ",".join(str(item) for item in value)
    if isinstance(option.type, click.Path) and not Path(str(value)).is_absolute():
        value = path.parent / str(value)
    return [f"--{key}", str(value)]


def _hint(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
