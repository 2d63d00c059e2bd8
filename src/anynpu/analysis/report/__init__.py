"""One report for a decision: a model on all chips side by side, with time, memory, accuracy and the price of float16.

>>> from anynpu.decision import decide, decision_page
>>> made = decide("yolo.onnx", dataset="street/", std=(255, 255, 255))     # doctest: +SKIP
>>> print(made.fastest.chip.name)                                          # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from ..._util.progress import Progress
from ...chips import Chip, all_chips
from ...chips.timing import fps, predict
from ...compiler import CompileOptions, ModelOutline, compile
from ...errors import AnynpuError, CompileError
from ...program import Program
from ...vendors import registry
from ..compare import Comparison, CompiledSubject, OnnxSubject, compare, dataset_samples
from ..pages import (
    LEFT,
    RIGHT,
    WIDTH,
    GraphNode,
    figure_boxes,
    html_document,
    layer_graph,
    legend,
    number_cell,
    sortable_table,
    svg,
    text_cell,
)
from ..profile import BOUND_COLOURS, LayerProfile, Profile, layer_chart, profile_program

__all__ = ["Accuracy", "ChipFigures", "Decision", "decide", "decision_data", "decision_of", "decision_page"]


# What a decision is made from: for each chip what a model takes there, and for each vendor what int8 does to its answers.


MAX_MEMORY_SHARE = 0.9
"""The share of the memory in a chip's package that a model can have; the rest is the system's."""

SAMPLES = 8
"""Samples that the accuracy is measured on, if no other number is given."""


@dataclass(frozen=True, eq=False)
class ChipFigures:
    """One chip.

    :ivar profile: layer by layer; None where the chip does not take the model
    :ivar refusal: why it does not
    :ivar float16_us: the time of one run in float16; None where the chip has none, or does not take the model so
    """

    chip: Chip
    profile: Profile | None = None
    refusal: str = ""
    float16_us: float | None = None

    @cached_property
    def fps(self) -> float:
        """Runs per second on all cores; 0 where the chip does not take the model."""
        return 0.0 if self.profile is None else fps(self.profile.prediction)

    @property
    def memory_bytes(self) -> int:
        """Weights and internal memory."""
        return 0 if self.profile is None else self.profile.prediction.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the memory in the chip's package, if it has some, holds the model."""
        dram = self.chip.dram_bytes
        return dram is None or self.memory_bytes <= dram * MAX_MEMORY_SHARE

    @property
    def takes(self) -> bool:
        """Whether the model runs there."""
        return self.profile is not None and self.fits


