"""The answer of a plan in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sim.planning.choices import Choice
from sim.planning.growth import MONTH_H
from sim.planning.race import Candidate, RaceResult
from sim.planning.trials import Trial
from sim.study.deployment import Deployment
from sim.study.lasting import can_last
from sim.study.studied import Study
from sim.workload.workload import Workload

MORE = 1.2  # times the load asked for
NAMED = 3  # undecided choices
ANSWERS = 10  # a load shorter than so many answers one after another is too short to say how queues grow


def named(plan: RaceResult, candidate: Candidate, fewest: int | None = None) -> str:
    """A count of a choice in words; with `fewest` the margin from there up."""
    choice = plan.choices[candidate.choice]
    count = str(candidate.replicas) if fewest in (None, candidate.replicas) else f"{fewest} to {candidate.replicas}"
    units = f"{count} times {choice.name}" if len(choice.parts) > 1 else f"{count} replicas of {choice.name}"
    spares = choice.spares(candidate.replicas)
    return (units if candidate.replicas > 1 else choice.name) + (f" and {spares} standing by" if spares else "")


def for_how_long(workload: Workload, for_s: float | None) -> str:
    """Length of a plan's load in words; empty for one that lasts as long as it does."""
    if for_s is not None:
        return f"for {for_s / 3600:g} h" if for_s >= 3600 else f"for {for_s:g} s"
    return "for good" if can_last(workload) else ""


def _short(plan: RaceResult, win: Candidate) -> str:
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
    """Counts that are undecided and have met it, the likeliest first, but those of one choice; cheaper ones only, where one is the best."""
    limit = math.inf if plan.best is None or but is None else plan.cost(plan.best)
    each = [one for one in plan.undecided() if one.choice != but and plan.cost(one) < limit and one.chance.met]
    likeliest = sorted(each, key=lambda candidate: -candidate.chance.value)[:NAMED]
    return "; ".join(f"{named(plan, candidate)}, {plan.cost(candidate):.2f} USD/hour, {candidate.chance}" for candidate in likeliest)


def _found(plan: RaceResult, win: Candidate) -> str:
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
    text += _host_ram(plan, win)
    return f"{text} {plan.conditions[win.binding].text} binds, with {margin:.0f} % to spare in the mean.{_short(plan, win)}"


def _host_ram(plan: RaceResult, win: Candidate) -> str:
    """What the winner's host RAM for KV is worth against each smaller one of the same deployment, by what both cost at least."""
    mine = plan.choices[win.choice]
    served = _alone(mine.study)
    if served is None or not (size := served.limits.kv_offloading_size):
        return ""
    text = ""
    for choice, state in zip(plan.choices, plan.states, strict=True):
        d = _alone(choice.study)
        if d is None or not state.open or choice.cost(1) != mine.cost(1):
            continue
        less, saved = d.limits.kv_offloading_size or 0.0, choice.cost(state.fails + 1) - plan.cost(win)
        if less < size and saved > 0 and replace(d, limits=replace(d.limits, kv_offloading_size=size)) == served:
            per_node = saved * MONTH_H / mine.nodes_of(win.replicas)
            text += f" {size:g} GiB of host RAM a replica in place of {less:g} are worth {per_node:,.0f} USD a month per node or more."
    return text


def _alone(study: Study | None) -> Deployment | None:
    """The deployment of a study of equal replicas; None of pools, and of races of made-up trials."""
    return None if study is None or study.fleet is not None else study.deployment


def _so_far(plan: RaceResult) -> str:
    """What is known where trials ended early: the least and the most of one choice, and what is cheaper and open."""
    best, nearest = plan.best, plan.nearest()
    if nearest is None:
        return ""
    if best is None:
        likeliest = f"{named(plan, nearest)}, {plan.cost(nearest):.2f} USD/hour, does with a chance of {nearest.chance}"
        return f" No count was tried often enough to be named: the likeliest, {likeliest}."
    low, text = plan.at_least(best), f" Buy {named(plan, best)}, {plan.cost(best):.2f} USD/hour: it does with a chance of {best.chance}."
    if low < best.replicas:
        text = f" At least {low}, at most {best.replicas}." + text
    return text + (f" Cheaper, and undecided at 95 %: {open_}." if (open_ := _open(plan, best.choice)) else "")


