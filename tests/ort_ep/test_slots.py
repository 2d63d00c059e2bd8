"""The header of slots against the interface's own numbers, and against the real header where one is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from tools import need

from .building import SOURCES

HEADER = SOURCES / "dropin" / "ort_ep" / "ort.h"
SLOTS = json.loads((Path(__file__).parent / "data" / "slots.json").read_text(encoding="utf-8"))
TABLES = {
    "ORT_API_SLOTS": "OrtApi",
    "ORT_PRELOAD_SLOTS": "OrtApi",
    "ORT_EP_API_SLOTS": "OrtEpApi",
    "ORT_EP_API_24_SLOTS": "OrtEpApi",
    "ORT_MODEL_EDITOR_API_SLOTS": "OrtModelEditorApi",
}
REAL = (
    *map(Path, filter(None, [os.environ.get("ORT_INCLUDE_DIR")])),
    Path("/usr/include/onnxruntime"),
    Path("/usr/local/include/onnxruntime"),
    Path("/usr/include"),
)


def declared() -> dict[str, dict[str, int]]:
    """The slots that the header declares, by macro."""
    found: dict[str, dict[str, int]] = {}
    macro = ""
    for line in HEADER.read_text(encoding="utf-8").splitlines():
        start = re.match(r"#define (ORT_\w+_SLOTS)\(X\)", line)
        macro = start[1] if start else macro
        entry = re.match(r"    X\((\d+), (\w+),", line)
        if entry and macro:
            found.setdefault(macro, {})[entry[2]] = int(entry[1])
    return found


def test_the_slots_are_those_of_the_interface() -> None:
    found = declared()
    assert set(found) == set(TABLES)
    for macro, slots in found.items():
        known = SLOTS[TABLES[macro]]
        assert {name: known.get(name) for name in slots} == slots, macro
    assert sum(map(len, found.values())) > 70


def test_the_slots_are_those_of_the_real_header(tmp_path: Path) -> None:
    """Runs where Debian's libonnxruntime-dev or another copy of the header is installed."""
    folder = next((folder for folder in REAL if (folder / "onnxruntime_c_api.h").is_file()), None)
    if folder is None:
        pytest.skip("needs the header of ONNX Runtime (Debian: libonnxruntime-dev)")
    lines = ['#include <stddef.h>\n#include "onnxruntime_c_api.h"']
    for macro, slots in declared().items():
        table = TABLES[macro]
        if macro == "ORT_EP_API_24_SLOTS":
            lines.append("#if ORT_API_VERSION >= 24")
        lines += [
            f'_Static_assert(offsetof({table}, {name}) == {slot} * sizeof(void *), "{name}");' for name, slot in slots.items()
        ]
        if macro == "ORT_EP_API_24_SLOTS":
            lines.append("#endif")
    source = tmp_path / "slots.c"
    source.write_text("\n".join([*lines, "int main(void) { return 0; }\n"]), encoding="utf-8")
    done = subprocess.run([need("cc"), f"-I{folder}", "-fsyntax-only", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
