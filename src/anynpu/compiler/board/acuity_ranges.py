"""Sets ranges in ACUITY's table of quantization, as text: python3 set_ranges.py NAME.quantize ranges.json

Runs on its own, with the standard library alone: :mod:`anynpu.compiler.board.build` writes it beside the commands. ACUITY names an entry
after a node or a tensor of the ONNX model, often with the operator before and always with a number behind: ``@Conv_stem_12:out0``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

_FIELDS = ("qtype", "quantizer", "max_value", "min_value", "scale", "zero_point")
_ENTRY = re.compile(r"^(\s+)'?@(.+):out(\d+)'?:\s*$")


def plain(name: str) -> str:
    """A name with nothing but letters, digits and underscores, as ACUITY has them."""
    return re.sub(r"\W", "_", name)


def edited(table: str, ranges: dict) -> tuple:  # type: ignore[type-arg]  # for any Python 3
    """The table with our ranges, and the tensors that were found in it."""
    wanted = {plain(name): tensor for tensor, entry in ranges.items() for name in entry["names"]}
    lines, found = [], []
    current, indent = None, ""
    for line in table.splitlines(keepends=True):
        entry = _ENTRY.match(line)
        if entry:
            indent, name = entry.group(1), re.sub(r"_\d+$", "", plain(entry.group(2)))
            tensor = wanted.get(name) or wanted.get(name.partition("_")[2])
            current = ranges[tensor] if tensor is not None and entry.group(3) == "0" else None
            if current is not None:
                found.append(tensor)
        elif not line.startswith(indent + " "):
            current = None
        field = re.match(r"^(\s+)(\w+):", line)
        if current is not None and field and field.group(2) in _FIELDS:
            line = f"{field.group(1)}{field.group(2)}: {current[field.group(2)]}\n"
        lines.append(line)
    return "".join(lines), found


def main(arguments: list) -> int:  # type: ignore[type-arg]
    """Edit the table in its place; 1 where nothing of ours is in it."""
    if len(arguments) != 2:
        print("usage: python3 set_ranges.py NAME.quantize ranges.json", file=sys.stderr)
        return 2
    path, ranges = Path(arguments[0]), json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    text, found = edited(path.read_text(encoding="utf-8"), ranges)
    missing = sorted(set(ranges) - set(found))
    print(f"{len(ranges) - len(missing)} of {len(ranges)} tensors have our ranges")
    if missing:
        print("not in the table: " + ", ".join(map(ascii, missing)), file=sys.stderr)  # a terminal would obey some names
    if not found:
        print("nothing was changed: the names of the table are not those of the ONNX model", file=sys.stderr)
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
