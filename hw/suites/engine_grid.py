"""engine-grid: the time and the composition of every iteration of a real engine, over batch, context and prefill length.

Protocol (engine-grid/1). A cell is repeated; the first WARM iterations of a decode cell and the first repeat of every chunk are
warm-up by rule and marked, never dropped. Prefill chunks are one iteration each. The first anchors are measured again at the end
(drift), one cell is also reached by a real prefill (control), and a greedy continuation is compared before and after (gate).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from hw.cells import Cell
from hw.composition import FIELDS
from hw.journal import Journal
from hw.pace import Budget, paced
from hw.spread import summarize
from sim.errors import SimctlError

PROTOCOL = "engine-grid/1"
WARM = 3  # iterations of a decode cell that do not count
DECODE_REPEATS = 12
CHUNK_REPEATS = 4  # counted ones; one more goes before them


def checks(scale: int = 1) -> tuple[Cell, tuple[Cell, ...]]:
    """(the control cell, the anchors measured again at the end); all of them are cells of the grid of the same `scale`."""
    control = Cell("decode", (2048 // scale,) * 8)
    alone, batch = Cell("decode", (max(128 // scale, 16),)), Cell("decode", (2048 // scale,) * 16)
    return control, (alone, batch, Cell("prefill", (), ((0, 512 // min(scale, 8)),)))


ITERATION = {
    "cell_index": ("index into the cell dimension", "1"),
    "repeat": ("order within the cell", "1"),
    "warmup": ("excluded by rule", "bool"),
    "target": ("carries what the cell asked for (a decode between two chunks does not)", "bool"),
    "step_s": ("wall time of the engine step, scheduling to outputs", "s"),
    "model_s": ("part of it from schedule decided to tokens on the host", "s"),
    **FIELDS,
}
CELL = {
    "label": ("composition, then its place in the run", ""),
    "kind": ("decode, ragged, prefill, packed or mixed", ""),
    "role": ("grid, control (context computed, not placed) or again (drift check)", ""),
    "status": ("ok, oom or error", ""),
    "batch": ("decoding sequences asked for", "1"),
    "context_tokens": ("cached tokens of each at the start, mean", "tokens"),
    "chunks": ("prefill chunks asked for", "1"),
    "chunk_tokens": ("tokens of each chunk", "tokens"),
    "offset_tokens": ("tokens cached before each chunk", "tokens"),
    "step_s_median": ("median step time of counted target iterations", "s"),
    "step_s_p25": ("lower quartile", "s"),
    "step_s_p75": ("upper quartile", "s"),
    "step_s_n": ("counted target iterations", "1"),
    "model_s_median": ("median model part", "s"),
    **{f"{name}_median": (f"median of counted target iterations: {text}", unit) for name, (text, unit) in FIELDS.items()},
}


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
            engine.place(cell, rng, output_tokens=WARM + DECODE_REPEATS + 2 * CHUNK_REPEATS + 16)
            for repeat in range(WARM + (0 if cell.chunks else DECODE_REPEATS)):
                _step(engine, rows, repeat, repeat < WARM, not cell.chunks, len(cell.contexts))
        for repeat in range(CHUNK_REPEATS + 1 if cell.chunks else 0):
            if budget is not None and budget.over() and repeat > 1:
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
            engine.add(rng.integers(10, 1000, context).tolist(), output_tokens=WARM + DECODE_REPEATS + 400)
        for _ in range(10_000):
            iteration, _out = engine.step()
            if iteration is not None and iteration.counts["decode_seqs"] == len(cell.contexts):
                break
        for repeat in range(WARM + DECODE_REPEATS):
            _step(engine, rows, repeat, repeat < WARM, True, len(cell.contexts))
    finally:
        engine.drain()
    return rows


def _step(engine: Engine, rows: list[dict[str, Any]], repeat: int, warmup: bool, target: bool, decodes: int) -> None:
    iteration, _ = engine.step()
    if iteration is None:
        raise SimctlError("the engine scheduled nothing for this cell")
    if iteration.counts["decode_seqs"] < decodes:
        raise SimctlError(f"only {iteration.counts['decode_seqs']} of {decodes} sequences were running")
    times = {"step_s": iteration.step_s, "model_s": iteration.model_s}
    rows.append({"repeat": repeat, "warmup": warmup, "target": target, **times, **iteration.counts})


def measure(
    engine: Any, cells: list[Cell], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, scale: int = 1
) -> dict[str, Any]:
    """Run the grid into the journal until done or out of budget. Returns the gates as attributes.

    An out-of-memory or engine error in one cell is recorded as that cell's status; the sweep goes on.
    """
    prompt = np.random.default_rng(7).integers(10, 1000, 64).tolist()
    before = engine.greedy(prompt, 16)
    control, anchors = checks(scale)
    _one(engine, anchors[0], journal, rng, "warm", measure_cell)  # first steps after start: compile, autotune
    if control in cells:  # without its placed twin there is nothing to compare
        _one(engine, control, journal, rng, "control", measure_computed)
    for cell in paced([c for c in cells if f"grid {c.label}" not in journal], budget, name, reserve_s=3.0):
        _one(engine, cell, journal, rng, "grid", measure_cell, budget=budget)
    for cell in [c for c in anchors if c in cells] or cells[:1]:
        _one(engine, cell, journal, rng, "again", measure_cell)
    after = engine.greedy(prompt, 16)
    agree = sum(a == b for a, b in zip(before, after, strict=True)) / len(before)
    return {"gate_top1_before_after": agree, "finished": int(all(f"grid {c.label}" in journal for c in cells))}


def _one(engine: Any, cell: Cell, journal: Journal, rng: np.random.Generator, role: str, how: Any, **more: Any) -> None:
    key = f"{role} {cell.label}"
    if key in journal:
        return
    try:
        rows, status, error = how(engine, cell, rng, **more), "ok", ""
    except Exception as failure:  # an engine may raise anything; what it says is kept, KeyboardInterrupt is not caught
        text = f"{type(failure).__name__}: {failure}"
        rows, status, error = [], "oom" if "out of memory" in text.lower() else "error", text[:300]
    journal.add(key, role=role, kind=cell.kind, status=status, error=error, cell=cell.record(), rows=rows)


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any], suite: str = "engine-grid") -> Any:
    """The journal as an xarray Dataset with dims `iteration` and `cell`; gates that follow from the data become attributes."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    iterations, cells = [], []
    for index, record in enumerate(r for r in records if r["role"] != "warm"):
        iterations += [{"cell_index": index, **row} for row in record["rows"]]
        cells.append(_cell_row(record))
    derived = {
        "protocol": PROTOCOL if suite == "engine-grid" else f"{suite}/1 over {PROTOCOL}",
        "control_computed_over_placed": next(iter(_ratios(cells, "control")), float("nan")),
        "drift_again_over_first": max(_ratios(cells, "again"), key=lambda r: abs(r - 1), default=float("nan")),
        "cells_ok": sum(c["status"] == "ok" for c in cells),
        "cells_failed": sum(c["status"] != "ok" for c in cells),
        "warmup_rule": f"first {WARM} iterations of a decode cell, first repeat of a chunk",
    }
    variables = table("iteration", iterations, ITERATION) | table("cell", cells, CELL)
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": suite, **derived, **attrs})


