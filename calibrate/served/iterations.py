"""Iterations that a server wrote down (hw.serve.iterations), each priced by the formula as served: which of them are off, and by how much.

Runs of requests add many iterations up, and what is too dear here hides what is too cheap there. Where the scheduler's decisions are
known, each iteration can be held to its own price. Decisions are taken as they were made; the two clocks (sim.engine.overlap) run freely
from one idle moment of the engine to the next.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.served.path import ServedPath
from calibrate.served.runs import ServedRun
from calibrate.text_files import csv_rows
from sim.bill import GRAPH_TOKENS
from sim.deployment import plan_engine
from sim.engine.overlap import Pipeline
from sim.engine.presets import step_settings
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.errors import UsageError
from sim.products import known_to

Array = NDArray[np.float64]
COLUMNS = (
    "experiment_index", "decided_s", "scheduled_s", "collected_s", "decode_seqs", "decode_context_tokens", "context_sd_tokens", "chunks"
)  # fmt: skip
MOST_BYTES = 2**28
DECODES_AFTER = ((1, 4), (5, 16), (17, None))  # iterations since the last with prefill
PREFILL_ROWS = ((1, 256), (257, GRAPH_TOKENS), (GRAPH_TOKENS + 1, 1024), (1025, 2048), (2049, None))  # tokens that one computes
ROWS_BIN = 16
LEAST_SEEN = 5

# decided, scheduled, collected, decodes, their contexts' sum and standard deviation, chunks
_Row = tuple[float, float, float, int, int, float, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Iterations:
    """Iterations of one experiment in order, arrays [iteration]: seconds from its beginning, tokens; chunks as (new, cached)."""

    decided_s: Array
    scheduled_s: Array
    collected_s: Array
    decode_seqs: NDArray[np.int64]
    decode_context: NDArray[np.int64]
    context_sd: Array
    chunks: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Tokens that each computes."""
        return self.decode_seqs + np.array([sum(n for n, _ in chunks) for chunks in self.chunks], dtype=np.int64)

    @property
    def prefill(self) -> NDArray[np.bool_]:
        """Whether it carries prefill."""
        return np.array([bool(chunks) for chunks in self.chunks], dtype=bool)

    @property
    def follows(self) -> NDArray[np.bool_]:
        """Whether the one before was under way when it was decided."""
        return np.concatenate([[False], self.collected_s[:-1] > self.decided_s[1:]])


@dataclass(frozen=True)
class Kind:
    """How long iterations of a kind took and what they are priced at, means in seconds; `off` is the median of measured less priced."""

    name: str
    count: int
    measured_s: float
    priced_s: float
    off_s: float


def beside(path: Path) -> Path | None:
    """The file of iterations of a served measurement; None where there is none."""
    for suffix in (".iterations.csv.gz", ".iterations.csv"):
        if (found := path.with_suffix(suffix)).is_file():
            return found
    return None


def read_iterations(path: Path, experiments: int) -> dict[int, Iterations]:
    """{index of the experiment: its iterations}. Raises UsageError naming file and line of what is none; OSError when it cannot be read."""
    columns, rows = csv_rows(_text(path), path.name)
    if columns != COLUMNS:
        raise UsageError(f"{path.name}: its columns are not {', '.join(COLUMNS)}")
    found: dict[int, list[_Row]] = {}
    for number, row in rows:
        cells = [row[column] for column in COLUMNS]
        if None in row or None in cells:
            raise UsageError(f"{path.name}, line {number}: not {len(COLUMNS)} columns")
        index, one = _iteration([str(cell) for cell in cells])
        if one is None or not 0 <= index < experiments:
            raise UsageError(f"{path.name}, line {number}: not an iteration of one of {experiments} experiments")
        found.setdefault(index, []).append(one)
    if not found:
        raise UsageError(f"{path.name}: holds no iterations")
    return {index: _columns(own) for index, own in found.items()}


