"""Text of `simctl plan`: the table of choices, and the answer in words."""

from __future__ import annotations

from itertools import zip_longest

import click

from sim.planning.answer import PlanAnswer
from sim.planning.front import Point
from sim.planning.growth import Month
from sim.planning.race import RaceResult
from sim.planning.words import conclusion, named
from sim.results.power import power_words
from sim.specs.api_prices import api_price
from simctl.text.heading import model_title
from simctl.text.layout import aligned, fill

MOST_ROWS = 12
MOST_SAME = 3  # equal choices that are named


def print_answer(answer: PlanAnswer) -> None:
    """The question, the choices that might be cheapest, those that cannot do, what more money buys, and the answer."""
    plan = answer.plan
    slo = " ".join(condition.text for condition in plan.conditions)
    model = model_title(plan.choices[0].study.deployment.model.name)
    click.echo(click.style(fill(f"Which deployment of {model} has {slo} at the least cost?"), bold=True))
    inside = [i for i, state in enumerate(plan.states) if state.open]
    inside.sort(key=lambda i: plan.choices[i].cost(plan.states[i].fails + 1))
    if inside:
        for line in _named_last(["count", "USD/hour", "chance"], "of", [_row(plan, i) for i in inside[:MOST_ROWS]]):
            click.echo(line)
    if len(inside) > MOST_ROWS:
        click.echo(f"and {len(inside) - MOST_ROWS} dearer ones")
    reasons: dict[str, list[str]] = {}
    for name, why in answer.skipped.items():
        reasons.setdefault(why, []).append(name)
    for choice, state in zip(plan.choices, plan.states, strict=True):
        if state.why:
            reasons.setdefault(state.why, []).append(choice.name)
    for why, names in reasons.items():
        click.echo(fill(f"out: {'; '.join(names)}: {why}", later="  "))
    if same := [choice.name for choice, state in zip(plan.choices, plan.states, strict=True) if state.same_as is not None]:
        more = f"; and {len(same) - MOST_SAME} more" if len(same) > MOST_SAME else ""
        click.echo(fill(f"the same in every trial as one of these: {'; '.join(same[:MOST_SAME])}{more}", later="  "))
    if len(answer.front) > 1:
        click.echo("\nWhat more money buys")
        header = ["USD/hour", "USD/Mtok", "tok/s/user", "tok/s/GPU", "chance"]
        for line in _named_last(header, "deployment", [_point(plan, point) for point in answer.front]):
            click.echo(line)
        click.echo()
    if answer.day:
        click.echo("\nHour by hour, each by itself at its mean rate")
        rows = [[str(i), f"{hour.requests_per_s:.3g}", str(hour.count), f"{hour.usd:.2f}"] for i, hour in enumerate(answer.day)]
        half = -(-len(rows) // 2)
        header = ["hour", "requests/s", "count", "USD/hour"]
        sides = [aligned(header, part, left=0) for part in (rows[:half], rows[half:])]
        for left, right in zip_longest(*sides, fillvalue=""):
            click.echo(f"{left}      {right}".rstrip())
        click.echo()
    if answer.year:
        click.echo("\nMonth by month")
        rows = [_month(i, month) for i, month in enumerate(answer.year.months, 1)]
        for line in aligned(["month", "load", "count", "GPUs", "USD/hour"], rows, left=0):
            click.echo(line)
        click.echo()
    year = f" {answer.year.text()}" if answer.year else ""
    click.echo(fill(conclusion(plan) + _around(answer) + _whole_day(answer) + year, later="   "))


def _month(number: int, month: Month) -> list[str]:
    needs = ["too few", "", ""] if month.count is None else [str(month.count), str(month.gpus), f"{month.usd_per_hour:.2f}"]
    return [str(number), f"{month.times:.2f} x", *needs]


def _whole_day(answer: PlanAnswer) -> str:
    """Cost of following the day, and of the busiest hour's count all day."""
    if not answer.day:
        return ""
    hours, gpus = len(answer.day), sum(hour.gpus for hour in answer.day)
    usd, most = sum(hour.usd for hour in answer.day), max(answer.day, key=lambda hour: hour.usd)
    return (
        f" Hour by hour the day takes {gpus} GPU-hours, {usd:.0f} USD; the busiest hour's count all day {most.gpus * hours} GPU-hours, "
        f"{most.usd * hours:.0f} USD. "
        f"Perfect scaling would take {sum(hour.least_gpus for hour in answer.day):.0f} GPU-hours, and none takes fewer."
    )


def _point(plan: RaceResult, point: Point) -> list[str]:
    chance = f"{point.candidate.chance.value:.2f}"
    figures = (point.usd_per_mtok, point.user_tokens_per_s, point.gpu_tokens_per_s)
    name = named(plan, point.candidate)
    return [f"{point.usd_per_hour:.2f}", f"{figures[0]:.3g}", f"{figures[1]:.0f}", f"{figures[2]:.0f}", chance, name]


def _around(answer: PlanAnswer) -> str:
    """The highest rate, the binding term, and what to measure, in words."""
    if answer.quick or answer.plan.winner is None:
        return ""
    texts = [*answer.reasons]
    if answer.sustained:
        best = answer.sustained
        texts.append(
            f"It sustains {best.per_s:.3g} requests/s ({best.low:.3g}-{best.high:.3g}) where {best.offered_per_s:.3g} are asked for."
        )
    if answer.terms:
        term, share = next(iter(answer.terms.items()))
        texts.append(f"{term.capitalize()} take {100 * share:.0f} % of its busy time.")
    if answer.power:
        texts.append(f"{power_words(answer.power)}.")
    if answer.tokens:
        texts.append(f"{answer.tokens.text()}.")
        if (api := api_price(answer.plan.choices[answer.plan.winner.choice].study.deployment.model.name)) is not None:
            texts.append(f"{api.text()}.")
    if answer.ended:
        texts.append(f"{answer.ended.capitalize()} before the rest was known.")
    elif (found := answer.measurement) is not None:
        texts.append(
            f"Worth measuring: {found.what}. That would save {found.usd_per_hour:.2f} USD/hour at most in the mean; with a chance of "
            f"{found.chance:.2f} it shows a cheaper one to be enough."
        )
    else:
        texts.append("Worth measuring: none; no rates that are likely would change this.")
    return " " + " ".join(texts)


def _row(plan: RaceResult, place: int) -> list[str]:
    """A choice with the least count that it may still need, and what is known of that."""
    choice, state = plan.choices[place], plan.states[place]
    count = state.fails + 1
    candidate = state.candidates.get(count)
    c = candidate.chance if candidate and candidate.trials else None
    least = "" if candidate and candidate.chance.certain else ">= "
    chance = f"{c.value:.2f} ({c.low:.2f}-{c.high:.2f})" if c else "not tried"
    return [f"{least}{count}", f"{least}{choice.cost(count):.2f}", chance, choice.name]


def _named_last(header: list[str], name: str, rows: list[list[str]]) -> list[str]:
    """Columns flush right and, behind them, names however long."""
    figures = aligned(header, [row[:-1] for row in rows], left=0)
    return [f"{line}  {each}" for line, each in zip(figures, [name, *(row[-1] for row in rows)], strict=True)]
