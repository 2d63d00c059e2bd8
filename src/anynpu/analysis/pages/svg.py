"""Pieces that charts are made of. Colours of text and grid come from the page, so that they follow its light or dark look."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

__all__ = ["LEFT", "RIGHT", "WIDTH", "grid_rows", "svg"]

WIDTH, LEFT, RIGHT = 1040, 58, 12
"""Of a chart over the whole page, and of its margins."""


def svg(height: int, parts: Iterable[str], label: str, *, width: int = WIDTH) -> str:
    """A chart of some SVG elements."""
    body = "\n".join(parts)
    chart = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
    return f'<div class="chart">{chart}</div>' if width == WIDTH else chart  # wide charts scroll on small screens


def grid_rows(longest: float, top: int, plot: int, unit: str) -> Iterable[str]:
    """Lines across the chart at round values."""
    step = 10.0 ** math.floor(math.log10(longest)) if longest > 0 else 1.0
    step = next(size for size in (step / 5, step / 2, step, step * 2) if longest / size <= 6)
    for index in range(int(longest / step) + 1):
        y = top + plot * (1 - index * step / longest)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}{f" {unit}" if index else ""}</text>'
