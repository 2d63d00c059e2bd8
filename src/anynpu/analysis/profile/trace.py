"""Traces that Perfetto and chrome://tracing open.

Times are microseconds from the start of the trace. A *track* is a line of the picture: a core, a queue, the thread of the callbacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .profile import Profile

__all__ = ["TraceEvent", "chrome_trace", "profile_events"]


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
