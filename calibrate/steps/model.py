"""The step-time model: the one formula, its rates unknown, and what it misses.

    log step_s ~ StudentT(NU, log price(bill, rates), sqrt(sigma[kind]**2 + repeat_sd**2))

`sigma[kind]` is model error, separate for decode, prefill and mixed iterations and for those over several GPUs; `repeat_sd` is the noise
floor, known from repeats.
The price is sim.price.step_time_s itself, run by PyTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from calibrate import backend
from calibrate.steps.cells import FIELDS, KINDS, SPREAD, StepCells, bill_of
from calibrate.steps.rates import SHARED_MEMORY, unseen, value
from sim.bill import Bill
from sim.price import step_time_s
from sim.priors import Prior
from sim.rates import UNITS, Rates

Array = NDArray[np.float64]
NU = 5.0  # Student-t degrees of freedom: one cell in a hundred may be off by several sigma without dragging the rates along
NORMAL = 1e3  # degrees of freedom of what is as good as normal
SIGMA_SCALE = 0.05
FAR_SCORES = 4.0
FLOOR_S = 1e-4  # of what the weights leave of a step, in the coordinates that are sampled
# Bills below this are no cost, and zero would have no gradient in the smooth maximum's exponent.
NEGLIGIBLE = 1.0
SMOOTHED = (
    "weight_bytes", "linear_flops", "expert_bytes", "expert_flops", "kv_bytes", "attention_flops", "prefill_kv_bytes", "prefill_flops",
)  # fmt: skip


def step_model(cells: StepCells, priors: Mapping[str, Prior], *, sigma: Array | None = None, nu: float = NU) -> Any:
    """pm.Model of the cells. pm.Data `bill`, `log_step`, `repeat_sd`, `kind` may be replaced, in number too.

    Rates that no cell shows are not in the model (`free_rates` tells); they keep their priors. `sigma` [kind] is the model error
    where it is known, and `nu` its degrees of freedom.
    """
    pm, pt = backend.pymc(), backend.tensor()
    free = free_rates(cells)
    with pm.Model(coords={"kind": list(KINDS)}) as model:
        bill = pm.Data("bill", floored(cells.bill))
        log_step = pm.Data("log_step", np.log(cells.step_s))
        repeat_sd = pm.Data("repeat_sd", cells.repeat_sd)
        kind = pm.Data("kind", kind_index(cells))
        ridge = _ridge(cells, priors) if {"c0_s", "beta"} <= set(free) else None
        latency = None if ridge is None else _latency_ridge(cells, priors)
        straight = {name for name, way in (("c0_s", ridge), ("comm_latency_s", latency)) if way is not None}
        z = {name: pm.Normal(f"{name}_z") for name in free if name not in straight}
        if ridge is not None:
            # grids of one model show the sum of both well and each badly: a narrow bent valley that this straightens. A shift by a
            # function of another variable leaves densities as they are.
            off = pm.Flat("c0_s_off")
            z["c0_s"] = pm.Deterministic("c0_s_z", off + ridge(value(priors["beta"], z["beta"], pt.exp), pt))
            pm.Potential("c0_s_prior", -0.5 * z["c0_s"] ** 2)
            if latency is not None:
                # the same again: a grid over several GPUs shows the sum of fixed cost and all-reduces
                off = pm.Flat("comm_latency_s_off")
                c0, beta = (value(priors[name], z[name], pt.exp) for name in ("c0_s", "beta"))
                z["comm_latency_s"] = pm.Deterministic("comm_latency_s_z", off + latency(c0, beta, pt))
                pm.Potential("comm_latency_s_prior", -0.5 * z["comm_latency_s"] ** 2)
        if {"beta", "beta_kv"} <= set(free):
            z["beta_kv"] = SHARED_MEMORY * z["beta"] + np.sqrt(1 - SHARED_MEMORY**2) * z["beta_kv"]
        rates = {name: priors[name].median for name in UNITS}
        for name in free:
            rates[name] = pm.Deterministic(name, value(priors[name], z[name], pt.exp))
        error = pm.HalfNormal("sigma", SIGMA_SCALE, dims="kind") if sigma is None else pt.as_tensor(sigma)
        price = step_time_s(_known_zeros(bill_of(bill), cells), Rates(**rates), pt)
        scale = pt.sqrt(error[kind] ** 2 + repeat_sd**2)
        pm.StudentT("log_step_s", nu=nu, mu=pt.log(price), sigma=scale, observed=log_step)
    return model


def _ridge(cells: StepCells, priors: Mapping[str, Prior]) -> Callable[[Any, Any], Any] | None:
    """Standard score of the fixed cost at which the leanest decode takes as long as measured, given the bandwidth of weights; None without
    decodes that read weights. Smoothly floored where that bandwidth alone takes longer.
    """
    weights = cells.bill[:, FIELDS.index("weight_bytes")]
    lean = np.flatnonzero((cells.kind == "decode") & (weights > 0))
    if not lean.size:
        return None
    first = lean[np.argmin(cells.step_s[lean])]
    time_s, read, prior, soft = float(cells.step_s[first]), float(weights[first]), priors["c0_s"], FLOOR_S

    def score(beta: Any, xp: Any) -> Any:
        left = time_s - read / beta
        left = 0.5 * (left + xp.sqrt(left**2 + soft**2))
        return (xp.log(left) - np.log(prior.median)) / prior.sigma

    # a step most of which is neither weights nor fixed cost (a cache behind a link) says nothing of their sum
    return score if abs(score(priors["beta"].median, np)) < FAR_SCORES else None


def _latency_ridge(cells: StepCells, priors: Mapping[str, Prior]) -> Callable[[Any, Any, Any], Any] | None:
    """Standard score of the all-reduce's latency at which the leanest decode over several GPUs takes as long as measured, given fixed cost
    and the bandwidth of weights; None without such a decode.
    """
    bill = cells.as_bill()
    lean = np.flatnonzero((cells.kind == SPREAD) & (bill.has_prefill == 0) & (bill.comm_ops > 0))
    if not lean.size:
        return None
    first = lean[np.argmin(cells.step_s[lean])]
    time_s, read, ops = (float(v[first]) for v in (cells.step_s, bill.weight_bytes, bill.comm_ops))
    prior = priors["comm_latency_s"]

    def score(c0: Any, beta: Any, xp: Any) -> Any:
        left = time_s - c0 - read / beta
        left = 0.5 * (left + xp.sqrt(left**2 + FLOOR_S**2))
        return (xp.log(left / ops) - np.log(prior.median)) / prior.sigma

    return score


def _known_zeros(bill: Bill, cells: StepCells) -> Bill:
    """The bill with terms that no cell has as plain zeros, so that their part of the formula is not compiled."""
    zero = {name: 0.0 for name, v in cells.as_bill()._asdict().items() if name not in SMOOTHED and not np.any(v)}
    return bill._replace(**zero)


def free_rates(cells: StepCells) -> list[str]:
    """Rates that some cell shows, in the order of sim.rates."""
    hidden = unseen(cells.as_bill()._asdict())
    return [name for name in UNITS if name not in hidden]


def model_data(cells: StepCells) -> dict[str, Any]:
    """Replacements for the pm.Data of `step_model`."""
    return {
        "bill": floored(cells.bill),
        "log_step": np.log(cells.step_s),
        "repeat_sd": cells.repeat_sd,
        "kind": kind_index(cells),
    }


def floored(bill: Array) -> Array:
    """The bill with byte and flop terms of the smooth maxima kept off zero."""
    out = bill.copy()
    for name in SMOOTHED:
        column = FIELDS.index(name)
        out[:, column] = np.maximum(out[:, column], NEGLIGIBLE)
    return out


def kind_index(cells: StepCells) -> NDArray[np.int64]:
    """Position of each cell's kind in KINDS, [n]."""
    return np.array([KINDS.index(k) for k in cells.kind], dtype=np.int64)


