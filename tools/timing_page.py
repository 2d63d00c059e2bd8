"""Write the cross-validation table of docs/timing.md from what ``anynpu calibrate --json`` printed for each chip:

python tools/timing_page.py rk3588.json rk3576.json rk3566.json rk3562.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "timing.md"
BEGIN = "<!-- written by tools/timing_page.py -->"
END = "<!-- end -->"


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    text = f"{100 * error:+.1f} %"
    return f"**{text}**" if abs(error) > 0.15 else text


def table(results: Sequence[dict[str, Any]]) -> str:
    """The errors of models that were left out of the fit, with float16 models as they come out beside it."""
    chips = [result["chip"] for result in results]
    lines = ["| model | " + " | ".join(chips) + " |", "|---|" + "---:|" * len(chips)]
    rows = [{entry["model"]: entry for entry in result["measured"]} for result in results]
    for name, entry in rows[0].items():
        half = entry["dtype"] != "int8"
        errors = [row[name]["error"] if half else row[name]["error_left_out"] for row in rows]
        lines.append(f"| {name}{' (float16, not fitted)' if half else ''} | " + " | ".join(map(_percent, errors)) + " |")
    left_out = [
        [abs(entry["error_left_out"]) for entry in result["measured"] if entry["error_left_out"] is not None]
        for result in results
    ]
    lines.append("| **median, int8** | " + " | ".join(f"{100 * statistics.median(errors):.1f} %" for errors in left_out) + " |")
    lines.append("| above 15 % | " + " | ".join(str(sum(error > 0.15 for error in errors)) for errors in left_out) + " |")
    return "\n".join(lines)


def parameters(results: Sequence[dict[str, Any]]) -> str:
    """The fitted numbers."""
    lines = ["| chip | MAC/ns | GB/s | look-up, ns | floor, us | slow, ns | CPU, ns |", "|---|" + "---:|" * 6]
    for result in results:
        numbers = result["parameters"]
        values = (
            f"{numbers['macs_per_ns']:.0f}",
            f"{numbers['bytes_per_ns']:.2f}",
            f"{numbers['lookup_ns']:.1f}",
            f"{numbers['floor_ns'] / 1000:.1f}",
            f"{numbers['slow_ns']:.2f}",
            f"{numbers['cpu_ns']:.2f}",
        )
        lines.append(f"| {result['chip']} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    """Replace the part of the page between the marks."""
    results = [json.loads(Path(path).read_text(encoding="utf-8")) for path in paths]
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{parameters(results)}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
