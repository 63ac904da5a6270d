"""Parts of a report as plain data, and the page they make: HTML with its chart library inside, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.extras import install_hint
from sim.files import plain
from simctl.report.charts import DARK, LIGHT

LONGEST = 160  # characters of a text that somebody else chose
MOST_ROWS = 60  # of the table below a picture
ALL_MEASURED = "All of this deployment was measured: GPU, dtype, number of GPUs, engine and model."


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that answers `question`; `reading` says in one sentence what it shows. `spec` is Vega-Lite with its data, bounded in size;
    `rows` are its main values as text below `columns`, for those who do not see the picture.
    """

    name: str  # of the file that --png and --svg write
    question: str
    reading: str
    spec: Mapping[str, Any]
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure: its value as text, and its intervals as (what they are of, text)."""

    label: str
    value: str
    intervals: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class ReportPart:
    """The report of one input. `texts` are (title, text in columns), folded on the page; `tables` are (title, columns, rows of texts to be
    read), the first of them open.
    """

    title: str
    question: str
    settings: Sequence[tuple[str, str]]
    headlines: Sequence[Headline]
    scope: Sequence[str]
    pictures: Sequence[Picture]
    notes: Sequence[str] = ()
    texts: Sequence[tuple[str, str]] = ()
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()


def number(value: float | None, unit: str = "") -> str:
    """Three digits with the unit behind; a dash for what is no finite number."""
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def span(low: float, high: float, unit: str = "") -> str:
    """Both ends of an interval."""
    return f"{number(low)} – {number(high, unit)}"


def cut(text: object, most: int = LONGEST) -> str:
    """The text on one line, shortened where somebody chose a very long one."""
    line = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def thinned(rows: Sequence[Any], most: int = MOST_ROWS) -> list[Any]:
    """At most so many of the rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def render(parts: Sequence[ReportPart], version: str, live: Any = None) -> str:
    """The whole page, with sliders where `live` is a simctl.report.serve.Question. Every text is escaped, and JSON is safe inside its
    script element. UsageError without the packages of the extra.
    """
    template, bundle = _template(), _bundle()
    pictures = [[(f"p{i}-{j}", each, plain(each.spec)) for j, each in enumerate(part.pictures)] for i, part in enumerate(parts)]
    text: str = template.render(
        parts=list(zip(parts, pictures, strict=True)), version=version, bundle=bundle, light=_css(LIGHT), dark=_css(DARK), live=live
    )
    return text


def _css(colours: Mapping[str, str]) -> str:
    return " ".join(f"{name}: {colour};" for name, colour in colours.items())


def _template() -> Any:
    try:
        import jinja2
    except ImportError:
        raise UsageError(f"simctl report needs jinja2: {install_hint('report')}") from None
    files = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=files, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("template.html")


def vega() -> Any:
    """The package that brings Vega-Lite: for the page its JavaScript, for files its renderer. UsageError when it is missing."""
    try:
        import vl_convert
    except ImportError:
        raise UsageError(f"pictures need vl-convert-python: {install_hint('report')}") from None
    return vl_convert


def _bundle() -> str:
    # inside a script element the parser looks for these two and for nothing else
    script: str = vega().javascript_bundle()
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
