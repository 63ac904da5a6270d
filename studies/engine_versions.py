"""`python -m studies.engine_versions`: what differs between vLLM 0.23 and 0.26 on one H200: kernels, launching, scheduling, API server.

Kernels: time in which any ran (profile). Launching: the part of a stepped iteration from its schedule to its tokens, less those kernels
(engine grid). Scheduling: `schedule()` of served iterations. API server: tokens per second it streams while they pile up behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import open_measurement
from calibrate.served.runs import token_times, with_token_times
from hw.exits import call

MEASURED = Path("scenarios/data/measured/validation")
VERSIONS = ("0.23", "0.26")
SATURATED = ("crowd 256x3", "larger crowd 512x3")  # of the 1B
Array = NDArray[np.float64]


def measured(suite: str, model: str, version: str) -> Any:
    """The measurement of a version, a served one with the times of its tokens."""
    path = MEASURED / f"h200_{suite}_{model}_v{version}.nc"
    data = open_measurement(path)
    return with_token_times(data, path.name) if suite == "served" else data


def cells(grid: Any, profile: Any) -> dict[str, tuple[float, float, float]]:
    """(step, schedule to tokens, kernels) of every cell that both measured, ms."""
    busy = dict(zip(profile.label.values.astype(str), profile.busy_us.values / 1e3, strict=True))
    rows = zip(grid.label.values.astype(str), grid.step_s_median.values * 1e3, grid.model_s_median.values * 1e3, strict=True)
    return {label: (float(step), float(model), float(busy[label])) for label, step, model in rows if label in busy}


def served_iterations(data: Any, load: str) -> tuple[Array, Array, NDArray[np.bool_]]:
    """(microseconds of schedule(), milliseconds since the tokens before, whether it only decoded) of a load's iterations."""
    index = data.name.values.astype(str).tolist().index(load)
    of = np.flatnonzero(data.iteration_experiment_index.values == index)
    decided, scheduled, collected = (data[name].values[of].astype(float) for name in ("decided_s", "scheduled_s", "collected_s"))
    decodes = ~np.isin(of, data.chunk_iteration.values) & (data.decode_seqs.values[of] > 0)
    return (scheduled - decided) * 1e6, np.diff(collected, prepend=np.nan) * 1e3, decodes


def streamed_per_s(data: Any, load: str) -> float:
    """Tokens that reached the clients, per second from the first sending to the last of them."""
    index = data.name.values.astype(str).tolist().index(load)
    return float(data.output_tokens.values[data.experiment_index.values == index].sum() / data.duration_s.values[index])


def held_back_s(data: Any, load: str) -> float:
    """Longest time between the engine having its k-th decoded token and the clients having theirs, s."""
    index = data.name.values.astype(str).tolist().index(load)
    of = np.flatnonzero(data.iteration_experiment_index.values == index)
    chunks = data.chunk_iteration.values
    whole = set(data.prompt_tokens.values[data.experiment_index.values == index].tolist())
    first = np.isin(chunks, of) & np.isin(data.chunk_new_tokens.values + data.chunk_cached_tokens.values, list(whole))
    had = np.concatenate([np.repeat(data.collected_s.values[of], data.decode_seqs.values[of]), data.collected_s.values[chunks[first]]])
    times = np.concatenate(token_times(data, np.flatnonzero(data.experiment_index.values == index)) or [np.zeros(0)])
    count = min(len(had), len(times))
    return float(np.max(np.sort(times)[:count] - np.sort(had)[:count]))


def _medians(found: Mapping[str, Mapping[str, tuple[float, float, float]]], kind: str) -> str:
    old, new = (found[version] for version in VERSIONS)
    labels = [label for label in old if label in new and label.startswith(kind)]
    step, model, busy = np.array([[new[label][i] - old[label][i] for label in labels] for i in range(3)])
    share = np.median([new[label][2] / old[label][2] - 1 for label in labels])
    launch, rest = np.median(model - busy), np.median(step - model)
    return f"{len(labels):2} cells, kernels {share:+.1%}, launching {launch:+.2f} ms, the rest {rest:+.2f} ms"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Print the differences of the newer version, as medians over cells or iterations. A token waits between engine and client."""
    stepped = {v: cells(measured("engine-grid", "llama3.1-8b", v), measured("profile", "llama3.1-8b", v)) for v in VERSIONS}
    click.echo("Llama 3.1 8B stepped in process, 0.26 beside 0.23:")
    for kind in ("decode", "prefill", "mixed"):
        click.echo(f"  {kind:8} {_medians(stepped, kind)}")
    served = {(m, v): measured("served", m, v) for m in ("llama3.1-8b", "llama3.2-1b") for v in VERSIONS}
    click.echo("served, 0.23 / 0.26: schedule() us; iterations that only decode, ms")
    loads = [("llama3.1-8b", load) for load in ("open 2/s", "open 10/s", "open 20/s", "closed 16x4", "crowd 256x3")]
    for model, load in (*loads, ("llama3.2-1b", "open 10/s"), ("llama3.2-1b", "closed 16x4")):
        found = [served_iterations(served[model, v], load) for v in VERSIONS]
        schedule = " / ".join(f"{np.median(times):5.0f}" for times, _, _ in found)
        decode = " / ".join(f"{np.nanmedian(gaps[only]):5.2f}" for _, gaps, only in found)
        click.echo(f"  {model:11} {load:12} {schedule}   {decode}")
    click.echo("Llama 3.2 1B, 0.23 / 0.26: tokens/s streamed; longest wait of a token (s)")
    for load in SATURATED:
        pair = [served["llama3.2-1b", v] for v in VERSIONS]
        rate = " / ".join(f"{streamed_per_s(one, load):6.0f}" for one in pair)
        click.echo(f"  {load:18} {rate}   {' / '.join(f'{held_back_s(one, load):.1f}' for one in pair)}")


if __name__ == "__main__":
    call(main, "python -m studies.engine_versions")
