"""engine-grid: the time and the composition of every iteration of a real engine, over batch, context and prefill length.

Protocol (engine-grid/4). The whole grid is gone through VISITS times, later times in a drawn order: a host that is slower for some seconds
slows all repeats of the cell it meets (by a third, as seen), and only another visit tells. Then, as long as there is time, cells whose
visits agree too little (`unsettled`) are visited again, MOST_VISITS at most. A visit repeats its cell for REPEAT_S, within a least and a
most number of times. The first WARM iterations of a decode visit and the first repeat of every chunk are warm-up by rule and
marked, never dropped. Prefill chunks are one iteration each. The first anchors are measured again at the end (drift), a decode and a chunk
are also reached by a real prefill (control), and a greedy continuation is compared before and after (gate). Python's garbage collector
waits while a cell runs. Version 3 ended with the VISITS. Version 2 went through the grid once, with more repeats; version 1 had fewer and
let the collector run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from hw.cells import Cell
from hw.journal import Journal
from hw.pace import Budget, paced
from sim.errors import SimctlError
from sim.quantiles import MEDIAN_SE

PROTOCOL = "engine-grid/4"
VISIT = " visit "  # in a key, before the number of one that is not the first
VISITS = 3  # of each cell, far apart in time
MOST_VISITS = 11
SETTLED = 0.012  # standard error of the median of a cell's visits (of a logarithm) below which it is left alone
AT_ONCE = 3  # one cell in so many, the least settled, is visited again before they are counted anew
WARM = 3  # iterations of a decode cell that do not count
REPEAT_S = 0.2  # of counted iterations in a visit
DECODE_REPEATS = (8, 20)  # at least, at most
CHUNK_REPEATS = (3, 10)  # counted ones; one more goes before them
CONTROL_REPEATS = 3
OUTPUT_TOKENS = WARM + max(DECODE_REPEATS[1], 2 * (CHUNK_REPEATS[1] + 1)) + 1  # below HEADROOM_TOKENS: what a decode may grow by


def repeats(step_s: float, bounds: tuple[int, int]) -> int:
    """Counted iterations of a cell whose iterations take `step_s`."""
    return int(np.clip(np.ceil(REPEAT_S / step_s), *bounds))


def checks(scale: int = 1) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """(the control cells, the anchors measured again at the end); all of them are cells of the grid of the same `scale`."""
    control = (Cell("decode", (2048 // scale,) * 8), Cell("prefill", (), ((16384, 64),)))
    alone, batch = Cell("decode", (max(128 // scale, 16),)), Cell("decode", (2048 // scale,) * 16)
    return control, (alone, batch, Cell("prefill", (), ((0, 512 // min(scale, 8)),)))


class Engine(Protocol):
    """What the grid needs of an in-process engine."""

    def fits(self, cell: Cell) -> bool: ...
    def place(self, cell: Cell, rng: np.random.Generator, output_tokens: int) -> None: ...
    def add_chunks(self, cell: Cell, rng: np.random.Generator) -> None: ...
    def step(self) -> tuple[Any, list[Any]]: ...
    def drain(self) -> None: ...
    def greedy(self, prompt: list[int], tokens: int) -> list[int]: ...


def measure_cell(engine: Engine, cell: Cell, rng: np.random.Generator, *, budget: Budget | None = None) -> list[dict[str, Any]]:
    """Iterations of one cell, in order, as rows of ITERATION (without `cell_index`). Leaves the engine empty."""
    rows: list[dict[str, Any]] = []
    try:
        if cell.contexts:
            engine.place(cell, rng, output_tokens=OUTPUT_TOKENS)
            for repeat in range(WARM + (0 if cell.chunks else DECODE_REPEATS[1])):
                if _told(rows, DECODE_REPEATS[0]):
                    break
                _step(engine, rows, repeat, repeat < WARM, not cell.chunks, len(cell.contexts))
        for repeat in range(CHUNK_REPEATS[1] + 1 if cell.chunks else 0):
            if _told(rows, CHUNK_REPEATS[0]) or (budget is not None and budget.over() and repeat > 1):
                break
            engine.add_chunks(cell, rng)
            _step(engine, rows, repeat, repeat == 0, True, len(cell.contexts))
            if cell.contexts:
                _step(engine, rows, repeat, repeat == 0, False, len(cell.contexts))
    finally:
        engine.drain()
    return rows


def measure_computed(engine: Any, cell: Cell, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The same cell with its contexts really prefilled: what placing them must agree with. A chunk must start where the engine's own
    chunks of the prompt before it end.
    """
    rows: list[dict[str, Any]] = []
    try:
        for repeat in range(CONTROL_REPEATS + 1 if cell.chunks else 0):
            _computed_chunk(engine, rows, cell, repeat, rng)
        if cell.chunks:
            return rows
        for context in cell.contexts:
            engine.add(rng.integers(10, 1000, context).tolist(), output_tokens=WARM + DECODE_REPEATS[0] + 400)
        for _ in range(10_000):
            iteration, _out = engine.step()
            if iteration is not None and iteration.counts["decode_seqs"] == len(cell.contexts):
                break
        for repeat in range(WARM + DECODE_REPEATS[0]):
            _step(engine, rows, repeat, repeat < WARM, True, len(cell.contexts))
    finally:
        engine.drain()
    return rows


def _computed_chunk(engine: Any, rows: list[dict[str, Any]], cell: Cell, repeat: int, rng: np.random.Generator) -> None:
    """Prefill one prompt as the engine does, and keep the iteration that is the cell's chunk."""
    ((offset, tokens),) = cell.chunks
    engine.add(rng.integers(10, 1000, offset + tokens).tolist(), output_tokens=1)
    for _ in range(10_000):
        iteration, _out = engine.step()
        if iteration is None:
            break
        if iteration.counts["prefill_tokens"] == tokens:
            rows.append(_row(iteration, repeat, repeat == 0, True))
            return
    raise SimctlError(f"no iteration of {tokens} tokens at {offset}: the engine cuts its prompts elsewhere")


