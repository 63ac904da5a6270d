"""`plan --price FILE`: offers by provider and date; the cheapest that lasts counts, and what is not used is named."""

import pytest

from sim.errors import UsageError
from simctl.from_options.price_options import prices_of
from tests.cli import run

OFFERS = """
- {gpu: h100, usd_per_hour: 2.5, provider: dear, date: 2026-11-01}
- {gpu: H100, usd_per_hour: 2.1, provider: cheap, date: 2026-11-02}
- {gpu: H100, usd_per_hour: 0.9, provider: cheap, date: 2026-11-02, spot: true}
- {gpu: L40S, usd_per_hour: 1, provider: dear, date: 2026-11-01}
- {gpu: H100, usd_per_hour: 1.6, provider: cheap, date: 2026-11-02, reserved: true}
"""
WRONG = {
    "gpu: H100": "must be a list of prices",
    "- 7": "price 1: must be a mapping",
    "- {gpu: H100, usd_per_hour: 2}": "price 1: needs provider, date",
    "- {gpu: H100, usd_per_hour: 2, provider: a, date: b, region: c}": "price 1: unknown key 'region'",
    "- {gpu: H100, usd_per_hour: -2, provider: a, date: b}": "usd_per_hour a number above 0",
    "- {gpu: H100, usd_per_hour: .nan, provider: a, date: b}": "usd_per_hour a number above 0",
    "- {gpu: A1O, usd_per_hour: 2, provider: a, date: b}": "unknown GPU 'A1O'",
}


def test_the_cheapest_that_lasts_counts_and_a_term_is_apart(tmp_path, capsys):
    path = tmp_path / "prices.yaml"
    path.write_text(OFFERS)
    lasting, _, reserved = prices_of([str(path), "L40S=0.8"])
    assert (lasting, reserved) == ({"H100": 2.1, "L40S": 0.8}, {"H100": 1.6})
    said = capsys.readouterr().err
    assert "H100 2.1 USD/hour (cheap, 2026-11-02)" in said
    assert "1 spot prices are not used: they lack losses_per_hour" in said


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_price_is_named(text, tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        prices_of([str(path)])
    assert WRONG[text] in str(error.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    result = run("plan", "--gpu", "H100", "--request-rate", "1", "--slo", "ttft:p99<2s", "--price", str(tmp_path / "none.yaml"))
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
