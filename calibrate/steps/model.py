"""The step-time model: the one formula, its rates unknown, and what it misses.

    log step_s ~ StudentT(NU, log price(bill, rates on the run's host), sqrt(sigma[kind]**2 + repeat_sd**2))

`sigma[kind]` is model error, separate for decode, prefill and mixed iterations and for those over several GPUs; `repeat_sd` is the noise
floor, known from repeats. Where cells are of several runs, the host of each takes what hosts take (sim.rates.OF_HOST) by a factor of its
own, log-normal around one; the rates are those of a host in the middle.
The price is sim.price.step_time_s itself, run by PyTensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from sim.rates import UNITS, Rates, at_host

Array = NDArray[np.float64]
Shift = Callable[[Mapping[str, Any], Any, Any], Any]  # of scores, hosts and the namespace
NU = 5.0  # Student-t degrees of freedom: one cell in a hundred may be off by several sigma without dragging the rates along
NORMAL = 1e3  # degrees of freedom of what is as good as normal
# Model error before any cell is seen, by kind: log-normal. Over several GPUs the formula misses more.
SIGMA_MEDIAN, SIGMA_SPREAD = np.array([0.015, 0.015, 0.015, 0.04]), 0.7
FAR_SCORES = 4.0
TINY = 1e-5  # of a score, for derivatives
LATE_FLOOR = 0.3  # of what padding and intake take together, the same
FLOOR_S = 1e-4  # of what the weights leave of a step, in the coordinates that are sampled
# Bills below this are no cost, and zero would have no gradient in the smooth maximum's exponent.
NEGLIGIBLE = 1.0
SMOOTHED = (
    "weight_bytes", "linear_flops", "expert_bytes", "expert_flops", "kv_bytes", "attention_flops", "prefill_kv_bytes", "prefill_flops",
)  # fmt: skip


@dataclass(frozen=True)
class Lay:
    """Where the posterior is expected, in standard scores of the free rates and logarithms of the hosts: its middle [x], and covariance."""

    middle: Array
    covariance: Array


def step_model(
    cells: StepCells,
    priors: Mapping[str, Prior],
    *,
    sigma: Array | None = None,
    nu: float = NU,
    host_sd: float = 0.0,
    lay: Lay | None = None,
) -> Any:
    """pm.Model of the cells. pm.Data `bill`, `log_step`, `repeat_sd`, `kind`, `run` may be replaced, in number too; and with them `middle`
    and `width`, which are where and how wide the posterior is laid out for the sampler, and change nothing else.

    Rates that no cell shows are not in the model (`free_rates` tells); they keep their priors. `sigma` [kind] is the model error
    where it is known, and `nu` its degrees of freedom. `host_sd` is what hosts of several runs differ by.
    """
    pm, pt = backend.pymc(), backend.tensor()
    free, runs = free_rates(cells), run_names(cells)
    bend = Bend.of(cells, priors, free, lay)
    with pm.Model(coords={"kind": list(KINDS), "run": runs}) as model:
        given = {name: pm.Data(name, values) for name, values in model_data(cells, runs).items()}
        laid = {name: pm.Data(name, values) for name, values in bend.straight(lay or _unlaid(len(free) + len(runs))).items()}
        middle, width, size = laid["middle"], laid["width"], len(free)
        place = pm.Flat("place", shape=size + len(runs))
        # by rows: the gradient of taking a vector apart takes long to compile
        hosts = middle[size:] + width[size:] @ place if runs else None
        z = bend.scores({name: middle[i] + pt.dot(width[i], place) for i, name in enumerate(free)}, hosts, pt)
        beside = SHARED_MEMORY * z["beta"] if {"beta", "beta_kv"} <= set(free) else 0.0
        prior = sum(z[name] ** 2 for name in free if name != "beta_kv")
        if "beta_kv" in free:
            prior = prior + (z["beta_kv"] - beside) ** 2 / (1 - SHARED_MEMORY**2 if "beta" in free else 1.0)
        rates: dict[str, Any] = {name: priors[name].median for name in UNITS}
        for name in free:
            rates[name] = pm.Deterministic(name, value(priors[name], z[name], pt.exp))
        at = Rates(**rates)
        if hosts is not None:
            factors = pm.Deterministic("host", pt.exp(hosts), dims="run")
            prior = prior + ((hosts / host_sd) ** 2).sum()
            at = at_host(at, given["run"] @ factors)
        pm.Potential("prior", -0.5 * prior)
        if sigma is None:
            factor = pt.exp(SIGMA_SPREAD * pm.Normal("sigma_z", dims="kind"))
            error = pm.Deterministic("sigma", pt.as_tensor(SIGMA_MEDIAN) * factor, dims="kind")
        else:
            error = pt.as_tensor(sigma)
        price = step_time_s(_known_zeros(bill_of(given["bill"]), cells), at, pt)
        scale = pt.sqrt(error[given["kind"]] ** 2 + given["repeat_sd"] ** 2)
        pm.StudentT("log_step_s", nu=nu, mu=pt.log(price), sigma=scale, observed=given["log_step"])
    return model


def run_names(cells: StepCells) -> list[str]:
    """The runs that cells are of, where they are of several: each has a host of its own. Of one run the rates are its own host's."""
    names: list[str] = np.unique(cells.run).tolist()
    return names if len(names) > 1 else []


