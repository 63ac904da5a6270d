"""The loop's wide interval: no noise leaves the rates' own, noise covers as often as it claims, the new load takes no part."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.artifact import write
from hw.suites.served import dataset
from simctl.loop_steps import compare, with_noise

KEYS = ("median_ttft_ms", "median_tpot_ms", "median_e2el_ms")


def test_without_noise_the_interval_is_that_of_the_rates_and_without_repeats_there_is_none() -> None:
    assert with_noise(10.0, 9.0, 12.0, np.zeros(2)) == pytest.approx((9.0, 12.0))
    assert with_noise(10.0, 9.0, 12.0, np.array([])) is None


def test_an_interval_that_does_not_hold_its_centre_is_widened_from_the_centre() -> None:
    low, high = with_noise(10.0, 10.5, 12.0, np.array([0.1, -0.1])) or (0.0, 0.0)
    assert low < 10.0 / 1.1
    assert high > 12.0


@pytest.mark.parametrize("repeats", [2, 5])
def test_it_covers_nine_of_ten_new_runs_however_few_the_repeats(repeats: int) -> None:
    rng = np.random.default_rng(4)
    noise, ratios = 0.08 * rng.standard_normal(4000), 0.08 * rng.standard_normal((4000, repeats))
    held = [low <= 10.0 * np.exp(e) <= high for e, r in zip(noise, ratios, strict=True) for low, high in [with_noise(10.0, 10.0, 10.0, r)]]  # type: ignore[misc]
    assert 0.88 < np.mean(held) < 0.92


def record(name: str, scale: float) -> dict[str, Any]:
    """Four requests of five tokens: first after 20 ms, then every 10 ms, times `scale`."""
    requests = [
        {
            "session": -1, "turn": 0, "arrival_s": float(i), "prompt_tokens": 16, "output_tokens": 5, "asked_tokens": 5,
            "cached_tokens": None, "first_token_s": 0.02 * scale, "finish_s": 0.06 * scale,
            "itl_median_s": 0.01, "itl_max_s": 0.01, "ok": True, "error": "",
        }
        for i in range(4)
    ]  # fmt: skip
    row = {
        "name": name,
        "kind": "open",
        "n": 4,
        "rate_per_s": 1.0,
        "prompt_tokens_asked": 16,
        "output_tokens_asked": 5,
        "void": "",
        "requests": 4,
    }
    return {"row": row, "requests": requests, "tokens": [[0.0] * 5] * 4}


def served(*loads: tuple[str, float]) -> Any:
    return dataset([record(*load) for load in loads], {"finished": 1})


def rows_of(tmp_path: Path, new_scale: float) -> list[tuple[str, ...]]:
    first = served(("open 0.5/s", 1.0), ("open 1.5/s", 1.0))
    second = served(("open 0.5/s", 1.1), ("open 1.5/s", 1 / 1.1), ("open 1/s", new_scale))
    write(second, tmp_path / "second.nc", {})
    result = SimpleNamespace(summary=dict.fromkeys(KEYS, 20.0), rate_intervals=dict.fromkeys(KEYS, (20.0, 20.0)))
    ours: NDArray[np.float64] = np.full(4, 20.0)
    predicted = {"result": result, "latencies": dict.fromkeys(("ttft", "tpot", "e2el"), ours)}
    rows, requests = compare(SimpleNamespace(first=first), predicted, tmp_path / "second.nc", "open 1/s")  # type: ignore[arg-type]
    assert requests["n"] == 4
    assert requests["repeated"].startswith("ttft 9.") or requests["repeated"].startswith("ttft 10.")
    return rows


def test_the_noise_is_that_of_the_known_loads_whatever_the_new_one_measured(tmp_path: Path) -> None:
    near, far = rows_of(tmp_path, 1.0), rows_of(tmp_path, 3.0)
    # two ratios of 1.1 and 1 / 1.1, Student's t of two degrees of freedom at 95 %: 2.92
    want = [20.0 * np.exp(-2.92 * np.log(1.1)), 20.0 * np.exp(2.92 * np.log(1.1))]
    assert [row[4] for row in near] == [row[4] for row in far]
    assert np.allclose([float(x) for x in near[0][4].strip("[]").split(", ")], want, atol=0.06)
    assert near[0][3] == "[20.0, 20.0]"
    assert near[0][5:] == ("20.0 ms", "+0.0%", "10.0%")
    assert far[0][5:] == ("60.0 ms", "-66.7%", "10.0%")
