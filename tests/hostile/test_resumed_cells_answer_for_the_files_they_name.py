"""A store takes an answer only for the content of the files that a cell names."""

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
def test_another_content_is_another_cell(kind, tmp_path):
    path, named, other = setting(tmp_path, kind)
    out = ("sweep", str(path), "-o", str(tmp_path / "out.zarr"))
    first = run(*out)
    assert first.code == 0, first.stderr
    if kind == "trace":
        assert "1 of 1 cells are done" in run(*out).stderr
    named.write_text(other)
    assert "name files that have changed: they run again" in run(*out).stderr
    if kind == "trace":
        assert "1 of 1 cells are done" in run(*out).stderr
