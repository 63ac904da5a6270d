"""Report of a loop on a GPU: every decode step as it was predicted before and after learning, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number

WHEN = {"before": "predicted before", "after": "predicted after learning"}
MOST = 400


def part_of(found: Mapping[str, Any]) -> ReportPart:
    """The report of the file loop.json. Raises KeyError, TypeError or ValueError for anything else."""
    steps = found["steps"][:MOST]
    heads, rows = [], []
    for when, series in WHEN.items():
        errors = np.array([float(s[f"{when}_s"][1]) / float(s["measured_s"]) - 1 for s in steps])
        inside = sum(float(s[f"{when}_s"][0]) <= float(s["measured_s"]) <= float(s[f"{when}_s"][2]) for s in steps)
        share = (("inside 90 %", f"{inside} of {len(steps)}"),)
        heads.append(Headline(f"Error, {series}", number(100 * float(np.median(np.abs(errors))), "%"), share))
        rows += [
            {"x": 100 * float(e), "verdict": cut(str(s["cell"]).split(" ")[0], 20), "series": series, "name": cut(s["cell"], 40)}
            for s, e in zip(steps, errors, strict=True)
        ]
    spec = charts.strip(rows, charts.axis("median error, predicted - measured (%)"), "verdict", list(WHEN.values()),
                        (("name", "step"), ("series", "when"), ("x", "error (%)")))  # fmt: skip
    reading = f"{heads[0].value} off in the median before anything was learnt here, {heads[1].value} after; each tick is a step."
    picture = Picture("steps", "How far off are decode steps, before and after learning?", reading, spec)
    table = [
        (cut(s["cell"], 40), *(number(1e3 * float(v), "ms") for v in (s["before_s"][1], s["after_s"][1], s["measured_s"]))) for s in steps
    ]
    rates = [(cut(r["name"], 30), cut(r["unit"], 20), number(r["prior"][1]), *(number(v) for v in r["posterior"])) for r in found["rates"]]
    tables: list[Any] = [("Steps", ("step", "before", "learnt", "measured"), table),
                         ("Rates", ("rate", "unit", "before", "5 %", "learnt", "95 %"), rates)]  # fmt: skip
    if served := found["served"][:MOST]:
        loads = [(cut(s["load"], 40), cut(s["metric"], 20), WHEN[s["when"]], number(100 * float(s["median_abs"]), "%")) for s in served]
        tables.append(("Served load", ("load", "metric", "when", "median error"), loads))
    scope = [f"Before: {cut(found['before'], 400)}.", "No step of these was learnt from."]
    title = f"Loop: {cut(found['model'], 40)} on {cut(found['gpu'], 40)}"
    return ReportPart(title, "What was predicted of this card, and what was measured?", [], heads, scope, [picture], tables=tables)
