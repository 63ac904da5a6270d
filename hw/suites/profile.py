"""profile: which kernels one engine iteration runs, how long each takes, and how long the GPU waits, over the cells of an engine grid.

Protocol (profile/1). A cell is placed and warmed up as the engine grid does it (WARM iterations of decodes, one of a chunk), then PROFILED
iterations run under the profiler; the one whose GPU was busy for the middle time is kept whole, of the others the least and most busy
time. Prefill comes first, with every chunk at every offset of the grid, then decodes. A greedy continuation is compared before and after
(gate). Kernel times are the device's own; a host under a profiler is slower, so that `wall_s`, `span_us` and what the GPU idles in it are
upper bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hw.cells import CHUNKS, OFFSETS, Cell, engine_grid, within
from hw.journal import Journal
from hw.pace import Budget, paced
from hw.suites.engine_grid import OUTPUT_TOKENS, WARM, engine_set_aside, undisturbed
from sim.errors import SimctlError

PROTOCOL = "profile/1"
PROFILED = 3  # iterations of a cell under the profiler
NAME_LENGTH = 150  # of a kernel: templates go on for thousands of letters


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel, copy or operator as it ran: start and end on one clock, and the time that is its own (without what it called)."""

    start_us: float
    end_us: float
    own_us: float
    name: str


class Recorder(Protocol):
    """Runs something and says which kernels ran."""

    def __call__(self, step: Callable[[], Any]) -> tuple[Any, list[Event]]: ...


def cells_of(
    rng: np.random.Generator, *, token_budget: int, fits: Callable[[Cell], bool], max_context: int, max_seqs: int, scale: int = 1
) -> list[Cell]:
    """Cells to profile, in order: the grid's prefill and mixed ones, every chunk at every offset, the grid's decodes."""
    limits: dict[str, Any] = {"token_budget": token_budget, "fits": fits, "max_context": max_context, "max_seqs": max_seqs}
    grid = engine_grid(rng, scale=scale, **limits)
    chunks = [Cell("prefill", (), ((o, c),)) for o in (0, *OFFSETS) for c in CHUNKS] if scale == 1 else []
    first = [c for c in grid if c.chunks]
    return list(dict.fromkeys([*first, *within(chunks, **limits), *grid]))


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
    """The iteration of one cell that was busy for the middle time of PROFILED. Leaves the engine empty."""
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
    if iteration is None:
        raise SimctlError("the engine scheduled nothing for this cell")
    if iteration.counts["decode_seqs"] < len(cell.contexts):
        raise SimctlError(f"only {iteration.counts['decode_seqs']} of {len(cell.contexts)} sequences were running")
    return {"wall_s": iteration.step_s, "model_s": iteration.model_s, **iteration.counts, **summed(events)}


def measure(
    engine: Any, cells: Iterable[Cell], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, record: Recorder
) -> dict[str, Any]:
    """Profile the cells into the journal until done or out of budget; one that fails is kept as such. Returns the gates as attributes."""
    asked = list(cells)
    with engine_set_aside():
        prompt = np.random.default_rng(7).integers(10, 1000, 64).tolist()
        before = engine.greedy(prompt, 16)
        for cell in paced([c for c in asked if c.label not in journal], budget, name, reserve_s=2.0):
            _one(engine, cell, journal, rng, record)
        after = engine.greedy(prompt, 16)
    agree = sum(a == b for a, b in zip(before, after, strict=True)) / len(before)
    return {"gate_top1_before_after": agree, "finished": int(all(c.label in journal for c in asked))}


def _one(engine: Any, cell: Cell, journal: Journal, rng: np.random.Generator, record: Recorder) -> None:
    try:
        with undisturbed():
            found, status, error = profile_cell(engine, cell, rng, record), "ok", ""
    except Exception as failure:  # an engine may raise anything; what it says is kept, KeyboardInterrupt is not caught
        text = f"{type(failure).__name__}: {failure}"
        found, status, error = {}, "oom" if "out of memory" in text.lower() else "error", text[:300]
    journal.add(cell.label, kind=cell.kind, status=status, error=error, cell=cell.record(), found=found)
