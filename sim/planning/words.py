"""The answer of a plan in words."""

from __future__ import annotations

from sim.planning.race import RaceResult, Tried

ANSWERS = 10  # a load shorter than so many answers one after another is too short to say how queues grow


def named(plan: RaceResult, tried: Tried) -> str:
    """A count of a choice in words."""
    choice = plan.choices[tried.choice]
    units = f"{tried.replicas} times {choice.name}" if len(choice.parts) > 1 else f"{tried.replicas} replicas of {choice.name}"
    spares = choice.spares(tried.replicas)
    return (units if tried.replicas > 1 else choice.name) + (f" and {spares} standing by" if spares else "")


def _short(plan: RaceResult, win: Tried) -> str:
    """A warning where the load is over before queues can build up."""
    choice = plan.choices[win.choice]
    if choice.study is None or choice.study.workload.max_concurrency is not None:  # type: ignore[redundant-expr]  # races of made-up trials have none
        return ""
    trace = choice.study.workload.trace
    lasts = float(trace.arrival_s[-1] - trace.arrival_s[0])
    answer = float(trace.output_tokens.mean()) / max(win.trials[0].user_tokens_per_s, 1e-9)
    if not 0.0 < lasts < ANSWERS * answer:
        return ""
    return f" The load lasts {lasts:.0f} s and an answer {answer:.1f} s: a longer one (--num-prompts) may show longer queues."


def conclusion(plan: RaceResult) -> str:
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
