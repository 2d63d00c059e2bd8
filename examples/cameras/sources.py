"""Where images come from: a camera or a video that OpenCV reads, or one that is drawn."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""Height, width, and the three channels red, green and blue."""

RECONNECT_SECONDS = 2.0


class Source(Protocol):
    """Gives images in the rhythm of a camera until it ends or *stop* is set."""

    def pictures(self, stop: threading.Event) -> Iterator[Picture]: ...


class DrawnSource:
    """A camera that needs no hardware: a bright square wanders over a dark image.

    :param rate: images a second
    :param start: where the square begins, so that cameras differ
    """

    def __init__(self, height: int, width: int, rate: float, start: int = 0) -> None:
        self._height = height
        self._width = width
        self._period = 1 / rate
        self._start = start

    def pictures(self, stop: threading.Event) -> Iterator[Picture]:
        side = max(1, min(self._height, self._width) // 4)
        due = time.monotonic()
        number = self._start
        while not stop.wait(max(0.0, due - time.monotonic())):
            picture = np.full((self._height, self._width, 3), 20, np.uint8)
            top = 3 * number % max(1, self._height - side)
            left = 5 * number % max(1, self._width - side)
            picture[top : top + side, left : left + side] = 230
            yield picture
            number += 1
            due += self._period


class VideoSource:
    """A camera or a file by its address: ``rtsp://...``, ``/dev/video0``, ``street.mp4``.

    A file is played in its own rhythm and ends; a camera that breaks off is opened again.
    """

    def __init__(self, address: str, height: int, width: int) -> None:
        self._address = address
        self._height = height
        self._width = width

    def pictures(self, stop: threading.Event) -> Iterator[Picture]:
        import cv2

        live = "://" in self._address or self._address.startswith("/dev/")
        while not stop.is_set():
            capture = cv2.VideoCapture(self._address)
            try:
                if not live and not capture.isOpened():
                    raise FileNotFoundError(f"{self._address} is no video that OpenCV can read")
                yield from self._read(capture, stop, live)
            finally:
                capture.release()
            if not live:
                return
            stop.wait(RECONNECT_SECONDS)

    def _read(self, capture: Any, stop: threading.Event, live: bool) -> Iterator[Picture]:
        import cv2

        period = 0.0 if live else 1 / (capture.get(cv2.CAP_PROP_FPS) or 25.0)
        due = time.monotonic()
        while not stop.wait(max(0.0, due - time.monotonic())):
            there, picture = capture.read()
            if not there:
                return
            small = cv2.resize(picture, (self._width, self._height), interpolation=cv2.INTER_AREA)
            yield cv2.cvtColor(small, cv2.COLOR_BGR2RGB)
            due = due + period if period else 0.0
