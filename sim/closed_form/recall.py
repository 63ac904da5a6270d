"""Recall predicted where nothing was measured: draws of the hierarchical logistic model of `studies.needle_recall`, packaged as JSON.

    logit recall = intercept[haystack] + offset[model] + budget[haystack] * (log2 k - 3) - context[haystack] * (log2 tokens - 15) + cell

A haystack or model never tried is drawn from its population, and so is the cell: what the line misses at one cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import SimctlError, UsageError
from sim.files import package_path
from sim.quantiles import quantiles

PACKAGED, SCHEMA = "data/posteriors/recall.json", "simctl-recall/2"
REFERENCE_LOG2_K, REFERENCE_LOG2_CONTEXT = 3.0, 15.0
SCALARS = ("level", "haystack_sd", "budget_log_mean", "budget_log_sd", "model_sd", "context_log_mean", "context_log_sd", "cell_sd")

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RecallModel:
    """Draws [draw] of the model: scalars by name; intercept, budget and context slopes by haystack; offset by model."""

    scalars: Mapping[str, Array]
    intercept: Mapping[str, Array]
    budget: Mapping[str, Array]
    context: Mapping[str, Array]
    offset: Mapping[str, Array]
    basis: str

    def predict(self, model: str | None, haystack: str | None, context_tokens: int, k_blocks: int, seed: int = 0) -> Array:
        """Draws of the recall [draw] at a cell never tried. Raises UsageError when k or the context is below one."""
        if k_blocks < 1 or context_tokens < 1:
            raise UsageError(f"recall needs k >= 1 and a context >= 1, got k = {k_blocks} at {context_tokens} tokens")
        at, budget = self._line(model, haystack, context_tokens, seed)
        return np.asarray(1 / (1 + np.exp(-(at + budget * (np.log2(k_blocks) - REFERENCE_LOG2_K)))))

    def _line(self, model: str | None, haystack: str | None, context_tokens: int, seed: int) -> tuple[Array, Array]:
        """Draws of (logit recall of 8 blocks at a context, what a doubling of the blocks adds)."""
        s = self.scalars
        # the same seed draws the same cell effect at every k and context, so that more budget never predicts less
        noise = np.random.default_rng(seed).standard_normal((5, len(s["level"])))
        intercept = self.intercept.get(haystack or "", s["level"] + s["haystack_sd"] * noise[0])
        budget = self.budget.get(haystack or "", np.exp(s["budget_log_mean"] + s["budget_log_sd"] * noise[1]))
        offset = self.offset.get(model or "", s["model_sd"] * noise[2])
        context = self.context.get(haystack or "", np.exp(s["context_log_mean"] + s["context_log_sd"] * noise[4]))
        at = intercept + offset + s["cell_sd"] * noise[3] - context * (np.log2(context_tokens) - REFERENCE_LOG2_CONTEXT)
        return np.asarray(at), np.asarray(budget)

    def interval(self, model: str | None, haystack: str | None, context_tokens: int, k_blocks: int) -> tuple[float, float, float]:
        """5 %, median and 95 % of the recall at a cell never tried."""
        low, median, high = quantiles(self.predict(model, haystack, context_tokens, k_blocks), (0.05, 0.5, 0.95))
        return low, median, high

    def blocks_for(self, model: str | None, haystack: str | None, context_tokens: int, recall: float) -> tuple[float, float, float]:
        """5 %, median and 95 % of the selected blocks that find a share `recall` of needles: the same line, solved for the blocks."""
        at, budget = self._line(model, haystack, context_tokens, 0)
        doublings = np.clip((np.log(recall / (1 - recall)) - at) / budget, -REFERENCE_LOG2_K, 40.0)
        low, median, high = quantiles(2.0 ** (REFERENCE_LOG2_K + doublings), (0.05, 0.5, 0.95))
        return low, median, high


@cache
def packaged_recall() -> RecallModel | None:
    """The packaged model, or None. Raises SimctlError when the file is damaged."""
    source = package_path("scenarios", PACKAGED)
    return parse_recall(source.read_text(encoding="utf-8")) if source.is_file() else None


def parse_recall(text: str) -> RecallModel:
    """Check and build. Raises SimctlError naming what is wrong."""
    try:
        body: dict[str, Any] = json.loads(text)
        if body["schema"] != SCHEMA:
            raise ValueError(f"schema {body['schema']!r}")
        scalars = {name: _draws(body[name]) for name in SCALARS}
        names = ("intercept", "budget_slope", "context_slope", "model_offset")
        intercept, budget, context, offset = ({str(k): _draws(v) for k, v in body[name].items()} for name in names)
        columns = [*scalars.values(), *intercept.values(), *budget.values(), *context.values(), *offset.values()]
        if len({len(column) for column in columns}) != 1:
            raise ValueError("columns of different length")
        return RecallModel(scalars, intercept, budget, context, offset, str(body["basis"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SimctlError(f"{PACKAGED}: not a recall model ({error})") from None


def _draws(values: Any) -> Array:
    out = np.asarray(values, dtype=np.float64)
    if out.ndim != 1 or not len(out) or not np.isfinite(out).all():
        raise ValueError("draws must be finite numbers")
    return out
