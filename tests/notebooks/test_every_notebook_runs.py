"""Every notebook runs from top to bottom in any folder, estimates before it computes, and its last cell prints a number with its unit."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# What is run before a notebook that takes long, so that it asks its question of fewer simulations.
HURRIED = {
    "04_routing_for_agents": "import sim.study.simulate as s; s.REPEATS = 10\n"
    "from sim import Workload; whole = Workload.agents; Workload.agents = lambda n, **k: whole(10, **k)",
    "05_plan_a_fleet": "import sim.study.simulate as s; whole, s.REPEATS = s.run_study, 10; s.run_study = lambda *a, **k: whole(*a, **k | {'draws': 2})\n"
    "import sim.results.chance as c; c.CERTAINTY, s.chance_of.__defaults__ = 0.5, ((8,),)",
    "02_calibrate_and_check": "import calibrate.logs.learn as learn; learn.ROUNDS, learn.SIMULATIONS = 2, 30",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_runs_and_ends_with_a_number(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    ends_with_a_number(notebook, HURRIED.get(path.stem, ""), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", HURRIED)
def test_a_hurried_one_runs_as_it_is_too(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ends_with_a_number(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4), "", tmp_path)


def ends_with_a_number(notebook, first, folder):
    code = next(cell for cell in notebook.cells if cell.cell_type == "code")
    code.source = f"{first}\n{code.source}"
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    assert notebook.cells[0].source.startswith("# ")
    assert "?" in notebook.cells[0].source.splitlines()[0]
    assert "## On a napkin" in notebook.cells[2].source
    # What a cell prints can come in several pieces, the last one a line's end.
    last = "".join(output["text"] for output in notebook.cells[-1].outputs if output.output_type == "stream")
    assert re.search(r"\d\s*(tok/s|s|ms|x|GB|requests/s|GPUs)\b", last)


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_committed_with_the_outputs_of_one_run(path):
    """A reader sees the answers without running anything; `python docs/refresh.py --notebooks` makes them."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    assert cells[-1].outputs
