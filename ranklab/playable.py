"""Figures to play with: menus and sliders over a table that Python has computed.

    def view(workers, loading):
        rows = [{"x": w, "y": batches_a_second(w, loading)} for w in range(1, 9)]
        return f"{workers} workers: ...", rows

    playable(view, line_chart("workers", "batches/s"), name="knee", alt="...",
             workers=range(1, 9), loading=[0.5, 1, 2])

The view is called for every combination of the controls' values, so the figure needs no kernel
afterwards: on a page and in JupyterLab, which draw Vega-Lite. A script saves how it looks first.
(Altair writes the same Vega-Lite, and takes 1.4 s to import.)
"""

import html
import itertools
import json
from copy import deepcopy

from ranklab.plots import RANK_COLORS

VEGA_LITE = "5.20"  # what draws it: a script's picture, and the pages' (bookmaker/site/stage.py)
MOST = 20_000  # rows: a page with more is slow to load
# Names of Vega's own signals: a control cannot have one of these.
_TAKEN = {"width", "height", "padding", "autosize", "background", "cursor"} | {
    "datum", "event", "item", "parent"}  # fmt: skip
_BASE = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "config": {
        "font": "sans-serif",
        "axis": {
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "gridOpacity": 0.4,
        },
        "legend": {"labelFontSize": 12, "orient": "bottom", "columns": 2, "title": None},
        "view": {"stroke": None},
    },
}


class Playable:
    """A figure with controls, as Vega-Lite; `spec` is all of it."""

    def __init__(self, spec, name):
        self.spec, self.name = spec, name

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"application/vnd.vegalite.v5+json": self.spec, "text/plain": repr(self)}

    def _repr_svg_(self):
        import vl_convert

        svg = vl_convert.vegalite_to_svg(self.spec, vl_version=VEGA_LITE)
        alt = html.escape(self.spec["description"])
        return svg.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)

    def __repr__(self):
        return f"<figure to play with: {self.name}>"


def playable(view, chart, name, alt, **controls):
    """Return a figure whose controls choose among tables that `view` computes now.

    view: called by keyword with a value for each control; returns a sentence with the numbers that
        matter, which stands above the figure, and its rows: dicts with the fields that the chart
        draws.
    chart: what `line_chart`, `bar_chart` or `box_chart` gives.
    name: the picture's name, from which a script makes its file name. alt: what is to be seen.
    controls: for each argument of the view a list of its values, or a dict from what the reader
        chooses to the value. Whole numbers in equal steps get a slider, all else a menu. The first
        value is chosen first.

    Raises ValueError for a control without values or with a name that Vega keeps for itself, for a
    combination without rows, and where all rows are too many for a page.
    """
    if taken := sorted(_TAKEN & controls.keys()):
        raise ValueError(f"playable: a control cannot be called {taken[0]!r}: Vega uses that name.")
    values = {key: c if isinstance(c, dict) else {v: v for v in c} for key, c in controls.items()}
    if empty := [key for key, options in values.items() if not options]:
        raise ValueError(f"playable: the control {empty[0]!r} has no values.")
    rows = []
    for at, chosen in enumerate(itertools.product(*(v.values() for v in values.values()))):
        says, some = view(**dict(zip(values, chosen)))
        if not some:
            raise ValueError(f"playable: the view has no rows for {dict(zip(values, chosen))}.")
        some = [{key: _short(value) for key, value in row.items()} for row in some]
        rows += [{"at": at, **row} for row in [some[0] | {"says": says}, *some[1:]]]
    if len(rows) > MOST:
        raise ValueError(f"playable: {len(rows)} rows are too many for a page; at most {MOST}.")
    lines = max(row["says"].count("\n") for row in rows if "says" in row)
    above = {
        "transform": [{"filter": "isValid(datum.says)"}],
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "lineBreak": "\n",
                 "fontSize": 12, "aria": False},
        "encoding": {"text": {"field": "says"}, "x": {"value": 0},
                     "y": {"value": -8 - 14 * lines}},
    }  # fmt: skip
    spec = _BASE | {
        "description": alt,
        "width": 440,  # a page's script makes it as wide as there is room
        "height": chart.get("height", 220),
        "usermeta": {"controls": {key: list(options) for key, options in values.items()}},
        "params": [_control(key, list(options)) for key, options in values.items()],
        "data": {"values": rows},
        "transform": [{"filter": f"datum.at == {_index(values)}"}],
        "layer": [*_with_colors(deepcopy(chart["layer"]), rows), above],
    }
    return Playable(spec, name)


