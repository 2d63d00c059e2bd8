"""One camera: a thread that reads its source and keeps the newest image, and numbers about what became of them.

The reading thread writes the newest frame, the thread that runs the model takes it; ``_changed`` protects the frame, the counts and the
latencies. Reading ends when the source does, or at :meth:`Camera.stop`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from sources import Picture, Source


@dataclass(frozen=True)
class Frame:
    """An image, its number in the order of the camera, and when it was taken (``time.monotonic``)."""

    number: int
    picture: Picture
    taken: float


@dataclass(frozen=True)
class Figures:
    """What became of the images of a camera.

    :ivar taken: read from the source
    :ivar dropped: replaced by a newer one before the model was free
    :ivar answered: through the model
    :ivar failed: the model gave an error instead
    :ivar rate: answers a second
    :ivar latency_ms: from the camera to the answer: the median of the last answers
    :ivar worst_ms: the longest of them
    """

    taken: int
    dropped: int
    answered: int
    failed: int
    rate: float
    latency_ms: float
    worst_ms: float


class Camera:
    """Keeps the newest frame of a source.

    :param priority: of its frames among those that wait for a core; smaller goes first
    """

    def __init__(self, name: str, source: Source, priority: int = 0) -> None:
        self.name = name
        self.priority = priority
        self.error: Exception | None = None
        self._source = source
        self._changed = threading.Condition()
        self._newest: Frame | None = None
        self._ended = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"camera {name}", daemon=True)
        self._began = time.monotonic()
        self._taken = self._dropped = self._answered = self._failed = 0
        self._latencies: deque[float] = deque(maxlen=500)

    def start(self) -> None:
        """Begin to read."""
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Read no more; :meth:`frames` ends."""
        self._stop.set()
        self._thread.join()

    def frames(self) -> Iterator[Frame]:
        """The newest frame whenever somebody asks; waits if there is none that was not given yet."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._ended)
                frame, self._newest = self._newest, None
            if frame is None:
                return
            yield frame

    def answer(self, frame: Frame) -> None:
        """The model has answered a frame."""
        with self._changed:
            self._answered += 1
            self._latencies.append(time.monotonic() - frame.taken)

    def fail(self) -> None:
        """The model could not answer a frame."""
        with self._changed:
            self._failed += 1

    def figures(self) -> Figures:
        """As of now."""
        with self._changed:
            seconds = time.monotonic() - self._began
            latencies = sorted(self._latencies) or [0.0]
            return Figures(
                self._taken,
                self._dropped,
                self._answered,
                self._failed,
                self._answered / seconds,
                1000 * latencies[len(latencies) // 2],
                1000 * latencies[-1],
            )

    def _read(self) -> None:
        try:
            for number, picture in enumerate(self._source.pictures(self._stop)):
                with self._changed:
                    self._taken += 1
                    self._dropped += self._newest is not None
                    self._newest = Frame(number, picture, time.monotonic())
                    self._changed.notify_all()
        except Exception as error:  # of OpenCV, or of a source of the user: shown with the numbers
            self.error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
