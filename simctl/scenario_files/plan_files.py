"""Plan files: written with what asked them, and read for what they say."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.errors import UsageError
from sim.files import text_of
from sim.planning.answer import PlanAnswer
from sim.planning.emit import check_emits
from sim.planning.plan_file import checked, known, saved, trials_of
from sim.planning.race import RaceResult
from sim.slo import parse_slo
from simctl.from_options.questions import plan_of
from simctl.options.plan_options import PARSER
from simctl.scenario_files.scenario import ScenarioCell, versions

if TYPE_CHECKING:
    from sim import Plan

MOST_BYTES = 64 << 20
MARK = '"simctl_plan"'  # the first key


class PlanFile(NamedTuple):
    """The data of a plan file (sim.planning.plan_file), and what it is called in errors."""

    name: str
    found: dict[str, Any]


def plan_text(answer: PlanAnswer, arguments: Sequence[str]) -> str:
    """A plan file's text."""
    arguments = _without(arguments, ("-o", "--out"))
    made_by, files = _made_of(arguments)
    return json.dumps(saved(answer, arguments, made_by, files)) + "\n"


def plan_in(path: Path) -> PlanFile | None:
    """The plan that a file holds; None where it is no plan file. Raises UsageError for one of another version, or a damaged one."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(64).lstrip()
    if not begin.startswith(b"{") or MARK.encode() not in begin:
        return None
    try:
        found = json.loads(text_of(path, MOST_BYTES))
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: a damaged plan file: plan it again") from None
    return PlanFile(str(path), checked(found, str(path)))


def options_of_plan(plan: PlanFile) -> dict[str, Any]:
    """The options that asked a plan. Raises UsageError for what this simctl does not take, and for a class: importing it runs code."""
    try:
        options = dict(PARSER.make_context("plan", list(plan.found["arguments"])).params)
    except click.UsageError as error:
        raise UsageError(f"{plan.name}: {error.format_message()}") from None
    except click.exceptions.Exit:
        raise UsageError(f"{plan.name}: a damaged plan file: plan it again") from None
    if named := next((each for each in (options["engine"], *options["router"]) if each and "." in each.strip(".")), None):
        raise UsageError(f"{plan.name}: names a class, {named}, and importing one runs code: ask with the options themselves")
    return options


def gone_on(question: Plan, plan: PlanFile, arguments: Sequence[str]) -> Plan:
    """The question with the trials of a plan file. Raises UsageError where they are of another simctl, or of other files."""
    if _made_of(arguments) != (plan.found["made_by"], plan.found["files"]):
        raise UsageError(f"{plan.name}: its trials are of another simctl, or of other files: plan it again without --more-time")
    return replace(question, known=trials_of(plan.found, len(parse_slo(question.slo, question.goodput)), plan.name))


def known_of(plan: PlanFile, options: Mapping[str, Any]) -> RaceResult:
    """What the trials of a plan file say of its choices. Raises UsageError where those are no choices any more."""
    question = plan_of(options)
    choices, _ = question.choices()
    if options.get("emit"):
        check_emits(choices)
    conditions = parse_slo(question.slo, question.goodput)
    trials = trials_of(plan.found, len(conditions), plan.name)
    if lost := trials.keys() - {choice.name for choice in choices}:
        raise UsageError(f"{plan.name}: {min(lost)} is no choice of this simctl: plan it again")
    return known(choices, conditions, trials)


def _without(arguments: Sequence[str], valued: Sequence[str]) -> list[str]:
    """Words of a command line without these options."""
    found: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in valued:
            rest = rest[1:]
        elif not word.startswith(tuple(f"{name}=" for name in valued)):
            found.append(word)
    return found


def _made_of(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(versions of what answers, digests of the files that the words name)."""
    words = [each for word in arguments for each in (word, word.partition("=")[2])]
    return versions(), ScenarioCell("plan", {}, {"arguments": words}).inputs()["files"]
