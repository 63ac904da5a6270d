"""Print the weight-axis replication: measured knees beside the published ones and those of the bill. `python docs/weight_axis.py`."""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

import numpy as np

from hw.engines.shapes import shape
from sim.bill import decode_shape, iteration_bill
from sim.knee import Knee, continuous_knee
from sim.posterior import rates_for
from sim.precision import Precision
from sim.price import step_time_s
from sim.specs.gpus import get_gpu
from sim.specs.hf_config import spec_from_config

DATA = Path(__file__).parents[1] / "scenarios" / "data"
PAIRS = (("qwen2.5-7b", "qwen2.5-14b"), ("qwen2.5-14b", "qwen2.5-32b"), ("mistral-7b", "mistral-24b"), ("gemma3-4b", "gemma3-12b"), ("gemma3-12b", "gemma3-27b"))
FAMILY = {"qwen2.5": "qwen2.5", "mistral": "mistral", "gemma3": "gemma3"}


def published() -> dict[tuple[str, int], float]:
    """Published continuous knees by (model, context); the confirming runs are left out."""
    found = {}
    with (DATA / "reference/tr164/derived_model_knees.csv").open() as file:
        for row in csv.DictReader(file):
            if "confirm" not in row["run"]:
                name = f"{FAMILY.get(row['family'], row['family'])}-{row['model_size'].lower()}"
                found[name, int(row["context_tokens"])] = float(row["observed_continuous_knee_batch"])
    return found


def knees() -> dict[tuple[str, int], tuple[Knee, Knee]]:
    """(measured, of the bill) by (model, context), on the measured ladder."""
    gpu, precision, found = get_gpu("H100"), Precision("fp8", "bf16"), {}
    rates = rates_for(gpu, precision)
    print(f"rates: {rates.summary}")
    with (DATA / "measured/h100/weight-axis_curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    for (model, context), group in groupby(rows, key=lambda r: (r["model"], int(r["context_tokens"]))):
        curve = [(int(r["batch"]), float(r["step_s"])) for r in group]
        batches = [b for b, _ in curve]
        spec = spec_from_config(shape(model), model, "shape")
        bills = [iteration_bill(spec, decode_shape(spec, float(b), float(context)), precision) for b in batches]
        priced = [float(step_time_s(bill, rates.point)) for bill in bills]
        measured = continuous_knee(batches, [curve[0][1] / t for _, t in curve])
        found[model, context] = (measured, continuous_knee(batches, [priced[0] / t for t in priced]))
    return found


def spearman(x: list[float], y: list[float]) -> float:
    """Rank correlation of samples without ties."""
    ranks = [np.argsort(np.argsort(v)) for v in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


def factors(x: list[float], y: list[float]) -> str:
    """Median and largest factor between two lists."""
    ratio = np.exp(np.abs(np.log(np.asarray(x) / np.asarray(y))))
    return f"median factor {np.median(ratio):.3f}, largest {ratio.max():.3f}"


def text(knee: Knee) -> str:
    return f"{'> ' if knee.censored else ''}{knee.batch:.2f}"


def main() -> None:
    known, found = published(), knees()
    for (model, context), (measured, bill) in found.items():
        print(f"| {model} | {context} | {text(measured)} | {known.get((model, context), float('nan')):.2f} | {text(bill)} |")
    both = [(m.batch, b.batch, known[key]) for key, (m, b) in found.items() if not m.censored and not b.censored and key in known]
    measured, bill, published_knees = (list(column) for column in zip(*both, strict=True))
    print(f"n = {len(both)} finite knees with a published one")
    print(f"bill against measured: Spearman {spearman(bill, measured):.3f}, {factors(bill, measured)}")
    print(f"bill against published: Spearman {spearman(bill, published_knees):.3f}, {factors(bill, published_knees)}")
    print(f"measured against published: Spearman {spearman(measured, published_knees):.3f}, {factors(measured, published_knees)}")
    for small, large in PAIRS:
        for context in (2048, 8192, 32000):
            if (small, context) in found and (large, context) in found:
                (a, bill_a), (b, bill_b) = found[small, context], found[large, context]
                theirs = known[large, context] / known[small, context]
                ours = f"{'> ' if b.censored else ''}{b.batch / a.batch:.3f}"
                priced = f"{'> ' if bill_b.censored else ''}{bill_b.batch / bill_a.batch:.3f}"
                print(f"| {small} -> {large} | {context} | {ours} | {theirs:.3f} | {priced} |")


if __name__ == "__main__":
    main()
