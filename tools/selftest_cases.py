"""Write src/anynpu/cli/demo/board_cases.json from the cases of tests/arithmetic/board: python tools/selftest_cases.py."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src/anynpu/cli/demo/board_cases.json"


def contents() -> str:
    """The file as it should be."""
    sys.path.insert(0, str(ROOT / "tests"))
    from arithmetic.board_cases import BoardCase
    from compiler.board_networks import NETWORKS, network, recorded_ranges

    inputs: dict[str, str] = {}
    cases: dict[str, Any] = {}
    for name in NETWORKS:
        case = BoardCase(name)
        for pattern in case.patterns:
            text = case.record["patterns"][pattern]["input_hex"]
            assert inputs.setdefault(pattern, text) == text
        cases[name] = {
            "onnx": base64.b64encode(network(case).SerializeToString(deterministic=True)).decode(),
            "ranges": recorded_ranges(case),
            "outputs": case.record["board_output_hex"],
        }
    source = "bytes of an RV1103, from the logs of github.com/dnhkng/open-rknpu (MIT license); see tests/arithmetic/board"
    return json.dumps({"source": source, "inputs": inputs, "cases": cases}, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(contents(), encoding="utf-8")
