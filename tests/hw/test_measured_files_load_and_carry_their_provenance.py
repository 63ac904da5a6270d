"""Every committed measurement opens, names its machine and gates, and its counted iterations are what its cells say."""

from pathlib import Path

import numpy as np
import pytest

from calibrate.measurement import open_measurement
from hw.artifact import load
from hw.suites.engine_grid_table import ITERATION
from sim.errors import SimctlError
from studies.replication import knees_page

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured"
OURS = sorted(
    p for p in MEASURED.glob("*/*.nc") if p.name.startswith(("floor", "engine-grid", "served", "weight-axis", "profile", "products"))
)


@pytest.mark.parametrize("path", OURS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_file_names_its_machine(path: Path) -> None:
    data = open_measurement(path, only=())
    for name in ("gpu_name", "driver", "torch_version", "date_utc", "finished"):
        assert name in data.attrs, name
    assert path.parent.name.upper() in data.attrs["gpu_name"].upper()


@pytest.mark.parametrize("path", [p for p in OURS if "engine-grid" in p.name], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_cell_medians_follow_from_the_iterations(path: Path) -> None:
    data = open_measurement(path)
    assert data.attrs["suite"] == "engine-grid"
    assert set(ITERATION) - {"visit"} <= set(data.variables)  # engine-grid/1 and /2 went round once
    visit = data.visit.values if "visit" in data else np.zeros(data.sizes["iteration"])
    counted = (data.target.values == 1) & (data.warmup.values == 0)
    for index in range(data.sizes["cell"]):
        rows = counted & (data.cell_index.values == index)
        assert rows.sum() == data.step_s_n.values[index]
        if rows.any():
            medians = [np.median(data.step_s.values[rows & (visit == v)]) for v in np.unique(visit[rows])]
            assert np.median(medians) == pytest.approx(data.step_s_median.values[index], rel=1e-6)
            assert (data.decode_seqs.values[rows] >= data.batch.values[index]).all()
    assert (data.model_s.values <= data.step_s.values).all()


def test_another_suite_is_refused() -> None:
    floor = next(p for p in OURS if p.stem == "floor")
    with pytest.raises(SimctlError, match="holds suite 'floor'"):
        load(floor, "engine-grid")


def test_the_gemma_inversion_and_the_weight_axis_directions_were_measured() -> None:
    """Larger models of a family cross later, except Gemma 4B -> 12B, which crosses earlier; as docs/replication.md says."""
    knees = knees_page.measured()
    for context in (2048, 8192, 32000):
        for small, large in (("mistral-7b", "mistral-24b"), ("qwen2.5-14b", "qwen2.5-32b")):
            assert knees[large, context].batch > knees[small, context].batch
            assert not knees[small, context].censored
        assert knees["gemma3-12b", context].batch < knees["gemma3-4b", context].batch
