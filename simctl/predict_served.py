"""`python -m simctl.predict_served`: what the served suite will see of a model, as CSV, to be written down before it is run."""

from __future__ import annotations

import csv
import sys

import click
import numpy as np

from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import Experiment, ServedRun
from hw.engines.shapes import named, shape
from hw.exits import call
from hw.suites import served_plan
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, Limits

OF = ("gpu", "model", "weight_dtype", "tp", "replicas", "prefill", "experiment")
COLUMNS = (*OF, "metric", "median_ms", "median_low_ms", "median_high_ms", "mean_ms")


def predicted(d: Deployment, load: served_plan.Experiment, draws: int, replicas: int = 1, prefill: int = 0) -> list[dict[str, str]]:
    """One row per metric: the median over requests at the median rates, its 90 % interval over draws, the mean. Milliseconds."""
    overhead = packaged_overhead()
    assert load.load is not None
    assert overhead is not None
    arrivals, sizes = load.load
    prompts, outputs = np.array(sizes).T
    none = np.full(len(arrivals), np.nan)
    experiment = Experiment(load.name, "open", np.array(arrivals), prompts, outputs, none, none, rate_per_s=load.rate_per_s)
    run = ServedRun("", d.gpu, d.model, d.precision, d.limits, d.tp, "vllm", (experiment,), replicas=replicas, prefill=prefill)
    rates = load_rates(d)
    found = replay(run, experiment, overhead.applied(rates), overhead.host(rates), draws=draws)
    rows = []
    for metric in METRICS:
        medians = np.nanmedian(found.times[metric], axis=1) * 1e3
        figures = (np.nanmedian(found.guess(metric)) * 1e3, *np.quantile(medians, (0.05, 0.95)), np.nanmean(found.guess(metric)) * 1e3)
        of = (d.gpu.name, d.model.name, d.precision.weights, str(d.tp), str(replicas), str(prefill), load.name, metric.removesuffix("_s"))
        rows.append(dict(zip(COLUMNS, (*of, *(f"{figure:.2f}" for figure in figures)), strict=True)))
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--gpu", required=True)
@click.option("--model", "models", required=True, help="Model shapes, comma-separated; NAME:fp8 for other weights than bf16.")
@click.option("--rates", default="2,10", show_default=True, help="Open loops, requests/s, as --rates of the suite.")
@click.option("--tp", default=1, show_default=True, type=click.IntRange(1))
@click.option("--replicas", default=1, show_default=True, type=click.IntRange(1), help="Servers behind a router.")
@click.option("--prefill", default=0, type=click.IntRange(0), help="Of them only read prompts.")
@click.option("--draws", default=32, show_default=True, type=click.IntRange(2, 1000))
def main(gpu: str, models: str, rates: str, tp: int, replicas: int, prefill: int, draws: int) -> None:
    """Predict the open loops that `--suite served` sends with the same rates: from the packaged rates and serving overhead alone."""
    sheet = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    sheet.writeheader()
    asked = tuple(float(rate) for rate in rates.split(","))
    for text in models.split(","):
        name, _, dtype = text.partition(":")
        d = Deployment(get_model(name), get_gpu(gpu), Precision(dtype or "bf16"), tp, Limits(max_num_seqs=256, max_num_batched_tokens=8192))
        for load in served_plan.open_loops(shape(named(name))["vocab_size"], 0, asked, served_plan.GPU_PLAN):
            sheet.writerows(predicted(d, load, draws, replicas, prefill))
            sys.stdout.flush()


if __name__ == "__main__":
    call(main, "python -m simctl.predict_served")
