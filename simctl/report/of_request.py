"""Picture of a fleet around one request: a lane per replica, coloured by what its iterations computed, and the request's stages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.results.iteration_shares import OTHERS, WHOSE, shares
from sim.results.record import RunRecord
from sim.results.timeline import Piece, timeline
from sim.ticks import TICK_S
from simctl.report import charts
from simctl.report.page import Picture, cut, number
from simctl.text.explain_text import STAGES

IDLE, DECODES, PREFILL = (242, 242, 242), (92, 140, 191), (242, 143, 43)
COLOURS = {
    "router": "#8c8c8c", "api_server": "#595959", "kv": "#9467bd", "moved": "#9467bd", "queue": "#d62728", "prefill": "#8c4b00",
    "stalled": "#e377c2", "lost": "#000000", "preempted": "#e377c2", "decode": "#12456f", "recompute": "#000000",
}  # fmt: skip
COLUMNS, LANES, MARGIN = 400, 24, 0.03
Floats = NDArray[np.float64]


def picture(record: RunRecord, request_id: str) -> Picture:
    """The request of that name and the replicas while it was there; of a fleet of more than LANES, its own and the first."""
    course = timeline(record, list(record.request_ids).index(request_id))
    begin, end = course.arrival * TICK_S, course.over * TICK_S
    edges = np.linspace(begin - MARGIN * (end - begin), end + MARGIN * (end - begin), COLUMNS + 1)
    lanes = _lanes(record, course.pieces)
    x: dict[str, Any] = charts.axis("simulated time (s)", scale={"domain": edges[[0, -1]].tolist()}, nice=False, format="~g")
    y = {
        "field": "name",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [f"replica {each}" for each in lanes], "paddingInner": 0.15},
    }
    place = {"x": x | {"field": "x"}, "x2": {"field": "x2"}, "y": y}
    computed = [row for replica in lanes for row in _computed(record, replica, edges)]
    own = list(_stages(record, course.pieces, lanes))
    seen = list(dict.fromkeys(row["series"] for row in own))
    named = {"prefill": _hex(PREFILL), "decode": _hex(DECODES), "idle": _hex(IDLE), **{f"its: {STAGES[s]}": COLOURS[s] for s in seen}}
    legend = {"field": "series", "type": "nominal", "scale": {"domain": list(named), "range": list(named.values())}}
    layers: list[charts.Spec] = [
        {"data": {"values": computed}, "mark": {"type": "rect"},
         "encoding": place | {"fill": {"field": "colour", "type": "nominal", "scale": None}}},
        {"data": {"values": [row | {"series": f"its: {STAGES[row['series']]}"} for row in own]},
         "mark": {"type": "bar", "height": {"band": 0.3}, "stroke": "var(--page)", "strokeWidth": 0.3},
         "encoding": place | {"color": legend}},
    ]  # fmt: skip
    for text, at, side in _moments(begin, None if course.had_first is None else course.had_first * TICK_S, end, course.finished):
        point = {"x": x | {"field": "x"}}
        layers.append({"data": {"values": [{"x": at}]}, "mark": {"type": "rule", "strokeDash": [2, 2]}, "encoding": point})
        label = {"type": "text", "text": f" {text} ", "align": side, "baseline": "bottom", "y": -3}
        layers.append({"data": {"values": [{"x": at}]}, "mark": label, "encoding": point})
    reading = f"It took {number(end - begin, 's')}: thin bars are its stages, lanes what each replica computed meanwhile."
    spec = charts.whole(layers, [], 34 * len(lanes))
    return Picture("request", f"Where was request {cut(request_id, 40)}, and what did the replicas do?", reading, spec)


def _moments(begin: float, first: float | None, end: float, finished: bool) -> Iterator[tuple[str, float, str]]:
    """(label, when, side to which its text is aligned): a label in between points away from the nearer of the others."""
    yield "sent", begin, "right"
    if first is not None:
        yield "first token", first, "left" if first - begin < end - first else "right"
    yield "last token" if finished else "over", end, "left"


def _replica(record: RunRecord, piece: Piece) -> int | None:
    return int(record.iterations["iteration_replica"][piece.iteration]) if piece.iteration >= 0 else None


def _lanes(record: RunRecord, pieces: tuple[Piece, ...]) -> list[int]:
    """The replicas that are drawn, ascending."""
    own = list(dict.fromkeys(replica for piece in pieces if (replica := _replica(record, piece)) is not None))
    others = [replica for replica in np.unique(record.iterations["iteration_replica"].astype(int)).tolist() if replica not in own]
    return sorted([*own, *others][:LANES])


def _computed(record: RunRecord, replica: int, edges: Floats) -> Iterator[charts.Row]:
    """Columns of a replica's lane, those of one colour joined: as much of idle, decode and prefill as there is of each."""
    log = record.iterations
    places = np.flatnonzero(log["iteration_replica"] == replica)
    start, took = log["start_s"][places], log["duration_s"][places]
    whose = shares(record, places, -1).whose
    prefill = took * whose[:, WHOSE.index(OTHERS)] / whose.sum(axis=1)
    busy, filling = (_per_column(start, took, seconds, edges) / (edges[1] - edges[0]) for seconds in (took, prefill))
    parts = np.clip(np.stack([1 - busy, busy - filling, filling], axis=1), 0.0, 1.0)
    colours = [_hex(row) for row in (parts @ np.array([IDLE, DECODES, PREFILL], dtype=float)).tolist()]
    for colour, columns in groupby(range(COLUMNS), key=colours.__getitem__):
        run = list(columns)
        yield {"x": float(edges[run[0]]), "x2": float(edges[run[-1] + 1]), "name": f"replica {replica}", "colour": colour}


def _hex(colour: tuple[float, ...] | list[float]) -> str:
    return "#" + "".join(f"{round(min(each, 255)):02x}" for each in colour)


def _per_column(start: Floats, took: Floats, seconds: Floats, edges: Floats) -> Floats:
    """Of what iterations have each of `seconds`, spread evenly over their time, how much falls between two edges."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    times = np.maximum.accumulate(np.stack([start, start + took], axis=1).ravel())
    upto = np.repeat(np.concatenate([[0.0], np.cumsum(seconds)]), 2)[1:-1]
    return np.diff(np.interp(edges, times, upto))


def _stages(record: RunRecord, pieces: tuple[Piece, ...], lanes: list[int]) -> Iterator[charts.Row]:
    """The stages of the request as bars on the lane of its replica; outside of engines, on that of the next one."""
    replica = lanes[0]
    bands: list[tuple[str, int, Piece]] = []
    for piece in reversed(pieces):
        here = _replica(record, piece)
        replica = replica if here is None else here
        bands.insert(0, (piece.stage, replica, piece))
    for (stage, replica), group in groupby(bands, key=lambda band: band[:2]):
        run = [piece for _, _, piece in group]
        yield {"x": run[0].begin * TICK_S, "x2": run[-1].end * TICK_S, "name": f"replica {replica}", "series": stage}