def run_index(cells: StepCells, runs: Sequence[str]) -> NDArray[np.int64]:
    """Place of each cell's run among `runs` [n], zeros where there are none."""
    return np.array([runs.index(run) if runs else 0 for run in cells.run], dtype=np.int64)


def _unlaid(size: int) -> Lay:
    return Lay(np.zeros(size), np.eye(size))


@dataclass(frozen=True)
class _Lean:
    """A lean decode: how long it took, what it read and reduced, and the place of its run among several."""

    time_s: float
    read_bytes: float
    comm_ops: float
    run: int

    @classmethod
    def of(cls, cells: StepCells, which: NDArray[np.bool_], runs: Sequence[str]) -> _Lean | None:
        """The leanest of those cells; without routed experts, where there are such."""
        bill = cells.as_bill()
        plain = which & (bill.expert_layers == 0)
        found = np.flatnonzero(plain if plain.any() else which)
        if not found.size:
            return None
        i = found[np.argmin(cells.step_s[found])]
        return cls(float(cells.step_s[i]), float(bill.weight_bytes[i]), float(bill.comm_ops[i]), int(run_index(cells, runs)[i]))


@dataclass(frozen=True)
class _Late:
    """A chunk late in a long prompt: what its padding and taking the prompt in are expected to take together, and each by its unit."""

    NEEDS = ("chunk_pad_tokens", "intake_s", "attention_flops_per_s")

    together_s: float
    pad_s: float  # by the padded token
    tokens: float
    prior: Prior

    @classmethod
    def of(cls, cells: StepCells, priors: Mapping[str, Prior], free: Sequence[str], lay: Lay) -> _Late:
        """Of the cell that takes most in."""
        bill = cells.as_bill()
        i = int(np.argmax(bill.intake_tokens - bill.spread_intake_tokens))
        pad, each, flops = (float(value(priors[name], lay.middle[list(free).index(name)])) for name in cls.NEEDS)
        pad_s, tokens = float(bill.chunk_flops[i]) / flops, max(float(bill.intake_tokens[i]), 1.0)
        return cls(pad * pad_s + each * tokens, pad_s, tokens, priors["intake_s"])

    def score(self, pad: Any, xp: Any) -> Any:
        """Standard score of taking in a token at which both take as long as expected; smoothly floored."""
        left = self.together_s - pad * self.pad_s
        left = 0.5 * (left + xp.sqrt(left**2 + (LATE_FLOOR * self.together_s) ** 2))
        return (xp.log(left / self.tokens) - np.log(self.prior.median)) / self.prior.sigma


