"""Coordinates in which the step-time model's posterior is straight, for the sampler; they change nothing else.

Grids of one model show the sum of fixed cost and weights well and each badly, so do grids over several GPUs that of fixed cost and
all-reduces, and where every run is of a model of its own each shows its host's share of that sum: bent valleys, as those of other pairs of
rates (calibrate.steps.sums). A score there is counted from the one at which what is seen well comes out as measured, given the others,
which is straight. A shift by a function of others leaves densities as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibrate.steps.cells import SPREAD, StepCells
from calibrate.steps.rates import value
from calibrate.steps.sums import Io, Late, floored, score_of
from sim.priors import Prior

Array = NDArray[np.float64]
FAR_SCORES = 4.0
TINY = 1e-5  # of a score, for derivatives
FLOOR_S = 1e-4  # of what the weights leave of a step, in the coordinates that are sampled
COSTS = ("_s", "_tokens")  # ends of the names of rates whose price is in proportion to them, where they are no rate per second
LEARNT, UNCERTAIN = 0.6, 0.1  # of a standard score, of a logarithm: standard deviations below and above which a cost is warped
SHARP = 3.0  # how soon above zero a cost is in proportion to its place


@dataclass(frozen=True)
class Lay:
    """Where the posterior is expected, in standard scores of the free rates and logarithms of the hosts: its middle [x], and covariance."""

    middle: Array
    covariance: Array


class Shift(Protocol):
    """A score that is counted from where others put it."""

    @property
    def name(self) -> str:
        """The rate whose score it is."""

    def score(self, z: Mapping[str, Any], hosts: Any, priors: Mapping[str, Prior], xp: Any) -> Any:
        """Where it is counted from, given the scores of other rates and the logarithms of several runs' hosts (or None)."""


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

    def host(self, hosts: Any) -> Any:
        """Logarithm of its run's host."""
        return 0.0 if hosts is None else hosts[self.run]

    def left_s(self, z: Mapping[str, Any], priors: Mapping[str, Prior], xp: Any) -> Any:
        """What its weights leave of its time."""
        return floored(self.time_s - self.read_bytes / value(priors["beta"], z["beta"], xp.exp), FLOOR_S, xp)


@dataclass(frozen=True)
class _Fixed:
    """Fixed cost, from that at which the decode takes as long as measured: on its run's host, or on a middle one where hosts are counted
    from the fixed cost in turn.
    """

    lean: _Lean
    on_middle_host: bool = False
    name = "c0_s"

    def score(self, z: Mapping[str, Any], hosts: Any, priors: Mapping[str, Prior], xp: Any) -> Any:
        host = 0.0 if self.on_middle_host else self.lean.host(hosts)
        return score_of(xp.log(self.lean.left_s(z, priors, xp)) - host, priors[self.name])


@dataclass(frozen=True)
class _Start:
    """The logarithm of a run's host, from that on which its lean decode takes as long as measured, given the fixed cost."""

    lean: _Lean

    def score(self, z: Mapping[str, Any], priors: Mapping[str, Prior], xp: Any) -> Any:
        return xp.log(self.lean.left_s(z, priors, xp) / value(priors["c0_s"], z["c0_s"], xp.exp))


@dataclass(frozen=True)
class _Latency:
    """The same of the all-reduce's latency, given the fixed cost."""

    lean: _Lean
    name = "comm_latency_s"

    def score(self, z: Mapping[str, Any], hosts: Any, priors: Mapping[str, Prior], xp: Any) -> Any:
        c0, beta = (value(priors[name], z[name], xp.exp) for name in ("c0_s", "beta"))
        left = floored(self.lean.time_s - c0 * xp.exp(self.lean.host(hosts)) - self.lean.read_bytes / beta, FLOOR_S, xp)
        return score_of(xp.log(left / self.lean.comm_ops), priors[self.name])


@dataclass(frozen=True)
class Warp:
    """A cost that cells show as part of sums: normal in seconds, and not in its logarithm, which has a long tail towards nothing. Its place
    is the cost over the expected one, as far as that is above zero: cost = softplus(place), so that a small one keeps a logarithm's room.
    """

    name: str
    expected: float  # standard score
    sigma: float  # of the prior's logarithm

    def score(self, place: Any, xp: Any) -> tuple[Any, Any]:
        """Standard score at a place, and the logarithm of its slope there, up to a constant."""
        share = xp.log1p(xp.exp(SHARP * place)) / SHARP
        return self.expected + xp.log(share) / self.sigma, xp.log(-xp.expm1(-SHARP * share) / share)

    def place(self, score: Any) -> Any:
        """The place of a score."""
        share = np.exp(self.sigma * (score - self.expected))
        return share + np.log(-np.expm1(-SHARP * share)) / SHARP


