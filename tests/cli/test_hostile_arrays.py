"""Arrays from strangers as inputs of ``anynpu run``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., Any]


def npy_header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "content",
    [
        npy_header(f"({1 << 50},)"),
        npy_header(f"({1 << 62}, 4)"),
        npy_header("(-1,)"),
        npy_header("(3,)", "|O"),
        b"PK\x05\x06" + b"\0" * 18,
        b"",
    ],
    ids=["huge", "overflow", "negative", "objects", "archive", "empty"],
)
def test_hostile_arrays_for_run_are_refused(invoke: Invoke, compiled_path: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    outcome = invoke("run", compiled_path, "--input", tmp_path / "x.npy")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert "hint:" in outcome.err
