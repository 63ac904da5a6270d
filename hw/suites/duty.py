"""duty: prefill in a row after quiet, and decodes before, between and after prefill at several duties, the card's clock and power beside.

Protocol (duty/1). A grid repeats each cell by itself, so what an iteration leaves the next one - a clock that a power limit has lowered -
is in none of its cells, or in all of them. Here a row of chunks begins after a quiet of known length, and a batch of decodes runs BEFORE_S
by itself, then DUTY_S with a chunk in every k-th iteration, then AFTER_S by itself again. Every iteration is kept with its time since the
part began, and every reading of clock and power, CLOCK_MS apart. Chunk lengths are first warmed up, which is not kept. Nothing is averaged.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hw.cells import Cell
from hw.clocks import clocks
from hw.composition import FIELDS
from hw.journal import Journal
from hw.pace import Budget, paced
from hw.suites.engine_grid import engine_set_aside, undisturbed
from sim.errors import SimctlError

PROTOCOL = "duty/1"
CLOCK_MS = 20
ROW_S, BEFORE_S, DUTY_S, AFTER_S = 1.2, 0.5, 1.6, 1.0
MOST_STEPS = 900  # of one batch of decodes, all its parts together
RESERVE_S = 5.0

SEQUENCE = {
    "label": ("what was run", ""),
    "kind": ("row (chunks one after another, after quiet) or duty (decodes before, between and after prefill)", ""),
    "status": ("ok, oom or error", ""),
    "decodes": ("decoding sequences", "1"),
    "context_tokens": ("their context at the beginning", "tokens"),
    "chunk_tokens": ("tokens of each chunk", "tokens"),
    "every": ("a chunk in every so many iterations", "1"),
    "quiet_s": ("nothing was run for so long before", "s"),
}
ITERATION = {
    "sequence_index": ("index into the sequence dimension", "1"),
    "part": ("before, during or after", ""),
    "since_s": ("from the beginning of its part to its own", "s"),
    "at_s": ("from the beginning of its sequence to its own", "s"),
    "step_s": ("wall time of the engine step, scheduling to outputs", "s"),
    "model_s": ("part of it from schedule decided to tokens on the host", "s"),
    **{name: FIELDS[name] for name in ("decode_seqs", "decode_context_tokens", "prefill_tokens")},
}
READING = {
    "reading_sequence_index": ("index into the sequence dimension", "1"),
    "reading_s": ("from the beginning of its sequence", "s"),
    "sm_mhz": ("clock of the first GPU's multiprocessors", "MHz"),
    "power_w": ("power it drew", "W"),
}


@dataclass(frozen=True, slots=True)
class Duty:
    """Chunks in a row after `quiet_s` (no decodes), or decodes with a chunk in every `every`-th iteration. Lengths in tokens."""

    chunk: int
    quiet_s: float
    decodes: int = 0
    context: int = 0
    every: int = 1

    @property
    def label(self) -> str:
        if not self.decodes:
            return f"row {self.chunk} after {self.quiet_s:g} s"
        return f"duty {self.decodes}x{self.context}+{self.chunk} every {self.every}"


def sequences(scale: int = 1) -> list[Duty]:
    """Every length divided by `scale`: rows of three chunk lengths after two quiets, then decodes at duties from little to most."""
    rows = [Duty(chunk // scale, quiet) for chunk in (512, 2048, 8192) for quiet in (0.3, 1.5)]
    shared = [
        (48, 768, chunk, every) for chunk, every in ((512, 2), (512, 4), (512, 12), (1024, 3), (2048, 2), (2048, 4), (2048, 12), (8192, 4))
    ]
    shared += [(n, context, chunk, every) for n, context in ((16, 1024), (128, 1024), (16, 8192)) for chunk, every in ((512, 4), (2048, 3))]
    return rows + [Duty(chunk // scale, 0.4, n, context // scale, every) for n, context, chunk, every in shared]


def measure(
    engine: Any, wanted: Sequence[Duty], journal: Journal, budget: Budget, rng: np.random.Generator, name: str, seconds: float = 1.0
) -> dict[str, Any]:
    """Run the sequences into the journal until done or out of budget, every part `seconds` times as long. Returns attributes."""
    with engine_set_aside(), clocks(CLOCK_MS) as readings:
        for chunk in sorted({one.chunk for one in wanted}):
            _prefill(engine, chunk, rng)
            engine.step()
            engine.drain()
        for one in paced([one for one in wanted if one.label not in journal], budget, name, reserve_s=RESERVE_S):
            rows: list[dict[str, Any]] = []
            time.sleep(one.quiet_s * min(seconds, 1.0))
            begin = time.perf_counter()
            try:
                with undisturbed():
                    _run(engine, one, rng, rows, seconds)
                status, error = "ok", ""
            except Exception as failure:  # an engine may raise anything; what it says is kept, KeyboardInterrupt is not caught
                text = f"{type(failure).__name__}: {failure}"
                rows, status, error = [], "oom" if "out of memory" in text.lower() else "error", text[:300]
            engine.drain()
            end = time.perf_counter()
            own = [(r.at_s - begin, r.clock_mhz, r.power_w) for r in list(readings) if begin - one.quiet_s <= r.at_s <= end]
            journal.add(one.label, row=_described(one) | {"status": status}, error=error, rows=rows, readings=own)
    return {"finished": int(all(one.label in journal for one in wanted))}


def _run(engine: Any, one: Duty, rng: np.random.Generator, rows: list[dict[str, Any]], seconds: float) -> None:
    begin, steps = time.perf_counter(), 0
    if one.decodes:
        engine.place(Cell("decode", (one.context,) * one.decodes), rng, output_tokens=MOST_STEPS + 1)
    parts = (("before", BEFORE_S, 0), ("during", DUTY_S, one.every), ("after", AFTER_S, 0)) if one.decodes else (("during", ROW_S, 1),)
    for part, length_s, every in parts:
        first, place = time.perf_counter(), 0
        while time.perf_counter() - first < length_s * seconds and steps < MOST_STEPS:
            if every and place % every == 0:
                _prefill(engine, one.chunk, rng)
            now = time.perf_counter()
            iteration, _ = engine.step()
            if iteration is None:
                raise SimctlError("the engine scheduled nothing")
            times = {"step_s": iteration.step_s, "model_s": iteration.model_s}
            counts = {name: iteration.counts[name] for name in ("decode_seqs", "decode_context_tokens", "prefill_tokens")}
            rows.append({"part": part, "since_s": round(now - first, 6), "at_s": round(now - begin, 6), **times, **counts})
            place, steps = place + 1, steps + 1


def _prefill(engine: Any, tokens: int, rng: np.random.Generator) -> None:
    engine.add_chunks(Cell("prefill", (), ((0, tokens),)), rng)


def _described(one: Duty) -> dict[str, Any]:
    return {
        "label": one.label,
        "kind": "duty" if one.decodes else "row",
        "decodes": one.decodes,
        "context_tokens": one.context,
        "chunk_tokens": one.chunk,
        "every": one.every,
        "quiet_s": one.quiet_s,
    }


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset with dims `sequence`, `iteration` and `reading` (none where no card tells its clock)."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    iterations = [{"sequence_index": i, **row} for i, record in enumerate(records) for row in record["rows"]]
    readings = [
        {"reading_sequence_index": i, "reading_s": at_s, "sm_mhz": clock, "power_w": power}
        for i, record in enumerate(records)
        for at_s, clock, power in record["readings"]
    ]
    variables = table("sequence", [record["row"] for record in records], SEQUENCE)
    variables |= table("iteration", iterations, ITERATION) | table("reading", readings, READING)
    derived = {"protocol": PROTOCOL, "sequences_ok": sum(record["row"]["status"] == "ok" for record in records)}
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": "duty", **derived, **attrs})
