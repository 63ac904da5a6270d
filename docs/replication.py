"""The figures of docs/replication.md, computed from the committed data: `python docs/replication.py [--write]`.

Prints one Markdown table per topic. `--write` puts each between its markers (`<!-- name -->` ... `<!-- /name -->`) in the page, and draws
the page's plots.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from calibrate.knees.curves import read_curves  # noqa: E402
from calibrate.knees.facts import knee_facts  # noqa: E402
from calibrate.knees.predictors import ladder, observed_knees, score  # noqa: E402
from calibrate.knees.ranks import spearman  # noqa: E402
from calibrate.steps import three_parameter  # noqa: E402
from hw.engines.shapes import shape  # noqa: E402
from sim.bill import decode_shape, iteration_bill  # noqa: E402
from sim.knee import Knee, continuous_knee  # noqa: E402
from sim.posterior import rates_for  # noqa: E402
from sim.precision import Precision  # noqa: E402
from sim.price import step_time_s  # noqa: E402
from sim.specs.gpus import get_gpu  # noqa: E402
from sim.specs.hf_config import spec_from_config  # noqa: E402

DATA = ROOT / "scenarios" / "data"
CURVES = DATA / "measured/h100/weight-axis_curves.csv"
CONTEXTS = (2048, 8192, 32000)
PAIRS = (
    ("qwen2.5-7b", "qwen2.5-14b"), ("qwen2.5-14b", "qwen2.5-32b"), ("mistral-7b", "mistral-24b"), ("gemma3-4b", "gemma3-12b"),
    ("gemma3-12b", "gemma3-27b"), ("gemma3-4b", "gemma3-27b"),
)  # fmt: skip
Cells = dict[tuple[str, int], Any]


def published() -> dict[tuple[str, int], float]:
    """Published continuous knees by (model, context); the confirming runs are left out."""
    found = {}
    with (DATA / "reference/tr164/derived_model_knees.csv").open() as file:
        for row in csv.DictReader(file):
            if "confirm" not in row["run"]:
                key = f"{row['family']}-{row['model_size'].lower()}", int(row["context_tokens"])
                found[key] = float(row["observed_continuous_knee_batch"])
    return found


def curves() -> Iterator[tuple[str, int, list[int], list[float]]]:
    """(model, context, batches, step times in s) of every measured ladder."""
    with CURVES.open() as file:
        for (model, context), group in groupby(csv.DictReader(file), key=lambda r: (r["model"], int(r["context_tokens"]))):
            rows = list(group)
            yield model, context, [int(r["batch"]) for r in rows], [float(r["step_s"]) for r in rows]


def measured() -> dict[tuple[str, int], Knee]:
    return {(m, c): continuous_knee(b, [t[0] / x for x in t]) for m, c, b, t in curves()}


def of_bill() -> tuple[dict[tuple[str, int], Knee], str]:
    """Knees of the priced shapes on the measured ladders, and where the rates come from."""
    precision = Precision("fp8", "bf16")
    rates = rates_for(get_gpu("H100"), precision)
    found = {}
    for model, context, batches, _ in curves():
        spec = spec_from_config(shape(model), model, "shape")
        times = [
            float(step_time_s(iteration_bill(spec, decode_shape(spec, float(b), float(context)), precision), rates.point)) for b in batches
        ]
        found[model, context] = continuous_knee(batches, [times[0] / t for t in times])
    return found, rates.summary


def text(knee: Knee) -> str:
    return f"{'> ' if knee.censored else ''}{knee.batch:.2f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def knee_table(known: Cells, found: Cells, bill: Cells) -> str:
    rows = [
        (model, str(context), text(found[model, context]), f"{known[model, context]:.2f}" if (model, context) in known else "-",
         text(bill[model, context]))
        for model, context in found
    ]  # fmt: skip
    return table(("model", "context", "measured here", "published", "bill"), rows)


def agreement_table(known: Cells, found: Cells, bill: Cells) -> str:
    ours = {k: v.batch for k, v in found.items() if not v.censored}
    priced = {k: v.batch for k, v in bill.items() if not v.censored}
    rows = []
    for name, x, y in (("bill against measured here", priced, ours), ("bill against published", priced, known),
                       ("measured here against published", ours, known)):  # fmt: skip
        for family, keys in (
            ("all", sorted(x.keys() & y.keys())),
            ("without Gemma", [k for k in sorted(x.keys() & y.keys()) if "gemma" not in k[0]]),
        ):
            a, b = [x[k] for k in keys], [y[k] for k in keys]
            factor = np.exp(np.abs(np.log(np.asarray(a) / np.asarray(b))))
            rows.append((name, family, str(len(keys)), f"{spearman(a, b):.3f}", f"{np.median(factor):.3f}", f"{factor.max():.3f}"))
    return table(("", "models", "finite knees", "Spearman", "median factor", "largest factor"), rows)


def predictor_table(bill: Cells) -> str:
    knees = observed_knees(read_curves(CURVES, knee_facts))
    rng, wanted = (
        np.random.default_rng(0),
        {"Ck/W closed-form (zero-param)", "context only 1/C", "KV traffic only 1/(Ck)", "weight bytes only W"},
    )
    predictors = {name: v for name, v in ladder(knees).items() if name in wanted}
    values = np.array([bill[c.model, c.context_tokens].batch for c in knees.cells])
    rows = []
    for name, (x, is_batch) in {**predictors, "bill, rates learnt from bf16 grids": (values, True)}.items():
        s = score(name, x, is_batch, knees, rng, 10_000)
        factor = f"{s.median_factor:.2f}" if np.isfinite(s.median_factor) else "-"
        rows.append((name, f"{s.spearman_finite:.3f} [{s.interval.low:.3f}, {s.interval.high:.3f}]", factor))
    return table(("predictor", "Spearman [95 % bootstrap]", "median factor"), rows)


def pair_table(known: Cells, found: Cells, bill: Cells) -> str:
    rows, right = [], {"measured": 0, "bill": 0, "of": 0}
    for small, large in PAIRS:
        for context in CONTEXTS:
            a, b = (small, context), (large, context)
            ours, priced = _ratio(found[a], found[b]), _ratio(bill[a], bill[b])
            theirs = known[b] / known[a] if a in known and b in known else float("nan")
            if np.isfinite(theirs):
                right["of"] += 1
                right["measured"] += _agrees(ours, theirs)
                right["bill"] += _agrees(priced, theirs)
            cells = (ours, "-" if np.isnan(theirs) else f"{theirs:.3f}", priced)
            rows.append((f"{small} -> {large}", str(context), *cells))
    said = f"Directions as published: measured {right['measured']} of {right['of']}, bill {right['bill']} of {right['of']}."
    return table(("pair", "context", "measured here", "published", "bill"), rows) + "\n\n" + said


def _ratio(small: Knee, large: Knee) -> str:
    if small.censored and large.censored:
        return "both beyond the ladder"
    mark = "> " if large.censored else "< " if small.censored else ""
    return f"{mark}{large.batch / small.batch:.3f}"


def _agrees(ratio: str, theirs: float) -> bool:
    """Whether the ratio settles the published direction: a bound counts only on the side it bounds."""
    mark, number = ratio[0], float(ratio.lstrip("<> "))
    if mark == ">":
        return theirs > 1 and number >= 1
    if mark == "<":
        return theirs < 1 and number <= 1
    return (number > 1) == (theirs > 1)


def constant_table(known: Cells) -> str:
    """Would one constant, taken off every step of a model, give its published knees? The best such constant and what it leaves."""
    ladders = {(m, c): (b, np.array(t)) for m, c, b, t in curves()}
    rows = []
    for model in ("gemma3-4b", "gemma3-12b", "gemma3-27b"):
        theirs = np.array([known[model, c] for c in CONTEXTS])
        tried = []
        for constant in np.arange(0.0, 8e-3, 1e-5):
            less = [(b, t - constant) for b, t in (ladders[model, c] for c in CONTEXTS)]
            found = [continuous_knee(b, list(t[0] / t)) for b, t in less if t[0] > 0]
            if len(found) == len(CONTEXTS):
                ratio = np.array([k.batch for k in found]) / theirs
                left = [f"{'> ' if k.censored else ''}{r:.2f}" for k, r in zip(found, ratio, strict=True)]
                tried.append((float(np.sum(np.log(ratio) ** 2)), float(constant), left))
        _, constant, left = min(tried)
        first = ladders[model, CONTEXTS[0]][1][0]
        rows.append((model, f"{first * 1e3:.1f}", f"{constant * 1e3:.1f}", *left))
    return table(("model", "step at batch 1, 2048, ms", "constant, ms", *(f"knee over published, {c}" for c in CONTEXTS)), rows)


def fit_table() -> str:
    rows = []
    for gpu in ("h100", "h200"):
        cells = three_parameter.read_decode(DATA / f"measured/{gpu}/decode_qwen2.5-7b.nc")
        for batches, part in three_parameter.subsets(cells):
            for selection in (False, True):
                s = three_parameter.summary(part, bytes_of_selection=selection)
                c1 = [f"{s['c1_s'][k] * 1e3:.2f}" for k in (8, 16, 32)]
                rows.append((
                    gpu.upper(), batches, "priced" if selection else "in c1", str(s["cells"]), f"{s['beta_bytes_per_s'] / 1e12:.3f}",
                    f"{s['c0_s'] * 1e3:.2f}", *c1, f"{s['r2']:.4f}", f"{100 * s['held_out_median']:.1f}", f"{100 * s['held_out_max']:.1f}",
                ))  # fmt: skip
    heads = ("GPU", "batches", "selected bytes", "cells", "beta TB/s", "c0 ms", "c1(8) ms", "c1(16) ms", "c1(32) ms", "R2",
             "held out, median %", "worst %")  # fmt: skip
    return table(heads, rows)


def sections() -> dict[str, str]:
    known, found = published(), measured()
    bill, origin = of_bill()
    return {
        "rates": f"Rates of the bill: {origin}.",
        "knees": knee_table(known, found, bill),
        "agreement": agreement_table(known, found, bill),
        "predictors": predictor_table(bill),
        "pairs": pair_table(known, found, bill),
        "constant": constant_table(known),
        "three-parameter": fit_table(),
    }


def draw(folder: Path) -> None:
    """The plots of the page into `folder`."""
    import replication_plots as plots

    plots.knees(published(), measured(), of_bill()[0], folder / "replication_knees.png")
    plots.steps([DATA / f"measured/{gpu}/decode_qwen2.5-7b.nc" for gpu in ("h100", "h200")], folder / "replication_steps.png")


def main(arguments: list[str]) -> None:
    page = ROOT / "docs" / "replication.md"
    body = page.read_text(encoding="utf-8")
    for name, content in sections().items():
        print(f"{name}\n\n{content}\n")
        body, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, c=content: m[1] + c + "\n" + m[2], body, flags=re.DOTALL
        )
        if count != 1:
            raise SystemExit(f"{page}: {count} places for {name}")
    if "--write" in arguments:
        page.write_text(body, encoding="utf-8")
        draw(ROOT / "docs" / "img")


if __name__ == "__main__":
    main(sys.argv[1:])
