"""Summary tables of docs/accuracy.md: held-out step times from the packaged posteriors, served errors from docs/data/validate.csv.

python docs/accuracy.py --validate    run `simctl validate` anew, with --left-out, too, and rewrite docs/data/*.csv (some minutes)
python docs/accuracy.py --left-out    the same of `simctl validate --left-out` alone
python docs/accuracy.py --write       put the tables into the page
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import h5netcdf

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
SCORES = ROOT / "docs" / "data" / "validate.csv"
POSTERIORS = ROOT / "scenarios" / "data" / "posteriors"
LEFT_OUT = ROOT / "docs" / "data" / "left-out.csv"
FIELD = ROOT / "docs" / "data" / "field.txt"
FIELDS = ("run", "gpu", "model", "experiment", "metric", "requests", "median_abs", "bias", "coverage", "bound", "within", "floor_above")
METRICS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2el_s": "E2EL", "p99_ttft_s": "p99 TTFT"}
LISTED = ("ttft_s", "e2el_s")
# Parts left out, as a reader meets them
FIRST = {
    "A model, GPU and engine version that were measured, on another host": ("host",),
    "One part never measured: model, family, fp8, two GPUs, engine version or scheduling": (
        "model", "family", "dtype", "tp", "version", "scheduling",
    ),
    "A GPU on which no iteration was measured; its chip, its kernels or its datasheet is known (two Hopper cards)": (
        "sibling", "kernels", "datasheet",
    ),
    "A kind of serving never measured: another engine, architecture, precision, pipeline stages, eager, adapters or drafts": (
        "engine", "architecture", "precision", "parallel", "eager", "adapters", "drafts",
    ),
}  # fmt: skip
HELD = (0.85, 0.97)  # share of requests that a 90 % interval should hold
NEVER = "GPUs never stepped"
LOADS, ALL = ("low", "high", "closed", "burst", "long", "prefix"), "all"
Score = dict[str, str]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *map(list, rows)])


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f}"


def held_out_table() -> str:
    """Errors of step times that each packaged posterior's fit did not see."""
    rows = []
    for gpu in ("h100", "h200"):
        with h5netcdf.File(POSTERIORS / f"{gpu}.nc") as file:
            held_out = json.loads(file.attrs["held_out"])
        for row in held_out:
            if row["part"] == "all" and row["folds"] != "leave one run out":  # whole machines are left out, too
                scores = row["scores"]
                figures = (percent(scores["median"]), percent(scores["p90"]), percent(scores["coverage"], 0))
                rows.append((gpu.upper(), row["folds"], str(scores["n"]), *figures))
    return table(("GPU", "held out", "cells", "median error, %", "90 % below", "% in 90 % interval"), rows)


def load_of(experiment: str) -> str:
    """Kind of load: open loops of any rate and of text are one."""
    kind = experiment.partition(" ")[0]
    return "open" if kind == "text" else kind


def within(scores: list[Score]) -> str:
    """Scores in bound, of all; and how many of the others have a replicate floor above their bound."""
    good = sum(score["within"] == "True" for score in scores)
    floor = sum(score["floor_above"] == "True" and score["within"] != "True" for score in scores)
    return f"{good} of {len(scores)} ({floor})"


def served_table(scores: list[Score]) -> str:
    """Median over experiments of the median error per request, by GPU and load."""
    rows = []
    for gpu in sorted({score["gpu"] for score in scores}):
        here = [score for score in scores if score["gpu"] == gpu]
        loads = sorted({load_of(score["experiment"]) for score in here}, key=lambda load: (not load.startswith("open"), len(load), load))
        for load in loads:
            part = [score for score in here if load_of(score["experiment"]) == load]
            errors = (median(float(s["median_abs"]) for s in part if s["metric"] == metric) for metric in METRICS)
            runs = {(s["run"], s["experiment"]) for s in part}
            rows.append((gpu, load, str(len(runs)), *map(percent, errors), within(part)))
        rows.append((gpu, "all", str(len({(s["run"], s["experiment"]) for s in here})), "", "", "", "", within(here)))
    return table(("GPU", "load", "times sent", *(f"{name}, %" for name in METRICS.values()), "scores in bound"), rows)


def left_out_table(rows: list[Score]) -> str:
    """Errors and coverage of served loads by what was left out, one row each: all kinds of load together."""
    part_rows = []
    for part in dict.fromkeys(row["left_out"] for row in rows):
        here = {row["metric"]: row for row in rows if row["left_out"] == part and row["load"] == ALL}
        figures = (percent(float(here[m][figure]), d) for figure, d in (("median_abs", 1), ("coverage", 0)) for m in LISTED)
        part_rows.append((part, here["e2el_s"]["loads"], here["e2el_s"]["requests"], *figures))
    names = [METRICS[metric] for metric in LISTED]
    return table(("left out", "loads", "requests", *(f"{n}, %" for n in names), *(f"{n} in 90 %" for n in names)), part_rows)


