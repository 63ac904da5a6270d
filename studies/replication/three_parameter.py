"""The published three-parameter step model, fitted to a whole-model decode grid.

    dense    t = c0 + (W + B C kappa) / beta
    sparse   t = c0 + W / beta + c1(k)

W are the weight bytes a step reads, B C kappa the bytes of the whole cache. As published, beta and c0 come from the dense rows and
c1(k), one number per k, from the sparse rows, into which the bytes of the selected blocks and of the summaries are folded. With
`bytes_of_selection` they are priced at beta instead, and c1(k) is what remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import open_measurement
from sim.errors import UsageError

Array = NDArray[np.float64]
NEEDED = ("mode", "status", "batch", "context_tokens", "k_blocks", "step_s_median", "weight_bytes", "kv_bytes", "keep_bytes", "scan_bytes")


@dataclass(frozen=True)
class DecodeCells:
    """Cells of a decode measurement, each array [cell]. `k_blocks` is 0 for dense. Seconds and bytes."""

    gpu: str
    batch: Array
    context_tokens: Array
    k_blocks: Array
    step_s: Array
    weight_bytes: Array
    read_bytes: Array  # of the cache: all of it (dense), or selected blocks and summaries (sparse)

    def where(self, keep: NDArray[np.bool_]) -> DecodeCells:
        """The cells where `keep` [cell] holds."""
        rows = (self.batch, self.context_tokens, self.k_blocks, self.step_s, self.weight_bytes, self.read_bytes)
        return DecodeCells(self.gpu, *(values[keep] for values in rows))


@dataclass(frozen=True)
class Fit:
    """beta in bytes/s, c0 and c1 in s, c1 by k."""

    beta: float
    c0_s: float
    c1_s: dict[int, float]
    bytes_of_selection: bool

    def step_s(self, cells: DecodeCells) -> Array:
        """Predicted seconds of each cell; NaN at a k that was not fitted."""
        dense = cells.k_blocks == 0
        read = np.where(dense | self.bytes_of_selection, cells.read_bytes, 0.0)
        find = np.array([0.0 if k == 0 else self.c1_s.get(int(k), np.nan) for k in cells.k_blocks])
        return np.asarray(self.c0_s + (cells.weight_bytes + read) / self.beta + find)


def read_decode(path: str | Path) -> DecodeCells:
    """Dense and sparse cells that ran, of one file. Raises UsageError naming what is wrong with it."""
    data = open_measurement(path)
    if data.attrs.get("suite") != "decode":
        raise UsageError(f"{path}: not a decode measurement (suite {data.attrs.get('suite')!r})")
    if missing := [name for name in NEEDED if name not in data]:
        raise UsageError(f"{path}: lacks {', '.join(missing)}")
    mode = data["mode"].values.astype(str)
    ran = (data["status"].values.astype(str) == "ok") & (mode != "tiered")
    column = {name: data[name].values[ran].astype(float) for name in NEEDED[2:]}
    dense = mode[ran] == "dense"
    read = np.where(dense, column["kv_bytes"], column["keep_bytes"] + column["scan_bytes"])
    return DecodeCells(
        str(data.attrs["gpu_name"]), column["batch"], column["context_tokens"], column["k_blocks"], column["step_s_median"],
        column["weight_bytes"], read,
    )  # fmt: skip


def fit(cells: DecodeCells, *, bytes_of_selection: bool = False) -> Fit:
    """Least squares on relative errors: beta and c0 from the dense rows, then c1(k) from the sparse ones.

    Raises UsageError with fewer than two dense cells of different bytes.
    """
    dense = cells.where(cells.k_blocks == 0)
    moved = dense.weight_bytes + dense.read_bytes
    if len(set(moved.tolist())) < 2:
        raise UsageError("the fit needs dense cells of at least two sizes")
    design = np.column_stack([np.ones_like(moved), moved]) / dense.step_s[:, None]
    (c0, slope), *_ = np.linalg.lstsq(design, np.ones_like(moved), rcond=None)
    bare = Fit(float(1 / slope), float(c0), {int(k): 0.0 for k in set(cells.k_blocks.tolist()) - {0.0}}, bytes_of_selection)
    rest = cells.step_s - bare.step_s(cells)
    weight = cells.step_s**-2
    found = {k: float(np.average(rest[cells.k_blocks == k], weights=weight[cells.k_blocks == k])) for k in sorted(bare.c1_s)}
    return Fit(bare.beta, bare.c0_s, found, bytes_of_selection)


def r_squared(fitted: Fit, cells: DecodeCells) -> float:
    """Share of the variance of the step times explained, in sample."""
    rest = cells.step_s - fitted.step_s(cells)
    return float(1 - rest @ rest / np.sum((cells.step_s - cells.step_s.mean()) ** 2))


def held_out(cells: DecodeCells, *, bytes_of_selection: bool = False) -> Array:
    """Relative error of every cell, predicted without any cell of its (batch, context). Where c1(k) cannot be learnt, NaN."""
    errors = np.full(cells.step_s.shape, np.nan)
    for batch, context in sorted(set(zip(cells.batch.tolist(), cells.context_tokens.tolist(), strict=True))):
        out = (cells.batch == batch) & (cells.context_tokens == context)
        fitted = fit(cells.where(~out), bytes_of_selection=bytes_of_selection)
        errors[out] = fitted.step_s(cells.where(out)) / cells.step_s[out] - 1
    return errors


def summary(cells: DecodeCells, *, bytes_of_selection: bool = False) -> dict[str, Any]:
    """The fit and its quality as plain numbers."""
    fitted = fit(cells, bytes_of_selection=bytes_of_selection)
    errors = np.abs(held_out(cells, bytes_of_selection=bytes_of_selection))
    return {
        "cells": int(cells.step_s.size),
        "beta_bytes_per_s": fitted.beta,
        "c0_s": fitted.c0_s,
        "c1_s": fitted.c1_s,
        "r2": r_squared(fitted, cells),
        "held_out_median": float(np.nanmedian(errors)),
        "held_out_max": float(np.nanmax(errors)),
        "held_out_cells": int(np.isfinite(errors).sum()),
    }


def subsets(cells: DecodeCells) -> Sequence[tuple[str, DecodeCells]]:
    """The batches a fit is made for: single streams (one matrix-vector path), then all."""
    return (("1", cells.where(cells.batch == 1)), ("all", cells))