def _text(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UsageError(f"{path.name}: not a whole gzip file") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path.name}: not UTF-8 text") from None


def _iteration(cells: list[str]) -> tuple[int, _Row | None]:
    """(index of the experiment, the iteration) of a line's cells; None for what can be none."""
    try:
        index, decided, scheduled, collected = int(cells[0]), float(cells[1]), float(cells[2]), float(cells[3])
        seqs, context, apart = int(cells[4]), int(cells[5]), float(cells[6])
        chunks = tuple((int(n), int(c)) for n, _, c in (chunk.partition("@") for chunk in cells[7].split()))
    except ValueError:
        return -1, None
    in_order = decided <= scheduled <= collected and all(np.isfinite([decided, collected, apart]))
    counted = min(seqs, context, apart) >= 0 and seqs + len(chunks) > 0 and all(n >= 1 and c >= 0 for n, c in chunks)
    return index, (decided, scheduled, collected, seqs, context, apart, chunks) if in_order and counted else None


def _columns(rows: Sequence[_Row]) -> Iterations:
    decided, scheduled, collected, seqs, context, apart, chunks = zip(*sorted(rows), strict=True)
    times = [np.array(column, dtype=np.float64) for column in (decided, scheduled, collected)]
    return Iterations(times[0], times[1], times[2], np.array(seqs), np.array(context), np.array(apart, dtype=np.float64), chunks)


def step_times(run: ServedRun, path: ServedPath) -> StepTime:
    """Step times as this path serves the run."""
    config, _ = plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)
    settings = step_settings(config, path.host.work, path.host.boost)
    return StepTime(run.model, run.precision, path.rates.point, tp=run.tp, gpu=known_to(run.gpu), **settings)


def priced_s(steps: StepTime, seen: Iterations) -> Array:
    """When each iteration's tokens would be collected [iteration], seconds, were every one of them to take its price."""
    pipe, collected = Pipeline(steps.boost), np.empty(len(seen.chunks), dtype=np.int64)
    follows, rows = seen.follows, seen.rows
    start = float(seen.decided_s[0])
    for i, chunks in enumerate(seen.chunks):
        if not follows[i]:
            pipe.idle_until(to_ticks(float(seen.decided_s[i]) - start))
        batch, context = int(seen.decode_seqs[i]), int(seen.decode_context[i])
        apart = round((batch * float(seen.context_sd[i])) ** 2)
        ended = [(new, new + cached, 1) for new, cached in chunks]
        host, head_start = steps.occupied(batch + len(chunks), int(rows[i]), bool(chunks)), pipe.head_start
        if follows[i]:
            collected[i - 1] = pipe.sends(host)
        products = steps.products(batch, ended)
        rested = pipe.rested(products)
        if chunks:
            ticks = steps.mixed(batch, context, 0, context, ended, head_start, apart, rested)
        else:
            ticks = steps.shown(batch, False, head_start)[0] + steps.stretch(batch, context, apart).first
        pipe.launched(host, ticks, products, rested)
        collected[i] = pipe.ends
    return np.asarray(collected * TICK_S + start, dtype=np.float64)


def kinds(seen: Sequence[Iterations], priced: Sequence[Array]) -> list[Kind]:
    """Iterations by kind: decodes by how many iterations after prefill, prefill by its rows where two decodes are before it and two after.

    The iteration before one that is launched kernel by kernel is collected only when that is through, so what prefill took and is
    priced at is counted with both its neighbours, less what these are priced at.
    """
    decodes: dict[tuple[int, int | None], list[tuple[float, float]]] = {span: [] for span in DECODES_AFTER}
    prefills: dict[tuple[int, int | None], list[tuple[float, float]]] = {span: [] for span in PREFILL_ROWS}
    for one, prices in zip(seen, priced, strict=True):
        took, costs = np.diff(one.collected_s, prepend=np.nan), np.diff(prices, prepend=np.nan)
        after, prefill, follows = _after(one), one.prefill, one.follows
        for place in np.flatnonzero(follows & ~prefill & ~np.append(prefill[1:], True)):
            _put(decodes, int(after[place]), (float(took[place]), float(costs[place])))
        rows = one.rows
        for i, pair in alone(one, prices):
            _put(prefills, int(rows[i]), pair)
    found = [_kind(f"decodes {_span(span)} after prefill", pairs) for span, pairs in decodes.items()]
    found += [_kind(f"prefill of {_span(span)} rows", pairs) for span, pairs in prefills.items()]
    return [kind for kind in found if kind.count >= LEAST_SEEN]


