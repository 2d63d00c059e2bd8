"""Write the tables of docs/chips.md and docs/chips-sources.csv from the catalog: python tools/chips_page.py."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from anynpu import chips
from anynpu.chips import Chip, OperatorLimits

PAGE = Path(__file__).parents[1] / "docs" / "chips.md"
SOURCES = PAGE.with_name("chips-sources.csv")
MARK = "<!-- everything below is written by tools/chips_page.py -->"

Cell = tuple[str, str, Callable[[Chip], str]]
"""Heading, attribute whose source decides about the star, and the text."""


def _bytes(size: int | None) -> str:
    if size is None:
        return "board"
    if size == 0:
        return "-"
    return f"{size >> 20} MiB" if size % (1 << 20) == 0 else f"{size >> 10} KiB"


def _by_type(values: Mapping[str, int], types: Iterable[str] = ("int8", "float16", "int16")) -> str:
    return " / ".join(str(values.get(kind, "-")) for kind in types)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    heading = list(heading)
    return [_row(heading), _row("---" for _ in heading), *(_row(row) for row in rows), ""]


def _chip_table(columns: list[Cell], entries: Iterable[Chip]) -> list[str]:
    def text(chip: Chip, attribute: str, show: Callable[[Chip], str]) -> str:
        star = "\\*" if chips.source(chip, attribute).assumed else ""
        return show(chip) + star

    rows = [[chip.name, *(text(chip, attribute, show) for _, attribute, show in columns)] for chip in entries]
    return _table(["chip", *(heading for heading, _, _ in columns)], rows)


def _hardware() -> list[str]:
    columns: list[Cell] = [
        ("NPU", "generation", lambda c: c.generation),
        ("library", "library", lambda c: c.library),
        ("cores", "cores", lambda c: str(c.cores)),
        ("int8 MAC/cycle/core", "macs_per_cycle", lambda c: str(c.macs_per_cycle["int8"])),
        ("clock, MHz", "clock_hz", lambda c: str(c.clock_hz // 1_000_000)),
        ("buffer/core", "buffer_bytes", lambda c: _bytes(c.buffer_bytes)),
        ("SRAM", "sram_bytes", lambda c: _bytes(c.sram_bytes)),
        ("DRAM", "dram_bytes", lambda c: _bytes(c.dram_bytes)),
        ("models", "quantized_types", lambda c: ", ".join(c.quantized_types)),
        ("also called", "name", lambda c: ", ".join(c.aliases) or "-"),
    ]
    return _chip_table(columns, chips.all_chips())


def _layout(entries: list[Chip]) -> list[str]:
    columns: list[Cell] = [
        ("channel block C2", "channel_block", lambda c: _by_type(c.channel_block)),
        ("channels after a convolution", "channel_alignment", lambda c: _by_type(c.channel_alignment)),
        ("input width", "input_width_alignment", lambda c: _by_type(c.input_width_alignment)),
        ("H x W", "pixel_alignment", lambda c: str(c.pixel_alignment)),
        ("core masks", "core_masks", lambda c: ", ".join(map(hex, c.core_masks)) or "-"),
    ]
    return _chip_table(columns, entries)


def _operators() -> list[str]:
    common = frozenset.intersection(*(chip.limits.npu_operators for chip in chips.all_chips()))
    columns: list[Cell] = [
        ("also on the NPU", "limits.npu_operators", lambda c: ", ".join(sorted(c.limits.npu_operators - common)) or "-"),
        ("Softmax axes", "limits.softmax_axes", lambda c: ", ".join(map(str, c.limits.softmax_axes)) or "none"),
        ("ConvTranspose strides", "limits.conv_transpose", lambda c: ", ".join(map(str, c.limits.conv_transpose.strides))),
        ("Transpose H x W", "limits.transpose_pixels_max", lambda c: str(c.limits.transpose_pixels_max or "any")),
    ]
    listing = ", ".join(sorted(common))
    return [f"On the NPU of every chip (the list is partly assumed): {listing}.", "", *_chip_table(columns, chips.all_chips())]


def _limits() -> list[str]:
    limits = chips.get("rk3588").limits
    rows = [
        [
            "Conv",
            f"kernel {limits.conv.kernel}, stride {limits.conv.stride}, pad {limits.conv.pad}, dilation {limits.conv.dilation}",
        ],
        [
            "depthwise Conv",
            f"kernel {limits.depthwise.kernel}, stride {limits.depthwise.stride}, pad {limits.depthwise.pad}, "
            f"dilation {limits.depthwise.dilation}",
        ],
        ["ConvTranspose", f"kernel {limits.conv_transpose.kernel}, one group or depthwise; strides below"],
        [
            "MaxPool, AveragePool",
            f"C, H, W up to {limits.pool.channels_max}, kernel {limits.pool.kernel}, stride {limits.pool.stride}, "
            f"pad {limits.pool.pad}, no ceil_mode",
        ],
        ["GlobalAveragePool", f"H, W up to {limits.global_average_pool_max} in one pass, larger ones in stages\\*"],
        ["Resize", f"{' or '.join(limits.resize.modes)}, whole factors {limits.resize.factors}"],
        ["MatMul", f"K up to {limits.matmul_k_max}"],
        ["LSTM", f"sizes up to {limits.lstm_size_max}"],
    ]
    return _table(["operator", "limits, int8 and float16"], rows)


def sources() -> str:
    """The source of every value, as CSV."""
    keys = [field.name for field in fields(Chip) if field.name not in ("sources", "limits")]
    keys += [f"limits.{field.name}" for field in fields(OperatorLimits)]
    keys += sorted({key for chip in chips.all_chips() for key in chip.sources} - {*keys, "limits"})
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["value", "source", "chips"])
    for key in keys:
        groups: dict[str, list[str]] = {}
        for chip in chips.all_chips():
            if key in chip.sources:
                groups.setdefault(str(chip.sources[key]), []).append(chip.name)
        rows.writerows([key, text, " ".join(names)] for text, names in groups.items())
    return table.getvalue()


def tables() -> str:
    """The generated part of the page."""
    rknn = [chip for chip in chips.all_chips() if chip.family == "rknn"]
    parts = [
        ["## Hardware", "", *_hardware()],
        ["## Layouts and cores of the RKNN chips", "", "By type: int8 / float16 / int16.", "", *_layout(rknn)],
        ["## What the NPU executes", "", *_limits(), *_operators()],
    ]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def updated(page: str) -> str:
    """*page* with its generated part renewed."""
    head, _, _ = page.partition(MARK)
    return f"{head}{MARK}\n\n{tables()}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    SOURCES.write_text(sources(), encoding="utf-8")
