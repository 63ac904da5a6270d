"""One cell of a scenario's sweep: its key, and how a worker answers it.

A worker gets the options, not the question that they make: of 100,000 requests that is 5 MB, and takes longer to send than to make.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sim.errors import SimctlError
from sim.sweeps.figures import figures_from

if TYPE_CHECKING:
    from simctl.scenario_files.scenario import ScenarioCell


class CellTask(NamedTuple):
    """Task of a worker: the cell, the key that it must have there, too, the figures wanted, and those to be compared by pairs."""

    command: str
    given: dict[str, Any]
    key: str
    figures: tuple[str, ...]
    paired: tuple[str, ...] = ()


class Answered(NamedTuple):
    """Figures by variable, or the reason why the command refuses the cell."""

    figures: dict[str, Any]
    reason: str = ""


def key_of(cell: ScenarioCell) -> str:
    """sha256 of all that the answer depends on: options with the seed, the content of files they name, version, formula, code and data."""
    return hashlib.sha256(json.dumps(cell.inputs(), sort_keys=True).encode()).hexdigest()


def answered(task: CellTask) -> Answered:
    """Answer one cell, on whatever machine this is. Raises SimctlError where it would not be the cell that was asked for."""
    from simctl.scenario_files.scenario import ScenarioCell

    cell = ScenarioCell(task.command, {}, task.given)
    serial = (
        ScenarioCell(task.command, {}, {**task.given, "workers": "1"}) if task.command == "plan" else cell
    )  # the other cores have cells, too
    if key_of(cell) != task.key:
        raise SimctlError("a worker has another simctl, or other files under the scenario's names, than the machine that asks")
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # no bar of each of many
            answer = serial.answer(task.paired)
    except click.UsageError as error:
        return Answered({}, error.format_message())
    except SimctlError as error:
        return Answered({}, str(error))
    return Answered(figures_from(task.command, task.given, task.figures, answer))
