"""One cell of a sweep: its key, its figures, and how a worker answers it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.errors import SimctlError
from sim.sweep.store import Variable
from simctl.commands.run import flatten, interval_of, is_void

if TYPE_CHECKING:
    from simctl.scenario import Cell

LATENCIES = {"ttft": "time to first token", "tpot": "time per output token", "e2el": "end-to-end latency"}
SIMULATED = {
    **{f"{q}_{name}_ms": ("ms", f"{q} {text}") for name, text in LATENCIES.items() for q in ("mean", "median", "p90", "p99")},
    "request_throughput": ("1/s", "requests finished per second"),
    "output_throughput": ("tokens/s", "output tokens per second"),
    "total_token_throughput": ("tokens/s", "prompt and output tokens per second"),
    "request_goodput": ("1/s", "requests per second that meet --goodput"),
    "completed": ("1", "requests finished"),
    "gpu_hours": ("h", "GPU time paid for"),
    "usd_per_mtok": ("USD", "list price of a million output tokens"),
}
INTERVALS = {"rates_90": "5-95 % over what is not known of the rates", "run_noise_90": "5-95 % of another run like it"}
SUFFIXES = {"_ms": "ms", "_s": "s", "_per_s": "1/s", "_bytes": "bytes", "_tokens": "tokens", "throughput": "tokens/s"}


class Asked(NamedTuple):
    """What a worker gets: the cell, the key that it must have there, too, and the figures wanted."""

    command: str
    given: dict[str, Any]
    key: str
    figures: tuple[str, ...]


class Answered(NamedTuple):
    """Figures by variable, or the reason why the command refuses the cell."""

    figures: dict[str, Any]
    reason: str = ""


def key_of(cell: Cell) -> str:
    """sha256 of all that the answer depends on: options with the seed, the content of files they name, version, formula, code and data."""
    return hashlib.sha256(json.dumps(cell.asked(), sort_keys=True).encode()).hexdigest()


def figures_of(command: str, report: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Names of the figures kept of each cell: those of a simulation, and what the scenario reports."""
    whole = [name for name in SIMULATED if name != "request_goodput" or "goodput" in given] if command == "simulate" else []
    goal = ["goal.chance"] if "goal" in given else []
    named = [name for name in report if name.partition(".")[0] not in INTERVALS and name not in given]
    return tuple(dict.fromkeys([*whole, *named, *goal]))


def variables_of(command: str, figures: Sequence[str]) -> list[Variable]:
    """The variables that keep them: each figure, and beside it the intervals that the command gives."""
    intervals = INTERVALS if command == "simulate" else {"interval": "the interval that the answer gives"}
    found = []
    for name in figures:
        units, text = SIMULATED.get(name) or (_units(name), name)
        found.append(Variable(name, units, text))
        found += [Variable(f"{name}_{kind}", units, f"{text}: {meaning}", interval=True) for kind, meaning in intervals.items()]
    return found


def answered(asked: Asked) -> Answered:
    """Answer one cell, on whatever machine this is. Raises SimctlError where it would not be the cell that was asked for."""
    from simctl.scenario import Cell

    cell = Cell(asked.command, {}, asked.given)
    alone = Cell(asked.command, {}, {**asked.given, "workers": "1"}) if asked.command == "plan" else cell  # the other cores have cells, too
    if key_of(cell) != asked.key:
        raise SimctlError("a worker has another simctl, or other files under the scenario's names, than the machine that asks")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # no bar of each of many
            answer = alone.answer()
    except click.UsageError as error:
        return Answered({}, error.format_message())
    except SimctlError as error:
        return Answered({}, str(error))
    return Answered(_figures(asked, answer))


def _figures(asked: Asked, answer: Mapping[str, Any]) -> dict[str, Any]:
    simulated = asked.command == "simulate"
    flat = flatten(_priced(asked, answer) if simulated else dict(answer))
    found: dict[str, Any] = {}
    for name in asked.figures:
        if name not in flat and not is_void(flat, name) and name not in SIMULATED:
            raise SimctlError(f"report: the answer has no {name!r}; it has {', '.join(sorted(flat)[:40])}, ...")
        found[name] = _number(flat.get(name))
        pairs = (
            {f"{name}_{kind}": flat.get(f"{kind}.{name}") for kind in INTERVALS}
            if simulated
            else {f"{name}_interval": interval_of(flat, name)}
        )
        found |= {each: [_number(end) for end in pair] for each, pair in pairs.items() if isinstance(pair, list) and len(pair) == 2}
    return found


def _priced(asked: Asked, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with usd_per_mtok where its GPUs have a list price, and are no fleet's; its intervals are those of the throughput."""
    from sim.specs.gpus import get_gpu

    gpu, tokens = asked.given.get("gpu"), answer.get("total_output_tokens")
    price = None if gpu is None or "fleet" in asked.given else get_gpu(gpu).price_per_hour
    if not price or not tokens:
        return dict(answer)
    cost, rate = 1e6 * price * answer["gpu_hours"] / tokens, answer["output_throughput"]
    priced = {**answer, "usd_per_mtok": cost}
    for kind in INTERVALS:
        low, high = answer[kind].get("output_throughput") or (math.nan, math.nan)
        if low and high:
            priced[kind] = {**answer[kind], "usd_per_mtok": [cost * rate / high, cost * rate / low]}
    return priced


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _units(name: str) -> str:
    return next((units for end, units in reversed(SUFFIXES.items()) if name.endswith(end)), "1")