def _cell_row(record: dict[str, Any]) -> dict[str, Any]:
    cell = record["cell"]
    contexts, chunks = cell["contexts"], cell["chunks"]
    counted = [r for r in record["rows"] if r["target"] and not r["warmup"]]
    label = Cell(cell["kind"], tuple(contexts), tuple(map(tuple, chunks))).label
    medians = {f"{k}_median": float(np.median([r[k] for r in counted])) if counted else float("nan") for k in FIELDS}
    return {
        "label": label,
        "kind": cell["kind"],
        "role": record["role"],
        "status": record["status"],
        "batch": len(contexts),
        "context_tokens": float(np.mean(contexts)) if contexts else 0.0,
        "chunks": len(chunks),
        "chunk_tokens": chunks[0][1] if chunks else 0,
        "offset_tokens": chunks[0][0] if chunks else 0,
        **summarize([r["step_s"] for r in counted], "step_s"),
        **summarize([r["model_s"] for r in counted], "model_s"),
        **medians,
    }


def _ratios(cells: list[dict[str, Any]], role: str) -> list[float]:
    """Median step time in `role` over that in the grid, for every composition measured in both."""
    grid = {c["label"]: c["step_s_median"] for c in cells if c["role"] == "grid" and c["step_s_n"]}
    return [c["step_s_median"] / grid[c["label"]] for c in cells if c["role"] == role and c["step_s_n"] and c["label"] in grid]