def _told(rows: list[dict[str, Any]], least: int) -> bool:
    """Whether enough iterations were counted: `least`, and REPEAT_S of them."""
    counted = [row["step_s"] for row in rows if row["target"] and not row["warmup"]]
    return len(counted) >= least and sum(counted) >= REPEAT_S


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside, one before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def engine_set_aside() -> Iterator[None]:
    """Collections inside do not look at what lives now: an engine's million objects would make each of them last."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _step(engine: Engine, rows: list[dict[str, Any]], repeat: int, warmup: bool, target: bool, decodes: int) -> None:
    iteration, _ = engine.step()
    if iteration is None:
        raise SimctlError("the engine scheduled nothing for this cell")
    if iteration.counts["decode_seqs"] < decodes:
        raise SimctlError(f"only {iteration.counts['decode_seqs']} of {decodes} sequences were running")
    rows.append(_row(iteration, repeat, warmup, target))


def _row(iteration: Any, repeat: int, warmup: bool, target: bool) -> dict[str, Any]:
    times = {"step_s": iteration.step_s, "model_s": iteration.model_s}
    return {"repeat": repeat, "warmup": warmup, "target": target, **times, **iteration.counts}


def measure(
    engine: Any, cells: list[Cell], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, scale: int = 1
) -> dict[str, Any]:
    """Run the grid into the journal until done or out of budget. Returns the gates as attributes.

    An out-of-memory or engine error in one cell is recorded as that cell's status; the sweep goes on. A run is finished when every cell
    was visited once; how often each was, the cells say.
    """
    with engine_set_aside():
        prompt = np.random.default_rng(7).integers(10, 1000, 64).tolist()
        before = engine.greedy(prompt, 16)
        controls, anchors = checks(scale)
        _one(engine, anchors[0], journal, rng, "warm", measure_cell)  # first steps after start: compile, autotune
        for control in (c for c in controls if c in cells):  # without its placed twin there is nothing to compare
            _one(engine, control, journal, rng, "control", measure_computed)
        for visit in range(VISITS):
            order = cells if visit == 0 else [cells[i] for i in rng.permutation(len(cells))]
            left = [c for c in order if _key("grid", c, visit) not in journal]
            if visit and budget.over(reserve_s=3.0):
                break
            for cell in paced(left, budget, f"{name}, visit {visit + 1}", reserve_s=3.0):
                _one(engine, cell, journal, rng, "grid", measure_cell, visit=visit, budget=budget)
        while not budget.over(reserve_s=3.0) and (astray := unsettled(cells, journal)):
            order = [astray[i] for i in rng.permutation(len(astray))]
            for cell, visit in paced(order, budget, f"{name}, visited again", reserve_s=3.0):
                _one(engine, cell, journal, rng, "grid", measure_cell, visit=visit, budget=budget)
        for cell in [c for c in anchors if c in cells] or cells[:1]:
            _one(engine, cell, journal, rng, "again", measure_cell)
        after = engine.greedy(prompt, 16)
    agree = sum(a == b for a, b in zip(before, after, strict=True)) / len(before)
    return {"gate_top1_before_after": agree, "finished": int(all(_key("grid", c) in journal for c in cells))}


def unsettled(cells: list[Cell], journal: Journal) -> list[tuple[Cell, int]]:
    """(cell, its next visit) of the cells whose visits differ most: those whose median has a standard error above SETTLED, at most one in
    AT_ONCE of the grid, largest first. Cells that failed are left alone.
    """
    visits = by_cell(record for record in journal.records if record.get("role") == "grid")
    errors = []
    for index, cell in enumerate(cells):
        made = visits.get(_key("grid", cell), [])
        seen = [float(np.median([row["step_s"] for row in rows])) for rows in map(counted, made) if rows]
        if len(seen) > 1 and len(made) < MOST_VISITS:
            error = MEDIAN_SE * float(np.log(seen).std(ddof=1)) / np.sqrt(len(seen))
            if error > SETTLED:
                errors.append((-error, index))
    return [(cells[i], len(visits[_key("grid", cells[i])])) for _, i in sorted(errors)[: -(-len(cells) // AT_ONCE)]]


def by_cell(records: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The visits of each cell of a journal together, by the key of its first and in the order of those."""
    cells: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        cells.setdefault(record["key"].split(VISIT)[0], []).append(record)
    return cells


def counted(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a visit that are of its cell, past warming up."""
    return [row for row in record["rows"] if row["target"] and not row["warmup"]]


def _key(role: str, cell: Cell, visit: int = 0) -> str:
    return f"{role} {cell.label}" + (f"{VISIT}{visit + 1}" if visit else "")


def _one(engine: Any, cell: Cell, journal: Journal, rng: np.random.Generator, role: str, how: Any, *, visit: int = 0, **more: Any) -> None:
    key = _key(role, cell, visit)
    if key in journal:
        return
    try:
        with undisturbed():
            rows, status, error = how(engine, cell, rng, **more), "ok", ""
    except Exception as failure:  # an engine may raise anything; what it says is kept, KeyboardInterrupt is not caught
        text = f"{type(failure).__name__}: {failure}"
        rows, status, error = [], "oom" if "out of memory" in text.lower() else "error", text[:300]
    rows = [{"visit": visit, **row} for row in rows]
    journal.add(key, role=role, kind=cell.kind, status=status, error=error, cell=cell.record(), rows=rows)
