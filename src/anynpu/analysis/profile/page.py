"""One page for a profile."""

from __future__ import annotations

from html import escape

from ...chips.timing import Bound
from ..pages import figure_boxes, html_document, legend, number_cell, sortable_table, text_cell
from .charts import BOUND_COLOURS, core_timeline, layer_chart, memory_chart, roofline_chart
from .profile import LayerProfile, Profile

__all__ = ["profile_page"]


def profile_page(profile: Profile, title: str) -> str:
    """The page, as HTML."""
    host = profile.host_us
    figures = [
        (f"{profile.latency_us / 1000:.2f} ms", f"{profile.chip.name}, predicted"),
        (str(len(profile.layers)), "layers"),
        (f"{100 * profile.prediction.mac_share:.0f} %", "of the MAC peak"),
        (f"{(profile.prediction.read_bytes + profile.prediction.written_bytes) / 1e6:.1f} MB", "memory traffic"),
        (f"{profile.internal_bytes / 1e6:.1f} MB", "internal memory"),
    ]
    if host is not None:
        figures.append((f"{host / 1000:.2f} ms", "on this machine"))
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in profile.advice())
    used = {layer.bound for layer in profile.layers if layer.time_us}
    key = legend((color, bound.value) for bound, color in BOUND_COLOURS.items() if bound in used)
    body = f"""<h1>{escape(title)}</h1>
<p class="sub">{escape(str(profile.prediction.confidence))}</p>
{figure_boxes(figures)}
<h2>What to know</h2>
<ul class="advice">{advice}</ul>
<h2>Layers in order</h2>
{key}
{layer_chart(profile)}
<h2>Roofline</h2>
{roofline_chart(profile)}
<h2>Internal memory over time</h2>
{memory_chart(profile)}
<h2>Cores</h2>
{core_timeline(profile)}
<h2>Table</h2>
{_table(profile)}"""
    return html_document(f"{title}: profile", body)


def _table(profile: Profile) -> str:
    with_host = profile.host_us is not None
    heads = ["#", "layer", "operator", "output", "time, us", "bound", "MACs", "KB moved", *(["host, us"] if with_host else [])]
    numeric = ("#", "time, us", "MACs", "KB moved", "host, us")
    return sortable_table(heads, (_row(layer, with_host) for layer in profile.layers), numeric)


def _row(layer: LayerProfile, with_host: bool) -> list[str]:
    place = layer.bound.value if layer.on_npu or layer.bound is Bound.CPU else "cpu"
    cells = [
        number_cell(layer.index, str(layer.index)),
        text_cell(layer.name, kind="name"),
        text_cell(layer.kind),
        text_cell(f"{'x'.join(map(str, layer.output_shape))} {layer.dtype}"),
        number_cell(layer.time_us, f"{layer.time_us:.1f}"),
        text_cell(place),
        number_cell(layer.mac_share, f"{100 * layer.mac_share:.0f} %" if layer.operations else "-"),
        number_cell(layer.moved_bytes, f"{layer.moved_bytes / 1024:.0f}"),
    ]
    if with_host:
        host = layer.host_us
        cells.append(number_cell(host or 0.0, "-" if host is None else f"{host:.1f}"))
    return cells
