"""The times that ``RKNN_QUERY_PERF_RUN`` and ``RKNN_QUERY_PERF_DETAIL`` give, as programs take them apart."""

from __future__ import annotations

import re

import numpy as np
import pytest
from real_models import RealModels

import anynpu
from anynpu.program import Model
from anynpu.rknn import Context, Flag
from anynpu.rknn.constants import rknn_core_mask

pytestmark = pytest.mark.full  # text detection in its full size

TOTAL = re.compile(r"^Total Operator Elapsed Per Frame Time\(us\):\s*([\d.]+)", re.MULTILINE)
SIZE = re.compile(r"^Total Memory Read/Write Per Frame Size\(KB\):\s*([\d.]+)", re.MULTILINE)
RULE = re.compile(r"^-{20,}$")


def rows_after(text: str, title: str) -> list[list[str]]:
    """The rows of the table below *title*, the heading first."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if title in line)
    rows = []
    for line in lines[start + 2 :]:
        if RULE.match(line) or line.startswith("Total Operator"):
            break
        rows.append(line.split())
    return rows


@pytest.fixture(scope="module")
def detection(real_models: RealModels) -> Model:
    rng = np.random.default_rng(2)
    name = "x"
    samples = [{name: rng.random((1, 3, 480, 480), np.float32) * 255} for _ in range(2)]
    return anynpu.compile(
        real_models.detection, target="rk3588", dataset=samples, shapes={name: (1, 3, 480, 480)}, std=(255, 255, 255)
    )


@pytest.fixture(scope="module")
def ran(detection: Model) -> Context:
    context = Context(detection, device="sim:rk3588", flags=Flag.RKNN_FLAG_COLLECT_PERF_MASK)
    context.run([np.zeros((1, 480, 480, 3), np.uint8)])
    return context


def test_the_total_is_what_the_other_query_says(ran: Context) -> None:
    match = TOTAL.search(ran.perf_detail)
    assert match is not None
    assert abs(float(match[1]) - ran.run_microseconds) <= 1
    assert 10_000 < ran.run_microseconds < 40_000
    size = SIZE.search(ran.perf_detail)
    assert size is not None
    assert float(size[1]) > 1000


def test_the_table_of_layers(ran: Context, detection: Model) -> None:
    heading, *rows = rows_after(ran.perf_detail, "Network Layer Information Table")
    assert heading == [
        *("ID", "OpType", "DataType", "Target", "InputShape", "OutputShape", "Cycles(DDR/NPU/Total)", "Time(us)"),
        *("MacUsage(%)", "WorkLoad(0/1/2)", "RW(KB)", "FullName"),
    ]
    assert [row[0] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    assert len(rows) == len(detection.programs[0].layers) + 2
    assert rows[0][1:4] == ["InputOperator", "INT8", "CPU"]
    assert rows[-1][1] == "OutputOperator"
    for row in rows[1:-1]:
        assert len(row) == len(heading)
        ddr, npu, total = map(int, row[6].split("/"))
        assert total == max(ddr, npu)
        assert re.fullmatch(r"\(\d+(,\d+)*\)(,\(\d+(,\d+)*\))*(,\.\.\.)?", row[4])
        assert row[9] == "100.0%/0.0%/0.0%"
        assert row[11].partition(":")[0] == row[1]
    times = sum(int(row[7]) for row in rows)
    assert times == pytest.approx(ran.run_microseconds, abs=len(rows))
    assert not [row for row in rows[1:-1] if row[3] == "CPU"]


def test_the_ranking(ran: Context, detection: Model) -> None:
    heading, *rows = rows_after(ran.perf_detail, "Operator Time Consuming Ranking Table")
    assert heading == ["OpType", "CallNumber", "CPUTime(us)", "GPUTime(us)", "NPUTime(us)", "TotalTime(us)", "TimeRatio(%)"]
    *kinds, total = rows
    assert sum(int(row[1]) for row in kinds) == len(detection.programs[0].layers)
    times = [int(row[5]) for row in kinds]
    assert times == sorted(times, reverse=True)
    assert sum(float(row[6].rstrip("%")) for row in kinds) == pytest.approx(100, abs=0.1)
    assert total[0] == "Total"
    assert abs(int(total[-1]) - ran.run_microseconds) <= 1


def test_the_first_line_says_that_the_times_are_predicted(ran: Context) -> None:
    assert ran.perf_detail.startswith("Predicted for rk3588, not measured: ")


def test_cores_share_what_they_can(detection: Model, ran: Context) -> None:
    with Context(detection, device="sim:rk3588", flags=Flag.RKNN_FLAG_COLLECT_PERF_MASK) as context:
        context.set_core_mask(rknn_core_mask.RKNN_NPU_CORE_0_1_2)
        context.run([np.zeros((1, 480, 480, 3), np.uint8)])
        assert context.run_microseconds < ran.run_microseconds
        rows = rows_after(context.perf_detail, "Network Layer Information Table")[2:-1]
        assert {row[9] for row in rows} == {"33.3%/33.3%/33.3%", "100.0%/0.0%/0.0%"}


def test_a_chip_with_one_core_has_no_column_for_several(real_models: RealModels) -> None:
    model = anynpu.compile(real_models.classification, target="rk3566", dtype="fp16", shapes={"x": (1, 3, 48, 192)})
    with Context(model, device="sim:rk3566", flags=Flag.RKNN_FLAG_COLLECT_PERF_MASK) as context:
        context.run([np.zeros((1, 48, 192, 3), np.uint8)])
        heading = rows_after(context.perf_detail, "Network Layer Information Table")[0]
        assert "WorkLoad(0/1/2)" not in heading
        assert heading[-1] == "FullName"
