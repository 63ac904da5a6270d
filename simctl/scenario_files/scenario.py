"""Scenario files: one question each, as the options of one command, with what to sweep and what to report.

    question: Which batch cap keeps TTFT low on an A10?
    command: simulate
    options: {gpu: A10, model: Qwen2.5-7B, num-prompts: 400, request-rate: 1.0}
    sweep: {max-num-seqs: [8, 32, 128]}
    report: [p99_ttft_ms, mean_tpot_ms, output_throughput]

A sweep is every combination of its values; with `samples: 200` it is a Latin hypercube of so many cells, and may have ranges, too:

    sweep: {gpu: [A10, L40S], request-rate: {low: 0.5, high: 20, scale: log}}
    samples: 200

The command's own options are the schema: a key it does not have is refused with its path in the file. Relative paths in a scenario
are taken from the scenario's folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.files import package_path, text_of
from sim.rates.fingerprint import code_fingerprint, formula_fingerprint
from sim.specs.hf_config import find_cached
from sim.specs.lookup import did_you_mean, given_path
from sim.sweeps.design import Axis, Design, Range
from sim.yaml_text import MAX_BYTES, read_yaml
from simctl import __version__
from simctl.options.file_options import command_line, option_value, options_by_name, options_of, parser_of

KEYS = ("question", "command", "options", "sweep", "samples", "report")
RANGE_KEYS = ("low", "high", "scale")
MAX_RUNS = 10_000
ANSWERED = ("simulate", "plan", "what-if")  # the commands of a question of sim


@dataclass(frozen=True, slots=True)
class ScenarioCell:
    """One cell of the sweep: its label values by option, and all options as given."""

    command: str
    label: dict[str, str]
    given: dict[str, Any]

    def options(self) -> dict[str, Any]:
        """The options as the command reads them, with its defaults. Raises click.UsageError for a value that it refuses."""
        return options_of(self.command, self.given)

    def question(self) -> Any:
        """The question that the options ask."""
        from simctl.from_options.questions import QUESTIONS

        return QUESTIONS[self.command](self.options())

    def answer(self, paired: Sequence[str] = ()) -> dict[str, Any]:
        """The command's answer as plain data, as its --json prints it, and what differences of `paired` figures are found from."""
        from simctl.from_options.answers import plain_answer

        return plain_answer(self.question(), paired)

    def inputs(self) -> dict[str, Any]:
        """Inputs of the answer: the options, the content of the files they name, the version that answers."""
        named = [each for value in self.given.values() for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
        contents = {each: digest for each in sorted(named) if (digest := _content(each))}
        return {"command": self.command, "options": self.given, "files": contents, **versions()}

    def shell(self) -> str:
        """The same as a command line."""
        return command_line(self.command, self.given)


def versions() -> dict[str, str]:
    """Versions of what answers: the version, the formula's meaning, and the code and data it is computed with."""
    return {"version": __version__, "formula": formula_fingerprint(), "code": code_fingerprint()}


@dataclass(frozen=True, slots=True)
class Scenario:
    """A question and the cells that answer it, in the order of the design; `fixed` are the options that all of them have."""

    name: str
    question: str
    command: str
    report: tuple[str, ...]
    fixed: dict[str, Any]
    design: Design
    cells: tuple[ScenarioCell, ...]


def load_scenario(
    path: Path,
    overrides: dict[str, str] | None = None,
    allow_code: bool = False,
    vary: Mapping[str, str] | None = None,
    samples: int | None = None,
    seed: int = 0,
    most: int = MAX_RUNS,
) -> Scenario:
    """Read and check a scenario: a file, or the name of one that comes with simctl. `overrides` replace options.

    `vary` adds to the sweep or replaces of it: V1,V2,... or LOW:HIGH[:log] by option. `samples` cells are drawn with `seed`, instead of as
    many as the file says. Without `allow_code` a scheduler class that the file names is refused: importing it runs code. Raises UsageError
    naming the file and the key at fault.
    """
    overrides, typed = overrides or {}, vary or {}
    path = scenario_path(path)
    body = _read(path)
    question, command = _asked(body, path)
    known = options_by_name(parser_of(command))
    options, sweep = _mapping(body, "options", path) | overrides, _mapping(body, "sweep", path)
    places = ((f"{path.name}: options.", options), (f"{path.name}: sweep.", sweep), ("--vary ", typed))
    for where, key in ((where, str(key)) for where, keys in places for key in keys):
        if key not in known:
            raise UsageError(f"{where}{key}: no such option of {command}{did_you_mean(key, known)}")
    if both := [key for key in typed if key in overrides]:
        raise UsageError(f"--vary {both[0]} and --set {both[0]}: one or the other")
    axes: dict[str, Axis] = {str(k): _axis(f"{path.name}: sweep.{k}", v) for k, v in sweep.items() if k not in overrides and k not in typed}
    axes |= {key: _typed_axis(f"--vary {key}", text, known[key]) for key, text in typed.items()}
    report = body.get("report", [])
    if not isinstance(report, list) or not all(isinstance(item, str) for item in report):
        raise UsageError(f"{path.name}: report: needs a list of names")
    if not allow_code:
        _refuse_code(path, {key: (options.get(key, ""), sweep.get(key, [])) for key in ("engine", "router") if key not in overrides})
    wanted = body.get("samples") if samples is None else samples
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        raise UsageError(f"{path.name}: samples: needs a whole number from 1 up")
    try:
        design = Design(axes, wanted, seed)
    except UsageError as error:
        raise UsageError(f"{path.name}: sweep: {error}") from None
    if design.count > most:  # before the cells are built: a few lines can stand for more of them than any memory holds
        raise UsageError(f"{path.name}: sweep: {design.count} runs, more than {most}")

    def read(values: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): option_value(f"{path.name}: {key}", value, known[str(key)], path.parent) for key, value in values.items()}

    fixed, chosen = read(options), [dict(zip(design.axes, values, strict=True)) for values in design.cells()]
    cells = tuple(ScenarioCell(command, {key: str(value) for key, value in each.items()}, fixed | read(each)) for each in chosen)
    return Scenario(path.stem, question, command, tuple(report), fixed, design, cells)


