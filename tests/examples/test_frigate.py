"""The detector for Frigate: messages, decoders, and the process, asked as Frigate's ``zmq`` detector asks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import zmq
from onnx import TensorProto, helper, numpy_helper
from session.fake import FakeDevice
from waiting import PATIENCE

import anynpu
from anynpu.tensor import DType, TensorSpec

from .conftest import EXAMPLES, Load

SIZE = 64
CLASSES = 3
BINS = 16
EMPTY = np.zeros((20, 6), np.float32)


class FrigateClient:
    """Asks as Frigate does: one REQ socket, the model first, a new socket after a timeout, zeros for whatever goes wrong."""

    def __init__(self, endpoint: str, model: str, timeout_ms: int = round(PATIENCE * 1000)) -> None:
        self.timeouts = 0
        self._context = zmq.Context()
        self._endpoint = endpoint
        self._model = model
        self._timeout_ms = timeout_ms
        self._socket: Any = None
        self._connect()
        self.ready = self.introduce()

    def _connect(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.RCVTIMEO, self._timeout_ms)
        self._socket.setsockopt(zmq.SNDTIMEO, self._timeout_ms)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(self._endpoint)

    def introduce(self) -> bool:
        self._socket.send_multipart([json.dumps({"model_request": True, "model_name": self._model}).encode()])
        self._socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE * 1000))
        (reply,) = self._socket.recv_multipart()
        self._socket.setsockopt(zmq.RCVTIMEO, self._timeout_ms)
        answer = json.loads(reply)
        if answer["model_available"] and answer["model_loaded"]:
            return True
        self._socket.send_multipart([json.dumps({"model_data": True, "model_name": self._model}).encode(), b"a model"])
        (reply,) = self._socket.recv_multipart()
        answer = json.loads(reply)
        return bool(answer["model_saved"] and answer["model_loaded"])

    def detect(self, picture: Any) -> Any:
        header = {"shape": list(picture.shape), "dtype": picture.dtype.name, "model_type": "yologeneric"}
        return self.exchange([json.dumps(header).encode(), picture.tobytes(order="C")])

    def exchange(self, frames: list[bytes]) -> Any:
        try:
            self._socket.send_multipart(frames)
            reply = self._socket.recv_multipart()
        except zmq.Again:
            self.timeouts += 1
            self._connect()
            self.ready = self.introduce()
            return EMPTY
        if len(reply) == 1:
            assert len(reply[0]) == 20 * 6 * 4
            return np.frombuffer(reply[0], np.float32).reshape(20, 6)
        header = json.loads(reply[0])
        return np.frombuffer(reply[1], header["dtype"]).reshape(header["shape"])

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture(scope="module")
def detection_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled detector in the form of YOLOv8's split heads: a bright cell is an object of class 1, two cells wide."""
    nodes, outputs, constants = [], [], []
    bias = np.full((4, BINS), -6.0, np.float32)
    bias[:, 1] = 6.0  # one stride to each side
    scores = np.zeros((CLASSES, 3, 1, 1), np.float32)
    scores[1] = 8.0
    for name, value in {
        "box_weights": np.zeros((4 * BINS, 3, 1, 1), np.float32),
        "box_bias": bias.reshape(-1),
        "class_weights": scores,
        "class_bias": np.full(CLASSES, -12.0, np.float32),
    }.items():
        constants.append(numpy_helper.from_array(value, name))
    for stride in (8, 16, 32):
        nodes += [
            helper.make_node("AveragePool", ["images"], [f"mean{stride}"], kernel_shape=[stride] * 2, strides=[stride] * 2),
            helper.make_node("Conv", [f"mean{stride}", "box_weights", "box_bias"], [f"box{stride}"]),
            helper.make_node("Conv", [f"mean{stride}", "class_weights", "class_bias"], [f"logit{stride}"]),
            helper.make_node("Sigmoid", [f"logit{stride}"], [f"class{stride}"]),
        ]
        cells = SIZE // stride
        outputs.append(helper.make_tensor_value_info(f"box{stride}", TensorProto.FLOAT, [1, 4 * BINS, cells, cells]))
        outputs.append(helper.make_tensor_value_info(f"class{stride}", TensorProto.FLOAT, [1, CLASSES, cells, cells]))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    graph = helper.make_graph(nodes, "bright", [images], outputs, constants)
    folder = tmp_path_factory.mktemp("detection_model")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "bright.onnx")
    pictures = [bright_picture(top, left) for top, left in ((0, 0), (16, 32), (48, 48))]
    anynpu.compile(folder / "bright.onnx", target="rk3588", dataset=pictures, std=(255, 255, 255)).save(folder / "bright.rknn")
    return folder / "bright.rknn"


