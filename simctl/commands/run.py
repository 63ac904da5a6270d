"""`simctl run`: answer a scenario's question: by its command, by a table over its sweep, or by a store of many cells."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.sweeps.figures import flatten, interval_of, is_void
from simctl.text.layout import fill, folded
from simctl.text.progress import progress

MOST_BYTES = 1 << 26  # of a kept answer


def _schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from simctl.scenario_schema import text

        click.echo(text(), nl=False)
        context.exit()


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path), metavar="SCENARIO")
@click.option("--set", "overrides", multiple=True, metavar="OPTION=VALUE", help="Replace an option of the scenario; may be repeated.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep each run's whole answer as JSON in DIR; OUT.zarr: sweep into it.",
)
@click.option("--resume", is_flag=True, help="Take runs that DIR already holds, of the same options and files.")
@click.option("--allow-code", is_flag=True, help="Let the scenario name a scheduler class of its own (engine: a.b.C), which runs code.")
@click.option("--dry-run", is_flag=True, help="Print the commands the scenario stands for, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print every run's whole answer as JSON on stdout.")
@click.option("--schema", is_flag=True, is_eager=True, expose_value=False, callback=_schema, help="Print the files' JSON Schema.")
def command(file: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, allow_code: bool, dry_run: bool, as_json: bool) -> None:
    """Answer the question of a scenario file.

    A scenario names one command, its options, what to sweep (every combination is run) and what to report. With the
    option goal (p99_ttft_ms<=2000) it ends by naming the first cell that meets it with 95 % certainty. A scenario that
    reports nothing and sweeps nothing is its command's own answer; one with `samples`, or with -o OUT.zarr, is a
    `simctl sweep`. SCENARIO is a file, or the name of one that comes with simctl (see the folder scenarios/).

    \b
    Example:
      simctl run batch_cap_on_an_a10 --set seed=1
    """
    from simctl.scenario import load_scenario

    pairs = dict(item.split("=", 1) if "=" in item else (item, "") for item in overrides)
    if "" in pairs.values():
        raise UsageError("--set needs OPTION=VALUE")
    if resume and out is None:
        raise UsageError("--resume needs -o DIR")
    scenario = load_scenario(file, pairs, allow_code)
    if dry_run:
        for cell in scenario.cells:
            click.echo(cell.shell())
        return
    if (out is not None and out.suffix == ".zarr") or scenario.design.samples is not None:
        _sweep(scenario, out, resume or as_json)
        return
    if not (scenario.report or scenario.design.axes or as_json or out):
        scenario.cells[0].run()
        return
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    answers = []
    with progress("runs") as report:
        for number, cell in enumerate(scenario.cells):
            if report:
                report(number, len(scenario.cells))
            target = out / f"{scenario.name}-{number:04d}.json" if out is not None else None
            answers.append(_answer(cell, target, resume))
    labels = [cell.label for cell in scenario.cells]
    if as_json:
        runs = [{"cell": label, "answer": answer} for label, answer in zip(labels, answers, strict=True)]
        click.echo(json.dumps({"question": scenario.question, "runs": runs}, indent=1))
        return
    click.echo(click.style(fill(scenario.question), bold=True))
    _table(labels, answers, scenario.report)
    if all("goal" in answer for answer in answers):
        click.echo(fill(conclusion(labels, [answer["goal"] for answer in answers]), later="   "))


def _sweep(scenario: Any, out: Path | None, more: bool) -> None:
    from simctl.commands.sweep import sweep

    if out is None or out.suffix != ".zarr":
        raise UsageError(f"{scenario.name}: samples: their answers go into a store: give -o OUT.zarr")
    if more:
        raise UsageError("-o OUT.zarr resumes by itself and prints no JSON: leave out --resume and --json")
    sweep(scenario, out, {})


def _answer(cell: Any, target: Path | None, resume: bool) -> dict[str, Any]:
    """The answer of a cell; kept in `target` with all that it depends on, so that a resumed run never takes another's."""
    from sim.files import write_text

    if target is None:
        answer: dict[str, Any] = cell.answer()
        return answer
    asked = cell.asked()
    if resume and target.is_file() and (kept := _kept(target, asked)) is not None:
        return kept
    answer = cell.answer()
    body = json.loads(json.dumps({"asked": asked, "answer": answer}))
    write_text(target, json.dumps({**body, "digest": answer_digest(body)}, indent=1))
    return answer


def _kept(target: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The answer kept of a cell; None where it is another's, or where the file is damaged, which is said."""
    from sim.files import text_of
    from sim.json_text import read_json

    try:
        kept = read_json(text_of(target, MOST_BYTES))
        body = {"asked": kept["asked"], "answer": kept["answer"]}
        sound = isinstance(body["answer"], dict) and kept["digest"] == answer_digest(body)
    except (ValueError, TypeError, KeyError):
        sound = False
    if not sound:
        click.echo(f"{target}: damaged: this cell runs again", err=True)
        return None
    return body["answer"] if body["asked"] == asked else None


def answer_digest(body: dict[str, Any]) -> str:
    """Of what is kept of a cell, so that a damaged file is known."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _table(labels: list[dict[str, str]], answers: list[dict[str, Any]], report: tuple[str, ...]) -> None:
    rows = []
    for label, answer in zip(labels, answers, strict=True):
        flat = flatten(answer)
        for name in report:
            if name not in flat and not is_void(flat, name):
                raise UsageError(f"report: the answer has no {name!r}; it has {', '.join(sorted(flat)[:40])}, ...")
        rows.append([*label.values(), *(_show(flat.get(name), interval_of(flat, name)) for name in report)])
    for line in folded([*labels[0], *report], rows, repeat=len(labels[0])):
        click.echo(line)


def conclusion(labels: list[dict[str, str]], goals: list[dict[str, Any]]) -> str:
    """One sentence: the first cell of the sweep that meets its goal with CERTAINTY, and which before it may; or that none does."""
    from sim.results.chance import CERTAINTY
    from sim.units import format_number

    bound, sure = f"{goals[0]['metric']} <= {format_number(goals[0]['limit'])}", f"{100 * CERTAINTY:.0f} %"
    names = [", ".join(f"{name} {value}" for name, value in label.items()) or "as asked" for label in labels]
    first = next((i for i, goal in enumerate(goals) if goal["certain"]), None)
    may = [f"{names[i]} ({_chance(goal)})" for i, goal in enumerate(goals[:first]) if goal["certain"] is None]
    open_ = f" Undecided at {sure}: {', '.join(may)}." if may else ""
    if first is not None:
        return f"=> {names[first]}: the first to hold {bound} with a chance of at least {sure} ({_chance(goals[first])}).{open_}"
    best = max(goals, key=lambda goal: goal["chance"])
    return f"=> none holds {bound} with a chance of at least {sure} for sure; the best is {_chance(best)}.{open_}"


def _chance(goal: dict[str, Any]) -> str:
    return f"{goal['chance']:.2f}, {goal['chance_low']:.2f}-{goal['chance_high']:.2f} by {goal['trials']} trials"


def _show(value: Any, noise: Any) -> str:
    from sim.units import format_number, format_range

    def one(item: Any) -> str:
        if item is None:
            return "none"
        return format_number(item) if isinstance(item, float) else str(item)

    text = f"[{', '.join(map(one, value))}]" if isinstance(value, list) else one(value)
    return f"{text} {format_range(*noise)}" if isinstance(noise, list) and len(noise) == 2 and None not in noise else text
