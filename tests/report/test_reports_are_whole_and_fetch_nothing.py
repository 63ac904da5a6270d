"""A report is one file: nothing to fetch, every picture with its question, its units and its reading, small enough to mail."""

import json
import re

import pytest

from simctl.report.inputs import part_of
from tests.report.results import page_of, results

MOST_BYTES = 3_000_000
EXPECTED = {
    "run": {"ttft", "tpot", "e2el", "batch_and_queue", "kv", "ttft_over_time", "output", "cost_by_term", "cost_over_time", "slowest"},
    "fleet": {"fleet", "ttft", "slowest"},
    "figures_only": {"ttft", "tpot", "e2el"},
    "sweep": {"p99_ttft_ms", "p99_e2el_ms", "output_throughput"},
    "plan": {"front", "tried", "limits", "cost_by_term"},
    "map": {"regime"},
    "claims": {"verdicts"},
    "scores": {"coverage", "errors", "bias"},
    "posterior": {"rates", "held_out"},
}


def test_the_page_of_a_plan_says_why():
    path = results()["plan"]
    why = json.loads(path.read_text())["reasons"]
    assert (why[0][:4], why[-1][:5]) == ("Why ", "With ")
    assert [note for note in part_of(path).notes if note in why] == why


@pytest.mark.parametrize("kind", EXPECTED)
def test_every_kind_of_result(kind, tmp_path):
    path = results()[kind]
    part = part_of(path)
    assert EXPECTED[kind] <= {picture.name for picture in part.pictures}
    for picture in part.pictures:
        assert "?" in picture.question
        assert picture.reading.endswith(".")
    assert part.question.endswith("?")
    assert part.headlines
    assert any(part.scope)
    text, page = page_of(tmp_path / "report.html", path)
    assert len(text.encode()) < MOST_BYTES
    assert len(page.pictures()) == len(part.pictures)
    for tag, attrs in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "srcset"} & attrs.keys()
        assert attrs.get("href", "#").startswith("#")
    assert "@import" not in text.split("</style>")[0]
    assert "url(" not in text.split("</style>")[0]


def test_axes_name_their_units():
    """Every axis with numbers has a title, and one that is no share says in what it counts."""
    for path in results().values():
        for picture in part_of(path).pictures:
            axes = [layer["encoding"][way] for layer in picture.spec["layer"] for way in ("x", "y") if way in layer["encoding"]]
            titles = [axis["title"] for axis in axes if axis.get("type") == "quantitative"]
            assert titles or picture.name == "regime"
            for title in titles:
                assert re.search(r"\(.+\)|%|per|/s|requests|rate over its median", title), title


def test_several_results_are_one_report(tmp_path):
    text, page = page_of(tmp_path / "all.html", *results().values())
    assert len(text.encode()) < MOST_BYTES
    places = {attrs["id"] for _, attrs in page.tags if attrs.get("id")}
    assert {attrs["href"].lstrip("#") for tag, attrs in page.tags if tag == "a"} <= places
    assert len(places) == sum("id" in attrs for _, attrs in page.tags)


def test_the_same_result_is_the_same_page(tmp_path):
    assert page_of(tmp_path / "a.html", results()["run"])[0] == page_of(tmp_path / "b.html", results()["run"])[0]