def bright_picture(top: int, left: int) -> Any:
    """Dark, with a bright square of 16 x 16."""
    picture = np.zeros((SIZE, SIZE, 3), np.uint8)
    picture[top : top + 16, left : left + 16] = 255
    return picture


class DetectorProcess:
    """The example as a process of its own."""

    def __init__(self, model: Path, endpoint: str, *options: str) -> None:
        self._command = [sys.executable, str(EXAMPLES / "frigate" / "detector.py"), str(model), "--endpoint", endpoint]
        self._command += ["--decoder", "yolov8-split", "--device", "sim", *options]
        self.popen: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        source = str(EXAMPLES.parent / "src")
        self.popen = subprocess.Popen(self._command, env={**os.environ, "PYTHONPATH": source})

    def end(self, number: int) -> int:
        assert self.popen is not None
        self.popen.send_signal(number)
        return self.popen.wait(PATIENCE)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/zmq"


@pytest.fixture
def detector(detection_model: Path, endpoint: str) -> Iterator[DetectorProcess]:
    process = DetectorProcess(detection_model, endpoint, "--timeout", str(PATIENCE))
    yield process
    if process.popen is not None and process.popen.poll() is None:
        process.end(signal.SIGKILL)


def test_frigate_finds_objects_whatever_happens(detector: DetectorProcess, endpoint: str) -> None:
    """The process from its start to its second end: the handshake, images in both layouts, nonsense, kill -9, restart."""
    client = FrigateClient(endpoint, "bright.rknn")
    assert client.ready
    picture = bright_picture(16, 32)

    def check(rows: Any) -> None:
        assert rows.dtype == np.float32
        assert rows.shape == (20, 6)
        found = rows[rows[:, 1] > 0]
        centres = (found[:, 2:4] + found[:, 4:6]) / 2 * SIZE
        sizes = (found[:, 4:6] - found[:, 2:4]) * SIZE
        assert set(found[:, 0]) == {1.0}
        assert found[0, 1] > 0.9
        near = np.abs(centres - (24, 40)).max(axis=1) < 2
        assert np.any(near & (np.abs(sizes - 32).max(axis=1) < 4)), found  # the cell of stride 16, one stride to each side
        assert np.all(rows[len(found) :] == 0)

    check(client.detect(picture[np.newaxis]))
    check(client.detect(picture.transpose(2, 0, 1)[np.newaxis].copy()))
    assert np.all(client.detect(np.zeros((1, SIZE, SIZE, 3), np.uint8)) == 0)

    good = {"shape": [1, SIZE, SIZE, 3], "dtype": "uint8"}
    for frames in (
        [b"{"],
        [b"[1, 2]"],
        [b"\xff\xfe"],
        [b"[" * 100_000],
        [json.dumps(good).encode()],
        [json.dumps(good).encode(), b"short"],
        [json.dumps(good).encode(), b"", picture.tobytes()],
        [json.dumps({**good, "dtype": "object"}).encode(), picture.tobytes()],
        [json.dumps({**good, "dtype": ["uint8"]}).encode(), picture.tobytes()],
        [json.dumps({**good, "shape": [-1, SIZE, SIZE, 3]}).encode(), picture.tobytes()],
        [json.dumps({**good, "shape": [2**40] * 4}).encode(), picture.tobytes()],
        [json.dumps({**good, "shape": "large"}).encode(), picture.tobytes()],
        [json.dumps({**good, "shape": [1, SIZE, 3, SIZE]}).encode(), picture.tobytes()],
        [json.dumps({**good, "shape": [SIZE * SIZE * 3]}).encode(), picture.tobytes()],
        [b""],
    ):
        assert np.all(client.exchange(frames) == 0), frames[0][:80]
    check(client.detect(picture[np.newaxis]))

    detector.end(signal.SIGKILL)
    detector.start()
    check(client.detect(picture[np.newaxis]))
    client.close()
    assert detector.end(signal.SIGTERM) == 0


