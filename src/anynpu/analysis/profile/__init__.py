"""Where the time goes: a profile of a model, as data, as a page and as a trace.

>>> from anynpu.profiling import profile_page, profile_program
>>> profile = profile_program(model.programs[0], chips.get("rk3588"))      # doctest: +SKIP
>>> print(profile.advice())                                               # doctest: +SKIP
>>> Path("profile.html").write_text(profile_page(profile, "yolo.rknn"))    # doctest: +SKIP
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

from ...chips import Chip
from ...chips.timing import Bound, Prediction, predict
from ...chips.timing.parameters import TimingProfile
from ...program import Placement, Program
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

__all__ = [
    "BOUND_COLOURS",
    "LayerProfile",
    "Profile",
    "chrome_trace",
    "layer_chart",
    "profile_events",
    "profile_page",
    "profile_program",
]


# A profile: for each layer what the chip is predicted to take, what the host took, and how full the memory is.


_MAIN_SHARE = 0.8


@dataclass(frozen=True)
class LayerProfile:
    """One layer.

    :ivar start_us: when it begins on the chip, counted from the start of the run
    :ivar time_us: what it takes there
    :ivar bound: what decides that
    :ivar host_us: what it took on this machine; None where it was not run
    :ivar live_bytes: internal memory that is in use while it runs
    :ivar core_shares: how much of it each core does
    :ivar operations: multiply-accumulates, twice
    :ivar moved_bytes: bytes that it reads and writes
    """

    index: int
    name: str
    kind: str
    on_npu: bool
    reason: str
    start_us: float
    time_us: float
    bound: Bound
    mac_share: float
    operations: int
    moved_bytes: int
    live_bytes: int
    core_shares: tuple[float, ...]
    output_shape: tuple[int, ...]
    dtype: str
    host_us: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """All layers of one run, in order."""

    chip: Chip
    prediction: Prediction
    layers: tuple[LayerProfile, ...]
    internal_bytes: int

    def __repr__(self) -> str:
        return f"Profile({self.chip.name}, {len(self.layers)} layers, {self.latency_us:.0f} us)"

    @property
    def latency_us(self) -> float:
        """What the chip is predicted to take."""
        return self.prediction.latency_us

    @property
    def host_us(self) -> float | None:
        """What the layers took on this machine; None where they were not run."""
        times = [layer.host_us for layer in self.layers if layer.host_us is not None]
        return sum(times) if times else None

    def slowest(self, count: int) -> list[LayerProfile]:
        """The layers that take longest on the chip."""
        return sorted(self.layers, key=lambda layer: -layer.time_us)[:count]

    def advice(self) -> list[str]:
        """Where the time goes and what would save some of it, in sentences."""
        return [sentence for sentence in (self._concentration(), self._lookups(), self._cpu(), self._memory()) if sentence]

    def _concentration(self) -> str:
        total, sum_so_far = sum(layer.time_us for layer in self.layers), 0.0
        for count, layer in enumerate(self.slowest(len(self.layers)), 1):
            sum_so_far += layer.time_us
            if sum_so_far >= _MAIN_SHARE * total:
                layers = "1 layer takes" if count == 1 else f"{count} layers take"
                return f"{layers} {100 * sum_so_far / total:.0f} % of {_time_text(self.latency_us)}." if total else ""
        return ""

    def _lookups(self) -> str:
        bound = [layer for layer in self.layers if layer.bound is Bound.LOOKUP]
        if not bound:
            return ""
        saved = sum(self._without_table(layer) for layer in bound)
        number = "1 layer" if len(bound) == 1 else f"{len(bound)} layers"
        return f"Look-up activations bound {number}: ReLU in their place would save about {_time_text(saved)}."

    def _without_table(self, layer: LayerProfile) -> float:
        """Microseconds that a layer bound by its table would save: down to the next bound."""
        predicted = self.prediction.layers[layer.index]
        megahertz = self.chip.clock_hz / 1e6
        return max(0.0, layer.time_us - max(predicted.npu_cycles, predicted.ddr_cycles) / megahertz)

    def _cpu(self) -> str:
        share = self.prediction.cpu_share
        layers = [layer for layer in self.layers if not layer.on_npu]
        if share < 0.01 or not layers:
            return ""
        longest = max(layers, key=lambda layer: layer.time_us)
        return f"The CPU takes {100 * share:.0f} % of the time, most of it for {longest.kind} '{longest.name}': {longest.reason}."

    def _memory(self) -> str:
        spent = sum(layer.time_us for layer in self.layers if layer.bound is Bound.MEMORY)
        if spent < 0.3 * self.latency_us:
            return ""
        share = 100 * spent / self.latency_us
        return f"Memory bounds {share:.0f} % of the time: fewer channels or smaller images help, fewer MACs do not."


def _time_text(microseconds: float) -> str:
    """A time for reading.

    >>> _time_text(13_620), _time_text(23.4)
    ('13.6 ms', '23 us')
    """
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"


def profile_program(
    program: Program,
    chip: Chip,
    *,
    cores: int = 1,
    board: TimingProfile | None = None,
    host_us: Mapping[int, float] | None = None,
) -> Profile:
    """The profile of one run of *program* on *chip*.

    :param cores: that the run may use
    :param board: measured parameters of a board, from ``anynpu calibrate``
    :param host_us: what each layer took on this machine, by index
    """
    prediction = predict(program, chip, cores=cores, profile=board)
    live = _live_bytes(program)
    layers, clock = [], 0.0
    for index, (layer, predicted) in enumerate(zip(program.layers, prediction.layers, strict=True)):
        output = program.tensors[layer.outputs[0]]
        layers.append(
            LayerProfile(
                index=index,
                name=layer.name,
                kind=layer.kind,
                on_npu=layer.placement is Placement.NPU,
                reason=layer.reason,
                start_us=clock,
                time_us=predicted.time_us,
                bound=predicted.bound,
                mac_share=float(predicted.mac_share),
                operations=2 * layer.macs,
                moved_bytes=predicted.read_bytes + predicted.written_bytes,
                live_bytes=live[index],
                core_shares=predicted.core_shares,
                output_shape=output.shape,
                dtype=output.dtype.value,
                host_us=None if host_us is None else host_us.get(index),
            )
        )
        clock += predicted.time_us
    return Profile(chip, prediction, tuple(layers), program.memory.size)


def _live_bytes(program: Program) -> list[int]:
    """Bytes of internal memory that hold something while each layer runs."""
    used: dict[str, tuple[int, int]] = {}

    def use(name: str, first: int, last: int) -> None:
        while name in program.views:
            name = program.views[name]
        before = used.get(name, (first, last))
        used[name] = (min(first, before[0]), max(last, before[1]))

    for index, layer in enumerate(program.layers):
        for name in (*layer.inputs, *layer.outputs):
            use(name, index, index)
    for stretch in program.float_stretches():
        for name in (*stretch.inputs, *stretch.outputs):
            use(name, stretch.first, stretch.last - 1)
    live = [0] * len(program.layers)
    for name, (first, last) in used.items():
        if name in program.memory.offsets:
            for index in range(first, last + 1):
                live[index] += program.tensors[name].nbytes
    return live


# Traces that Perfetto and chrome://tracing open.
#
# Times are microseconds from the start of the trace. A *track* is a line of the image: a core, a queue, the thread of the callbacks.


@dataclass(frozen=True)
class TraceEvent:
    """Something that took some time on a track."""

    track: str
    name: str
    start_us: float
    time_us: float
    details: Mapping[str, str | int | float] = field(default_factory=dict)


def profile_events(profile: Profile) -> list[TraceEvent]:
    """One run: each layer on the cores that work on it, or on the CPU."""
    events = []
    for layer in profile.layers:
        details: dict[str, str | int | float] = {
            "kind": layer.kind,
            "bound": layer.bound.value,
            "output": "x".join(map(str, layer.output_shape)),
            "moved bytes": layer.moved_bytes,
            "MAC share": round(layer.mac_share, 4),
        }
        tracks = [f"core {core}" for core, share in enumerate(layer.core_shares) if share] if layer.on_npu else ["CPU"]
        events += [TraceEvent(track, layer.name, layer.start_us, layer.time_us, details) for track in tracks or ["core 0"]]
    return events


def chrome_trace(events: Iterable[TraceEvent], *, process: str = "anynpu") -> str:
    """The trace as JSON, in the format of the Chrome trace viewer."""
    entries = list(events)
    tracks = {name: number for number, name in enumerate(dict.fromkeys(event.track for event in entries), 1)}
    metadata = [{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": process}}]
    for name, number in tracks.items():
        metadata.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        metadata.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}})
    complete = [
        {
            "ph": "X",
            "pid": 1,
            "tid": tracks[event.track],
            "cat": "npu",
            "name": event.name,
            "ts": round(event.start_us, 3),
            "dur": round(event.time_us, 3),
            "args": dict(event.details),
        }
        for event in entries
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*metadata, *complete]})


# The charts of a profile, as SVG.


BOUND_COLOURS = {
    Bound.COMPUTE: "#0f8b8d",
    Bound.LOOKUP: "#e09f3e",
    Bound.MEMORY: "#3d6fb4",
    Bound.FLOOR: "#8d99a6",
    Bound.OPERATOR: "#7b4fa3",
    Bound.CPU: "#c8553d",
    Bound.NONE: "#c4cad2",
}


def layer_chart(profile: Profile) -> str:
    """A bar for each layer, in order; its height is the time on the chip."""
    height, bottom, top = 260, 24, 10
    longest = max((layer.time_us for layer in profile.layers), default=1.0) or 1.0
    plot, room = height - bottom - top, WIDTH - LEFT - RIGHT
    step = room / max(len(profile.layers), 1)
    parts = list(grid_rows(longest, top, plot, "us"))
    for layer in profile.layers:
        size = plot * layer.time_us / longest
        x = LEFT + layer.index * step
        parts.append(
            f'<rect class="mark" x="{x:.2f}" y="{top + plot - size:.2f}" width="{max(step - 0.6, 0.6):.2f}" height="{size:.2f}" '
            f'fill="{BOUND_COLOURS[layer.bound]}"><title>{_title(layer)}</title></rect>'
        )
    parts.append(f'<text x="{LEFT}" y="{height - 6}">first layer</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">last layer</text>')
    return svg(height, parts, "time of each layer")


def roofline_chart(profile: Profile) -> str:
    """Each layer by operations a byte and operations a second, under the two limits of the chip."""
    height, top, bottom = 320, 14, 34
    points = [layer for layer in profile.layers if layer.operations and layer.time_us and layer.moved_bytes]
    peak, bandwidth = _limits(profile)
    intensities = [layer.operations / layer.moved_bytes for layer in points] or [1.0]
    speeds = [layer.operations / layer.time_us for layer in points] or [1.0]
    low_x, high_x = _decades(min(intensities), max(*intensities, 2 * peak / bandwidth))
    low_y, high_y = _decades(min(speeds), peak)
    plot, room = height - top - bottom, WIDTH - LEFT - RIGHT

    def x_of(value: float) -> float:
        return LEFT + room * (math.log10(value) - low_x) / (high_x - low_x)

    def y_of(value: float) -> float:
        return top + plot * (high_y - math.log10(value)) / (high_y - low_y)

    parts = []
    for power in range(low_x, high_x + 1):
        x = x_of(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + plot}"/>')
        anchor = "end" if power == high_x else "middle"
        parts.append(f'<text x="{x:.1f}" y="{height - 18}" text-anchor="{anchor}">{10.0**power:g}</text>')
    for power in range(low_y, high_y + 1):
        y = y_of(10.0**power)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power / 1e3:g}</text>')
    ridge = peak / bandwidth
    start = 10.0**low_x
    roof = [(start, start * bandwidth), (ridge, peak), (10.0**high_x, peak)]
    roof = [(x, min(max(y, 10.0**low_y), 10.0**high_y)) for x, y in roof if low_x <= math.log10(x) <= high_x + 1e-9]
    path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
    parts.append(f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-width="1.5" opacity="0.6"/>')
    for layer in points:
        x, y = x_of(layer.operations / layer.moved_bytes), y_of(max(layer.operations / layer.time_us, 10.0**low_y))
        parts.append(
            f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{BOUND_COLOURS[layer.bound]}" fill-opacity="0.75">'
            f"<title>{_title(layer)}</title></circle>"
        )
    parts.append(f'<text x="{WIDTH / 2}" y="{height - 3}" text-anchor="middle">operations for each byte moved</text>')
    parts.append(f'<text x="{LEFT}" y="{top - 3}">GOP/s</text>')
    return svg(height, parts, "roofline")


def memory_chart(profile: Profile) -> str:
    """Internal memory that is in use, over the time of the run."""
    height, top, bottom = 200, 10, 24
    most = max([layer.live_bytes for layer in profile.layers] + [profile.internal_bytes, 1])
    plot, room = height - top - bottom, WIDTH - LEFT - RIGHT
    total = sum(layer.time_us for layer in profile.layers) or 1.0
    points = [f"{LEFT},{top + plot}"]
    for layer in profile.layers:
        y = top + plot * (1 - layer.live_bytes / most)
        first, last = (LEFT + room * moment / total for moment in (layer.start_us, layer.start_us + layer.time_us))
        points += [f"{first:.1f},{y:.1f}", f"{last:.1f},{y:.1f}"]
    points.append(f"{WIDTH - RIGHT},{top + plot}")
    planned = top + plot * (1 - profile.internal_bytes / most)
    parts = list(grid_rows(most / 1e6, top, plot, "MB"))
    parts.append(f'<polygon points="{" ".join(points)}" fill="#3d6fb4" fill-opacity="0.35" stroke="#3d6fb4"/>')
    parts.append(
        f'<line x1="{LEFT}" y1="{planned:.1f}" x2="{WIDTH - RIGHT}" y2="{planned:.1f}" stroke="currentColor" '
        'stroke-dasharray="5 4" opacity="0.7"><title>memory that the plan reserves</title></line>'
    )
    parts += _time_axis(total, top + plot, height)
    return svg(height, parts, "internal memory over time")


def core_timeline(profile: Profile) -> str:
    """Which core, or the CPU, works on which layer when."""
    rows = [f"core {core}" for core in range(profile.prediction.cores)]
    if any(not layer.on_npu for layer in profile.layers):
        rows.append("CPU")
    top, line, bar = 8, 30, 20
    height = top + line * len(rows) + 26
    room = WIDTH - LEFT - RIGHT
    total = sum(layer.time_us for layer in profile.layers) or 1.0
    parts = [f'<text x="{LEFT - 6}" y="{top + line * row + 15}" text-anchor="end">{name}</text>' for row, name in enumerate(rows)]
    for layer in profile.layers:
        busy = [row for row, share in enumerate(layer.core_shares) if share] if layer.on_npu else [len(rows) - 1]
        x, width = LEFT + room * layer.start_us / total, room * layer.time_us / total
        for row in busy:
            parts.append(
                f'<rect class="mark" x="{x:.2f}" y="{top + line * row}" width="{max(width, 0.3):.2f}" height="{bar}" '
                f'fill="{BOUND_COLOURS[layer.bound]}"><title>{_title(layer)}</title></rect>'
            )
    parts += _time_axis(total, top + line * len(rows), height)
    return svg(height, parts, "timeline of the cores")


def _limits(profile: Profile) -> tuple[float, float]:
    """Operations and bytes in a microsecond that the chip's cores have at the most."""
    chip, prediction = profile.chip, profile.prediction
    kind = prediction.dtype if prediction.dtype in chip.macs_per_cycle else "int8"
    megahertz = chip.clock_hz / 1e6
    peak = 2.0 * chip.macs_per_cycle[kind] * megahertz * prediction.cores
    return peak, prediction.profile.parameters.bytes_per_ns * 1e3


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def _time_axis(total: float, y: float, height: int) -> list[str]:
    parts = []
    for part, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        x = LEFT + (WIDTH - LEFT - RIGHT) * part / 4
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="{anchor}">{total * part / 4000:.2f} ms</text>')
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + 5:.1f}"/>')
    return parts


def _title(layer: LayerProfile) -> str:
    place = layer.bound.value if layer.on_npu else f"CPU: {layer.reason}"
    return escape(f"{layer.index} {layer.kind} {layer.name}: {layer.time_us:.1f} us, {place}")


# One page for a profile.


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
<h2>Notes</h2>
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
