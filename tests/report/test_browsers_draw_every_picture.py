"""In a real browser, on a phone, a tablet and a desk, light and dark, every picture is drawn inside the page and read without a mouse."""

import pytest

from tests.browser import browser, installed
from tests.report.results import page_of, results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(installed() is None, reason="no Chromium or Chrome is installed (apt-get install chromium)"),
]
WIDTHS, SCHEMES = (360, 768, 1280), ("light", "dark")
TOO_WIDE = """[...document.querySelectorAll("main *:not(pre):not(pre *):not(table *):not(table)")]
    .filter(each => !each.closest(".scroll") && each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.outerHTML.slice(0, 200))"""
DRAWN = "[...document.querySelectorAll('.view')].map(each => each.querySelectorAll('svg path, svg text').length)"
# of each label in a picture, how far its colour is from that of the page: WCAG's contrast ratio
CONTRAST = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("svg text")].filter(each => each.textContent && getComputedStyle(each).opacity != "0").map(each => {
    const ink = light(getComputedStyle(each).fill); return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05); });
})()"""


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
    assert page.said == []
    drawn = page.value(DRAWN)
    assert drawn
    assert min(drawn) > 5
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(TOO_WIDE) == []
    assert min(page.value(CONTRAST)) >= 4.5


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


def test_a_picture_answers_to_the_mouse(shown):
    page, report = shown
    page.open(report, 1280)
    page.value("document.querySelector('.view').scrollIntoView({block: 'center'})")
    box = "document.querySelector('.view svg').getBoundingClientRect()"
    place = page.value(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2]")
    for step in range(3):
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] + step, y=place[1])
    until = page.value("new Promise(done => setTimeout(() => done(document.querySelector('#vg-tooltip-element')?.textContent || ''), 500))")
    assert "TTFT" in until


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
