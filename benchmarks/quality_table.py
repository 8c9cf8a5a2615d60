"""What was measured, as Markdown tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.quality_record import TEXT, Means, Record, means, tasks

_HEADINGS = {
    "found": "share of facts found",
    "nll": "mean negative log-likelihood per token of the answer",
    "ratio": "perplexity by that of the full cache",
    "until": "share of tokens before the first that differs",
    "equal": "share of equal answers",
    "repeated": "share of 4-grams that stood before",
    "distinct": "distinct tokens by all tokens",
    "perplexity": "perplexity under the full cache",
}


def report(records: Sequence[Record]) -> str:
    """A table per task and figure: a line per variant, a column per share."""
    parts = []
    for task, thousands in tasks(records):
        found = means(records, task, thousands)
        figures = ["ratio"] if task == TEXT else [name for name in next(iter(found.values())) if name in _HEADINGS]
        count = max(int(values["cases"]) for values in found.values())
        for name in figures:
            prompts = f", prompts of about {thousands},000 tokens" if thousands else ""
            title = f"{task}{prompts} ({count} cases): {_HEADINGS[name]}"
            parts.append(f"{title}\n\n{_table(found, name)}")
    return "\n\n".join(parts)


def _table(found: Means, name: str) -> str:
    sizes = sorted({size for _, _, size in found}, reverse=True)
    lines = list(dict.fromkeys((rows, variant) for rows, variant, _ in found))
    several = len({rows for rows, _ in lines}) > 1
    table = [["", *map(_size, sizes)]]
    for rows, variant in lines:
        cells = [found.get((rows, variant, size), {}).get(name) for size in sizes]
        heading = f"{variant}; {rows} rows" if several else variant
        table.append([heading, *("" if cell is None else _number(cell) for cell in cells)])
    widths = [max(3, *(len(row[column]) for row in table)) for column in range(len(table[0]))]
    table.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    return "\n".join("| " + " | ".join(map(_padded, row, widths)) + " |" for row in table)


def _size(size: float) -> str:
    return f"{size:.2g}" if size <= 1 else f"{size:,.0f} rows"


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:,.1f}"


def _padded(cell: str, width: int) -> str:
    return cell.ljust(width)
