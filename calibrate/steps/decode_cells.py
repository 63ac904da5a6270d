"""Decode steps of this project's kernels as step-time cells: all modes, batches and budgets of the suite decode, and steps of the suite
kernels, with the roofline microbenchmarks of the suite floor as what is known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.measured_files import packaged_measurements, resolved
from calibrate.measurement import check_columns, model_of, open_measurement
from calibrate.steps.calibrate_question import Calibrate
from calibrate.steps.grid_cells import Grid, repeat_sd
from calibrate.steps.iterations import make_cells
from sim.cost.batch import decode_batch
from sim.cost.decode_step import decode_step_work
from sim.cost.provenance import Origin
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.priors import Prior
from sim.rates.stack_rates import MEASURED, stack_priors, transferred_priors
from sim.specs.attention_policy import blocks, dense
from sim.specs.decode_stack import KERNELS, STACKS
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import find_gpu, get_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.precision import Precision

SUITES = ("decode", "kernels", "floor", "host")
NEEDED = ("mode", "status", "batch", "context_tokens", "k_blocks", "step_s_median", "step_s_p25", "step_s_p75", "step_s_n")
NUMBERS = ("batch", "context_tokens", "k_blocks", "step_s_n")
SECONDS = ("step_s_median", "step_s_p25", "step_s_p75")
KERNELS_STEP = "decode_step "  # how the op of a whole step begins in the suite kernels; its model follows
DECILES_TO_QUARTILES = 0.526  # of a normal distribution
# Share of what a microbenchmark of the same machine reaches that kernels reach in a step, and its log sd: both packaged GPUs.
OF_FLOOR = {"beta": ("read", 0.97, 0.05), "beta_kv": ("read", 0.99, 0.06), "link_bytes_per_s": ("host_to_device", 0.95, 0.06)}
LAUNCH_SD = 0.2  # log sd of a layer's launch where the suite host timed it


def decode_question(gpu: GpuSpec, given: Sequence[Path], **how: Any) -> Calibrate:
    """The calibration of the kernels' rates on a GPU: from the files given, of the suites decode, kernels, floor and host, else from the
    packaged ones. It starts from GPUs measured before, a packaged one from its datasheet; microbenchmarks narrow both. UsageError where
    there is no decode step, or a file of another GPU.
    """
    paths = list(given) or [path for path in packaged_measurements(gpu) if path.name.startswith("decode")]
    steps = [path for path in paths if suite_of(path) in ("decode", "kernels")]
    if not steps:
        raise UsageError(f"no decode steps of {gpu.name}: give a file of `simctl measure --suite decode` with --from")
    grids = [read_decode(path, gpu) for path in steps]
    priors, basis = stack_priors(gpu, Precision()), f"the datasheet of {gpu.name}"
    if not (gpu.origin == "catalogue" and gpu.name in MEASURED):
        priors, cards = transferred_priors(gpu, Precision())
        basis += f" and kernels on {', '.join(cards)}" if cards else ""
    if any(suite_of(path) in ("floor", "host") for path in paths):
        basis += ", narrowed by microbenchmarks of this machine"
    return Calibrate(gpu, grids, known=(floor_priors(priors, paths, gpu), basis), **how)


def suite_of(path: Path) -> str:
    """The suite that wrote a measurement file, or an empty string. Raises what opening it raises."""
    data = open_measurement(resolved(path))
    if "suite" in data.attrs:
        return str(data.attrs["suite"])
    return "kernels" if {"op", "variant", "median"} <= set(data) else ""


def read_decode(path: Path, gpu: GpuSpec) -> Grid:
    """Decode steps of a file of the suite decode or kernels on `gpu`. UsageError naming the file and what is wrong with it, or where it is
    of another GPU.
    """
    data = open_measurement(resolved(path))
    device = str(data.attrs.get("gpu_name", data.attrs.get("gpu", "")))
    check_gpu(device, gpu, path)
    rows, model = _suite_rows(data, path) if "suite" not in data.attrs or data.attrs["suite"] == "kernels" else _rows(data, path)
    stack = STACKS[KERNELS]
    cells = make_cells(
        [_work(model, row) for row in rows],
        [float(row["step_s_median"]) for row in rows],
        kind=["decode"] * len(rows),
        model=[model.name] * len(rows),
        cell=[f"{row['mode']} {int(row['batch'])}x{int(row['context_tokens'])} k{int(row['k_blocks'])}" for row in rows],
        repeat_sd=[repeat_sd(float(row["step_s_p25"]), float(row["step_s_p75"]), float(row["step_s_n"])) for row in rows],
        run=f"{Path(path).name} ({model.name})",
        machine=str(data.attrs.get("machine", "")),
    )
    return Grid(cells, gpu, model, Precision(), stack.name, f"{Path(path).name} ({model.name})", device=device)


def check_gpu(device: str, gpu: GpuSpec, path: Path) -> None:
    """Raise UsageError unless a file's device is this GPU."""
    if gpu.origin != "catalogue":
        if find_gpu(device, [gpu]) is None:
            raise UsageError(f"{path}: measured on {device!r}; {gpu.origin} has neither that name nor such an alias")
    elif get_gpu(device).name != gpu.name:
        raise UsageError(f"{path}: measured on {get_gpu(device).name}, not on {gpu.name}")


