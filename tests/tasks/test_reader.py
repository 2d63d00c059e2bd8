"""Which decoder outputs need, from their shapes."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.errors import ParameterError, ShapeError
from anynpu.tasks import Classification, Detections, SemanticMap, TextLine, TextRegions, place, reader_for

GRIDS = ((80, 80), (40, 40), (20, 20))


def by_grid(*channels: int) -> list[tuple[int, ...]]:
    return [(1, depth, *extent) for extent in GRIDS for depth in channels]


@pytest.mark.parametrize(
    ("shapes", "task", "head"),
    [
        ([(1, 84, 8400)], "detect", "yolov8"),
        ([(1, 5, 8400)], "detect", "yolov8"),
        ([(1, 25200, 85)], "detect", "yolov5"),
        ([(1, 8400, 85)], "detect", "yolox"),
        ([(1, 300, 6)], "detect", "yolov10"),
        ([(100, 7)], "detect", "yolov10"),
        ([(1, 56, 8400)], "pose", "yolov8"),
        ([(1, 116, 8400), (1, 32, 160, 160)], "segment", "yolov8"),
        ([(1, 32, 160, 160), (1, 116, 8400)], "segment", "yolov8"),
        ([(1, 25200, 117), (1, 32, 160, 160)], "segment", "yolov5"),
        (by_grid(255), "detect", "yolov5"),
        (by_grid(18), "detect", "yolov5"),
        (by_grid(85), "detect", "yolox"),
        (by_grid(144), "detect", "yolov8"),
        (by_grid(65), "detect", "yolov8"),
        (by_grid(64, 80, 1), "detect", "yolov8"),
        (by_grid(64, 80), "detect", "yolov8"),
        (by_grid(4, 80, 1), "detect", "yolov6"),
        (by_grid(68, 80, 1), "detect", "yolov6"),
        ([*by_grid(64, 80, 1, 32), (1, 32, 160, 160)], "segment", "yolov8"),
        ([*by_grid(65), (1, 17, 3, 8400)], "pose", "yolov8"),
        ([*by_grid(79), (1, 1, 8400)], "obb", "yolov8"),
        ([(1, 16800, 4), (1, 16800, 2), (1, 16800, 10)], "face", "retinaface"),
        ([(1, 1, 640, 640)], "ocr", "text regions"),
        ([(1, 1000)], "classify", "classes"),
        ([(1, 1000, 1, 1)], "classify", "classes"),
        ([(1, 19, 80, 80)], "segment", "semantic map"),
        ([(1, 640, 640)], "segment", "semantic map"),
    ],
)
def test_the_task_shows_in_the_shapes(shapes: list[tuple[int, ...]], task: str, head: str) -> None:
    reader = reader_for((640, 640), shapes)
    assert (reader.task, reader.head) == (task, head)
    assert reader.words.startswith(f"{task}: {head}")
    result = reader.read([np.zeros(shape, np.float32) for shape in shapes], place((480, 640), (640, 640), reader.fit))
    assert isinstance(result, (Detections, Classification, SemanticMap, TextRegions))
    if isinstance(result, SemanticMap):
        assert result.classes.shape == (480, 640)


def test_a_line_of_text() -> None:
    reader = reader_for((48, 320), [(1, 40, 4)], labels=("a", "b"))
    assert (reader.task, reader.head) == ("ocr", "text line")
    steps = np.eye(4, dtype=np.float32)[[1, 1, 0, 3, 2] + [0] * 35]
    assert reader.read([steps[None]]) == TextLine("a b", 1.0)
    with pytest.raises(ParameterError, match="characters are not known"):
        reader_for((48, 320), [(1, 40, 4)]).read([steps[None]])


def test_the_number_of_labels_settles_what_shapes_leave_open() -> None:
    assert reader_for((640, 640), by_grid(69), labels=["x"] * 18).head == "yolov5"
    assert reader_for((640, 640), by_grid(69), labels=["x"] * 5).head == "yolov8"
    assert reader_for((640, 640), by_grid(69), labels=["x"] * 64).head == "yolox"
    turned = reader_for((640, 640), [(1, 8400, 7)], labels=["x"] * 3)
    assert turned.head == "yolov8"
    rows = np.zeros((1, 8400, 7), np.float32)
    rows[0, 100] = [320, 320, 40, 60, 0.1, 0.9, 0.2]
    result = turned.read([rows])
    assert isinstance(result, Detections)
    np.testing.assert_allclose(result.boxes, [[300, 290, 340, 350]])
    assert result.classes.tolist() == [1]


def test_what_the_exporter_says_settles_it_too() -> None:
    metadata = {"task": "obb", "names": "{0: 'plane'}"}
    assert reader_for((640, 640), [(1, 20, 8400)], metadata=metadata).task == "obb"
    assert reader_for((640, 640), [(1, 20, 8400)]).task == "detect"
    pose = reader_for((640, 640), [(1, 14, 8400)], metadata={"task": "pose", "kpt_shape": "[3, 3]"})
    assert pose.task == "pose"


def test_a_task_that_is_asked_for() -> None:
    assert reader_for((640, 640), [(1, 1, 640, 640)], task="segment").head == "semantic map"
    assert reader_for((640, 640), [(1, 20, 8400)], task="obb").task == "obb"
    with pytest.raises(ShapeError, match="1x1000 are not those of a head that is known for the task 'detect' here"):
        reader_for((640, 640), [(1, 1000)], task="detect")
    with pytest.raises(ParameterError, match="no task 'find'"):
        reader_for((640, 640), [(1, 1000)], task="find")


def test_shapes_that_nobody_knows() -> None:
    with pytest.raises(ShapeError, match="1x7x11x13, 1x5 are not those"):
        reader_for((640, 640), [(1, 7, 11, 13), (1, 5)])


def test_another_head_is_read_by_its_name() -> None:
    values = [np.zeros((1, 255, *extent), np.float32) for extent in GRIDS]
    values[0][0, 4, 10, 10] = values[0][0, 5, 10, 10] = 0.9
    values[0][0, :4, 10, 10] = 0.5
    widths = []
    for head in ("yolov5", "yolov7"):
        result = reader_for((640, 640), by_grid(255), head=head).read(values)
        assert isinstance(result, Detections)
        widths.append(float(result.boxes[0, 2] - result.boxes[0, 0]))
    assert widths == [10.0, 12.0]