def by_load_table(rows: list[Score]) -> str:
    """Shares of requests (%) inside their 90 % interval by what was left out and kind of load: of TTFT, of E2EL; servers; and the share of
    means, medians and P99s (%) inside theirs.
    """
    cells = {(row["left_out"], row["load"], row["metric"]): 100 * float(row["coverage"]) for row in rows}
    servers = {(row["left_out"], row["load"]): float(row["servers"]) for row in rows if "servers" in row}
    held: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        if row.get("figures"):
            inside, of = held.get(key := (row["left_out"], row["load"]), (0, 0))
            held[key] = inside + int(row["figures_inside"]), of + int(row["figures"])
    loads = [load for load in LOADS if any(key[1] == load for key in cells)]
    part_rows = []
    for part in dict.fromkeys(row["left_out"] for row in rows):
        shares = {load: 100 * inside / of for load in loads for inside, of in [held.get((part, load), (0, 0))] if of}
        found = ([*(cells.get((part, load, m)) for m in LISTED), servers.get((part, load)), shares.get(load)] for load in loads)
        part_rows.append((part, *("/".join(f"{v:.0f}" for v in pair if v is not None) for pair in found)))
    return table(("left out", *loads), part_rows)


def first_lines(rows: list[Score]) -> str:
    """What a reader takes away first: errors by what is known of a deployment, and how intervals hold."""
    errors = {(row["left_out"], row["metric"]): 100 * float(row["median_abs"]) for row in rows if row["load"] == ALL}

    def of(parts: Iterable[str], metric: str) -> str:
        found = sorted(errors[part, metric] for part in parts if (part, metric) in errors)
        return " to ".join(f"{each:.1f}" for each in dict.fromkeys((found[0], found[-1]))) + " %"

    lines = [f"**{what}**: E2EL {of(parts, 'e2el_s')}, TTFT {of(parts, 'ttft_s')}" for what, parts in FIRST.items()]
    lines += [
        f"**Published results of other people's servers**: {public('all')}; on GPUs without a measured iteration: {public(NEVER)}",
        intervals_line(rows),
    ]
    return "\n".join(f"* {line}." for line in lines)


def public(name: str) -> str:
    """A row of the table of published results."""
    found = next(line for line in field_table().splitlines() if line.startswith(f"| {name} |"))
    _, _, figures, error, inside, _ = (cell.strip() for cell in found.split("|"))
    return f"{error} %, {inside} of {figures} figures inside their 90 % interval"


def intervals_line(rows: list[Score]) -> str:
    """How many cells (a part and a kind of load) hold as many requests in their 90 % interval as right ones might."""
    cells = [row for row in rows if row["load"] != ALL and row["metric"] == "e2el_s"]
    shares = [[float(cell[name]) for name in ("coverage", "right_low", "right_high")] for cell in cells]
    more, fewer = sum(share > high for share, _, high in shares), sum(share < low for share, low, _ in shares)
    held = sum(HELD[0] <= share <= HELD[1] for share, _, _ in shares)
    return (
        f"**Intervals** of E2EL: the coverage of {len(cells) - more - fewer} of {len(cells)} pairs of a part and a kind of load agrees with"
        f" 90 %; {more} cover more, {fewer} cover less. {held} cover {100 * HELD[0]:.0f} to {100 * HELD[1]:.0f} % of the requests. Coverage"
        " scatters: few servers stand behind each pair, and requests of one server share its error"
    )


def field_table() -> str:
    """The table by card, engine and format of `python -m studies.field`."""
    return FIELD.read_text(encoding="utf-8").split("\n\n")[1]


def tables() -> dict[str, str]:
    with SCORES.open(encoding="utf-8") as file:
        scores = list(csv.DictReader(file))
    with LEFT_OUT.open(encoding="utf-8") as file:
        without = list(csv.DictReader(file))
    return {
        "first": first_lines(without),
        "left-out": left_out_table(without),
        "by-load": by_load_table(without),
        "held-out": held_out_table(),
        "served": served_table(scores),
        "field": field_table(),
    }


def left_out() -> None:
    """Output of `simctl validate --left-out`, as docs/data/left-out.csv."""
    call = [sys.executable, "-m", "simctl", "validate", "--left-out", "--json"]
    found = json.loads(subprocess.run(call, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)
    rows = [{"load": ALL} | row for row in found["pooled"]] + found["by_load"]
    with LEFT_OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0] | rows[-1]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def validated() -> None:
    """Every score that `simctl validate` prints, as rows of docs/data/validate.csv."""
    call = [sys.executable, "-m", "simctl", "validate", "--json"]
    done = subprocess.run(call, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    with SCORES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for run in json.loads(done.stdout):
            for score in run["scores"]:
                short = {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in score.items()}
                writer.writerow({"run": run["run"], "gpu": run["gpu"], "model": run["model"], **short})


def main(arguments: list[str]) -> None:
    if "--validate" in arguments:
        validated()
    if {"--validate", "--left-out"} & set(arguments):
        left_out()
    body = PAGE.read_text(encoding="utf-8")
    for name, content in tables().items():
        print(f"{name}\n\n{content}\n")
        body = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, c=content: m[1] + c + "\n" + m[2], body, flags=re.DOTALL)
    if "--write" in arguments:
        PAGE.write_text(body, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
