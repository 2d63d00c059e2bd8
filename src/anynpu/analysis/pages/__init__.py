"""What all pages are made of: the frame of a page, its tables and numbers, and the pieces of its charts.

A page is one file: nothing is loaded from elsewhere, and it can be read without a script. :mod:`anynpu.analysis.profile`,
:mod:`anynpu.analysis.compare` and :mod:`anynpu.analysis.report` compose their pages from these. The files of the server's status
page and of the playground lie here too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources

__all__ = [
    "GraphNode",
    "LEFT",
    "RIGHT",
    "TERMS",
    "WIDTH",
    "figure_boxes",
    "grid_rows",
    "html_document",
    "layer_graph",
    "legend",
    "number_cell",
    "sortable_table",
    "svg",
    "text_cell",
    "with_explanation",
]


# A network as an image: layers from top to bottom, lines between them, colored by whatever is asked.


_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 168, 24, 16, 18
_MAX_LABEL = 26


@dataclass(frozen=True)
class GraphNode:
    """A layer.

    :ivar name: by which scripts find it
    :ivar label: what is written on it
    :ivar title: shown when the pointer is over it
    :ivar strengths: how strongly it is colored in each view, from 0 to 1
    """

    name: str
    label: str
    title: str
    strengths: Mapping[str, float] = field(default_factory=dict)


def layer_graph(nodes: Sequence[GraphNode], edges: Sequence[tuple[int, int]], view: str, colour: str) -> str:
    """The image, as SVG. Edges are pairs of places in *nodes*, each from an earlier one to a later one.

    :param view: which of the strengths colors the nodes at first
    """
    places = _places(len(nodes), edges)
    columns = max((column for column, _ in places), default=0) + 1
    rows = max((row for _, row in places), default=0) + 1
    width = columns * (_WIDTH + _GAP_X) + _GAP_X
    height = rows * (_HEIGHT + _GAP_Y) + _GAP_Y
    parts = [_line(places[first], places[second]) for first, second in edges]
    parts += [_box(node, place, view, colour) for node, place in zip(nodes, places, strict=True)]
    body = "\n".join(parts)
    return f'<svg class="graph" viewBox="0 0 {width} {height}" style="width:{width}px" role="img" aria-label="graph">{body}</svg>'


def _places(count: int, edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Column and row of each node: a row below all that it reads, near the columns of those."""
    sources: list[list[int]] = [[] for _ in range(count)]
    for first, second in edges:
        sources[second].append(first)
    rows = [0] * count
    for node in range(count):
        rows[node] = max((rows[source] + 1 for source in sources[node]), default=0)
    columns = [0] * count
    taken: set[tuple[int, int]] = set()
    for node in sorted(range(count), key=lambda node: (rows[node], node)):
        wanted = round(sum(columns[source] for source in sources[node]) / len(sources[node])) if sources[node] else 0
        column = wanted
        while (column, rows[node]) in taken:
            column += 1
        columns[node] = column
        taken.add((column, rows[node]))
    return list(zip(columns, rows, strict=True))


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return _GAP_X + place[0] * (_WIDTH + _GAP_X), _GAP_Y + place[1] * (_HEIGHT + _GAP_Y)


def _line(first: tuple[int, int], second: tuple[int, int]) -> str:
    (x1, y1), (x2, y2) = _corner(first), _corner(second)
    start, end = (x1 + _WIDTH / 2, y1 + _HEIGHT), (x2 + _WIDTH / 2, y2)
    # a line that skips rows runs beside the boxes between
    bend = 0 if second[1] - first[1] == 1 else _WIDTH / 2 + _GAP_X / 2
    middle = f"C {start[0] + bend} {start[1] + 14} {end[0] + bend} {end[1] - 14} {end[0]} {end[1]}"
    return f'<path class="edge" d="M {start[0]} {start[1]} {middle}"/>'


