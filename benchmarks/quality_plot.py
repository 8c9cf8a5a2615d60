"""The picture of a quality run: facts found and perplexity by the share of rows kept, a line per variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.quality_record import FULL, TEXT, Means, Record, means, tasks

_OURS = "#0b6e4f"
_OTHERS = ("#4c72b0", "#c44e52", "#8172b3", "#937860", "#dd8452", "#da8bc3", "#6b6b6b", "#ccb974", "#64b5cd")
_DASHES: Mapping[str, object] = {"": "-", "uniform": "-", "layer": (0, (1, 1)), "global": (0, (4, 2)), "profile": "-."}
_INK = "#303030"
_GAP = 0.047  # between labels, of the height of the axes
_ROWS = "float32"

Lines = Mapping[str, Sequence[tuple[float, float]]]
"""By variant: share kept and figure, from the largest share on."""


def draw(file: Path, records: Sequence[Record]) -> bool:
    """Write the picture of the first kind of fact and of perplexity; False if neither has several shares."""
    panels = [panel for panel in (_facts(records), _perplexity(records)) if panel is not None]
    if not panels:
        return False
    figure = Figure(figsize=(6.6 * len(panels), 5.4), dpi=150, layout="constrained")
    colours = _colours([variant for _, lines in panels for variant in lines])
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, title, lines, colours)
    figure.savefig(file)
    return True


def _facts(records: Sequence[Record]) -> tuple[str, Lines] | None:
    for task, thousands in tasks(records):
        found = means(records, task, thousands)
        lines = _lines(found, "found")
        if task != TEXT and lines:
            return f"Facts found ({task} compression), prompts of {thousands},000 tokens", lines
    return None


def _perplexity(records: Sequence[Record]) -> tuple[str, Lines] | None:
    for task, thousands in tasks(records):
        if task == TEXT and (lines := _lines(means(records, task, thousands), "ratio")):
            return "Perplexity of the text that follows, by that of the full cache", lines
    return None


def _lines(found: Means, name: str) -> Lines:
    lines: dict[str, list[tuple[float, float]]] = {}
    for (rows, variant, share), values in found.items():
        if name in values and rows == _ROWS and variant != FULL and share < 1:
            lines.setdefault(variant, []).append((float(share), values[name]))
    return {variant: sorted(points, reverse=True) for variant, points in lines.items() if len(points) > 1}


def _colours(variants: Sequence[str]) -> Mapping[str, str]:
    policies = dict.fromkeys(variant.partition(",")[0] for variant in variants)
    others = [policy for policy in policies if policy != "calibrated"]
    by_policy = {policy: _OTHERS[place % len(_OTHERS)] for place, policy in enumerate(others)} | {"calibrated": _OURS}
    return {variant: by_policy[variant.partition(",")[0]] for variant in variants}


def _draw(axes: Axes, title: str, lines: Lines, colours: Mapping[str, str]) -> None:
    axes.set_title(title, loc="left", fontsize=10.5, color=_INK)
    for variant, points in lines.items():
        axes.plot(
            *zip(*points, strict=True),
            color=colours[variant],
            linestyle=_DASHES[variant.partition(", ")[2]],
            linewidth=2.6 if colours[variant] == _OURS else 1.5,
            marker="o",
            markersize=4,
        )
    shares = sorted({share for points in lines.values() for share, _ in points})
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_xticks(shares, [f"{share:.0%}" for share in shares])
    axes.set_xlabel("rows kept", color=_INK, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.minorticks_off()
    axes.grid(axis="y", color="#ececec")
    axes.set_axisbelow(True)
    _label(axes, lines, colours)


def _label(axes: Axes, lines: Lines, colours: Mapping[str, str]) -> None:
    """Each line's name at its end, moved where it would touch another or leave the axes."""
    to_axes = axes.transData + axes.transAxes.inverted()
    order = sorted(lines, key=lambda variant: [value for _, value in reversed(lines[variant])])
    heights = _apart([float(to_axes.transform((1, lines[variant][-1][1]))[1]) for variant in order])
    for variant, height in zip(order, heights, strict=True):
        axes.annotate(
            variant,
            (1, height),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colours[variant],
            fontweight="bold" if colours[variant] == _OURS else "normal",
            annotation_clip=False,
        )


def _apart(heights: Sequence[float]) -> list[float]:
    """Ascending heights with `_GAP` between them, none above the axes."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + _GAP) if placed else height)
    limit = 1.0
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], limit)
        limit = placed[place] - _GAP
    return placed