@dataclass(frozen=True, eq=False)
class Accuracy:
    """What a vendor's int8 does to the answers, measured on one of its chips."""

    vendor: str
    chip: Chip
    comparison: Comparison

    @property
    def cosine(self) -> float:
        """Of the worst output."""
        return min((entry.so_far.cosine for entry in self.comparison.output_layers), default=1.0)

    @property
    def snr(self) -> float:
        """Of the worst output, in dB."""
        return min((entry.so_far.snr for entry in self.comparison.output_layers), default=0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Decision:
    """A model on all chips.

    :ivar accuracy: by the name of the vendor; empty where no data set was given
    :ivar edges: by chip, pairs of layers of which the second reads what the first makes
    :ivar dataset: what the accuracy was measured on
    """

    title: str
    dtype: str
    chips: tuple[ChipFigures, ...]
    accuracy: Mapping[str, Accuracy] = field(default_factory=dict)
    edges: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    dataset: str = ""

    def __repr__(self) -> str:
        return f"Decision({len(self.chips)} chips)"

    @property
    def taking(self) -> list[ChipFigures]:
        """The chips on which the model runs, the fastest first."""
        return sorted((entry for entry in self.chips if entry.takes), key=_latency)

    @property
    def fastest(self) -> ChipFigures:
        """The chip with the shortest run on one core."""
        return self.taking[0]

    def accuracy_of(self, chip: Chip) -> Accuracy | None:
        """What is known about a chip's accuracy: that of its vendor."""
        return self.accuracy.get(registry.of_chip(chip).name)


def decide(
    model: str | Path,
    chips: Sequence[Chip] = (),
    *,
    dtype: str = "w8a8",
    samples: int = SAMPLES,
    progress: Progress | None = None,
    **options: Any,
) -> Decision:
    """Look at an ONNX model on *chips*, all of the catalogue by default.

    :param samples: of the data set that the accuracy is measured on
    :param options: of the compiler; with ``dataset`` the int8 model of one chip per vendor is compiled and compared with the float model
    """
    path, given = Path(model), CompileOptions(**{**options, "dtype": dtype})
    shapes = given.shapes
    if isinstance(shapes, Sequence) and not isinstance(shapes, Mapping):
        raise CompileError("a report has one shape for each input", hint="give one shape set")
    outline = ModelOutline(path, shapes=shapes, batch=given.batch)
    made = decision_of(path.name, outline, chips or tuple(all_chips()), dtype)
    if given.dataset is None or dtype == "fp16":
        return made
    accuracy: dict[str, Accuracy] = {}
    for entry in made.taking:
        vendor = registry.of_chip(entry.chip)
        if vendor.name not in accuracy:
            accuracy[vendor.name] = _measured(path, entry.chip, given, vendor.title, samples, progress)
    return replace(made, accuracy=accuracy, dataset=str(given.dataset))


def decision_of(title: str, outline: ModelOutline, chips: Sequence[Chip], dtype: str = "w8a8") -> Decision:
    """The part of a report that needs no data: an outlined model on *chips*."""
    rows, edges = [], {}
    error: AnynpuError | None = None
    for chip in chips:
        try:
            program = outline.program(chip, dtype=dtype)
        except AnynpuError as refusal:
            error = refusal
            rows.append(ChipFigures(chip, refusal=refusal.message))
            continue
        rows.append(ChipFigures(chip, profile_program(program, chip), "", _float16(outline, chip, dtype)))
        edges[chip.name] = _edges(program)
    if error is not None and not edges:
        raise error
    return Decision(title, dtype, tuple(rows), edges=edges)


def _float16(outline: ModelOutline, chip: Chip, dtype: str) -> float | None:
    if not chip.float16 or dtype == "fp16":
        return None
    try:
        return predict(outline.program(chip, dtype="fp16"), chip).latency_us
    except AnynpuError:
        return None


def _measured(path: Path, chip: Chip, given: CompileOptions, vendor: str, samples: int, progress: Progress | None) -> Accuracy:
    compiled = compile(path, chip.name, given, progress=progress)
    shapes = {spec.name: spec.shape for spec in compiled.programs[0].input_specs}
    right = OnnxSubject(path, path.name, shapes=shapes, preprocess=compiled.preprocess, channel_order=given.channel_order or None)
    judged = CompiledSubject(compiled, f"int8 on {chip.name}")
    data = dataset_samples(Path(str(given.dataset)), judged.inputs, samples)
    return Accuracy(vendor, chip, compare(right, judged, data, total=data.length, progress=progress))


def _edges(program: Program) -> tuple[tuple[int, int], ...]:
    """Pairs of layers of which the second reads what the first makes."""
    makers: dict[str, int] = {}
    found = []
    for index, layer in enumerate(program.layers):
        sources = {makers[name] for name in (_whole(program, name) for name in layer.inputs) if name in makers}
        found += [(source, index) for source in sorted(sources)]
        makers.update({_whole(program, name): index for name in layer.outputs})
    return tuple(found)


def _whole(program: Program, name: str) -> str:
    while name in program.views:
        name = program.views[name]
    return name


def _latency(entry: ChipFigures) -> float:
    return float("inf") if entry.profile is None else entry.profile.latency_us


# A decision as data, for JSON and for the page's own script.


def decision_data(decision: Decision) -> dict[str, Any]:
    """All numbers of a report, JSON-ready."""
    return {
        "model": decision.title,
        "dtype": decision.dtype,
        "dataset": decision.dataset,
        "chips": [_chip(entry) for entry in decision.chips],
        "accuracy": {name: _accuracy(entry) for name, entry in decision.accuracy.items()},
    }


def _chip(entry: ChipFigures) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "chip": entry.chip.name,
        "vendor": registry.of_chip(entry.chip).name,
        "takes": entry.takes,
        "reason": entry.refusal if entry.profile is None else "" if entry.fits else "its memory is too small",
    }
    if entry.profile is None:
        return facts
    profile = entry.profile
    low, high = profile.prediction.range_us
    return {
        **facts,
        "latency_ms": round(profile.latency_us / 1000, 4),
        "range_ms": [round(low / 1000, 4), round(high / 1000, 4)],
        "fps_all_cores": round(entry.fps, 2),
        "float16_ms": None if entry.float16_us is None else round(entry.float16_us / 1000, 4),
        "memory_bytes": entry.memory_bytes,
        "cpu_share": round(profile.prediction.cpu_share, 4),
        "confidence": str(profile.prediction.confidence),
        "advice": profile.advice(),
        "layers": [
            {
                "index": layer.index,
                "name": layer.name,
                "operator": layer.kind,
                "time_us": round(layer.time_us, 3),
                "bound": layer.bound.value if layer.on_npu else "cpu",
                "reason": layer.reason,
            }
            for layer in profile.layers
        ],
    }


