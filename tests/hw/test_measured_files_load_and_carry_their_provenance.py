"""Every committed measurement opens, names its machine and gates, and its counted iterations are what its cells say."""

import csv
import io
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from hw.artifact import load
from hw.curves import write_curves
from hw.suites.engine_grid_table import ITERATION
from sim.errors import SimctlError
from sim.knee import continuous_knee

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured"
OURS = sorted(
    p
    for p in MEASURED.glob("*/*.nc")
    if p.name.startswith(("floor", "engine-grid", "served", "weight-axis", "profile", "products", "duty"))
)


@pytest.mark.parametrize("path", OURS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_file_names_its_machine(path: Path) -> None:
    data = load(path)
    for name in ("gpu_name", "driver", "torch_version", "date_utc", "finished"):
        assert name in data.attrs, name
    assert path.parent.name.upper() in data.attrs["gpu_name"].upper()


@pytest.mark.parametrize("path", [p for p in OURS if "engine-grid" in p.name], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_cell_medians_follow_from_the_iterations(path: Path) -> None:
    data = load(path, "engine-grid")
    assert set(ITERATION) - {"visit"} <= set(data.variables)  # engine-grid/1 and /2 went round once
    visit = data.visit.values if "visit" in data else np.zeros(data.sizes["iteration"])
    counted = (data.target.values == 1) & (data.warmup.values == 0)
    for index in range(data.sizes["cell"]):
        rows = counted & (data.cell_index.values == index)
        assert rows.sum() == data.step_s_n.values[index]
        if rows.any():
            medians = [np.median(data.step_s.values[rows & (visit == v)]) for v in np.unique(visit[rows])]
            assert np.median(medians) == pytest.approx(data.step_s_median.values[index], rel=1e-9)
            assert (data.decode_seqs.values[rows] >= data.batch.values[index]).all()
    assert (data.model_s.values <= data.step_s.values).all()


def test_another_suite_is_refused() -> None:
    floor = next(p for p in OURS if p.stem == "floor")
    with pytest.raises(SimctlError, match="holds suite 'floor'"):
        load(floor, "engine-grid")


def test_the_weight_axis_curves_are_those_of_their_files() -> None:
    folder = MEASURED / "h100"
    text = io.StringIO()
    write_curves(sorted(folder.glob("weight-axis_*.nc")), text)
    assert (folder / "weight-axis_curves.csv").read_text() == text.getvalue()


def test_the_gemma_inversion_and_the_weight_axis_directions_were_measured() -> None:
    """Larger models of a family cross later, except Gemma 4B -> 12B, which crosses earlier; as docs/replication.md says."""
    with (MEASURED / "h100" / "weight-axis_curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    knees = {}
    for (model, context), group in groupby(rows, key=lambda r: (r["model"], int(r["context_tokens"]))):
        curve = [(int(r["batch"]), float(r["step_s"])) for r in group]
        knees[model, context] = continuous_knee([b for b, _ in curve], [curve[0][1] / t for _, t in curve])
    for context in (2048, 8192, 32000):
        for small, large in (("mistral-7b", "mistral-24b"), ("qwen2.5-14b", "qwen2.5-32b")):
            assert knees[large, context].batch > knees[small, context].batch
            assert not knees[small, context].censored
        assert knees["gemma3-12b", context].batch < knees["gemma3-4b", context].batch
