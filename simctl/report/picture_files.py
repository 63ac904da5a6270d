"""Pictures of a report as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simctl.report.charts import in_light
from simctl.report.page import Picture, ReportPart, vega


def named(parts: Sequence[ReportPart]) -> list[tuple[str, Picture]]:
    """Every picture with a name of its own: that of the picture, behind the number of its part where there are several."""
    return [(f"{i}_{each.name}" if len(parts) > 1 else each.name, each) for i, part in enumerate(parts, 1) for each in part.pictures]


def write_pictures(folder: Path, pictures: Sequence[tuple[str, Picture]]) -> None:
    """Write each as NAME.png and NAME.svg, by the renderer of the page's own library. Raises OSError."""
    renderer = vega()
    for name, picture in pictures:
        spec = in_light(picture.spec, picture.question, picture.reading)
        (folder / f"{name}.png").write_bytes(renderer.vegalite_to_png(spec, scale=2))
        (folder / f"{name}.svg").write_text(renderer.vegalite_to_svg(spec), encoding="utf-8")
