"""Report of a validation: reliability of the intervals, and errors of every experiment against their bounds."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number, thinned

CSV_HEAD = "run,gpu,model,experiment,metric,requests,median_abs,bias,coverage,bound,within,floor_above"
LABEL = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "p99_ttft_s": "p99 TTFT"}
MOST = 600  # dots
Reports = Sequence[Mapping[str, Any]]


def from_csv(text: str) -> list[dict[str, Any]]:
    """Reports as `simctl validate --json` prints them, of a table of scores. Raises KeyError or ValueError for another table."""
    runs: dict[str, dict[str, Any]] = {}
    try:
        rows = list(csv.DictReader(io.StringIO(text)))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    for row in rows:
        run = runs.setdefault(f"{row['gpu']} {row['run']}", {"run": row["run"], "gpu": row["gpu"], "model": row["model"], "scores": []})
        figures = {name: float(row[name]) if row[name] else None for name in ("median_abs", "bias", "coverage", "bound")}
        flags = {name: row[name] == "True" for name in ("within", "floor_above")}
        run["scores"].append({"experiment": row["experiment"], "metric": row["metric"], "requests": int(row["requests"])} | figures | flags)
    return list(runs.values())


def part_of(reports: Reports, name: str) -> ReportPart:
    """The report of what `simctl validate --json` prints. Raises KeyError, TypeError or ValueError for anything else."""
    scores = [(report, each) for report in reports for each in report["scores"]]
    within = sum(bool(each["within"]) for _, each in scores)
    heads = [Headline("Scores within their bound", f"{within} of {len(scores)}")]
    for metric, label in LABEL.items():
        here = sorted(float(each["median_abs"]) for _, each in scores if each["metric"] == metric and each["median_abs"] is not None)
        if here:
            low, mid, high = (here[min(len(here) - 1, int(q * len(here)))] for q in (0.05, 0.5, 0.95))
            between = f"{number(100 * low)} – {number(100 * high)}"
            heads.append(Headline(f"{label}, median error", number(100 * mid, "%"), (("over experiments", between),)))
    heads += [Headline(f"{LABEL[metric]} inside 90 % intervals", number(100 * share, "%")) for metric, share in _coverage(scores).items()]
    said = list(dict.fromkeys(cut(report["rates"], 500) for report in reports if "rates" in report))
    fitted = list(dict.fromkeys(cut(", ".join(report["fitted_to"]) or "nothing", 200) for report in reports if "fitted_to" in report))
    scope = [f"Rates: {each}." for each in said[:6]] + [
        f"Serving overhead fitted to: {each}; those loads are not scored." for each in fitted[:6]
    ]
    gpus = sorted({cut(report["gpu"], 40) for report in reports})
    models = sorted({cut(report["model"], 60) for report in reports})
    scope.append(f"Measured servers: {len(reports)} runs of {', '.join(models[:20])} on {', '.join(gpus[:20])}.")
    notes = [cut(note, 300) for report in reports for note in report.get("notes", [])][:20]
    pictures = [*_reliability(reports, scores), *_errors(scores), *_bias(scores), *_distributions(reports)]
    question = "How wrong is the simulator on served runs that the calibration never saw?"
    return ReportPart(f"Validation: {cut(name, 60)}", question, [], heads, scope, pictures,
                notes, [("All scores", _all(scores))])  # fmt: skip


Scores = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _coverage(scores: Scores) -> dict[str, float]:
    """Share of all requests inside their 90 % interval, by metric."""
    found = {}
    for metric in LABEL:
        here = [each for _, each in scores if each["metric"] == metric and each.get("coverage") is not None]
        if total := sum(int(each["requests"]) for each in here):
            found[metric] = sum(float(each["coverage"]) * int(each["requests"]) for each in here) / total
    return found


def _reliability(reports: Reports, scores: Scores) -> Iterator[Picture]:
    """Share of requests inside intervals of every level, where it is known; else inside those of 90 %."""
    known = [
        (report, report["reliability"], sum(int(each["requests"]) for each in report["scores"]))
        for report in reports
        if "reliability" in report
    ]
    if not known:
        yield from _coverage_dots(scores)
        return
    level = [float(each) for each in known[0][1]["level"]][:100]
    rows: list[charts.Row] = []
    metrics = [metric for metric in LABEL if metric in known[0][1]]
    for metric in metrics:
        for i, at in enumerate(level):
            found = [(float(of[metric][i]), n) for _, of, n in known if of[metric][i] is not None and math.isfinite(of[metric][i])]
            if total := sum(n for _, n in found):
                rows.append({"x": 100 * at, "y": 100 * sum(share * n for share, n in found) / total, "series": LABEL[metric]})
    rows += [{"x": x, "y": x, "series": "ideal"} for x in (0.0, 100.0)]
    last = {row["series"]: row["y"] for row in rows if row["x"] == 100 * level[-2]}
    said = ", ".join(f"{number(share, '%')} ({metric})" for metric, share in last.items())
    ends = {"domain": [0, 100]}
    x, y = charts.axis("nominal level of the interval (%)", scale=ends), charts.axis("requests inside (%)", scale=ends)
    names = [*(LABEL[metric] for metric in metrics), "ideal"]
    table = [
        [
            number(100 * at, "%"),
            *(number(next((r["y"] for r in rows if r["series"] == n and r["x"] == 100 * at), None), "%") for n in names[:-1]),
        ]
        for at in level
    ]
    yield Picture("reliability", "Do intervals hold what they promise?",
                  f"Intervals of {number(100 * level[-2], '%')} hold {said} of the requests; below the ideal line they are too narrow.",
                  charts.lines(rows, x, y, names), ("level", *names[:-1]), table)  # fmt: skip


def _dots(scores: Scores, figure: str) -> list[dict[str, Any]]:
    return [
        {"x": 100 * float(each[figure]), "y": 100 * float(each["bound"]), "series": LABEL.get(each["metric"], cut(each["metric"], 20)),
         "name": f"{cut(report['gpu'], 20)} {cut(report['run'], 40)}", "text": cut(each["experiment"], 40), "n": int(each["requests"])}
        for report, each in thinned(scores, MOST) if each.get(figure) is not None
    ]  # fmt: skip


def _coverage_dots(scores: Scores) -> Iterator[Picture]:
    rows = _dots(scores, "coverage")
    if not rows:
        return
    rows = [row | {"verdict": row["series"], "series": "at least 85 %" if row["x"] >= 85 else "less"} for row in rows]
    held = ", ".join(f"{number(100 * share, '%')} ({LABEL[metric]})" for metric, share in _coverage(scores).items())
    x = charts.axis("requests inside their 90 % interval (%)", scale={"domain": [0, 100]})
    tooltip = (("text", "experiment"), ("name", "run"), ("x", "% inside"), ("n", "requests"))
    spec = charts.strip(rows, x, "verdict", ["at least 85 %", "less"], tooltip)
    yield Picture("coverage", "Do 90 % intervals hold 90 %?", f"Of all requests they hold {held}; each tick is an experiment.", spec)


def _errors(scores: Scores) -> Iterator[Picture]:
    """Median errors of all experiments, by metric, beside the declared bound."""
    rows = _dots(scores, "median_abs")
    if not rows:
        return
    rows = [row | {"verdict": row["series"], "series": "within its bound" if row["x"] <= row["y"] else "outside"} for row in rows]
    outside = sum(row["series"] == "outside" for row in rows)
    names = [name for name in ("within its bound", "outside") if any(row["series"] == name for row in rows)]
    spec = charts.strip(rows, charts.axis("median absolute error (%)", zero=True), "verdict", names,
                        (("text", "experiment"), ("name", "run"), ("x", "error (%)"), ("y", "bound (%)"), ("n", "requests")))  # fmt: skip
    yield Picture(
        "errors",
        "How large are the errors?",
        f"{outside} of {len(rows)} scores lie outside the bound declared for them; each tick is an experiment.",
        spec,
    )


def _bias(scores: Scores) -> Iterator[Picture]:
    rows = [row | {"verdict": row["series"], "series": "too slow" if row["x"] > 0 else "too fast"} for row in _dots(scores, "bias")]
    if not rows:
        return
    slow = sum(row["series"] == "too slow" for row in rows)
    spec = charts.strip(rows, charts.axis("median error, predicted − measured (%)"), "verdict", ["too slow", "too fast"],
                        (("text", "experiment"), ("name", "run"), ("x", "bias (%)"), ("n", "requests")))  # fmt: skip
    yield Picture(
        "bias", "Is it too fast or too slow?", f"The simulator is too slow in {slow} of {len(rows)} scores, too fast in the others.", spec
    )


def _distributions(reports: Reports) -> Iterator[Picture]:
    """Measured and predicted times of the load that is predicted worst, by metric."""
    for metric in ("ttft_s", "tpot_s", "e2el_s"):
        there = [(report, each) for report in reports for each in report.get("distributions", []) if metric in each]
        if not there:
            continue
        worst = max(there, key=lambda pair: _apart(pair[1][metric]))
        report, each = worst
        found = {name: [1e3 * float(value) for value in values[:100]] for name, values in each[metric].items()}
        level = [100 * float(value) for value in each["level"][:100]]
        rows = [
            {"x": x, "y": y, "series": "predicted", "low": low, "high": high}
            for x, y, low, high in zip(found["predicted"], level, found["low"], found["high"], strict=True)
        ] + [{"x": x, "y": y, "series": "measured"} for x, y in zip(found["measured"], level, strict=True)]
        label, load = LABEL[metric], f"{cut(each['experiment'], 40)} of {cut(report['run'], 40)}"
        half = level.index(50.0)
        reading = (
            f"{load}, the worst of {len(there)}: half of its requests have a {label} of at most {number(found['measured'][half], 'ms')}, "
            f"predicted {number(found['predicted'][half], 'ms')} (band: 90 % of the draws)."
        )
        x, y = charts.axis(f"{label} (ms)"), charts.axis("requests (%)", zero=True, scale={"domain": [0, 100]})
        table = [
            [number(at, "%"), number(seen, "ms"), number(guess, "ms")]
            for at, seen, guess in zip(level, found["measured"], found["predicted"], strict=True)
        ]
        yield Picture(
            f"distribution_{metric.removesuffix('_s')}", f"How does the measured {label} lie beside the predicted one?", reading,
            charts.lines(rows, x, y, ["predicted", "measured"], across=True), ("requests", "measured", "predicted"), table,
        )  # fmt: skip


def _apart(found: Mapping[str, Any]) -> float:
    """Largest ratio of predicted to measured quantiles, or its inverse, as a logarithm."""
    return max(abs(math.log(float(p) / float(m))) for p, m in zip(found["predicted"], found["measured"], strict=True))


def _all(scores: Scores) -> str:
    from simctl.text.layout import aligned

    rows = [
        (cut(each["experiment"], 30), LABEL.get(each["metric"], "?"), str(each["requests"]), number(_percent(each["median_abs"])),
         number(_percent(each["bias"])), number(_percent(each.get("coverage"))), number(_percent(each["bound"])),
         "" if each["within"] else "MISS")
        for _, each in scores[:300]
    ]  # fmt: skip
    return "\n".join(aligned(("experiment", "metric", "n", "median %", "bias %", "in 90 %", "bound %", ""), rows, left=2))


def _percent(value: Any) -> float | None:
    return None if value is None else 100 * float(value)
