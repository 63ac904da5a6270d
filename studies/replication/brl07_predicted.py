"""The sparse long-context report, predicted: policies of one budget, needles, and what only trained weights can tell."""

from __future__ import annotations

import numpy as np

from sim.closed_form.recall import packaged_recall
from sim.cost.batch import decode_batch
from sim.cost.work import iteration_work
from sim.specs.attention_policy import blocks, pages
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.needle_recall.needle_trials import published
from studies.reference_tables import table
from studies.replication.claims import Claim, compared, held, untestable

CONTEXT, BUDGET = 131072, 4096  # tokens


def claims() -> list[Claim]:
    """In the order of their names."""
    rows = table("brl07", "fidelity")
    agreed = next(r["value"] for r in rows if r["metric"] == "agreement_pooled" and r["conditioning"] == "unconditional")
    return [
        _budget(),
        _needles(),
        untestable(
            "BP3", f"top-1 agrees with dense in {agreed} of tokens, k = 8", "our weights are random; `simctl gates` scores two servers"
        ),
    ]


def _budget() -> Claim:
    """Summaries that two granularities scan to read as many tokens."""
    model, precision = get_model("Qwen2.5-7B"), Precision()
    page, block = (
        iteration_work(model, decode_batch(model, 1.0, float(CONTEXT), policy), precision, policy).summary_bytes
        for policy in (pages(BUDGET // 16), blocks(BUDGET // 128))
    )
    published = "pages of 16 tokens cost ~8 x the selection of blocks of 128, at one budget"
    return compared("BP1", published, f"{page / block:.2f} x the summaries", abs(page / block / 8 - 1), 0.01, "formula")


def _needles() -> Claim:
    """As many trials at a cell like each published one, by the hierarchical model fitted to all of them."""
    recall, rng = packaged_recall(), np.random.default_rng(0)
    if recall is None:
        return untestable("BP2", "needles found in real prose", "no model of recall is packaged")
    found = [
        (t, rng.binomial(t.trials, recall.predict(t.model, t.haystack, t.context_tokens, t.k_blocks)) / t.trials)
        for t in published().trials
    ]
    ends = [(t.successes / t.trials, *np.quantile(draws, [0.05, 0.95])) for t, draws in found]
    inside = sum(low <= seen <= high for seen, low, high in ends)
    prose = [(t, draws) for t, draws in found if t.haystack == "real prose"]
    return held(
        "BP2",
        "needles found in real prose: " + ", ".join(f"{t.successes / t.trials:g} (k = {t.k_blocks})" for t, _ in prose),
        np.array([t.successes / t.trials for t, _ in prose]),
        np.stack([draws for _, draws in prose]),
        [f"{np.median(draws):.2f}" for _, draws in prose],
        f"; {inside} of {len(found)} cells of trials inside, by a model fitted to them",
    )
