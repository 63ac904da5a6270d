"""Every packaged scenario loads, and its first and last cells run and report what they promise."""

import json
from functools import partial
from pathlib import Path

import pytest
import yaml

from sim.results.chance import chance_of
from simctl.scenario_files.scenario import load_scenario
from tests.cli import run

FILES = sorted((Path(__file__).resolve().parents[2] / "scenarios").glob("*.yaml"))
FEW = {"num-prompts": 64, "agent-sessions": 3}  # requests, sessions
FEW_OF_A_PLAN = 12  # requests: it simulates them some thousand times


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_answers(path, tmp_path, monkeypatch):
    """At the first and the last value of all that it sweeps, a simulation with few requests or sessions, repeats and trials."""
    monkeypatch.setattr("sim.study.simulate.REPEATS", 10)
    monkeypatch.setattr("sim.study.simulate.chance_of", partial(chance_of, stages=(4,)))
    body = yaml.safe_load(path.read_text())
    ends = tmp_path / path.name
    body["sweep"] = {key: values[:: max(1, len(values) - 1)] for key, values in body.get("sweep", {}).items()}
    if body["command"] in ("simulate", "plan"):
        (size,) = FEW.keys() & body["options"].keys()
        body["options"][size] = min(body["options"][size], FEW[size] if body["command"] == "simulate" else FEW_OF_A_PLAN)
    if body["command"] == "plan":
        body["options"]["workers"] = 1
        if isinstance(body["options"].get("gpu"), list):
            body["options"]["gpu"] = body["options"]["gpu"][:2]
    if "fleet" in body["sweep"]:
        body["sweep"]["fleet"] = [str(path.parent / name) for name in body["sweep"]["fleet"]]
    ends.write_text(yaml.safe_dump(body))
    whole, short = load_scenario(path), load_scenario(ends)
    assert _ends(short) == _ends(whole)
    answers(ends)


def _ends(scenario):
    """The labels of the first and the last cell; a fleet's by the file's name."""
    return [{key: value.rpartition("/")[2] for key, value in scenario.cells[at].label.items()} for at in (0, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_cell_answers(path):
    answers(path)


def answers(path):
    scenario = load_scenario(path)
    assert scenario.report
    result = run("run", str(path))
    assert result.code == 0, result.stderr
    answer, concluded, _ = result.stdout.partition("\n=> ")
    lines = answer.splitlines()
    heads = [at for at, line in enumerate(lines) if any(name in line for name in scenario.report)]
    assert " ".join(lines[: heads[0]]) == scenario.question
    assert [name for at in heads for name in lines[at].split() if name in scenario.report] == list(scenario.report)
    assert concluded or not any("goal" in each.given for each in scenario.cells)
    assert len([line for line in lines[heads[0] :] if line]) == len(heads) * (1 + len(scenario.cells))


def test_sweep_is_the_product_and_set_replaces(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("question: Which?\ncommand: what-if\noptions: {ctx: 8K}\nsweep: {gpu: [A10, H100], tp: [1, 2]}\nreport: [knee.batch]\n")
    answers = json.loads(run("run", str(path), "--json").stdout)
    assert [tuple(r["cell"].values()) for r in answers["runs"]] == [("A10", "1"), ("A10", "2"), ("H100", "1"), ("H100", "2")]
    assert [r["answer"]["question"]["gpu"] for r in answers["runs"]] == ["A10", "A10", "H100", "H100"]
    fixed = run("run", str(path), "--set", "gpu=L4", "--dry-run").stdout.splitlines()
    assert fixed == ["simctl what-if --ctx 8K --gpu L4 --tp 1", "simctl what-if --ctx 8K --gpu L4 --tp 2"]


def test_packaged_ones_go_by_their_name_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_scenario(Path("long_context_cards")) == load_scenario(FILES[[f.stem for f in FILES].index("long_context_cards")])
    assert "no such scenario" in run("run", "long_context_carts").stderr
