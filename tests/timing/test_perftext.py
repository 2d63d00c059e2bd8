"""Texts that boards print about their runs."""

from __future__ import annotations

import pytest

from anynpu.chips.timing.calibration import read_perf_text
from anynpu.errors import CalibrationError

TABLE = """
ID   OpType             DataType Target InputShape                               OutputShape            Cycles(DDR/NPU/Total)    Time(us)     MacUsage(%)          WorkLoad(0/1/2)      RW(KB)       FullName
1    InputOperator      FLOAT16  CPU    \\                                        (1,3,224,224)          0/0/0                    11           \\                    \\                    0            InputOperator:x
2    ConvRelu           FLOAT16  NPU    (1,3,224,224),(32,3,3,3),(32)            (1,32,112,112)         94150/10584/94150        428          2.47/0.00/0.00       100.0%/0.0%/0.0%     543.75       Conv:conv1
3    Softmax            FLOAT16  CPU    (1,1000)                                 (1,1000)               0/0/0                    72           \\                    \\                    4.00         Softmax:s
Total Operator Elapsed Per Frame Time(us): 511
Total Memory Read/Write Per Frame Size(KB): 547
"""  # noqa: E501


def test_a_table_of_layers() -> None:
    read = read_perf_text(TABLE)
    assert read.milliseconds == pytest.approx(0.511)
    assert read.dtype == "fp16"
    assert [(layer.operator, layer.target, layer.microseconds) for layer in read.layers] == [
        ("ConvRelu", "NPU", 428),
        ("Softmax", "CPU", 72),
    ]
    assert read.cpu_share == pytest.approx(0.144)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("Total Operator Elapsed Time(us): 14147", 14.147),
        ("Total Time(us): 17219\nFPS: 58.08", 17.219),
        ("   0: Elapse Time = 9.1ms, FPS = 1\n\nAvg Time 8.25ms, Avg FPS = 121.2", 8.25),
        ("profile inference time=2725us, cycle=1488230", 2.725),
        ("Total Time(us): 100\nTotal Time(us): 90", 0.09),
        ("Avg Time 2.0ms\nTotal Operator Elapsed Per Frame Time(us): 1900", 1.9),
    ],
)
def test_times_of_a_run(text: str, milliseconds: float) -> None:
    assert read_perf_text(text).milliseconds == pytest.approx(milliseconds)


@pytest.mark.parametrize("text", ["", "Total Time(us): 0", "Total Time(us): ....", "inference took a while"])
def test_texts_without_a_time(text: str) -> None:
    with pytest.raises(CalibrationError, match="no time of a run"):
        read_perf_text(text)


def test_our_own_predictions_are_no_measurements() -> None:
    with pytest.raises(CalibrationError, match="prediction of anynpu"):
        read_perf_text(f"Predicted for rk3588, not measured: calibrated\n{TABLE}")
