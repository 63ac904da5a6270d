"""Tables and plots of docs/replication.md, from the committed data: `python -m studies.replication.knees_page [--write]`.

Prints one Markdown table per topic. `--write` puts each between its markers (`<!-- name -->` ... `<!-- /name -->`) in the page, the table
of every knee into a file of its own, and draws the page's plots.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hw.engines.shapes import shape
from sim.closed_form.knee import Knee, continuous_knee
from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.posterior import rates_for
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config
from sim.specs.precision import Precision
from studies.knees.ranks import spearman
from studies.replication import knees_page_plots as plots
from studies.replication import three_parameter
from studies.replication.measured import curves, published_knees

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "scenarios" / "data"
KNEES = ROOT / "docs" / "data" / "replication-knees.txt"
Cells = dict[tuple[str, int], Any]


def measured() -> dict[tuple[str, int], Knee]:
    return {(m, c): continuous_knee(b, [t[0] / x for x in t]) for m, c, b, t in curves()}


def predicted() -> tuple[dict[tuple[str, int], Knee], str]:
    """Knees of the formula on the measured ladders, and where its rates come from."""
    precision = Precision("fp8", "bf16")
    rates = rates_for(get_gpu("H100"), precision)
    found = {}
    for model, context, batches, _ in curves():
        spec = spec_from_config(shape(model), model, "shape")
        times = [
            float(step_time_s(iteration_work(spec, decode_batch(spec, float(b), float(context)), precision), rates.point)) for b in batches
        ]
        found[model, context] = continuous_knee(batches, [times[0] / t for t in times])
    return found, rates.summary


def text(knee: Knee) -> str:
    return f"{'> ' if knee.censored else ''}{knee.batch:.2f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def knee_table(known: Cells, found: Cells, formula: Cells) -> str:
    rows = [
        (model, str(context), text(found[model, context]), f"{known[model, context]:.2f}" if (model, context) in known else "-",
         text(formula[model, context]))
        for model, context in found
    ]  # fmt: skip
    return table(("model", "context", "measured here", "published", "predicted"), rows)


def agreement_table(known: Cells, found: Cells, formula: Cells) -> str:
    ours = {k: v.batch for k, v in found.items() if not v.censored}
    theirs = {k: v.batch for k, v in formula.items() if not v.censored}
    rows = []
    for name, x, y in (("predicted against measured here", theirs, ours), ("predicted against published", theirs, known),
                       ("measured here against published", ours, known)):  # fmt: skip
        for family, keys in (
            ("all", sorted(x.keys() & y.keys())),
            ("without Gemma", [k for k in sorted(x.keys() & y.keys()) if "gemma" not in k[0]]),
        ):
            a, b = [x[k] for k in keys], [y[k] for k in keys]
            factor = np.exp(np.abs(np.log(np.asarray(a) / np.asarray(b))))
            rows.append((name, family, str(len(keys)), f"{spearman(a, b):.3f}", f"{np.median(factor):.3f}", f"{factor.max():.3f}"))
    return table(("", "models", "finite knees", "Spearman", "median factor", "largest factor"), rows)


def fit_table() -> str:
    rows = []
    for gpu in ("h100", "h200"):
        cells = three_parameter.read_decode(DATA / f"measured/{gpu}/decode_qwen2.5-7b.nc")
        for batches, part in three_parameter.subsets(cells):
            for selection in (False, True) if batches == "1" else (True,):
                s = three_parameter.summary(part, bytes_of_selection=selection)
                c1 = [f"{s['c1_s'][k] * 1e3:.2f}" for k in (8, 16, 32)]
                rows.append((
                    gpu.upper(), batches, "in beta" if selection else "in c1", str(s["cells"]), f"{s['beta_bytes_per_s'] / 1e12:.3f}",
                    f"{s['c0_s'] * 1e3:.2f}", *c1, f"{s['r2']:.4f}", f"{100 * s['held_out_median']:.1f}", f"{100 * s['held_out_max']:.1f}",
                ))  # fmt: skip
    heads = ("GPU", "batches", "selected bytes", "cells", "beta TB/s", "c0 ms", "c1(8) ms", "c1(16) ms", "c1(32) ms", "R2",
             "held out, median %", "worst %")  # fmt: skip
    return table(heads, rows)


def sections() -> dict[str, str]:
    known, found = published_knees(), measured()
    formula, origin = predicted()
    return {
        "rates": f"Rates: {origin}.",
        "agreement": agreement_table(known, found, formula),
        "three-parameter": fit_table(),
    }


def draw(folder: Path) -> None:
    """The plots of the page into `folder`."""
    plots.knees(published_knees(), measured(), predicted()[0], folder / "replication_knees.png")
    plots.steps([DATA / f"measured/{gpu}/decode_qwen2.5-7b.nc" for gpu in ("h100", "h200")], folder / "replication_steps.png")


def main(arguments: list[str]) -> None:
    page = ROOT / "docs" / "replication.md"
    body = page.read_text(encoding="utf-8")
    for name, content in sections().items():
        print(f"{name}\n\n{content}\n")
        before, begin, rest = body.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise SystemExit(f"{page}: no place for {name}")
        body = f"{before}{begin}{content}\n{end}{after}"
    if "--write" in arguments:
        page.write_text(body, encoding="utf-8")
        KNEES.write_text(knee_table(published_knees(), measured(), predicted()[0]) + "\n", encoding="utf-8")
        draw(ROOT / "docs" / "img")


if __name__ == "__main__":
    main(sys.argv[1:])
