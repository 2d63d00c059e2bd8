"""Write the tables of docs/validation.md from what ``tools/timing_fit.py`` found:

python tools/timing_fit.py --data FOLDER --json fit.json
python tools/timing_page.py fit.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "validation.md"
END = "<!-- end -->"
CHIPS = ("rk3588", "rk3576", "rk3566", "rk3562")


def _begin(part: str) -> str:
    return f"<!-- written by tools/timing_page.py{f': {part}' if part else ''} -->"


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    text = f"{100 * error:+.1f} %"
    return f"**{text}**" if abs(error) > 0.15 else text


def _table(first: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| {first} | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows)])


def int8_table(result: Mapping[str, Any]) -> str:
    """The errors of int8 networks that were left out of the fit, and the fitted numbers."""
    errors = result["int8_left_out"]
    rows = [(name, [_percent(errors[chip][name]) for chip in CHIPS]) for name in errors[CHIPS[0]]]
    sizes = [[abs(error) for error in errors[chip].values()] for chip in CHIPS]
    rows.append(("**median, int8**", [f"{100 * statistics.median(found):.1f} %" for found in sizes]))
    rows.append(("above 15 %", [str(sum(error > 0.15 for error in found)) for found in sizes]))
    rows.append(("median, families left out", [f"{100 * result['int8_families'][chip]:.1f} %" for chip in CHIPS]))
    rows.append(("worst, families left out", [f"{100 * result['int8_families_worst'][chip]:.0f} %" for chip in CHIPS]))
    return f"{_table('model', CHIPS, rows)}\n\n{parameters(result)}"


def parameters(result: Mapping[str, Any]) -> str:
    """The fitted numbers of int8 networks."""
    names = ("MAC/ns", "GB/s", "look-up, ns", "floor, us", "slow, ns", "CPU, ns")
    rows = []
    for chip in CHIPS:
        numbers = result["parameters"][chip]
        cells = [
            f"{numbers['macs_per_ns']:.0f}",
            f"{numbers['bytes_per_ns']:.2f}",
            f"{numbers['lookup_ns']:.1f}",
            f"{numbers['floor_ns'] / 1000:.1f}",
            f"{numbers['slow_ns']:.2f}",
            f"{numbers['cpu_ns']:.2f}",
        ]
        rows.append((chip, cells))
    return _table("chip", names, rows)


def float16_table(result: Mapping[str, Any]) -> str:
    """The errors of float16 networks: one number unknown, and all numbers of the network unknown."""
    found = {(entry["model"], entry["chip"]): entry for entry in result["float16_left_out"]}
    names = list(dict.fromkeys(entry["model"] for entry in result["float16_left_out"]))
    rows = []
    for name in names:
        cells = [found[name, chip] for chip in CHIPS]
        rows.append((name, [f"{_percent(cell['error'])} ({100 * cell['error_model_unknown']:+.0f} %)" for cell in cells]))
    medians = [statistics.median(abs(found[name, chip]["error"]) for name in names) for chip in CHIPS]
    rows.append(("median, float16", [f"{100 * value:.1f} %" for value in medians]))
    numbers = result["float16_numbers"]
    fitted = [
        (chip, [f"{numbers[key][index]:.2f}" for key in ("weights", "norm", "cpu_macs")]) for index, chip in enumerate(CHIPS)
    ]
    shared = f"Shared: a hand-over to the CPU takes {numbers['handover'][0]:.2f} floors, a head {numbers['head'][0]:.2f} floors, "
    shared += f"an element on the CPU {numbers['cpu'][0]:.2f} ns."
    return (
        f"{_table('model', CHIPS, rows)}\n\nOne number unknown: {_summary(result['float16'])}. All numbers of a network unknown: "
        f"{_summary(result['float16_models'])}.\n\n"
        f"{_table('chip', ('weights, GB/s', 'normalised element, ns', 'CPU, GMAC/s'), fitted)}\n\n{shared}"
    )


def _summary(entry: Mapping[str, float]) -> str:
    return f"median {100 * entry['median']:.1f} %, worst {100 * entry['worst']:.0f} %"


def other_tables(result: Mapping[str, Any]) -> str:
    """Products, Allwinner, ranges."""
    products = [
        (
            f"{name} layout",
            [str(entry["products"]), *(f"{100 * entry[key]:.1f} %" for key in ("median", "within_25", "within_35"))],
        )
        for name, entry in result["matmul"].items()
    ]
    reported = [(name, [_percent(error)]) for name, error in result["allwinner"].items()]
    ranges = result["ranges"]
    held = [
        ("all", [f"{100 * ranges['held']:.0f} %"]),
        ("int8", [f"{100 * ranges['held_int8']:.0f} %"]),
        ("float16", [f"{100 * ranges['held_float16']:.0f} %"]),
        ("all, widths from the other networks alone", [f"{100 * ranges['held_by_widths_of_other_networks']:.0f} %"]),
    ]
    return "\n\n".join(
        [
            _table("products above 200 us", ("products", "median error", "within 25 %", "within 35 %"), products),
            _table("Allwinner, as reported", ("error",), reported),
            _table("left-out networks inside their 80 % range", ("share",), held),
        ]
    )


def write(result: Mapping[str, Any], page: Path = PAGE) -> None:
    """Replace the parts of the page between the marks."""
    text = page.read_text(encoding="utf-8")
    for part, made in (("", int8_table(result)), ("float16", float16_table(result)), ("others", other_tables(result))):
        before, rest = text.split(_begin(part), 1)
        text = f"{before}{_begin(part)}\n\n{made}\n\n{END}{rest.split(END, 1)[1]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