def conclusion(plan: RaceResult) -> str:
    """The answer in words."""
    slo, lasts = ", ".join(condition.text for condition in plan.conditions), f" {plan.lasts}" if plan.lasts else ""
    if plan.winner is not None:
        return _found(plan, plan.winner)
    if plan.ended:
        return f"=> {plan.ended} before the answer was certain.{_so_far(plan)}"
    nearest = plan.nearest()
    if nearest is None:
        slow = [i for i, state in enumerate(plan.states) if state.unloaded_s]
        first = min(slow, key=lambda i: plan.states[i].unloaded_s, default=None)
        fastest = "" if first is None else f"{plan.choices[first].name}, where a token takes {1e3 * plan.states[first].unloaded_s:.3g} ms"
        return f"=> none can meet {slo}.{f' Nearest: {fastest}.' if fastest else ''}"
    binding, queue = nearest.binding, ""
    if grows := sum(trial.grows for trial in nearest.trials):
        queue = f"; the queue grows without end in {100 * grows / len(nearest.trials):.0f} %"
    maybe = f" Undecided at 95 %: {open_}." if (open_ := _open(plan)) else ""
    return (
        f"=> none meets {slo}{lasts} with a chance of at least 95 %. Nearest: {named(plan, nearest)}, with a chance of {nearest.chance}. "
        f"{plan.conditions[binding].text} is missed in {100 * nearest.missed[binding]:.0f} % of the trials{queue}; "
        f"in the mean {100 * nearest.used[binding]:.0f} % of its limit are used.{maybe}"
    )


def reasons(plan: RaceResult, now: Sequence[Trial], more: Sequence[Trial]) -> list[str]:
    """Why not cheaper, why not another GPU, and what if the load were 20 % more: a sentence each, of paired trials. `now` and `more` are
    the same trials of the winner at the load asked for and at that.
    """
    win, found = plan.winner, []
    if win is None:
        return []
    misses = [each for each in plan.candidates() if each.chance.certain is False and plan.cost(each) < plan.cost(win)]
    if misses:
        near = max(misses, key=lambda each: (each.chance.value, plan.cost(each)))
        share, grows = near.missed[near.binding], sum(trial.grows for trial in near.trials) / len(near.trials)
        queue = f", and its queue grows without end in {100 * grows:.0f} %" if grows else ""
        found.append(
            f"Why not cheaper: {named(plan, near)} ({plan.cost(near):.2f} USD/hour) misses {plan.conditions[near.binding].text} in "
            f"{100 * share:.0f} % of {len(near.trials)} trials{queue}."
        )
    mine = plan.choices[win.choice].study.deployment.gpu.name
    others = [
        (choice.cost(state.fails + 1), choice.name)
        for choice, state in zip(plan.choices, plan.states, strict=True)
        if state.open and choice.study.deployment.gpu.name != mine
    ]
    if others:
        cost, name = min(others)
        found.append(f"Why not another GPU: {name} costs {cost:.2f} USD/hour or more.")
    met, then = (sum(trial.met for trial in each) for each in (now, more))
    found.append(f"With {100 * (MORE - 1):.0f} % more requests {then} of {len(more)} trials meet it, of which {met} do now.")
    return found


def left_by_a_node(choice: Choice, count: int) -> int | None:
    """Units that are left of so many when a node is lost, those that stand by in the places of others; None of pools of several kinds."""
    if len(choice.parts) > 1 or choice.study.fleet is not None:
        return None
    d = choice.study.deployment
    lost = max(d.links.replicas_per_node(d.gpus), 1)
    return max(min(count, count + choice.spares(count) - lost), 0)


def without_a_node(count: int, left: int, trials: Sequence[Trial]) -> str:
    """What the loss of a node does, in words: `trials` of what is left."""
    if not left:
        return "With one node lost, nothing is left to serve."
    met = sum(trial.met for trial in trials)
    return f"With one node lost, {left} of {count} replicas are left, and {met} of {len(trials)} trials meet it."
