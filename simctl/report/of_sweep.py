"""Report of a sweep: its figures over the option with the most values, by the values of another."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.results.metrics import LATENCIES
from sim.results.paired import PAIRS, difference
from sim.sweeps.store import FORMAT, needs_zarr
from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number, span, thinned

MARK = ".zgroup"  # what a folder has that is a store
FIRST = (
    "goal.chance",
    "p99_ttft_ms",
    "p99_tpot_ms",
    "p99_e2el_ms",
    "output_throughput",
    "usd_per_mtok",
    "request_throughput",
    "busy_fraction",
)
MOST_PICTURES, MOST_CELLS, MOST_LINES = 8, 1500, 5
Column = NDArray[Any]


def part_of(path: Path) -> ReportPart:
    """The report of a store of `simctl sweep`. Raises UsageError for any other folder."""
    import xarray as xr

    needs_zarr()
    try:
        with warnings.catch_warnings(action="ignore"), xr.open_zarr(path, chunks=None) as opened:
            found = opened.load()
    except Exception as error:  # zarr, its codecs and the file system have no error in common
        raise UsageError(f"{path}: no sweep that can be read ({type(error).__name__})") from None
    if found.attrs.get("format") != FORMAT:
        raise UsageError(f"{path}: not a store of `simctl sweep`")
    axes = _axes(found)
    done = found["done"].values.ravel().astype(bool)
    figures = [name for name in json.loads(found.attrs["figures"]) if name in found and found[name].dtype.kind == "f"]
    reported = [name for name in json.loads(found.attrs.get("report", "[]")) if name in figures]
    ordered = list(dict.fromkeys([*reported, *(name for name in FIRST if name in figures), *figures]))
    reasons = Counter(cut(each, 160) for each in found["reason"].values.ravel().astype(str).tolist() if each)
    options = [(cut(name, 40), cut(value, 80)) for name, value in list(json.loads(found.attrs["options"]).items())[:40]]
    heads = [Headline("Cells answered", f"{int(done.sum()):,} of {len(done):,}"), *(_range(found, name) for name in ordered[:4])]
    pictures = [picture for name in ordered[:MOST_PICTURES] for picture in _picture(found, name, axes)]
    notes = [f"Without an answer: {count} cells, {why}." for why, count in reasons.most_common(8)]
    if missing := int((~done).sum()):
        notes.append(f"{missing:,} cells are not answered yet: the same simctl sweep goes on.")
    question = cut(found.attrs["question"], 300)
    varied = "; ".join(f"{cut(name, 40)} ({len(np.unique(values))} values)" for name, values in axes.items())
    scope = ["Intervals are those of every cell, over draws of its rates; cells differ in what of them was measured."]
    return ReportPart(
        f"Sweep over {varied}", question if question.endswith("?") else f"{question}?", options, heads, scope, pictures, notes
    )


def _axes(found: Any) -> dict[str, Column]:
    """The value of every option at every cell, flat; the option with the most values first."""
    names = [str(name) for name in found.coords if name != "bound"]
    cells = found["done"]
    columns = {
        name: np.broadcast_to(found[name].broadcast_like(cells).transpose(*cells.dims).values, cells.shape).ravel() for name in names
    }
    return dict(sorted(columns.items(), key=lambda pair: (pair[1].dtype.kind not in "if", -len(np.unique(pair[1])))))


def _unit(found: Any, name: str) -> str:
    unit = str(found[name].attrs.get("units", ""))
    return "" if unit == "1" else cut(unit, 20)


def _label(name: str) -> str:
    words = cut(name, 40).removesuffix("_ms").replace("_", " ").replace(".", " ").split()
    return " ".join(word.upper() if word in (*LATENCIES, "usd") or word[1:].isdigit() else word for word in words)


def _range(found: Any, name: str) -> Headline:
    values = found[name].values[np.isfinite(found[name].values)]
    return Headline(_label(name), span(float(values.min()), float(values.max()), _unit(found, name)) if len(values) else "–")


def _picture(found: Any, name: str, axes: Mapping[str, Column]) -> Iterator[Picture]:
    """One figure over the first axis, by the values of the second where they are few, with intervals over rates where there are any."""
    values, label, unit = found[name].values.ravel(), _label(name), _unit(found, name)
    first, *others = axes or {"cell": np.arange(len(values))}
    bounds = found[f"{name}_rates_90"].values.reshape(-1, 2) if f"{name}_rates_90" in found else np.full((len(values), 2), np.nan)
    across = np.asarray(axes[first] if axes else np.arange(len(values)))
    by = next((other for other in others if len(np.unique(axes[other])) <= MOST_LINES), None)
    places = [int(i) for i in np.lexsort((across, axes[by] if by else across)) if np.isfinite(values[i])]
    if not places or across.dtype.kind not in "if":
        return
    rows = [_row(i, across, values, bounds, by, axes) for i in thinned(places, MOST_CELLS)]
    names = list(dict.fromkeys(row["series"] for row in rows))
    low, high = min(rows, key=lambda row: row["y"]), max(rows, key=lambda row: row["y"])
    reading = f"It is lowest, {number(low['y'], unit)}, at {low['text']}, and highest, {number(high['y'], unit)}, at {high['text']}."
    pairs = found[f"{name}_pairs"].values if f"{name}_pairs" in found else np.empty(0)
    if low is not high and pairs.dtype.kind == "f" and pairs.size == len(values) * PAIRS:
        pairs = pairs.reshape(-1, PAIRS)
        if gap := difference(pairs[low["place"]], pairs[high["place"]]):
            said = f"{number(gap[0], unit)}, 90 %: {span(*gap[1:], unit)}, on the same arrivals"
            reading += f" There is no difference: {said}." if gap[1] <= 0.0 <= gap[2] else f" The difference is {said}."
    tooltip = (("text", "at"), ("y", label), *([("between", "90 % of draws")] if any("low" in row for row in rows) else []))
    title = f"{label} ({unit or 'share' if name.endswith(('chance', 'fraction', 'rate')) else unit or 'count'})"
    positive = min(min(row["y"], row.get("low", row["y"])) for row in rows) > 0 and high["y"] > 50 * low["y"]
    reach: Sequence[float] = [row[edge] for row in rows for edge in ("y", "low", "high") if edge in row] if positive else ()
    y = charts.axis(f"{title}, log scale" if positive else title, reach, zero=True, format="~s")
    spec = charts.scatter(
        rows, charts.axis(f"{cut(first, 40)} (as the option)"), y, names, tooltip, joined=len(axes) <= 2 and "sample" not in found.dims
    )
    table = [[row["text"], number(row["y"], unit), span(row["low"], row["high"]) if "low" in row else ""] for row in thinned(rows)]
    yield Picture(name.replace(".", "_").replace("/", "_"), f"How does {label} change with {cut(first, 40)}?", reading, spec,
                  ("cell", label, "90 %"), table)  # fmt: skip


def _row(place: int, across: Column, values: Column, bounds: Column, by: str | None, axes: Mapping[str, Column]) -> dict[str, Any]:
    where = ", ".join(f"{cut(name, 40)} {cut(column[place], 40)}" for name, column in axes.items())
    series = f"{cut(by, 40)} {cut(axes[by][place], 40)}" if by else "cells"
    row = {"place": place, "x": float(across[place]), "y": float(values[place]), "series": series, "text": where}
    return row | ({"low": float(bounds[place, 0]), "high": float(bounds[place, 1])} if np.isfinite(bounds[place]).all() else {})
