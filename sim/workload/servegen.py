"""ServeGen client files: per client, arrivals in 10-minute windows and length distributions in 6-hour windows.

    chunk-N-trace.csv      window start s, rate 1/s, coefficient of variation, family (Gamma, Weibull or empty), shape, scale
    chunk-N-dataset.json   {window start s: {"input_tokens": "{length: probability}", "output_tokens": "{...}", ...}}

Source: the ServeGen repository. The files are distributions, so this draws: in each window a client sends exactly as many calls as its
rate says, spaced by gaps of its fitted family scaled to the window. Input and output lengths are drawn independently, as published.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.files import text_of
from sim.json_text import read_json
from sim.units import MAX_TOKENS
from sim.workload.lines import csv_float, numbered_lines
from sim.workload.loader_options import DEFAULT, LoadOptions
from sim.workload.trace import Trace, TraceBuilder

WINDOW_S = 600.0
MOST_BYTES = 1 << 23
MOST_CALLS = 10_000_000  # as many as may be drawn without a trace
_NAME = re.compile(r"chunk-(\d+)-trace\.csv")


@dataclass(frozen=True, slots=True)
class RateWindow:
    """One client's arrivals over WINDOW_S seconds from `start_s`."""

    start_s: float
    rate_per_s: float
    family: str
    shape: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """Values and their cumulative probabilities, last one 1."""

    values: NDArray[np.int64]
    cumulative: NDArray[np.float64]

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        return self.values[np.searchsorted(self.cumulative, rng.random(count), side="right")]


def load_servegen(path: Path, options: LoadOptions = DEFAULT) -> Trace:
    """Calls of every client in the folder `path` (or of the one whose trace file it is), drawn for `options.duration_s` from `start_s`.

    Each client draws from its own stream of the seed. Raises UsageError naming the file and line or window that is wrong.
    """
    if not 0.0 < options.duration_s < float("inf") or not 0.0 <= options.start_s < float("inf"):
        raise UsageError("the ServeGen window needs start >= 0 s and a finite duration > 0 s")
    files = [path] if path.is_file() else sorted(path.glob("chunk-*-trace.csv"), key=_client)
    if not files:
        # the set's folder holds one per category and model
        below = sorted({file.parent for deep in ("*", "*/*", "*/*/*") for file in path.glob(f"{deep}/chunk-*-trace.csv")})
        raise UsageError(f"{path}: holds no chunk-N-trace.csv" + (f"; there are some in {', '.join(map(str, below[:3]))}" if below else ""))
    drawn = []
    for file in files:
        rng = np.random.default_rng([options.seed, _client(file)])
        drawn.append(_draw_client(file, options, rng))
    times, inputs, outputs = (np.concatenate([each[i] for each in drawn]) for i in range(3))
    builder = TraceBuilder(path.name)
    for i in np.argsort(times, kind="stable").tolist():
        builder.add(f"call {i}", arrival_s=float(times[i]), prompt_tokens=int(inputs[i]), output_tokens=int(outputs[i]))
    builder.note(f"drawn from {len(files)} ServeGen clients over {options.duration_s:g} s from {options.start_s:g} s")
    return builder.build()


