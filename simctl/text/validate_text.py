"""Text of `simctl validate` for one run: method, every score, and the scatter of replicates."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from statistics import median
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from calibrate.served.left_out import KINDS, LOADS, PARTS, LeftOut
from calibrate.served.load_figures import FigureScore
from calibrate.served.replay import Prediction
from calibrate.served.runs import Experiment
from calibrate.served.scores import LEVELS, QUANTILES, Replicates, Score, coverage, distributions, reliability
from calibrate.served.validation import ValidationReport
from sim.study.deployment import kv_block_interval, plan_engine
from sim.units import format_seconds
from simctl.text.layout import aligned, fill, wrapped

LABEL = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "p99_ttft_s": "p99 TTFT"}
MOST_LOADS = 2  # whose figures are printed
NAME = 15  # characters of an experiment's name
BOUND_BELOW_FLOOR = "* MISS, replicate floor above: replicates lie so far apart that a prediction of their median would miss, too."


def show_reports(reports: list[ValidationReport], as_json: bool) -> None:
    """Every run's scores, and those of all runs together; or all as JSON."""
    if as_json:
        click.echo(json.dumps([as_dict(r) for r in reports], indent=1))
        return
    for report in reports:
        render(report)
    if len(reports) > 1:
        click.echo(together(reports))


def show_left_out(found: list[LeftOut], as_json: bool) -> None:
    """Errors with parts of the deployment left out, pooled and by kind of load."""
    if as_json:
        click.echo(json.dumps({"pooled": left_out_rows(found), "by_load": left_out_cells(found)}, indent=1))
    else:
        click.echo(f"{left_out_table(found)}\n\n{left_out_cells_table(found)}")


def render(report: ValidationReport) -> None:
    """Print a report, no line wider than a terminal."""
    run, served, o = report.run, report.served, report.served.overhead
    where = f"{run.gpu.name}, {run.replicas} replicas" if run.replicas > 1 else run.gpu.name
    click.echo(click.style(fill(f"{run.name}: {run.model.name} on {where}, {run.engine}"), bold=True))
    noise = ", ".join(f"{LABEL[m]} {100 * v:.1f} %" for m, v in o.noise.items())
    fitted = f"fitted to {', '.join(served.fitted_to)}" if served.fitted_to else f"transferred from {o.engine} on {o.gpu}"
    lines = [
        f"Rates: {served.rates.summary}.",
        f"Serving overhead {fitted}: c0 {1e3 * served.rates.point.c0_s:.2f} ms as served, {100 * o.exposed_share:.0f} % of the "
        f"per-sequence and per-prefill host cost show, launching takes {o.launch:.2f} times what it does in process, API server "
        f"{1e3 * (o.request_s + o.serial_s):.1f} ms a request. Noise of single requests (log sd): {noise}; of whole runs "
        f"{100 * o.run_noise:.1f} %.",
        _blocks(report),
        *(f"Note: {note}." for note in report.notes),
    ]
    for line in lines:
        click.echo(fill(line))
    for line in ("", *score_table(report.scores), *_covered(report), *figure_lines(report.figures), *replicate_table(report.replicates)):
        click.echo(line)
    cached = [(e.name, *_cached(e, predicted)) for e, predicted in report.pairs if e.cached_tokens is not None]
    if cached:
        each = ", ".join(f"{same} of {of} ({name})" for name, same, of in cached)
        click.echo(fill(f"cached tokens equal, of the requests where the engine said: {each}"))
    click.echo()


def _covered(report: ValidationReport) -> list[str]:
    """Legend of the scores, and the pooled coverage."""
    marked = wrapped(BOUND_BELOW_FLOOR) if any(s.floor_above for s in report.scores) else []
    return [*marked, f"in their 90 %, all experiments: {_coverage(report.scores)}"]


def score_table(scores: list[Score]) -> list[str]:
    """Lines of one score each, below their header: median times, and the median absolute error of single requests."""
    head = ("experiment", "metric", "n", "measured", "predicted", "error", "floor", "in 90%", "bound", "")
    name = _shortened(s.experiment for s in scores)
    rows = [
        (name[s.experiment], LABEL[s.metric], str(s.requests), format_seconds(s.measured_s), format_seconds(s.predicted_s),
         _percent(s.median_abs), _percent(s.floor), "-" if s.coverage != s.coverage else f"{100 * s.coverage:.0f}%",
         f"{100 * s.bound:.0f}%",
         "" if s.within else "MISS*" if s.floor_above else "MISS")
        for s in scores
    ]  # fmt: skip
    return aligned(head, rows, left=2, gap=1)


