"""The frame of a page: everything inside one file, nothing loaded from elsewhere, readable without a script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from .terms import CHART_TERMS, with_explanation

__all__ = ["figure_boxes", "html_document", "legend", "number_cell", "sortable_table", "text_cell"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6675; --paper: #ffffff; --line: #d9dee5; --panel: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #9aa5b4; --paper: #14181f; --line: #313a46; --panel: #1b212a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
p.sub { color: var(--faint); margin: .2rem 0 1.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; }
.figure { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; min-width: 8rem; }
.figure b { display: block; font-size: 1.25rem; }
abbr { text-decoration: underline dotted; cursor: help; }
.figure span { color: var(--faint); font-size: .85rem; }
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
    """The figures that come first: pairs of value and label."""
    boxes = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{with_explanation(label)}</span></div>' for value, label in figures
    )
    return f'<div class="figures">{boxes}</div>'


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
