"""Every committed measurement opens, names its machine and gates, and its counted iterations are what its cells say."""

from pathlib import Path

import numpy as np
import pytest

from hw.artifact import load
from hw.suites.engine_grid import ITERATION
from sim.errors import SimctlError

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured"
OURS = sorted(p for p in MEASURED.glob("*/*.nc") if p.name.startswith(("floor", "engine-grid", "served")))


@pytest.mark.parametrize("path", OURS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_file_names_its_machine(path: Path) -> None:
    data = load(path)
    for name in ("gpu_name", "driver", "torch_version", "date_utc", "finished"):
        assert name in data.attrs, name
    assert path.parent.name.upper() in data.attrs["gpu_name"].upper()


@pytest.mark.parametrize("path", [p for p in OURS if "engine-grid" in p.name], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_cell_medians_follow_from_the_iterations(path: Path) -> None:
    data = load(path, "engine-grid")
    assert set(ITERATION) <= set(data.variables)
    counted = (data.target.values == 1) & (data.warmup.values == 0)
    for index in range(data.sizes["cell"]):
        rows = counted & (data.cell_index.values == index)
        assert rows.sum() == data.step_s_n.values[index]
        if rows.any():
            assert np.median(data.step_s.values[rows]) == pytest.approx(data.step_s_median.values[index], rel=1e-9)
            assert (data.decode_seqs.values[rows] >= data.batch.values[index]).all()
    assert (data.model_s.values <= data.step_s.values).all()


def test_another_suite_is_refused() -> None:
    floor = next(p for p in OURS if p.stem == "floor")
    with pytest.raises(SimctlError, match="holds suite 'floor'"):
        load(floor, "engine-grid")
