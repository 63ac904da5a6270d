"""`simctl plan`: the cheapest deployment that meets an SLO, and with what probability."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from simctl.options import Parsed, Sectioned
from simctl.progress import progress
from simctl.simulate import SECTIONS as SIMULATE
from simctl.simulate import GoodputCommand
from simctl.simulate import command as simulate
from simctl.text import fill, folded

if TYPE_CHECKING:
    from sim.capacity import Choice, Plan, Tried
    from sim.results.chance import Chance

MANY = ("gpu", "tp", "dtype", "kv_dtype", "router", "max_num_seqs", "max_num_batched_tokens")  # options that take several values
LEFT_OUT = ("replicas", "fleet_file", "goal", "draws", "iterations", "out", "plot", "chrome_trace", "as_json", "gpu", "tp", "dtype",
            "kv_dtype", "router", "max_num_seqs", "max_num_batched_tokens")  # fmt: skip
MOST_CHOICES = 1000
MOST_ROWS = 12


def _values(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise ValueError
    return found


VALUES = Parsed("a[,b...]", _values, "not values with commas between them")
SECTIONS = {
    "What to decide": ("slo", "goodput", "gpu", "tp", "dtype", "kv-dtype", "router", "max-num-seqs", "max-num-batched-tokens",
                       "most-gpus", "price"),
    **{title: tuple(name for name in names if name.replace("-", "_") not in (*LEFT_OUT, "goodput", "fleet"))
       for title, names in SIMULATE.items()},
    "Answer": ("workers", "seed", "json"),
}  # fmt: skip


class PlanCommand(GoodputCommand, Sectioned):
    """Takes the options of `simctl simulate` for everything that is not decided."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.params += [option for option in simulate.params if option.name not in LEFT_OUT]


