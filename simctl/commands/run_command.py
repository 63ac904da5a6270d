"""`simctl run`: answer a scenario's question: by its command, by a table over its sweep, or by a store of many cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from simctl.text.layout import fill
from simctl.text.progress import progress


def _schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from simctl.scenario_files.scenario_schema import text

        click.echo(text(), nl=False)
        context.exit()


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path), metavar="SCENARIO")
@click.option("--set", "overrides", multiple=True, metavar="OPTION=VALUE", help="Replace an option of the scenario; may be repeated.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="OUT.zarr", help="Sweep into this store, which resumes.")
@click.option("--allow-code", is_flag=True, help="Let the scenario name a scheduler class of its own (engine: a.b.C), which runs code.")
@click.option("--dry-run", is_flag=True, help="Print the commands the scenario stands for, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print every run's whole answer as JSON on stdout.")
@click.option(
    "--plot", "plot_file", metavar="FILE", help="Also draw the reported figures over what is swept, with intervals (PNG, SVG or PDF)."
)
@click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=_schema, help="Print the files' JSON Schema.")
def command(
    file: Path, overrides: tuple[str, ...], out: Path | None, allow_code: bool, dry_run: bool, as_json: bool, plot_file: str | None
) -> None:
    """Answer the question of a scenario file.

    A scenario names one command, its options, what to sweep (every combination is run) and what to report. With the
    option goal (p99_ttft_ms<=2000) it ends by naming the first cell that meets it with 95 % certainty. A scenario that
    reports nothing and sweeps nothing is its command's own answer; one with `samples`, or with -o OUT.zarr, is a
    `simctl sweep`. SCENARIO is a file, or the name of one that comes with simctl (see the folder scenarios/).

    \b
    Example:
      simctl run batch_cap_on_an_a10 --set seed=1
    """
    from simctl.report.picture_files import plot, plot_target
    from simctl.scenario_files.scenario import load_scenario

    pairs = {name: value for name, _, value in (item.partition("=") for item in overrides)}
    if "" in pairs.values():
        raise UsageError("--set needs OPTION=VALUE")
    target = plot_target(plot_file)
    scenario = load_scenario(file, pairs, allow_code)
    if dry_run:
        for cell in scenario.cells:
            click.echo(cell.shell())
        return
    if out is not None or scenario.design.samples is not None:
        _sweep(scenario, out, as_json)
        return
    if not (scenario.report or scenario.design.axes or as_json):
        _print(scenario.command, scenario.cells[0].given)
        return
    answers = []
    with progress("runs") as report:
        for number, cell in enumerate(scenario.cells):
            if report:
                report(number, len(scenario.cells))
            answers.append(cell.answer(() if as_json else scenario.report))
    labels = [cell.label for cell in scenario.cells]
    if as_json:
        runs = [{"cell": label, "answer": answer} for label, answer in zip(labels, answers, strict=True)]
        click.echo(json.dumps({"question": scenario.question, "runs": runs}, indent=1))
        return
    _show(scenario, labels, answers)
    if target is not None:
        from simctl.report.of_cells import pictures

        plot(list(pictures(labels, answers, scenario.report)), target)
        click.echo(f"wrote {target}", err=True)


def _print(name: str, given: Mapping[str, Any]) -> None:
    """What the command itself prints."""
    from simctl.cli import group
    from simctl.options.file_options import context_of

    answers = group.get_command(click.Context(group), name)
    assert answers is not None
    with context_of(answers, given) as context:
        answers.callback(**context.params)  # type: ignore[misc]  # every command of ours has one


def _sweep(scenario: Any, out: Path | None, as_json: bool) -> None:
    from simctl.scenario_files.sweeping import sweep

    if out is None:
        raise UsageError(f"{scenario.name}: samples: their answers go into a store: give -o OUT.zarr")
    if as_json:
        raise UsageError("-o OUT.zarr prints no JSON: leave out --json")
    sweep(scenario, out, {})


def _show(scenario: Any, labels: list[dict[str, str]], answers: list[dict[str, Any]]) -> None:
    """The table of a sweep, and what follows from it."""
    from simctl.text.run_text import compared, conclusion, knees, print_table

    click.echo(click.style(fill(scenario.question), bold=True))
    print_table(labels, answers, scenario.report)
    said = knees(labels, answers, scenario.report)
    if all("goal" in answer for answer in answers):
        said.append(conclusion(labels, [answer["goal"] for answer in answers]))
    elif text := compared(labels, answers, scenario.report):
        said.append(text)
    for line in said:
        click.echo(fill(line, later="   "))