def _box(node: GraphNode, place: tuple[int, int], view: str, colour: str) -> str:
    x, y = _corner(place)
    label = node.label if len(node.label) <= _MAX_LABEL else f"{node.label[: _MAX_LABEL - 1]}…"
    strengths = " ".join(f'data-{name}="{value:.3f}"' for name, value in node.strengths.items())
    opacity = node.strengths.get(view, 0.0)
    return (
        f'<g class="node" data-name="{escape(node.name, quote=True)}" {strengths}>'
        f"<title>{escape(node.title)}</title>"
        f'<rect class="frame" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
        f'<rect class="fill" x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{colour}" '
        f'fill-opacity="{opacity:.3f}"/>'
        f'<text x="{x + 8}" y="{y + 16}">{escape(label)}</text></g>'
    )


# The status page of a server: three files without dependencies, which ask it for its numbers every second.


@cache
def page(name: str) -> bytes:
    """The page, its script or its style.

    >>> page("status.html")[:15]
    b'<!doctype html>'
    """
    return resources.files(__package__).joinpath(name).read_bytes()


# Pieces that charts are made of. Colors of text and grid come from the page, so that they follow its light or dark look.


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


# Words of the pages that a newcomer may not know, and what they mean.


TERMS = {
    "one core": "Predicted time of one run on one core of the chip.",
    "all cores": "Predicted runs per second with one run on each core.",
    "80 % range": "80 % of similar networks are within this range.",
    "float16": "Predicted time of one run with float16 in place of int8: more accurate, slower, twice the memory.",
    "memory": "Weights and internal memory of the compiled model.",
    "on CPU": "Layers that the NPU does not take, and the part of the time that they need.",
    "confidence": "How well the timing of this chip is known: calibrated with measurements, extrapolated, or uncalibrated.",
    "bound": "What decides the time of a layer: compute, memory, look-up tables, the operator itself, the shortest time of a task "
    "(floor), or the CPU.",
    "MACs": "Share of the multiply-accumulate units that the layer keeps busy.",
    "KB moved": "Kilobytes that the layer reads and writes.",
    "cosine": "Cosine of the angle between two results; 1 where they point the same way, whatever their lengths.",
    "dB": "Signal to noise: 20 dB is a tenth, 40 dB a hundredth of the signal.",
    "alone, dB": "Signal-to-noise ratio of the layer alone, computed from the reference values.",
    "so far, dB": "Signal to noise of the network up to and including this layer.",
    "error": "Largest difference of two elements.",
    "scale": "Slope of the line from reference to candidate values; 1.02 where they are 2 % too large.",
    "codes": "How many of the quantized values occur in the tensor.",
    "rails": "Share of elements at the smallest or largest quantized value.",
    "clipped": "Share of elements beyond the quantization range.",
    "alone: cosine": "Cosine of the layer alone, computed from the reference values.",
    "accuracy": "Cosine of the int8 outputs to the float model's, measured on your samples.",
    "internal memory": "Memory for what passes between layers.",
    "memory traffic": "Bytes that one run reads from and writes to memory.",
    "of the MAC peak": "Share of the multiply-accumulates that the chip could do in the time of the run.",
}
"""By the words as they stand in heads of tables and under numbers."""

CHART_TERMS = {
    "compute": "Time that is limited by multiply-accumulate operations.",
    "look-up": "Time that is limited by activations with a lookup table, such as SiLU and sigmoid.",
    "memory": "Time that is limited by reading and writing memory.",
    "floor": "Shortest time of a task: many small layers are limited by it.",
    "operator": "Time of slow operators: Softmax, Transpose, reductions.",
    "cpu": "Time of layers that run on the CPU of the chip.",
    "uncalibrated": "No measurements of this chip exist: the bar shows an estimate from hardware numbers.",
    "80 % range": "Prediction interval: 80 % of similar networks are in it.",
    "the network so far": "Cumulative error: the layer runs on the outputs of earlier layers.",
    "the layer alone": "Isolated error: the layer runs on the reference values.",
}
"""By the terms in legends of charts."""


