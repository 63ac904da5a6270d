"""The step-time model: the one formula, its rates unknown, and what it misses.

    log step_s ~ StudentT(NU, log price(bill, rates on the run's host), sqrt(sigma[kind]**2 + repeat_sd**2))

`sigma[kind]` is model error, separate for decode, prefill and mixed iterations and for those over several GPUs; `repeat_sd` is the noise
floor, known from repeats. Where cells are of several runs, the host of each takes what hosts take (sim.rates.OF_HOST) by a factor of its
own, log-normal around one and alike on one machine; the rates are those of a host in the middle.
The price is sim.price.step_time_s itself, run by PyTensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from calibrate import backend
from calibrate.steps.bend import Bend, Lay, run_index, run_names
from calibrate.steps.cells import FIELDS, KINDS, StepCells, bill_of
from calibrate.steps.machines import host_precision, machines_of
from calibrate.steps.rates import SHARED_MEMORY, unseen, value
from sim.bill import Bill
from sim.price import step_time_s
from sim.priors import Prior
from sim.rates import UNITS, Rates, at_host

Array = NDArray[np.float64]
NU = 5.0  # Student-t degrees of freedom: one cell in a hundred may be off by several sigma without dragging the rates along
NORMAL = 1e3  # degrees of freedom of what is as good as normal
# Model error before any cell is seen, by kind: log-normal. Over several GPUs the formula misses more.
SIGMA_MEDIAN, SIGMA_SPREAD = np.array([0.015, 0.015, 0.015, 0.04]), 0.7
# Prices worked out at a time: what the formula puts down in between then stays in a processor's cache (a quarter of the time).
AT_ONCE = 2**15
# Bills below this are no cost, and zero would have no gradient in the smooth maximum's exponent.
NEGLIGIBLE = 1.0
SMOOTHED = (
    "weight_bytes", "linear_flops", "expert_bytes", "expert_flops", "kv_bytes", "attention_flops", "prefill_kv_bytes", "prefill_flops",
)  # fmt: skip


@dataclass(frozen=True)
class StepModel:
    """What is unknown of cells, and where the sampler expects it. Nothing is compiled before a sampler asks.

    Rates that no cell shows are not in the model (`free_rates` tells); they keep their priors. `sigma` [kind] is the model error
    where it is known, else None, and `nu` its degrees of freedom. `host_sd` is what hosts of several runs differ by.
    """

    cells: StepCells
    priors: Mapping[str, Prior]
    bend: Bend
    lay: Lay
    sigma: Array | None
    nu: float
    host_sd: float

    @property
    def free(self) -> Sequence[str]:
        return self.bend.free

    @cached_property  # asked for at every draw, as what follows from it
    def runs(self) -> list[str]:
        return run_names(self.cells)

    @cached_property
    def _alike(self) -> list[tuple[int, int, float]]:
        """Pairs of hosts that the prior does not keep apart, and what their product counts in the squared distance from the middle."""
        precision = host_precision(machines_of(self.cells, self.runs), self.host_sd)
        pairs = [(i, j) for i in range(len(self.runs)) for j in range(i + 1) if precision[i, j]]
        return [(i, j, (1.0 if i == j else 2.0) * float(precision[i, j])) for i, j in pairs]

    @property
    def size(self) -> int:
        """Scores of free rates and logarithms of hosts."""
        return len(self.free) + len(self.runs)

    @property
    def dimensions(self) -> int:
        """All that is sampled: these, and scores of the model errors where those are unknown."""
        return self.size + (len(KINDS) if self.sigma is None else 0)

    def data(self) -> dict[str, Any]:
        """What may be replaced, in number of cells too; `middle` and `width` are where and how wide the posterior is laid out."""
        return model_data(self.cells, self.runs) | self.bend.straight(self.lay)

    def unknowns(self, places: Sequence[Any], xp: Any) -> tuple[dict[str, Any], list[Any], Any]:
        """(free rates, factors of hosts, log prior density) at places [size] of the sampler's, as numbers of `xp`."""
        free = self.free
        z, hosts, volume = self.bend.scores(dict(zip(free, places, strict=False)), list(places[len(free) :]), xp)
        prior = sum(z[name] ** 2 for name in free if name != "beta_kv") + self._hosts_prior(hosts)
        if "beta_kv" in free:
            beside = SHARED_MEMORY * z["beta"] if "beta" in free else 0.0
            prior = prior + (z["beta_kv"] - beside) ** 2 / (1 - SHARED_MEMORY**2 if "beta" in free else 1.0)
        return {name: value(self.priors[name], z[name], xp.exp) for name in free}, [xp.exp(host) for host in hosts], volume - 0.5 * prior

    def _hosts_prior(self, hosts: Sequence[Any]) -> Any:
        """Squared standard distance of hosts from the middle one, those on one machine being alike."""
        return sum(weight * hosts[i] * hosts[j] for i, j, weight in self._alike) if hosts else 0.0

    def errors(self, scores: Sequence[Any], xp: Any) -> list[Any]:
        """Model errors [kind] of these scores."""
        return [median * xp.exp(SIGMA_SPREAD * score) for median, score in zip(SIGMA_MEDIAN.tolist(), scores, strict=True)]

    def price(self, bill: Bill, rates: Mapping[str, Any], host: Any, xp: Any) -> Any:
        """Seconds of cells of this bill, on a host of this factor (None: rates are the host's)."""
        at = Rates(**({name: self.priors[name].median for name in UNITS} | dict(rates)))
        return step_time_s(_known_zeros(bill, self.cells), at if host is None else at_host(at, host), xp)

    def for_pymc(self) -> Any:
        """pm.Model with pm.Data of the names that `data` has."""
        pm, pt = backend.pymc(), backend.tensor()
        with pm.Model(coords={"kind": list(KINDS), "run": self.runs}) as model:
            given = {name: pm.Data(name, values) for name, values in self.data().items()}
            place = pm.Flat("place", shape=self.size)
            # by rows: the gradient of taking a vector apart takes long to compile
            rates, factors, prior = self.unknowns([given["middle"][i] + pt.dot(given["width"][i], place) for i in range(self.size)], pt)
            for name, rate in rates.items():
                pm.Deterministic(name, rate)
            hosts = pm.Deterministic("host", pt.stack(factors), dims="run")[given["run"]] if factors else None
            pm.Potential("prior", prior)
            if self.sigma is None:
                factor = pt.exp(SIGMA_SPREAD * pm.Normal("sigma_z", dims="kind"))
                error = pm.Deterministic("sigma", pt.as_tensor(SIGMA_MEDIAN) * factor, dims="kind")
            else:
                error = pt.as_tensor(self.sigma)
            scale = pt.sqrt(error[given["kind"]] ** 2 + given["repeat_sd"] ** 2)
            price = self.price(bill_of(given["bill"]), rates, hosts, pt)
            pm.StudentT("log_step_s", nu=self.nu, mu=pt.log(price), sigma=scale, observed=given["log_step"])
        return model

    def for_nutpie(self) -> Any:
        """The same density as nutpie samples it."""
        from calibrate.steps.loop import nutpie_model

        return nutpie_model(self)


