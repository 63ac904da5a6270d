"""Every packaged scenario states its question first, names the published schema and follows it; the schema is what the command prints."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from simctl.scenario_files.scenario import load_scenario
from simctl.scenario_files.scenario_schema import schema
from tests.cli import run

FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
FILES = sorted(FOLDER.glob("*.yaml"))
SCHEMA = schema()
GOOD = {
    "question": "How fast?",
    "command": "simulate",
    "options": {"gpu": "A10", "draws": 0},
    "sweep": {"replicas": [1, 2]},
    "report": ["completed"],
}
BAD = {
    "no question": {**GOOD, "question": "Fast"},
    "another command's option": {**GOOD, "options": {"ctx": "8K"}},
    "an unknown key": {**GOOD, "sweeps": {}},
    "a sweep of one value": {**GOOD, "sweep": {"replicas": 2}},
    "a number out of its range": {**GOOD, "options": {"replicas": 0}},
    "a word for a number": {**GOOD, "options": {"replicas": "two"}},
    "an unknown choice": {**GOOD, "options": {"scheduling-policy": "lifo"}},
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_is_read_and_follows_it(path):
    text = path.read_text()
    jsonschema.validate(yaml.safe_load(text), SCHEMA)
    scenario = load_scenario(path)
    first, second, *_ = text.splitlines()
    assert first == f"# {scenario.question}"
    assert second == "# yaml-language-server: $schema=scenario.schema.json"
    for cell in scenario.cells:
        cell.options()


def test_there_is_one_study_for_each_question():
    assert len({load_scenario(path).question for path in FILES}) == len(FILES) >= 16


def test_the_page_lists_them_all():
    page = (FOLDER.parent / "docs" / "plan.md").read_text()
    assert [path.stem for path in FILES if f"`{path.stem}`" not in page] == []


def test_the_published_one_is_what_the_command_prints():
    assert run("run", "--schema").stdout == (FOLDER / "scenario.schema.json").read_text(), (
        "simctl run --schema > scenarios/scenario.schema.json"
    )
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", BAD)
def test_it_refuses(name):
    jsonschema.validate(GOOD, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(BAD[name], SCHEMA)
