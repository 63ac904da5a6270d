"""The fitted recall model as a small file that a what-if can read without a sampler."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.sampling import Diagnostics, Settings, diagnose, sample
from sim.closed_form.recall import SCALARS, SCHEMA, RecallModel, parse_recall
from sim.files import write_text
from studies.needle_recall.logistic import recall_model
from studies.needle_recall.needle_trials import Evidence

KEPT_DRAWS = 250


def learn(evidence: Evidence, settings: Settings) -> tuple[RecallModel, Diagnostics]:
    """The model learnt from the evidence, thinned, and what to think of its sample."""
    idata = sample(recall_model(evidence), settings)
    return thinned(idata.posterior, evidence), diagnose(idata)


def write(path: Path, model: RecallModel) -> None:
    """The packaged form, whole or not at all."""
    body: dict[str, Any] = {"schema": SCHEMA, "basis": model.basis}
    body |= {name: model.scalars[name].tolist() for name in SCALARS}
    tables = {"intercept": model.intercept, "budget_slope": model.budget, "context_slope": model.context, "model_offset": model.offset}
    body |= {name: {k: v.tolist() for k, v in table.items()} for name, table in tables.items()}
    write_text(path, json.dumps(body) + "\n")


def thinned(posterior: Any, evidence: Evidence) -> RecallModel:
    """KEPT_DRAWS draws of a sample of `recall_model`, as the packaged file has them."""
    draws = posterior.stack(sample=("chain", "draw"))
    pick = np.linspace(0, draws.sizes["sample"] - 1, KEPT_DRAWS).round().astype(int)

    def column(name: str, **where: str) -> Sequence[float]:
        values = draws[name].sel(**where).values if where else draws[name].values
        kept: Sequence[float] = np.asarray(values, dtype=float)[pick].round(4).tolist()
        return kept

    haystacks, models = ([str(v) for v in posterior[dim].values] for dim in ("haystack", "model"))
    body = {
        "schema": SCHEMA,
        "basis": f"hierarchical logistic model of {len(evidence.trials)} published needle trials",
        **{name: column(name) for name in SCALARS},
        "intercept": {h: column("intercept", haystack=h) for h in haystacks},
        "budget_slope": {h: column("budget_slope", haystack=h) for h in haystacks},
        "context_slope": {h: column("context_slope", haystack=h) for h in haystacks},
        "model_offset": {m: column("model_offset", model=m) for m in models},
    }
    return parse_recall(json.dumps(body))
