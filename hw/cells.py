"""Cells of an engine grid: decoding sequences with their contexts, and prefill chunks, most telling first; cells of a file.

Pure: nothing here touches a device. A cell says what one engine iteration carries; the runner repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UsageError

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
CONTEXTS = (128, 512, 2048, 8192, 32768, 65536, 120000)
ODD_BATCHES = (3, 5, 9, 17, 33, 70, 100, 180)  # between CUDA-graph capture sizes: what padding costs
CHUNKS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
OFFSETS = (4096, 16384, 65536, 112000)
PACKS = ((4, 512), (16, 128), (64, 32), (8, 1024), (2, 4096), (3, 700))
# What tables say of a cell: column, long name, unit.
REQUESTED = {
    "batch": ("decoding sequences asked for", "1"),
    "context_tokens": ("cached tokens of each at the start, mean", "tokens"),
    "context_sd_tokens": ("standard deviation of them over the sequences", "tokens"),
    "chunks": ("prefill chunks asked for", "1"),
    "chunk_tokens": ("tokens of each chunk", "tokens"),
    "offset_tokens": ("tokens cached before each chunk", "tokens"),
}
SCHEMA = "simctl-cells/1"
KINDS = ("decode", "ragged", "prefill", "packed", "mixed")
MOST_CELLS, MOST_BYTES = 10_000, 1 << 26
HEADROOM_TOKENS = 64  # decode steps a cell may take past its context


@dataclass(frozen=True, slots=True)
class Cell:
    """One composition. `contexts` are the tokens already cached of each decoding sequence; `chunks` are (offset, tokens) of prefill."""

    kind: str  # one of KINDS
    contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...] = ()
    priority: int = field(default=0, compare=False)  # when to measure it, not what it is

    @property
    def label(self) -> str:
        """Stable name: batch x context + chunks @ offset."""
        decode = f"{len(self.contexts)}x{self.contexts[0]}" if self.contexts else "0"
        if self.kind == "ragged":
            decode = f"{len(self.contexts)}ragged{sum(self.contexts)}"
        chunk = f"+{len(self.chunks)}x{self.chunks[0][1]}@{self.chunks[0][0]}" if self.chunks else ""
        return f"{self.kind}:{decode}{chunk}"

    @property
    def new_tokens(self) -> int:
        """Tokens one iteration computes."""
        return len(self.contexts) + sum(t for _, t in self.chunks)

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Cell:
        """The cell that `record` wrote, which a journal may have turned into lists."""
        return cls(record["kind"], tuple(record["contexts"]), tuple(map(tuple, record["chunks"])))

    def row(self) -> dict[str, Any]:
        """Columns of a cell in tables: numbers of sequences and chunks, and their sizes."""
        return {
            "batch": len(self.contexts),
            "context_tokens": float(np.mean(self.contexts)) if self.contexts else 0.0,
            "context_sd_tokens": float(np.std(self.contexts)) if self.contexts else 0.0,
            "chunks": len(self.chunks),
            "chunk_tokens": self.chunks[0][1] if self.chunks else 0,
            "offset_tokens": self.chunks[0][0] if self.chunks else 0,
        }


def decode_cells(batches: tuple[int, ...] = BATCHES, contexts: tuple[int, ...] = CONTEXTS) -> list[Cell]:
    """The (batch, context) ladder; powers of four and the outer contexts come first."""
    cells = []
    for batch in batches:
        for context in contexts:
            anchor = batch in (1, 4, 16, 64, 256) and context in (128, 2048, 32768)
            cells.append(Cell("decode", (context,) * batch, priority=0 if anchor else 3))
    cells += [Cell("decode", (1024,) * batch, priority=4) for batch in ODD_BATCHES]
    return cells


def ragged_cells(rng: np.random.Generator) -> list[Cell]:
    """Batches whose sequences differ in context (log-uniform from 128 tokens up to 32,768)."""
    cells = []
    for size in (8, 32, 96):
        lengths = np.exp(rng.uniform(np.log(128), np.log(32768), size)).astype(int)
        cells.append(Cell("ragged", tuple(int(n) for n in lengths), priority=4))
    return cells


def prefill_cells(chunks: tuple[int, ...] = CHUNKS, offsets: tuple[int, ...] = OFFSETS) -> list[Cell]:
    """One prompt chunk alone: by length from an empty cache, then on top of cached tokens; then several prompts at once."""
    cells = [Cell("prefill", (), ((0, c),), priority=1 if c in (64, 512, 2048, 8192) else 2) for c in chunks]
    late = [c for c in chunks if c in (64, 512, 2048, 8192)]
    cells += [Cell("prefill", (), ((o, c),), priority=2 if o == 16384 else 5) for o in offsets for c in late]
    cells += [Cell("packed", (), ((0, c),) * n, priority=5) for n, c in PACKS]
    return cells


def mixed_cells(token_budget: int) -> list[Cell]:
    """Running decodes joined by one prefill chunk, as chunked prefill schedules it."""
    cells = []
    for batch, context in ((8, 1024), (32, 1024), (32, 8192), (128, 1024), (128, 4096)):
        for chunk in (64, 256, 512, 2048, token_budget - batch):
            anchor = (batch, context) in ((32, 1024), (128, 4096)) and chunk != 256
            cells.append(Cell("mixed", (context,) * batch, ((0, chunk),), priority=2 if anchor else 6))
        cells.append(Cell("mixed", (context,) * batch, ((16384, 512),), priority=6))
    return cells


def engine_grid(
    rng: np.random.Generator, *, token_budget: int, fits: Callable[[Cell], bool], max_context: int, max_seqs: int, scale: int = 1
) -> list[Cell]:
    """All cells that fit the engine, in the order to measure them.

    `fits` says whether a cell's KV is within what the engine really got; `scale` > 1 divides every length (a slow machine's smaller grid).
    """
    if scale > 1:
        contexts = tuple(max(c // scale, 16) for c in CONTEXTS)
        chunks = tuple(c for c in CHUNKS if c <= token_budget)
        cells = decode_cells(tuple(b for b in BATCHES if b <= max_seqs), contexts) + prefill_cells(chunks, ())
    else:
        cells = decode_cells() + ragged_cells(rng) + prefill_cells() + mixed_cells(token_budget)
    return within(cells, token_budget, fits, max_context, max_seqs)


WEIGHT_AXIS = {2048: (1, 2, 4, 8, 16, 32, 48, 64), 8192: (1, 4, 6, 8, 9, 10, 11, 12, 14, 16, 32), 32000: (1, 2, 3, 4, 5, 6, 8, 16)}


def weight_axis(*, token_budget: int, fits: Callable[[Cell], bool], max_context: int, max_seqs: int) -> list[Cell]:
    """Decode ladders of the published weight-axis protocol: its contexts, and around the knees its finer rungs. Single streams first."""
    cells = [Cell("decode", (context,) * n, priority=int(n > 1)) for context, rungs in WEIGHT_AXIS.items() for n in rungs]
    return within(cells, token_budget, fits, max_context, max_seqs)


def within(cells: list[Cell], token_budget: int, fits: Callable[[Cell], bool], max_context: int, max_seqs: int) -> list[Cell]:
    """Those that the engine's limits and KV pool take, each once, by priority."""
    fitting = [
        c
        for c in dict.fromkeys(cells)
        if fits(c)
        and len(c.contexts) + len(c.chunks) <= max_seqs
        and c.new_tokens <= token_budget
        and max([n + HEADROOM_TOKENS for n in c.contexts] + [o + t + 16 for o, t in c.chunks]) <= max_context
    ]
    return sorted(fitting, key=lambda c: c.priority)


