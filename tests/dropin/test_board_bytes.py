"""Networks that a real RV1103 ran, through a program in C and the drop-in library: the bytes of the board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from arithmetic.board_cases import BoardCase
from compiler.board_networks import NETWORKS, PROGRAMS, calibration_images, network, recorded_ranges
from compiler.test_board_networks import RAW_BYTES

import anynpu

from .running import build
from .test_exec import execute


def test_the_bytes_of_the_board(tmp_path: Path) -> None:
    """All of them, one process for all models."""
    arguments: list[Path] = []
    cases = [BoardCase(name) for name in (*NETWORKS, *PROGRAMS)]
    for case in cases:
        options = {"dataset": calibration_images(case), "quantizer": "vendor", "ranges": recorded_ranges(case), **RAW_BYTES}
        arguments.append(anynpu.compile(network(case), "rk3588", **options).save(tmp_path / f"{case.name}.rknn"))
        arguments.append(tmp_path / f"{case.name}.pictures")
        arguments[-1].write_bytes(b"".join(case.input(pattern).tobytes() for pattern in case.patterns))
    result = tmp_path / "result"
    execute("--", build("codes.c", tmp_path / "codes"), result, *arguments)
    given = np.frombuffer(result.read_bytes(), np.int8)
    assert given.size == 16_928 + 11_478
    for case in cases:
        shape = tuple(node.dim_value for node in network(case).graph.output[0].type.tensor_type.shape.dim)
        for pattern in case.patterns:
            wanted = case.output(pattern)
            codes, given = given[: wanted.size].reshape(shape), given[wanted.size :]
            order = codes.transpose(0, 2, 3, 1) if codes.ndim == 4 else codes
            assert np.array_equal(order.ravel(), wanted), (case.name, pattern)
