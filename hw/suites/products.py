"""products: how long each GEMM of a layer takes, by rows, as an engine calls it.

Protocol (products/3). A GEMM is `F.linear` of an activation [rows, k] with a weight [n, k], fused as vLLM fuses them (qkv, o,
gate_up, down), with its bias where the model has one. The points - GEMMs by rows, those that vLLM captures graphs for and many
beyond - are gone through PASSES times, each time in a drawn order: those of the rows that most iterations have (`is_first`), then the
others. A sample is the mean of a burst of calls behind a GPU that is kept busy until all of them are queued: launching does not show, and
a burst that the host queued too slowly is marked late and not counted. A burst has fewer calls where they are long by themselves. One
uncounted call goes before it (its activation is then where the kernel before it would have left it, its library loaded), a call's weight
lies where several times the L2 cache was read since, and after a burst the GPU rests as long as it worked, so that its power limit does
not bite. A float64 GEMM is compared before (gate).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hw import machine
from hw.artifact import table
from hw.engines.shapes import SHAPES, shape
from hw.gemm_lists import ListedGemm, models_of, read_gemms
from hw.journal import Journal, attempt
from hw.pace import Budget, paced, summarize, undisturbed
from sim.cost.graphs import CAPTURED, GRAPH_TOKENS
from sim.errors import UsageError

PROTOCOL = "products/3"
PASSES = 3
PART = 400  # points between two entries of the journal
# Rows that no captured graph holds. What a library picks for one multiple of 16 or 64 it may pick for no other number near it, and seven
# of eight iterations beyond the graphs have rows that are no multiple of 8: those are measured at numbers of their own, ODD.
BEYOND = (*range(520, 1105, 8), *range(1120, 2305, 32), *range(1128, 2305, 64), *range(2560, 8193, 256))
ODD = (43, *(r + 1 + r // 8 % 7 for r in range(512, 1104, 8)), *(r + 1 + r // 16 % 7 for r in range(1104, 2304, 16)), 2100)
MOST_ROWS = {"cuda": 8192, "cpu": 64}
GATE_BOUND = 2e-2  # bf16 inputs and output, against float64
DENSE_KINDS = ("qwen2", "qwen3", "llama", "mistral", "gemma3_text")
COLUMNS = {
    "layers": ("models and their layers that compute this product", ""),
    "k": ("columns of the activation", "1"),
    "n": ("columns of the result", "1"),
    "bias": ("whether a bias is added", "1"),
    "dtype": ("element type", ""),
    "rows": ("rows of the activation", "1"),
    "status": ("ok, late, oom or error", ""),
    "error": ("what went wrong", ""),
    "time_s_median": ("median time of a call", "s"),
    "time_s_n": ("bursts counted", "1"),
    "late_n": ("bursts that were queued too slowly, not counted", "1"),
}
Point = tuple[ListedGemm, int]  # and its rows


class Device(Protocol):
    """Methods of `hw.suites.products_device.Calls` that a pass needs."""

    def time_s(self, gemm: ListedGemm, rows: int) -> tuple[float, bool]: ...
    def error(self, gemm: ListedGemm) -> float: ...


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """Gate and passes over the GEMMs of a list, or of the models named. Needs torch, no engine."""
    from hw.suites import products_device

    if job.products:
        uses = read_gemms(Path(job.products))
        models = tuple(models_of(uses.values()))
    else:
        models = job.models or tuple(name for name, config in SHAPES.items() if config["torch_dtype"] == "bfloat16")
        uses = gemms_of({name: shape(name) for name in models})
    if not journal.records:
        journal.add("points", uses=[[p.k, p.n, p.bias, p.dtype, layers] for p, layers in uses.items()], device=job.device)
    if list(uses_in(journal.records)[0].items()) != list(uses.items()):
        raise UsageError(f"{journal.path}: cannot resume, it holds another list of products")
    attrs |= {"model": ", ".join(models), "weight_dtype": ", ".join(sorted({gemm.dtype for gemm in uses})), "weights": "random"}
    attrs |= {"path": "F.linear", **products_device.described(job.device)}
    calls = products_device.Calls(uses, MOST_ROWS[job.device], job.device, job.seed)
    attrs["held_s_per_call"] = calls.held_s
    budget = Budget(job.budget_s)
    with undisturbed(), machine.clocks() as readings:
        attrs |= measure(calls, points_of(uses, job.device), journal, budget, job.seed, job.stem)
    attrs |= machine.summary(readings) | {"measuring_s": round(budget.spent_s, 1)}


def layers_of(config: Mapping[str, Any]) -> dict[str, ListedGemm]:
    """The dense GEMMs of one layer by name, from a config.json. Routed experts are none. Raises UsageError for layers not known here."""
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    if kind not in (*DENSE_KINDS, "qwen3_moe"):
        raise UsageError(f"suite products knows no layers of {kind!r}")
    head_dim, dtype = config.get("head_dim", hidden // heads), config["torch_dtype"]
    found = {
        "qkv": ListedGemm(hidden, (heads + 2 * config["num_key_value_heads"]) * head_dim, kind == "qwen2", dtype),
        "o": ListedGemm(heads * head_dim, hidden, False, dtype),
    }
    if kind in DENSE_KINDS:
        found["gate_up"] = ListedGemm(hidden, 2 * config["intermediate_size"], False, dtype)
        found["down"] = ListedGemm(config["intermediate_size"], hidden, False, dtype)
    return found


def gemms_of(configs: Mapping[str, Mapping[str, Any]]) -> dict[ListedGemm, str]:
    """Every GEMM of these models once, and whose it is: "llama3.1-8b qkv, mistral-7b qkv"."""
    uses: dict[ListedGemm, list[str]] = {}
    for model, config in configs.items():
        for layer, gemm in layers_of(config).items():
            uses.setdefault(gemm, []).append(f"{model} {layer}")
    return {gemm: ", ".join(names) for gemm, names in uses.items()}


def points_of(gemms: Iterable[ListedGemm], device: str) -> list[Point]:
    """Products by rows, ascending; a CPU gets the small ones."""
    rows = sorted(r for r in {*CAPTURED, *BEYOND, *ODD} if r <= MOST_ROWS[device])
    return [(gemm, r) for gemm in gemms for r in rows]


def is_first(rows: int) -> bool:
    """Whether a number of rows is among those that most iterations have."""
    return rows <= GRAPH_TOKENS or rows in ODD


def measure(device: Device, points: Sequence[Point], journal: Journal, budget: Budget, seed: int, name: str) -> dict[str, Any]:
    """Gate, and passes until done or out of budget. Returns attributes. A point that fails is recorded as such and not tried again."""
    gate = max(device.error(gemm) for gemm in dict(points))
    failed = {i for record in journal.records for i, *_ in record.get("errors", ())}
    done = True
    for first in (True, False):
        places = [i for i, (_, rows) in enumerate(points) if is_first(rows) == first]
        for number in range(PASSES):
            order = np.random.default_rng((seed, int(first), number)).permutation(places).tolist()
            which = "first" if first else "rest"
            parts = {f"pass {number} {which} part {at // PART}": order[at : at + PART] for at in range(0, len(order), PART)}
            left = [key for key in parts if key not in journal]
            for key in paced(left, budget, f"{name}, pass {number + 1} ({which})", reserve_s=2.0):
                samples, errors = _samples(device, points, [i for i in parts[key] if i not in failed])
                failed |= {i for i, *_ in errors}
                journal.add(key, number=number, samples=samples, errors=errors)
            done = done and all(key in journal for key in parts)
    return {"gate_error": gate, "gate_bound": GATE_BOUND, "gate_passed": int(gate <= GATE_BOUND), "finished": int(done)}


def _samples(device: Device, points: Sequence[Point], order: Sequence[int]) -> tuple[list[list[Any]], list[list[Any]]]:
    """([point, seconds, late] of each, [point, status, error] of those that failed)."""
    samples: list[list[Any]] = []
    errors: list[list[Any]] = []
    for i in order:
        found, status, error = attempt(partial(device.time_s, *points[i]))
        if status == "ok":
            samples.append([i, found[0], int(found[1])])
        else:
            errors.append([i, status, error])
    return samples, errors


def uses_in(records: Sequence[Mapping[str, Any]]) -> tuple[dict[ListedGemm, str], str]:
    """(GEMMs and whose they are, the device) of a journal."""
    record = next(r for r in records if r["key"] == "points")
    return {ListedGemm(k, n, bool(bias), dtype): layers for k, n, bias, dtype, layers in record["uses"]}, record["device"]


def dataset(records: Sequence[Mapping[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset: a table along `point`, and `time_s` [point, visit] (float32, NaN: late, failed or not reached)."""
    import xarray as xr

    uses, device = uses_in(records)
    points = points_of(uses, device)
    times, late = np.full((len(points), PASSES), np.nan, np.float32), np.zeros(len(points), int)
    errors: dict[int, tuple[str, str]] = {}
    for record in records:
        for i, seconds, was_late in record.get("samples", ()):
            late[i] += was_late
            times[i, record["number"]] = np.nan if was_late else seconds
        errors |= {i: (status, error) for i, status, error in record.get("errors", ())}
    rows = []
    for i, (gemm, count) in enumerate(points):
        seen = times[i][~np.isnan(times[i])].tolist()
        status, error = errors.get(i, ("ok" if seen else "late" if late[i] else "", ""))
        sizes = {"k": gemm.k, "n": gemm.n, "bias": int(gemm.bias), "dtype": gemm.dtype, "rows": count}
        state = {"status": status, "error": error, "late_n": int(late[i])}
        rows.append({"layers": uses[gemm], **sizes, **state, **summarize(seen, "time_s")})
    variables = table("point", rows, COLUMNS)
    variables["time_s"] = (("point", "visit"), times, {"long_name": "time of a call, mean of a burst", "units": "s"})
    derived = {"protocol": PROTOCOL, "points_ok": sum(r["status"] == "ok" for r in rows), "samples_late": int(late.sum())}
    return xr.Dataset(variables, attrs={**derived, **attrs})
