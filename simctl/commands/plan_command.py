"""`simctl plan`: the cheapest deployment that meets an SLO, and with what probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from simctl.options.plan_options import PARSER, SECTIONS
from simctl.options.simulate_options import GoodputCommand
from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim.planning.answer import PlanAnswer

INTERRUPTED = 130  # exit code, as shells have it of Ctrl-C
AS_GIVEN = ("as_json", "within", "workers", "progress", "quick", "emit")  # beside a scenario, too
FILES = click.Argument(["file"], type=click.Path(path_type=Path), metavar="[SCENARIO]...", required=False, nargs=-1)


@click.command("plan", cls=GoodputCommand, sections=SECTIONS, params=[FILES, *PARSER.params])
def command(file: Sequence[Path], **options: Any) -> None:
    """Find the cheapest deployment that meets an SLO.

    Tries every combination of the values given, each with as many replicas as it needs, and answers with the cheapest
    whose probability of meeting all conditions is at least 0.95. A trial draws its own rates and its own workload. All
    other options are those of `simctl simulate`. SCENARIO is a file with `command: plan` and these options; several, of other
    models or tenants, are each planned by itself, and their costs added.

    \b
    Example:
      simctl plan --gpu H100,L40S --model Llama-3.1-8B --request-rate 20 \\
          --num-prompts 800 --slo "ttft:p99<500ms tpot:p95<40ms"
    """
    from sim.planning.together import together

    several = [_of_scenario(each, options) for each in file] or [options]
    if len(several) > 1 and options["emit"]:
        raise UsageError("--emit takes one scenario")
    answers = [_answered(given) for given in several]
    if options["as_json"]:
        import json

        plans = [answer.to_dict() for answer in answers]
        total = together(answers)
        click.echo(json.dumps(plans[0] if len(plans) == 1 else {"plans": plans, "together": total and asdict(total)}, indent=2))
    elif len(answers) > 1 and (total := together(answers)) is not None:
        click.echo("\n" + fill(total.text, later="   "))
    if any(answer.ended == "stopped" for answer in answers):
        raise click.exceptions.Exit(INTERRUPTED)
    if any(answer.plan.winner is None for answer in answers):
        raise click.exceptions.Exit(1)


def _answered(options: Mapping[str, Any]) -> PlanAnswer:
    """The answer of one plan, printed unless all are to be JSON."""
    from sim.planning.words import for_how_long
    from sim.specs.precision import checkpoint_notes
    from simctl.from_options.questions import plan_of
    from simctl.text.plan_progress import PlanProgress
    from simctl.text.plan_text import print_answer

    watch, notes = PlanProgress(options["progress"]), dict[str, None]()
    question = plan_of(options)
    answer = question.answer(watch.of)
    watch.end()
    if options["num_prompts"] is not None and (lasts := for_how_long(question.workload, question.for_s)):
        click.echo(f"--num-prompts is not used: the load lasts {lasts}, and trials are as long as that takes", err=True)
    given = question.deployments
    for d in given.values() if isinstance(given, Mapping) else given:
        notes |= dict.fromkeys(checkpoint_notes(d.model, d.precision))
    for note in notes:
        click.echo(note, err=True)
    if options["emit"] and answer.plan.winner is not None:
        click.echo(answer.emitted(options["emit"]), nl=False)
    elif not options["as_json"]:
        print_answer(answer)
    return answer


def _of_scenario(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    from click.core import ParameterSource

    from simctl.scenario_files.scenario import load_scenario

    source = click.get_current_context().get_parameter_source
    if changed := [name for name in given if source(name) == ParameterSource.COMMANDLINE and name not in AS_GIVEN]:
        raise UsageError(f"--{changed[0].replace('_', '-')} beside a scenario: put it into {file}")
    scenario = load_scenario(file)
    if scenario.command != "plan" or len(scenario.cells) != 1:
        raise UsageError(f"{file}: a plan needs 'command: plan' and no sweep; `simctl run` runs other scenarios")
    return scenario.cells[0].options() | {name: given[name] for name in AS_GIVEN}
