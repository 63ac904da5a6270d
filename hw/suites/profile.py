"""profile: which kernels one engine iteration runs, how long each takes, and how long the GPU waits, over the cells of an engine grid.

Protocol (profile/1). A cell is placed and warmed up as the engine grid does it (WARM iterations of decodes, one of a chunk), then PROFILED
iterations run under the profiler; the one whose GPU was busy for the median time is kept whole, of the others the least and most busy
time. Prefill comes first, with every chunk at every offset of the grid, then decodes. A greedy continuation is compared before and after
(gate). Kernel times are the device's own; a host under a profiler is slower, so that `wall_s`, `span_us` and what the GPU idles in it are
upper bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hw.artifact import table
from hw.cells import CHUNKS, OFFSETS, REQUESTED, Cell, engine_grid, within
from hw.engines import kernel_trace, vllm_inprocess
from hw.engines.composition import FIELDS
from hw.engines.kernel_trace import KINDS, Event, Recorder, kind_of
from hw.engines.vllm_server import require_vllm
from hw.journal import Journal, attempt
from hw.pace import Budget, paced, terminate_as_interrupt, undisturbed
from hw.suites.engine_grid import OUTPUT_TOKENS, SCALE, WARM, gated, limits, requested_cells, stepped
from sim.errors import SimctlError

PROTOCOL = "profile/1"
PROFILED = 3  # iterations of a cell under the profiler
NAME_LENGTH = 150  # of a kernel: templates go on for thousands of letters
CELL = {
    "label": ("composition", ""),
    "kind": ("decode, ragged, prefill, packed or mixed", ""),
    "status": ("ok, oom or error", ""),
    **REQUESTED,
    "wall_s": ("wall time of the engine step, the profiler's own cost in it", "s"),
    "model_s": ("part of it from schedule decided to tokens on the host", "s"),
    "span_us": ("first kernel's start to the last one's end", "us"),
    "busy_us": ("part of it in which a kernel ran", "us"),
    "busy_us_least": ("the same, least of the iterations profiled", "us"),
    "busy_us_most": ("most of them", "us"),
    **{f"{kind}_us": (f"kernels of kind {kind}, summed", "us") for kind in KINDS},
    "launches": ("kernels and copies that ran", "1"),
    **FIELDS,
}
KERNEL = {"kernel_name": ("name, cut short", ""), "kernel_kind": (f"one of {', '.join(KINDS)}, by its name", "")}


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """The engine's start and the kernels of every cell."""
    require_vllm(job.device)
    record = kernel_trace.recorder(job.device)  # before CUDA graphs are captured
    with vllm_inprocess.running(job, attrs) as engine:
        rng, bounds = np.random.default_rng(job.seed), limits(job, engine)
        cells = requested_cells(job, bounds) if job.cells else cells_of(rng, scale=SCALE[job.device], **bounds)
        budget = Budget(job.budget_s)
        with terminate_as_interrupt():
            attrs |= measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem, record)
        attrs["measuring_s"] = round(budget.spent_s, 1)


def cells_of(rng: np.random.Generator, *, scale: int = 1, **limits: Any) -> list[Cell]:
    """Cells to profile, in order: the grid's prefill and mixed ones, every chunk at every offset, the grid's decodes."""
    grid = engine_grid(rng, scale=scale, **limits)
    chunks = [Cell("prefill", (), ((o, c),)) for o in (0, *OFFSETS) for c in CHUNKS] if scale == 1 else []
    return list(dict.fromkeys([*(c for c in grid if c.chunks), *within(chunks, **limits), *grid]))


def summed(events: Sequence[Event]) -> dict[str, Any]:
    """Of one iteration: first kernel's start to the last one's end (`span_us`), how much of it any ran (`busy_us`), and
    `kernels`, name -> [launches, microseconds]. Raises SimctlError when there are none.
    """
    if not events:
        raise SimctlError("the profiler saw no kernel")
    kernels: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    busy, end = 0.0, -np.inf
    for event in sorted(events, key=lambda e: e.start_us):
        entry = kernels[event.name[:NAME_LENGTH]]
        entry[0] += 1
        entry[1] += event.own_us
        busy += max(0.0, event.end_us - max(event.start_us, end))
        end = max(end, event.end_us)
    return {"span_us": end - min(e.start_us for e in events), "busy_us": busy, "kernels": dict(kernels)}