def test_a_model_that_the_detector_does_not_have_is_refused(detector: DetectorProcess, endpoint: str) -> None:
    client = FrigateClient(endpoint, "other.onnx")
    assert not client.ready
    client.close()
    client = FrigateClient(endpoint, "/config/model_cache/bright.onnx")
    assert client.ready
    client.close()


class Serving:
    """A detector on a fake device, in a thread of this process."""

    def __init__(self, load: Load, device: FakeDevice, endpoint: str, timeout: float) -> None:
        module = load("frigate", "detector")
        self._ready = threading.Event()
        self._session = device.open(layout="any")
        self._detector = module.Detector(self._session, "net.rknn", "end2end", timeout=timeout)
        self._serve = module.serve
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._serve(self._detector, self._endpoint, self._stop)

    def end(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._session.close()


class BoxDevice(FakeDevice):
    """Finds one object, whose class is the first value of the image."""

    def __init__(self, **behaviour: Any) -> None:
        inputs = (TensorSpec("images", (1, 3, 4, 4), DType.UINT8),)
        super().__init__(2, inputs=inputs, outputs=(TensorSpec("boxes", (1, 1, 6), DType.FLOAT32),), **behaviour)

    def compute(self, number: int, arrays: Any) -> Any:
        return np.array([[[0, 1, 2, 3, 0.75, arrays[0].flat[0]]]], np.float64)


def test_a_late_picture_is_given_up_and_frigate_goes_on(load: Load, endpoint: str) -> None:
    slow = {"seconds": 600.0}
    device = BoxDevice(run_time=lambda lane: slow["seconds"], stoppable=True)
    serving = Serving(load, device, endpoint, timeout=5.0)
    client = FrigateClient(endpoint, "net", timeout_ms=100)
    picture = np.full((1, 4, 4, 3), 7, np.uint8)
    try:
        assert np.all(client.detect(picture) == 0)
        assert client.timeouts == 1
        assert client.ready, "the model is there after a timeout, though its core is still busy"
        slow["seconds"] = 0.0
        patient = FrigateClient(endpoint, "net")
        rows = patient.detect(picture)
        assert rows[0].tolist() == [7, 0.75, 0.25, 0, 0.75, 0.5]
        assert np.all(rows[1:] == 0)
        patient.close()
    finally:
        client.close()
        serving.end()


def test_several_detectors_of_frigate_use_several_cores(load: Load, endpoint: str) -> None:
    """Two images are on the device at the same time: neither is answered before both are there."""
    device = BoxDevice(gated=True)
    assert device.gate is not None
    serving = Serving(load, device, endpoint, timeout=PATIENCE)
    clients = [FrigateClient(endpoint, "net") for _ in range(2)]
    answers: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=number: answers.update({n: clients[n].detect(np.full((1, 4, 4, 3), n, np.uint8))}))
        for number in range(2)
    ]
    try:
        for thread in threads:
            thread.start()
        device.wait_entered(2)
        assert not answers
        device.gate.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert [answers[number][0, 0] for number in range(2)] == [0, 1]
    finally:
        device.gate.set()
        for client in clients:
            client.close()
        serving.end()


@pytest.fixture
def decode(load: Load) -> ModuleType:
    return load("frigate", "decode")


HEIGHT, WIDTH = 64, 96
OBJECTS = np.array([[2, 0.9, 8, 16, 24, 40], [0, 0.7, 30, 50, 60, 90]], np.float32)
"""Class, score, top, left, bottom, right in pixels."""
EXPECTED = OBJECTS / (1, 1, HEIGHT, WIDTH, HEIGHT, WIDTH)


