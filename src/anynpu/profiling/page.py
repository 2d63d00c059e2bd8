"""One page for a profile: everything inside one file, nothing loaded from elsewhere, readable without a script."""

from __future__ import annotations

from html import escape

from ..npu.timing import Bound
from .charts import BOUND_COLOURS, core_timeline, layer_chart, memory_chart, roofline_chart
from .profile import LayerProfile, Profile

__all__ = ["profile_page"]

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #5b6675; --paper: #ffffff; --line: #d9dee5; --panel: #f5f7fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --faint: #9aa5b4; --paper: #14181f; --line: #313a46; --panel: #1b212a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem; }
p.sub { color: var(--faint); margin: .2rem 0 1.2rem; }
.figures { display: flex; flex-wrap: wrap; gap: .8rem; }
.figure { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; min-width: 8rem; }
.figure b { display: block; font-size: 1.25rem; }
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
td.name { white-space: normal; word-break: break-all; } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
"""

_SCRIPT = """
document.querySelectorAll('th').forEach((head, column) => head.addEventListener('click', () => {
  const body = head.closest('table').tBodies[0];
  const falling = head.dataset.order !== 'falling';
  head.dataset.order = falling ? 'falling' : 'rising';
  const value = row => row.cells[column].dataset.value;
  const rows = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b), numbers = !isNaN(x) && !isNaN(y);
    return (numbers ? x - y : String(x).localeCompare(y)) * (falling ? -1 : 1);
  });
  body.append(...rows);
}));
"""


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
    boxes = "".join(f'<div class="figure"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in figures)
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in profile.advice())
    used = [bound for bound in BOUND_COLOURS if any(layer.bound is bound and layer.time_us for layer in profile.layers)]
    legend = "".join(f'<span><i style="background:{BOUND_COLOURS[bound]}"></i>{escape(bound.value)}</span>' for bound in used)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}: profile</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="sub">{escape(str(profile.prediction.confidence))}</p>
<div class="figures">{boxes}</div>
<h2>What to know</h2>
<ul class="advice">{advice}</ul>
<h2>Layers in order</h2>
<p class="legend">{legend}</p>
{layer_chart(profile)}
<h2>Roofline</h2>
{roofline_chart(profile)}
<h2>Internal memory over time</h2>
{memory_chart(profile)}
<h2>Cores</h2>
{core_timeline(profile)}
<h2>Table</h2>
{_table(profile)}
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _table(profile: Profile) -> str:
    with_host = profile.host_us is not None
    heads = ["#", "layer", "operator", "output", "time, us", "bound", "MACs", "KB moved", *(["host, us"] if with_host else [])]
    numeric = {"#", "time, us", "MACs", "KB moved", "host, us"}
    head = "".join(f'<th class="{"number" if name in numeric else ""}">{name}</th>' for name in heads)
    rows = "".join(_row(layer, with_host) for layer in profile.layers)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(layer: LayerProfile, with_host: bool) -> str:
    def number(value: float, text: str) -> str:
        return f'<td class="number" data-value="{value}">{text}</td>'

    place = layer.bound.value if layer.on_npu or layer.bound is Bound.CPU else "cpu"
    shape = "x".join(map(str, layer.output_shape))
    cells = [
        number(layer.index, str(layer.index)),
        f'<td class="name" data-value="{escape(layer.name, quote=True)}">{escape(layer.name)}</td>',
        f'<td data-value="{escape(layer.kind, quote=True)}">{escape(layer.kind)}</td>',
        f'<td data-value="{shape}">{shape} {escape(layer.dtype)}</td>',
        number(layer.time_us, f"{layer.time_us:.1f}"),
        f'<td data-value="{place}">{place}</td>',
        number(layer.mac_share, f"{100 * layer.mac_share:.0f} %" if layer.operations else "-"),
        number(layer.moved_bytes, f"{layer.moved_bytes / 1024:.0f}"),
    ]
    if with_host:
        host = layer.host_us
        cells.append(number(host or 0.0, "-" if host is None else f"{host:.1f}"))
    return f"<tr>{''.join(cells)}</tr>"
