"""--pictures writes every picture of every kind of result, drawn: its marks and its axes, not a blank sheet."""

import re

import numpy as np
import pytest

from simctl.report.inputs import part_of
from tests.cli import run
from tests.report.results import results

KINDS = ("run", "fleet", "figures_only", "sweep", "plan", "map", "claims", "scores", "posterior")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder of pictures that one report of every result wrote."""
    folder = tmp_path_factory.mktemp("pictures")
    done = run("report", *(str(results()[kind]) for kind in KINDS), "-o", str(folder / "report.html"), "--pictures", str(folder / "all"))
    assert done.code == 0, done.stderr
    return folder / "all"


@pytest.fixture(scope="module")
def parts():
    return {kind: part_of(results()[kind]) for kind in KINDS}


def test_every_kind_of_result_is_here(files, parts):
    assert set(KINDS) == set(results())
    names = {f"{i}_{picture.name}" for i, kind in enumerate(KINDS, 1) for picture in parts[kind].pictures}
    assert {each.name for each in files.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_drawn_as_png(kind, files, parts):
    from PIL import Image

    for picture in parts[kind].pictures:
        with Image.open(files / f"{KINDS.index(kind) + 1}_{picture.name}.png") as image:
            image.load()
            assert image.format == "PNG"
            grey = np.asarray(image.convert("RGBA").convert("L"), dtype=float)
        assert min(grey.shape) > 200, picture.name
        # text and marks in every quarter of the sheet: no blank one, and none drawn beyond its edge
        ink = np.abs(grey - np.median(grey)) > 60
        height, width = ink.shape
        quarters = [ink[i * height // 2 : (i + 1) * height // 2, j * width // 2 : (j + 1) * width // 2] for i in (0, 1) for j in (0, 1)]
        assert min(quarter.mean() for quarter in quarters) > 1e-3, picture.name


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_drawn_as_svg(kind, files, parts):
    for picture in parts[kind].pictures:
        text = (files / f"{KINDS.index(kind) + 1}_{picture.name}.svg").read_text(encoding="utf-8")
        assert text.startswith("<svg")
        assert "var(" not in text  # colours of a page's style sheet, which a file has not
        assert "NaN" not in text
        assert len(re.findall(r"<path[^>]* d=\"[^\"]{10,}", text)) >= 3, picture.name
        assert " ".join(picture.question.split())[:12] in " ".join(re.sub(r"<[^>]+>", " ", text).split()), picture.name