def cell_grid() -> tuple[Any, Any]:
    """The cells of all strides, row by row: x and y, and the stride of each."""
    cells, strides = [], []
    for stride in (8, 16, 32):
        for y in range(HEIGHT // stride):
            for x in range(WIDTH // stride):
                cells.append((x, y))
                strides.append(stride)
    return np.array(cells), np.array(strides)


def encoded(kind: str) -> list[Any]:
    """The objects as a model of some kind gives them, among others that are too weak or hidden by a better one."""
    rng = np.random.default_rng(5)
    cells, strides = cell_grid()
    count = len(cells)
    found = np.concatenate([OBJECTS, OBJECTS - (0, 0.1, 1, 1, 1, 1), [[1, 0.2, 0, 0, 9, 9]]])
    places = rng.choice(count, len(found), replace=False)
    classes, scores, top, left, bottom, right = found.T
    centre = np.stack([(left + right) / 2, (top + bottom) / 2, right - left, bottom - top], axis=1)
    if kind == "ssd":
        boxes = found[:, 2:] / (HEIGHT, WIDTH, HEIGHT, WIDTH)
        return [boxes[None], classes[None], scores[None], np.array([len(found)])]
    if kind == "end2end":
        return [np.stack([left, top, right, bottom, scores, classes], axis=1)[None]]
    if kind == "yolov8":
        rows = np.zeros((count, 4 + CLASSES))
        rows[places, :4] = centre
        rows[places, 4 + classes.astype(int)] = scores
        return [rows.T[None]]
    assert kind == "yolox"
    rows = np.zeros((count, 5 + CLASSES))
    scale = strides[places, np.newaxis]
    rows[places, :2] = centre[:, :2] / scale - cells[places]
    rows[places, 2:4] = np.log(centre[:, 2:] / scale)
    rows[places, 4] = 0.5
    rows[places, 5 + classes.astype(int)] = scores / 0.5
    return [rows[None]]


@pytest.mark.parametrize("kind", ["ssd", "end2end", "yolov8", "yolox"])
def test_decoders_find_what_was_encoded(decode: ModuleType, kind: str) -> None:
    rows = decode.detections(kind, encoded(kind), HEIGHT, WIDTH, 0.4, 0.5)
    np.testing.assert_allclose(rows, EXPECTED, atol=1e-5)


def test_split_heads_are_decoded(decode: ModuleType) -> None:
    """Distances of 1.25, 2, 0.5 and 3 strides from the center of one cell of stride 16."""
    outputs = []
    for stride in (8, 16, 32):
        shape = (HEIGHT // stride, WIDTH // stride)
        outputs += [np.zeros((1, 4, BINS, *shape)), np.full((1, CLASSES, *shape), 0.01), np.zeros((1, 1, *shape))]
    row, column = 2, 3
    for side, distance in enumerate((1.25, 2.0, 0.5, 3.0)):
        whole, part = int(distance), distance % 1
        outputs[3][0, side, :, row, column] = -40
        outputs[3][0, side, whole, row, column] = np.log(1 - part)
        if part:
            outputs[3][0, side, whole + 1, row, column] = np.log(part)
    outputs[4][0, 1, row, column] = 0.8
    outputs = [output.reshape(1, -1, *output.shape[-2:]) for output in outputs]
    rows = decode.detections("yolov8-split", outputs, HEIGHT, WIDTH, 0.4, 0.5)
    x, y = 16 * (column + 0.5), 16 * (row + 0.5)
    sides = [(y - 32) / HEIGHT, (x - 20) / WIDTH, min(1, (y + 48) / HEIGHT), (x + 8) / WIDTH]
    np.testing.assert_allclose(rows, [[1, 0.8, *sides]], atol=1e-5)


def test_overlaps_count_within_a_class_only(decode: ModuleType) -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [0, 0, 10, 10], [6, 0, 16, 10], [5, 5, 5, 5]], np.float64)
    classes = np.array([0, 0, 1, 0, 0])
    assert decode.without_overlaps(boxes, classes, 0.5) == [0, 2, 3, 4]
    assert decode.without_overlaps(boxes[:0], classes[:0], 0.5) == []


def test_more_than_twenty_objects_become_the_best_twenty(load: Load) -> None:
    messages = load("frigate", "messages")
    rows = np.arange(30 * 6, dtype=np.float32).reshape(30, 6)
    header, table = messages.detections_answer(rows)
    assert json.loads(header) == {"shape": [20, 6], "dtype": "float32"}
    np.testing.assert_array_equal(np.frombuffer(table, np.float32).reshape(20, 6), rows[:20])