def rows_off(seen: Sequence[Iterations], priced: Sequence[Array], least_s: float) -> list[Kind]:
    """Bins of ROWS_BIN rows of which prefill that comes alone is off by `least_s` or more, in the median of LEAST_SEEN or more."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for one, prices in zip(seen, priced, strict=True):
        rows = one.rows
        for i, pair in alone(one, prices):
            bins.setdefault((int(rows[i]) - 1) // ROWS_BIN, []).append(pair)
    found = [_kind(f"{place * ROWS_BIN + 1}-{(place + 1) * ROWS_BIN}", pairs) for place, pairs in sorted(bins.items())]
    return [kind for kind in found if kind.count >= LEAST_SEEN and abs(kind.off_s) >= least_s]


def alone(one: Iterations, priced: Array) -> list[tuple[int, tuple[float, float]]]:
    """(iteration, (seconds it took, seconds it is priced at)) of those with prefill between two decodes and two more."""
    prefill, follows = one.prefill, one.follows
    costs = np.diff(priced, prepend=np.nan)
    found = []
    for i in np.flatnonzero(prefill):
        if 3 <= i < len(prefill) - 3 and not prefill[[i - 2, i - 1, i + 1, i + 2]].any() and follows[i - 2 : i + 3].all():
            # a neighbour's price is that of the decode farther off
            neighbours = float(costs[i - 2] + costs[i + 2])
            took, cost = (float(x[i + 1] - x[i - 2]) - neighbours for x in (one.collected_s, priced))
            found.append((int(i), (took, cost)))
    return found


def launches_s(seen: Sequence[Iterations]) -> Array:
    """Seconds from decision to the iteration before being collected, of iterations beyond the captured graphs: while it launches kernel by
    kernel, the host does nothing else.
    """
    found = []
    for one in seen:
        beyond = one.prefill & (one.rows > GRAPH_TOKENS) & one.follows
        found.append((np.roll(one.collected_s, 1) - one.scheduled_s)[beyond])
    return np.concatenate(found) if found else np.empty(0)


def _after(one: Iterations) -> NDArray[np.int64]:
    """Iterations since the last with prefill, or since the engine last stood still, which leaves none of it."""
    after, count = np.empty(len(one.chunks), dtype=np.int64), DECODES_AFTER[-1][0]
    for i, (prefill, follows) in enumerate(zip(one.prefill, one.follows, strict=True)):
        count = 0 if prefill else DECODES_AFTER[-1][0] if not follows else count + 1
        after[i] = count
    return after


def _put(spans: dict[tuple[int, int | None], list[tuple[float, float]]], value: int, pair: tuple[float, float]) -> None:
    for (least, most), pairs in spans.items():
        if least <= value and (most is None or value <= most):
            pairs.append(pair)


def _span(span: tuple[int, int | None]) -> str:
    least, most = span
    return f"{least}+" if most is None else f"{least}-{most}"


def _kind(name: str, pairs: Sequence[tuple[float, float]]) -> Kind:
    if not pairs:
        return Kind(name, 0, np.nan, np.nan, np.nan)
    took, cost = np.array(pairs).T
    return Kind(name, len(pairs), float(took.mean()), float(cost.mean()), float(np.median(took - cost)))
