"""The step-time model's log density and its slopes, as one compiled loop over cells (docs/adr/0011).

PyTensor runs the formula on the symbols of one cell, differentiates it and simplifies both; what comes out is printed as Python
(calibrate.printed) and compiled. The same graph over arrays of cells takes compilers ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.printed import Printer, compiled
from calibrate.steps.cells import FIELDS, KINDS
from calibrate.steps.shared import ARGUMENTS, Group, lay_out, split
from sim.bill import Bill

if TYPE_CHECKING:
    from calibrate.steps.model import StepModel

Array = NDArray[np.float64]
Density = Callable[..., tuple[float, Array]]


def log_density(model: StepModel) -> Density:
    """Log density of a model, up to a constant, and its slopes: called with places [size], then scores of the model errors [kind] where
    they are unknown, and with the model's `data` by name.
    """
    text, groups = source(model)
    loop = compiled(text, "loop")
    size, hosts, kinds = model.size, (2, max(len(model.runs), 1)), (2, len(KINDS))
    laid = lay_out(groups, model.data()["bill"])

    def density(x: Array, *, middle: Array, width: Array, repeat_sd: Array, run: Array | None = None, **seen: Array) -> tuple[float, Array]:
        nonlocal laid
        if (here := laid).bill is not seen["bill"]:
            here = laid = lay_out(groups, seen["bill"])
        slopes, at = np.zeros(len(x)), np.concatenate([middle + width @ x[:size], x[size:]])
        which = np.zeros(len(repeat_sd), dtype=np.int64) if run is None else run
        shared = (np.empty(here.size), here.place, here.first, here.begin)
        total = loop(at, slopes, np.empty(hosts), np.empty(kinds), which, repeat_sd, here.bill, seen["log_step"], seen["kind"], *shared)
        return total, np.concatenate([slopes[:size] @ width, slopes[size:]])

    density(np.zeros(model.dimensions), **model.data())  # compiled now, not by several chains at a time
    return density


def nutpie_model(model: StepModel) -> Any:
    """The model as nutpie samples it."""
    from nutpie.compiled_pyfunc import from_pyfunc

    density, size, errors = log_density(model), model.size, model.sigma is None
    shapes: dict[str, tuple[int, ...]] = {"place": (size,)} | dict.fromkeys(model.free, ())
    dims = {"place": ("place_dim",)}
    if model.runs:
        shapes["host"], dims["host"] = (len(model.runs),), ("run",)
    if errors:
        shapes |= dict.fromkeys(("sigma_z", "sigma"), (len(KINDS),))
        dims |= dict.fromkeys(("sigma_z", "sigma"), ("kind",))

    def named(x: Array, *, middle: Array, width: Array, **_: Array) -> dict[str, Array]:
        rates, hosts, _prior = model.unknowns(list(middle + width @ x[:size]), np)
        found = {"place": x[:size]} | {name: np.asarray(rate) for name, rate in rates.items()}
        if model.runs:
            found["host"] = np.array(hosts)
        if errors:
            found["sigma_z"], found["sigma"] = x[size:], np.array(model.errors(list(x[size:]), np))
        return found  # nutpie insists on the order of `shapes`

    return from_pyfunc(
        model.dimensions,
        lambda: density,
        lambda *_seeds: named,
        [np.dtype("float64")] * len(shapes),
        list(shapes.values()),
        list(shapes),
        coords={"kind": list(KINDS), "run": model.runs, "place_dim": np.arange(size)},
        dims=dims,
        shared_data=model.data(),
        make_initial_point_fn=lambda seed: np.random.default_rng(seed).uniform(-1.0, 1.0, model.dimensions),
    )


@backend.printing()
def source(model: StepModel) -> tuple[str, tuple[Group, ...]]:
    """Python source of a function that adds up the log density and writes its slopes to `out`, and what cells share in it.

    Of `hosts` [2, run] and `errors` [2, kind] the first row becomes a host's factor and a squared model error, the second its slope.
    """
    pt, grad, write, names = backend.tensor(), backend.gradient().grad, Printer(), dict[Any, str]()

    def number(name: str) -> Any:
        symbol = pt.dscalar(name)
        names[symbol] = name
        return symbol

    places = [number(f"place{i}") for i in range(model.size)]
    scores = [number(f"score{i}") for i in range(model.dimensions - model.size)]
    rates, hosts, prior = model.unknowns(places, pt)
    variances = [error**2 for error in (model.errors(scores, pt) if scores else pt.constant(model.sigma))]
    prior = prior - 0.5 * sum(score**2 for score in scores)

    # what is unknown, once
    start = [f"place{i} = at[{i}]" for i in range(model.size)] + [f"score{i} = at[{model.size + i}]" for i in range(len(scores))]
    found = write.print([prior, *rates.values(), *hosts, *variances], names)
    into = ["total", *rates, *(f"hosts[0, {i}]" for i in range(len(hosts))), *(f"errors[0, {i}]" for i in range(len(KINDS)))]
    start += write.take() + [f"{name} = {value}" for name, value in zip(into, found, strict=True)]
    start += ["hosts[1] = 0.0", "errors[1] = 0.0", *(f"by_{name} = 0.0" for name in rates)]

    # every cell
    learnt = {name: number(name) for name in rates}
    host, variance, log_step = number("host"), number("variance"), number("log_step_s")
    bill = Bill(**{field: number(field) for field in FIELDS})
    missed = log_step - pt.log(model.price(bill, learnt, host if hosts else None, pt))
    density = -0.5 * pt.log(variance) - (model.nu + 1) / 2 * pt.log1p(missed**2 / (model.nu * variance))
    slopes = grad(density, [*learnt.values(), variance, *([host] if hosts else [])])
    found = write.print([density, *slopes], names)
    into = ["total", *(f"by_{name}" for name in rates), "errors[1, kind[i]]", "hosts[1, run[i]]"]
    cell = ["host, variance, log_step_s = hosts[0, run[i]], errors[0, kind[i]] + repeat_sd[i] ** 2, log_step[i]"] if hosts else []
    cell = cell or ["variance, log_step_s = errors[0, kind[i]] + repeat_sd[i] ** 2, log_step[i]"]
    parts = split(write.take(), FIELDS, ("host", "variance", "log_step_s"))
    start += [*parts.once, *parts.loops]
    cell += [f"{field} = bill[i, {j}]" for j, field in enumerate(FIELDS)] + parts.cell
    cell += [f"{name} += {value}" for name, value in zip(into, found, strict=False)]

    # and back to what is unknown
    end = [f"by_host{i} = hosts[1, {i}]" for i in range(len(hosts))] + [f"by_error{i} = errors[1, {i}]" for i in range(len(KINDS))]
    back = [*(f"by_{name}" for name in rates), *(f"by_host{i}" for i in range(len(hosts))), *(f"by_error{i}" for i in range(len(KINDS)))]
    total = prior + sum(value * number(name) for name, value in zip(back, [*rates.values(), *hosts, *variances], strict=True))
    found = write.print(grad(total, [*places, *scores]), names)
    end += write.take() + [f"out[{i}] = {value}" for i, value in enumerate(found)]

    lines = [f"def loop(at, out, hosts, errors, run, repeat_sd, bill, log_step, kind, {ARGUMENTS}):", *_in(start)]
    return "\n".join([*lines, "    for i in range(log_step.size):", *_in(_in(cell)), *_in(end), "    return total", ""]), parts.groups


def _in(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
