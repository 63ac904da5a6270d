"""products: how long each matrix product of a layer takes, by rows, as an engine calls it.

Protocol (products/2). A product is `F.linear` of an activation [rows, k] with a weight [n, k], fused as vLLM fuses them (qkv, o,
gate_up, down), with its bias where the model has one. The points - products by rows, those that vLLM captures graphs for and many
beyond - are gone through LEAST_PASSES times, each time in a drawn order: those of the rows that most iterations have (`is_first`), then the
others; then all as long as there is time, MOST_PASSES times at most. A sample is the mean of a burst of calls behind a GPU that is
kept busy until all of them are queued: launching does not show, and a burst that the host queued too slowly is marked late and not
counted. A burst has fewer calls where they are long by themselves. One uncounted call goes before it (its activation is then where the
kernel before it would have left it, its library loaded), a call's weight lies where several times the L2 cache was read since, and after
a burst the GPU rests as long as it worked, so that its power limit does not bite. Which kernels a product runs is looked at last, under
PyTorch's profiler, for rows up to NAMED and a few above. A float64 product is compared before (gate).

In products/1 a burst had as many calls whatever they take, a product copies of its own, and every pass all points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hw.journal import Journal
from hw.pace import Budget, paced
from hw.spread import summarize
from sim.bill import CAPTURED
from sim.errors import SimctlError, UsageError
from sim.products import GRAPHS

PROTOCOL = "products/2"
LEAST_PASSES, MOST_PASSES = 3, 9
PART = 400  # points between two entries of the journal
# Rows that no captured graph holds. What a library picks for one multiple of 16 or 64 it may pick for no other number near it, and seven
# of eight iterations beyond the graphs have rows that are no multiple of 8: those are measured at numbers of their own, ODD.
BEYOND = (*range(520, 1105, 8), *range(1120, 2305, 32), *range(1128, 2305, 64), *range(2560, 8193, 256))
ODD = (43, *(r + 1 + r // 8 % 7 for r in range(512, 1104, 8)), *(r + 1 + r // 16 % 7 for r in range(1104, 2304, 16)), 2100)
MOST_ROWS = {"cuda": 8192, "cpu": 64}
NAMED, NAMED_TOO = 720, (1024, 2048, 4096, 8192)
RESERVE_S = {"cuda": 4.0, "cpu": 2.0}  # for the kernels' names: at least, and for every point of them
NAMING_S = 1e-3
BURST = ((512, 8), (1104, 4), (2304, 2))  # calls of a burst for rows up to the first number; one above
BURST_S = 1e-3  # and no more calls than take about so long
# What a pass takes is said before it starts: calls by a datasheet's worth of a roofline, a GPU kept busy, a host that queues and waits.
ROOF_BYTES_PER_S, ROOF_FLOPS_PER_S = 2.9e12, 600e12
HELD_S, SAMPLE_S = 60e-6, 0.5e-3
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
    "time_s_p25": ("lower quartile", "s"),
    "time_s_p75": ("upper quartile", "s"),
    "time_s_n": ("bursts counted", "1"),
    "late_n": ("bursts that were queued too slowly, not counted", "1"),
    "kernel_names": ("kernels that one call ran, in order", ""),
    "kernel_s": ("time of those kernels, summed, under the profiler", "s"),
}


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product: [rows, k] times [k, n]."""

    k: int
    n: int
    bias: bool
    dtype: str


Point = tuple[Product, int]  # and its rows


class Device(Protocol):
    """What a pass needs of `hw.suites.products_device.Calls`."""

    def time_s(self, product: Product, rows: int) -> tuple[float, bool]: ...
    def kernels(self, points: Sequence[Point]) -> list[list[tuple[str, float]]]: ...
    def error(self, product: Product) -> float: ...