def log_price(cells: StepCells, rates: Rates) -> Array:
    """log seconds [draw, n] for rates of arrays [draw] (or scalars)."""
    columns = Rates(**{name: np.asarray(getattr(rates, name), dtype=float).reshape(-1, 1) for name in UNITS})
    out: Array = np.log(step_time_s(bill_of(floored(cells.bill)), columns, np))
    return out


def log_likelihood(cells: StepCells, log_price: Array, sigma: Array) -> Array:
    """Pointwise Student-t log density [draw, n] from log price [draw, n] and sigma [draw, kind]."""
    scale = np.sqrt(sigma[:, kind_index(cells)] ** 2 + cells.repeat_sd**2)
    t = (np.log(cells.step_s) - log_price) / scale
    constant = gammaln((NU + 1) / 2) - gammaln(NU / 2) - 0.5 * np.log(NU * np.pi)
    out: Array = constant - np.log(scale) - (NU + 1) / 2 * np.log1p(t**2 / NU)
    return out


def predictive(cells: StepCells, log_price: Array, sigma: Array, rng: np.random.Generator) -> Array:
    """Draws of what a new measurement of each cell would read, seconds [draw, n]: rates, model error and noise together."""
    scale = np.sqrt(sigma[:, kind_index(cells)] ** 2 + cells.repeat_sd**2)
    out: Array = np.exp(log_price + scale * rng.standard_t(NU, size=log_price.shape))
    return out
