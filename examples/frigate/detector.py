"""A detector for Frigate: answers its ``zmq`` detectors with what a model on the NPU finds.

python examples/frigate/detector.py yolov8n.rknn --decoder yolov8 --endpoint tcp://127.0.0.1:5555
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import zmq
import zmq.asyncio
from decode import DECODERS, detections
from messages import (
    BadRequest,
    ModelFile,
    ModelQuestion,
    Picture,
    detections_answer,
    file_answer,
    model_answer,
    no_detections,
    read_request,
)

from anynpu import InferenceSession, make_provider_options
from anynpu.errors import AnynpuError

log = logging.getLogger("frigate-detector")

MAX_MESSAGE = 64 * 2**20


class Detector:
    """Answers requests with a session.

    :param name: of the model, as Frigate's configuration has it; the ending does not count
    :param timeout: seconds after which Frigate does not wait any more
    """

    def __init__(
        self,
        session: InferenceSession,
        name: str,
        decoder: str,
        *,
        threshold: float = 0.4,
        overlap: float = 0.5,
        timeout: float = 0.2,
    ) -> None:
        self._session = session
        self._name = PurePath(name).stem
        self._decoder = decoder
        self._threshold = threshold
        self._overlap = overlap
        self._timeout = timeout
        self._input = session.get_inputs()[0].name

    async def answer(self, frames: Sequence[bytes]) -> list[bytes]:
        """The answer to a message, whatever it is: who asks would wait for ever otherwise."""
        try:
            request = read_request(frames)
            if isinstance(request, ModelQuestion):
                return model_answer(self._is_mine(request.name))
            if isinstance(request, ModelFile):
                log.warning("Frigate sent the model %s; models are not taken from the network", request.name)
                return file_answer(False)
            return detections_answer(await self._detect(request))
        except (BadRequest, AnynpuError) as error:
            log.warning("no detections: %s", error)
            return no_detections(str(error))
        except Exception as error:
            log.exception("no detections")
            return no_detections(f"the detector failed: {type(error).__name__}")

    async def _detect(self, request: Picture) -> Any:
        shape = request.tensor.shape
        outputs = await self._session.arun(None, {self._input: request.tensor}, timeout=self._timeout)
        height, width = shape[2:] if shape[1] == 3 else shape[1:3]
        return detections(self._decoder, outputs, height, width, self._threshold, self._overlap)

    def _is_mine(self, name: str) -> bool:
        mine = PurePath(name).stem == self._name
        if not mine:
            log.warning("Frigate is configured for the model %s, and this is %s", name, self._name)
        return mine


async def serve(detector: Detector, endpoint: str, stop: asyncio.Event) -> None:
    """Answer until *stop*. Several of Frigate's detectors may ask at a time: their images run on several cores."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
    socket.bind(endpoint)
    log.info("answering at %s", endpoint)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(message: list[bytes]) -> None:
        sender, frames = message[:2], message[2:]  # whose request it is, and an empty frame, which REQ sockets send and expect
        await socket.send_multipart([*sender, *await detector.answer(frames)])

    stopped = asyncio.ensure_future(stop.wait())
    try:
        while True:
            receiving = asyncio.ensure_future(socket.recv_multipart())
            await asyncio.wait({receiving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                break
            task = asyncio.ensure_future(handle(receiving.result()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.wait(tasks, timeout=1)
    finally:
        socket.close()
        context.term()


async def run(detector: Detector, endpoint: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(detector, endpoint, stop)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Find objects for Frigate.")
    parser.add_argument("model", help="a model file, or grpc://host:port/model")
    parser.add_argument("--endpoint", default="ipc:///tmp/cache/zmq_detector", help="as in Frigate's configuration")
    parser.add_argument("--decoder", choices=sorted(DECODERS), default="yolov8", help="what the outputs of the model are")
    parser.add_argument("--name", help="of the model in Frigate's configuration; default: that of the file")
    parser.add_argument("--device", help="sim:rk3588, rknn, ...; not for a model on a server")
    parser.add_argument("--threshold", type=float, default=0.4, help="lowest score")
    parser.add_argument("--overlap", type=float, default=0.5, help="of two objects of a class that share more, one counts")
    parser.add_argument("--timeout", type=float, default=0.2, help="seconds; as request_timeout_ms in Frigate's configuration")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    options = make_provider_options(layout="any", watchdog_ms=5000)
    with InferenceSession(given.model, provider_options=[options], device=given.device) as session:
        log.info("running on %s", session.device)
        detector = Detector(
            session,
            given.name or given.model,
            given.decoder,
            threshold=given.threshold,
            overlap=given.overlap,
            timeout=given.timeout,
        )
        asyncio.run(run(detector, given.endpoint))


if __name__ == "__main__":
    main()
