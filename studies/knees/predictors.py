"""The published ladder of knee predictors, their scores, and baselines that are calibrated with one model left out.

A predictor maps cells to a number that should grow with the knee. Only some are in units of batch; the others are
scored by rank alone. Source of the list: scenarios/data/reference/tr164/predictor_ladder.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from sim.closed_form.knee import closed_form_knee
from sim.errors import UsageError
from studies.knees.curves import CurveCell, EfficiencyCurve
from studies.knees.ranks import factor_errors, spearman, spearman_bootstrap

Array = NDArray[np.float64]
Cells = Sequence[CurveCell]


@dataclass(frozen=True)
class Knees:
    """Observed knees of n cells at one tau: batch [n]; where `censored`, the last batch, which was not yet past it."""

    cells: tuple[CurveCell, ...]
    batch: Array
    censored: NDArray[np.bool_]
    tau: float

    def imputed(self) -> Array:
        """Censored cells put at twice their last batch: the published imputation, for comparison only."""
        return np.where(self.censored, 2 * self.batch, self.batch)

    def finite(self) -> tuple[tuple[CurveCell, ...], Array]:
        keep = ~self.censored
        return tuple(c for c, k in zip(self.cells, keep, strict=True) if k), self.batch[keep]


@dataclass(frozen=True)
class PredictorScore:
    """Scores of one predictor. Factor errors are NaN where it is no batch, rank statistics where it is constant."""

    predictor: str
    spearman_finite: float
    interval: tuple[float, float]
    spearman_imputed: float
    median_factor: float
    underpredicted_censored: int


def observed_knees(curves: Sequence[EfficiencyCurve], tau: float = 0.65) -> Knees:
    """Continuous knees of the curves at tau."""
    knees = [curve.knee(tau) for curve in curves]
    batch = np.array([k.batch for k in knees], dtype=float)
    return Knees(tuple(c.cell for c in curves), batch, np.array([k.censored for k in knees], dtype=bool), tau)


def ratio(cells: Cells) -> Array:
    """KV bytes of a request over weight bytes, [n]."""
    return np.array([c.kv_bytes / c.weight_bytes for c in cells])


def gpu_alpha(knees: Knees) -> dict[str, float]:
    """Per GPU, the factor on the ratio that brings closed-form knees closest in log to the finite ones."""
    cells, observed = knees.finite()
    alpha = {}
    for gpu in sorted({c.gpu for c in knees.cells}):
        mine = np.array([c.gpu == gpu for c in cells], dtype=bool)
        if not mine.any():
            alpha[gpu] = 1.0
            continue
        r, target = ratio(cells)[mine], np.log(observed[mine])

        def loss(log_alpha: float, r: Array = r, target: Array = target) -> float:
            return float(np.sum((np.log(closed_form_knee(np.exp(log_alpha) * r, knees.tau)) - target) ** 2))

        alpha[gpu] = float(np.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded").x))
    return alpha


def ladder(knees: Knees) -> dict[str, tuple[Array, bool]]:
    """The eleven published predictors: name -> (values [n], whether they are batches)."""
    cells, alpha = knees.cells, gpu_alpha(knees)
    context = np.array([c.context_tokens for c in cells], dtype=float)
    kv = np.array([c.kv_bytes for c in cells])
    weight = np.array([c.weight_bytes for c in cells])
    r = ratio(cells)
    scaled = r * np.array([alpha[c.gpu] for c in cells])
    gpu = np.unique([c.gpu for c in cells], return_inverse=True)[1].astype(float)
    precision = np.unique([c.weight_dtype for c in cells], return_inverse=True)[1].astype(float)
    return {
        "Ck/W + per-GPU alpha": (np.asarray(closed_form_knee(scaled, knees.tau)), True),
        "Ck/W closed-form (zero-param)": (np.asarray(closed_form_knee(r, knees.tau)), True),
        "ratio only -r": (-r, False),
        "context only 1/C": (1 / context, False),
        "VRAM ceiling n_max": (np.array([c.n_max() for c in cells]), True),
        "KV traffic only 1/(Ck)": (1 / kv, False),
        "GPU only": (gpu, False),
        "KV bytes only 1/k": (context / kv, False),
        "decode only": (np.array([c.decode_tokens for c in cells], dtype=float), False),
        "precision only": (precision, False),
        "weight bytes only W": (weight, False),
    }


def score(name: str, values: Array, is_batch: bool, knees: Knees, rng: np.random.Generator, resamples: int) -> PredictorScore:
    """Score one predictor's values [n] against the observed knees. Fewer than three finite knees is a UsageError."""
    finite = ~knees.censored
    if finite.sum() < 3:
        raise UsageError(f"{int(finite.sum())} finite knees at tau {knees.tau:g}: a rank correlation needs three")
    x, y = values[finite], knees.batch[finite]
    batches = is_batch and bool((x > 0).all())
    return PredictorScore(
        name,
        spearman(x, y),
        spearman_bootstrap(x, y, rng, resamples),
        spearman(values, knees.imputed()),
        float(np.median(factor_errors(x, y))) if batches else np.nan,
        int((values[knees.censored] < 2 * knees.batch[knees.censored]).sum()) if is_batch else 0,
    )


Regressors = Callable[[Cells], Array]


def context_only(cells: Cells) -> Array:
    """[n, 2]: intercept and log context."""
    return np.array([[1.0, np.log(c.context_tokens)] for c in cells])


def context_and_gpu(cells: Cells) -> Array:
    """[n, 1 + GPUs]: log context and an intercept per GPU."""
    gpus = sorted({c.gpu for c in cells})
    return np.array([[np.log(c.context_tokens), *(float(c.gpu == g) for g in gpus)] for c in cells])


def leave_one_model_out(knees: Knees, regressors: Regressors) -> Array:
    """Knees of the finite cells, each predicted by log-linear least squares on the other models only, [n finite].

    Raises UsageError when fewer than two models have finite knees.
    """
    cells, observed = knees.finite()
    models = np.array([c.model for c in cells])
    if len(set(models)) < 2:
        raise UsageError("leaving one model out needs finite knees of two models")
    design, target, predicted = regressors(cells), np.log(observed), np.empty(len(cells))
    for model in set(models):
        out = models == model
        weights = np.linalg.lstsq(design[~out], target[~out], rcond=None)[0]
        predicted[out] = np.exp(design[out] @ weights)
    return predicted
