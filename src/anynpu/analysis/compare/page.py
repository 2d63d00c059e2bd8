"""One page for a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

import numpy as np

from ..pages import (
    LEFT,
    RIGHT,
    WIDTH,
    figure_boxes,
    grid_rows,
    html_document,
    legend,
    number_cell,
    sortable_table,
    svg,
    text_cell,
)
from .layers import Comparison, LayerComparison
from .metrics import ChannelRanges, Histograms
from .report import sentences

# The images of a comparison, as SVG.


COLOUR_A, COLOUR_B, COLOUR_ALONE = "#3d6fb4", "#e09f3e", "#0f8b8d"

_MAX_DECIBELS = 70.0
"""Where the chart ends: beyond it nothing is to be seen."""

_SMALL_WIDTH, _SMALL_HEIGHT = 510, 190
_SMALL_LEFT, _SMALL_RIGHT, _SMALL_TOP, _SMALL_BOTTOM = 52, 8, 8, 34


def noise_chart(comparison: Comparison) -> str:
    """Signal to noise of each layer, in order: of the network so far, and of the layer alone."""
    height, top, bottom = 280, 10, 24
    plot, room = height - top - bottom, WIDTH - LEFT - RIGHT
    step = room / max(len(comparison.layers), 1)

    def y_of(decibels: float) -> float:
        return top + plot * (1 - min(max(decibels, 0.0), _MAX_DECIBELS) / _MAX_DECIBELS)

    parts = list(grid_rows(_MAX_DECIBELS, top, plot, "dB"))
    diverging = comparison.first_diverging
    line = []
    for place, entry in enumerate(comparison.layers):
        x = LEFT + (place + 0.5) * step
        line.append(f"{x:.1f},{y_of(entry.so_far.snr):.1f}")
        if diverging is not None and diverging.layer is entry:
            parts.append(
                f'<rect x="{x - step / 2:.1f}" y="{top}" width="{max(step, 2.0):.1f}" height="{plot}" fill="#c8553d" '
                f'fill-opacity="0.25"><title>{escape(f"first diverging layer: {entry.layer}")}</title></rect>'
            )
    parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{COLOUR_B}" stroke-width="2"/>')
    for place, entry in enumerate(comparison.layers):
        if entry.alone is not None:
            x, y = LEFT + (place + 0.5) * step, y_of(entry.alone.snr)
            parts.append(
                f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{min(4.0, max(step / 2.5, 1.5)):.1f}" fill="{COLOUR_ALONE}">'
                f"<title>{_title(entry)}</title></circle>"
            )
    parts.append(f'<text x="{LEFT}" y="{height - 6}">first layer</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">last layer</text>')
    return svg(height, parts, "signal to noise of each layer")


def histogram_chart(histograms: Histograms) -> str:
    """How often which value occurs on either side; heights are logarithms."""
    plot, room = _SMALL_HEIGHT - _SMALL_TOP - _SMALL_BOTTOM, _SMALL_WIDTH - _SMALL_LEFT - _SMALL_RIGHT
    counts = histograms.counts
    longest = math.log10(1 + max(int(counts.max()), 9))
    step = room / counts.shape[1]

    def size_of(count: int) -> float:
        return plot * math.log10(1 + count) / longest

    parts = []
    for power in range(int(longest) + 1):
        y = _SMALL_TOP + plot * (1 - math.log10(1 + 10**power) / longest)
        if y >= _SMALL_TOP:
            parts.append(
                f'<line class="grid" x1="{_SMALL_LEFT}" y1="{y:.1f}" x2="{_SMALL_WIDTH - _SMALL_RIGHT}" y2="{y:.1f}"/>'
                f'<text x="{_SMALL_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{10**power}</text>'
            )
    base = _SMALL_TOP + plot
    for place, count in enumerate(counts[0].tolist()):
        if count:
            size = size_of(count)
            parts.append(
                f'<rect x="{_SMALL_LEFT + place * step:.1f}" y="{base - size:.1f}" width="{step:.1f}" height="{size:.1f}" '
                f'fill="{COLOUR_A}" fill-opacity="0.45"/>'
            )
    outline = [f"{_SMALL_LEFT},{base}"]
    for place, count in enumerate(counts[1].tolist()):
        y = base - size_of(count)
        outline += [f"{_SMALL_LEFT + place * step:.1f},{y:.1f}", f"{_SMALL_LEFT + (place + 1) * step:.1f},{y:.1f}"]
    outline.append(f"{_SMALL_WIDTH - _SMALL_RIGHT},{base}")
    parts.append(f'<polyline points="{" ".join(outline)}" fill="none" stroke="{COLOUR_B}" stroke-width="1.4"/>')
    if not counts.any():
        return svg(_SMALL_HEIGHT, ['<text x="60" y="90">no value is finite</text>'], "histogram", width=_SMALL_WIDTH)
    for part, anchor in enumerate(("start", "middle", "end")):
        value, x = histograms.low + part * (histograms.high - histograms.low) / 2, _SMALL_LEFT + part * room / 2
        parts.append(f'<text x="{x:.1f}" y="{base + 14}" text-anchor="{anchor}">{value:.3g}</text>')
    parts.append(f'<text x="{_SMALL_LEFT + room / 2:.1f}" y="{_SMALL_HEIGHT - 4}" text-anchor="middle">value</text>')
    return svg(_SMALL_HEIGHT, parts, "histogram of both sides", width=_SMALL_WIDTH)


def range_chart(ranges: ChannelRanges) -> str:
    """Smallest to largest value of each channel, of either side."""
    plot, room = _SMALL_HEIGHT - _SMALL_TOP - _SMALL_BOTTOM, _SMALL_WIDTH - _SMALL_LEFT - _SMALL_RIGHT
    channels = ranges.limits.shape[2]
    if not np.isfinite(ranges.limits).all():
        return svg(
            _SMALL_HEIGHT, ['<text x="60" y="90">not all values are finite</text>'], "ranges per channel", width=_SMALL_WIDTH
        )
    low = min(0.0, float(ranges.limits[:, 0].min()))
    high = max(0.0, float(ranges.limits[:, 1].max()))
    extent = (high - low) or 1.0

    def y_of(value: float) -> float:
        return _SMALL_TOP + plot * (high - value) / extent

    step = room / channels
    parts = []
    for value in dict.fromkeys((low, 0.0, high)):
        y = y_of(value)
        parts.append(
            f'<line class="grid" x1="{_SMALL_LEFT}" y1="{y:.1f}" x2="{_SMALL_WIDTH - _SMALL_RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_SMALL_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        )
    for side, colour in enumerate((COLOUR_A, COLOUR_B)):
        for channel in range(channels):
            first, last = (float(ranges.limits[side, end, channel]) for end in (0, 1))
            x = _SMALL_LEFT + (channel + 0.1 + 0.4 * side) * step
            parts.append(
                f'<rect class="mark" x="{x:.2f}" y="{y_of(last):.1f}" width="{0.4 * step:.2f}" '
                f'height="{max(y_of(first) - y_of(last), 0.8):.1f}" fill="{colour}">'
                f"<title>channel {channel}: {first:.4g} to {last:.4g}</title></rect>"
            )
    parts.append(f'<text x="{_SMALL_LEFT}" y="{_SMALL_HEIGHT - 18}">0</text>')
    parts.append(f'<text x="{_SMALL_WIDTH - _SMALL_RIGHT}" y="{_SMALL_HEIGHT - 18}" text-anchor="end">{channels - 1}</text>')
    parts.append(f'<text x="{_SMALL_LEFT + room / 2:.1f}" y="{_SMALL_HEIGHT - 4}" text-anchor="middle">channel</text>')
    return svg(_SMALL_HEIGHT, parts, "ranges per channel", width=_SMALL_WIDTH)


def _title(entry: LayerComparison) -> str:
    alone = "" if entry.alone is None else f", alone {entry.alone.snr:.1f} dB"
    return escape(f"{entry.kind} {entry.layer}: so far {entry.so_far.snr:.1f} dB{alone}")


_STYLE = """
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
@media (max-width: 760px) { .pair { grid-template-columns: 1fr; } }
h3 { font-size: .95rem; margin: 1.4rem 0 .2rem; } h3 span { color: var(--faint); font-weight: normal; }
.wide { overflow-x: auto; } .wide table { font-size: .78rem; } .wide th, .wide td { padding: .2rem .35rem; }
.wide td.name { min-width: 9rem; }
"""

_MAX_PICTURES = 16


def comparison_page(comparison: Comparison, *, pictures: int = _MAX_PICTURES) -> str:
    """The page, as HTML.

    :param pictures: layers that get images: the diverging one, the outputs, and the worst
    """
    outputs = comparison.output_layers
    figures = [
        (f"{min((entry.so_far.cosine for entry in outputs), default=1.0):.5f}", "cosine of the outputs"),
        (f"{min((entry.so_far.snr for entry in outputs), default=0.0):.1f} dB", "signal to noise of the outputs"),
        (str(len(comparison.layers)), "tensors compared"),
        (str(comparison.samples), "samples"),
    ]
    known = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(comparison))
    chosen = _chosen(comparison, pictures)
    diverging, worst = comparison.first_diverging, comparison.worst(10)
    body = f"""<h1>{escape(comparison.b)}</h1>