def figure_lines(figures: list[FigureScore]) -> list[str]:
    """Lines of the figures of up to MOST_LOADS whole loads beside the intervals that `simulate` prints of them, and how many are inside."""
    if not figures:
        return []
    held = f"figures in their 90 % (mean, median and P99 of whole loads): {sum(f.inside for f in figures)} of {len(figures)}"
    if len({f.experiment for f in figures}) > MOST_LOADS:
        return [held]
    head = ("experiment", "figure (ms)", "measured", "predicted", "90 %", "")
    name = _shortened(f.experiment for f in figures)
    rows = [
        (name[f.experiment], f.figure.removesuffix("_ms").replace("_", " "), f"{f.measured:.4g}", f"{f.predicted:.4g}",
         "{:.4g}-{:.4g}".format(*f.both_90), "" if f.inside else "outside")
        for f in figures
    ]  # fmt: skip
    return ["", *aligned(head, rows, left=2, gap=1), held]


def replicate_table(replicates: list[Replicates]) -> list[str]:
    """Lines of how far the same requests, sent again, differ; none without replicates."""
    name = _shortened(r.experiment for r in replicates)
    rows = [(name[r.experiment], str(r.sent), *(_percent(r.apart[m]) for m in LABEL)) for r in replicates]
    return [] if not rows else ["", *aligned(("replicates differ by", "sent", *LABEL.values()), rows)]


def together(reports: list[ValidationReport]) -> str:
    """The coverage of several runs, one by one and counted together: a run's requests have errors in common, so runs differ."""
    lines = [f"in their 90 %: {_coverage(r.scores)}: {r.run.name} on {r.run.gpu.name}" for r in reports]
    return "\n".join([*lines, f"in their 90 %: {_coverage([s for r in reports for s in r.scores])}: all {len(reports)} runs"])


def _coverage(scores: list[Score]) -> str:
    return ", ".join(f"{100 * v:.0f} % ({LABEL[m]})" for m, v in coverage(scores).items())


def _shortened(names: Iterable[str]) -> dict[str, str]:
    """Long names cut halfway; those that would then look alike are numbered."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(names):
        short, number = (name if len(name) <= NAME else f"{name[: NAME - 10]}..{name[-8:]}"), 1
        while short in found.values():
            number += 1
            short = f"{name[: NAME - 12 - len(str(number))]}..{number}..{name[-8:]}"
        found[name] = short
    return found


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _cached(experiment: Experiment, predicted: Prediction) -> tuple[int, int]:
    """(requests predicted to the token, requests) of those where the engine said how much it had cached."""
    if experiment.cached_tokens is None:
        return 0, 0
    known = ~np.isnan(experiment.cached_tokens)
    return int((predicted.cached_tokens[known] == experiment.cached_tokens[known]).sum()), int(known.sum())


def _blocks(report: ValidationReport) -> str:
    config, _ = plan_engine(report.run.deployment)
    span = kv_block_interval(report.run.deployment)
    return f"KV blocks: {config.num_gpu_blocks}, {f'predicted from memory, 90 % interval {span[0]} - {span[1]}' if span else 'as given'}."


def as_dict(report: ValidationReport) -> dict[str, Any]:
    """A report as JSON has it."""
    run, served = report.run, report.served
    within = reliability(report.pairs, served.overhead.noise, served.overhead.run_noise)
    return {
        "run": run.name,
        "gpu": run.gpu.name,
        "model": run.model.name,
        "engine": run.engine,
        "num_gpu_blocks": plan_engine(run.deployment)[0].num_gpu_blocks,
        "num_gpu_blocks_90": kv_block_interval(run.deployment),
        "rates": served.rates.summary,
        "c0_s": served.rates.point.c0_s,
        "fitted_to": list(served.fitted_to),
        "overhead": asdict(served.overhead),
        "notes": list(report.notes),
        "cached_tokens": [
            dict(zip(("experiment", "equal", "of"), (e.name, *_cached(e, predicted)), strict=True))
            for e, predicted in report.pairs
            if e.cached_tokens is not None
        ],
        "reliability": {"level": list(LEVELS)} | {name: share.tolist() for name, share in within.items()},
        "figures": [asdict(f) | {"inside": f.inside} for f in report.figures],
        "replicates": [asdict(r) | {"floor": r.floor} for r in report.replicates],
        "distributions": [{"experiment": e.name, "level": list(QUANTILES), **distributions(e, predicted)} for e, predicted in report.pairs],
        "scores": [
            asdict(s) | {"within": s.within, "floor_above": s.floor_above, "coverage": None if s.coverage != s.coverage else s.coverage}
            for s in report.scores
        ],
    }


def left_out_rows(found: list[LeftOut]) -> list[dict[str, Any]]:
    """One row per part and metric: servers, loads, requests; the median over loads of the median error and of the bias; the share of
    requests inside their 90 % interval.
    """
    rows = []
    for part in PARTS + KINDS:
        here = [each for each in found if each.part == part]
        covered = coverage(s for each in here for s in each.scores)
        for metric in covered:
            scores = [s for each in here for s in each.scores if s.metric == metric]
            figures = {
                "median_abs": median(s.median_abs for s in scores),
                "bias": median(s.bias for s in scores),
                "coverage": covered[metric],
            }
            counts = {"servers": len({each.run for each in here}), "loads": len(scores), "requests": sum(s.requests for s in scores)}
            rows.append({"left_out": part, "metric": metric} | counts | figures)
    return rows


REPEATS = 400
HELD = (0.85, 0.97)  # share of requests that a 90 % interval should hold


def left_out_cells(found: list[LeftOut]) -> list[dict[str, Any]]:
    """One row per part, kind of load and metric: servers, loads, requests, the median error, the share of requests inside their 90 %
    interval, and that share's own 90 % interval were the predictions right: all requests of one server are off alike, so that few servers
    show little.
    """
    rows = []
    for part, load in ((part, load) for part in PARTS + KINDS for load in LOADS):
        cell = [each for each in found if (each.part, each.load) == (part, load)]
        here = [s for each in cell for s in each.scores]
        for metric, share in coverage(here).items():
            own = [s for s in here if s.metric == metric]
            counts = {"servers": len({each.run for each in cell}), "loads": len(own), "requests": sum(s.requests for s in own)}
            of_metric = [f for each in cell for f in each.figures if f.figure.split("_")[1] == metric.removesuffix("_s")]
            inside = {"figures": len(of_metric), "figures_inside": sum(f.inside for f in of_metric)}
            figures = {"median_abs": median(s.median_abs for s in own), "coverage": share} | inside
            low, high = np.quantile(_by_chance(cell, metric), [0.05, 0.95]).tolist()
            rows.append({"left_out": part, "load": load, "metric": metric} | counts | figures | {"right_low": low, "right_high": high})
    return rows


def _by_chance(cell: list[LeftOut], metric: str) -> NDArray[np.float64]:
    """Shares of a cell's requests inside their 90 % interval were its predictions right [REPEATS]: each server is one draw of the rates."""
    rng, total, inside = np.random.default_rng(0), 0, np.zeros(REPEATS)
    for run in sorted({each.run for each in cell}):
        place = rng.random(REPEATS)
        for each in (each for each in cell if each.run == run and metric in each.right):
            shares, n = each.right[metric], next(s.requests for s in each.scores if s.metric == metric)
            inside, total = inside + n * shares[(place * len(shares)).astype(int)], total + n
    return inside / max(total, 1)


