"""The answer of a plan in words."""

from __future__ import annotations

from sim.planning.race import RaceResult, Tried
from sim.study.lasting import can_last
from sim.workload.workload import Workload

ANSWERS = 10  # a load shorter than so many answers one after another is too short to say how queues grow


def named(plan: RaceResult, tried: Tried, fewest: int | None = None) -> str:
    """A count of a choice in words; with `fewest` the margin from there up."""
    choice = plan.choices[tried.choice]
    count = str(tried.replicas) if fewest in (None, tried.replicas) else f"{fewest} to {tried.replicas}"
    units = f"{count} times {choice.name}" if len(choice.parts) > 1 else f"{count} replicas of {choice.name}"
    spares = choice.spares(tried.replicas)
    return (units if tried.replicas > 1 else choice.name) + (f" and {spares} standing by" if spares else "")


def for_how_long(workload: Workload, for_s: float | None) -> str:
    """How long a plan's load lasts, in words; empty for one that lasts as long as it does."""
    if for_s is not None:
        return f"for {for_s / 3600:g} h" if for_s >= 3600 else f"for {for_s:g} s"
    return "for good" if can_last(workload) else ""


def _short(plan: RaceResult, win: Tried) -> str:
    """A warning where the load is over before queues can build up."""
    if plan.lasts or plan.choices[win.choice].study is None:  # races of made-up trials have none
        return ""
    trace = plan.choices[win.choice].study.workload.trace
    lasts = float(trace.arrival_s[-1] - trace.arrival_s[0])
    answer = float(trace.output_tokens.mean()) / max(win.trials[0].user_tokens_per_s, 1e-9)
    if not 0.0 < lasts < ANSWERS * answer:
        return ""
    return f" The load lasts {lasts:.0f} s and an answer {answer:.1f} s: a longer one may show longer queues."


def _open(plan: RaceResult, but: int | None = None) -> str:
    """Counts that are undecided, but those of one choice."""
    each = [tried for tried in plan.undecided() if tried.choice != but]
    return "; ".join(f"{named(plan, tried)}, {plan.cost(tried):.2f} USD/hour, {tried.chance}" for tried in each)


def _found(plan: RaceResult, win: Tried) -> str:
    """The winner, with the margin of its count."""
    slo = ", ".join(condition.text for condition in plan.conditions)
    gpus, nodes = (of(win.replicas) for of in (plan.choices[win.choice].gpus_of, plan.choices[win.choice].nodes_of))
    placed = f"{gpus} GPU{'s' if gpus > 1 else ''}{f' on {nodes} nodes' if nodes > 1 else ''}, {plan.cost(win):.2f} USD/hour"
    low, lasts = plan.fewest(win), f" {plan.lasts}" if plan.lasts else ""
    if low is win:
        text = f"=> {named(plan, win)} ({placed}) meets {slo}{lasts} with a chance of {win.chance}."
    else:
        text = (
            f"=> {named(plan, win, low.replicas)}: {win.replicas} ({placed}) meet {slo}{lasts} with a chance of {win.chance}; "
            f"{low.replicas} with {low.chance}, undecided at 95 %."
        )
    if others := _open(plan, win.choice):
        text += f" Cheaper, and undecided at 95 %: {others}."
    if plan.ended:
        text += f" {plan.ended.capitalize()}: more trials may find a cheaper one."
    margin = 100 * (1 - win.used[win.binding])
    return f"{text} {plan.conditions[win.binding].text} binds, with {margin:.0f} % to spare in the mean.{_short(plan, win)}"


def conclusion(plan: RaceResult) -> str:
    """The answer in words."""
    slo, lasts = ", ".join(condition.text for condition in plan.conditions), f" {plan.lasts}" if plan.lasts else ""
    if plan.winner is not None:
        return _found(plan, plan.winner)
    if plan.ended:
        best = ""
        if plan.best:
            low = plan.fewest(plan.best).replicas
            best = f" Best so far: {named(plan, plan.best, low)}, {plan.cost(plan.best):.2f} USD/hour, {plan.best.chance}."
        return f"=> {plan.ended} before the answer was certain.{best}"
    nearest = plan.nearest()
    if nearest is None:
        slow = [i for i, standing in enumerate(plan.standings) if standing.alone_s]
        first = min(slow, key=lambda i: plan.standings[i].alone_s, default=None)
        alone = "" if first is None else f"{plan.choices[first].name}, where a token takes {1e3 * plan.standings[first].alone_s:.3g} ms"
        return f"=> none can meet {slo}.{f' Nearest: {alone}.' if alone else ''}"
    binding, queue = nearest.binding, ""
    if grows := sum(trial.grows for trial in nearest.trials):
        queue = f"; the queue grows without end in {100 * grows / len(nearest.trials):.0f} %"
    maybe = f" Undecided at 95 %: {open_}." if (open_ := _open(plan)) else ""
    return (
        f"=> none meets {slo}{lasts} with a chance of at least 95 %. Nearest: {named(plan, nearest)}, with a chance of {nearest.chance}. "
        f"{plan.conditions[binding].text} is missed in {100 * nearest.missed[binding]:.0f} % of the trials{queue}; "
        f"in the mean {100 * nearest.used[binding]:.0f} % of its limit are used.{maybe}"
    )
