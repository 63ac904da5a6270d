"""The loop over cells that nutpie samples is the model that PyMC samples: the same density and the same slopes, wherever one looks."""

import dataclasses
from functools import cache

import numpy as np
import pytest
from scipy import stats

from calibrate import backend
from calibrate.printed import NAMES, Printer, compiled
from calibrate.steps.approximate import approximate
from calibrate.steps.cells import KINDS, SPREAD, StepCells, concatenate
from calibrate.steps.loop import Density, log_density
from calibrate.steps.model import NORMAL, StepModel, log_price, step_model
from calibrate.steps.shared import Group, lay_out, split
from sim.rates import UNITS, Rates
from tests.calibrate.steps import PRIORS, synthetic

HOST_SD = 0.2


@cache
def model_of(what: str) -> StepModel:
    one = synthetic(np.random.default_rng(0))
    if what == "one run, known errors":
        return step_model(one, PRIORS, sigma=np.full(len(KINDS), 0.02), nu=NORMAL)
    several = concatenate([dataclasses.replace(one, run=np.full(len(one), name)) for name in ("a", "b")])
    if what == "two GPUs":
        several = over_two(several)
    return step_model(several, PRIORS, host_sd=HOST_SD, lay=approximate(several, PRIORS, HOST_SD).lay)


def over_two(cells: StepCells) -> StepCells:
    """Cells the second half of which is over two GPUs: all rates of those, and its bends."""
    bill, half = cells.as_bill(), np.arange(len(cells)) >= len(cells) // 2
    terms = {"comm_bytes": 1e6, "comm_ops": 56.0, "spread_layers": 28.0, "spread_intake_tokens": 100.0}
    matrix = np.stack(bill._replace(**{name: half * size for name, size in terms.items()}), axis=1)
    return dataclasses.replace(cells, bill=matrix, kind=np.where(half, SPREAD, cells.kind))


@cache
def loop_of(what: str) -> Density:
    return log_density(model_of(what))


# two GPUs are several runs, too: those of one GPU lack only what is over two
@pytest.mark.parametrize("what", ["one run, known errors", "two GPUs", pytest.param("several runs", marks=pytest.mark.slow)])
def test_density_and_slopes_are_those_of_pymc(what: str) -> None:
    from pytensor.compile.mode import Mode

    model = model_of(what)
    pymc, loop, rng = model.for_pymc(), loop_of(what), np.random.default_rng(1)
    # as PyMC wrote it, nothing simplified and nothing compiled: for three points either takes longer than it saves
    theirs_of = pymc.compile_fn([pymc.logp(), pymc.dlogp()], mode=Mode(linker="py", optimizer=None))

    def both(x: np.ndarray) -> tuple[float, np.ndarray, float, np.ndarray]:
        point = {"place": x[: model.size]} | ({"sigma_z": x[model.size :]} if model.sigma is None else {})
        return *theirs_of(point), *loop(x, **model.data())

    constant = None
    for x in rng.normal(size=(3, model.dimensions)):
        theirs, their_slopes, ours, our_slopes = both(x)
        np.testing.assert_allclose(our_slopes, their_slopes, rtol=1e-9, atol=1e-9 * np.abs(their_slopes).max())
        constant = theirs - ours if constant is None else constant
        assert theirs - ours == pytest.approx(constant, abs=1e-7)


def test_other_cells_in_other_number_are_seen() -> None:
    model, loop = model_of("one run, known errors"), loop_of("one run, known errors")
    ten = dataclasses.replace(model, cells=model.cells.take(np.arange(10)))
    here, there = np.full(model.dimensions, 0.1), np.full(model.dimensions, -0.2)

    def moved(cells: StepModel) -> float:
        """By how much the log density differs between two places, up to whose constant it is known."""
        return loop(here, **cells.data())[0] - loop(there, **cells.data())[0]

    assert moved(ten) == pytest.approx(plain(ten, here) - plain(ten, there), rel=1e-9)
    assert moved(ten) != pytest.approx(moved(model), rel=1e-3)


def plain(model: StepModel, x: np.ndarray) -> float:
    """Log density of one run with known errors, from the formula in arrays."""
    assert model.sigma is not None
    data = model.data()
    rates, _, prior = model.unknowns(list(data["middle"] + data["width"] @ x), np)
    every = Rates(**({name: PRIORS[name].median for name in UNITS} | rates))
    scale = np.sqrt(model.sigma[data["kind"]] ** 2 + data["repeat_sd"] ** 2)
    missed = (data["log_step"] - log_price(model.cells, every)[0]) / scale
    return float(prior + stats.t.logpdf(missed, model.nu).sum())


