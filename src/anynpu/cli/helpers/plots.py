"""Charts as SVG text, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from ...chips.timing import Bound, Prediction

__all__ = ["prediction_chart"]

_COLOURS = {
    Bound.COMPUTE: "#00796b",
    Bound.LOOKUP: "#f9a825",
    Bound.MEMORY: "#1565c0",
    Bound.FLOOR: "#90a4ae",
    Bound.OPERATOR: "#6a1b9a",
    Bound.CPU: "#c62828",
}
_WORDS = {Bound.OPERATOR: "slow operators", Bound.FLOOR: "small layers", Bound.CPU: "CPU layers", Bound.LOOKUP: "look-up tables"}
_LEFT, _RIGHT, _TOP, _ROW, _BAR, _WIDTH = 90, 190, 84, 26, 16, 960


def prediction_chart(title: str, predictions: Sequence[Prediction]) -> str:
    """A bar for each chip: its latency, in parts by what rules the layers; fastest first."""
    ordered = sorted(predictions, key=lambda entry: entry.latency_us)
    height = _TOP + _ROW * len(ordered) + 34
    longest = max((entry.latency_us for entry in ordered), default=1.0)
    plot_width = _WIDTH - _LEFT - _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold" fill="#212121">{escape(title)}</text>',
    ]
    parts += _legend([bound for bound in _COLOURS if any(entry.by_bound().get(bound) for entry in ordered)])
    parts += _axis(longest, plot_width, height)
    for index, entry in enumerate(ordered):
        parts += _bar(entry, _TOP + index * _ROW, plot_width / longest)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(bounds: Sequence[Bound]) -> list[str]:
    parts = []
    x = 16
    for bound in bounds:
        words = _WORDS.get(bound, bound.value)
        parts.append(f'<rect x="{x}" y="42" width="12" height="12" fill="{_COLOURS[bound]}"/>')
        parts.append(f'<text x="{x + 18}" y="52" fill="#424242">{words}</text>')
        x += 40 + 7 * len(words)
    return parts


def _axis(longest: float, width: float, height: int) -> list[str]:
    parts = []
    step = _tick(longest / 1000.0)
    count = int(longest / 1000.0 / step)
    for index in range(count + 1):
        x = _LEFT + index * step * 1000.0 / longest * width
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 26}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#616161">{index * step:g} ms</text>')
    return parts


def _bar(entry: Prediction, y: float, per_us: float) -> list[str]:
    middle = y + _BAR - 4
    parts = [f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end" fill="#212121">{escape(entry.chip.name)}</text>']
    x = float(_LEFT)
    faint = ' fill-opacity="0.55"' if entry.confidence.level == "uncalibrated" else ""
    times = entry.by_bound()
    for bound, colour in _COLOURS.items():
        width = times.get(bound, 0.0) * per_us
        if width > 0:
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}"{faint}/>')
            x += width
    label = f"{entry.latency_us / 1000:.1f} ms, {entry.confidence.level}"
    parts.append(f'<text x="{x + 6:.1f}" y="{middle}" fill="#424242">{label}</text>')
    return parts


def _tick(longest: float) -> float:
    """A round distance that divides an axis into four to ten parts.

    >>> _tick(97.0), _tick(3.0)
    (20.0, 0.5)
    """
    size = 10.0 ** len(str(int(longest)))
    while longest / size < 4:
        for factor in (2.0, 2.5, 2.0):
            size /= factor
            if longest / size >= 4:
                break
    return size
