"""The server: both protocols on one event loop, from its start to its end.

One thread owns everything: the event loop, the HTTP and the gRPC server, the repository and all counts. Sessions have threads of their own
and give their results to the loop. :meth:`Server.run` makes the calling thread that thread; :meth:`Server.start` makes a new one, so that a
program or a test can go on. ``_ended`` and ``_started`` are the only things that threads share.

Shutdown (SIGINT, SIGTERM, SIGHUP or :meth:`Server.stop`): the server states that it is not ready, takes no new connections and rejects new
requests, finishes what it has accepted, then unloads all models; all of it within ``drain_timeout`` seconds. A second signal ends it at
once. A process that is to end with the server ends when that time is over, whatever still runs in it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .._util import optional as _optional
from ..errors import ServeError
from .connection import Connections, Listener, connection_bound, listen
from .grpc_service import quiet_rpc, rpc_server
from .options import ServeOptions
from .rest_service import Application, Mount
from .service import Service

log = logging.getLogger("anynpu.serve")

_START_TIMEOUT = 300.0

_SETTLE = 1.0
"""Seconds of the time for the shutdown, or a tenth of it if that is less, in which nothing is waited for but models that close."""

_LAST_RESORT = 5.0
"""Seconds that Python's own way to end the process has, before the kernel ends it."""


class Server:
    """Serves models.

    :param models: ``PATH``, ``NAME=PATH``, ``NAME:VERSION=PATH``, or folders
    :param options: see :class:`ServeOptions`
    :param exits: the process has nothing else to do: when it is asked to end and the time for that is over, it ends, whatever still runs
    :param mounts: what HTTP offers besides the protocol

    >>> with Server(["yolo.rknn"], ServeOptions(port=0, grpc_port=0)) as server:             # doctest: +SKIP
    ...     print(server.http_address, server.grpc_address)
    """

    exit_grace = 0.0
    """Seconds beyond ``drain_timeout`` for what has to end behind the server, before the process ends in any case."""

    def __init__(
        self,
        models: Sequence[str | Path],
        options: ServeOptions | None = None,
        *,
        exits: bool = False,
        mounts: Sequence[Mount] = (),
    ) -> None:
        self.options = options or ServeOptions()
        self._models = tuple(str(model) for model in models)
        self.port = self.options.port
        self.grpc_port = self.options.grpc_port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._exits = exits
        self._mounts = tuple(mounts)

    @property
    def http_address(self) -> str:
        """Host and port of HTTP."""
        return f"{self.options.host}:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Host and port of gRPC; empty where there is none."""
        return "" if self.grpc_port is None else f"{self.options.host}:{self.grpc_port}"

    def run(self) -> None:
        """Serve until a signal or :meth:`stop`."""
        with quiet_rpc():
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
            with quiet_rpc():
                asyncio.run(self._serve(signals=False))
        except BaseException as error:  # it belongs to the thread that called start()
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self, signals: bool) -> None:
        options = self.options
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        listening = listen(options.host, options.port)
        try:
            self.port = listening.getsockname()[1]
            service = self._make_service()
            shared = Connections(options, service.limits, Application(service, self._mounts).handle)
            http = Listener(listening, shared, connection_bound(2 * options.max_connections))
            rpc = None
            if options.grpc_port is not None:
                rpc = rpc_server(service)
                self.grpc_port = _add_port(rpc, options)
            await service.repository.load_all()
            self._check_loaded(service)
        except BaseException:
            listening.close()
            raise
        if self._exits:
            # what is there now stays: looking through it at each collection would hold up all requests for tens of milliseconds
            gc.collect()
            gc.freeze()
        if signals:
            self._take_signals(http)
        sampling = asyncio.ensure_future(_sample(service))
        try:
            http.start()
            if rpc is not None:
                await rpc.start()
            service.ready = True
            log.info("serving on %s", self._addresses())
            for mount in self._mounts:
                log.info("%s: %s%s", mount.title, self._http(), mount.path)
            self._started.set()
            await self._stop.wait()
        finally:
            sampling.cancel()
            await self._end(service, http, rpc)

    def _http(self) -> str:
        return f"{'http' if self.options.certificate is None else 'https'}://{self.http_address}"

    def _addresses(self) -> str:
        http = self._http()
        return http if self.grpc_port is None else f"{http} and grpc://{self.grpc_address}"

    def _check_loaded(self, service: Service) -> None:
        """A process that is to serve models, and has none of them, ends. One with an empty folder waits for models that are put there."""
        if service.repository.models():
            return
        if self._exits and service.repository.problems():
            raise ServeError("no model could be loaded, so there is nothing to serve", hint="the log above has the reason")
        if not self._mounts:
            log.warning("no model is loaded yet: nothing is served until a client loads one")

    def _make_service(self) -> Service:
        return Service(self._models, self.options)

    async def _end(self, service: Service, http: Listener, rpc: Any) -> None:
        service.ending = True
        seconds = self.options.drain_timeout
        log.info("shutting down; accepted requests are finished within %g s", seconds)
        seconds -= min(_SETTLE, seconds / 10)
        ends = [http.end(seconds)]
        if rpc is not None:
            ends.append(rpc.stop(seconds))
        await asyncio.gather(*ends, *(mount.close() for mount in self._mounts), return_exceptions=True)
        await service.repository.close()
        service.regions.close()
        service.json_worker.shutdown(wait=False, cancel_futures=True)
        if service.traces is not None:
            await asyncio.to_thread(service.traces.close)
        log.info("ended")

    def _take_signals(self, http: Listener) -> None:
        assert self._loop is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # a hangup that the user ignores (nohup) or has a use for (a cluster) is not ours
            if number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:
                self._loop.add_signal_handler(number, self._signalled, http)

    def _signalled(self, http: Listener) -> None:
        assert self._stop is not None
        if self._stop.is_set():
            http.cut_off()
        elif self._exits:
            seconds = self.options.drain_timeout + self.exit_grace
            threading.Thread(target=_exit_after, args=(seconds,), name="anynpu exit", daemon=True).start()
            # also if some library keeps all threads of Python from running
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds + _LAST_RESORT)
        self._stop.set()


def _exit_after(seconds: float) -> None:
    """End the process if it has not ended by then."""
    threading.Event().wait(seconds)
    log.error("not ended within %g s: something does not stop; the process ends without it", seconds)
    for handler in (*log.handlers, *logging.getLogger("anynpu").handlers):
        handler.flush()
    os._exit(1)


async def _sample(service: Service) -> None:
    """Keep the history of the models."""
    while True:
        service.metrics.sample()
        await asyncio.sleep(1.0)


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