def floor_priors(priors: Mapping[str, Prior], paths: Sequence[Path], gpu: GpuSpec) -> dict[str, Prior]:
    """The priors as the machine's own microbenchmarks narrow them: the suite floor by file, else what a decode file carries of it, and a
    layer's launch by the suite host.
    """
    found: dict[str, float] = {}
    chosen = dict(priors)
    for path in sorted(paths, key=lambda each: suite_of(each) == "floor"):  # a file of its own counts more than what others carry
        data, suite = open_measurement(resolved(path)), suite_of(path)
        check_gpu(str(data.attrs.get("gpu_name", data.attrs.get("gpu", ""))), gpu, path)
        if suite == "host":
            launch = Host.of(resolved(path)).launch * priors["launch_layer_s"].median
            chosen["launch_layer_s"] = Prior(launch, LAUNCH_SD, f"suite host of {path.name}", origin=Origin.KERNELS)
        elif suite == "floor":
            found |= _floors(data, path)
        elif suite == "decode":
            named = {"read": "floor_read_bytes_per_s", "host_to_device": "floor_h2d_bytes_per_s"}
            found |= {what: float(data.attrs[name]) for what, name in named.items() if name in data.attrs}
    for name, (what, share, sigma) in OF_FLOOR.items():
        if what in found:
            peak = max(priors[name].upper, found[what] * 1.02)
            chosen[name] = Prior(share * found[what], sigma, f"microbenchmark {what} x {share:g}", peak, Origin.KERNELS)
    return chosen


def _floors(data: Any, path: Path) -> dict[str, float]:
    """Bytes/s of reading memory, and of the host link at its largest size."""
    check_columns(data, path, "row", ("what", "size_bytes", "value_median"), numbers=("size_bytes", "value_median"))
    what, size, value = (data[name].values for name in ("what", "size_bytes", "value_median"))
    found = {}
    for name in ("read", "host_to_device"):
        rows = np.flatnonzero(what.astype(str) == name)
        if rows.size:
            found[name] = float(value[rows[int(np.argmax(size[rows]))]])
    if bad := [name for name, each in found.items() if not 1e6 < each < 1e15]:
        raise UsageError(f"{path}: {bad[0]} is no bandwidth in bytes/s ({found[bad[0]]:g})")
    return found


def _rows(data: Any, path: Path) -> tuple[list[dict[str, Any]], ModelSpec]:
    check_columns(data, path, "cell", NEEDED, numbers=NUMBERS, seconds=SECONDS)
    rows = [dict(zip(NEEDED, values, strict=True)) for values in zip(*(data[n].values for n in NEEDED), strict=True)]
    kept = [row for row in rows if str(row["status"]) == "ok"]
    for row in kept:
        if str(row["mode"]) not in ("dense", "sparse", "tiered"):
            raise UsageError(f"{path}: unknown mode {str(row['mode'])!r}; there are dense, sparse, tiered")
        if not (1 <= row["batch"] <= 2**20 and 1 <= row["context_tokens"] <= 2**40 and 0 <= row["k_blocks"] <= 2**20):
            raise UsageError(f"{path}: a {row['mode']} step of {row['batch']:g} x {row['context_tokens']:g} tokens, k {row['k_blocks']:g}")
    return kept, model_of(data.attrs, path)


def _suite_rows(data: Any, path: Path) -> tuple[list[dict[str, Any]], ModelSpec]:
    """Whole steps of the suite kernels, whose quantiles are deciles."""
    names = ("op", "variant", "batch", "context", "k_blocks", "median", "p10", "p90", "repeats")
    check_columns(data, path, "cell", names, numbers=names[2:])
    rows, model = [], None
    for op, variant, *values in zip(*(data[n].values for n in names), strict=True):
        if not str(op).startswith(KERNELS_STEP) or str(variant) not in ("dense", "sparse", "tiered"):
            continue
        model = get_model(str(op).removeprefix(KERNELS_STEP))
        batch, context, k, median, low, high, repeats = map(float, values)
        spread = DECILES_TO_QUARTILES * (high - low) / 2
        row = (str(variant), "ok", batch, context, k, median, median - spread, median + spread, repeats)
        rows.append(dict(zip(NEEDED, row, strict=True)))
    if model is None:
        raise UsageError(f"{path}: no whole decode step among its cells")
    return rows, model


def _work(model: ModelSpec, row: Mapping[str, Any]) -> Any:
    stack = STACKS[KERNELS]
    policy = dense() if str(row["mode"]) == "dense" else blocks(int(row["k_blocks"]), "host" if str(row["mode"]) == "tiered" else "hbm")
    policy = stack.policy(policy)
    shape = decode_batch(model, float(row["batch"]), float(row["context_tokens"]), policy)
    return decode_step_work(stack, model, shape, Precision(), policy)