def scenario_path(path: Path) -> Path:
    """The file itself, or the packaged scenario of that name. UsageError where there is neither."""
    if path.exists():
        return path
    packaged = {file.stem: file for file in sorted(package_path("scenarios").glob("*.yaml"))}
    if path.name not in packaged:
        hint = did_you_mean(path.name, packaged)
        raise UsageError(f"{path}: no such scenario file{hint}; those of simctl: {', '.join(packaged)}")
    return packaged[path.name]


def _asked(body: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Question and command of a scenario of known keys. UsageError otherwise."""
    for key in body:
        if key not in KEYS:
            raise UsageError(f"{path.name}: {key}: unknown key{did_you_mean(str(key), KEYS)}; known: {', '.join(KEYS)}")
    question, command = body.get("question"), body.get("command")
    if not isinstance(question, str) or not question.strip().endswith("?"):
        raise UsageError(f"{path.name}: question: needs one question, ending in '?'")
    if not isinstance(command, str) or command not in ANSWERED:
        raise UsageError(f"{path.name}: command: must be one of {', '.join(ANSWERED)}, not {command!r}")
    return question.strip(), command


def _refuse_code(path: Path, named: Mapping[str, tuple[Any, Any]]) -> None:
    """UsageError where a key's own value, or one of its sweep's, is a dotted path: importing it runs code."""
    for key, (own, swept) in named.items():
        names = [own, *(swept if isinstance(swept, list) else [])]
        if code := [str(name) for name in names if "." in str(name)]:
            raise UsageError(f"{path.name}: {key}: {code[0]!r} would import code; --allow-code trusts it")


def _axis(where: str, values: Any) -> Axis:
    """Of a file: a list of values, or a range."""
    if isinstance(values, list) and values:
        return values
    if not isinstance(values, dict):
        raise UsageError(f"{where}: needs a list of values")
    if unknown := [str(key) for key in values if key not in RANGE_KEYS]:
        raise UsageError(f"{where}.{unknown[0]}: unknown key; a range has {', '.join(RANGE_KEYS)}")
    ends = [values.get(key) for key in RANGE_KEYS[:2]]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or values.get("scale", "log") not in (
        "log",
        "linear",
    ):
        raise UsageError(f"{where}: a range needs the numbers low and high, and scale: log or linear")
    return _ranged(where, ends, values.get("scale") == "log")


def _typed_axis(where: str, text: str, option: click.Option) -> Axis:
    """Of the command line: V1,V2,... or, of an option that takes a number, LOW:HIGH[:log]."""
    low, colon, rest = text.partition(":")
    high, log, scale = rest.partition(":")
    ends = [_number(low), _number(high)]
    if colon and option.type.name != "rate:burst" and all(isinstance(end, int | float) for end in ends):
        if log and scale != "log":
            raise UsageError(f"{where}: a range is LOW:HIGH or LOW:HIGH:log, not {text!r}")
        return _ranged(where, ends, scale == "log")
    values = [_number(part.strip()) for part in text.split(",")]
    if "" in values:
        raise UsageError(f"{where}: needs V1,V2,... or LOW:HIGH, got {text!r}")
    return values


def _ranged(where: str, ends: Sequence[Any], log: bool) -> Range:
    try:
        low, high = ends
        return Range(low, high, log)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _content(named: str) -> str:
    """sha256 of the file or folder that an option names (FILE, FILE:NAME, or ORG/NAME in the hub's cache), "" when it names none."""
    for text in (named, named.rpartition(":")[0], str(find_cached(named) or "")):
        path = given_path(text, ())
        if path is not None and path.exists():
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            states = [(each, each.stat()) for each in files if each.is_file()]
            found = [(each.name, _sha256(each, state.st_mtime_ns, state.st_size)) for each, state in states]
            return hashlib.sha256(repr(found).encode()).hexdigest()
    return ""


@cache
def _sha256(file: Path, mtime_ns: int, size: int) -> str:
    """Of one state of a file: a trace is read once, not once for each cell."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read(path: Path) -> dict[Any, Any]:
    if not path.is_file():
        raise UsageError(f"{path}: no such scenario file")
    body = read_yaml(text_of(path, MAX_BYTES, path.name), path.name)
    if not isinstance(body, dict):
        raise UsageError(f"{path.name}: needs a mapping with {', '.join(KEYS)}")
    return body


def _mapping(body: dict[Any, Any], key: str, path: Path) -> dict[Any, Any]:
    value = body.get(key) or {}
    if not isinstance(value, dict):
        raise UsageError(f"{path.name}: {key}: needs a mapping")
    return value
