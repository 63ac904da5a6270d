"""`simctl plan`: the cheapest deployment that meets an SLO, and with what probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.errors import UsageError
from sim.files import writable, write_text
from simctl.options.plan_options import PARSER, SECTIONS
from simctl.options.simulate_options import ARGUMENTS, GoodputCommand
from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim.planning.answer import PlanAnswer
    from sim.planning.plan_file import Trials
    from simctl.scenario_files.plan_files import PlanFile

INTERRUPTED = 130  # exit code, as shells have it of Ctrl-C
AS_GIVEN = ("as_json", "within", "workers", "progress", "quick", "emit", "compare", "plot", "inventory")  # beside a scenario, too
NOT_COMPARED = ("emit", "quick", "day", "growth")
FILES = click.Argument(["file"], type=click.Path(path_type=Path), metavar="[SCENARIO|PLAN]...", required=False, nargs=-1)
OUT = click.Option(["-o", "--out"], metavar="FILE", help="Also write the plan here, for plan, watch and report.")
MORE_TIME = click.Option(["--more-time"], is_flag=True, help="Continue the trials of a PLAN file, for another --within.")


@click.command("plan", cls=GoodputCommand, sections=SECTIONS, params=[FILES, *PARSER.params, OUT, MORE_TIME])
def command(file: Sequence[Path], out: str | None, more_time: bool, **options: Any) -> None:
    """Find the cheapest deployment that meets an SLO.

    Tries every combination of the values given, each with as many replicas as it needs, and answers with the cheapest
    whose probability of meeting all conditions is at least 0.95. A trial draws its own rates and its own workload. All
    other options are those of `simctl simulate`. SCENARIO is a file with `command: plan` and these options; several, of other
    models or tenants, are each planned by itself, and their costs added. PLAN is what -o wrote: it is planned again, goes on
    with --more-time, or with --emit alone is written as what starts it.

    \b
    Examples:
      simctl plan --gpu H100,L40S --model Llama-3.1-8B --request-rate 20 \\
          --num-prompts 800 --slo "ttft:p99<500ms tpot:p95<40ms"
      simctl plan --gpu H100,L40S --compare --model Llama-3.1-8B \\
          --users 200 --think-time 30s --slo "ttft:p95<1s tpot:p95<50ms"
    """
    target = writable(out)
    asked = [_of_file(each, options) for each in file] or [Asked(options, click.get_current_context().meta[ARGUMENTS])]
    emits, options = any(each.options["emit"] for each in asked), dict(asked[0].options)
    if len(asked) > 1 and (emits or out):
        raise UsageError(f"{'--emit' if emits else '-o'} takes one scenario")
    if more_time and not all(each.plan for each in asked):
        raise UsageError("--more-time goes on with a plan: give the file that -o wrote")
    if options["emit"] and asked[0].plan and not more_time:
        _emit(asked[0])
        return
    if options["compare"]:
        if len(asked) > 1 or out or more_time:
            raise UsageError("--compare takes one scenario, without -o and --more-time")
        _compare(asked[0].options)
        return
    if options["plot"]:
        raise UsageError("--plot draws cards side by side: give --compare")
    if len(asked) > 1 and options["inventory"]:
        answers = _shared(asked, options["inventory"], more_time)
    else:
        answers = [_answered(each, more_time) for each in asked]
    if target is not None:
        from simctl.scenario_files.plan_files import plan_text

        write_text(target, plan_text(answers[0], asked[0].arguments))
        click.echo(f"wrote {target}", err=True)
    _show(answers, options["as_json"])
    if any(answer.ended == "stopped" for answer in answers):
        raise click.exceptions.Exit(INTERRUPTED)
    if any(answer.plan.winner is None for answer in answers):
        raise click.exceptions.Exit(1)


def _shared(asked: Sequence[Asked], inventory: Mapping[str, int], more_time: bool) -> list[PlanAnswer]:
    """Answers of plans that take their GPUs from one inventory, one after the other; one that finds nothing left that does goes first, and
    all are asked again. What was tried is not tried again.
    """
    from sim.planning.plan_file import trials_in

    known: list[Trials] = [{} for _ in asked]
    order, orders = list(range(len(asked))), list[list[int]]()
    while True:
        orders.append(order)
        answers: dict[int, PlanAnswer] = {}
        left = inventory
        for i in order:
            given = asked[i]._replace(options={**asked[i].options, "inventory": left})
            answers[i] = _answered(given, more_time, known[i])
            left, known[i] = _rest(left, answers[i]), trials_in(answers[i].plan)
        short = next((i for i in order if answers[i].plan.winner is None), order[0])
        order = [short, *(i for i in order if i != short)]
        if order in orders or any(answer.ended == "stopped" for answer in answers.values()):
            return [answers[i] for i in range(len(asked))]
        click.echo(f"\nScenario {short + 1} finds too little left. In the order {', '.join(str(i + 1) for i in order)}:", err=True)


def _rest(inventory: Mapping[str, int], answer: PlanAnswer) -> dict[str, int]:
    """What a plan leaves of an inventory."""
    from sim.specs.gpus import get_gpu

    win = answer.plan.winner
    used = answer.plan.choices[win.choice].gpus_by_name(win.replicas) if win else {}
    return {name: count - used.get(get_gpu(name).name, 0) for name, count in inventory.items()}


class Asked(NamedTuple):
    """Options of one plan, the same as words of the command line, and the plan file that they come from."""

    options: Mapping[str, Any]
    arguments: Sequence[str]
    plan: PlanFile | None = None


def _emit(asked: Asked) -> None:
    """Print what starts the plan of a file, without a trial."""
    from simctl.scenario_files.plan_files import known_of

    assert asked.plan is not None
    plan = known_of(asked.plan, asked.options)
    from sim.planning.emit import emitted

    click.echo(emitted(plan, asked.options["emit"], asked.plan.found["answer"]["conclusion"]), nl=False)
    if plan.winner is None:
        raise click.exceptions.Exit(1)


def _compare(options: Mapping[str, Any]) -> None:
    """Print cards side by side."""
    from sim.planning.compare import compared
    from simctl.from_options.questions import plan_of
    from simctl.report.picture_files import plot_target
    from simctl.text.compare_text import print_compared
    from simctl.text.plan_progress import PlanProgress

    if stray := next((name for name in NOT_COMPARED if options[name]), None):
        raise UsageError(f"--{stray} is of the cheapest deployment alone: leave out --compare")
    plot, watch = plot_target(options["plot"]), PlanProgress(options["progress"])
    found = compared(plan_of(options), watch.of)
    watch.end()
    print_compared(found, options["as_json"])
    if plot:
        from simctl.report import of_compare, picture_files
        from simctl.text.compare_text import conclusion

        picture_files.plot(of_compare.part_of(found.to_dict() | {"conclusion": conclusion(found)}).pictures, plot)
        click.echo(f"wrote {plot}", err=True)
    if found.ended == "stopped":
        raise click.exceptions.Exit(INTERRUPTED)
    if found.cheapest is None:
        raise click.exceptions.Exit(1)


def _answered(asked: Asked, more_time: bool, known: Trials | None = None) -> PlanAnswer:
    """The answer of one plan, printed unless all are to be JSON; `known` trials are not run again."""
    from sim.planning.words import for_how_long
    from sim.specs.precision import checkpoint_notes
    from simctl.from_options.questions import plan_of
    from simctl.text.plan_progress import PlanProgress
    from simctl.text.plan_text import print_answer

    options = asked.options
    watch, notes = PlanProgress(options["progress"]), dict[str, None]()
    question = plan_of(options)
    if known:
        question = replace(question, known=known)
    elif more_time and asked.plan:
        from simctl.scenario_files.plan_files import gone_on

        question = gone_on(question, asked.plan, asked.arguments)
    answer = question.answer(watch.of)
    watch.end()
    if options["num_prompts"] is not None and (lasts := for_how_long(question.workload, question.for_s)):
        click.echo(f"--num-prompts is not used: the load lasts {lasts}, and trials are as long as that takes", err=True)
    given = question.deployments
    for d in given.values() if isinstance(given, Mapping) else given:
        notes |= dict.fromkeys(checkpoint_notes(d.model, d.precision))
    for note in notes:
        click.echo(note, err=True)
    if options["emit"] and answer.plan.best is not None:
        click.echo(answer.emitted(options["emit"]), nl=False)
    elif not options["as_json"]:
        print_answer(answer)
    return answer


def _of_file(file: Path, given: Mapping[str, Any]) -> Asked:
    """What a scenario or a plan file asks, with the options AS_GIVEN."""
    import shlex

    from click.core import ParameterSource

    from simctl.scenario_files.plan_files import options_of_plan, plan_in
    from simctl.scenario_files.scenario import load_scenario, scenario_path

    source = click.get_current_context().get_parameter_source
    if changed := [name for name in given if source(name) == ParameterSource.COMMANDLINE and name not in AS_GIVEN]:
        try:
            scenario_path(file)
        except UsageError:
            raise UsageError(f"{file}: no such file; values of one option have commas between them: --gpu H100,L40S") from None
        raise UsageError(f"--{changed[0].replace('_', '-')} beside a scenario: put it into {file}")
    kept = {name: given[name] for name in AS_GIVEN if name != "inventory" or given[name]}
    if (plan := plan_in(file)) is not None:
        return Asked(options_of_plan(plan) | kept, plan.found["arguments"], plan)
    scenario = load_scenario(file)
    if scenario.command != "plan" or len(scenario.cells) != 1:
        raise UsageError(f"{file}: a plan needs 'command: plan' and no sweep; `simctl run` runs other scenarios")
    cell = scenario.cells[0]
    kept = {name: value for name, value in kept.items() if source(name) == ParameterSource.COMMANDLINE}  # else as the scenario says
    return Asked(cell.options() | kept, shlex.split(cell.shell())[2:])


def _show(answers: Sequence[PlanAnswer], as_json: bool) -> None:
    """What is printed when all is planned: JSON, or the sum of several plans."""
    from sim.planning.together import together

    total = together(answers)
    if as_json:
        import json

        plans = [answer.to_dict() for answer in answers]
        click.echo(json.dumps(plans[0] if len(plans) == 1 else {"plans": plans, "together": total and asdict(total)}, indent=2))
    elif len(answers) > 1 and total is not None:
        click.echo("\n" + fill(total.text, later="   "))