def step_model(
    cells: StepCells,
    priors: Mapping[str, Prior],
    *,
    sigma: Array | None = None,
    nu: float = NU,
    host_sd: float = 0.0,
    lay: Lay | None = None,
) -> StepModel:
    """The model of cells, laid out where `lay` says (else around the prior)."""
    bend = Bend.of(cells, priors, free_rates(cells), lay)
    size = len(bend.free) + len(run_names(cells))
    return StepModel(cells, priors, bend, lay or Lay(np.zeros(size), np.eye(size)), sigma, nu, host_sd)


def _known_zeros(bill: Bill, cells: StepCells) -> Bill:
    """The bill with terms that no cell has as plain zeros, so that their part of the formula is not compiled."""
    zero = {name: 0.0 for name, v in cells.as_bill()._asdict().items() if name not in SMOOTHED and not np.any(v)}
    return bill._replace(**zero)


def free_rates(cells: StepCells) -> list[str]:
    """Rates that some cell shows, in the order of sim.rates."""
    hidden = unseen(cells.as_bill()._asdict())
    return [name for name in UNITS if name not in hidden]


def model_data(cells: StepCells, runs: Sequence[str]) -> dict[str, Any]:
    """What of a model's data was measured."""
    data: dict[str, Any] = {
        "bill": floored(cells.bill),
        "log_step": np.log(cells.step_s),
        "repeat_sd": cells.repeat_sd,
        "kind": kind_index(cells),
    }
    if runs:
        data["run"] = run_index(cells, runs)
    return data


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


def sigma_draws(count: int, rng: np.random.Generator) -> Array:
    """Model errors [draw, kind] from their prior."""
    out: Array = SIGMA_MEDIAN * np.exp(SIGMA_SPREAD * rng.standard_normal((count, len(KINDS))))
    return out


def log_price(cells: StepCells, rates: Rates, hosts: Array | None = None) -> Array:
    """log seconds [draw, n] for rates of arrays [draw] (or scalars), on hosts that take `hosts` times as long ([draw, n] or [draw, 1])."""
    columns = {name: np.asarray(getattr(rates, name), dtype=float).reshape(-1, 1) for name in UNITS}
    bill, factors = bill_of(floored(cells.bill)), np.ones((1, 1)) if hosts is None else hosts
    draws = max(len(values) for values in (*columns.values(), factors))
    out, rows = np.empty((draws, len(cells))), max(1, AT_ONCE // max(len(cells), 1))
    for first in range(0, draws, rows):
        some = slice(first, first + rows)
        at = Rates(**{name: _some(values, some) for name, values in columns.items()})
        out[some] = np.log(step_time_s(bill, at if hosts is None else at_host(at, _some(factors, some)), np))
    return out


def _some(values: Array, rows: slice) -> Array:
    """Some rows of values, or the one row that stands for all."""
    return values if len(values) == 1 else values[rows]


def noise_scale(cells: StepCells, sigma: Array) -> Array:
    """Scale [draw, n] of what cells are off by: the formula's error sigma [draw, kind] and their own noise."""
    out: Array = np.sqrt(sigma[:, kind_index(cells)] ** 2 + cells.repeat_sd**2)
    return out


def log_likelihood(cells: StepCells, log_price: Array, sigma: Array) -> Array:
    """Pointwise Student-t log density [draw, n] from log price [draw, n] and sigma [draw, kind]."""
    scale = noise_scale(cells, sigma)
    t = (np.log(cells.step_s) - log_price) / scale
    constant = gammaln((NU + 1) / 2) - gammaln(NU / 2) - 0.5 * np.log(NU * np.pi)
    out: Array = constant - np.log(scale) - (NU + 1) / 2 * np.log1p(t**2 / NU)
    return out


def predictive(cells: StepCells, log_price: Array, sigma: Array, rng: np.random.Generator) -> Array:
    """Draws of what a new measurement of each cell would read, seconds [draw, n]: rates, model error and noise together."""
    out: Array = np.exp(log_price + noise_scale(cells, sigma) * rng.standard_t(NU, size=log_price.shape))
    return out