def layers_of(config: Mapping[str, Any]) -> dict[str, Product]:
    """The dense products of one layer by name, from a config.json. Routed experts are none. Raises UsageError for layers not known here."""
    kind, hidden, heads = config["model_type"], config["hidden_size"], config["num_attention_heads"]
    if kind not in (*DENSE_KINDS, "qwen3_moe"):
        raise UsageError(f"suite products knows no layers of {kind!r}")
    head_dim, dtype = config.get("head_dim", hidden // heads), config["torch_dtype"]
    found = {
        "qkv": Product(hidden, (heads + 2 * config["num_key_value_heads"]) * head_dim, kind == "qwen2", dtype),
        "o": Product(heads * head_dim, hidden, False, dtype),
    }
    if kind in DENSE_KINDS:
        found["gate_up"] = Product(hidden, 2 * config["intermediate_size"], False, dtype)
        found["down"] = Product(config["intermediate_size"], hidden, False, dtype)
    return found


def products_of(configs: Mapping[str, Mapping[str, Any]]) -> dict[Product, str]:
    """Every product of these models once, and whose it is: "llama3.1-8b qkv, mistral-7b qkv"."""
    uses: dict[Product, list[str]] = {}
    for model, config in configs.items():
        for layer, product in layers_of(config).items():
            uses.setdefault(product, []).append(f"{model} {layer}")
    return {product: ", ".join(names) for product, names in uses.items()}


def rows_of(device: str) -> list[int]:
    """Rows to measure a product at, ascending; a CPU gets the small ones."""
    return sorted(r for r in {*CAPTURED, *BEYOND, *ODD} if r <= MOST_ROWS[device])


def points_of(products: Iterable[Product], device: str) -> list[Point]:
    return [(product, rows) for product in products for rows in rows_of(device)]


def calls_of(product: Product, rows: int) -> int:
    """Calls of a burst: fewer of those that are long by themselves."""
    most = next((calls for rows_to, calls in BURST if rows <= rows_to), 1)
    return max(1, min(most, int(BURST_S / roof_s(product, rows))))


def roof_s(product: Product, rows: int) -> float:
    """About what a call takes on the GPUs measured so far (seconds)."""
    size = 2.0 * product.k * product.n
    return max(size / ROOF_BYTES_PER_S, size * rows / ROOF_FLOPS_PER_S)


def pass_s(points: Iterable[Point]) -> float:
    """About what a pass over these points takes on a GPU (seconds): bursts with the call before, the rest after, queueing."""
    return sum((calls_of(*point) + 1) * (2.0 * roof_s(*point) + HELD_S) + SAMPLE_S for point in points)


def is_first(rows: int) -> bool:
    """Whether a number of rows is among those that most iterations have."""
    return rows <= GRAPHS or rows in ODD


def passes_of(points: Sequence[Point]) -> list[tuple[int, str, list[int]]]:
    """(number of the pass, the name of its points, their places), in the order they are measured in."""
    first = [i for i, (_, rows) in enumerate(points) if is_first(rows)]
    rest = [i for i, (_, rows) in enumerate(points) if not is_first(rows)]
    least = [(number, name, places) for name, places in (("first", first), ("rest", rest)) for number in range(LEAST_PASSES) if places]
    return least + [(number, "all", [*range(len(points))]) for number in range(LEAST_PASSES, MOST_PASSES)]


def described(points: Sequence[Point]) -> str:
    """How many points, and about how long they take on a GPU."""
    first, whole = (LEAST_PASSES * pass_s(p for p in points if is_first(p[1]) or rest) for rest in (False, True))
    what = f"{len(dict(points))} products, {len(points)} points; {LEAST_PASSES} passes about {whole:.0f} s"
    return f"{what}, {first:.0f} of them for the rows that come first"


def named(points: Sequence[Point]) -> list[int]:
    """Places of the points whose kernels are looked at."""
    return [i for i, (_, rows) in enumerate(points) if rows <= NAMED or rows in NAMED_TOO]


def measure(
    device: Device, points: Sequence[Point], journal: Journal, budget: Budget, seed: int, name: str, reserve_s: float
) -> dict[str, Any]:
    """Gate, passes until done or out of budget, the kernels' names. Returns attributes.

    A point that fails is recorded as such and not tried again; the sweep goes on.
    """
    gate = max(device.error(product) for product in dict(points))
    attrs: dict[str, Any] = {"gate_error": gate, "gate_bound": GATE_BOUND, "gate_passed": int(gate <= GATE_BOUND)}
    failed = {i for record in journal.records for i, _ in record.get("errors", ())}
    reserve_s, wanted = max(reserve_s, NAMING_S * len(named(points))), 0
    for turn, (number, which, places) in enumerate(passes_of(points)):
        order = np.random.default_rng((seed, turn)).permutation(places).tolist()
        parts = {f"pass {number} {which} part {at // PART}": order[at : at + PART] for at in range(0, len(order), PART)}
        wanted += len(parts) if number < LEAST_PASSES else 0
        left = [key for key in parts if key not in journal]
        if budget.over(reserve_s):
            continue
        for key in paced(left, budget, f"{name}, pass {number + 1} ({which})", reserve_s=reserve_s):
            samples, errors = _samples(device, points, [i for i in parts[key] if i not in failed])
            failed |= {i for i, _ in errors}
            journal.add(key, number=number, samples=samples, errors=errors)
    if "kernels" not in journal:
        journal.add("kernels", **_kernels(device, points, [i for i in named(points) if i not in failed]))
    done = sum(record.get("number", MOST_PASSES) < LEAST_PASSES for record in journal.records)
    return attrs | {"finished": int(done == wanted)}


def _samples(device: Device, points: Sequence[Point], order: Sequence[int]) -> tuple[list[list[Any]], list[list[Any]]]:
    """([point, seconds, late] of each, [point, error] of those that failed)."""
    samples: list[list[Any]] = []
    errors: list[list[Any]] = []
    for i in order:
        try:
            seconds, late = device.time_s(*points[i])
            samples.append([i, seconds, int(late)])
        except Exception as failure:  # whatever a device says is kept; KeyboardInterrupt is not caught
            errors.append([i, f"{type(failure).__name__}: {failure}"[:200]])
    return samples, errors


def _kernels(device: Device, points: Sequence[Point], places: Sequence[int]) -> dict[str, Any]:
    """Kernels by point, or why there are none: a profiler may be missing, or lose what it saw."""
    try:
        seen = device.kernels([points[i] for i in places])
    except Exception as failure:
        return {"kernels": [], "lost": f"{type(failure).__name__}: {failure}"[:200]}
    return {"kernels": list(zip(places, seen, strict=True)), "lost": ""}


def between(events: Iterable[tuple[float, str, float]], mark: str, ignored: frozenset[str] = frozenset()) -> list[list[tuple[str, float]]]:
    """(name, seconds) of what ran after each `mark`, from (start, name, seconds). Raises SimctlError when any ran before the first."""
    found: list[list[tuple[str, float]]] = []
    for _, name, seconds in sorted(events):
        if name == mark:
            found.append([])
        elif name not in ignored:
            if not found:
                raise SimctlError(f"the profiler saw {name!r} before the first mark")
            found[-1].append((name, seconds))
    return found


def dataset(records: Sequence[Mapping[str, Any]], uses: Mapping[Product, str], points: Sequence[Point], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset: a table along `point`, and `time_s` [point, visit] (float32, NaN: late, failed or not reached)."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    passes = 1 + max((r["number"] for r in records if "number" in r), default=0)
    times, late = np.full((len(points), passes), np.nan, np.float32), np.zeros(len(points), int)
    errors: dict[int, str] = {}
    kernels: dict[int, list[Any]] = {}
    for record in records:
        for i, seconds, was_late in record.get("samples", ()):
            late[i] += was_late
            times[i, record["number"]] = np.nan if was_late else seconds
        errors |= dict(record.get("errors", ()))
        kernels |= dict(record.get("kernels", ()))
    rows = [
        {
            "layers": uses[product],
            "k": product.k,
            "n": product.n,
            "bias": int(product.bias),
            "dtype": product.dtype,
            "rows": rows,
            "status": _status(times[i], errors.get(i, ""), int(late[i])),
            "error": errors.get(i, ""),
            **summarize(times[i][~np.isnan(times[i])].tolist(), "time_s"),
            "late_n": int(late[i]),
            "kernel_names": " + ".join(name for name, _ in kernels.get(i, ())),
            "kernel_s": sum(seconds for _, seconds in kernels[i]) if kernels.get(i) else None,
        }
        for i, (product, rows) in enumerate(points)
    ]
    variables = table("point", rows, COLUMNS)
    variables["time_s"] = (("point", "visit"), times, {"long_name": "time of a call, mean of a burst", "units": "s"})
    derived = {
        "protocol": PROTOCOL,
        "points_ok": sum(r["status"] == "ok" for r in rows),
        "samples_late": int(late.sum()),
        "kernels_lost": next((r["lost"] for r in records if "lost" in r), "not reached"),
    }
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": "products", **derived, **attrs})


def _status(times: Any, error: str, late: int) -> str:
    if error:
        return "oom" if "out of memory" in error.lower() else "error"
    return "ok" if not np.isnan(times).all() else "late" if late else ""
