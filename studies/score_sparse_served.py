"""`python -m studies.score_sparse_served GPU`: block-sparse decode steps in vLLM beside dense ones and beside what was predicted of both.

Speed-up is of the same server, dense by its own attention, over block-sparse. `!` lies outside the 90 % interval. Medians of all visits.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import xarray as xr

from kernels.sparse_decode import Settings
from sim.closed_form.what_if import WhatIf, step_seconds
from sim.errors import UsageError
from sim.specs.attention_policy import blocks
from sim.specs.decode_stack import SERVED_KERNELS
from studies.predict_sparse_served import CELLS, deployment

MEASURED, PREDICTED = Path("scenarios/data/measured/validation"), Path("docs/data/predicted-sparse-served.csv")
CHECKS, ITERATIONS = Path("docs/data/sparse-served-checks.json"), Path("docs/data/sparse-served-iterations.csv")
LABELS = {0: "dense-128", 32: "sparse-k32"}
# By path of the predictions: how the files of such runs end, and what was set beside k.
RUNS = {
    "in-process": ("", ""),
    "in-process-0": ("-again", ", dense_below 0"),
}
QUANTILES = (0.05, 0.5, 0.95)
Key = tuple[int, int, int]  # batch, context, k


def steps_ms(gpu: str, model: str, path: str = "in-process") -> dict[Key, float]:
    """Median step of every cell, dense (k = 0) and block-sparse, of the runs that a path of the predictions is of."""
    found: dict[Key, float] = {}
    for k in (0, 8, 32):
        file = MEASURED / f"{gpu.lower()}_engine-grid_{model}_{f'sparse-k{k}' if k else LABELS[0]}{RUNS[path][0]}.nc"
        if not file.exists():
            continue
        with xr.open_dataset(file) as data:
            grid, target = data["role"].values.astype(str) == "grid", data["target"].values.astype(bool)
            counted = target & ~data["warmup"].values.astype(bool)
            for cell in np.flatnonzero(grid):
                values = data["step_s"].values[counted & (data["cell_index"].values == cell)]
                if len(values):
                    where = (int(data["batch"].values[cell]), round(float(data["context_tokens"].values[cell])), k)
                    found[where] = 1e3 * float(np.median(values))
    return found


def predicted_ms(gpu: str, model: str, path: str = "in-process") -> dict[Key, tuple[float, float, float]]:
    """Median, 5 and 95 % of every cell, as predicted of a path."""
    with PREDICTED.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["gpu"], r["model"], r["path"]) == (gpu, model, path)]
    steps = ("step_ms", "step_low_ms", "step_high_ms")
    return {
        (int(r["batch"]), int(r["context_tokens"]), int(r["k_blocks"])): (float(r[steps[0]]), float(r[steps[1]]), float(r[steps[2]]))
        for r in rows
    }


def lines(gpu: str, model: str, path: str = "in-process") -> Iterator[tuple[str, float, bool, int]]:
    """(line, error of the prediction, whether inside, k) of every measured cell, dense ones first."""
    found, said = steps_ms(gpu, model, path), predicted_ms(gpu, model, path)
    for key in sorted((key for key in found if key in said), key=lambda key: (key[2], key)):
        batch, context, k = key
        step, (middle, low, high) = found[key], said[key]
        inside = low <= step <= high
        dense = found.get((batch, context, 0))
        faster = f"{dense / step:6.2f}x" if k and dense else ""
        line = f"{batch:4} x {context:6}  k {k or 'all':>3}  {step:6.2f} ms  predicted {middle:6.2f} {100 * (middle / step - 1):+5.1f}%"
        yield f"{line}{' ' if inside else '!'}{faster}", middle / step - 1, inside, k


def checked(gpu: str) -> Iterator[str]:
    """What `studies.kernel_checks.vllm_sparse` found on the GPU."""
    found = json.loads(CHECKS.read_text(encoding="utf-8"))
    if gpu in found["gpu"]:
        runs, whole = found["schedules"], found["whole"]
        yield f"{runs['schedules']} random schedules of a small model, {runs['steps']} steps: of {runs['compared']} selections"
        yield f"{runs['differ']} differ from float64, {runs['beyond_rounding']} by more than rounding"
        yield f"k over all blocks: attention within {whole['attention_error']:.1e} of float64,"
        yield f"{100 * whole['top1_agreement']:.0f} % of tokens as dense"
        same = "bit by bit the same" if found["same_cache"] else "not the same"
        yield f"cache after the same prompts in both modes: {same}"
        yield f"pages lost: {runs['pages'] - 1 - runs['free_pages_after']}"


def served_ms(batch: int, context: int, model: str, gpu: str, k: int) -> tuple[float, float, float]:
    """5 %, median and 95 % of a served step as `what-if` answers it."""
    question = WhatIf(deployment(gpu, model), context, (batch,), (k,), stack=SERVED_KERNELS)
    policy, draws = question.runner.policy(blocks(k)), question.rates().draws
    low, middle, high = np.quantile(step_seconds(question, policy, batch, context, draws, np), QUANTILES)
    return 1e3 * low, 1e3 * middle, 1e3 * high


def served(gpu: str) -> Iterator[str]:
    """Iterations of a server that decodes alone, beside what is answered of it; and what its clients saw of prompts that were cached."""
    with ITERATIONS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == gpu]
    if rows:
        yield f"served, iterations of {rows[0]['model']} without prompts:"
    for row in rows:
        batch, context, k, step = int(row["decode_seqs"]), int(row["context_tokens"]), int(row["k_blocks"]), float(row["median_ms"])
        line = f"{batch:4} x {context:6}  k {k or 'all':>3}  {step:6.2f} ms"
        if k and context >= Settings(k=k).crossover(batch):
            low, middle, high = served_ms(batch, context, row["model"], gpu, k)
            line += f"  predicted {middle:6.2f} {100 * (middle / step - 1):+5.1f}%{' ' if low <= step <= high else '!'}"
        yield line
    for k, label in LABELS.items():
        for path in sorted(MEASURED.glob(f"{gpu.lower()}_served_*_{label}.nc")):
            with xr.open_dataset(path) as data:
                name = [str(each) for each in data["name"].values]
                mine = (data["experiment_index"].values == name.index("deep 8x3")) & (data["turn"].values > 0)
                first, last = data["first_token_s"].values[mine], data["finish_s"].values[mine]
                each = 1e3 * (last - first) / (data["output_tokens"].values[mine] - 1)
                ok = f"{int(data['ok'].values.sum())} of {data.sizes['request']} requests of all loads complete"
            token, request = np.median(each), np.median(last)
            yield f"8 clients of 256K, cached, k {k or 'all':>3}: {token:5.2f} ms a token, {request:.2f} s a request;\n{ok}"


def lasted(gpu: str) -> Iterator[str]:
    """What ten minutes of load left behind."""
    for path in sorted(MEASURED.glob(f"{gpu.lower()}_served_*-lasting.nc")):
        with xr.open_dataset(path) as data:
            says, (seconds,), ok = data.attrs, data["duration_s"].values, data["ok"].values
            (before,), (after,) = data["memory_before_mib"].values, data["memory_after_mib"].values
            cached = float(np.nansum(data["cached_tokens"].values) / data["prompt_tokens"].values.sum())
        yield f"{seconds:.0f} s of load: {ok.sum()} of {len(ok)} requests complete, {says['plan_preemptions']:.0f} preemptions,"
        held = 100 * says["plan_kv_used"]
        yield f"{100 * cached:.0f} % of prompt tokens cached; then {held:.0f} % of blocks held, {after - before:+.0f} MiB on the GPU"


@click.command()
@click.argument("gpu")
def main(gpu: str) -> None:
    """Print the table and the score."""
    shown = [path for path in RUNS if any(steps_ms(gpu, model, path) for model in CELLS)]
    if not shown:
        raise UsageError(f"nothing was measured on {gpu!r}")
    for path in shown:
        every = []
        for model in CELLS:
            rows = list(lines(gpu, model, path))
            if rows:
                click.echo(f"{model} on {gpu}, vLLM 0.23.0 stepped in process{RUNS[path][1]}:")
            for line, *_ in rows:
                click.echo(line)
            every += rows
        for name, chosen in (("dense", [r for r in every if not r[3]]), ("block-sparse", [r for r in every if r[3]])):
            errors = np.array([error for _, error, _, _ in chosen])
            within = f"{np.sum(np.abs(errors) <= 0.1)} within 10 %, {sum(inside for _, _, inside, _ in chosen)} in their 90 %"
            click.echo(f"{name}: {len(chosen)} cells, median error {100 * np.median(np.abs(errors)):.1f} %, {within}")
    for line in (*checked(gpu), *served(gpu), *lasted(gpu)):
        click.echo(line)


if __name__ == "__main__":
    main()