<p class="sub">compared with {escape(comparison.a)}</p>
{figure_boxes(figures)}
<h2>Notes</h2>
<ul class="advice">{known}</ul>
<h2>Signal to noise, layer by layer</h2>
{legend([(COLOUR_B, "the network so far"), (COLOUR_ALONE, "the layer alone")])}
{noise_chart(comparison)}
<h2>{len(worst)} worst layers</h2>
<div class="wide">{_table(worst)}</div>
<h2>Values and channel ranges of {len(chosen)} layers</h2>
{legend([(COLOUR_A, comparison.a), (COLOUR_B, comparison.b)])}
{"".join(_pictures(entry, diverging is not None and entry is diverging.layer) for entry in chosen)}
<h2>All layers</h2>
<div class="wide">{_table(comparison.layers)}</div>"""
    return html_document(f"{comparison.b} compared with {comparison.a}", body, style=_STYLE)


def _chosen(comparison: Comparison, most: int) -> list[LayerComparison]:
    """Layers worth an image: the diverging one, then the others in the order of execution."""
    found = comparison.first_diverging
    first = [found.layer] if found is not None else []
    ranked = dict.fromkeys(id(entry) for entry in [*first, *comparison.output_layers, *comparison.worst(len(comparison.layers))])
    others = set(list(ranked)[:most]) - {id(entry) for entry in first}
    return [*first, *(entry for entry in comparison.layers if id(entry) in others)]


def _pictures(entry: LayerComparison, diverging: bool) -> str:
    about = [
        *(["first diverging layer"] if diverging else []),
        entry.kind,
        "x".join(map(str, entry.shape)),
        f"so far {entry.so_far.snr:.1f} dB",
        *([] if entry.alone is None else [f"alone {entry.alone.snr:.1f} dB"]),
    ]
    return (
        f"<h3>{escape(entry.layer)} <span>{escape(', '.join(about))}</span></h3>"
        f'<div class="pair">{histogram_chart(entry.histograms)}{range_chart(entry.ranges)}</div>'
    )


def _table(layers: Iterable[LayerComparison]) -> str:
    heads = [
        *("#", "layer", "operator", "shape", "cosine", "dB", "error"),
        *("alone: cosine", "dB", "error", "scale", "codes", "rails", "clipped"),
    ]
    return sortable_table(heads, (_row(entry) for entry in layers), {*heads} - {"layer", "operator", "shape"})


def _row(entry: LayerComparison) -> list[str]:
    so_far, alone, codes = entry.so_far, entry.alone, entry.codes
    cells = [
        number_cell(entry.index, "" if entry.index < 0 else str(entry.index)),
        text_cell(entry.layer, kind="name"),
        text_cell(entry.kind),
        text_cell("x".join(map(str, entry.shape))),
        number_cell(so_far.cosine, f"{so_far.cosine:.5f}"),
        number_cell(so_far.snr, f"{so_far.snr:.1f}"),
        number_cell(so_far.error, f"{so_far.error:.3g}"),
    ]
    if alone is None:
        cells += [number_cell(0.0, "-")] * 4
    else:
        cells += [
            number_cell(alone.cosine, f"{alone.cosine:.5f}"),
            number_cell(alone.snr, f"{alone.snr:.1f}"),
            number_cell(alone.error, f"{alone.error:.3g}"),
            number_cell(alone.scale, f"{alone.scale:.4f}"),
        ]
    if codes is None:
        return [*cells, *[number_cell(0.0, "-")] * 3]
    return [
        *cells,
        number_cell(codes.used, f"{codes.used}/{codes.available}"),
        number_cell(codes.rails, f"{100 * codes.rails:.1f} %"),
        number_cell(codes.clipped, f"{100 * codes.clipped:.1f} %"),
    ]