@dataclass(frozen=True)
class Bend:
    """The shifts of a model's free rates, each given the scores that those before it have made; warps of others; and, after them, the
    shifts of hosts.
    """

    free: Sequence[str]
    priors: Mapping[str, Prior]
    shifts: Sequence[Shift]
    warps: Sequence[Warp] = ()
    starts: Sequence[_Start] = ()

    @classmethod
    def of(cls, cells: StepCells, priors: Mapping[str, Prior], free: Sequence[str], lay: Lay | None = None) -> Bend:
        """Of cells that show these rates, expected where `lay` says."""
        runs, bill, found, starts = run_names(cells), cells.as_bill(), list[Shift](), list[_Start]()
        if lay is not None:
            expected = {name: float(value(priors[name], score)) for name, score in zip(free, lay.middle, strict=False)}
            found += [sort.of(cells, expected) for sort in (Late, Io) if set(sort.NEEDS) <= set(free)]
        decodes = (cells.kind == "decode") & (bill.weight_bytes > 0)
        lean = _Lean.of(cells, decodes, runs) if {"c0_s", "beta"} <= set(free) else None
        # a step most of which is neither weights nor fixed cost (a cache behind a link) says nothing of their sum
        if lean is not None and abs(_Fixed(lean).score({"beta": 0.0}, None, priors, np)) <= FAR_SCORES:
            each = [_Lean.of(cells, decodes & (cells.run == run), runs) for run in runs]
            if len(np.unique(cells.model)) == len(runs):  # else a model's other runs tell its host from its weights
                starts = [_Start(one) for one in each if one is not None]
            found.append(_Fixed(lean, on_middle_host=bool(starts)))
            several = _Lean.of(cells, (cells.kind == SPREAD) & (bill.has_prefill == 0) & (bill.comm_ops > 0), runs)
            found += [] if several is None else [_Latency(several)]
        warps = _warps(free, priors, {shift.name for shift in found}, lay) if lay is not None else ()
        return cls(free, priors, found, warps, starts)

    def scores(self, places: Mapping[str, Any], hosts: Sequence[Any], xp: Any) -> tuple[dict[str, Any], list[Any], Any]:
        """(standard scores, logarithms of several runs' hosts) at places, those of `hosts` among them; and the logarithm of the volume that
        a volume of places becomes, up to a constant.
        """
        z, volume = dict(places), 0.0
        for warp in self.warps:
            z[warp.name], slope = warp.score(z[warp.name], xp)
            volume = volume + slope
        for shift in self.shifts:
            z[shift.name] = z[shift.name] + shift.score(z, hosts or None, self.priors, xp)
        logs = list(hosts)
        for start in self.starts:
            logs[start.lean.run] = logs[start.lean.run] + start.score(z, self.priors, xp)
        return z, logs, volume

    def straight(self, lay: Lay) -> dict[str, Array]:
        """`middle` and `width` of the places that `lay` says of scores."""
        size = len(self.free)

        def places(scores: Array) -> Array:
            out, hosts = scores.copy(), scores[size:] if len(scores) > size else None
            z = dict(zip(self.free, scores[:size], strict=True))
            for shift in self.shifts:
                out[self.free.index(shift.name)] -= shift.score(z, hosts, self.priors, np)
            for start in self.starts:
                out[size + start.lean.run] -= start.score(z, self.priors, np)
            for warp in self.warps:
                out[self.free.index(warp.name)] = warp.place(z[warp.name])
            return out

        here = places(lay.middle)
        turn = np.stack([(places(lay.middle + TINY * unit) - here) / TINY for unit in np.eye(len(here))], axis=1)
        width = np.asarray(np.linalg.cholesky(turn @ lay.covariance @ turn.T), dtype=float)
        return {"middle": here, "width": width}


def _warps(free: Sequence[str], priors: Mapping[str, Prior], shifted: Collection[str], lay: Lay) -> list[Warp]:
    """Of costs that are not certain, but more so than before any cell was seen."""
    spread = dict(zip(free, np.sqrt(np.diag(lay.covariance)), strict=False))
    return [
        Warp(name, float(lay.middle[i]), priors[name].sigma)
        for i, name in enumerate(free)
        if name.endswith(COSTS)
        and not name.endswith("_per_s")
        and name not in shifted
        and spread[name] < LEARNT
        and spread[name] * priors[name].sigma > UNCERTAIN
    ]


def run_names(cells: StepCells) -> list[str]:
    """The runs that cells are of, where they are of several: each has a host of its own. Of one run the rates are its own host's."""
    names: list[str] = np.unique(cells.run).tolist()
    return names if len(names) > 1 else []


def run_index(cells: StepCells, runs: Sequence[str]) -> NDArray[np.int64]:
    """Place of each cell's run among `runs` [n], zeros where there are none."""
    return np.array([runs.index(run) if runs else 0 for run in cells.run], dtype=np.int64)
