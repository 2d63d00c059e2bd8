"""One page for a comparison."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..pages import figure_boxes, html_document, legend, number_cell, sortable_table, text_cell
from .charts import COLOUR_A, COLOUR_ALONE, COLOUR_B, histogram_chart, noise_chart, range_chart
from .layers import Comparison, LayerComparison
from .report import sentences

__all__ = ["comparison_page"]

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

    :param pictures: layers that get pictures: the diverging one, the outputs, and the worst
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
<h2>What to know</h2>
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
    """Layers worth a picture: the diverging one, then the others in the order of execution."""
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