def _accuracy(entry: Accuracy) -> dict[str, Any]:
    return {
        "vendor": entry.vendor,
        "measured_on": entry.chip.name,
        "samples": entry.comparison.samples,
        "cosine": entry.cosine,
        "snr_db": entry.snr,
        "layers": {
            layer.layer: {
                "so_far_db": round(layer.so_far.snr, 2),
                "alone_db": None if layer.alone is None else round(layer.alone.snr, 2),
            }
            for layer in entry.comparison.layers
            if layer.index >= 0
        },
    }


# The report as one page: chips side by side, the network colored by time and by error, and every number as JSON.


_WARM = "#c8553d"
_MIN_DB, _MAX_DB = 10.0, 50.0
"""Signal to noise that is colored fully, and not at all."""

STYLE = """
.wide { overflow-x: auto; } .wide svg { min-width: 640px; } td.words { min-width: 14rem; }
.controls { display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: center; margin: .6rem 0; font-size: .9rem; }
.controls input[type=search], .controls select, .controls button { font: inherit; padding: .2rem .5rem; color: inherit;
  background: var(--panel); border: 1px solid var(--line); border-radius: 6px; }
.stage { overflow: auto; max-height: 70vh; border: 1px solid var(--line); border-radius: 8px; }
svg .whisker { stroke: var(--ink); stroke-opacity: .6; fill: none; }
svg.graph { max-width: none; } svg.graph .edge { fill: none; stroke: var(--faint); stroke-opacity: .5; }
svg.graph .frame { fill: var(--panel); stroke: var(--line); } svg.graph text { fill: var(--ink); }
svg.graph .node.away { opacity: .15; } tr.away { display: none; }
details { margin: .4rem 0; } summary { cursor: pointer; }
@media print { .controls, script { display: none; } .stage { max-height: none; border: 0; } details > * { display: block; } }
"""

