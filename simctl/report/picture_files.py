"""Pictures as files: those of a report, and what `--plot FILE` of a command draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import replacing, writable
from simctl.report.charts import in_light
from simctl.report.page import Picture, ReportPart, vega

SCALE = 2  # pixels of a PNG per unit of length
OF_ALL = ("config", "padding")  # what pictures one below the other have in common
APART = {"scale": "independent", "legend": "independent"}  # of these each has its own


def named(parts: Sequence[ReportPart]) -> list[tuple[str, Picture]]:
    """Every picture with a name of its own: that of the picture, behind the number of its part where there are several."""
    return [(f"{i}_{each.name}" if len(parts) > 1 else each.name, each) for i, part in enumerate(parts, 1) for each in part.pictures]


def write_pictures(folder: Path, pictures: Sequence[tuple[str, Picture]]) -> None:
    """Write each as NAME.png and NAME.svg, by the renderer of the page's own library. Raises OSError."""
    for name, picture in pictures:
        for kind in ("png", "svg"):
            (folder / f"{name}.{kind}").write_bytes(_drawn(_of_file(picture), kind))


def plot_target(file: str | None) -> Path | None:
    """Where `--plot FILE` is to go. UsageError where its suffix is of no kind of picture, or where nothing can draw it."""
    target = writable(file)
    if target is not None:
        if _kind(target) not in ("png", "svg", "pdf"):
            raise UsageError(f"cannot plot to {target.name}: use .png, .svg or .pdf")
        vega()
    return target


def plot(pictures: Sequence[Picture], target: Path) -> None:
    """Draw pictures one below the other into a file, whole or not at all. Raises OSError."""
    specs = [_of_file(each) for each in pictures]
    below = {
        "vconcat": [{name: value for name, value in spec.items() if name not in OF_ALL} for spec in specs],
        "resolve": {what: dict.fromkeys(("color", "strokeDash", "shape", "fill"), how) for what, how in APART.items()},
        "spacing": 30,
    }
    content = _drawn(specs[0] if len(specs) == 1 else below | {name: specs[0][name] for name in OF_ALL}, _kind(target))
    with replacing(target) as temporary:
        temporary.write_bytes(content)


def _kind(target: Path) -> str:
    return target.suffix.lstrip(".").lower()


def _of_file(picture: Picture) -> dict[str, Any]:
    return in_light(picture.spec, picture.question, picture.reading)


def _drawn(spec: Mapping[str, Any], kind: str) -> bytes:
    renderer = vega()
    if kind == "png":
        png: bytes = renderer.vegalite_to_png(spec, scale=SCALE)
        return png
    if kind == "pdf":
        pdf: bytes = renderer.vegalite_to_pdf(spec)
        return pdf
    svg: str = renderer.vegalite_to_svg(spec)
    return svg.encode("utf-8")