@click.command("plan", cls=PlanCommand, sections=SECTIONS)
@click.argument("file", type=click.Path(path_type=Path), metavar="[SCENARIO]", required=False)
@click.option(
    "--slo", multiple=True, metavar="CONDITIONS", help="What must hold, all of it: ttft:p99<2s tpot:p95<50ms failed<1% good>=99%."
)
@click.option("--gpu", type=VALUES, help="GPUs to choose among: H100,L40S.")
@click.option("--tp", type=VALUES, default="1", show_default=True, help="GPUs per replica to choose among: 1,2.")
@click.option("--dtype", type=VALUES, help="Weight dtypes to choose among: bf16,fp8. [default: 16 bits]")
@click.option("--kv-dtype", type=VALUES, help="KV-cache dtypes to choose among. [default: 16 bits]")
@click.option("--router", type=VALUES, default="least-requests", show_default=True, help="Routers to choose among.")
@click.option("--max-num-seqs", type=VALUES, help="Batch caps to choose among. [default: the engine's]")
@click.option("--max-num-batched-tokens", type=VALUES, help="Token budgets to choose among. [default: the engine's]")
@click.option("--most-gpus", type=click.IntRange(1, 4096), default=64, show_default=True, help="No deployment has more GPUs.")
@click.option("--price", multiple=True, metavar="GPU=USD", help="Price per GPU-hour, instead of the catalogue's list price.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes. [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(file: Path | None, **options: Any) -> None:
    """Find the cheapest deployment that meets an SLO.

    Tries every combination of the values given, each with as many replicas as it needs, and answers with the cheapest
    whose probability of meeting all conditions is at least 0.95. A trial draws its own rates and its own workload. All
    other options are those of `simctl simulate`. SCENARIO is a file with `command: plan` and these options.

    \b
    Example:
      simctl plan --gpu H100,L40S --model Llama-3.1-8B --request-rate 20 \\
          --num-prompts 800 --slo "ttft:p99<500ms tpot:p95<40ms"
    """
    if file is not None:
        options = _of_scenario(file, options)
    plan = _plan(options)
    if options["as_json"]:
        import json

        click.echo(json.dumps(_as_dict(plan), indent=2))
    else:
        _print(plan)
    if plan.winner is None:
        raise click.exceptions.Exit(1)


def json_answer(options: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    return _as_dict(_plan(options))


def _of_scenario(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    from simctl.scenario import load_scenario

    unasked = command.make_context(command.name, []).params
    if changed := [name for name, value in given.items() if value != unasked[name] and name not in ("as_json", "workers")]:
        raise UsageError(f"--{changed[0].replace('_', '-')} beside a scenario: put it into {file}")
    scenario = load_scenario(file)
    if scenario.command != "plan" or len(scenario.cells) != 1:
        raise UsageError(f"{file}: a plan needs 'command: plan' and no sweep; `simctl run` runs other scenarios")
    return scenario.cells[0].options() | {name: given[name] for name in ("as_json", "workers")}


def _plan(options: Mapping[str, Any]) -> Plan:
    from sim.capacity import search, standings_of, trials_of
    from sim.results.metrics import parse_goodput
    from sim.slo import parse_slo

    if options["gpu"] is None:
        raise UsageError("plan on what? give --gpu NAME[,NAME...]")
    conditions = parse_slo(options["slo"], parse_goodput(options["goodput"]))
    choices = _choices(options)
    least = min(choice.study.deployment.tp for choice in choices)
    most = max(options["most_gpus"] // least, 1)
    standings = standings_of(choices, conditions)
    for standing, choice in zip(standings, choices, strict=True):
        if not standing.why and (standing.fails + 1) * choice.study.deployment.tp > options["most_gpus"]:
            standing.why = f"needs more than {options['most_gpus']} GPUs"
    with progress("trying deployments") as report, trials_of(choices, conditions, options["workers"] or os.cpu_count() or 1) as trials:
        tried = 0

        def show(_: Tried) -> None:
            nonlocal tried
            tried += 1
            if report:
                report(tried, max(tried + 1, len(choices)))

        return search(choices, conditions, trials, most, show, standings)


def _choices(options: Mapping[str, Any]) -> list[Choice]:
    from dataclasses import replace

    from sim.capacity import Choice
    from simctl.simulate import study_of

    prices = _prices(options["price"])
    lists = {name: options[name] or (None,) for name in MANY}
    if (count := len(list(product(*lists.values())))) > MOST_CHOICES:
        raise UsageError(f"{count} combinations to choose among, more than {MOST_CHOICES}")
    several = [name for name, values in lists.items() if len(values) > 1 and name != "gpu"]
    found: list[Choice] = []
    unasked = simulate.make_context(simulate.name, []).params
    known = {option.name: option for option in simulate.params}
    for combination in product(*lists.values()):
        picked = dict(zip(lists, combination, strict=True))
        values = {
            name: unasked[name] if text is None else known[name].type_cast_value(click.Context(simulate), text)
            for name, text in picked.items()
        }
        study = study_of({**unasked, **options, **values, "replicas": 1, "fleet_file": None, "draws": None})
        if found:
            study = replace(study, workload=found[0].study.workload)
        gpu = study.deployment.gpu
        price = prices.get(gpu.name, gpu.price_per_hour)
        if price is None:
            raise UsageError(f"no list price of {gpu.name} is known: give --price {gpu.name}=USD per GPU-hour")
        named = (picked[key] if key in ("dtype", "router") else f"{key.replace('_', '-')} {picked[key]}" for key in several if key != "tp")
        name = " ".join([f"{study.deployment.tp} x {gpu.name}", *map(str, named)])
        found.append(Choice(name, study, price * study.deployment.tp))
    return found


def _prices(pairs: Sequence[str]) -> dict[str, float]:
    from sim.specs.gpus import get_gpu

    prices: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            price = float(text)
        except ValueError:
            price = -1.0
        if not 0 < price < 1e6:
            raise UsageError(f"--price needs GPU=USD per hour, got {pair!r}")
        prices[get_gpu(name).name] = price
    return prices


def _as_dict(plan: Plan) -> dict[str, Any]:
    """Plain data: the winner, every choice and what was tried of it."""

    def one(tried: Tried) -> dict[str, Any]:
        tp = plan.choices[tried.choice].study.deployment.tp
        texts = [condition.text for condition in plan.conditions]
        return {
            "choice": plan.choices[tried.choice].name,
            "replicas": tried.replicas,
            "gpus": tried.replicas * tp,
            "usd_per_hour": plan.cost(tried),
            **_chance(tried.chance),
            "limit_used": dict(zip(texts, tried.used, strict=True)),
            "missed_share": dict(zip(texts, tried.missed, strict=True)),
            "binding": texts[tried.binding],
        }

    return {
        "slo": [condition.text for condition in plan.conditions],
        "winner": one(plan.winner) if plan.winner else None,
        "undecided": [one(each) for each in plan.undecided()],
        "nearest": one(nearest) if (nearest := plan.nearest()) and not plan.winner else None,
        "choices": [
            {
                "choice": choice.name,
                "usd_per_hour_each": choice.price,
                "out": standing.why or None,
                "replicas_at_least": None if standing.why else standing.fails + 1,
                "tried": [one(each) for _, each in sorted(standing.tried.items())],
            }
            for choice, standing in zip(plan.choices, plan.standings, strict=True)
        ],
    }


def _chance(chance: Chance) -> dict[str, Any]:
    return {
        "chance": chance.value,
        "chance_low": chance.low,
        "chance_high": chance.high,
        "trials": chance.trials,
        "certain": chance.certain,
    }


def _print(plan: Plan) -> None:
    slo = " ".join(condition.text for condition in plan.conditions)
    model = plan.choices[0].study.deployment.model.name
    click.echo(click.style(fill(f"Which deployment of {model} has {slo} at the least cost?"), bold=True))
    inside = [i for i, standing in enumerate(plan.standings) if not standing.why]
    inside.sort(key=lambda i: (plan.standings[i].fails + 1) * plan.choices[i].price)
    if inside:
        for line in folded(
            ["replicas of", "count", "USD/hour", "chance", "binding"], [_row(plan, i) for i in inside[:MOST_ROWS]], repeat=1
        ):
            click.echo(line)
    if len(inside) > MOST_ROWS:
        click.echo(f"and {len(inside) - MOST_ROWS} dearer ones")
    reasons: dict[str, list[str]] = {}
    for choice, standing in zip(plan.choices, plan.standings, strict=True):
        if standing.why:
            reasons.setdefault(standing.why, []).append(choice.name)
    for why, names in reasons.items():
        click.echo(fill(f"out: {'; '.join(names)}: {why}", later="  "))
    click.echo(fill(_conclusion(plan), later="   "))


def _row(plan: Plan, place: int) -> list[str]:
    """A choice with the least count that it may still need, and what is known of that."""
    choice, standing = plan.choices[place], plan.standings[place]
    count = standing.fails + 1
    tried, least = standing.tried.get(count), "" if standing.holds == count else ">= "
    chance = f"{tried.chance.value:.2f} ({tried.chance.low:.2f}-{tried.chance.high:.2f})" if tried else "not tried"
    return [
        choice.name,
        f"{least}{count}",
        f"{least}{count * choice.price:.2f}",
        chance,
        plan.conditions[tried.binding].text if tried else "",
    ]


def _conclusion(plan: Plan) -> str:
    slo = ", ".join(condition.text for condition in plan.conditions)

    def named(tried: Tried) -> str:
        return f"{tried.replicas} replicas of {plan.choices[tried.choice].name}" if tried.replicas > 1 else plan.choices[tried.choice].name

    open_ = "; ".join(f"{named(each)}, {plan.cost(each):.2f} USD/hour, {each.chance}" for each in plan.undecided())
    maybe = f" Cheaper, and undecided at 95 %: {open_}." if open_ else ""
    if (win := plan.winner) is not None:
        gpus = win.replicas * plan.choices[win.choice].study.deployment.tp
        margin = 100 * (1 - win.used[win.binding])
        return (
            f"=> {named(win)} ({gpus} GPU{'s' if gpus > 1 else ''}, {plan.cost(win):.2f} USD/hour) meets {slo} with a chance of "
            f"{win.chance}. "
            f"{plan.conditions[win.binding].text} binds, with {margin:.0f} % to spare in the mean.{maybe}"
        )
    nearest = plan.nearest()
    if nearest is None:
        return f"=> none can meet {slo}."
    binding = nearest.binding
    return (
        f"=> none meets {slo} with a chance of at least 95 %. Nearest: {named(nearest)}, with a chance of {nearest.chance}. "
        f"{plan.conditions[binding].text} is missed in {100 * nearest.missed[binding]:.0f} % of the trials; "
        f"in the mean {100 * nearest.used[binding]:.0f} % of its limit are used.{maybe}"
    )