SCRIPT = """
const data = JSON.parse(document.getElementById('data').textContent);
const nodes = [...document.querySelectorAll('svg.graph .node')];
const find = document.getElementById('find'), view = document.getElementById('view'), chip = document.getElementById('chip');
let zoom = 1;
const graph = document.querySelector('svg.graph'), full = graph ? parseFloat(graph.style.width) : 0;
function paint() {
  const row = data.chips.find(one => one.chip === chip.value), times = new Map((row.layers || []).map(one => [one.name, one.time_us]));
  const longest = Math.max(1e-9, ...times.values());
  for (const node of nodes) {
    const time = times.get(node.dataset.name) || 0;
    const strength = view.value === 'time' ? time / longest : parseFloat(node.dataset.error || '0');
    node.querySelector('.fill').setAttribute('fill-opacity', strength.toFixed(3));
  }
  document.querySelectorAll('#layers td.time').forEach(cell => {
    const time = times.get(cell.dataset.layer);
    cell.textContent = time === undefined ? '-' : time.toFixed(1);
    cell.dataset.value = time === undefined ? -1 : time;
  });
  document.querySelectorAll('.of-chip').forEach(place => { place.textContent = chip.value; });
}
function search() {
  const wanted = find.value.trim().toLowerCase();
  let first = null;
  for (const node of nodes) {
    const hit = node.textContent.toLowerCase().includes(wanted);
    node.classList.toggle('away', !hit);
    if (hit && wanted && !first) first = node;
  }
  for (const row of document.querySelectorAll('#layers tbody tr')) {
    row.classList.toggle('away', !row.textContent.toLowerCase().includes(wanted));
  }
  if (first) first.scrollIntoView({ block: 'center', inline: 'center' });
}
function size(factor) {
  zoom = factor === 0 ? 1 : Math.min(4, Math.max(.2, zoom * factor));
  if (graph) graph.style.width = `${full * zoom}px`;
}
document.getElementById('larger').addEventListener('click', () => size(1.25));
document.getElementById('smaller').addEventListener('click', () => size(.8));
document.getElementById('whole').addEventListener('click', () => size(0));
document.getElementById('print').addEventListener('click', () => window.print());
document.getElementById('save').addEventListener('click', () => {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 2)], { type: 'application/json' }));
  link.download = 'report.json';
  link.click();
  URL.revokeObjectURL(link.href);
});
find.addEventListener('input', search);
view.addEventListener('change', paint);
chip.addEventListener('change', paint);
"""


def decision_page(decision: Decision) -> str:
    """The page, as HTML."""
    best = decision.taking[0] if decision.taking else None
    data = json.dumps(decision_data(decision)).replace("<", "\\u003c")
    body = f"""<h1>{escape(decision.title)}</h1>
<p class="sub">{escape(_subtitle(decision))}</p>
{figure_boxes(_figures(decision))}
<h2>All chips side by side</h2>
{_legend(decision)}
<div class="wide">{_bars(decision)}</div>
<div class="wide">{_table(decision)}</div>
{"" if best is None else _network(decision, best)}
<h2>Layer by layer on each chip</h2>
{"".join(_details(entry, entry is best) for entry in decision.taking)}
<script type="application/json" id="data">{data}</script>"""
    return html_document(f"{decision.title}: report", body, style=STYLE, script=SCRIPT if best is not None else "")


def _subtitle(decision: Decision) -> str:
    kind = "int8" if decision.dtype == "w8a8" else decision.dtype
    if not decision.accuracy:
        return f"{kind}; accuracy is not measured without a data set"
    measured = ", ".join(f"{entry.vendor} on {entry.chip.name}" for entry in decision.accuracy.values())
    return f"{kind}; accuracy measured on {decision.dataset}: {measured}; times are predicted"


def _figures(decision: Decision) -> list[tuple[str, str]]:
    taking = decision.taking
    figures = [(f"{len(taking)} of {len(decision.chips)}", "chips take it")]
    if taking and taking[0].profile is not None:
        figures.append((f"{taking[0].profile.latency_us / 1000:.2f} ms", f"on {taking[0].chip.name}, the fastest, predicted"))
        most = max(taking, key=lambda entry: entry.fps)
        figures.append((f"{most.fps:.0f} per second", f"on all cores of {most.chip.name}"))
        clean = sum(all(layer.on_npu for layer in entry.profile.layers) for entry in taking if entry.profile is not None)
        figures.append((str(clean), "chips need no CPU layer"))
    for entry in decision.accuracy.values():
        figures.append((f"{entry.cosine:.4f}", f"cosine of int8, {entry.vendor}"))
    return figures


def _legend(decision: Decision) -> str:
    used = {layer.bound for entry in decision.taking for layer in _layers(entry) if layer.time_us}
    pale = any(entry.profile and entry.profile.prediction.confidence.level == "uncalibrated" for entry in decision.taking)
    extra = [
        *([("color-mix(in srgb, var(--faint) 45%, transparent)", "uncalibrated")] if pale else []),
        ("var(--ink)", "80 % range"),
    ]
    return legend([*((color, bound.value) for bound, color in BOUND_COLOURS.items() if bound in used), *extra])


