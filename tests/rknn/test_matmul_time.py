"""The time of matmuls: in real time, and as the runtime reports it."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.chips.timing import predict_matmul
from anynpu.rknn import Matmul, SoftwareLibrary
from anynpu.rknn.constants import Code, rknn_query_cmd

QUERY = int(rknn_query_cmd.RKNN_QUERY_PERF_RUN)


def ask(product: Matmul, library: SoftwareLibrary) -> tuple[int, int]:
    answer = ffi.new("rknn_perf_run *")
    code = library.rknn_query(product._handle, QUERY, answer, ffi.sizeof("rknn_perf_run"))
    return code, int(answer.run_duration)


@pytest.mark.parametrize("layout", ["normal", "native"])
def test_a_product_says_what_the_chip_takes(layout: str) -> None:
    library = SoftwareLibrary("rk3588")
    with Matmul(4, 256, 128, "int8", device=library, ac_layout=layout) as product:  # type: ignore[arg-type]
        product.set_b(np.ones((256, 128), np.int8))
        assert ask(product, library)[0] == Code.RKNN_ERR_FAIL
        product(np.ones((4, 256), np.int8))
        code, microseconds = ask(product, library)
        expected = predict_matmul(chips.get("rk3588"), 4, 256, 128, layout=layout)  # type: ignore[arg-type]
        assert (code, microseconds) == (0, round(expected.time_us))
        too_small = library.rknn_query(product._handle, QUERY, ffi.new("rknn_perf_run *"), 1)
        assert too_small == Code.RKNN_ERR_PARAM_INVALID


def test_a_product_takes_its_time_on_a_device_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_REALTIME", "1000")
    library = SoftwareLibrary("rk3588")
    with Matmul(1, 64, 64, "int8", device=library) as product:
        product.set_b(np.ones((64, 64), np.int8))
        for _ in range(3):
            product(np.ones((1, 64), np.int8))
        clock = library.device_for(chips.get("rk3588")).clock
        assert clock is not None
        report = clock.report()
    expected = predict_matmul(chips.get("rk3588"), 1, 64, 64, layout="normal").time_us
    assert report.jobs == 3
    assert report.predicted == pytest.approx(3 * expected / 1e6 / 1000)
