"""``eval_perf`` and ``eval_memory``: the vendor's tables, from the timing model and the memory plan, or from a board."""

from __future__ import annotations

import math

from .. import Context

__all__ = ["MemoryFigures", "memory_figures", "memory_text", "performance_text"]

_RULE = "=" * 115
_NARROW = "=" * 54
MemoryFigures = dict[str, int]


def performance_text(context: Context, detailed: bool) -> str:
    """How long an inference takes; layer by layer for a context that collects it."""
    if detailed:
        return context.perf_detail
    time = max(context.run_microseconds, 1)
    heading = "Performance".center(len(_RULE)).rstrip()
    return f"{_RULE}\n{heading}\n{_RULE}\nTotal Time(us): {time}\nFPS: {1e6 / time:.2f}\n{_RULE}\n"


def memory_figures(context: Context) -> MemoryFigures:
    """Bytes that a model needs: weights, intermediate tensors, the rest (inputs and outputs), and all of it."""
    sizes = context.memory_sizes
    other = sum(math.prod(info.shape) * info.dtype.itemsize for info in (*context.inputs, *context.outputs))
    return {
        "weight_memory": sizes.weights,
        "internal_memory": sizes.internal,
        "other_memory": other,
        "total_memory": sizes.weights + sizes.internal + other,
    }


def memory_text(figures: MemoryFigures) -> str:
    """The same as a table."""
    rows = (
        ("Weight Memory", "weight_memory"),
        ("Internal Tensor Memory", "internal_memory"),
        ("Other Memory", "other_memory"),
        ("Total Memory", "total_memory"),
    )
    lines = [f"    {title}: {figures[key] / 2**20:.2f} MiB" for title, key in rows]
    heading = "Memory Profile Info Dump".center(len(_NARROW)).rstrip()
    return "\n".join([_NARROW, heading, _NARROW, "NPU model memory detail:", *lines, _NARROW, ""])