def _draw_client(file: Path, options: LoadOptions, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    until = options.start_s + options.duration_s
    windows = [w for w in _windows(file) if w.rate_per_s > 0 and w.start_s + WINDOW_S > options.start_s and w.start_s < until]
    times, inputs, outputs = [np.empty(0)], [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    lengths = _lengths(file.with_name(file.name.replace("-trace.csv", "-dataset.json"))) if windows else []
    drawn = 0
    for window in windows:
        count = round(window.rate_per_s * WINDOW_S)
        drawn += count
        if drawn > MOST_CALLS:
            raise UsageError(f"{file.name}: its rates ask for more than {MOST_CALLS:,} calls")
        gaps = _gaps(window, count + 1, rng)
        at = window.start_s + WINDOW_S * np.cumsum(gaps)[:-1] / gaps.sum()
        of_input, of_output = _lengths_at(lengths, window.start_s, file)
        kept = (at >= options.start_s) & (at < until)
        times.append(at[kept] - options.start_s)
        inputs.append(of_input.draw(rng, count)[kept])
        outputs.append(of_output.draw(rng, count)[kept])
    return np.concatenate(times), np.concatenate(inputs), np.concatenate(outputs)


def _gaps(window: RateWindow, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Gaps of the window's family; only their proportions matter. Tiny, so that equal times stay possible but sums stay positive."""
    if window.family == "Gamma":
        gaps = rng.gamma(window.shape, size=count)
    elif window.family == "Weibull":
        gaps = rng.weibull(window.shape, size=count)
    else:
        gaps = rng.exponential(size=count)
    return gaps + 1e-300


def _windows(file: Path) -> list[RateWindow]:
    windows = []
    for number, line in numbered_lines(file):
        where = f"{file.name}: line {number}"
        cells = line.split(",")
        if len(cells) != 6:
            raise UsageError(f"{where}: expected 6 cells, got {len(cells)}")
        start, rate = csv_float(cells[0], "window start", where), csv_float(cells[1], "rate", where)
        family, shape = cells[3].strip(), csv_float(cells[4], "shape", where)
        if family not in ("Gamma", "Weibull", ""):
            raise UsageError(f"{where}: unknown family {family!r}; known: Gamma, Weibull")
        if not (0.0 <= start < float("inf") and 0.0 <= rate < 1e6) or (family and not 0.01 <= shape <= 1e6):
            raise UsageError(f"{where}: window start and rate must be finite and not negative, shape must lie in 0.01..1e6")
        windows.append(RateWindow(start, rate, family, shape))
    return windows


def _lengths(file: Path) -> list[tuple[float, Lengths | None, Lengths | None]]:
    """(window start, input lengths, output lengths) in order of time; None where nothing was seen."""
    text = text_of(file, MOST_BYTES, file.name)
    try:
        record = read_json(text)
        return sorted(
            ((float(start), _table(each["input_tokens"]), _table(each["output_tokens"])) for start, each in record.items()),
            key=lambda entry: entry[0],
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{file.name}: not a ServeGen dataset ({type(error).__name__}: {str(error)[:60]})") from None


def _table(text: str) -> Lengths | None:
    """A distribution written as a Python dict of numbers. It is taken apart as text: Python's own parser takes 200 bytes to the byte."""
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError("lengths must be written {length: probability, ...}")
    entries = (entry.split(":") for entry in text[1:-1].split(",") if entry.strip())
    pairs = sorted((int(value), float(share)) for value, share in entries if float(share) > 0 and int(value) >= 1)
    if not pairs:
        return None
    if pairs[-1][0] > MAX_TOKENS:
        raise ValueError(f"a length of {pairs[-1][0]:.3g} tokens")
    shares = np.cumsum([share for _, share in pairs])
    if not np.isfinite(shares[-1]):
        raise ValueError("probabilities must be finite")
    cumulative = shares / shares[-1]
    cumulative[-1] = 1.0
    return Lengths(np.array([value for value, _ in pairs]), cumulative)


def _lengths_at(tables: list[tuple[float, Lengths | None, Lengths | None]], start_s: float, file: Path) -> tuple[Lengths, Lengths]:
    """The tables of the last window begun by `start_s` that has any, else of the first one after."""
    full = [(start, a, b) for start, a, b in tables if a is not None and b is not None]
    if not full:
        raise UsageError(f"{file.name}: calls arrive, but its dataset has no lengths")
    begun = [entry for entry in full if entry[0] <= start_s]
    _, inputs, outputs = begun[-1] if begun else full[0]
    return inputs, outputs


def _client(file: Path) -> int:
    match = _NAME.fullmatch(file.name)
    if not match:
        raise UsageError(f"{file.name}: expected a name like chunk-3-trace.csv")
    return int(match[1])
