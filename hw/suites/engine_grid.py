"""engine-grid: the time and the composition of every iteration of a real engine, over batch, context and prefill length.

Protocol (engine-grid/5). The whole grid is gone through VISITS times, later times in a drawn order: a host that is slower for some seconds
slows all repeats of the cell it meets (by a third, as seen), and only another visit tells. A visit repeats its cell for REPEAT_S, within
a least and a most number of times. The first WARM iterations of a decode visit and the first repeat of every chunk are warm-up by rule
and marked, never dropped. Prefill chunks are one iteration each. The first anchors are measured again at the end (drift), a decode cell is
also reached by a real prefill (control), and a greedy continuation is compared before and after (gate). Python's garbage collector
waits while a cell runs. Version 4 visited cells again whose visits differed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hw.cells import Cell, engine_grid, read_cells, weight_axis, within
from hw.engines import vllm_inprocess
from hw.journal import Journal, attempt
from hw.pace import Budget, paced, terminate_as_interrupt, undisturbed
from hw.suites.engine_grid_table import VISIT
from hw.suites.engine_grid_table import dataset as dataset
from sim.errors import SimctlError, UsageError

VISITS = 3  # of each cell, far apart in time
WARM = 3  # iterations of a decode cell that do not count
REPEAT_S = 0.2  # of counted iterations in a visit
DECODE_REPEATS = (8, 20)  # at least, at most
CHUNK_REPEATS = (3, 10)  # counted ones; one more goes before them
OUTPUT_TOKENS = WARM + max(DECODE_REPEATS[1], 2 * (CHUNK_REPEATS[1] + 1)) + 1  # below HEADROOM_TOKENS: what a decode may grow by
SCALE = {"cuda": 1, "cpu": 16}  # what every length of a grid is divided by


def repeats(step_s: float, bounds: tuple[int, int]) -> int:
    """Counted iterations of a cell whose iterations take `step_s`."""
    return int(np.clip(np.ceil(REPEAT_S / step_s), *bounds))


def checks(scale: int = 1) -> tuple[Cell, tuple[Cell, ...]]:
    """(the control cell, the anchors measured again at the end); all of them are cells of the grid of the same `scale`."""
    single, batch = Cell("decode", (max(128 // scale, 16),)), Cell("decode", (2048 // scale,) * 16)
    return Cell("decode", (2048 // scale,) * 8), (single, batch, Cell("prefill", (), ((0, 512 // min(scale, 8)),)))


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """The engine's start, the grid (or the weight axis, or the cells of the job's file)."""
    with vllm_inprocess.running(job, attrs) as engine:
        scale, bounds = SCALE[job.device], limits(job, engine)
        if job.suite == "weight-axis":
            cells = weight_axis(**bounds)
        elif job.cells:
            cells = requested_cells(job, bounds)
        else:
            cells = engine_grid(np.random.default_rng(job.seed), scale=scale, **bounds)
        budget = Budget(job.budget_s)
        with terminate_as_interrupt():
            attrs |= measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem, scale)
        attrs["measuring_s"] = round(budget.spent_s, 1)


def limits(job: Any, engine: Any) -> dict[str, Any]:
    """The engine's limits, by the names that `hw.cells` takes."""
    return {
        "token_budget": job.max_num_batched_tokens,
        "fits": engine.fits,
        "max_context": engine.max_model_len,
        "max_seqs": job.max_num_seqs,
    }


def requested_cells(job: Any, bounds: dict[str, Any]) -> list[Cell]:
    """The cells of the job's file that this engine takes. Raises UsageError when none is left."""
    _, wanted = read_cells(Path(job.cells))
    cells = within(wanted, **bounds)
    if not cells:
        raise UsageError(f"{job.cells}: none of its {len(wanted)} cells fits this engine's limits")
    for cell in wanted:
        if cell not in cells:
            print(f"{job.stem}: {cell.label} does not fit this engine's limits: left out", file=sys.stderr, flush=True)
    return cells


