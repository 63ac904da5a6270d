"""Report of cards side by side: what each would buy, and its curve of speed against throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number

MOST_CARDS = 8


def part_of(found: Mapping[str, Any]) -> ReportPart:
    """The report of what `simctl plan --compare --json` prints. Raises KeyError, TypeError or ValueError for anything else."""
    slo = ", ".join(cut(each, 60) for each in found["slo"][:20])
    model, cards = cut(found["model"], 60), [card for card in found["cards"][:MOST_CARDS] if card.get("curve")]
    workload = [(cut(name, 40).replace("_", " "), cut(value, 80)) for name, value in list(dict(found["workload"]).items())[:30]]
    heads = [
        Headline(
            cut(card["gpu"], 40),
            number(card["usd_per_hour"], "USD/h"),
            ((f"{int(card['replicas'])} of {cut(card['choice'], 60)}", f"chance {number(card['chance'])}"),),
        )
        for card in cards
    ]
    none = [f"None on {cut(card['gpu'], 40)}: {cut(card['why'], 200)}." for card in found["cards"][:MOST_CARDS] if card.get("why")]
    return ReportPart(
        f"Cards side by side: {model}, {slo}",
        f"Which card serves {model} within {slo} at the least cost?",
        workload,
        heads,
        none,
        [_picture(cards)] if cards else [],
        [cut(found["conclusion"], 1500)],
    )


def _picture(cards: list[Mapping[str, Any]]) -> Picture:
    rows: list[charts.Row] = [
        {"x": float(x), "y": float(y), "series": cut(card["gpu"], 40), "order": i}
        for card in cards
        for i, (x, y) in enumerate(card["curve"][:40])
    ]
    names = list(dict.fromkeys(row["series"] for row in rows))
    best = max(cards, key=lambda card: float(card["curve"][-1][1]))
    reading = (
        f"From one user (right) to a full replica (left). A full replica on {cut(best['gpu'], 40)} gives most per GPU, "
        f"{number(best['curve'][-1][1])} tokens/s at {number(best['curve'][-1][0])} a user."
    )
    x = charts.axis("tokens/s of one user", log=[row["x"] for row in rows])
    y = charts.axis("tokens/s per GPU", log=[row["y"] for row in rows])
    spec = charts.scatter(rows, x, y, names, (("series", "card"), ("x", "tokens/s of one user"), ("y", "tokens/s per GPU")), line=True)
    head = ("card", "USD/h", "GPUs", "chance", "tok/s/user", "tok/s/GPU")
    table = [
        [cut(card["gpu"], 40), number(card["usd_per_hour"]), str(int(card["gpus"])), number(card["chance"]),
         number(card["user_tokens_per_s"]), number(card["gpu_tokens_per_s"])]
        for card in cards
    ]  # fmt: skip
    return Picture("cards", "How much does each card give, at which speed?", reading, spec, head, table)
