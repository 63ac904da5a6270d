"""Length, links and language of the documentation."""

import re

import pytest

from tests.docs.pages import CURRENT, FENCE, PAGES, ROOT, name_of, prose_of, refresh, text_of

ADR_WORDS = 250
MEAN_SENTENCE = 20
LONGEST_SENTENCE = 45
# Words that once had a meaning in this project alone. What a reader of the field would say stands beside them.
DIALECT = {
    r"bills?": "work (bytes, flops) or cost",
    r"settles?|settled": "take, compute",
    r"dealing|dealt( out)?|last turn": "wave quantisation",
    r"boosts?|rested|ow(?:e|ed|es)": "power-limit transient, throttle carry-over",
    r"spells?|late launch(es)?": "launch jitter",
    r"intake": "prompt ingestion",
    r"runner2": "model runner v2",
    r"served path": "serving overhead",
    r"carried over": "transferred",
    r"bent|laid straight": "reparameterisation",
    r"alone|unseen": "microbenchmark, held out",
    r"middles?|sendings?|sent again": "median, replicates",
    r"price of finding": "block selection",
    r"told|tells|sure|laid anew": "given, significant, refitted",
}
PATTERNS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): instead for word, instead in DIALECT.items()}


def words(text: str) -> int:
    """Number of words as `wc -w` counts them."""
    return len(text.split())


def sentences(path) -> list[str]:
    """Sentences of a page's prose; a list item ends one, an address in a link is none of its words."""
    text = re.sub(r"\]\([^)]*\)", "]", prose_of(path))
    parts = re.split(r"(?<=[.?!:;])\s+|\n\s*\n|\n\s*(?:[*-]|\d+\.)\s", text)
    return [part for part in parts if words(part) > 2]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "adr").glob("*.md")), ids=name_of)
def test_a_decision_fits_its_page(path):
    assert words(text_of(path)) <= ADR_WORDS
    assert re.match(r"# \d+\. \S", text_of(path))


def test_decisions_are_few():
    assert len(list((ROOT / "docs" / "adr").glob("*.md"))) <= 12


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_sentences_are_short(path):
    lengths = [words(sentence) for sentence in sentences(path)]
    assert sum(lengths) <= MEAN_SENTENCE * max(len(lengths), 1)
    assert [sentence for sentence in sentences(path) if words(sentence) > LONGEST_SENTENCE] == []


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_the_words_are_the_fields(path):
    found = {m[0]: instead for pattern, instead in PATTERNS.items() for m in pattern.finditer(prose_of(path))}
    assert found == {}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_and_images_point_at_files(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(path)):
        assert (path.parent / target).exists(), target


def test_every_page_is_linked_from_another():
    linked = {(path.parent / target).resolve() for path in PAGES for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text_of(path))}
    entries = [path for path in PAGES if path.parent.name != "adr" and path.name != "README.md"]
    assert [name_of(path) for path in entries if path.resolve() not in linked] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_output_fits_80_columns(path):
    """What a command prints; a command that is typed may be longer, but not in the README."""
    shown = [line for found in refresh.BLOCK.finditer(text_of(path)) for line in found["output"].splitlines()]
    if path.name == "README.md":
        shown += [line for found in FENCE.finditer(text_of(path)) for line in found["body"].splitlines()]
    assert [line for line in shown if len(line) > 80] == []


def test_every_image_has_a_command():
    pages = ROOT / "studies" / "replication"
    programs = (*(ROOT / "docs" / f"{name}.py" for name in ("refresh", "kernels_page")), *pages.glob("*_page.py"))
    scripts = "".join(map(text_of, programs))
    for path in (ROOT / "docs" / "img").iterdir():
        assert path.name in scripts, path.name


def test_every_image_is_shown():
    shown = {(path.parent / target).resolve() for path in PAGES for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text_of(path))}
    assert {path.resolve() for path in (ROOT / "docs" / "img").iterdir()} <= shown