def measure_cell(engine: Any, cell: Cell, rng: np.random.Generator, *, budget: Budget | None = None) -> list[dict[str, Any]]:
    """Iterations of one cell, in order, as rows of ITERATION (without `cell_index`). Leaves the engine empty."""
    rows: list[dict[str, Any]] = []
    try:
        if cell.contexts:
            engine.place(cell, rng, output_tokens=OUTPUT_TOKENS)
            for repeat in range(WARM + (0 if cell.chunks else DECODE_REPEATS[1])):
                if enough(rows, DECODE_REPEATS[0]):
                    break
                _step(engine, rows, repeat, repeat < WARM, not cell.chunks, len(cell.contexts))
        for repeat in range(CHUNK_REPEATS[1] + 1 if cell.chunks else 0):
            if enough(rows, CHUNK_REPEATS[0]) or (budget is not None and budget.over() and repeat > 1):
                break
            engine.add_chunks(cell, rng)
            _step(engine, rows, repeat, repeat == 0, True, len(cell.contexts))
            if cell.contexts:
                _step(engine, rows, repeat, repeat == 0, False, len(cell.contexts))
    finally:
        engine.drain()
    return rows


def measure_computed(engine: Any, cell: Cell, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The same decode cell with its contexts really prefilled: what placing them must agree with."""
    rows: list[dict[str, Any]] = []
    try:
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


def enough(rows: list[dict[str, Any]], least: int) -> bool:
    """Whether enough iterations were counted: `least`, and REPEAT_S of them."""
    counted = [row["step_s"] for row in rows if row["target"] and not row["warmup"]]
    return len(counted) >= least and sum(counted) >= REPEAT_S


def _step(engine: Any, rows: list[dict[str, Any]], repeat: int, warmup: bool, target: bool, decodes: int) -> None:
    iteration = stepped(engine.step()[0], decodes)
    times = {"step_s": iteration.step_s, "model_s": iteration.model_s}
    rows.append({"repeat": repeat, "warmup": warmup, "target": target, **times, **iteration.counts})


def stepped(iteration: Any, decodes: int) -> Any:
    """The iteration. Raises SimctlError where the engine scheduled nothing, or fewer than `decodes` sequences ran."""
    if iteration is None:
        raise SimctlError("the engine scheduled nothing for this cell")
    if iteration.counts["decode_seqs"] < decodes:
        raise SimctlError(f"only {iteration.counts['decode_seqs']} of {decodes} sequences were running")
    return iteration


@contextmanager
def gated(engine: Any) -> Iterator[dict[str, float]]:
    """A block of measuring; `gate_top1_before_after` is in the yielded dict after it.

    Collections inside do not look at what lives now: an engine's million objects would make each of them last.
    """
    prompt = np.random.default_rng(7).integers(10, 1000, 64).tolist()
    gates: dict[str, float] = {}
    gc.collect()
    gc.freeze()
    try:
        before = engine.greedy(prompt, 16)
        yield gates
        after = engine.greedy(prompt, 16)
    finally:
        gc.unfreeze()
    gates["gate_top1_before_after"] = sum(a == b for a, b in zip(before, after, strict=True)) / len(before)


def measure(
    engine: Any, cells: list[Cell], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, scale: int = 1
) -> dict[str, Any]:
    """Run the grid into the journal until done or out of budget. Returns the gates as attributes.

    A run is finished when every cell was visited once; how often each was, the cells say.
    """
    with gated(engine) as gates:
        control, anchors = checks(scale)
        _one(engine, anchors[0], journal, rng, "warm", measure_cell)  # first steps after start: compile, autotune
        if control in cells:  # without its placed twin there is nothing to compare
            _one(engine, control, journal, rng, "control", measure_computed)
        for visit in range(VISITS):
            order = cells if visit == 0 else [cells[i] for i in rng.permutation(len(cells))]
            left = [c for c in order if _key("grid", c, visit) not in journal]
            if visit and budget.over(reserve_s=3.0):
                break
            for cell in paced(left, budget, f"{name}, visit {visit + 1}", reserve_s=3.0):
                _one(engine, cell, journal, rng, "grid", measure_cell, visit=visit, budget=budget)
        for cell in [c for c in anchors if c in cells] or cells[:1]:
            _one(engine, cell, journal, rng, "again", measure_cell)
    return gates | {"finished": int(all(_key("grid", c) in journal for c in cells))}


def _key(role: str, cell: Cell, visit: int = 0) -> str:
    return f"{role} {cell.label}" + (f"{VISIT}{visit + 1}" if visit else "")


def _one(engine: Any, cell: Cell, journal: Journal, rng: np.random.Generator, role: str, how: Any, *, visit: int = 0, **more: Any) -> None:
    key = _key(role, cell, visit)
    if key in journal:
        return
    with undisturbed():
        rows, status, error = attempt(lambda: how(engine, cell, rng, **more))
    rows = [{"visit": visit, **row} for row in rows or ()]
    journal.add(key, role=role, kind=cell.kind, status=status, error=error, cell=cell.record(), rows=rows)
