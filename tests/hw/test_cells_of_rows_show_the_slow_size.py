"""Whole iterations of 448 rows take longer than their neighbours, by at least what the products alone take beyond smooth."""

from pathlib import Path

import pytest

from hw.artifact import load

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured" / "h100"


@pytest.mark.parametrize(("name", "around", "alone_ms"), [("llama3.1-8b_6", 4.3, 3.65), ("qwen3-14b_4", 10.7, 7.93)])
def test_448_rows_stand_out_of_432_and_464(name: str, around: float, alone_ms: float) -> None:
    data = load(MEASURED / f"engine-grid_{name}.nc", "engine-grid")
    ms = {
        str(label): 1e3 * float(median)
        for label, role, median in zip(data.label.values, data.role.values.astype(str), data.step_s_median.values, strict=True)
        if role == "grid"
    }
    low, here, high = (ms[f"mixed:8x1024+1x{rows - 8}@0"] for rows in (432, 448, 464))
    assert here - (low + high) / 2 == pytest.approx(around, abs=0.1)
    assert here - (low + high) / 2 > alone_ms
