"""The charts of a profile, as SVG."""

from __future__ import annotations

import math
from html import escape

from ...chips.timing import Bound
from ..pages import LEFT, RIGHT, WIDTH, grid_rows, svg
from .profile import LayerProfile, Profile

__all__ = ["BOUND_COLOURS", "core_timeline", "layer_chart", "memory_chart", "roofline_chart"]

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
