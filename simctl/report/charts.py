"""Vega-Lite specifications of the kinds of pictures that reports have.

Colours are CSS variables, so that one drawing is right on light, dark and printed pages; files get the light ones (`in_light`). Rows are
dicts with the keys x, y, and where there are several series, `series`; low and high bound a band.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

LIGHT = {
    "--c1": "#1f5fa8", "--c2": "#b4530a", "--c3": "#1b7a43", "--c4": "#8a3aa3", "--c5": "#b01e3c", "--c6": "#6b6b6b", "--c7": "#0e7c86",
    "--c8": "#7d6000", "--ink": "#1b1f24", "--muted": "#57606a", "--line": "#d8dee4", "--page": "#ffffff",
}  # fmt: skip
DARK = {
    "--c1": "#7fb2f0", "--c2": "#f0a35e", "--c3": "#6fce94", "--c4": "#cf9ae6", "--c5": "#f58a9c", "--c6": "#b0b0b0", "--c7": "#63cfd9",
    "--c8": "#dcc25a", "--ink": "#e6e9ee", "--muted": "#a3adb8", "--line": "#343b44", "--page": "#14181d",
}  # fmt: skip
COLOURS = [f"var(--c{i})" for i in range(1, 9)]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [12, 3]]
INK, MUTED, LINE, FIRST = "var(--ink)", "var(--muted)", "var(--line)", "var(--c1)"
HEIGHT, FILE_WIDTH = 240, 640
NEAR = "near"  # what a mouse is near to: a layer that shows it is drawn on pages alone
Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]
Spec = dict[str, Any]

_TEXT = {"labelColor": MUTED, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"}
CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {**_TEXT, "gridColor": LINE, "domainColor": MUTED, "tickColor": MUTED, "labelLimit": 150},
    # above the axis and not beside it: a phone has no room to the left
    "axisY": {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": 0, "titleY": -8, "titleBaseline": "bottom"},
    "legend": {**_TEXT, "orient": "bottom", "direction": "horizontal", "title": None, "labelLimit": 170, "symbolSize": 180,
               "columns": {"expr": "max(1, floor((isFinite(containerSize()[0]) ? containerSize()[0] - 70 : width) / 170))"}},
    "header": {"labelColor": INK, "titleColor": INK},
    "text": {"fill": INK},
    "line": {"strokeWidth": 2},
}  # fmt: skip


def axis(title: str, log: Sequence[float] = (), **more: Any) -> Spec:
    """A quantitative channel with its title, which names the unit; logarithmic where `log` has values, all above 0, to show."""
    scale: Spec = {"zero": more.pop("zero", False), "nice": more.pop("nice", True)}
    ticks: Spec = {"tickCount": {"expr": "max(3, floor(width / 90))"}, "labelOverlap": True}
    if log:
        low, high = min(log), max(log)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if len(decades) < 5 else (1,)
        ticks_at = [step * 10.0**decade for decade in decades for step in steps]
        scale = {
            "type": "log",
            "nice": False,
            "domain": [max([v for v in ticks_at if v <= low]), min([v for v in (*ticks_at, 10 * ticks_at[-1]) if v >= high])],
        }
        ticks = {
            "labelOverlap": True,
            "format": "~s" if high >= 1000 else "~g",
            "values": [v for v in ticks_at if scale["domain"][0] <= v <= scale["domain"][1]],
        }
    return {"type": "quantitative", "title": title, "scale": scale | more.pop("scale", {}), "axis": {"format": "~s"} | ticks | more}


def whole(layers: Sequence[Spec], rows: Rows, height: int = HEIGHT) -> Spec:
    """Layers over common rows, as wide as the page has room."""
    return {
        "data": {"values": list(rows)},
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": list(layers),
        "config": CONFIG,
    }


def _in_order(rows: Rows) -> list[Any]:
    """Rows numbered as they come, their intervals as text where any has one: of a row that has none, a number would be shown as NaN."""
    if not any("low" in row for row in rows):
        return [{**row, "order": i} for i, row in enumerate(rows)]
    between = [f"{row['low']:.4g} – {row['high']:.4g}" if "low" in row else "–" for row in rows]
    return [{**row, "order": i, "between": text} for i, (row, text) in enumerate(zip(rows, between, strict=True))]


def series_of(names: Sequence[str]) -> Spec:
    """Colour and dash by the row's `series`, in this order; no legend for one."""
    legend: Spec | None = {} if len(names) > 1 else None
    scale = {"domain": list(names)}
    return {
        "color": {"field": "series", "type": "nominal", "legend": legend, "scale": scale | {"range": COLOURS[: len(names)]}},
        "strokeDash": {"field": "series", "type": "nominal", "legend": legend, "scale": scale | {"range": _dashes(len(names))}},
    }