def test_what_cells_share_is_worked_out_once_and_to_the_digit() -> None:
    lines = [
        "t0 = x * rate",
        "t1 = log(t0)",
        "t2 = exp(y * t1)",
        "t3 = t2 * t0 + host",
        "t4 = log(t3)",
        "t5 = log(rate)",
        "t6 = t4 * t5 + z",
    ]
    parts = split(lines, ("x", "y", "z"), ("host",))
    assert parts.once == ["t5 = log(rate)"]
    assert parts.groups == (Group((0,), ("t1",)), Group((0, 1), ("t2",)))  # the second looks the first one's up
    assert [line for line in parts.cell if "log" in line or "exp" in line] == ["t4 = log(t3)"]
    bill = np.random.default_rng(3).uniform(1.0, 2.0, (4, 3))[[0, 1, 0, 2, 1, 3]]
    bill[4, 1] = 1.5  # its x is another's, its y is not
    here = lay_out(parts.groups, bill)
    assert here.size == 4 + 5
    start = ["def loop(bill, rate, out, shared, place, first, begin):", *(f"    {line}" for line in (*parts.once, *parts.loops))]
    cell = [f"{name} = bill[i, {j}]" for j, name in enumerate("xyz")] + ["host = 0.1 * i", *parts.cell, "out[i] = t6"]
    names = dict(NAMES)
    exec("\n".join([*start, "    for i in range(len(bill)):", *(f"        {line}" for line in cell)]), names)
    out = np.empty(len(bill))
    names["loop"](bill, 1.7, out, np.empty(here.size), here.place, here.first, here.begin)
    for i, (x, y, z) in enumerate(bill.tolist()):
        alone = NAMES | {"x": x, "y": y, "z": z, "rate": 1.7, "host": 0.1 * i}
        exec("\n".join(lines), alone)
        assert out[i] == alone["t6"]


def test_more_runs_of_the_same_cells_share_what_one_has_worked_out() -> None:
    one = model_of("one run, known errors").data()["bill"]
    groups = (Group((3, 4), ("t1", "t2")), Group((5,), ("t3",)))
    assert lay_out(groups, np.concatenate([one, one])).size == lay_out(groups, one).size


def test_products_are_rounded_before_they_are_added() -> None:
    """Fused into one rounding, or added in another order, digits would hang on the compiler's version."""
    terms = np.random.default_rng(2).uniform(1.0, 2.0, 64)
    lines = [
        "def total(x, terms, products):",
        "    out = 0.0",
        "    for i in range(terms.size):",
        "        out += x * terms[i] - products[i]",
    ]
    assert compiled("\n".join([*lines, "    return out"]), "total")(1.1, terms, 1.1 * terms) == 0.0


@pytest.mark.parametrize(
    "formula", ["x**y", "x**(y - 1)", "1 / (1 + exp(-x))", "log(1 + x * y)", "minimum(x, y) / y", "x**3 + x**0.5", "log(1 + exp(3 * x))"]
)
def test_what_is_printed_is_what_pytensor_computes(formula: str) -> None:
    pt = backend.tensor()
    x, y = pt.dscalar("x"), pt.dscalar("y")
    value = eval(formula, {name: getattr(pt, name) for name in ("exp", "log", "minimum")} | {"x": x, "y": y})
    slopes = backend.gradient().grad(value, [x, y], disconnected_inputs="ignore")
    write = Printer()
    outputs = write.print([value, *slopes], {x: "x", y: "y"})
    for a, b in ((0.3, 2.5), (1.7, 0.6)):
        names = NAMES | {"x": a, "y": b}
        exec("\n".join(write.lines), names)
        wanted = [float(v.eval({x: a, y: b}, mode="FAST_COMPILE", on_unused_input="ignore")) for v in (value, *slopes)]
        assert [float(eval(out, names)) for out in outputs] == pytest.approx(wanted, rel=1e-12)


def test_an_operation_that_cannot_be_printed_is_named() -> None:
    x = backend.tensor().dscalar("x")
    with pytest.raises(TypeError, match="Cosh"):
        Printer().print([backend.tensor().cosh(x)], {x: "x"})
