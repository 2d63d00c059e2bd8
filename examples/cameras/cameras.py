"""Many cameras, one NPU: every camera gets its share, old images are dropped instead of queued, results come in order.

python examples/cameras/cameras.py yolo.rknn --cameras 8 --rate 15
python examples/cameras/cameras.py grpc://board:8001/yolo --video rtsp://door/stream --video rtsp://yard/stream --urgent 1
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from camera import Camera, Frame
from rich.console import Console
from rich.live import Live
from rich.table import Table
from sources import DrawnSource, Source, VideoSource

from anynpu import InferenceSession, make_provider_options
from anynpu.errors import AnynpuError

Outputs = list[npt.NDArray[Any]]
Handler = Callable[[Camera, Frame, Outputs], object]


def open_session(model: str, device: str | None, cameras: int, depth: int) -> InferenceSession:
    """A session whose queue has space for what all cameras may have in flight, so that no camera waits for another to submit."""
    options = make_provider_options(layout="nhwc", max_queue_size=cameras * depth, enable_pacing=True)
    return InferenceSession(model, provider_options=[options], device=device)


def serve_camera(session: InferenceSession, camera: Camera, depth: int, handle: Handler) -> None:
    """Run the model on a camera's images until it ends; returns then.

    ``session.stream`` asks for an image when one of this camera's *depth* places is free, gives results in the order of the images,
    and lets those of urgent cameras go first. With one place an image is the newest there is at the moment when it is submitted.
    """
    name = session.get_inputs()[0].name
    flying: deque[Frame] = deque()

    def feeds() -> Iterator[dict[str, npt.NDArray[np.uint8]]]:
        for frame in camera.frames():
            flying.append(frame)
            yield {name: frame.picture[np.newaxis]}

    while True:
        try:
            for outputs in session.stream(feeds(), depth=depth, priority=camera.priority):
                frame = flying.popleft()
                camera.answer(frame)
                handle(camera, frame, outputs)
            return
        except AnynpuError as error:  # one image failed; what else was in flight is cancelled with it
            for _ in flying:
                camera.fail()
            flying.clear()
            camera.error = error
            if session.closed:
                return


def watch(
    session: InferenceSession,
    cameras: Sequence[Camera],
    seconds: float,
    depth: int,
    handle: Handler,
    show: bool,
    answers: float = math.inf,
) -> None:
    """Run all cameras for some seconds, until all have ended, or until each has so many answers, with a table of numbers meanwhile."""

    def goes_on() -> bool:
        enough = all(camera.figures().answered >= answers for camera in cameras)
        return time.monotonic() < end and not enough and any(worker.is_alive() for worker in workers)

    workers = [
        threading.Thread(target=serve_camera, args=(session, camera, depth, handle), name=f"model for {camera.name}", daemon=True)
        for camera in cameras
    ]
    for camera in cameras:
        camera.start()
    for worker in workers:
        worker.start()
    end = time.monotonic() + seconds
    try:
        with Live(figures(cameras), auto_refresh=False, transient=True, console=None if show else Console(quiet=True)) as live:
            while goes_on():
                time.sleep(min(0.5, max(0.0, end - time.monotonic())))
                live.update(figures(cameras), refresh=True)
    finally:
        for camera in cameras:
            camera.stop()
        for worker in workers:
            worker.join()


def figures(cameras: Sequence[Camera]) -> Table:
    """What became of the images of each camera."""
    table = Table("camera", "priority", "taken", "answered", "a second", "dropped", "failed", "latency ms", "worst ms", "error")
    for column in table.columns[1:-1]:
        column.justify = "right"
    for camera in cameras:
        now = camera.figures()
        table.add_row(
            camera.name,
            str(camera.priority),
            str(now.taken),
            str(now.answered),
            f"{now.rate:.1f}",
            str(now.dropped),
            str(now.failed),
            f"{now.latency_ms:.1f}",
            f"{now.worst_ms:.1f}",
            "" if camera.error is None else str(camera.error).splitlines()[0],
        )
    return table


def look(camera: Camera, frame: Frame, outputs: Outputs) -> None:
    """Your code: the outputs of the model for one image. Called in the order of the images of a camera, one at a time for each."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run one model on the images of many cameras.")
    parser.add_argument("model", help="a model file, or grpc://host:port/model")
    parser.add_argument("--device", help="sim:rk3588, rknn, ...; not for a model on a server")
    parser.add_argument("--video", action="append", default=[], help="an address that OpenCV opens; may be given several times")
    parser.add_argument("--cameras", type=int, default=4, help="how many cameras to draw if there is no --video")
    parser.add_argument("--rate", type=float, default=15.0, help="images a second of each drawn camera")
    parser.add_argument("--urgent", type=int, default=0, help="so many of the first cameras go before the others")
    parser.add_argument("--depth", type=int, default=1, help="images of one camera in flight; more than 1 if cores stay idle")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--answers", type=int, default=math.inf, help="end earlier, when each camera has so many")
    given = parser.parse_args(arguments)

    count = len(given.video) or given.cameras
    with open_session(given.model, given.device, count, given.depth) as session:
        _, height, width, _ = session.get_inputs()[0].shape
        sources: list[Source] = [VideoSource(address, height, width) for address in given.video]
        sources = sources or [DrawnSource(height, width, given.rate, 7 * number) for number in range(count)]
        cameras = [
            Camera(str(number), source, priority=-1 if number <= given.urgent else 0) for number, source in enumerate(sources, 1)
        ]
        console = Console(width=120)
        console.print(f"{count} cameras on {session.device}")
        watch(session, cameras, given.seconds, given.depth, look, show=console.is_terminal, answers=given.answers)
        console.print(figures(cameras))
        if not any(camera.figures().answered for camera in cameras):
            reasons = [f"camera {camera.name}: {camera.error}" for camera in cameras if camera.error is not None]
            sys.exit("\n".join(["no image was answered", *reasons]))


if __name__ == "__main__":
    main()
