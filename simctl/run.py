"""`simctl run`: answer a scenario's question, over its whole sweep."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from pathlib import Path
from typing import Any

import click

CERTAINTY = 0.95


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path), metavar="SCENARIO")
@click.option("--set", "overrides", multiple=True, metavar="OPTION=VALUE", help="Replace an option of the scenario; may be repeated.")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="DIR", help="Keep each run's whole answer as JSON in DIR.")
@click.option("--resume", is_flag=True, help="Take runs that DIR already holds instead of running them again.")
@click.option("--dry-run", is_flag=True, help="Print the commands the scenario stands for, and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print every run's whole answer as JSON on stdout.")
def command(file: Path, overrides: tuple[str, ...], out: Path | None, resume: bool, dry_run: bool, as_json: bool) -> None:
    """Answer the question of a scenario file.

    A scenario names one command, its options, what to sweep (every combination is run) and what to report. With the
    option goal (p99_ttft_ms<=2000) it ends by naming the first cell that meets it with 95 % certainty. SCENARIO is a
    file, or the name of one that comes with simctl (see the folder scenarios/).

    \b
    Example:
      simctl run batch_cap_on_an_a10 --set seed=1
    """
    from sim.errors import UsageError
    from simctl.scenario import load_scenario

    pairs = dict(item.split("=", 1) if "=" in item else (item, "") for item in overrides)
    if "" in pairs.values():
        raise UsageError("--set needs OPTION=VALUE")
    if resume and out is None:
        raise UsageError("--resume needs -o DIR")
    scenario = load_scenario(file, pairs)
    if dry_run:
        for run in scenario.runs:
            click.echo(f"simctl {scenario.command} {shlex.join(run.arguments)}")
        return
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    answers = []
    for number, run in enumerate(scenario.runs):
        target = out / f"{scenario.name}-{number:04d}.json" if out is not None else None
        answers.append(_answer(scenario.command, run.arguments, target, resume))
    if as_json:
        cells = [{"cell": run.cell, "answer": answer} for run, answer in zip(scenario.runs, answers, strict=True)]
        click.echo(json.dumps({"question": scenario.question, "runs": cells}, indent=1))
        return
    click.echo(click.style(scenario.question, bold=True))
    _table([run.cell for run in scenario.runs], answers, scenario.report)
    if all("goal" in answer for answer in answers):
        click.echo(conclusion([run.cell for run in scenario.runs], [answer["goal"] for answer in answers]))


def _answer(name: str, arguments: tuple[str, ...], target: Path | None, resume: bool) -> dict[str, Any]:
    """The command's JSON answer; kept in `target` with its arguments, so that a resumed run never takes another's."""
    if target is not None and resume and target.is_file():
        kept = json.loads(target.read_text(encoding="utf-8"))
        if kept.get("arguments") == [name, *arguments]:
            found: dict[str, Any] = kept["answer"]
            return found
    from simctl.cli import group

    captured = io.StringIO()
    with contextlib.redirect_stdout(captured):
        group.main(args=[name, *arguments, "--json"], prog_name="simctl", standalone_mode=False)
    answer: dict[str, Any] = json.loads(captured.getvalue())
    if target is not None:
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"arguments": [name, *arguments], "answer": answer}, indent=1), encoding="utf-8")
        os.replace(temporary, target)
    return answer


def _table(cells: list[dict[str, str]], answers: list[dict[str, Any]], report: tuple[str, ...]) -> None:
    from sim.errors import UsageError

    heads = [*cells[0], *report]
    rows = []
    for cell, answer in zip(cells, answers, strict=True):
        flat = flatten(answer)
        for name in report:
            if name not in flat:
                raise UsageError(f"report: the answer has no {name!r}; it has {', '.join(sorted(flat)[:40])}, ...")
        rows.append([*cell.values(), *(_show(flat[name], flat.get(f"run_noise_90.{name}")) for name in report)])
    widths = [max(len(str(row[i])) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        click.echo("  ".join(str(value).rjust(width) for value, width in zip(row, widths, strict=True)))


def conclusion(cells: list[dict[str, str]], goals: list[dict[str, Any]]) -> str:
    """One sentence: the first cell of the sweep that meets its goal with CERTAINTY, or that none does."""
    bound = f"{goals[0]['metric']} <= {goals[0]['limit']:g}"
    for cell, goal in zip(cells, goals, strict=True):
        if goal["chance"] is not None and goal["chance"] >= CERTAINTY:
            label = ", ".join(f"{name} {value}" for name, value in cell.items()) or "as asked"
            return f"=> {label}: the first to hold {bound} with at least {100 * CERTAINTY:.0f} % certainty (chance {goal['chance']:.2f})."
    best = max(goals, key=lambda goal: -1.0 if goal["chance"] is None else goal["chance"])["chance"]
    return f"=> none holds {bound} with {100 * CERTAINTY:.0f} % certainty; " + (
        "nothing is known of the spread." if best is None else f"the best chance is {best:.2f}."
    )


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted names; lists of scalars stay whole, the rest is left out."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            flat |= flatten(item, f"{name}.")
        else:
            flat[name] = item
    return flat


def _show(value: Any, noise: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        text = f"[{', '.join(f'{each:.4g}' for each in value)}]"
    if isinstance(noise, list) and len(noise) == 2 and None not in noise:
        return f"{text} [{noise[0]:.3g}-{noise[1]:.3g}]"
    return text
