"""How many H100s hold a chat load: the command, the notebook and the page ask the same question and give the same answer."""

import re
from pathlib import Path

import nbformat
import pytest

from simctl.scenario_files.scenario import load_scenario
from tests.cli import run

ROOT = Path(__file__).resolve().parents[2]
NAME = "h100s_for_a_chat_load"
CELLS = nbformat.read(ROOT / "notebooks" / "05_plan_a_fleet.ipynb", as_version=4).cells
CODE = "\n".join(cell.source for cell in CELLS if cell.cell_type == "code").replace('"', "'")
# what a cell printed may have come in several pieces
ANSWER = re.search(r"95 % takes (\d+) GPUs", "".join(output.get("text", "") for output in CELLS[-1].outputs))[1]


def set_to(pattern):
    return re.search(pattern, CODE)[1]


def test_the_notebook_asks_what_the_scenario_asks():
    scenario = load_scenario(Path(NAME))
    assert CELLS[0].source.splitlines()[0] == f"# {scenario.question}"
    asked = {
        "model": set_to(r"Deployment\.of\('([^']+)'"),
        "gpu": set_to(r"Deployment\.of\('[^']+', '([^']+)'"),
        "num-prompts": set_to(r"REQUESTS, DRAWS = (\d+)"),
        "draws": set_to(r"REQUESTS, DRAWS = \d+, (\d+)"),
        "request-rate": f"{float(set_to(r'request_rate=([0-9.]+)')):g}",
        "random-input-len": set_to(r"input_len=(\d+)"),
        "random-output-len": set_to(r"output_len=(\d+)"),
        "random-length-cv": set_to(r"length_cv=([0-9.]+)"),
        "goal": f"{set_to('METRIC = .*, .([a-z0-9_]+).')}<={float(set_to('METRIC = ([0-9.]+)')):g}",
    }
    assert scenario.fixed == asked | {"iterations": False}
    first, last = (cell.label["replicas"] for cell in (scenario.cells[0], scenario.cells[-1]))
    assert set_to(r"counts = range\((.*)\)") == f"{first}, {int(last) + 1}"


def test_the_page_says_what_the_notebook_answers():
    text = (ROOT / "docs" / "plan.md").read_text()
    assert f"({'../scenarios/' + NAME}.yaml) does: {ANSWER} H100s, as does" in text


@pytest.mark.slow
def test_the_command_answers_what_the_notebook_answers():
    assert re.search(rf"=> replicas (\d to {ANSWER}: replicas )?{ANSWER}(: | is\s)the first", run("run", NAME).stdout)
