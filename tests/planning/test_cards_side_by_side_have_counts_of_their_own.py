"""Cards side by side: each card's count is the least that certainly does, as brute force finds it; the cheapest rests on all of them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Plan, Workload, deployments
from sim.planning.compare import compared, least_certain, most_that_fail
from sim.planning.race import RANKED, CandidateState, Race
from sim.results.chance import chance_of
from sim.specs.gpus import get_gpu
from simctl.report import of_compare
from simctl.report.picture_files import plot
from simctl.text.compare_text import compare_lines, conclusion
from tests.cli import run
from tests.planning.synthetic import MOST, choices, trials

LOAD = ("--model", "Llama-3.1-8B", "--users", "60", "--think-time", "30s", "--slo", "ttft:p95<2s tpot:p95<60ms", "--workers", "1")
RISING = st.lists(st.floats(0.0, 1.0), min_size=MOST, max_size=MOST).map(sorted)


@settings(max_examples=40)
@given(RISING, st.integers(0, 1000), st.integers(0, MOST - 1))
def test_the_count_is_the_least_that_brute_force_finds(chances, seed, fails):
    """Where 20 trials of the most units are below 0.95 no count is searched: brute force is asked with that, too."""
    sample = trials([chances], seed)
    certain = [bool(chance_of(lambda i, n=n: sample(0, n, [i])[0].met, RANKED).certain) for n in range(1, MOST + 1)]
    least = next((count for count, does in enumerate(certain, 1) if does and count > fails), None)
    race = Race(choices([1.0]), sample, MOST, [CandidateState(fails=fails)])
    found = least_certain(race, 0, MOST)
    if found is None:
        assert least is None or sum(sample(0, MOST, [i])[0].met for i in range(20)) < 19
    else:
        assert found.replicas == least
        assert found.chance.trials >= 60
        surely_not = [n for n in range(1, least) if chance_of(lambda i, n=n: sample(0, n, [i])[0].met, RANKED).certain is False]
        assert most_that_fail(race, found) == max([fails, *surely_not])


@pytest.fixture(scope="module")
def found():
    load = Workload.drawn(1000, request_rate=2.0)
    return compared(Plan(deployments("Llama-3.1-8B", ["L40S", "H100", "L4"]), load, ("ttft:p95<2s", "tpot:p95<60ms"), workers=1))


def test_every_card_is_searched_and_the_cheapest_is_named(found):
    cards = {card["gpu"]: card for card in found.to_dict()["cards"]}
    assert list(cards) == ["L40S", "H100", "L4"]
    assert all(card["decided"] for card in cards.values())
    assert "a token takes" in cards["L4"]["why"]
    bought = {name: cards[name] for name in ("L40S", "H100")}
    assert all(card["certain"] and card["trials"] >= 60 for card in bought.values())
    assert found.cheapest.gpu == min(bought, key=lambda name: bought[name]["usd_per_hour"])
    for name, card in bought.items():
        assert card["power_limit_kw"] == pytest.approx(1e-3 * card["gpus"] * get_gpu(name).power_w)
        assert card["usd_per_hour"] == pytest.approx(card["gpus"] * card["usd_per_gpu_hour"])
        speeds = [speed for speed, _ in card["curve"]]
        assert speeds == sorted(speeds, reverse=True)


def test_a_report_and_a_picture_show_every_card(found, tmp_path):
    plain = found.to_dict() | {"conclusion": conclusion(found)}
    (tmp_path / "cards.json").write_text(json.dumps(plain))
    plot(of_compare.part_of(plain).pictures, tmp_path / "cards.svg")
    assert run("report", str(tmp_path / "cards.json"), "-o", str(tmp_path / "cards.html")).code == 0
    for text in ((tmp_path / "cards.html").read_text(), (tmp_path / "cards.svg").read_text()):
        assert "L40S" in text
        assert "H100" in text


def test_an_answer_in_words_fits_80_columns_and_says_the_prices(found):
    text = "\n".join(compare_lines(found))
    assert max(map(len, text.splitlines())) <= 80
    assert "L40S is cheapest: 1 of 1 x L40S, 1.95 USD/hour" in text
    assert "USD per GPU-hour: L40S 1.95, H100" in " ".join(text.split())


def test_a_cheaper_card_that_is_open_leaves_the_verdict_open(found):
    cut = replace(found.cards[0], result=replace(found.cards[0].result, best=None, ended="time is up"), point=None)
    open_ = replace(found, cards=[cut, *found.cards[1:]])
    assert open_.cheapest is None
    assert "Undecided: H100 looks cheapest" in " ".join(compare_lines(open_))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--gpu", "H100"), "of two GPUs or more"),
        (("--gpu", "H100,L4", "--quick"), "--quick is of the cheapest deployment alone"),
        (("--gpu", "H100,L4", "--pools", "prefill-decode"), "each with one pool"),
    ],
)
def test_what_has_no_sides_is_one_line(more, why):
    code, out, err = run("plan", "--compare", *LOAD, *more)
    assert (code, out) == (2, "")
    assert why in err.splitlines()[-1]


def test_a_picture_is_of_cards_side_by_side(tmp_path):
    code, _, err = run("plan", "--gpu", "H100", *LOAD, "--plot", str(tmp_path / "one.png"))
    assert code == 2
    assert "give --compare" in err