def read_cells(path: Path) -> tuple[str | None, list[Cell]]:
    """(model shape the cells were chosen for, or None; the cells, in order). Raises UsageError naming the file and the cell at fault.

    JSON: {"schema": "simctl-cells/1", "model": NAME, "cells": [CELL, ...]}, a CELL being
    {"kind": ..., "contexts": [tokens, ...], "chunks": [[offset, tokens], ...]}.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES} bytes: not a cells file")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name}: not JSON ({error})") from None
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UsageError(
            f"{path.name}: not a cells file (schema {body.get('schema') if isinstance(body, dict) else None!r}, want {SCHEMA!r})"
        )
    rows = body.get("cells")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_CELLS:
        raise UsageError(f"{path.name}: cells: needs a list of 1 to {MOST_CELLS} cells")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise UsageError(f"{path.name}: model: needs a name")
    return model, [_cell(path.name, i, row) for i, row in enumerate(rows)]


def _cell(name: str, index: int, row: Any) -> Cell:
    where = f"{name}: cells[{index}]"
    if not isinstance(row, dict) or row.get("kind") not in KINDS:
        raise UsageError(f"{where}: kind is none of {', '.join(KINDS)}")
    contexts, chunks = row.get("contexts", []), row.get("chunks", [])
    if not isinstance(contexts, list) or not all(_count(c, 1) for c in contexts):
        raise UsageError(f"{where}: contexts: needs a list of token counts")
    if not isinstance(chunks, list) or not all(isinstance(c, list) and len(c) == 2 and _count(c[0], 0) and _count(c[1], 1) for c in chunks):
        raise UsageError(f"{where}: chunks: needs a list of [offset, tokens]")
    if len({tuple(c) for c in chunks}) > 1:
        raise UsageError(f"{where}: chunks: must be equal to each other")
    if not contexts and not chunks:
        raise UsageError(f"{where}: neither contexts nor chunks: an empty iteration")
    return Cell(row["kind"], tuple(contexts), tuple((int(o), int(t)) for o, t in chunks))


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 1 << 24
