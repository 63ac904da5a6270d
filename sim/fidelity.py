"""Retrieval recall of block selection, from the published needle trials: what was measured, with intervals, and what was not.

Where nothing was measured at that very budget and context, a model of the trials predicts (sim.recall), and the sentence says so.

Data: scenarios/data/reference/brl07/needle_recall.csv. A row with a trial count becomes a Beta interval (Jeffreys prior); a row printed
only as a bound or a percentage is passed on as printed, because its trial count is not stated.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from sim.beta import beta_quantile
from sim.units import parse_tokens

TABLE = "data/reference/brl07/needle_recall.csv"


GOOD_RECALL = 0.9  # a needle missed more often than one time in ten: speed alone recommends nothing


@dataclass(frozen=True, slots=True)
class Recall:
    """One published measurement. `low`/`high` are the 5-95 % interval, or None where the trial count is not stated."""

    model: str
    context: int
    haystack: str
    k: int | None
    recall: float
    statistic: str
    successes: int | None = None
    trials: int | None = None
    low: float | None = None
    high: float | None = None


def beta_interval(successes: int, trials: int, level: float = 0.9) -> tuple[float, float]:
    """Central `level` interval of the recall under Beta(successes + 1/2, failures + 1/2)."""
    a, b = successes + 0.5, trials - successes + 0.5
    tail = (1 - level) / 2
    return beta_quantile(a, b, tail), beta_quantile(a, b, 1 - tail)


def published_recall() -> list[Recall]:
    """The measurements of real models (the engine-test rows of the table are about scorers, not models)."""
    rows = []
    with files("scenarios").joinpath(TABLE).open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle):
            if row["model"] == "engine test" or row["context_label"].startswith("up to"):
                continue
            rows.append(_parse(row))
    return rows


def _parse(row: dict[str, str]) -> Recall:
    trials = int(row["trials"]) if row["trials"] else None
    if row["recall_unit"] == "count":
        successes, trials = (int(part) for part in row["recall"].split("/"))
        recall = successes / trials
    else:
        recall = float(row["recall"]) / (100 if row["recall_unit"] == "pct" else 1)
    low = high = None
    successes_known = None
    if trials is not None:
        successes_known = round(recall * trials)
        low, high = beta_interval(successes_known, trials)
    return Recall(
        model=row["model"],
        context=parse_tokens(row["context_label"]),
        haystack=row["haystack"],
        k=int(row["k_blocks"]) if row["k_blocks"] else None,
        recall=recall,
        statistic=row["statistic"],
        successes=successes_known,
        trials=trials,
        low=low,
        high=high,
    )


def recall_at(k: int, context: int, haystack: str | None = None) -> tuple[list[Recall], list[Recall]]:
    """(measured exactly at this k and context, nearest measured at this k in other contexts), hardest haystack first."""
    rows = [r for r in published_recall() if r.k == k and (haystack is None or r.haystack == haystack)]
    exact = sorted((r for r in rows if r.context == context), key=lambda r: r.recall)
    others = sorted((r for r in rows if r.context != context), key=lambda r: (abs(r.context - context), r.recall))
    return exact, others


def risk_sentence(k: int, context: int, model: str | None = None) -> str:
    """One plain sentence on the recall of block-128 top-k selection at this context: measured there, or else predicted, and by what."""
    exact, others = recall_at(k, context)
    if exact:
        return f"k={k}: needle recall " + "; ".join(_describe(r, with_context=False) for r in exact) + "."
    predicted = _predicted(k, context, model)
    if others:
        return f"k={k}: not measured at this context; {predicted}nearest measured " + "; ".join(_describe(r) for r in others[:2]) + "."
    return f"k={k}: not measured at this k, at any context{'; ' + predicted.removesuffix('; ') if predicted else ''}."


def advice(k: int, context: int, model: str | None = None) -> tuple[str, str]:
    """(whether to turn this budget on, what to add about its recall): of the hardest text, measured there or predicted.

    Where recall is expected below GOOD_RECALL, being faster is no reason: the advice is then conditional.
    """
    exact, _ = recall_at(k, context)
    if exact:
        expected, said = exact[0].recall, f"Needle recall there was {_describe(exact[0], with_context=False)}"
    else:
        predictions = _predictions(k, context, model)
        if not predictions:
            return "turn it on", "Check its recall on your own data first."
        text, low, expected, high = predictions[0]
        said = f"Its recall there is unmeasured, predicted {expected:.2f} [{low:.2f}-{high:.2f}] on {text}"
    if expected < GOOD_RECALL:
        return "turn it on only if your own data shows that it still finds what you need", f"{said}."
    return "turn it on", f"{said}: check yours on your own data first."


def _predictions(k: int, context: int, model: str | None) -> list[tuple[str, float, float, float]]:
    """(haystack, 5 %, median, 95 %) of the packaged recall model, hardest text first; empty without one."""
    from sim.recall import packaged_recall

    recall = packaged_recall()
    if recall is None:
        return []
    known = _known_name(model, recall.offset)
    return sorted(((text, *recall.interval(known, text, context, k)) for text in recall.intercept), key=lambda row: row[2])


def _known_name(model: str | None, known: Iterable[str]) -> str | None:
    wanted = (model or "").casefold().replace("-instruct", "")
    return next((name for name in known if name.casefold().replace("-instruct", "") == wanted), None)


def _predicted(k: int, context: int, model: str | None) -> str:
    """What the packaged recall model says, hardest text first, ending in "; "; empty without a packaged model."""
    from sim.recall import packaged_recall

    recall = packaged_recall()
    if recall is None:
        return ""
    parts = [f"{middle:.2f} [{low:.2f}-{high:.2f}] on {text}" for text, low, middle, high in _predictions(k, context, model)]
    whose = "" if _known_name(model, recall.offset) else " for a model never tried"
    return f"predicted{whose} {', '.join(parts)} ({recall.basis}); "


def _describe(r: Recall, with_context: bool = True) -> str:
    at = f" at {r.context // 1024}K" if with_context else ""
    if r.trials is not None:
        return f"{r.recall:.2f} [{r.low:.2f}-{r.high:.2f}] on {r.haystack}{at} ({r.successes}/{r.trials})"
    kind = "" if r.statistic == "observed" else f" ({r.statistic})"
    return f"{r.recall:.3g} on {r.haystack}{at}{kind}, trial count not stated"
