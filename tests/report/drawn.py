"""What a browser has drawn of a page with pictures: all of it inside the page, no text on another, and legible."""

from tests.browser import Browser

TOO_WIDE = """[...document.querySelectorAll("main *:not(pre):not(pre *):not(table *):not(table)")]
    .filter(each => !each.closest(".scroll") && each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.outerHTML.slice(0, 200))"""
DRAWN = "[...document.querySelectorAll('.view')].map(each => each.querySelectorAll('svg path, svg text').length)"
# labels of a picture that lie on each other, and those beyond the page
TEXTS = """[...document.querySelectorAll(".view svg")].map(svg => [...svg.querySelectorAll("text")]
    .filter(each => each.textContent.trim() && getComputedStyle(each).opacity != "0")
    .map(each => [each.textContent, each.getBoundingClientRect()]))"""
COLLIDING = f"""{TEXTS}.flatMap(texts => texts.flatMap(([a, p], i) => texts.slice(i + 1)
    .filter(([b, q]) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2
                     && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3)
    .map(([b, q]) => `${{a}} on ${{b}}`)))"""
CUT = f"{TEXTS}.flat().filter(([text, box]) => box.left < -1 || box.right > innerWidth + 1).map(([text]) => text)"
# pictures that reach beyond their own box, over what comes below
SPILLING = """[...document.querySelectorAll(".view svg")]
    .map(svg => svg.querySelector("g").getBoundingClientRect().bottom - svg.getBoundingClientRect().bottom).filter(spilt => spilt > 1)"""
# of each label in a picture, how far its colour is from that of the page: WCAG's contrast ratio
CONTRAST = """(() => {
  const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("svg text")].filter(each => each.textContent && getComputedStyle(each).opacity != "0").map(each => {
    const ink = light(getComputedStyle(each).fill); return (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05); });
})()"""


def check(page: Browser, width: int) -> None:
    """Of the page that is open at this width."""
    assert page.said == []
    drawn = page.value(DRAWN)
    assert drawn
    assert min(drawn) > 5
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(TOO_WIDE) == []
    assert min(page.value(CONTRAST)) >= 4.5
    assert page.value(COLLIDING) == []
    assert page.value(CUT) == []
    assert page.value(SPILLING) == []
