"""One plot as SVG, which takes its colours from the page that it stands in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from markupsafe import Markup, escape

from client.reports.curves import Points
from client.reports.scale import Scale, exact, label, linear, logarithmic

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 54, 408, 10, 222
COLOURS = 8
LOG_FROM = 30.0
"""The ratio of highest to lowest x from which a logarithmic axis shows more."""


Shape = Literal["line", "dashed", "dots", "marked", "spans"]


@dataclass(frozen=True, slots=True)
class Line:
    """Something to draw. `colour` is a number below COLOURS."""

    name: str
    points: Points
    colour: int
    shape: Shape = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot of `lines`. `y_top` None: y goes as far as the values; `x_log`: logarithmic where that shows more."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    y_top: float | None = None
    x_log: bool = False

    @property
    def drawn(self) -> list[Line]:
        """The lines that have points."""
        return [line for line in self.lines if line.points.x.size]

    def svg(self) -> Markup:
        """The plot without title and legend."""
        x, y = self._x_scale(), self._y_scale()
        parts = [*_grid(x, y, self.x_label, self.y_label), *(_draw(line, x, y) for line in self.drawn)]
        ends = json.dumps({"x": [x.low, x.high, x.log], "y": [y.low, y.high], "box": [LEFT, RIGHT, TOP, BOTTOM]})
        opening = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}" data-axes="{}">')
        return opening.format(WIDTH, HEIGHT, self.title, ends) + Markup("").join(parts) + Markup("</svg>")

    def _x_scale(self) -> Scale:
        values = np.concatenate([np.array([]), *(line.points.x for line in self.drawn)])
        highest = float(values.max(initial=0.0))
        positive = values[values > 0]
        lowest = float(positive.min()) if positive.size else 0.0
        if self.x_log and lowest and highest / lowest >= LOG_FROM:
            return logarithmic(lowest, highest, LEFT, RIGHT)
        return exact(highest * 1.02, LEFT, RIGHT)

    def _y_scale(self) -> Scale:
        if self.y_top is not None:
            return Scale(0.0, self.y_top, BOTTOM, TOP)
        return linear(max((float(line.points.y.max()) for line in self.drawn), default=1.0), BOTTOM, TOP)


def _grid(x: Scale, y: Scale, x_label: str, y_label: str) -> list[Markup]:
    parts = []
    for tick, at in zip(y.ticks(), y.place(np.array(y.ticks())), strict=True):
        parts.append(Markup('<path class="rule" d="M{} {:.1f}H{}"/>').format(LEFT, at, RIGHT))
        parts.append(
            Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(LEFT - 6, at + 4, label(tick))
        )
    for tick, at in zip(x.ticks(), x.place(np.array(x.ticks())), strict=True):
        parts.append(Markup('<path class="rule" d="M{:.1f} {}V{}"/>').format(at, TOP, BOTTOM))
        parts.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(at, BOTTOM + 16, label(tick))
        )
    middle, centre = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    parts.append(Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(LEFT, TOP, BOTTOM, RIGHT))
    parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(middle, HEIGHT - 4, x_label))
    turned = Markup('<text x="{0}" y="{1}" text-anchor="middle" transform="rotate(-90 {0} {1})">{2}</text>')
    return [*parts, turned.format(11, centre, y_label)]


def _draw(line: Line, x: Scale, y: Scale) -> Markup:
    places = list(zip(x.place(line.points.x), y.place(line.points.y), strict=True))
    dots = Markup("").join(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.5"/>').format(a, b) for a, b in places)
    style = f"c{line.colour % COLOURS}"
    if line.shape == "dots":
        return Markup('<g class="dots {}">{}</g>').format(style, dots)
    if line.shape == "spans":
        ends = zip(places[::2], places[1::2], strict=True)
        spans = "".join(f"M{begin:.1f} {row:.1f}H{end:.1f}" for (begin, row), (end, _) in ends)
        return Markup('<path class="line spans {}" d="{}"/>').format(style, spans)
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    drawn = Markup('<polyline class="line {} {}" data-name="{}" points="{}"/>').format(
        style, line.shape, escape(line.name), path
    )
    return drawn + Markup('<g class="dots {}">{}</g>').format(style, dots) if line.shape == "marked" else drawn
