"""Report of a capacity plan: the answer, price against speed, what was tried, cost by term, and every hour of a day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simctl.report import charts
from simctl.report.page import ALL_MEASURED, Headline, Picture, ReportPart, cut, number, span, thinned

MOST_DOTS = 400  # dots
Plan = Mapping[str, Any]


def part_of(found: Plan) -> ReportPart:
    """The report of what `simctl plan --json` prints. Raises KeyError, TypeError or ValueError for anything else."""
    slo = ", ".join(cut(each, 60) for each in found["slo"][:20])
    win = found["winner"]
    workload = [(cut(name, 40).replace("_", " "), cut(value, 80)) for name, value in list(dict(found.get("workload", {})).items())[:30]]
    pictures = [*_front(found), *_candidates(found), *_used(found), *_terms(found), *_day(found)]
    model = cut(found.get("model", "this model"), 60)
    out = [(name, why) for name, why in dict(found.get("skipped", {})).items()] + [
        (each["choice"], each["out"]) for each in found["choices"] if each.get("out")
    ]
    texts = [("Choices that cannot do", "\n".join(f"{cut(name, 80)}: {cut(why, 200)}" for name, why in out[:100]))] if out else []
    scope = [
        f"Rates of the winner: {cut(found['rates'], 500)}." if "rates" in found else "",
        *(cut(note, 400) for note in list(found.get("scope", []))[:10]),
    ]
    if "scope" in found and not found["scope"]:
        scope.append(ALL_MEASURED)
    return ReportPart(
        f"Plan: {model}, {slo}",
        f"Which deployment of {model} has {slo} at the least cost?",
        workload,
        _headlines(found) if win else [Headline("Deployments that certainly meet it", "0"), *_nearest(found)],
        scope,
        pictures,
        [cut(found["conclusion"], 1500)] * ("conclusion" in found) + [cut(each, 400) for each in list(found.get("reasons") or [])[:3]],
        texts,
    )


def _headlines(found: Plan) -> list[Headline]:
    win, best = found["winner"], found.get("sustained_requests_per_s")
    heads = [
        Headline("Cheapest", f"{int(win['replicas'])} of {cut(win['choice'], 80)}"),
        Headline("Cost", number(win["usd_per_hour"], "USD/h")),
        Headline("GPUs", str(int(win["gpus"]))),
        Headline("Chance to meet it", number(win["chance"]), (("over trials, 95 %", span(win["chance_low"], win["chance_high"])),)),
    ]
    if cost := dict(found.get("usd_per_mtok") or {}):
        kinds = [f"{cut(kind, 20)} {number(usd)}" for kind, usd in list(cost.items())[:3]]
        heads.append(Headline("USD per million tokens", ", ".join(kinds)))
    if best:
        heads.append(Headline("Sustains", number(best["per_s"], "req/s"), (("rates and noise", span(best["low"], best["high"])),)))
    return heads


def _nearest(found: Plan) -> list[Headline]:
    near = found.get("nearest")
    return (
        [Headline("Nearest", f"{int(near['replicas'])} of {cut(near['choice'], 80)}"), Headline("Its chance", number(near["chance"]))]
        if near
        else []
    )


def _name(each: Mapping[str, Any]) -> str:
    return f"{int(each['replicas'])} of {cut(each['choice'], 60)}"


def _front(found: Plan) -> Iterator[Picture]:
    """Price of a million tokens against the speed that a user sees, of deployments that nothing beats in both."""
    rows: list[charts.Row] = [
        {"x": float(each["user_tokens_per_s"]), "y": float(each["usd_per_million_tokens"]), "series": cut(each["choice"], 40),
         "name": _name(each), "usd": float(each["usd_per_hour"]), "gpu": float(each["gpu_tokens_per_s"]), "chance": float(each["chance"])}
        for each in found.get("front", [])[:60]
    ]  # fmt: skip
    if not rows:
        return
    names = list(dict.fromkeys(row["series"] for row in rows))[: len(charts.COLOURS)]
    rows = [row if row["series"] in names else row | {"series": names[-1]} for row in rows]
    fast, cheap = max(rows, key=lambda row: row["x"]), min(rows, key=lambda row: row["y"])
    reading = (
        f"{cheap['name']} is cheapest per token, {number(cheap['y'], 'USD')} a million at {number(cheap['x'])} tokens/s per user; "
        f"{fast['name']} is fastest, {number(fast['x'])} tokens/s at {number(fast['y'], 'USD')}."
    )
    tooltip = (("name", "deployment"), ("x", "tokens/s per user"), ("y", "USD per million tokens"), ("usd", "USD/h"),
               ("gpu", "tokens/s per GPU"),               ("chance", "chance"))  # fmt: skip
    x, y = charts.axis("tokens/s per user"), charts.axis("USD per million tokens", zero=True, format=".3~g")
    spec = charts.scatter(rows, x, y, names, tooltip, line=True)
    table = [
        [row["name"], number(row["usd"]), number(row["y"]), number(row["x"]), number(row["gpu"]), number(row["chance"])] for row in rows
    ]
    head = ("deployment", "USD/h", "USD/Mtok", "tok/s/user", "tok/s/GPU", "chance")
    yield Picture("front", "What does more money buy?", reading, spec, head, table)


def _candidates(found: Plan) -> Iterator[Picture]:
    """Every count that was tried: its chance over its cost."""
    candidate = [each for choice in found["choices"] for each in choice["tried"]]
    rows = [
        {"x": float(each["usd_per_hour"]), "y": 100 * float(each["chance"]), "low": 100 * float(each["chance_low"]), "name": _name(each),
         "high": 100 * float(each["chance_high"]), "n": int(each["trials"]), "series": _verdict(each)}
        for each in thinned(candidate, MOST_DOTS)
    ]  # fmt: skip
    if not rows:
        return
    names = [name for name in ("meets it", "fails", "undecided") if any(row["series"] == name for row in rows)]
    count = {name: sum(row["series"] == name for row in rows) for name in ("meets it", "fails", "undecided")}
    reading = (
        f"Deployments tried: {len(rows)}. Certain to meet it: {count['meets it']}; certain to fail: {count['fails']}; undecided: "
        f"{count['undecided']}. Bars are 95 % intervals over trials."
    )
    tooltip = (("name", "deployment"), ("x", "USD/h"), ("y", "chance (%)"), ("low", "95 % from"), ("high", "to"), ("n", "trials"))
    y = charts.axis("chance to meet it all (%)", zero=True, scale={"domain": [0, 100]})
    spec = charts.scatter(rows, charts.axis("USD per hour", zero=True, format=".3~g"), y, names, tooltip)
    table = [[row["name"], number(row["x"]), number(row["y"], "%"), span(row["low"], row["high"]), str(row["n"])] for row in thinned(rows)]
    yield Picture("tried", "How certain is it, and what else was tried?", reading, spec,
                  ("deployment", "USD/h", "chance", "95 %", "trials"), table)  # fmt: skip


def _verdict(each: Mapping[str, Any]) -> str:
    return "undecided" if each["certain"] is None else "meets it" if each["certain"] else "fails"


def _used(found: Plan) -> Iterator[Picture]:
    """Share of each limit that the answer uses."""
    each = found["winner"] or found.get("nearest")
    if not each or not each.get("limit_used"):
        return
    rows: list[charts.Row] = [{"name": cut(name, 30), "x": 100 * float(used)} for name, used in list(each["limit_used"].items())[:20]]
    binding = max(rows, key=lambda row: row["x"])
    reading = f"{binding['name']} binds: {_name(each)} uses {number(binding['x'], '%')} of that limit in the mean of the trials."
    spec = charts.bars(rows, charts.axis("share of the limit used (%)", zero=True))
    yield Picture(
        "limits", "Which condition binds?", reading, spec, ("condition", "used"), [[row["name"], number(row["x"], "%")] for row in rows]
    )


def _terms(found: Plan) -> Iterator[Picture]:
    rows: list[charts.Row] = [
        {"name": cut(name, 40), "x": 100 * float(share)}
        for name, share in list((found.get("cost_shares") or {}).items())[:12]
        if share >= 5e-4
    ]  # fmt: skip
    if rows:
        reading = f"{rows[0]['name'].capitalize()} take {number(rows[0]['x'], '%')} of the winner's busy time."
        spec = charts.bars(rows, charts.axis("share of busy time (%)", zero=True))
        yield Picture(
            "cost_by_term",
            "What does the time go into?",
            reading,
            spec,
            ("term", "share"),
            [[r["name"], number(r["x"], "%")] for r in rows],
        )


def _day(found: Plan) -> Iterator[Picture]:
    """GPUs by hour of the day, beside the rate."""
    hours = found.get("day", [])[:48]
    if not hours:
        return
    rows = [{"x": i, "y": float(each["gpus"]), "series": "GPUs"} for i, each in enumerate(hours)]
    rows += [{"x": i, "y": float(each["requests_per_s"]), "series": "requests/s"} for i, each in enumerate(hours)]
    most, least = max(float(h["gpus"]) for h in hours), min(float(h["gpus"]) for h in hours)
    total = sum(float(h["usd"]) for h in hours)
    reading = f"Between {number(least)} and {number(most)} GPUs are needed, hour by hour; the whole day costs {number(total, 'USD')}."
    spec = charts.lines(
        rows, charts.axis("hour of the day"), charts.axis("GPUs; requests per second", zero=True), ["GPUs", "requests/s"], step=True
    )
    yield Picture("day", "How many GPUs does each hour need?", reading, spec, ("hour", "requests/s", "GPUs", "USD/h"),
                  [[str(i), number(h["requests_per_s"]), number(h["gpus"]), number(h["usd"])] for i, h in enumerate(hours)])  # fmt: skip