def line_chart(x, y, log="", domain=None):
    """Lines through points: rows have `x`, `y` and, for several lines, `which`.

    x, y: what the axes say, with units. log: "x", "y" or "xy". domain: of y, (from, to).
    """
    encoding = {
        "x": _axis("x", x, "x" in log),
        "y": _axis("y", y, "y" in log, domain),
        "color": _which(),
    }
    dash = {"field": "which", "type": "nominal", "sort": None, "legend": None}
    line = {"mark": {"type": "line", "clip": True}, "encoding": encoding | {"strokeDash": dash}}
    dots = {
        "mark": {"type": "point", "filled": True, "size": 50, "clip": True},
        "encoding": encoding,
    }
    return {"layer": [line, dots]}


def bar_chart(x, y, domain=None):
    """Bars that are made of parts: rows have `x`, a name, `y`, and `which` part."""
    encoding = {
        "x": {"field": "x", "type": "nominal", "sort": None, "title": x, "axis": {"labelAngle": 0}},
        "y": _axis("y", y, False, domain),
        "color": _which(),
        "order": {"field": "part", "type": "quantitative"},
    }
    return {"layer": [{"mark": "bar", "encoding": encoding}]}


def box_chart(x, y, height=200):
    """Boxes in rows, as of a timetable: rows have `row`, `x`, `x2`, `which` and a `text`."""
    place = {
        "y": {"field": "row", "type": "nominal", "sort": None, "title": y},
        "x": _axis("x", x, False) | {"axis": {"tickMinStep": 1}},
        "x2": {"field": "x2"},
    }
    box = {"mark": {"type": "bar", "stroke": "white"}, "encoding": place | {"color": _which()}}
    middle = {"calculate": "(datum.x + datum.x2) / 2", "as": "middle"}
    text = {
        "transform": [middle],
        "mark": {"type": "text", "fontSize": 10, "color": "white", "aria": False},
        "encoding": {
            "y": place["y"],
            "x": {"field": "middle", "type": "quantitative", "title": x},
            "text": {"field": "text"},
        },
    }
    return {"layer": [box, text], "height": height}


def _axis(field, title, log, domain=None):
    scale = {"type": "log"} if log else {}
    scale |= {"domain": list(domain)} if domain else {}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _which():
    return {"field": "which", "type": "nominal", "sort": None, "scale": {"range": RANK_COLORS}}


def _with_colors(layers, rows):
    """The layers, with one color for each kind whatever the controls say; none if there is one."""
    kinds = list(dict.fromkeys(row["which"] for row in rows if "which" in row))
    for layer in layers:
        color = layer["encoding"].get("color")
        if color is None:
            continue
        if kinds:
            color["scale"] = {"domain": kinds, "range": RANK_COLORS[: len(kinds)]}
        else:
            layer["encoding"] = {
                key: how for key, how in layer["encoding"].items() if how.get("field") != "which"
            }
            layer["mark"] = _mark(layer["mark"]) | {"color": RANK_COLORS[0]}
    return layers


def _mark(mark):
    return {"type": mark} if isinstance(mark, str) else mark


def _control(key, options):
    """A parameter of Vega-Lite's, bound to an input of the browser's own."""
    label = {"name": key.replace("_", " ")}
    if len(options) > 2 and all(type(option) is int for option in options):
        steps = {b - a for a, b in itertools.pairwise(options)}
        if len(steps) == 1 and min(steps) > 0:
            bind = {"input": "range", "min": options[0], "max": options[-1], "step": steps.pop()}
            return {"name": key, "value": options[0], "bind": bind | label}
    return {
        "name": key,
        "value": options[0],
        "bind": {"input": "select", "options": options} | label,
    }


def _index(values):
    """The expression of Vega's that says which combination is chosen."""
    index = "0"
    for key, options in values.items():
        index = f"({index}) * {len(options)} + indexof({json.dumps(list(options))}, {key})"
    return index


def _short(value):
    """A number as its first five digits: a page holds thousands of them."""
    return float(f"{value:.5g}") if isinstance(value, float) else value
