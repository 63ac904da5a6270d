"""The suite layers keeps the bursts that count, says of a part that failed why, and tells quantized products from 16-bit ones."""

from pathlib import Path

import numpy as np

from hw.artifact import load
from hw.suites import layers

VALIDATION = Path(__file__).parents[2] / "scenarios/data/measured/validation"
PARTS = [
    {"part": "mlp.down_proj", "k": 4, "n": 8, "kernel": "Some", "instances": 3},
    {"part": "mlp", "k": 8, "n": 8, "kernel": "Moe", "instances": 1},
]


def sample(number: int, at: int, found: tuple[float, bool] | None, error: str = "") -> dict[str, object]:
    return {"key": f"{number} {at}", "at": at, "found": found, "status": "error" if error else "ok", "error": error}


def test_late_bursts_do_not_count_and_failures_say_why() -> None:
    records = [
        {"key": "parts", "parts": PARTS, "points": [(0, 1), (0, 2), (1, 1)]},
        sample(0, 0, (2e-6, False)), sample(1, 0, (4e-6, False)), sample(2, 0, (9e-3, True)),
        sample(0, 1, (5e-6, True)),
        sample(0, 2, None, "RuntimeError: no"),
    ]  # fmt: skip
    found = layers.dataset(records, {})
    assert found.time_s_median.values[0] == 3e-6
    assert found.status.values.tolist() == ["ok", "late", "error"]
    assert np.isnan(found.time_s_median.values[1:]).all()
    assert found.error.values.tolist() == ["", "", "RuntimeError: no"]


def test_four_bits_read_a_large_weight_in_less_than_half_the_time_of_sixteen_and_compute_no_faster() -> None:
    machete, marlin = (load(VALIDATION / f"h100_layers_llama3.1-8b_{name}.nc", "layers") for name in ("gptq", "awq_marlin"))
    sixteen_s = {1: 83e-6, 2048: 620e-6}  # gate_up of the same shape by F.linear, on such a card
    for data in (machete, marlin):
        at = {r: float(data.time_s_median[(data.part == "mlp.gate_up_proj") & (data.rows == r)].item()) for r in sixteen_s}
        assert at[1] < 0.5 * sixteen_s[1]
        assert at[2048] > 0.95 * sixteen_s[2048]