@dataclass(frozen=True)
class Bend:
    """Where a posterior is a bent valley: grids of one model show the sum of fixed cost and weights well and each badly, so do grids
    over several GPUs that of fixed cost and all-reduces. Scores of the fixed cost and of the all-reduce's latency are counted from those
    at which a lean decode takes as long as measured, which is straight. So is the score of taking a prompt in, counted from where it and
    a chunk's padding make a short chunk late in a long prompt as long as expected. A shift by a function of others leaves densities as
    they are.
    """

    free: Sequence[str]
    priors: Mapping[str, Prior]
    alone: _Lean | None
    spread: _Lean | None
    late: _Late | None = None

    @classmethod
    def of(cls, cells: StepCells, priors: Mapping[str, Prior], free: Sequence[str], lay: Lay | None = None) -> Bend:
        """Of cells that show these rates, expected where `lay` says."""
        runs, bill = run_names(cells), cells.as_bill()
        alone = _Lean.of(cells, (cells.kind == "decode") & (bill.weight_bytes > 0), runs) if {"c0_s", "beta"} <= set(free) else None
        # a step most of which is neither weights nor fixed cost (a cache behind a link) says nothing of their sum
        if alone is not None and abs(_fixed_score(alone, priors, priors["beta"].median, 0.0, np)) > FAR_SCORES:
            alone = None
        over = (cells.kind == SPREAD) & (bill.has_prefill == 0) & (bill.comm_ops > 0)
        late = _Late.of(cells, priors, free, lay) if lay is not None and set(_Late.NEEDS) <= set(free) else None
        return cls(free, priors, alone, None if alone is None else _Lean.of(cells, over, runs), late)

    def shifts(self) -> list[tuple[str, Shift]]:
        """By which function of other scores that of each rate is counted from another place; in an order in which those are known."""

        def rate(name: str, z: Mapping[str, Any], xp: Any) -> Any:
            return value(self.priors[name], z[name], xp.exp)

        def taken_in(late: _Late, z: Mapping[str, Any], hosts: Any, xp: Any) -> Any:
            return late.score(rate("chunk_pad_tokens", z, xp), xp)

        def fixed(lean: _Lean, z: Mapping[str, Any], hosts: Any, xp: Any) -> Any:
            return _fixed_score(lean, self.priors, rate("beta", z, xp), _host(hosts, lean), xp)

        def latency(lean: _Lean, z: Mapping[str, Any], hosts: Any, xp: Any) -> Any:
            return _latency_score(lean, self.priors, rate("c0_s", z, xp), rate("beta", z, xp), _host(hosts, lean), xp)

        found: list[tuple[str, Shift]] = []
        if self.late is not None:
            found.append(("intake_s", partial(taken_in, self.late)))
        if self.alone is not None:
            found.append(("c0_s", partial(fixed, self.alone)))
        if self.spread is not None:
            found.append(("comm_latency_s", partial(latency, self.spread)))
        return found

    def scores(self, places: Mapping[str, Any], hosts: Any, xp: Any) -> dict[str, Any]:
        """Standard scores at places, `hosts` being the logarithms of several runs' hosts (or None)."""
        z = dict(places)
        for name, shift in self.shifts():
            z[name] = z[name] + shift(z, hosts, xp)
        return z

    def straight(self, lay: Lay) -> dict[str, Array]:
        """`middle` and `width` of the places that `lay` says of scores."""
        size = len(self.free)

        def places(scores: Array) -> Array:
            out, hosts = scores.copy(), scores[size:] if len(scores) > size else None
            z = dict(zip(self.free, scores[:size], strict=True))
            for name, shift in self.shifts():
                out[self.free.index(name)] -= shift(z, hosts, np)
            return out

        here = places(lay.middle)
        turn = np.stack([(places(lay.middle + TINY * unit) - here) / TINY for unit in np.eye(len(here))], axis=1)
        width = np.asarray(np.linalg.cholesky(turn @ lay.covariance @ turn.T), dtype=float)
        return {"middle": here, "width": width}


def _host(hosts: Any, lean: _Lean) -> Any:
    return 0.0 if hosts is None else hosts[lean.run]


def _fixed_score(lean: _Lean, priors: Mapping[str, Prior], beta: Any, host: Any, xp: Any) -> Any:
    """Standard score of the fixed cost at which the decode takes as long as measured, smoothly floored where weights alone take longer."""
    left, prior = lean.time_s - lean.read_bytes / beta, priors["c0_s"]
    left = 0.5 * (left + xp.sqrt(left**2 + FLOOR_S**2))
    return (xp.log(left) - host - np.log(prior.median)) / prior.sigma


def _latency_score(lean: _Lean, priors: Mapping[str, Prior], c0: Any, beta: Any, host: Any, xp: Any) -> Any:
    """The same of the all-reduce's latency, given the fixed cost."""
    left, prior = lean.time_s - c0 * xp.exp(host) - lean.read_bytes / beta, priors["comm_latency_s"]
    left = 0.5 * (left + xp.sqrt(left**2 + FLOOR_S**2))
    return (xp.log(left / lean.comm_ops) - np.log(prior.median)) / prior.sigma


def _known_zeros(bill: Bill, cells: StepCells) -> Bill:
    """The bill with terms that no cell has as plain zeros, so that their part of the formula is not compiled."""
    zero = {name: 0.0 for name, v in cells.as_bill()._asdict().items() if name not in SMOOTHED and not np.any(v)}
    return bill._replace(**zero)


def free_rates(cells: StepCells) -> list[str]:
    """Rates that some cell shows, in the order of sim.rates."""
    hidden = unseen(cells.as_bill()._asdict())
    return [name for name in UNITS if name not in hidden]


def model_data(cells: StepCells, runs: Sequence[str]) -> dict[str, Any]:
    """Replacements for the pm.Data of `step_model` that hold what was measured."""
    data: dict[str, Any] = {
        "bill": floored(cells.bill),
        "log_step": np.log(cells.step_s),
        "repeat_sd": cells.repeat_sd,
        "kind": kind_index(cells),
    }
    if runs:  # as a matrix [n, run] of ones and zeros, whose product with factors is quicker to compile than picking them
        data["run"] = np.eye(len(runs))[run_index(cells, runs)]
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
    columns = Rates(**{name: np.asarray(getattr(rates, name), dtype=float).reshape(-1, 1) for name in UNITS})
    if hosts is not None:
        columns = at_host(columns, hosts)
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
