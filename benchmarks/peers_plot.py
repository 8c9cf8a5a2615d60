"""The picture of a comparison: decoding over the number of sequences, and reading prompts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from benchmarks.peers_figures import decode_key, prefill_key

Figures = Mapping[str, float]

_OURS = "#0b6e4f"
_PEERS = ("#4c72b0", "#c44e52", "#8172b3", "#937860")
_LIMIT = "#b0b0b0"
_INK = "#303030"
_LEAST_BARS = 9  # room for as many, so that few do not grow fat


def draw(
    file: Path,
    title: str,
    footnote: str,
    engines: Mapping[str, Figures],
    ours: Sequence[str],
    limits: Mapping[str, Figures],
    concurrency: Sequence[int],
    prefill: Sequence[int],
) -> None:
    """Write a PNG. `engines` and `limits` by their headings; those named in `ours` stand out."""
    figure = Figure(figsize=(12, 5.6), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
    figure.supxlabel(footnote, x=0.01, ha="left", fontsize=9, color="#808080")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    colours = _colours(list(engines), ours)
    _draw_decode(left, engines, colours, limits, concurrency)
    _draw_prefill(right, engines, colours, prefill)
    figure.savefig(file)


def _colours(names: Sequence[str], ours: Sequence[str]) -> dict[str, str]:
    others = iter(_PEERS)
    return {name: _OURS if name in ours else next(others) for name in names}


def _draw_decode(
    axes: Axes,
    engines: Mapping[str, Figures],
    colours: Mapping[str, str],
    limits: Mapping[str, Figures],
    concurrency: Sequence[int],
) -> None:
    axes.set_title("Decoding, tokens per second by sequences at once", loc="left", fontsize=11, color=_INK)
    ends: list[tuple[float, str, str]] = []
    own = [name for name in engines if colours[name] == _OURS]
    for name, figures in [*limits.items(), *engines.items()]:
        colour = colours.get(name, _LIMIT)
        points = [(n, figures[decode_key(n)]) for n in concurrency if decode_key(n) in figures]
        if not points:
            continue
        dashed = name in limits or name in own[1:]
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            marker=None if name in limits else "o",
            markersize=4,
            linewidth=2.4 if name in own else 1.6,
            linestyle=(0, (4, 2)) if dashed else "-",
        )
        ends.append((points[-1][1], name, colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(concurrency, [str(n) for n in concurrency])
    _plain(axes)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    for height, (value, name, colour) in zip(_apart(_heights(axes, [end[0] for end in ends])), ends, strict=True):
        axes.annotate(
            f"{name}  {_number(value)}",
            (1, height),
            xycoords=("axes fraction", "axes fraction"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour if name not in limits else "#808080",
            fontweight="bold" if name in own else "normal",
            annotation_clip=False,
        )


def _heights(axes: Axes, values: Sequence[float]) -> list[float]:
    """Where `values` lie, in fractions of the height of `axes`."""
    points = axes.transAxes.inverted().transform(axes.transData.transform([(1, value) for value in values]))
    return [float(height) for height in points[:, 1]]


def _apart(heights: Sequence[float], gap: float = 0.048) -> list[float]:
    """The heights, in their order, with `gap` between neighbours: what would touch is spread around its middle."""
    groups: list[list[int]] = []
    for index in sorted(range(len(heights)), key=heights.__getitem__):
        groups.append([index])
        while len(groups) > 1 and _middle(heights, groups[-1], gap)[0] < _middle(heights, groups[-2], gap)[1] + gap:
            last = groups.pop()
            groups[-1] += last
    placed: dict[int, float] = {}
    for group in groups:
        lowest, _ = _middle(heights, group, gap)
        placed |= {index: lowest + gap * place for place, index in enumerate(group)}
    return [placed[index] for index in range(len(heights))]


def _middle(heights: Sequence[float], group: Sequence[int], gap: float) -> tuple[float, float]:
    """Lowest and highest place of a group spread around its mean."""
    mean, half = statistics.fmean(heights[index] for index in group), gap * (len(group) - 1) / 2
    return mean - half, mean + half


def _draw_prefill(
    axes: Axes, engines: Mapping[str, Figures], colours: Mapping[str, str], prefill: Sequence[int]
) -> None:
    axes.set_title("Reading a prompt, tokens per second", loc="left", fontsize=11, color=_INK)
    own = [name for name in engines if colours[name] == _OURS]
    place, ticks = 0.0, []
    for tokens in reversed(prefill):
        start = place
        for name in reversed(list(engines)):
            value = engines[name].get(prefill_key(tokens))
            if value is None:
                continue
            axes.barh(place, value, height=0.8, color=colours[name], alpha=0.55 if name in own[1:] else 1)
            axes.annotate(
                f"{name}  {_number(value)}",
                (value, place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=colours[name],
                fontweight="bold" if name in own else "normal",
            )
            place += 1
        ticks.append(((start + place - 1) / 2, f"{tokens:,}\ntokens"))
        place += 0.7
    top = place - 0.7 - 0.4
    axes.set_ylim(min(-0.6, top - _LEAST_BARS), top)
    axes.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks])
    axes.set_xlim(0, axes.get_xlim()[1] * 1.75)  # room for the names
    axes.set_xticks([])
    _plain(axes)
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.minorticks_off()
    axes.grid(axis="y", color="#ececec")
    axes.set_axisbelow(True)