def _dashes(count: int) -> list[list[int]]:
    return [DASHES[i % len(DASHES)] for i in range(count)]


def tips(*named: tuple[str, str]) -> list[Spec]:
    """Tooltip of a mark: (field, label) each; numbers with four digits."""
    return [
        {"field": field, "title": label, **({} if field in TEXTS else {"type": "quantitative", "format": ".4~g"})} for field, label in named
    ]


TEXTS = ("series", "name", "text", "between")


def _lanes(by: str = "name", title: str | None = None) -> Spec:
    """A lane for each value of a field, in the order in which they come."""
    axis = {"labelLimit": 150, "domain": False, "ticks": False, "labelOverlap": by == "name" and title is not None}
    return {"field": by, "type": "nominal", "title": title, "sort": None, "axis": axis}


def lines(rows: Rows, x: Spec, y: Spec, names: Sequence[str], *, across: bool = False, zoom: bool = False, step: bool = False) -> Spec:
    """A line for every series, with its band where rows have low and high: of y, or `across` of x. `zoom`: a mouse moves x."""
    split = series_of(names)
    way = "x" if across else "y"
    edges = {way: (x if across else y) | {"field": "low"}, f"{way}2": {"field": "high"}}
    other = {"y": y | {"field": "y"}} if across else {"x": x | {"field": "x"}}
    mark = {"type": "line", "interpolate": "step-after" if step else "linear", "clip": True}
    tooltip = tips(("x", x["title"]), ("y", y["title"]), *([("series", "line")] if len(names) > 1 else []))
    if any("low" in row for row in rows):
        tooltip += tips(("between", "90 % of draws"))
    nearest = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    points: Spec = {
        "mark": {"type": "point", "fill": INK, "strokeOpacity": 0, "size": 60, "clip": True},
        "params": [{"name": NEAR, "select": nearest}],
        "encoding": {"x": x | {"field": "x"}, "y": y | {"field": "y"}, "tooltip": tooltip,
                     "opacity": {"condition": {"param": NEAR, "empty": False, "value": 1}, "value": 0}},
    }  # fmt: skip
    drawn: Spec = {
        "mark": mark,
        "encoding": {"x": x | {"field": "x"}, "y": y | {"field": "y"}, **split, "order": {"field": "order", "type": "quantitative"}},
    }
    if zoom:
        # a plain wheel and a finger go on scrolling the page
        select = {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.shiftKey]",
                  "translate": "[mousedown, window:mouseup] > window:mousemove!"}  # fmt: skip
        drawn["params"] = [{"name": "zoom", "bind": "scales", "select": select}]
    band: Spec = {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "area", "opacity": 0.22, "clip": True},
                  "encoding": {**edges, **other, "fill": split["color"] | {"legend": None}}}  # fmt: skip
    if across:
        band["mark"]["orient"] = "horizontal"
    return whole([*([band] if any("low" in row for row in rows) else []), drawn, points], _in_order(rows))