def profile_cell(engine: Any, cell: Cell, rng: np.random.Generator, record: Recorder) -> dict[str, Any]:
    """The iteration of one cell that was busy for the median time of PROFILED. Leaves the engine empty."""
    found: list[dict[str, Any]] = []
    try:
        if cell.contexts:
            engine.place(cell, rng, output_tokens=OUTPUT_TOKENS)
            for _ in range(WARM):
                engine.step()
        for repeat in range(PROFILED + 1 if cell.chunks else PROFILED):
            if cell.chunks:
                engine.add_chunks(cell, rng)
            if cell.chunks and not repeat:
                engine.step()
            else:
                found.append(_profiled(engine, cell, record))
            if cell.chunks and cell.contexts:
                engine.step()
    finally:
        engine.drain()
    busy = [f["busy_us"] for f in found]
    return found[int(np.argsort(busy)[len(busy) // 2])] | {"busy_us_least": min(busy), "busy_us_most": max(busy)}


def _profiled(engine: Any, cell: Cell, record: Recorder) -> dict[str, Any]:
    (iteration, _), events = record(engine.step)
    iteration = stepped(iteration, len(cell.contexts))
    return {"wall_s": iteration.step_s, "model_s": iteration.model_s, **iteration.counts, **summed(events)}


def measure(
    engine: Any, cells: Iterable[Cell], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, record: Recorder
) -> dict[str, Any]:
    """Profile the cells into the journal until done or out of budget; one that fails is kept as such. Returns the gates as attributes."""
    requested = list(cells)
    with gated(engine) as gates:
        for cell in paced([c for c in requested if c.label not in journal], budget, name, reserve_s=2.0):
            with undisturbed():
                found, status, error = attempt(partial(profile_cell, engine, cell, rng, record))
            journal.add(cell.label, kind=cell.kind, status=status, error=error, cell=cell.record(), found=found or {})
    return gates | {"finished": int(all(c.label in journal for c in requested))}


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset: tables along `cell` and `kernel`; `calls` (int32) and `us` (float32) of both [cell, kernel]."""
    import xarray as xr

    names = sorted({name for r in records for name in r["found"].get("kernels", {})})
    kernels = [{"kernel_name": name, "kernel_kind": kind_of(name)} for name in names]
    place = {name: i for i, name in enumerate(names)}
    calls, times = np.zeros((len(records), len(names)), np.int32), np.zeros((len(records), len(names)), np.float32)
    for row, record in enumerate(records):
        for name, (count, us) in record["found"].get("kernels", {}).items():
            calls[row, place[name]], times[row, place[name]] = count, us
    cells = [_cell_row(record) for record in records]
    both = ("cell", "kernel")
    variables = table("cell", cells, CELL) | table("kernel", kernels, KERNEL)
    variables |= {
        "calls": (both, calls, {"long_name": "times the kernel ran in the iteration", "units": "1"}),
        "us": (both, times, {"long_name": "time it took in all", "units": "us"}),
    }
    ok = sum(c["status"] == "ok" for c in cells)
    return xr.Dataset(variables, attrs={"protocol": PROTOCOL, "cells_ok": ok, "cells_failed": len(cells) - ok, **attrs})


def _cell_row(record: dict[str, Any]) -> dict[str, Any]:
    cell, found = Cell.of(record["cell"]), record["found"]
    kernels = found.get("kernels", {})
    by_kind = {f"{kind}_us": float(sum(us for name, (_, us) in kernels.items() if kind_of(name) == kind)) for kind in KINDS}
    row = {"label": cell.label, "kind": cell.kind, "status": record["status"], **cell.row()}
    if not found:
        return row
    return row | {k: v for k, v in found.items() if k != "kernels"} | by_kind | {"launches": int(sum(n for n, _ in kernels.values()))}
