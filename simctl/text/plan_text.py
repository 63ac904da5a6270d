"""What `simctl plan` prints: the table of choices, the answer in words, and both as plain data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from simctl.text.layout import aligned, fill

if TYPE_CHECKING:
    from sim.plan.front import Point
    from sim.plan.race import Plan, Tried
    from sim.results.chance import Chance
    from simctl.plan_answer import Answer

MOST_ROWS = 12
ANSWERS = 10  # a load shorter than so many answers one after another is too short to say how queues grow


def as_dict(answer: Answer) -> dict[str, Any]:
    """Plain data: the winner, every choice and what was tried of it, and what is around the winner."""
    plan, measurement = answer.plan, answer.measurement

    def one(tried: Tried) -> dict[str, Any]:
        texts = [condition.text for condition in plan.conditions]
        return {
            "choice": plan.choices[tried.choice].name,
            "replicas": tried.replicas,
            "stand_by": plan.choices[tried.choice].spares(tried.replicas),
            "gpus": plan.choices[tried.choice].gpus_of(tried.replicas),
            "nodes": plan.choices[tried.choice].nodes_of(tried.replicas),
            "usd_per_hour": plan.cost(tried),
            **_chance(tried.chance),
            "limit_used": dict(zip(texts, tried.used, strict=True)),
            "missed_share": dict(zip(texts, tried.missed, strict=True)),
            "binding": texts[tried.binding],
        }

    return {
        "slo": [condition.text for condition in plan.conditions],
        **_asked(plan),
        "finished": answer.finished,
        "winner": one(plan.winner) if plan.winner else None,
        "undecided": [one(each) for each in plan.undecided()],
        "nearest": one(nearest) if (nearest := plan.nearest()) and not plan.winner else None,
        **(
            {}
            if answer.quick or not plan.winner
            else {
                "front": [{**_figures(point), **one(point.tried)} for point in answer.front],
                "sustained_requests_per_s": asdict(answer.sustained) if answer.sustained else None,
                "cost_shares": answer.terms,
                "measurement": asdict(measurement) if measurement else None,
            }
        ),
        **({"day": [asdict(hour) for hour in answer.day]} if answer.day else {}),
        "skipped": answer.skipped,
        "choices": [
            {
                "choice": choice.name,
                "usd_per_hour_each": choice.cost(1),
                "out": standing.why or None,
                "replicas_at_least": None if standing.why else standing.fails + 1,
                "tried": [one(each) for _, each in sorted(standing.tried.items())],
            }
            for choice, standing in zip(plan.choices, plan.standings, strict=True)
        ],
    }


def _asked(plan: Plan) -> dict[str, Any]:
    """What was asked, the answer in words, and what of it was measured; of the winner, or of the first choice where there is none."""
    from sim.study.simulate import scope_of

    win = plan.winner
    study = plan.choices[win.choice].study_of(win.replicas) if win else plan.choices[0].study
    return {
        "model": study.deployment.model.name,
        "workload": dict(study.workload.origin),
        "conclusion": conclusion(plan).removeprefix("=> "),
        "rates": study.rates.summary,
        "scope": scope_of(study),
    }


def _figures(point: Point) -> dict[str, float]:
    return {
        "user_tokens_per_s": point.user_tokens_per_s,
        "gpu_tokens_per_s": point.gpu_tokens_per_s,
        "usd_per_million_tokens": point.usd_per_mtok,
    }


def _chance(chance: Chance) -> dict[str, Any]:
    return {
        "chance": chance.value,
        "chance_low": chance.low,
        "chance_high": chance.high,
        "trials": chance.trials,
        "certain": chance.certain,
    }


def print_answer(answer: Answer) -> None:
    """The question, the choices that might be cheapest, those that cannot do, what more money buys, and the answer."""
    plan = answer.plan
    slo = " ".join(condition.text for condition in plan.conditions)
    model = plan.choices[0].study.deployment.model.name
    click.echo(click.style(fill(f"Which deployment of {model} has {slo} at the least cost?"), bold=True))
    inside = [i for i, standing in enumerate(plan.standings) if not standing.why]
    inside.sort(key=lambda i: plan.choices[i].cost(plan.standings[i].fails + 1))
    if inside:
        for line in _named_last(["count", "USD/hour", "chance"], "of", [_row(plan, i) for i in inside[:MOST_ROWS]]):
            click.echo(line)
    if len(inside) > MOST_ROWS:
        click.echo(f"and {len(inside) - MOST_ROWS} dearer ones")
    reasons: dict[str, list[str]] = {}
    for name, why in answer.skipped.items():
        reasons.setdefault(why, []).append(name)
    for choice, standing in zip(plan.choices, plan.standings, strict=True):
        if standing.why:
            reasons.setdefault(standing.why, []).append(choice.name)
    for why, names in reasons.items():
        click.echo(fill(f"out: {'; '.join(names)}: {why}", later="  "))
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
    click.echo(fill(conclusion(plan) + _around(answer) + _whole_day(answer), later="   "))


def _whole_day(answer: Answer) -> str:
    """What following the day costs, and what the busiest hour's count costs all day."""
    if not answer.day:
        return ""
    hours, gpus = len(answer.day), sum(hour.gpus for hour in answer.day)
    usd, most = sum(hour.usd for hour in answer.day), max(answer.day, key=lambda hour: hour.usd)
    return (
        f" Hour by hour the day takes {gpus} GPU-hours, {usd:.0f} USD; the busiest hour's count all day {most.gpus * hours} GPU-hours, "
        f"{most.usd * hours:.0f} USD."
    )