def with_explanation(text: str, terms: Mapping[str, str] = TERMS) -> str:
    """A word as HTML, with what it means for those who point at it.

    >>> with_explanation("layer"), with_explanation("dB")[:24]
    ('layer', '<abbr title="Signal to n')
    """
    meaning = terms.get(text)
    return escape(text) if meaning is None else f'<abbr title="{escape(meaning, quote=True)}">{escape(text)}</abbr>'


STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6675; --paper: #ffffff; --line: #d9dee5; --panel: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #9aa5b4; --paper: #14181f; --line: #313a46; --panel: #1b212a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
p.sub { color: var(--faint); margin: .2rem 0 1.2rem; }
.metrics { display: flex; flex-wrap: wrap; gap: .8rem; }
.metric { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; min-width: 8rem; }
.metric b { display: block; font-size: 1.25rem; }
abbr { text-decoration: underline dotted; cursor: help; }
.metric span { color: var(--faint); font-size: .85rem; }
ul.advice { padding-left: 1.2rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .mark:hover { stroke: var(--ink); stroke-width: 1.5; }
.legend span { display: inline-block; margin-right: 1rem; color: var(--faint); font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .35rem; vertical-align: -1px; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; }
th { text-align: left; color: var(--faint); cursor: pointer; position: sticky; top: 0; background: var(--paper); }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.words { white-space: normal; } td.name { white-space: normal; word-break: break-all; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.chart { overflow-x: auto; }
@media (max-width: 700px) { body { margin: 1rem auto; } .scroll { overflow-x: auto; } .chart > svg { min-width: 760px; }
  .chart > svg text { font-size: 15px; } th { position: static; } }
"""

SORT_SCRIPT = """
document.querySelectorAll('th').forEach(head => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0];
  const falling = head.dataset.order !== 'falling';
  head.dataset.order = falling ? 'falling' : 'rising';
  const value = row => row.cells[head.cellIndex].dataset.value;
  const rows = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b), numbers = !isNaN(x) && !isNaN(y);
    return (numbers ? x - y : String(x).localeCompare(y)) * (falling ? -1 : 1);
  });
  body.append(...rows);
}));
"""


def html_document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole page. Tables in it can be sorted by a click on a head.

    :param style: rules besides those that all pages have
    :param script: what runs besides the sorting of tables
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{STYLE}{style}</style>
</head>
<body>
{body}
<script>{SORT_SCRIPT}{script}</script>
</body>
</html>
"""


def figure_boxes(figures: Iterable[tuple[str, str]]) -> str:
    """The numbers that come first: pairs of value and label."""
    boxes = "".join(
        f'<div class="metric"><b>{escape(value)}</b><span>{with_explanation(label)}</span></div>' for value, label in figures
    )
    return f'<div class="metrics">{boxes}</div>'


def sortable_table(heads: Iterable[str], rows: Iterable[Iterable[str]], numeric: Iterable[str] = ()) -> str:
    """A table of cells made by :func:`number_cell` and :func:`text_cell`.

    :param numeric: heads of columns with numbers
    """
    right = set(numeric)
    head = "".join(f'<th class="{"number" if name in right else ""}">{with_explanation(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Pairs of color and term, each term with its explanation where there is one."""
    spans = "".join(
        f'<span><i style="background:{color}"></i>{with_explanation(term, CHART_TERMS)}</span>' for color, term in entries
    )
    return f'<p class="legend">{spans}</p>'


def number_cell(value: float, text: str) -> str:
    """A cell that is sorted by *value*."""
    return f'<td class="number" data-value="{value}">{escape(text)}</td>'


def text_cell(text: str, *, kind: str = "") -> str:
    """A cell that is sorted by its text.

    :param kind: class of the cell; ``name`` may be broken over lines
    """
    attribute = f' class="{kind}"' if kind else ""
    return f'<td{attribute} data-value="{escape(text, quote=True)}">{escape(text)}</td>'
