"""The server: both protocols on one event loop, from its start to its end.

One thread owns everything: the event loop, the HTTP and the gRPC server, the repository and all counts. Sessions have threads of their own
and give their results to the loop. :meth:`Server.run` makes the calling thread that thread; :meth:`Server.start` makes a new one, so that a
program or a test can go on. ``_ended`` and ``_started`` are the only things that threads share.

Ending (SIGINT, SIGTERM or :meth:`Server.stop`): the server says that it is not ready, takes no new connections and refuses new requests,
finishes what it has accepted for at most ``drain_timeout`` seconds, then unloads all models. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import _optional
from ..errors import ServeError
from .connection import protocol_class
from .http import application
from .options import ServeOptions
from .rpc import rpc_server
from .service import Service

__all__ = ["Server"]

log = logging.getLogger("anynpu.serve")

_START_TIMEOUT = 300.0

KEEP_ALIVE = 75
"""Seconds that an idle connection stays: a camera that sends a picture now and then must not find it closed."""


class Server:
    """Serves models.

    :param models: ``PATH``, ``NAME=PATH``, ``NAME:VERSION=PATH``, or folders
    :param options: see :class:`ServeOptions`

    >>> with Server(["yolo.rknn"], ServeOptions(port=0, grpc_port=0)) as server:             # doctest: +SKIP
    ...     print(server.http_address, server.grpc_address)
    """

    def __init__(self, models: Sequence[str | Path], options: ServeOptions | None = None) -> None:
        self.options = options or ServeOptions()
        self._models = tuple(str(model) for model in models)
        self.port = self.options.port
        self.grpc_port = self.options.grpc_port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def http_address(self) -> str:
        """Host and port of HTTP."""
        return f"{self.options.host}:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Host and port of gRPC."""
        return f"{self.options.host}:{self.grpc_port}"

    def run(self) -> None:
        """Serve until a signal or :meth:`stop`."""
        asyncio.run(self._serve(signals=threading.current_thread() is threading.main_thread()))

    def start(self) -> None:
        """Serve in a thread of its own; returns when the models are loaded."""
        self._thread = threading.Thread(target=self._run_thread, name="anynpu server", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_TIMEOUT):
            raise ServeError(f"the server did not start within {_START_TIMEOUT:g} s", hint="look at its log")
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self, timeout: float | None = None) -> None:
        """End the server and wait for it. From any thread but its own; may be called twice."""
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                log.debug("the event loop has ended already")
        if self._thread is not None:
            self._thread.join(timeout)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._serve(signals=False))
        except BaseException as error:  # it belongs to the thread that called start()
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self, signals: bool) -> None:
        options = self.options
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        http_socket = _listen(options.host, options.port)
        try:
            self.port = http_socket.getsockname()[1]
            service = self._make_service()
            http = _http_server(service)
            rpc = None
            if options.grpc_port is not None:
                rpc = rpc_server(service)
                self.grpc_port = _add_port(rpc, options)
            await service.repository.load_all()
        except BaseException:
            http_socket.close()
            raise
        if signals:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._signalled, http)
        serving = asyncio.ensure_future(http.serve(sockets=[http_socket]))
        sampling = asyncio.ensure_future(_sample(service))
        try:
            if rpc is not None:
                await rpc.start()
            while not (http.started or serving.done()):  # uvicorn tells it in no other way
                await asyncio.sleep(0.001)
            service.ready = True
            log.info("serving on http://%s and grpc://%s", self.http_address, self.grpc_address)
            self._started.set()
            await asyncio.wait({serving, asyncio.ensure_future(self._stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sampling.cancel()
            await self._end(service, http, rpc, serving)

    def _make_service(self) -> Service:
        return Service(self._models, self.options)

    async def _end(self, service: Service, http: Any, rpc: Any, serving: asyncio.Future[None]) -> None:
        service.ending = True
        log.info("ending; what was accepted is finished within %g s", self.options.drain_timeout)
        http.should_exit = True
        ends = [serving]
        if rpc is not None:
            ends.append(asyncio.ensure_future(rpc.stop(self.options.drain_timeout)))
        await asyncio.gather(*ends, return_exceptions=True)
        await service.repository.close()
        service.regions.close()
        if service.traces is not None:
            await asyncio.to_thread(service.traces.close)
        log.info("ended")

    def _signalled(self, http: Any) -> None:
        assert self._stop is not None
        if self._stop.is_set():
            http.force_exit = True
        self._stop.set()


async def _sample(service: Service) -> None:
    """Keep the history of the models."""
    while True:
        service.metrics.sample()
        await asyncio.sleep(1.0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that say that they are TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        return listener
    except OSError as error:
        listener.close()
        raise ServeError(f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --host or --port") from None


def _http_server(service: Service) -> Any:
    uvicorn = _optional.uvicorn()
    options = service.options

    base: Any = uvicorn.Server

    class QuietServer(base):  # type: ignore[misc]
        """uvicorn's server without its handling of signals: ours ends both protocols."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = uvicorn.Config(
        application(service),
        http=protocol_class(options, service.limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.drain_timeout)),
        ssl_certfile=None if options.certificate is None else str(options.certificate),
        ssl_keyfile=None if options.private_key is None else str(options.private_key),
    )
    return QuietServer(config)


def _add_port(rpc: Any, options: ServeOptions) -> int:
    address = (
        f"[{options.host.strip('[]')}]:{options.grpc_port}" if ":" in options.host else f"{options.host}:{options.grpc_port}"
    )
    try:
        if options.certificate is None or options.private_key is None:
            port: int = rpc.add_insecure_port(address)
        else:
            pair = options.private_key.read_bytes(), options.certificate.read_bytes()
            port = rpc.add_secure_port(address, _optional.grpc().ssl_server_credentials([pair]))
    except (OSError, RuntimeError) as error:
        raise ServeError(f"gRPC cannot listen on {address}: {error}", hint="choose another --grpc-port") from None
    return port
