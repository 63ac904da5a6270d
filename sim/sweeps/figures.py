"""Figures of answers: nested plain data as dotted names, what a sweep keeps of them, and the intervals beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sim.errors import SimctlError
from sim.results.paired import PAIRS
from sim.specs.gpus import get_gpu
from sim.sweeps.store import Variable

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


def flatten(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names; an item of a list of mappings by its number, other lists stay whole."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, list) and item and all(isinstance(each, dict) for each in item):
            item = {str(number): each for number, each in enumerate(item)}
        flat |= flatten(item, f"{prefix}{key}.") if isinstance(item, dict) else {f"{prefix}{key}": item}
    return flat


def is_void(flat: dict[str, Any], name: str) -> bool:
    """Whether the answer has nothing where `name` would be: no deployment that meets the SLO, for instance."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in flat and flat[".".join(parts[:end])] is None for end in range(1, len(parts)))


def interval_of(flat: dict[str, Any], name: str) -> Any:
    """The interval that the answer gives for a figure, under the names that answers use; None where it gives none."""
    within = name.rpartition(".")[0]
    ends = [(f"{name}_low", f"{name}_high"), (f"{name}_p05", f"{name}_p95")]
    if name.rpartition(".")[2] in ("batch", "context"):  # of a knee and of a crossover
        ends.append((f"{within}.p05", f"{within}.p95"))
    if name.endswith((".point", ".per_s")):
        ends.append((f"{within}.low", f"{within}.high"))
    for low, high in ends:
        if low in flat and high in flat:
            return [flat[low], flat[high]]
    return flat.get(f"run_noise_90.{name}")


def figures_of(command: str, report: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Names of the figures kept of each cell: those of a simulation, and what the scenario reports."""
    whole = [name for name in SIMULATED if name != "request_goodput" or "goodput" in given] if command == "simulate" else []
    goal = ["goal.chance"] if "goal" in given else []
    named = [name for name in report if name.partition(".")[0] not in INTERVALS and name not in given]
    return tuple(dict.fromkeys([*whole, *named, *goal]))


def variables_of(command: str, figures: Sequence[str], paired: Sequence[str] = ()) -> list[Variable]:
    """The variables that keep them: each figure, and beside it the intervals that the command gives, and of `paired` ones what their
    differences are found from (sim.results.paired).
    """
    intervals = INTERVALS if command == "simulate" else {"interval": "the interval that the answer gives"}
    found = []
    for name in figures:
        units, text = SIMULATED.get(name) or (_units(name), name)
        found.append(Variable(name, units, text))
        found += [Variable(f"{name}_{kind}", units, f"{text}: {meaning}", 2) for kind, meaning in intervals.items()]
        if name in paired and command == "simulate":
            found.append(Variable(f"{name}_pairs", units, f"{text}: identity of its draws, repeats, draws", PAIRS))
    return found


def figures_from(command: str, given: Mapping[str, Any], names: Sequence[str], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by variable, of an answer as plain data to a cell with these values `given`. SimctlError for one it has not."""
    simulated = command == "simulate"
    flat = flatten(_priced(given, answer) if simulated else dict(answer))
    found: dict[str, Any] = {}
    for name in names:
        if name not in flat and not is_void(flat, name) and name not in SIMULATED:
            raise SimctlError(f"report: the answer has no {name!r}; it has {', '.join(sorted(flat)[:40])}, ...")
        found[name] = _number(flat.get(name))
        pairs = (
            {f"{name}_{kind}": flat.get(f"{kind}.{name}") for kind in INTERVALS}
            if simulated
            else {f"{name}_interval": interval_of(flat, name)}
        )
        found |= {each: [_number(end) for end in pair] for each, pair in pairs.items() if isinstance(pair, list) and len(pair) == 2}
        found |= {f"{name}_pairs": flat[f"pairs.{name}"]} if f"pairs.{name}" in flat else {}
    return found


def _priced(given: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer with usd_per_mtok where its GPUs have a list price, and are no fleet's; its intervals are those of the throughput."""
    gpu, tokens = given.get("gpu"), answer.get("total_output_tokens")
    price = None if gpu is None or "fleet" in given else get_gpu(gpu).price_per_hour
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
