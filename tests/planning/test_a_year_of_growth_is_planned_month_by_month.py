"""`--growth` says what each month needs, and reserves a unit where its used hours cost more on demand."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.planning.choices import Choice, Part
from sim.planning.growth import MONTH_H, MONTHS, year_of
from tests.cli import run

UNIT = Choice("a", None, (Part(1, 2.0, 1, gpu="H100"),))  # 2 USD/hour, holds 1 request/s


def _held(busiest):
    return lambda count, trials: [count / busiest * (1 + 1e-9)] * len(trials)


@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=24), st.floats(1.01, 6.0), st.floats(0.2, 2.5))
def test_the_mix_is_the_cheapest_of_all_numbers_reserved(hours, growth, reserved):
    busiest = max(hours)
    year = year_of(growth, hours, UNIT, int(np.ceil(busiest)), 64, _held(busiest), {"H100": reserved})
    need = np.ceil(np.outer(growth ** (np.arange(MONTHS) / (MONTHS - 1)), hours) - 1e-9)
    length_h = MONTH_H / len(hours)

    def bill(kept):
        return kept * reserved * MONTHS * MONTH_H + 2.0 * length_h * np.maximum(need - kept, 0).sum()

    bills = [bill(kept) for kept in range(int(need.max()) + 1)]
    assert [month.count for month in year.months] == need.max(axis=1).tolist()
    assert year.mixed_usd == pytest.approx(min(bills))
    assert bills[year.kept] == pytest.approx(min(bills))
    assert (year.on_demand_usd, year.reserved_usd) == pytest.approx((bills[0], reserved * need.max() * MONTHS * MONTH_H))


def test_months_beyond_the_limits_say_so():
    year = year_of(8.0, [1.0], UNIT, 1, 4, _held(1.0), {})
    assert [month.count for month in year.months][-3:] == [None] * 3
    assert "end before the growth" in year.text()
    json.loads(json.dumps(asdict(year), allow_nan=False))


def test_the_sentence_gives_each_bill_its_own_figure():
    year = replace(
        year_of(2.0, [1.0], UNIT, 1, 64, _held(1.0), {"H100": 1.0}), on_demand_usd=30e3, reserved_usd=20e3, mixed_usd=15e3, kept=1
    )
    said = "A year of it on demand costs 30,000 USD, the last month's count reserved all year 20,000, "
    said += "1 reserved and the rest on demand 15,000."
    assert year.text() == said


def test_a_plan_of_a_year(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "- {gpu: L40S, usd_per_hour: 1, provider: a, date: 2026-11-01}\n"
        "- {gpu: L40S, usd_per_hour: 0.7, provider: a, date: b, reserved: true}\n"
    )
    options = "plan --gpu L40S --model Llama-3.1-8B --random-output-len 8 --request-rate 4 --slo ttft:p90<2s --quick --workers 1"
    result = run(*options.split(), "--growth", "4", "--price", str(prices), "--json")
    assert result.code == 0, result.stderr
    year = json.loads(result.stdout)["year"]
    counts = [month["count"] for month in year["months"]]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]
    assert year["mixed_usd"] <= min(year["on_demand_usd"], year["reserved_usd"])


def test_a_load_without_a_rate_has_no_growth():
    asked = "plan --gpu L40S --model Llama-3.1-8B --max-concurrency 4 --num-prompts 9 --slo ttft:p90<2s --growth 2"
    result = run(*asked.split(" "))
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "--growth" in result.stderr
