"""Retrieval recall of block selection: published needle trials with intervals, and predictions where none was measured.

Data: scenarios/data/reference/brl07/needle_recall.csv. A row with a trial count becomes a Beta interval (Jeffreys prior); a row printed
only as a bound or a percentage is passed on as printed, because its trial count is not stated. Predictions are sim.closed_form.recall's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from sim.closed_form.recall import packaged_recall
from sim.files import package_path
from sim.results.beta import beta_quantile
from sim.units import parse_tokens

TABLE = "data/reference/brl07/needle_recall.csv"
GOOD_RECALL = 0.9  # a needle missed more often than one time in ten: speed alone recommends nothing


@dataclass(frozen=True, slots=True)
class Recall:
    """One published measurement; (successes, trials) where the trial count is stated."""

    context: int
    haystack: str
    k: int | None
    recall: float
    statistic: str
    counted: tuple[int, int] | None = None
    model: str = ""

    def text(self, with_context: bool = True) -> str:
        """The recall with its 5-95 % interval under Beta(successes + 1/2, failures + 1/2), or as printed."""
        at = f" at {self.context // 1024}K" if with_context else ""
        if self.counted is None:
            kind = "" if self.statistic == "observed" else f" ({self.statistic})"
            return f"{self.recall:.3g} on {self.haystack}{at}{kind}, trial count not stated"
        successes, trials = self.counted
        low, high = (beta_quantile(successes + 0.5, trials - successes + 0.5, tail) for tail in (0.05, 0.95))
        return f"{self.recall:.2f} [{low:.2f}-{high:.2f}] on {self.haystack}{at} ({successes}/{trials})"


@cache
def published_recall() -> tuple[Recall, ...]:
    """The measurements of real models (the engine-test rows of the table are about scorers, not models)."""
    import csv  # which dense attention does not need

    with package_path("scenarios", TABLE).open(encoding="utf-8") as handle:
        rows = [row for row in csv.DictReader(handle) if row["model"] != "engine test" and not row["context_label"].startswith("up to")]
    return tuple(_parsed(row) for row in rows)


def _parsed(row: dict[str, str]) -> Recall:
    if row["recall_unit"] == "count":
        successes, trials = (int(part) for part in row["recall"].split("/"))
        share = successes / trials
    else:
        share = float(row["recall"]) / (100 if row["recall_unit"] == "pct" else 1)
        trials = int(row["trials"] or 0)
    k = int(row["k_blocks"]) if row["k_blocks"] else None
    counted = (round(share * trials), trials) if trials else None
    return Recall(parse_tokens(row["context_label"]), row["haystack"], k, share, row["statistic"], counted, row["model"])


def recall_at(k: int, context: int) -> tuple[list[Recall], list[Recall]]:
    """(measured exactly at this k and context, nearest measured at this k in other contexts), hardest haystack first."""
    rows = [r for r in published_recall() if r.k == k]
    exact = sorted((r for r in rows if r.context == context), key=lambda r: r.recall)
    others = sorted((r for r in rows if r.context != context), key=lambda r: (abs(r.context - context), r.recall))
    return exact, others


def risk_sentence(k: int, context: int, model: str | None = None) -> str:
    """One plain sentence on the recall of block-128 top-k selection at this context: measured there, or else predicted, and by what."""
    exact, others = recall_at(k, context)
    if exact:
        return f"k={k}: needle recall " + "; ".join(r.text(with_context=False) for r in exact) + "."
    predicted = _predicted(k, context, model)
    if others:
        nearest = "; ".join(r.text() for r in others[:2])
        return f"k={k}: not measured at this context; {predicted + '; ' if predicted else ''}nearest measured {nearest}."
    return f"k={k}: not measured at this k, at any context{'; ' + predicted if predicted else ''}."


def advice(k: int, context: int, model: str | None = None) -> tuple[str, str]:
    """(whether to turn this budget on, what to add about its recall): of the hardest text, measured there or predicted.

    Where recall is expected below GOOD_RECALL, being faster is no reason: the advice is then conditional.
    """
    # what another model found says nothing exact of this one: then it is predicted
    exact = [row for row in recall_at(k, context)[0] if model is None or _known_name(model, (row.model,))]
    measured = {row.haystack for row in exact}
    # an easy text that was measured does not speak for a hard one that was not
    predictions = [each for each in _predictions(k, context, model) if each[0] not in measured]
    if exact and (not predictions or exact[0].recall <= predictions[0][2]):
        expected, said = exact[0].recall, f"Needle recall there was {exact[0].text(with_context=False)}"
    else:
        if not predictions:
            return "turn sparse attention on", "Check its recall on your own data first."
        text, low, expected, high = predictions[0]
        said = f"Its recall there is unmeasured, predicted {expected:.2f} [{low:.2f}-{high:.2f}] on {text}"
    if expected < GOOD_RECALL:
        return "turn sparse attention on only if your own data shows that it still finds what you need", f"{said}."
    return "turn sparse attention on", f"{said}: check yours on your own data first."


def blocks_needed(context: int, model: str | None = None) -> tuple[str, tuple[float, float, float]] | None:
    """(the hardest text, 5 %, median and 95 % of the blocks that find GOOD_RECALL of its needles); None without a packaged model."""
    recall = packaged_recall()
    if recall is None:
        return None
    known = _known_name(model, recall.offset)
    each = ((text, recall.blocks_for(known, text, context, GOOD_RECALL)) for text in recall.intercept)
    return max(each, key=lambda row: row[1][1])


def _predictions(k: int, context: int, model: str | None) -> list[tuple[str, float, float, float]]:
    """(haystack, 5 %, median, 95 %) of the packaged recall model, hardest text first; empty without one."""
    recall = packaged_recall()
    if recall is None:
        return []
    known = _known_name(model, recall.offset)
    return sorted(((text, *recall.interval(known, text, context, k)) for text in recall.intercept), key=lambda row: row[2])


def _known_name(model: str | None, known: Iterable[str]) -> str | None:
    wanted = (model or "").casefold().replace("-instruct", "")
    return next((name for name in known if name.casefold().replace("-instruct", "") == wanted), None)


def _predicted(k: int, context: int, model: str | None) -> str:
    """The packaged recall model's prediction, hardest text first; empty without a packaged model."""
    recall = packaged_recall()
    if recall is None:
        return ""
    parts = [f"{median:.2f} [{low:.2f}-{high:.2f}] on {text}" for text, low, median, high in _predictions(k, context, model)]
    whose = "" if _known_name(model, recall.offset) else " for a model never tried"
    return f"predicted{whose} {', '.join(parts)} ({recall.basis})"