def _point(plan: Plan, point: Point) -> list[str]:
    chance = f"{point.tried.chance.value:.2f}"
    figures = (point.usd_per_mtok, point.user_tokens_per_s, point.gpu_tokens_per_s)
    name = named(plan, point.tried)
    return [f"{point.usd_per_hour:.2f}", f"{figures[0]:.3g}", f"{figures[1]:.0f}", f"{figures[2]:.0f}", chance, name]


def _around(answer: Answer) -> str:
    """The highest rate, the binding term, and what to measure, in words."""
    if answer.quick or answer.plan.winner is None:
        return ""
    texts = []
    if answer.sustained:
        best = answer.sustained
        texts.append(
            f"It sustains {best.per_s:.3g} requests/s ({best.low:.3g}-{best.high:.3g}) where {best.asked_per_s:.3g} are asked for."
        )
    if answer.terms:
        from sim.cost.step_time import MEANING

        term, share = next(iter(answer.terms.items()))
        texts.append(f"{MEANING.get(term, term).capitalize()} take {100 * share:.0f} % of its busy time.")
    if not answer.finished:
        texts.append("Stopped before the rest was known.")
    elif (found := answer.measurement) is not None:
        texts.append(
            f"Worth measuring: {found.what}. That would save {found.usd_per_hour:.2f} USD/hour at most in the mean; with a chance of "
            f"{found.chance:.2f} it shows a cheaper one to be enough."
        )
    else:
        texts.append("Worth measuring: none; no rates that are likely would change this.")
    return " " + " ".join(texts)


def _row(plan: Plan, place: int) -> list[str]:
    """A choice with the least count that it may still need, and what is known of that."""
    choice, standing = plan.choices[place], plan.standings[place]
    count = standing.fails + 1
    tried = standing.tried.get(count)
    least = "" if tried and tried.chance.certain else ">= "
    chance = f"{tried.chance.value:.2f} ({tried.chance.low:.2f}-{tried.chance.high:.2f})" if tried else "not tried"
    return [f"{least}{count}", f"{least}{choice.cost(count):.2f}", chance, choice.name]


def _named_last(header: list[str], name: str, rows: list[list[str]]) -> list[str]:
    """Columns flush right and, behind them, names however long."""
    figures = aligned(header, [row[:-1] for row in rows], left=0)
    return [f"{line}  {each}" for line, each in zip(figures, [name, *(row[-1] for row in rows)], strict=True)]


def named(plan: Plan, tried: Tried) -> str:
    """A count of a choice in words."""
    choice = plan.choices[tried.choice]
    units = (
        f"{tried.replicas} times {choice.name}" if choice.study and choice.study.fleet else f"{tried.replicas} replicas of {choice.name}"
    )
    spares = choice.spares(tried.replicas)
    return (units if tried.replicas > 1 else choice.name) + (f" and {spares} standing by" if spares else "")


def _short(plan: Plan, win: Tried) -> str:
    """A warning where the load is over before queues can build up."""
    choice = plan.choices[win.choice]
    if choice.study is None or choice.study.workload.max_concurrency is not None:
        return ""
    trace = choice.study.workload.trace
    lasts = float(trace.arrival_s[-1] - trace.arrival_s[0])
    answer = float(trace.output_tokens.mean()) / max(win.trials[0].user_tokens_per_s, 1e-9)
    if not 0.0 < lasts < ANSWERS * answer:
        return ""
    return f" The load lasts {lasts:.0f} s and an answer {answer:.1f} s: a longer one (--num-prompts) may show longer queues."


def conclusion(plan: Plan) -> str:
    """The answer in words."""
    slo = ", ".join(condition.text for condition in plan.conditions)
    open_ = "; ".join(f"{named(plan, each)}, {plan.cost(each):.2f} USD/hour, {each.chance}" for each in plan.undecided())
    if (win := plan.winner) is not None:
        gpus = plan.choices[win.choice].gpus_of(win.replicas)
        nodes = plan.choices[win.choice].nodes_of(win.replicas)
        placed = f" on {nodes} nodes" if nodes > 1 else ""
        margin = 100 * (1 - win.used[win.binding])
        maybe = f" Cheaper, and undecided at 95 %: {open_}." if open_ else ""
        return (
            f"=> {named(plan, win)} ({gpus} GPU{'s' if gpus > 1 else ''}{placed}, {plan.cost(win):.2f} USD/hour) "
            f"meets {slo} with a chance of "
            f"{win.chance}. "
            f"{plan.conditions[win.binding].text} binds, with {margin:.0f} % to spare in the mean.{maybe}{_short(plan, win)}"
        )
    if not plan.finished:
        best = f" Best so far: {named(plan, plan.best)}, {plan.cost(plan.best):.2f} USD/hour, {plan.best.chance}." if plan.best else ""
        return f"=> stopped before the answer was certain.{best}"
    nearest = plan.nearest()
    if nearest is None:
        slow = [i for i, standing in enumerate(plan.standings) if standing.alone_s]
        first = min(slow, key=lambda i: plan.standings[i].alone_s, default=None)
        idle = (
            ""
            if first is None
            else f" Nearest: {plan.choices[first].name}, where a token takes {1e3 * plan.standings[first].alone_s:.3g} ms."
        )
        return f"=> none can meet {slo}.{idle}"
    binding = nearest.binding
    maybe = f" Undecided at 95 %: {open_}." if open_ else ""
    return (
        f"=> none meets {slo} with a chance of at least 95 %. Nearest: {named(plan, nearest)}, with a chance of {nearest.chance}. "
        f"{plan.conditions[binding].text} is missed in {100 * nearest.missed[binding]:.0f} % of the trials; "
        f"in the mean {100 * nearest.used[binding]:.0f} % of its limit are used.{maybe}"
    )
