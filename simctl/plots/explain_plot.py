"""A picture of the fleet around one request: a lane per replica, coloured by what its iterations computed, and the request's stages."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.results.record import RunRecord
from sim.results.shares import OTHERS, WHOSE, shares
from sim.results.timeline import Piece, timeline
from sim.ticks import TICK_S
from simctl.plots.answer_plots import new_figure, save
from simctl.text.explain_text import STAGES

IDLE, DECODES, PREFILL = (0.95, 0.95, 0.95), (0.36, 0.55, 0.75), (0.95, 0.56, 0.17)
COLOURS = {
    "router": "0.55", "api_server": "0.35", "kv": "#9467bd", "moved": "#9467bd", "queue": "#d62728", "prefill": "#8c4b00",
    "stalled": "#e377c2", "lost": "#000000", "preempted": "#e377c2", "decode": "#12456f", "recompute": "#000000",
}  # fmt: skip
COLUMNS, LANES, MARGIN = 1600, 24, 0.03
Floats = NDArray[np.float64]


def plot_request(record: RunRecord, request_id: str, target: Path) -> None:
    """Draw the request of that name and the replicas while it was there; of a fleet of more than LANES, its own and the first."""
    course = timeline(record, list(record.request_ids).index(request_id))
    begin, end = course.arrival * TICK_S, course.over * TICK_S
    edges = np.linspace(begin - MARGIN * (end - begin), end + MARGIN * (end - begin), COLUMNS + 1)
    lanes = _lanes(record, course.pieces)
    figure = new_figure(9.0, 1.4 + 0.42 * len(lanes))
    axes = figure.subplots()
    for height, replica in enumerate(lanes):
        place = (edges[0], edges[-1], height + 0.38, height - 0.38)
        axes.imshow(_lane(record, replica, edges)[None], extent=place, aspect="auto")
    _mark_stages(axes, record, course.pieces, lanes)
    _mark_time(axes, begin, "sent", "right")
    if course.had_first is not None:
        first = course.had_first * TICK_S
        _mark_time(axes, first, "first token", "left" if first - begin < end - first else "right")  # away from the nearer label
    _mark_time(axes, end, "last token" if course.finished else "over", "left")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes)), [f"replica {replica}" for replica in lanes], fontsize=8)
    axes.set_xlabel("simulated time (s)")
    axes.set_title(f"request {request_id}", loc="left", fontsize=10, pad=16)
    _legend(axes, course.pieces)
    save(figure, target)


def _replica(record: RunRecord, piece: Piece) -> int | None:
    return int(record.iterations["iteration_replica"][piece.iteration]) if piece.iteration >= 0 else None


def _lanes(record: RunRecord, pieces: tuple[Piece, ...]) -> list[int]:
    """The replicas that are drawn, ascending."""
    own = list(dict.fromkeys(replica for piece in pieces if (replica := _replica(record, piece)) is not None))
    others = [replica for replica in np.unique(record.iterations["iteration_replica"].astype(int)).tolist() if replica not in own]
    return sorted([*own, *others][:LANES])


def _lane(record: RunRecord, replica: int, edges: Floats) -> Floats:
    """Colours [columns, 3] of a replica: as much of idle, decode and prefill as there is of each in a column."""
    log = record.iterations
    places = np.flatnonzero(log["iteration_replica"] == replica)
    start, took = log["start_s"][places], log["duration_s"][places]
    whose = shares(record, places, -1).whose
    prefill = took * whose[:, WHOSE.index(OTHERS)] / whose.sum(axis=1)
    busy, filling = (_per_column(start, took, seconds, edges) / (edges[1] - edges[0]) for seconds in (took, prefill))
    parts = np.stack([1 - busy, busy - filling, filling], axis=1)
    colours: Floats = np.clip(parts @ np.array([IDLE, DECODES, PREFILL]), 0.0, 1.0)
    return colours


def _per_column(start: Floats, took: Floats, seconds: Floats, edges: Floats) -> Floats:
    """Of what iterations have each of `seconds`, spread evenly over their time, how much falls between two edges."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    times = np.maximum.accumulate(np.stack([start, start + took], axis=1).ravel())
    upto = np.repeat(np.concatenate([[0.0], np.cumsum(seconds)]), 2)[1:-1]
    return np.diff(np.interp(edges, times, upto))


def _mark_stages(axes: Any, record: RunRecord, pieces: tuple[Piece, ...], lanes: list[int]) -> None:
    """The stages of the request as a band on the lane of its replica; outside of engines, on that of the next one."""
    replica = lanes[0]
    bands: list[tuple[str, int, Piece]] = []
    for piece in reversed(pieces):
        here = _replica(record, piece)
        replica = replica if here is None else here
        bands.insert(0, (piece.stage, replica, piece))
    for (stage, replica), group in groupby(bands, key=lambda band: band[:2]):
        run = [piece for _, _, piece in group]
        left, right = run[0].begin * TICK_S, run[-1].end * TICK_S
        axes.barh(lanes.index(replica), right - left, left=left, height=0.24, color=COLOURS[stage], edgecolor="w", linewidth=0.3)


def _mark_time(axes: Any, seconds: float, label: str, side: str) -> None:
    axes.axvline(seconds, color="k", linewidth=0.8, linestyle=":")
    axes.text(seconds, -0.62, label, fontsize=7, ha=side, va="bottom")


def _legend(axes: Any, pieces: tuple[Piece, ...]) -> None:
    from matplotlib.patches import Patch

    lanes = [Patch(color=colour, label=label) for colour, label in ((PREFILL, "prefill"), (DECODES, "decode"), (IDLE, "idle"))]
    stages = dict.fromkeys(piece.stage for piece in pieces)
    own = [Patch(color=COLOURS[stage], label=f"its: {STAGES[stage]}") for stage in stages]
    axes.legend(handles=lanes + own, loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=7, frameon=False)
