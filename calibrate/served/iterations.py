"""Iterations that a server wrote down (hw.serve.iterations), each priced by the formula as served: which of them are off, and by how much.

Runs of requests add many iterations up, and what is too dear here hides what is too cheap there. Where the scheduler's decisions are
known, each iteration can be held to its own price. Decisions are taken as they were made; the two clocks (sim.engine.overlap) run freely
from one idle moment of the engine to the next.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.served.path import ServedPath
from calibrate.served.runs import ServedRun
from sim.bill import GRAPH_TOKENS
from sim.deployment import plan_engine
from sim.engine.overlap import Pipeline
from sim.engine.presets import step_settings
from sim.engine.steptime import StepTime
from sim.engine.ticks import TICK_S, to_ticks
from sim.errors import UsageError

Array = NDArray[np.float64]
COLUMNS = (
    "experiment_index", "decided_s", "scheduled_s", "collected_s", "decode_seqs", "decode_context_tokens", "context_sd_tokens", "chunks"
)  # fmt: skip
MOST_BYTES = 2**28
DECODES_AFTER = ((1, 4), (5, 16), (17, None))  # iterations since the last with prefill
PREFILL_ROWS = ((1, 256), (257, GRAPH_TOKENS), (GRAPH_TOKENS + 1, 1024), (1025, 2048), (2049, None))  # tokens that one computes
ROWS_BIN = 16
LEAST_SEEN = 5


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
    found: dict[int, list[tuple[float, float, float, int, int, float, tuple[tuple[int, int], ...]]]] = {}
    for number, cells in enumerate(_lines(path), 2):
        try:
            index, times = int(cells[0]), (float(cells[1]), float(cells[2]), float(cells[3]))
            seqs, context, apart = int(cells[4]), int(cells[5]), float(cells[6])
            chunks = tuple((int(n), int(c)) for n, _, c in (chunk.partition("@") for chunk in cells[7].split()))
            finite = all(np.isfinite([*times, apart])) and min(seqs, context, apart, *(min(c[0] - 1, c[1]) for c in chunks), 0) >= 0
        except ValueError:
            finite = False
        if not finite or not 0 <= index < experiments or not times[0] <= times[1] <= times[2] or not seqs + len(chunks):
            raise UsageError(f"{path.name}, line {number}: not an iteration of one of {experiments} experiments")
        found.setdefault(index, []).append((*times, seqs, context, apart, chunks))
    if not found:
        raise UsageError(f"{path.name}: holds no iterations")
    return {index: _columns(rows) for index, rows in found.items()}


def _lines(path: Path) -> Iterator[list[str]]:
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            with gzip.open(path) as packed:
                data = packed.read(MOST_BYTES + 1)
        except (EOFError, gzip.BadGzipFile) as error:
            raise UsageError(f"{path.name}: not a whole gzip file") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES >> 20} MiB")
    rows = csv.reader(data.decode("utf-8", errors="replace").splitlines())
    if tuple(next(rows, ())) != COLUMNS:
        raise UsageError(f"{path.name}: its columns are not {', '.join(COLUMNS)}")
    for number, cells in enumerate(rows, 2):
        if len(cells) != len(COLUMNS):
            raise UsageError(f"{path.name}, line {number}: {len(cells)} columns, not {len(COLUMNS)}")
        yield cells


def _columns(rows: Sequence[tuple[float, float, float, int, int, float, tuple[tuple[int, int], ...]]]) -> Iterations:
    decided, scheduled, collected, seqs, context, apart, chunks = zip(*sorted(rows), strict=True)
    times = [np.array(column, dtype=np.float64) for column in (decided, scheduled, collected)]
    return Iterations(times[0], times[1], times[2], np.array(seqs), np.array(context), np.array(apart, dtype=np.float64), chunks)


def step_times(run: ServedRun, path: ServedPath) -> StepTime:
    """Step times as this path serves the run."""
    config, _ = plan_engine(run.model, run.gpu, run.precision, run.tp, run.limits)
    settings = step_settings(config, path.host.work, path.host.boost)
    return StepTime(run.model, run.precision, path.rates.point, tp=run.tp, **settings)


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
        for i, difference, cost in alone(one, prices):
            _put(prefills, int(one.rows[i]), (cost + difference, cost))
    found = [_kind(f"decodes {_span(span)} after prefill", pairs) for span, pairs in decodes.items()]
    found += [_kind(f"prefill of {_span(span)} rows", pairs) for span, pairs in prefills.items()]
    return [kind for kind in found if kind.count >= LEAST_SEEN]


def rows_off(seen: Sequence[Iterations], priced: Sequence[Array], least_s: float) -> list[Kind]:
    """Bins of ROWS_BIN rows of which prefill that comes alone is off by `least_s` or more, in the median of LEAST_SEEN or more."""
    bins: dict[int, list[tuple[float, float]]] = {}
    for one, prices in zip(seen, priced, strict=True):
        rows = one.rows
        for i, difference, cost in alone(one, prices):
            bins.setdefault((int(rows[i]) - 1) // ROWS_BIN, []).append((cost + difference, cost))
    found = [_kind(f"{place * ROWS_BIN + 1}-{(place + 1) * ROWS_BIN}", pairs) for place, pairs in sorted(bins.items())]
    return [kind for kind in found if kind.count >= LEAST_SEEN and abs(kind.off_s) >= least_s]


def alone(one: Iterations, priced: Array) -> list[tuple[int, float, float]]:
    """(iteration, seconds measured less priced, seconds priced) of those with prefill between two decodes and two more."""
    prefill, follows = one.prefill, one.follows
    costs = np.diff(priced, prepend=np.nan)
    found = []
    for i in np.flatnonzero(prefill):
        if 3 <= i < len(prefill) - 3 and not prefill[[i - 2, i - 1, i + 1, i + 2]].any() and follows[i - 2 : i + 3].all():
            took, cost = (float(x[i + 1] - x[i - 2]) for x in (one.collected_s, priced))
            # a neighbour's price is that of the decode farther off
            own = cost - float(costs[i - 2]) - float(costs[i + 2])
            found.append((int(i), took - cost, own))
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
