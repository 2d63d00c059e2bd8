"""Names in a file are shown, never obeyed: whoever looks at a stranger's model is not the stranger's terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu._util.printable import printable
from anynpu.serve.traces import LineFormatter

Invoke = Callable[..., Any]

CLEAR, TITLE, REVERSED, FORGED, C1 = "\x1b[2J", "\x1b]0;owned\x07", "\u202e", "\nerror: all is well", "\x9b31m"
EVIL = CLEAR + TITLE + REVERSED + FORGED + C1


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An ONNX model with such names wherever there can be one, and the same compiled."""
    weights = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", [f"x{EVIL}", f"w{EVIL}"], [f"c{EVIL}"], f"conv{EVIL}", pads=[1] * 4),
        helper.make_node("Softmax", [f"c{EVIL}"], [f"y{EVIL}"], f"softmax{EVIL}", axis=2),
    ]
    graph = helper.make_graph(
        nodes,
        f"graph{EVIL}",
        [helper.make_tensor_value_info(f"x{EVIL}", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info(f"y{EVIL}", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(weights, f"w{EVIL}")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8, producer_name=f"me{EVIL}")
    folder = tmp_path_factory.mktemp("hostile")
    onnx.save(proto, folder / "hostile.onnx")
    data = [{f"x{EVIL}": np.zeros((1, 3, 8, 8), np.float32)}]
    model = anynpu.compile(proto, "rk3588", dataset=data, name=f"net{EVIL}", custom_string=f"by{EVIL}")
    return folder / "hostile.onnx", model.save(folder / "hostile.rknn")


COMMANDS = [
    ("inspect", "ONNX"),
    ("inspect", "MODEL"),
    ("inspect", "MODEL", "--layers"),
    ("check", "ONNX", "--target", "rk3588", "--layers"),
    ("predict", "ONNX", "--target", "rk3588", "--layers"),
    ("profile", "MODEL"),
    ("run", "MODEL"),
    ("compile", "ONNX", "--target", "rk3588", "--dtype", "fp16", "-o", "OUT"),
    ("compile", "ONNX", "--target", "rk3588", "--shape", "nothing=1", "-o", "OUT"),
    ("bench", "MODEL", "--runs", "1"),
    ("compare", "ONNX", "MODEL"),
    ("lint", "ONNX"),
    ("doctor", "--model", "MODEL"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:3]))
def test_names_are_shown_and_not_obeyed(
    invoke: Invoke, hostile: tuple[Path, Path], tmp_path: Path, command: tuple[str, ...]
) -> None:
    places = {"ONNX": hostile[0], "MODEL": hostile[1], "OUT": tmp_path / "out.rknn"}
    outcome = invoke(*(places.get(word, word) for word in command))
    shown = outcome.out + outcome.err
    assert shown
    assert [mark for mark in shown if not mark.isprintable() and mark != "\n"] == []
    assert not any(line.startswith("error: all is well") for line in shown.splitlines())


@pytest.mark.parametrize("command", [("inspect", "ONNX"), ("inspect", "MODEL"), ("profile", "MODEL")], ids=" ".join)
def test_json_keeps_the_names(invoke: Invoke, hostile: tuple[Path, Path], command: tuple[str, ...]) -> None:
    places = {"ONNX": hostile[0], "MODEL": hostile[1]}
    outcome = invoke(*(places.get(word, word) for word in command), "--json")
    assert [mark for mark in outcome.out if not mark.isprintable() and mark != "\n"] == []
    assert any(EVIL in text for text in texts(json.loads(outcome.out)))


def texts(document: Any) -> list[str]:
    if isinstance(document, dict):
        return [text for item in (*document, *document.values()) for text in texts(item)]
    if isinstance(document, list):
        return [text for item in document for text in texts(item)]
    return [document] if isinstance(document, str) else []


def test_a_line_of_the_log_stays_one() -> None:
    record = logging.LogRecord("anynpu.serve", logging.INFO, "", 0, "model %s is ready", (f"det{EVIL}",), None)
    line = LineFormatter("%(levelname)s %(message)s").format(record)
    assert line.isprintable()
    assert line.startswith("INFO model det")


def test_what_is_escaped() -> None:
    assert printable("conv_1/größer 大 ✓") == "conv_1/größer 大 ✓"
    assert printable(EVIL).isprintable()
    assert json.loads(f'"{printable(EVIL)}"') == EVIL
    assert json.loads(f'"{printable(chr(0xE0001))}"') == chr(0xE0001)
    assert printable("\ud800") == "\\ud800"