def _layers(entry: ChipFigures) -> tuple[LayerProfile, ...]:
    return () if entry.profile is None else entry.profile.layers


def _bars(decision: Decision) -> str:
    """A bar for each chip, made of what its time is spent on."""
    taking = decision.taking
    longest = max((entry.profile.prediction.range_us[1] for entry in taking if entry.profile is not None), default=1.0)
    line, room, left = 22, WIDTH - LEFT - RIGHT - 110, LEFT + 20
    parts = []
    for row, entry in enumerate(taking):
        profile = entry.profile
        assert profile is not None
        y, x = 4 + row * line, float(left)
        pale = profile.prediction.confidence.level == "uncalibrated"
        low, high = (left + room * end / longest for end in profile.prediction.range_us)
        parts.append(f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{escape(entry.chip.name)}</text>')
        strength = ' fill-opacity="0.45"' if pale else ""
        for bound, colour in BOUND_COLOURS.items():
            spent = sum(layer.time_us for layer in profile.layers if layer.bound is bound)
            width = room * spent / longest
            if width > 0:
                title = escape(f"{entry.chip.name}: {spent / 1000:.2f} ms {bound.value}")
                size = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="16"'
                parts.append(f'<rect class="mark" {size} fill="{colour}"{strength}><title>{title}</title></rect>')
                x += width
        whisker = f"M{low:.1f} {y + 8}H{high:.1f}M{low:.1f} {y + 4}v8M{high:.1f} {y + 4}v8"
        parts.append(f'<path class="whisker" d="{whisker}"/>')
        about = "about " if pale else ""
        parts.append(f'<text x="{max(x, high) + 6:.1f}" y="{y + 13}">{about}{profile.latency_us / 1000:.2f} ms</text>')
    return svg(8 + line * len(taking), parts, "time on each chip, by what it is spent on")


def _table(decision: Decision) -> str:
    heads = ["chip", "one core", "80 % range", "all cores", "float16", "memory", "on CPU", "accuracy", "confidence"]
    rows = [_row(decision, entry) for entry in [*decision.taking, *(entry for entry in decision.chips if not entry.takes)]]
    return sortable_table(heads, rows, {"one core", "80 % range", "all cores", "float16", "memory", "on CPU", "accuracy"})


def _row(decision: Decision, entry: ChipFigures) -> list[str]:
    profile = entry.profile
    if profile is None or not entry.takes:
        reason = entry.refusal or f"does not fit: {entry.memory_bytes / 1e6:.0f} MB"
        return [text_cell(entry.chip.name), *[number_cell(1e18, "-")] * 7, text_cell(reason, kind="words")]
    low, high = profile.prediction.range_us
    on_cpu = sum(not layer.on_npu for layer in profile.layers)
    share = f"{on_cpu}, {100 * profile.prediction.cpu_share:.0f} % of the time" if on_cpu else "0"
    half = entry.float16_us
    price = "none" if half is None else f"{half / 1000:.2f} ms (x{half / profile.latency_us:.1f})"
    known = decision.accuracy_of(entry.chip)
    return [
        text_cell(entry.chip.name),
        number_cell(profile.latency_us, f"{profile.latency_us / 1000:.2f} ms"),
        number_cell(low, f"{low / 1000:.2f}-{high / 1000:.2f} ms"),
        number_cell(entry.fps, f"{entry.fps:.0f} per second"),
        number_cell(half or 1e18, price),
        number_cell(entry.memory_bytes, f"{entry.memory_bytes / 1e6:.1f} MB"),
        number_cell(on_cpu, share),
        number_cell(-1.0 if known is None else known.cosine, "-" if known is None else f"{known.cosine:.4f}"),
        text_cell(str(profile.prediction.confidence), kind="words"),
    ]


def _network(decision: Decision, best: ChipFigures) -> str:
    profile = best.profile
    assert profile is not None
    names = "".join(f"<option>{escape(entry.chip.name)}</option>" for entry in decision.taking)
    views = '<option value="time">time</option>' + ('<option value="error">error</option>' if decision.accuracy else "")
    graph = layer_graph(_nodes(decision, best.chip, profile), decision.edges[best.chip.name], "time", _WARM)
    return f"""<h2>The network</h2>
<div class="controls"><label>Find <input id="find" type="search" placeholder="layer or operator"></label>
<label>color by <select id="view">{views}</select></label><label>on <select id="chip">{names}</select></label>
<span><button id="larger">+</button> <button id="smaller">-</button> <button id="whole">1:1</button></span>
<span><button id="save">Save as JSON</button> <button id="print">Print</button></span></div>
<div class="stage">{graph}</div>
<h2>Layers: time on <span class="of-chip">{escape(best.chip.name)}</span>, and error</h2>
<div class="wide" id="layers">{_layer_table(decision, best.chip, profile)}</div>"""


def _errors(decision: Decision, chip: Chip) -> dict[str, tuple[float | None, float]]:
    """Signal to noise by layer, alone and so far."""
    known = decision.accuracy_of(chip)
    if known is None:
        return {}
    return {
        entry.layer: (None if entry.alone is None else entry.alone.snr, entry.so_far.snr)
        for entry in known.comparison.layers
        if entry.index >= 0
    }


def _nodes(decision: Decision, chip: Chip, profile: Profile) -> list[GraphNode]:
    longest = max((layer.time_us for layer in profile.layers), default=1.0) or 1.0
    errors = _errors(decision, chip)
    nodes = []
    for layer in profile.layers:
        alone = errors.get(layer.name, (None, 0.0))[0]
        strength = 0.0 if alone is None else min(1.0, max(0.0, (_MAX_DB - alone) / (_MAX_DB - _MIN_DB)))
        place = layer.bound.value if layer.on_npu else f"on the CPU: {layer.reason}"
        error = "" if alone is None else f", {alone:.1f} dB alone"
        nodes.append(
            GraphNode(
                layer.name,
                f"{layer.kind} {layer.name}",
                f"{layer.index} {layer.kind} {layer.name}: {layer.time_us:.1f} us on {chip.name}, {place}{error}",
                {"time": layer.time_us / longest, "error": strength},
            )
        )
    return nodes


def _layer_table(decision: Decision, chip: Chip, profile: Profile) -> str:
    errors = _errors(decision, chip)
    heads = ["#", "layer", "operator", "output", "time, us", "bound", *(["alone, dB", "so far, dB"] if errors else [])]
    rows = []
    for layer in profile.layers:
        name = escape(layer.name, quote=True)
        time = f'<td class="number time" data-layer="{name}" data-value="{layer.time_us}">{layer.time_us:.1f}</td>'
        cells = [
            number_cell(layer.index, str(layer.index)),
            text_cell(layer.name, kind="name"),
            text_cell(layer.kind),
            text_cell("x".join(map(str, layer.output_shape))),
            time,
            text_cell(layer.bound.value if layer.on_npu else f"cpu: {layer.reason}", kind="name"),
        ]
        if errors:
            alone, so_far = errors.get(layer.name, (None, None))
            cells += [number_cell(value or 999.0, "-" if value is None else f"{value:.1f}") for value in (alone, so_far)]
        rows.append(cells)
    return sortable_table(heads, rows, {"#", "time, us", "alone, dB", "so far, dB"})


def _details(entry: ChipFigures, is_open: bool) -> str:
    profile = entry.profile
    assert profile is not None
    advice = "".join(f"<li>{escape(sentence)}</li>" for sentence in profile.advice())
    on_cpu = "".join(
        f"<li>{escape(layer.kind)} {escape(layer.name)} on the CPU: {escape(layer.reason)}</li>"
        for layer in profile.layers
        if not layer.on_npu
    )
    vendor = registry.of_chip(entry.chip).title
    return (
        f"<details{' open' if is_open else ''}><summary>{escape(entry.chip.name)} ({escape(vendor)}), "
        f'{profile.latency_us / 1000:.2f} ms</summary><ul class="advice">{advice}{on_cpu}</ul>{layer_chart(profile)}</details>'
    )
