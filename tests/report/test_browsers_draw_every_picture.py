"""In a real browser, on a phone, a tablet and a desk, light and dark, every picture is drawn inside the page and read without a mouse."""

import io

import numpy as np
import pytest

from simctl.report.charts import in_light
from simctl.report.inputs import part_of
from simctl.report.page import vega
from tests.browser import browser, installed
from tests.report.drawn import COLLIDING, check
from tests.report.results import page_of, results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(installed() is None, reason="no Chromium or Chrome is installed (apt-get install chromium)"),
]
WIDTHS, SCHEMES = (360, 390, 768, 1280), ("light", "dark")
LIKE = 0.75  # correlation of ink: pictures are 0.83 and more like themselves, nine in ten pairs of different ones less than 0.5


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    page_of(folder / "report.html", *results().values())
    with browser(folder / "profile") as opened:
        yield opened, folder / "report.html"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_drawn_within_the_page(shown, width, scheme):
    page, report = shown
    page.said.clear()
    page.open(report, width, scheme)
    check(page, width)


def test_labels_on_each_other_would_be_noticed(shown):
    page, report = shown
    page.open(report, 768)
    page.value("document.querySelectorAll('.view svg text').forEach(each => each.setAttribute('transform', 'translate(9, 9)'))")
    assert page.value(COLLIDING)


def ink(png):
    """How much of each cell of a grid over the picture is drawn on, blurred over its neighbours."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        grey = np.abs(255.0 - np.asarray(image.convert("L").resize((64, 32), Image.Resampling.BOX), dtype=np.float64))
    near = range(-2, 3)  # fonts differ, and with them the place of the axes
    return sum(np.roll(grey, (i, j), (0, 1)) for i in near for j in near)


def test_every_picture_looks_as_another_renderer_draws_it(shown):
    """The browser's screenshot against the file that --pictures would write at that width."""
    page, report = shown
    page.open(report, 1280)
    pictures = [picture for path in results().values() for picture in part_of(path).pictures]
    boxes = page.value(
        "[...document.querySelectorAll('.view svg')].map(each => { const box = each.getBoundingClientRect();"
        " return [box.x, box.y + scrollY, box.width, box.height]; })"
    )
    whole = [ink(page.picture_of(box)) for box in boxes]
    drawn = []
    for picture, box in zip(pictures, boxes, strict=True):
        spec = {name: value for name, value in in_light(picture.spec, "", "").items() if name not in ("title", "padding")}
        drawn.append(ink(vega().vegalite_to_png(spec | {"width": box[2]}, scale=1)))
    like = np.corrcoef([each.ravel() for each in whole], [each.ravel() for each in drawn])[: len(whole), len(whole) :]
    assert {picture.name: round(found, 2) for picture, found in zip(pictures, np.diag(like), strict=True) if found < LIKE} == {}
    assert np.quantile(like[~np.eye(len(like), dtype=bool)], 0.9) < LIKE - 0.2


def test_the_first_column_of_numbers_is_read_across_on_a_phone(shown):
    page, report = shown
    page.open(report, 360)
    page.value("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    narrow = "[...document.querySelectorAll('main td:first-child')].filter(each => each.getBoundingClientRect().width < 64)"
    assert page.value("document.querySelectorAll('main td:first-child').length") > 50
    assert page.value(f"{narrow}.map(each => each.textContent)") == []


def test_the_keyboard_reaches_all_of_it(shown):
    page, report = shown
    page.open(report, 1280)
    wanted = page.value("document.querySelectorAll('summary, a[href], .view').length")
    page.value("window.reached = new Set(); document.addEventListener('focusin', e => window.reached.add(e.target))")
    for _ in range(wanted * 2):
        page.key("Tab", 9)
    assert page.value("[...document.querySelectorAll('summary, a[href], .view')].filter(each => !window.reached.has(each)).length") == 0
    page.value("document.querySelector('figure summary').focus()")
    page.key("Enter", 13, "\r")
    assert page.value("document.querySelector('figure details').open")


@pytest.mark.parametrize(("across", "down"), [(0.5, 0.5), (0.97, 0.12), (0.1, 0.85)])
def test_a_picture_answers_to_the_mouse(across, down, shown):
    """Also at the ends of a curve, beyond its band."""
    page, report = shown
    page.open(report, 1280)
    page.value("document.querySelector('.view').scrollIntoView({block: 'center'})")
    box = "document.querySelector('.view svg').getBoundingClientRect()"
    place = page.value(f"[{box}.x + {across} * {box}.width, {box}.y + {down} * {box}.height]")
    for step in range(3):
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + step, y=place[1])
    until = page.value("new Promise(done => setTimeout(() => done(document.querySelector('#vg-tooltip-element')?.textContent || ''), 500))")
    assert "TTFT" in until
    assert "90 % of draws" in until
    assert "NaN" not in until


def test_it_prints(shown):
    page, report = shown
    page.open(report, 1280, "dark")
    assert page.pdf().startswith(b"%PDF")
    page.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        page.send("Emulation.setEmulatedMedia", media="")


def test_tall_names_do_not_run(shown, tmp_path):
    import json

    page, _ = shown
    plan = json.loads(results()["plan"].read_text())
    plan["model"] = plan["conclusion"] = plan["winner"]["choice"] = "<img src=x onerror='window.bad=1'>" * 30
    for point in plan["front"]:
        point["choice"] = plan["model"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    page_of(tmp_path / "evil.html", tmp_path / "plan.json")
    page.open(tmp_path / "evil.html", 360)
    assert page.value("window.bad") is None
    assert page.value("document.documentElement.scrollWidth") <= 360
