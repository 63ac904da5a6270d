"""A hierarchical logistic model of needle recall.

    logit recall = a[haystack] + u[model] + b[haystack] * (log2 k - 3) - c[haystack] * (log2 context - 15) + cell

k in blocks of 128 tokens, so the reference cell is k = 8 at 32K. b and c are positive: a larger budget never finds less and a
longer haystack is never easier. What one text says of its slopes says little of another text's: c was read off a looped paragraph alone.
Haystacks and models are exchangeable draws, so that a text or a model never tried gets the
population's spread; `cell` is what the line misses at one cell, and a cell never tried draws its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import gammaln

from calibrate import backend
from sim.closed_form.recall import REFERENCE_LOG2_CONTEXT, REFERENCE_LOG2_K
from sim.errors import UsageError
from studies.needle_recall.needle_trials import AtLeast, Bound, Evidence, NeedleTrial

# A confidence bound is a step between (1 - confidence) and confidence; NUTS needs it smooth over this much recall.
BOUND_WIDTH = 0.002


def recall_model(evidence: Evidence) -> Any:
    """pm.Model of the evidence; dims haystack, model, cell; the counts are pm.Data `found`. UsageError when there are none."""
    if not evidence.trials:
        raise UsageError("a recall model needs at least one count")
    pm, pt = backend.pymc(), backend.tensor()
    rows: list[NeedleTrial | AtLeast | Bound] = [*evidence.trials, *evidence.at_least, *evidence.bounds]
    haystacks, models = (sorted({getattr(r, name) for r in rows}) for name in ("haystack", "model"))
    cells = sorted({cell_label(r.model, r.haystack, r.context_tokens, r.k_blocks) for r in rows})
    with pm.Model(coords={"haystack": haystacks, "model": models, "cell": cells}) as model:
        level = pm.Normal("level", 2.0, 1.5)
        haystack_sd = pm.HalfNormal("haystack_sd", 1.5)
        intercept = pm.Deterministic("intercept", level + haystack_sd * pm.Normal("haystack_z", dims="haystack"), dims="haystack")
        model_sd = pm.HalfNormal("model_sd", 0.7)
        offset = pm.Deterministic("model_offset", model_sd * pm.Normal("model_z", dims="model"), dims="model")
        budget_mean = pm.Normal("budget_log_mean", 0.0, 0.5)
        budget_sd = pm.HalfNormal("budget_log_sd", 0.4)
        budget = pm.Deterministic("budget_slope", pt.exp(budget_mean + budget_sd * pm.Normal("budget_z", dims="haystack")), dims="haystack")
        context_mean = pm.Normal("context_log_mean", 0.0, 0.7)
        context_sd = pm.HalfNormal("context_log_sd", 0.5)
        slopes = pt.exp(context_mean + context_sd * pm.Normal("context_z", dims="haystack"))
        context = pm.Deterministic("context_slope", slopes, dims="haystack")
        cell_sd = pm.HalfNormal("cell_sd", 0.4)
        cell = pm.Normal("cell_z", dims="cell")

        def logits(of: Sequence[NeedleTrial | AtLeast | Bound]) -> Any:
            h = np.array([haystacks.index(r.haystack) for r in of])
            m = np.array([models.index(r.model) for r in of])
            c = np.array([cells.index(cell_label(r.model, r.haystack, r.context_tokens, r.k_blocks)) for r in of])
            k = np.array([np.log2(r.k_blocks) - REFERENCE_LOG2_K for r in of])
            n = np.array([np.log2(r.context_tokens) - REFERENCE_LOG2_CONTEXT for r in of])
            return intercept[h] + offset[m] + budget[h] * k - context[h] * n + cell_sd * cell[c]

        eta = logits(evidence.trials)
        found = pm.Data("found", np.array([float(r.successes) for r in evidence.trials]))
        trial_counts = np.array([float(r.trials) for r in evidence.trials])
        # the binomial log-likelihood in logits; a count that is not whole (a rate whose n was not printed) is fine here
        pm.Potential("counts", (found * eta - trial_counts * pt.softplus(eta)).sum())
        for i, row in enumerate(evidence.at_least):
            pm.Potential(f"at_least_{i}", _log_tail(logits([row])[0], row.successes, row.trials, pt))
        if evidence.bounds:
            rate = pt.sigmoid(logits(evidence.bounds))
            floor = np.array([b.recall for b in evidence.bounds])
            confidence = np.array([b.confidence for b in evidence.bounds])
            above = pt.sigmoid((rate - floor) / BOUND_WIDTH)
            pm.Potential("bounds", pt.log((1 - confidence) + (2 * confidence - 1) * above).sum())
    return model


def cell_label(model: str, haystack: str, context_tokens: int, k_blocks: int) -> str:
    """Name of a cell in the `cell` dim."""
    return f"{model} | {haystack} | {context_tokens} | {k_blocks}"


def _log_tail(eta: Any, successes: int, trials: int, pt: Any) -> Any:
    """log P(X >= successes) of a binomial with logit eta."""
    x = np.arange(successes, trials + 1)
    ways = gammaln(trials + 1) - gammaln(x + 1) - gammaln(trials - x + 1)
    return pt.logsumexp(ways + x * eta - trials * pt.softplus(eta))
