"""A measured run is scored by the rows that were written down for its server, and by no others."""

from pathlib import Path

import pytest

from sim.errors import UsageError
from studies.predict_served import COLUMNS
from studies.score_predictions import scored

MEASURED = Path(__file__).parents[2] / "scenarios" / "data" / "measured" / "validation"
MARLIN = MEASURED / "h200_served_llama3.1-8b_awq_marlin.nc"


SERVER = {"gpu": "H200", "model": "llama3.1-8b", "weight_dtype": "awq", "engine_args": "--linear-backend marlin"}


def row(metric: str, median: float, low: float, high: float, **of: str) -> dict[str, str]:
    times = {"median_ms": str(median), "median_low_ms": str(low), "median_high_ms": str(high)}
    return dict.fromkeys(COLUMNS, "") | SERVER | {"experiment": "open 2/s", "metric": metric} | times | of


def test_a_median_inside_its_interval_is_told_from_one_outside() -> None:
    ((load, metric, measured, predicted, inside),) = scored([row("ttft", 30.0, 29.0, 31.0)], MARLIN)
    assert (load, metric, predicted, inside) == ("open 2/s", "ttft", 30.0, True)
    assert measured == pytest.approx(30.0, abs=0.1)  # by python -m hw.show
    assert not scored([row("ttft", 31.0, measured + 0.01, 32.0)], MARLIN)[0][-1]


@pytest.mark.parametrize("other", [{"engine_args": "--linear-backend machete"}, {"weight_dtype": "gptq"}, {"gpu": "H100"}])
def test_rows_of_another_server_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="no prediction for llama"):
        scored([row("ttft", 30.0, 29.0, 31.0, **other)], MARLIN)


def test_other_weights_stand_in_where_they_are_asked_for() -> None:
    assert len(scored([row("tpot", 3.3, 3.0, 4.0, weight_dtype="gptq")], MARLIN, "gptq")) == 1


def test_rows_that_say_more_of_the_server_go_before_those_that_say_less() -> None:
    rows = [row("ttft", 30.0, 29.0, 31.0), row("ttft", 50.0, 49.0, 51.0, engine_args="")]
    assert [predicted for _, _, _, predicted, _ in scored(rows, MARLIN)] == [30.0]
