"""Networks that a real RV1103 ran, through the RKNN calls: the bytes of the board.

Compiled for RK3588, whose rule is the same and whose calls take and give arrays; a session (tests/compiler) uses those of RV1106.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arithmetic.board_cases import BoardCase
from compiler.board_networks import NETWORKS, PROGRAMS, calibration_images, network, recorded_ranges
from compiler.test_board_networks import RAW_BYTES

import anynpu
from anynpu.rknn import Context


@pytest.mark.parametrize("name", [*NETWORKS, *PROGRAMS])
def test_the_bytes_of_the_board(name: str, tmp_path: Path) -> None:
    case = BoardCase(name)
    model = anynpu.compile(
        network(case),
        "rk3588",
        dataset=calibration_images(case),
        quantizer="vendor",
        ranges=recorded_ranges(case),
        **RAW_BYTES,  # type: ignore[arg-type]
    )
    assert model.arithmetic == "chip"
    path = model.save(tmp_path / "model.rknn")
    with Context(path, device="sim") as context:
        for pattern in case.patterns:
            (codes,) = context.run([case.input(pattern)], want_float=False)
            assert codes.dtype == np.int8
            order = np.moveaxis(codes, 1, -1) if codes.ndim == 4 else codes
            assert np.array_equal(np.ascontiguousarray(order).ravel(), case.output(pattern)), pattern
