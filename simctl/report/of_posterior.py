"""Report of a posterior of a GPU's rates: how well each is known, where it comes from, and how the fit did on cells it did not see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sim.cost.rates import UNITS
from sim.rates.posterior import PosteriorFile, read_posterior
from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number, span

SETTINGS = ("sampler", "chains", "tune", "draws_sampled", "divergences", "ess_min", "seed", "engine", "weight_dtype")
MOST_PARTS = 24  # of what was held out
RUNS = "leave one run out"  # by run they are too many to see
MOST_WIDE = 10.0  # times the median: a rate of which next to nothing is known would make all others dots


def part_of(path: Path) -> ReportPart:
    """The report of a posterior file. Raises PosteriorError for any other file, OSError where it cannot be read."""
    found = read_posterior(path)
    gpu = cut(found.attrs["gpu"], 40)
    rates = [name for name in UNITS if name in found.variables]
    where = sorted({str(found.sources[name].origin) for name in rates if name in found.sources})
    learnt = [name for name in rates if name in found.sources and found.sources[name].measured]
    outside = [name for name in rates if name not in learnt]
    wide = {name: _width(found, name) for name in learnt or rates}
    held = _held_out(found)
    whole = next((row for row in held if row[0] == "all"), None)
    heads = [
        Headline("Rates learnt from measurements of this GPU", f"{len(learnt)} of {len(rates)}"),
        *([Headline("Median error on held-out cells", number(100 * whole[3], "%"))] if whole else []),
        *([Headline("Best-known rate, half its interval", number(100 * min(wide.values()), "%"))] if wide else []),
        *([Headline("Least-known of these", number(100 * max(wide.values()), "%"))] if wide else []),
        Headline("Largest R-hat", number(found.number("rhat_max", float("nan")))),
    ]
    scope = [
        f"{cut(found.source.text(), 400)}.",
        f"Not measured on this GPU: {', '.join(outside)}." if outside else "All of its rates were measured on this GPU.",
        "" if found.source.converged else "The sampler did not converge: do not use these rates.",
    ]
    settings = [(name, cut(found.attrs[name])) for name in SETTINGS if name in found.attrs]
    subject = f"the GPU population ({len(where)} kinds of evidence)" if gpu == "*" else gpu
    pictures = [*_forest(found, rates), *_errors(held)]
    return ReportPart(f"Posterior of {subject}", f"How fast is {subject}, and how well do we know?", settings, heads, scope, pictures)


def _quantiles(found: PosteriorFile, name: str) -> tuple[float, float, float]:
    low, mid, high = np.quantile(found.variables[name], (0.05, 0.5, 0.95))
    return float(low), float(mid), float(high)


def _width(found: PosteriorFile, name: str) -> float:
    """Half a 90 % interval over the median."""
    low, mid, high = _quantiles(found, name)
    return (high - low) / (2 * mid) if mid > 0 else float("nan")


def _forest(found: PosteriorFile, rates: list[str]) -> Iterator[Picture]:
    """Every rate over its median; values with units as numbers."""
    table, clipped = [], 0
    rows: list[charts.Row] = []
    for name in rates:
        low, mid, high = _quantiles(found, name)
        table.append(
            [name, number(mid), span(low, high), UNITS[name], cut(found.sources[name].text() if name in found.sources else "", 90)]
        )
        if not mid > 0:
            continue
        from_ = str(found.sources[name].origin) if name in found.sources else "not said"
        edges = max(low / mid, 1 / MOST_WIDE), min(high / mid, MOST_WIDE)
        clipped += edges != (low / mid, high / mid)
        rows.append({"name": name, "x": 1.0, "low": edges[0], "high": edges[1], "series": from_, "text": f"{mid:.4g} {UNITS[name]}"})
    if not rows:
        return
    names = list(dict.fromkeys(row["series"] for row in rows))
    known = min(rows, key=lambda row: row["high"] / row["low"])
    least = max(rows, key=lambda row: row["high"] / row["low"])
    reading = f"{known['name']} is known best and {least['name']} least; each bar holds 90 % of its draws, over their median."
    if clipped:
        reading += f" {clipped} bars are cut at a factor of {MOST_WIDE:g}."
    x = charts.axis("rate over its median, log scale", [value for row in rows for value in (row["low"], row["high"])])
    tooltip = (("name", "rate"), ("text", "median"), ("low", "5 % / median"), ("high", "95 % / median"), ("series", "from"))
    spec = charts.forest(rows, x, names, 1.0, tooltip)
    yield Picture("rates", "How well is each rate known?", reading, spec, ("rate", "median", "90 %", "unit", "from"), table)


Held = list[tuple[str, str, int, float, float, float]]


def _held_out(found: PosteriorFile) -> Held:
    """(part, what was left out, cells, median, p90 and worst error) of what the fit did not see; empty where none can be read."""
    try:
        held: Any = json.loads(str(found.attrs.get("held_out", "[]")))
        named = [(cut(each["part"], 40), cut(each["folds"], 40), each["scores"]) for each in held]
        rows = [(part, folds, int(s["n"]), float(s["median"]), float(s["p90"]), float(s["worst"])) for part, folds, s in named]
        return [row for row in rows if row[0] == "all" or row[1] != RUNS][:MOST_PARTS]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _errors(held: Held) -> Iterator[Picture]:
    if not held:
        return
    rows: list[charts.Row] = [
        {"name": part, "x": 100 * mid, "low": 100 * mid, "high": 100 * high, "series": folds, "text": f"{100 * worst:.3g} %", "n": n}
        for part, folds, n, mid, high, worst in held
    ]
    first, names = rows[0], list(dict.fromkeys(row["series"] for row in rows))[: len(charts.COLOURS)]
    rows = [row for row in rows if row["series"] in names]
    reading = (
        f"Half of the step times ({first['name']}, {first['series']}) are within {number(first['x'], '%')}, 90 % within "
        f"{number(first['high'], '%')}: dots are medians, lines go to the 90th percentile."
    )
    tooltip = (("name", "part"), ("series", "left out"), ("x", "median %"), ("high", "p90 %"), ("text", "worst"), ("n", "cells"))
    spec = charts.forest(rows, charts.axis("error of the step time (%)", zero=True), names, None, tooltip)
    table = [
        [f"{row['name']}, {row['series']}", str(row["n"]), number(row["x"], "%"), number(row["high"], "%"), row["text"]] for row in rows
    ]
    yield Picture(
        "held_out", "How far off is it on what it was not fitted to?", reading, spec, ("part", "cells", "median", "p90", "worst"), table
    )
