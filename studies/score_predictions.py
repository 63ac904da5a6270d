"""`python -m studies.score_predictions PREDICTED.csv FILE...`: measured served runs beside what was written down before they were run.

The rows of `studies.predict_served` are found by GPU, model, weights and load, and by their engine arguments, of which the measured
server's flags must hold all.
"""

from __future__ import annotations

import csv
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import numpy as np

from calibrate.measurement import open_measurement
from calibrate.served.replay import METRICS
from calibrate.served.runs import Experiment, read_experiments
from hw.exits import call
from hw.suites.served_plan import AGAIN
from sim.errors import UsageError
from sim.specs.gpus import get_gpu

Row = Mapping[str, str]


def measured_median_ms(experiment: Experiment, metric: str) -> float:
    """Median over requests, ms; `metric` is one of ttft, tpot, e2el."""
    return float(np.nanmedian(getattr(experiment, f"{metric}_s"))) * 1e3


def found_rows(rows: Sequence[Row], gpu: str, model: str, weights: str, said: str) -> list[Row]:
    """Predictions of the server that ran: those of the most of its words. Raises UsageError where none was made."""
    words = set(shlex.split(said))
    found = [
        row
        for row in rows
        if (row["gpu"], row["model"].lower(), row["weight_dtype"]) == (gpu, model.lower(), weights)
        and set(shlex.split(row["engine_args"])) <= words
    ]
    if not found:
        raise UsageError(f"no prediction for {model} {weights} on {gpu} with {said!r}")
    most = max(len(shlex.split(row["engine_args"])) for row in found)
    return [row for row in found if len(shlex.split(row["engine_args"])) == most]


def cached_share(experiment: Experiment) -> float:
    """Share of the prompts' tokens that the server says it had cached."""
    cached = 0.0 if experiment.cached_tokens is None else float(np.nansum(experiment.cached_tokens))
    return cached / float(experiment.prompt_tokens.sum())


def scored(rows: Sequence[Row], path: Path, weights: str | None = None) -> list[tuple[str, str, float, float, bool]]:
    """(load, metric, measured ms, predicted ms, whether the 90 % interval holds it) of every load of the file that was predicted, for
    `weights` where that is not the file's own.
    """
    attrs = open_measurement(path).attrs
    own = str(attrs["weight_dtype"])
    gpu, flags = get_gpu(str(attrs["gpu_name"])).name, str(attrs["plan_server_flags"])
    of = found_rows(rows, gpu, str(attrs["model"]), weights or {"bfloat16": "bf16"}.get(own, own), flags)
    by_load = {(row["experiment"], row["metric"]): row for row in of}
    result = []
    for experiment in read_experiments(path):
        for metric in (name.removesuffix("_s") for name in METRICS):
            if row := by_load.get((experiment.name.removesuffix(AGAIN), metric)):
                value = measured_median_ms(experiment, metric)
                low, high = float(row["median_low_ms"]), float(row["median_high_ms"])
                result.append((experiment.name, metric, value, float(row["median_ms"]), low <= value <= high))
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("predicted", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("files", type=click.Path(exists=True, dir_okay=False, path_type=Path), nargs=-1, required=True)
@click.option("--weights", help="Rows of these weights are meant, as gptq for AWQ by Machete.  [default: the file's]")
def main(predicted: Path, files: tuple[Path, ...], weights: str | None) -> None:
    """Score served measurements against PREDICTED, the output of studies.predict_served. Off is (predicted - measured) / measured."""
    with predicted.open(newline="") as source:
        rows = list(csv.DictReader(source))
    for path in files:
        click.echo(f"{path.stem}: TTFT, TPOT, E2EL (ms)")
        scores = scored(rows, path, weights)
        cached = {one.name: cached_share(one) for one in read_experiments(path)}
        for load in dict.fromkeys(load for load, *_ in scores):
            parts = [
                f"{value:8.{1 + (metric == 'tpot')}f} {guess / value - 1:+5.0%}{' ' if inside else '!'}"
                for name, metric, value, guess, inside in scores
                if name == load
            ]
            hits = f"  cached {cached[load]:.0%}" if cached[load] else ""
            click.echo(f"  {load:18} {' '.join(parts)}{hits}".rstrip())
        inside = sum(row[-1] for row in scores)
        click.echo(f"  in their 90 %: {inside} of {len(scores)} medians")


if __name__ == "__main__":
    call(main, "python -m studies.score_predictions")
