"""The example with many cameras: the newest image wins, everybody gets a share, results come in order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
from session.fake import FakeDevice
from waiting import PATIENCE, wait_until

from anynpu import InferenceSession
from anynpu.errors import DeviceError
from anynpu.serve import ServeOptions, Server
from anynpu.tensor import DType, Layout, TensorSpec

from .conftest import EXAMPLES, Load

HEIGHT, WIDTH = 48, 64
PICTURE = TensorSpec("images", (1, 3, HEIGHT, WIDTH), DType.UINT8, Layout.NCHW)
FIRST_PIXEL = TensorSpec("first", (1, 1), DType.FLOAT32)


class FirstPixelDevice(FakeDevice):
    """Gives back the first value of the image, so that a test knows which image an answer belongs to."""

    def __init__(self, **behaviour: Any) -> None:
        super().__init__(2, inputs=(PICTURE,), outputs=(FIRST_PIXEL,), **behaviour)

    def compute(self, number: int, arrays: Any) -> Any:
        return np.array([[arrays[0].flat[0]]], np.float64)


class NumberedSource:
    """Images whose values are their number, as fast as they are asked for."""

    def __init__(self, count: int, start: int = 0) -> None:
        self._numbers = range(start, start + count)

    def pictures(self, stop: threading.Event) -> Iterator[Any]:
        for number in self._numbers:
            yield np.full((HEIGHT, WIDTH, 3), number % 256, np.uint8)


class PacedSource(NumberedSource):
    """Takes an image when the one before it has its answer, or has failed: none is dropped."""

    camera: Any = None

    def pictures(self, stop: threading.Event) -> Iterator[Any]:
        for number, picture in enumerate(super().pictures(stop)):
            wait_until(lambda number=number: self._done() == number, "the image before has an answer")
            yield picture

    def _done(self) -> int:
        now = self.camera.figures()
        return int(now.answered + now.failed)


class EndlessSource:
    """Images faster than any model answers, until the test is done."""

    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def pictures(self, stop: threading.Event) -> Iterator[Any]:
        number = 0
        while not self._done.wait(0.001):
            yield np.full((HEIGHT, WIDTH, 3), number % 256, np.uint8)
            number += 1


def paced_camera(cameras: ModuleType, name: str, count: int) -> Any:
    source = PacedSource(count)
    source.camera = cameras.Camera(name, source)
    return source.camera


@pytest.fixture
def cameras(load: Load) -> ModuleType:
    return load("cameras", "cameras")


def test_the_newest_picture_wins(load: Load) -> None:
    camera = load("cameras", "camera").Camera("door", NumberedSource(10))
    camera.start()
    wait_until(lambda: camera.figures().taken == 10, "all images are taken")
    camera.stop()
    assert [frame.number for frame in camera.frames()] == [9]
    assert (camera.figures().taken, camera.figures().dropped) == (10, 9)


def test_a_source_that_fails_ends_its_camera_only(load: Load) -> None:
    class Broken:
        def pictures(self, stop: threading.Event) -> Iterator[Any]:
            yield np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            raise OSError("the lens fell off")

    camera = load("cameras", "camera").Camera("door", Broken())
    camera.start()
    assert [frame.number for frame in camera.frames()] == [0]
    camera.stop()
    assert "lens" in str(camera.error)


@pytest.mark.parametrize("depth", [1, 3])
def test_cameras_share_a_device_that_is_too_slow(cameras: ModuleType, depth: int) -> None:
    """Six cameras want two cores at the same time: drops, but equal shares, order, and the right answer for each image."""
    turns, done, lock = threading.Semaphore(0), threading.Event(), threading.Lock()
    found: dict[str, list[int]] = defaultdict(list)

    def run_time(lane: Any) -> float:
        """A run ends when the test reports it."""
        assert turns.acquire(timeout=PATIENCE)
        return 0.0

    def handle(camera: Any, frame: Any, outputs: Any) -> None:
        assert outputs[0][0, 0] == frame.number % 256
        with lock:
            found[camera.name].append(frame.number)

    def answered() -> int:
        with lock:
            return sum(map(len, found.values()))

    device = FirstPixelDevice(run_time=run_time)
    with cameras.open_session(b"model", device, 6, depth) as session:
        group = [cameras.Camera(str(number), EndlessSource(done)) for number in range(6)]
        watching = threading.Thread(target=cameras.watch, args=(session, group, PATIENCE, depth, handle, False))
        watching.start()
        for turn in range(6 * depth * 2):
            # every camera has as many images in flight as it may before the next one is answered
            wait_until(lambda: session.statistics.running + session.statistics.queued == 6 * depth, "all cameras wait")
            turns.release()
            wait_until(lambda turn=turn: answered() == turn + 1, "one is answered")
        shares = sorted(len(numbers) for numbers in found.values())
        wait_until(lambda: all(camera.figures().dropped > 0 for camera in group), "images are dropped")
        done.set()
        turns.release(1000)  # from now on nothing waits, however many images are taken before the sources end
        watching.join(PATIENCE)
    assert len(shares) == 6
    assert shares[-1] - shares[0] <= 2, shares  # two cores: what each has begun counts
    for camera in group:
        numbers = found[camera.name]
        assert numbers == sorted(set(numbers)), "the order of a camera's results"
        now = camera.figures()
        assert now.taken == now.answered + now.dropped
        assert now.answered == len(numbers)
        assert camera.error is None
    assert not device.violations


def test_an_urgent_camera_overtakes(cameras: ModuleType) -> None:
    """Both cores are held: of the images that wait, that of the urgent camera runs first though it came last."""
    device = FirstPixelDevice(gated=True)
    assert device.gate is not None
    workers = []
    with cameras.open_session(b"model", device, 6, 1) as session:
        for number in range(6):
            camera = cameras.Camera(str(number), NumberedSource(1, start=number), priority=-1 if number == 5 else 0)
            arguments = (session, camera, 1, lambda camera, frame, outputs: None)
            workers.append(threading.Thread(target=cameras.serve_camera, args=arguments))
            camera.start()
            workers[-1].start()
            wait_until(
                lambda inside=number + 1: session.statistics.running + session.statistics.queued == inside, "one more is there"
            )
        device.gate.set()
        for worker in workers:
            worker.join(PATIENCE)
    order = [int(arrays[0].flat[0]) for arrays, _, _ in device.writes]
    assert set(order[:2]) == {0, 1}
    assert order[2] == 5


def test_a_picture_that_fails_is_counted(cameras: ModuleType) -> None:
    failures = iter([False, True, True, False, False, True])
    device = FirstPixelDevice(fails=lambda lane: next(failures, False))
    numbers: list[int] = []
    with cameras.open_session(b"model", device, 1, 1) as session:
        camera = paced_camera(cameras, "door", 10)
        cameras.watch(session, [camera], PATIENCE, 1, lambda camera, frame, outputs: numbers.append(frame.number), show=False)
    now = camera.figures()
    assert (now.taken, now.answered, now.failed, now.dropped) == (10, 7, 3, 0)
    assert isinstance(camera.error, DeviceError)
    assert numbers == [0, 3, 4, 6, 7, 8, 9]


def test_cameras_of_a_server(cameras: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "net.rknn").write_bytes(b"model")
    options = ServeOptions(port=0, grpc_port=0, device=FirstPixelDevice(), drain_timeout=PATIENCE)
    answers: list[bool] = []
    with Server([tmp_path / "net.rknn"], options) as server:
        session: InferenceSession = cameras.open_session(f"grpc://{server.grpc_address}/net", None, 3, 1)
        with session:
            group = [paced_camera(cameras, str(number), 5) for number in range(3)]
            cameras.watch(
                session,
                group,
                PATIENCE,
                1,
                lambda _, frame, outputs: answers.append(outputs[0][0, 0] == frame.number),
                show=False,
            )
    assert answers == [True] * 15


def test_video_files_are_read_resized_and_in_rgb(load: Load, tmp_path: Path) -> None:
    path = str(tmp_path / "street.avi")
    writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 100.0, (2 * WIDTH, 2 * HEIGHT))
    for _ in range(8):
        writer.write(np.full((2 * HEIGHT, 2 * WIDTH, 3), (0, 0, 250), np.uint8))  # red, as OpenCV orders channels
    writer.release()
    pictures = list(load("cameras", "sources").VideoSource(path, HEIGHT, WIDTH).pictures(threading.Event()))
    assert len(pictures) == 8
    assert pictures[0].shape == (HEIGHT, WIDTH, 3)
    assert np.all(np.abs(pictures[0].astype(int) - (250, 0, 0)) < 12)


def test_the_script_runs_on_the_software_npu(picture_model: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "cameras" / "cameras.py"), str(picture_model), "--device", "sim"]
    command += ["--cameras", "3", "--rate", "30", "--seconds", str(PATIENCE), "--answers", "3", "--urgent", "1"]
    source = str(EXAMPLES.parent / "src")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": source})
    assert done.returncode == 0, done.stderr
    assert "3 cameras on software NPU, rk3588, 3 cores" in done.stdout
    rows = [[cell.strip() for cell in line.strip("│\n").split("│")] for line in done.stdout.splitlines() if line.startswith("│")]
    assert [(row[0], row[1], row[6]) for row in rows] == [("1", "-1", "0"), ("2", "0", "0"), ("3", "0", "0")]
    assert all(int(row[3]) > 0 for row in rows)


def test_a_video_that_is_not_there_is_told(cameras: ModuleType, picture_model: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cameras.main([str(picture_model), "--device", "sim", "--video", str(tmp_path / "missing.mp4")])
    assert "no image was answered" in str(ended.value.code)
    assert "missing.mp4 is no video that OpenCV can read" in str(ended.value.code)
