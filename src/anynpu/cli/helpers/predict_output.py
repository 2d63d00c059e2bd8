"""What ``anynpu predict`` prints of matmuls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from ... import chips
from ...chips import Chip
from ...chips.timing import MatmulPrediction, predict_matmul
from ...chips.timing.matmul import MatmulTypes
from .console import plain_table, size_text
from .options import ALL_CHIPS, chip_name

# Several chips in one option: ``--target rk3588,rk3566`` or ``--target all``.


def several_chips(value: str | None) -> str | None:
    """The catalogue's spelling of chips with commas between them, or ``all``; wrong usage if there is no such chip."""
    if value is None or value.lower() == ALL_CHIPS:
        return value
    return ",".join(dict.fromkeys(chip_name(part.strip()) for part in value.split(",") if part.strip()))


def _complete(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in (*chips.names(), ALL_CHIPS) if name.startswith(last.lower())]


TargetsOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="CHIP,...|all",
        help="One chip, several with commas, or all of them.",
        callback=several_chips,
        autocompletion=_complete,
    ),
]


def chips_of(text: str) -> tuple[Chip, ...]:
    """The chips that an option names.

    >>> [chip.name for chip in chips_of("rk3588,t527")]
    ['rk3588', 't527']
    """
    if text.lower() == ALL_CHIPS:
        return tuple(chips.all_chips())
    return tuple(chips.get(name) for name in text.split(","))


def time_text(microseconds: float) -> str:
    """A time for reading.

    >>> time_text(13_612.0), time_text(23.4)
    ('13.6 ms', '23 us')
    """
    if microseconds < 1000.0:
        return f"{microseconds:.0f} us"
    return f"{microseconds / 1000:.2f} ms" if microseconds < 10_000 else f"{microseconds / 1000:.1f} ms"


def range_text(low: float, high: float) -> str:
    """A range of times in one unit.

    >>> range_text(9_512.0, 13_612.0), range_text(20.0, 26.0)
    ('9.51-13.6 ms', '20-26 us')
    """
    if high < 1000.0:
        return f"{low:.0f}-{high:.0f} us"
    return f"{_digits(low / 1000)}-{_digits(high / 1000)} ms"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def rate_text(value: float) -> str:
    """A rate with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def parse_extents(text: str) -> tuple[int, int, int]:
    """M, K and N of ``1x4096x4096``.

    >>> parse_extents("1x4096x11008")
    (1, 4096, 11008)
    """
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", text.strip().lower())
    if match is None or "0" in (match[1].lstrip("0") or "0", match[2].lstrip("0") or "0", match[3].lstrip("0") or "0"):
        raise typer.BadParameter(f"'{text}' is no product: write MxKxN, such as 1x4096x4096", param_hint="'--matmul'")
    return int(match[1]), int(match[2]), int(match[3])


def products(
    chips: Sequence[Chip], extents: tuple[int, int, int], types: MatmulTypes, layout: str
) -> list[tuple[Chip, MatmulPrediction]]:
    """A product on all chips that have the calls."""
    found = []
    for chip in chips:
        if chip.matmul:
            made = predict_matmul(
                chip,
                *extents,
                dtype=types.a,
                weight_type=types.b,
                result_type=types.c,
                layout="normal" if layout == "normal" else "native",
            )
            found.append((chip, made))
    return found


def matmul_table(rows: Sequence[tuple[Chip, MatmulPrediction]], extents: tuple[int, int, int]) -> Table:
    """One row per chip."""
    values = ("one core", "80 % range", "GMAC/s", "read", "written")
    table = plain_table("chip", *values[:2], "bound", *values[2:], "confidence", right=values)
    m, k, n = extents
    for chip, made in rows:
        table.add_row(
            chip.name,
            time_text(made.time_us),
            range_text(*made.confidence.range(made.time_us)),
            made.bound.value,
            f"{m * k * n / made.time_us / 1000:.1f}",
            size_text(made.read_bytes),
            size_text(made.written_bytes),
            str(made.confidence),
        )
    return table


def matmul_json(rows: Sequence[tuple[Chip, MatmulPrediction]]) -> list[dict[str, Any]]:
    """The same as data."""
    return [
        {
            "chip": chip.name,
            "time_us": round(made.time_us, 3),
            "range_us": [round(value, 3) for value in made.confidence.range(made.time_us)],
            "bound": made.bound.value,
            "npu_cycles": made.npu_cycles,
            "read_bytes": made.read_bytes,
            "written_bytes": made.written_bytes,
            "confidence": made.confidence.level,
        }
        for chip, made in rows
    ]