def stacked(rows: Rows, x: Spec, y: Spec, names: Sequence[str]) -> Spec:
    """Areas on top of each other, the first series at the bottom."""
    order = {"expr": f"indexof({json.dumps(list(names))}, datum.series)"}
    encoding = {
        "x": x | {"field": "x"},
        "y": y | {"field": "y", "stack": "zero"},
        "color": series_of(names)["color"],
        "order": {"field": "place", "type": "quantitative"},
        "tooltip": tips(("x", x["title"]), ("y", y["title"]), ("series", "part")),
    }
    layer = {"transform": [{"calculate": order["expr"], "as": "place"}], "mark": {"type": "area", "interpolate": "step-after"},
             "encoding": encoding}  # fmt: skip
    return whole([layer], rows)


def bars(rows: Rows, x: Spec, *, names: Sequence[str] = (), colours: Sequence[str] = (), tooltip: Sequence[tuple[str, str]] = ()) -> Spec:
    """A horizontal bar for every `name`, in the order of the rows; in pieces by `series` where there are `names`, in their `colours`."""
    colour: Spec = series_of(names)["color"] if names else {"value": FIRST}
    if colours:
        colour["scale"]["range"] = list(colours)
    pieces = {"order": {"field": "place", "type": "quantitative"}} if names else {}
    encoding = {
        "y": _lanes(),
        "x": x | {"field": "x"},
        "color": colour,
        **pieces,
        "tooltip": tips(*(tooltip or (("name", ""), ("x", x["title"])))),
    }
    layer: Spec = {"mark": {"type": "bar", "height": {"band": 0.72}}, "encoding": encoding}
    if names:
        layer["transform"] = [{"calculate": f"indexof({json.dumps(list(names))}, datum.series)", "as": "place"}]
    return whole([layer], rows, 26 * len({row["name"] for row in rows}))