def left_out_cells_table(found: list[LeftOut]) -> str:
    """The rows of `left_out_cells` for readers, and how many of them hold what they should, and would were predictions right."""
    cells, low, high = left_out_cells(found), *HELD
    rows = []
    for cell in cells:
        mark = "" if low <= cell["coverage"] <= high else "wide" if cell["coverage"] > high else "NARROW"
        counts = (str(cell[name]) for name in ("servers", "loads", "requests"))
        right = f"{100 * cell['right_low']:.0f}-{100 * cell['right_high']:.0f}%"
        rows.append((cell["left_out"], cell["load"], LABEL[cell["metric"]], *counts, _percent(cell["median_abs"]),
                     f"{100 * cell['coverage']:.0f}%", right, mark))  # fmt: skip
    of, inside = (sum(cell[name] for cell in cells) for name in ("figures", "figures_inside"))
    lines = aligned(("left out", "load", "metric", "servers", "loads", "n", "median", "in 90%", "if right", ""), rows, left=3)
    for metric in ("ttft_s", "e2el_s"):
        shares = np.array([cell["coverage"] for cell in cells if cell["metric"] == metric])
        if shares.size:
            each = [[x for x in found if (x.part, x.load) == (p, load)] for p in PARTS + KINDS for load in LOADS]
            chance = np.array([_by_chance(cell, metric) for cell in each if cell])
            held, might = (((low <= share) & (share <= high)).sum(axis=0) for share in (shares, chance))
            few, many = np.quantile(might, [0.05, 0.95]).astype(int)
            lines.append(
                f"{LABEL[metric]}: {held} of {len(shares)} cells hold {low:.0%} to {high:.0%} ({few} to {many} would if right), "
                f"least {min(shares):.0%}"
            )
    if of:
        lines.append(f"figures (mean, median and P99 of loads): {inside} of {of} inside what simulate prints")
    return "\n".join(lines)


def left_out_table(found: list[LeftOut]) -> str:
    """The rows of `left_out_rows` for readers."""
    head = ("left out", "metric", "servers", "loads", "n", "median", "bias", "in 90%")
    rows = []
    for row in left_out_rows(found):
        counts = (str(row[name]) for name in ("servers", "loads", "requests"))
        figures = (_percent(row["median_abs"]), f"{100 * row['bias']:+.1f}%", f"{100 * row['coverage']:.0f}%")
        rows.append((row["left_out"], LABEL[row["metric"]], *counts, *figures))
    return "\n".join(aligned(head, rows, left=2))
