"""A network as a picture: layers from top to bottom, lines between them, coloured by whatever is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["GraphNode", "layer_graph"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 168, 24, 16, 18
_MAX_LABEL = 26


@dataclass(frozen=True)
class GraphNode:
    """A layer.

    :ivar name: by which scripts find it
    :ivar label: what is written on it
    :ivar title: what is told when the pointer is over it
    :ivar strengths: how strongly it is coloured in each view, from 0 to 1
    """

    name: str
    label: str
    title: str
    strengths: Mapping[str, float] = field(default_factory=dict)


def layer_graph(nodes: Sequence[GraphNode], edges: Sequence[tuple[int, int]], view: str, colour: str) -> str:
    """The picture, as SVG. Edges are pairs of places in *nodes*, each from an earlier one to a later one.

    :param view: which of the strengths colours the nodes at first
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
