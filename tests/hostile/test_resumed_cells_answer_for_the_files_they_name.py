"""`simctl run --resume` takes an answer only for the options, files and version it was computed from; a damaged cell runs again."""

import json

import pytest

from sim.specs.models import catalogue_config
from tests.cli import run

TRACE = '{"arrival_s": 0, "prompt_tokens": 64, "output_tokens": 4}\n'
CELLS = "question: How fast?\ncommand: simulate\nreport: [total_input_tokens]\noptions: {gpu: A10, draws: 0"


def setting(folder, kind):
    """(scenario, the file it names, another content of it)"""
    path = folder / "study.yaml"
    if kind == "trace":
        named, other = folder / "trace.jsonl", TRACE.replace("64", "128")
        named.write_text(TRACE)
        path.write_text(CELLS + ", trace: trace.jsonl}\n")
    elif kind == "model":
        named, other = folder / "config.json", json.dumps(catalogue_config("Qwen2.5-0.5B"))
        named.write_text(json.dumps(catalogue_config("Qwen2.5-7B")))
        path.write_text(CELLS + f", num-prompts: 3, model: {named}}}\n")
    else:
        gpu = "- {name: A, memory_bytes: 4e10, memory_bandwidth: 6e11, flops: {bf16: 1.2e14}, host_link_bandwidth: 2e10}\n"
        named, other = folder / "card.yaml", gpu.replace("6e11", "3e11")
        named.write_text(gpu)
        path.write_text(CELLS.replace("gpu: A10", f'gpu: "{named}:A"') + ", num-prompts: 3}\n")
    return path, named, other


@pytest.mark.parametrize("kind", ["trace", "model", "GPU file"])
def test_another_content_is_another_cell(kind, tmp_path, monkeypatch):
    path, named, other = setting(tmp_path, kind)
    out = ("-o", str(tmp_path / "out"), "--resume", "--json")
    first = run("run", str(path), *out)
    assert first.code == 0, first.stderr
    with monkeypatch.context() as patch:
        patch.setattr("simctl.scenario.ScenarioCell.answer", None)  # not asked again
        assert run("run", str(path), *out) == first
    named.write_text(other)
    again = run("run", str(path), *out)
    assert (again.code, again.stderr) == (0, "")
    assert again.stdout != first.stdout
    assert again == run("run", str(path), "--json")


DAMAGES = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "another answer": lambda text: text.replace('"total_input_tokens": 64', '"total_input_tokens": 65'),
    "nested": lambda text: "[" * 100_000,
    "no answer": lambda text: json.dumps({"asked": json.loads(text)["asked"]}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cell_runs_again_and_says_so(damage, tmp_path):
    path, _, _ = setting(tmp_path, "trace")
    out = ("-o", str(tmp_path / "out"), "--resume", "--json")
    first = run("run", str(path), *out)
    kept = tmp_path / "out" / "study-0000.json"
    sound = kept.read_text()
    kept.write_text(DAMAGES[damage](sound))
    again = run("run", str(path), *out)
    assert (again.code, again.stdout) == (0, first.stdout)
    assert again.stderr == f"{kept}: damaged: this cell runs again\n"
    assert kept.read_text() == sound
