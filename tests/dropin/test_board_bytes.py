"""Networks that a real RV1103 ran, through a program in C and the drop-in library: the bytes of the board."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from arithmetic.board_cases import BoardCase
from compiler.board_networks import calibration_images, network, recorded_ranges
from compiler.test_board_networks import RAW_BYTES

import anynpu

from .running import build
from .test_exec import execute

NETWORKS = ("add", "depthwise", "elu", "leakyrelu", "matmul", "swish")


def test_the_bytes_of_the_board(tmp_path: Path) -> None:
    paths = []
    for name in NETWORKS:
        case = BoardCase(name)
        options = {"dataset": calibration_images(case), "quantizer": "vendor", "ranges": recorded_ranges(case), **RAW_BYTES}
        paths.append(anynpu.compile(network(case), "rk3588", **options).save(tmp_path / f"{name}.rknn"))
    pictures, result = tmp_path / "pictures", tmp_path / "result"
    pictures.write_bytes(b"".join(BoardCase("base").input(pattern).tobytes() for pattern in BoardCase("base").patterns))
    execute("--", build("codes.c", tmp_path / "codes"), pictures, result, *paths)
    given = np.frombuffer(result.read_bytes(), np.int8)
    for name in NETWORKS:
        case = BoardCase(name)
        assert case.patterns == BoardCase("base").patterns
        for pattern in case.patterns:
            wanted = case.output(pattern)
            codes, given = given[: wanted.size], given[wanted.size :]
            order = codes.reshape(3, 64).T if wanted.size == 192 else codes
            assert np.array_equal(order.ravel(), wanted), (name, pattern)
    assert not given.size