def forest(rows: Rows, x: Spec, names: Sequence[str], mark_at: float | None = None, tooltip: Sequence[tuple[str, str]] = ()) -> Spec:
    """A dot with its interval low to high for every `name`, coloured by `series`; `mark_at` is a line to compare with."""
    common = {"y": _lanes(), "color": series_of(names)["color"], "tooltip": tips(*tooltip)}
    lanes = {row["name"] for row in rows}
    if len(lanes) < len(rows):  # several intervals in one lane, beside each other
        common["yOffset"] = {"field": "series", "sort": list(names)}
    layers: list[Spec] = [
        {"mark": {"type": "rule", "strokeWidth": 2.5}, "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, **common}},
        {"mark": {"type": "point", "filled": True, "size": 70, "opacity": 1}, "encoding": {"x": x | {"field": "x"}, **common}},
    ]  # fmt: skip
    if mark_at is not None:
        layers.insert(0, {"mark": {"type": "rule", "stroke": MUTED, "strokeDash": [4, 3]}, "encoding": {"x": {"datum": mark_at}}})
    return whole(layers, rows, 24 * len(lanes))


def scatter(
    rows: Rows, x: Spec, y: Spec, names: Sequence[str], tooltip: Sequence[tuple[str, str]], *, line: bool = False, joined: bool = False
) -> Spec:
    """Dots coloured and shaped by series, with intervals of y where rows have low and high; `line` joins all as they come, `joined` those
    of a series.
    """
    colour = series_of(names)["color"]
    place = {"x": x | {"field": "x"}, "y": y | {"field": "y"}}
    shape = {"field": "series", "type": "nominal", "legend": {} if len(names) > 1 else None, "scale": {"domain": list(names)}}
    layers: list[Spec] = []
    if line or joined:
        stroke = {"color": colour} if joined else {"color": {"value": MUTED}}
        order = {"order": {"field": "order", "type": "quantitative"}}
        layers.append({"mark": {"type": "line", "strokeWidth": 1.2}, "encoding": {**place, **stroke, **order}})
    if any("low" in row for row in rows):
        bounds = {"x": place["x"], "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour}
        layers.append({"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule"}, "encoding": bounds})
    dot = {"mark": {"type": "point", "filled": True, "size": 110, "opacity": 0.9},
           "encoding": {**place, "color": colour, "shape": shape, "tooltip": tips(*tooltip)}}  # fmt: skip
    return whole([*layers, dot], _in_order(rows))


def strip(rows: Rows, x: Spec, by: str, names: Sequence[str], tooltip: Sequence[tuple[str, str]]) -> Spec:
    """A tick for every row at its x, in a lane for each value of `by`, coloured by series."""
    mark = {"type": "tick", "thickness": 2, "bandSize": 22, "opacity": 0.85}
    encoding = {"x": x | {"field": "x"}, "y": _lanes(by), "color": series_of(names)["color"], "tooltip": tips(*tooltip)}
    return whole([{"mark": mark, "encoding": encoding}], rows, 40 * len({row[by] for row in rows}))


def shades(rows: Rows, x: Spec, y_title: str, tooltip: Sequence[tuple[str, str]]) -> Spec:
    """Rectangles from x to x2 in rows `name`, the darker the larger `share` (0 to 1)."""
    encoding = {
        "x": x | {"field": "x"}, "x2": {"field": "x2"},
        "y": _lanes(title=y_title),
        "opacity": {"field": "share", "type": "quantitative", "scale": {"domain": [0, 1], "range": [0.04, 1]}, "legend": None},
        "tooltip": tips(*tooltip),
    }  # fmt: skip
    return whole([{"mark": {"type": "rect", "fill": FIRST}, "encoding": encoding}], rows, 18 * len({row["name"] for row in rows}))


def table_of_cells(rows: Rows, x_title: str, y_title: str, tooltip: Sequence[tuple[str, str]]) -> Spec:
    """Cells at (column, row) with their `text`; blue where `y` is 1 or more, else orange, the stronger the larger `share` is (to 0.5)."""
    place = {"x": {"field": "column", "type": "ordinal", "title": x_title, "sort": None, "axis": {"labelAngle": 0}},
             "y": {"field": "row", "type": "ordinal", "title": y_title, "sort": None}}  # fmt: skip
    colour = {"condition": {"test": "datum.y >= 1", "value": "var(--c1)"}, "value": "var(--c2)"}
    shade = {"field": "share", "type": "quantitative", "scale": {"domain": [0, 0.5], "range": [0, 0.5]}, "legend": None}
    cell = {
        "mark": {"type": "rect", "stroke": LINE},
        "encoding": {**place, "fill": colour, "fillOpacity": shade, "tooltip": tips(*tooltip)},
    }
    text = {
        "mark": {"type": "text", "fill": INK, "fontSize": {"expr": "width < 420 ? 9 : 12"}},
        "encoding": {**place, "text": {"field": "text"}},
    }
    return whole([cell, text], rows, 30 * len({row["row"] for row in rows}))


def in_light(spec: Mapping[str, Any], title: str, subtitle: str) -> Spec:
    """The picture for a file: light colours, a fixed width, its question and reading above it, and nothing that answers to a mouse."""
    import textwrap

    text = json.dumps(spec)
    for name, colour in LIGHT.items():
        text = text.replace(f"var({name})", colour)
    head = {"text": textwrap.wrap(title, 80), "subtitle": textwrap.wrap(subtitle, 100), "anchor": "start", "offset": 28,
            "color": LIGHT["--ink"], "subtitleColor": LIGHT["--muted"]}  # fmt: skip
    drawn: Spec = json.loads(text)
    drawn["config"]["background"] = LIGHT["--page"]
    drawn["config"]["legend"]["labelLimit"] = FILE_WIDTH / 2
    hovered = [layer for layer in drawn["layer"] if any(each["name"] == NEAR for each in layer.get("params", ()))]
    drawn["layer"] = [{k: v for k, v in layer.items() if k != "params"} for layer in drawn["layer"] if layer not in hovered]
    return drawn | {"width": FILE_WIDTH, "title": head, "padding": 12}
