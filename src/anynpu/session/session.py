"""The session: the public calls, each of which checks its arguments and hands a request to the runner.

A session holds no lock and no thread; its runner does. It may be used by any number of threads at once, from callbacks too.
"""

from __future__ import annotations

import atexit
import logging
import operator
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from os import PathLike
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import CallbackError, DeviceTimeout, OptionError, OptionTypeError, SessionError, SessionModelError, SubmitTimeout
from .backend import Backend, DeviceFactory
from .binding import IOBinding
from .devices import is_remote, open_backend
from .feeds import Feed, FeedReader, split_batch
from .machine import Machine
from .nodes import ModelMetadata, NodeArg, native_node, node, output_types, wanted_outputs
from .options import SessionOptions, dispatches_batch, parse_options
from .protocol.trace_context import trace_headers
from .request import Callback, Job, Request, Results, let_go
from .runner import Pacer, Runner
from .statistics import RunTimes, Statistics, trace_events, write_trace

# What ends sessions that are not closed: forgotten ones, those alive at the end of the interpreter, those of a forked parent.
#
# A forgotten session is closed by a thread of its own kind, the reaper: the last reference may go anywhere, in the middle of a garbage
# collection too, where taking any lock could wait for ever. The finalizer therefore only puts the runner on a queue whose ``put`` is made
# for that. New sessions wait while too many forgotten ones are on the queue, so that memory stays bounded.
#
# The reaper and the two hooks (at exit, after a fork) come into being with the first session of a process; importing changes nothing. The
# module's lock protects their creation; the set of live runners is weak.


BACKLOG = 8
"""Forgotten sessions that may wait to be closed before a new one is opened."""

AT_EXIT = 5.0
"""Seconds that requests which run at the end of the interpreter are waited for."""

_lock = threading.Lock()
_live: weakref.WeakSet[Runner] = weakref.WeakSet()
_forgotten: queue.SimpleQueue[Runner] = queue.SimpleQueue()
_reaper: threading.Thread | None = None
_hooked = False
_left_behind: list[Runner] = []
"""In a forked child, what is the parent's: never closed, since the threads that would have to end are not here."""


class Keeper:
    """Ties the end of a session to the end of its runner."""

    def __init__(self, owner: object, runner: Runner) -> None:
        self._finalizer = weakref.finalize(owner, _forgotten.put, runner)
        self._finalizer.atexit = False  # the hook at exit closes in the right order

    def done(self) -> None:
        """The runner was closed by hand."""
        self._finalizer.detach()


def keep(owner: object, runner: Runner) -> Keeper:
    """See to it that *runner* is closed when *owner* is forgotten or the interpreter ends."""
    global _reaper, _hooked
    with _lock:
        if not _hooked:
            _hooked = True
            atexit.register(_at_exit)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_after_fork)
        if _reaper is None:
            _reaper = threading.Thread(target=_reap, name="anynpu session reaper", daemon=True)
            _reaper.start()
        _live.add(runner)
    return Keeper(owner, runner)


def make_room() -> None:
    """Wait until few forgotten sessions are left to close; not for one that hangs."""
    limit = time.monotonic() + 1.0
    while _forgotten.qsize() > BACKLOG and threading.current_thread() is not _reaper and time.monotonic() < limit:
        time.sleep(0.0005)


def _reap() -> None:
    while True:
        runner = _forgotten.get()
        if not runner.close(timeout=AT_EXIT):
            runner.give_up()
        del runner


def _at_exit() -> None:
    limit = time.monotonic() + AT_EXIT
    for runner in list(_live):
        runner.close(timeout=max(0.0, limit - time.monotonic()))


def _after_fork() -> None:
    global _lock, _reaper, _forgotten, _live
    _lock = threading.Lock()
    _reaper = None
    _forgotten = queue.SimpleQueue()
    for runner in list(_live):
        runner.abandon_after_fork()
        _left_behind.append(runner)
    _live = weakref.WeakSet()


# Requests in flight for a caller who takes results in order: ``run_pipeline``, ``drain`` and ``stream``.
#
# A :class:`PipelineTicket` is a request and the lock that is released when it is done. A :class:`Pipeline` belongs to one session;
# its lock protects the tickets, and is not held while anything waits.


class PipelineTicket:
    """A posted request whose result a caller will take."""

    __slots__ = ("_lock", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self._lock = threading.Lock()
        self._lock.acquire()
        request.notify = self._done

    def _done(self, request: Request) -> None:
        let_go(self._lock)

    def take(self, timeout: float | None = None) -> Results:
        """Wait for the result, or raise what went wrong. Once."""
        self.wait(timeout)
        return taken(self.request)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; whether it is a good one. The result is still there to be taken."""
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            raise DeviceTimeout(f"no result within {timeout:g} s", hint="wait longer, or look at what else uses the device")
        self._lock.release()
        return self.request.error is None


def taken(request: Request) -> Results:
    """The result of a finished request, or its error raised."""
    error, request.error = request.error, None
    if error is None:
        return request.outcome or []
    try:
        raise error
    finally:
        del error  # the traceback refers to this frame


class Pipeline:
    """The tickets of ``run_pipeline``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: deque[PipelineTicket] = deque()
        self._depth = 0

    def push(self, session: InferenceSession, input_feed: Any, depth: int, reset: bool) -> Results | None:
        """Submit, and give the result of the request that is now more than *depth* behind."""
        try:
            number = operator.index(depth)
        except TypeError:
            number = -1
        if number < 0:
            raise OptionTypeError(f"the pipeline depth must be a positive integer, got {depth!r}", hint="for example depth=3")
        if number == 0:
            raise SessionError("the pipeline depth must be greater than 0, got 0", hint="for example depth=3")
        depth = number
        ticket = session._ticket(None, input_feed)
        with self._lock:
            if reset or depth != self._depth:
                old, self._tickets = self._tickets, deque()
                self._depth = depth
            else:
                old = deque()
            self._tickets.append(ticket)
            due = self._tickets.popleft() if len(self._tickets) > depth else None
        for pending in old:
            session._runner.cancel(pending.request)
        return None if due is None else due.take()

    def drain(self, timeout: float | None = None) -> list[Results]:
        """The results that are still to come, in order, up to one that failed; if that is the first, its error is raised. The next
        call goes on after that. Nothing is lost if *timeout* is too short."""
        with self._lock:
            tickets = tuple(self._tickets)
        good = 0
        for ticket in tickets:
            if not ticket.wait(timeout):
                break
            good += 1
        with self._lock:
            count = max(1, good) if tickets else 0
            due = [self._tickets.popleft() for _ in range(min(count, len(self._tickets)))]
            if not self._tickets:
                self._depth = 0
        return [ticket.take() for ticket in due]


def stream(
    session: InferenceSession, feeds: Iterable[Any], depth: int, ordered: bool, output_names: object, options: dict[str, Any]
) -> Iterator[Results]:
    """Results for *feeds*, with *depth* requests in flight."""
    if ordered:
        tickets: deque[PipelineTicket] = deque()
        try:
            for feed in feeds:
                tickets.append(session._ticket(output_names, feed, **options))
                if len(tickets) >= depth:
                    yield tickets.popleft().take()
            while tickets:
                yield tickets.popleft().take()
        finally:
            for ticket in tickets:
                session._runner.cancel(ticket.request)
        return
    finished: queue.SimpleQueue[Request] = queue.SimpleQueue()
    flying: set[Request] = set()
    try:
        for feed in feeds:
            flying.add(session._notified(output_names, feed, finished.put, **options))
            if len(flying) >= depth:
                yield _arrived(finished, flying)
        while flying:
            yield _arrived(finished, flying)
    finally:
        for request in flying:
            session._runner.cancel(request)


def _arrived(finished: queue.SimpleQueue[Request], flying: set[Request]) -> Results:
    while (request := finished.get()) not in flying:  # notified of it twice, after an interrupt
        pass
    flying.remove(request)
    return taken(request)


log = logging.getLogger("anynpu.session")

OVERFLOWS = ("wait", "fail", "drop_oldest")

AFTER_ERROR_SECONDS = 30.0
"""How long the end of a ``with`` block waits for the device after an exception, Ctrl-C among them."""


class InferenceSession:
    """Runs a model, as onnxruntime's class of the same name does, and uses every core of the NPU.

    :param path_or_bytes: the model file, or its contents, or a model on a server: ``grpc://board:8001/yolo``
    :param sess_options: accepted for onnxruntime's sake; nothing in it applies
    :param providers: None, or one execution provider: its name, or ``(name, options)``
    :param provider_options: what :func:`make_provider_options` gives
    :param use_weight_from: a session of the same network, whose weights serve this one too
    :param device: where to run: ``sim:rk3588``, ``rknn`` ...; None asks ``ANYNPU_DEVICE`` and then the machine
    :param kwargs: accepted for onnxruntime's sake; nothing in it applies

    >>> with InferenceSession("yolo.rknn") as session:                                   # doctest: +SKIP
    ...     boxes, scores = session.run(None, {"images": frame})
    ...     for boxes, scores in session.stream(camera):
    ...         ...
    """

    _backend: Backend
    _layout_last: bool

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes,
        sess_options: object = None,
        providers: object = None,
        provider_options: object = None,
        *,
        use_weight_from: InferenceSession | None = None,
        device: str | DeviceFactory | None = None,
        **kwargs: object,
    ) -> None:
        options = parse_options(providers, provider_options)
        if kwargs:
            log.debug("ignored: %s", ", ".join(kwargs))
        model = _model(path_or_bytes)
        lender = _lender(use_weight_from, options)
        make_room()
        backend = open_backend(model, options, device, None if lender is None else lender._backend)
        try:
            self._backend = backend
            self._options = options
            self._lender = lender  # must outlive this session
            self._reader = FeedReader(backend.inputs, backend.shape_sets, options.layout, getattr(backend, "grow", None))
            self._types = output_types(backend.outputs, options.output_type)
            self._all = tuple(range(len(backend.outputs)))
            self._output_numbers = {spec.name: number for number, spec in enumerate(backend.outputs)}
            self._layout_last = options.layout in ("nhwc", "any")
            self._remote = is_remote(model)
            self._pipeline = Pipeline()
            self._runner = _runner(backend, options)
        except BaseException:
            backend.close()
            raise
        try:
            explicit = options.schedule is not None or options.tp_mode is not None
            self._runner.open(at_once=explicit or not backend.lanes_on_demand)
        except BaseException:
            self._runner.close(timeout=0)
            raise
        self._keeper = keep(self, self._runner)

    # -- what the model is

    @property
    def device(self) -> str:
        """What the session runs on, for example ``software NPU, rk3588, 3 cores``."""
        return self._backend.description

    @property
    def backend(self) -> Backend:
        """The model on its device, as the session drives it."""
        return self._backend

    @property
    def cores(self) -> int:
        """How many cores the device has."""
        return self._backend.cores

    @property
    def input_names(self) -> list[str]:
        return [spec.name for spec in self._backend.inputs]

    @property
    def output_names(self) -> list[str]:
        return [spec.name for spec in self._backend.outputs]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs as ``run`` takes them."""
        return [node(spec, self._layout_last) for spec in self._backend.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs as ``run`` gives them; ``type`` is the type inside the model (see the option ``output_type``)."""
        return [node(spec, False) for spec in self._backend.outputs]

    def get_native_inputs(self) -> list[NodeArg]:
        """The inputs as they lie in the device's memory."""
        return [native_node(spec) for spec in self._backend.native_inputs]

    def get_native_outputs(self) -> list[NodeArg]:
        """The outputs as they lie in the device's memory."""
        return [native_node(spec) for spec in self._backend.native_outputs]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model states about itself: the ONNX model's ``metadata_props``, names and version."""
        return ModelMetadata.of_entries(self._backend.metadata)

    def get_providers(self) -> list[str]:
        """The execution provider."""
        return [self._backend.provider]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options that the session was given, by provider; :attr:`options` has all that are in force."""
        return {self._backend.provider: dict(self._options.given)}

    @property
    def options(self) -> SessionOptions:
        """The options in force."""
        return self._options

    # -- one request

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        run_options: object = None,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Results:
        """Run and wait. On an idle core the calling thread does all of it.

        :param output_names: None or empty for all
        :param input_feed: arrays by name, a list in the order of the model, or one array
        :param run_options: ``{"ztu_modelrt_dispatch_batch": True}`` spreads a batch over the cores
        :param core: a core by number, instead of the session's choice
        :param priority: among waiting requests; smaller goes first
        :param timeout: seconds for all of it
        """
        if run_options is not None and dispatches_batch(run_options):
            return self._run_batch(output_names, input_feed, core, priority, timeout)
        feed = self._reader.read(input_feed, False)
        if output_names is None and not self._remote:
            request = Request(feed, self._all, self._types, limit=timeout, priority=priority)
        else:
            request = self._request(output_names, feed, priority, timeout)
        self._runner.run(request, core)
        if request.error is not None:
            return taken(request)
        return request.outcome or []

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        callback: Callback,
        user_data: object = None,
        run_options: object = None,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
        overflow: str = "wait",
    ) -> None:
        """Run in the background; *callback* is called with ``(results, user_data, err)``.

        On success ``err`` is ``""``; on failure ``results`` is None. Callbacks come one at a time, in the order of submission unless
        ``sequential_callbacks`` is false, and may use the session.

        :param overflow: if the queue is full: ``wait``, ``drop_oldest`` (whose callback gets an error), or ``fail``
        """
        if not callable(callback):
            raise CallbackError(
                f"callback must be callable, got {type(callback).__name__}", hint="pass a function of three arguments"
            )
        if dispatches_batch(run_options):
            raise SessionError(
                "run_async does not spread a batch over the cores", hint="submit the samples one by one, or use run"
            )
        request = self._request(output_names, self._reader.read(input_feed, self._options.copy_inputs), priority, timeout)
        request.callback = callback
        request.user_data = user_data
        if not self._runner.post(request, core, _overflow(overflow)):
            raise SubmitTimeout("the queue is full", hint="wait for results, or pass overflow='wait'")

    def submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
        overflow: str = "wait",
    ) -> Job:
        """Run in the background; gives a ``concurrent.futures.Future``.

        :param timeout: seconds until the request must be done, waiting included
        :param overflow: if the queue is full: ``wait``, ``drop_oldest`` (whose future is cancelled), or ``fail``
        """
        job = self._post_job(output_names, input_feed, core, priority, timeout, _overflow(overflow))
        if job is None:
            raise SubmitTimeout("the queue is full", hint="wait for results, or pass overflow='wait'")
        return job

    def try_submit(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Job | None:
        """As :meth:`submit`, but None at once if the queue is full."""
        return self._post_job(output_names, input_feed, core, priority, timeout, "fail")

    async def arun(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Results:
        """Run, awaited. The event loop is never blocked, not by a full queue either; cancelling the task cancels the request."""
        return taken(await self._awaited(output_names, input_feed, core, priority, timeout))

    async def arun_timed(
        self,
        output_names: Sequence[str] | None,
        input_feed: object,
        *,
        core: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> tuple[Results, RunTimes]:
        """As :meth:`arun`, with where the time went."""
        request = await self._awaited(output_names, input_feed, core, priority, timeout)
        return taken(request), RunTimes.of(request)

    # -- many requests

    def run_pipeline(self, input_feed: object, depth: int = 3, reset: bool = False) -> Results | None:
        """Submit, and give the result of the request submitted *depth* calls before; None for the first *depth* calls.

        :param reset: begin again; requests of before are cancelled
        """
        return self._pipeline.push(self, input_feed, depth, reset)

    def drain(self, timeout: float | None = None) -> list[Results]:
        """The results that ``run_pipeline`` still owes, in order.

        :param timeout: seconds for each
        """
        return self._pipeline.drain(timeout)

    def stream(
        self,
        feeds: Iterable[object],
        depth: int | None = None,
        ordered: bool = True,
        *,
        output_names: Sequence[str] | None = None,
        core: int | None = None,
        priority: int = 0,
    ) -> Iterator[Results]:
        """Results for an iterable of feeds, with *depth* requests in flight (default: two for each device worker).

        Feeds are taken as results are; an error of a request is raised in its place. Leaving the loop early cancels what is in flight.

        :param ordered: results in the order of the feeds; else as they come
        """
        if depth is None:
            depth = 2 * self._runner.machine.lanes
        if isinstance(depth, bool) or not isinstance(depth, int) or depth <= 0:
            raise SessionError(
                f"the depth of a stream must be greater than 0, got {depth!r}", hint="leave it out for the default"
            )
        return stream(self, feeds, depth, ordered, output_names, {"core": core, "priority": priority})

    # -- memory of the caller's choice

    def io_binding(self) -> IOBinding:
        """A binding for this session, which it keeps alive."""
        return IOBinding(self)

    def run_with_iobinding(
        self, io_binding: IOBinding, run_options: object = None, *, core: int | None = None, timeout: float | None = None
    ) -> None:
        """Run on bound memory and wait."""
        request = self._bound_request(io_binding, timeout)
        try:
            self._runner.run(request, core)
        finally:
            io_binding.end()
        taken(request)

    def submit_with_iobinding(
        self, io_binding: IOBinding, *, core: int | None = None, timeout: float | None = None
    ) -> Future[Results]:
        """Run on bound memory in the background. The future's result is an empty list: the results are in the bound memory."""
        request = self._bound_request(io_binding, timeout)
        job = Job(self._runner, request)
        request.future = job
        job.add_done_callback(lambda _: io_binding.end())
        try:
            self._runner.post(request, core)
        except BaseException:
            io_binding.end()
            raise
        return job

    def run_async_with_iobinding(
        self, io_binding: IOBinding, callback: Callback, user_data: object = None, *, core: int | None = None
    ) -> None:
        """Run on bound memory in the background; *callback* is called as that of :meth:`run_async`, with an empty list."""
        if not callable(callback):
            raise CallbackError(
                f"callback must be callable, got {type(callback).__name__}", hint="pass a function of three arguments"
            )
        request = self._bound_request(io_binding, None)

        def ended(results: Any, data: Any, error: str) -> None:
            io_binding.end()
            callback([] if results is None and not error else results, data, error)

        request.callback = ended
        request.user_data = user_data
        try:
            self._runner.post(request, core)
        except BaseException:
            io_binding.end()
            raise

    # -- how it goes

    @property
    def statistics(self) -> Statistics:
        """What the session has done, as of now."""
        runner = self._runner
        device_ms: float | None = getattr(self._backend, "device_ms", None)
        return runner.recorder.statistics(runner.slots(), runner.waiting(), runner.machine.running, device_ms)

    def trace(self) -> list[dict[str, Any]]:
        """The last requests as trace events."""
        return trace_events(self._runner.recorder.entries(), self.device)

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write the last requests as a file that https://ui.perfetto.dev opens."""
        write_trace(path, self._runner.recorder.entries(), self.device)

    @property
    def on_callback_error(self) -> Callable[[BaseException], object] | None:
        """Called with what a callback raised, besides logging it."""
        return self._runner.on_callback_error

    @on_callback_error.setter
    def on_callback_error(self, hook: Callable[[BaseException], object] | None) -> None:
        self._runner.on_callback_error = hook

    # -- the end

    @property
    def closed(self) -> bool:
        return self._runner.closed

    def close(self, finish: bool = False, timeout: float | None = None) -> None:
        """End the session. Waiting requests get :class:`~anynpu.errors.DeviceClosed`; running ones are stopped if the device can, else
        awaited. May be called twice, from any thread, in a callback.

        :param finish: let waiting requests run first
        :param timeout: seconds to wait for the device; device workers that come back later are closed then
        """
        self._runner.close(finish, timeout)
        self._keeper.done()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(finish=kind is None, timeout=None if kind is None else AFTER_ERROR_SECONDS)

    def __repr__(self) -> str:
        return f"<InferenceSession on {self.device}{', closed' if self.closed else ''}>"

    # -- inside

    def _request(self, output_names: object, feed: Feed, priority: int, timeout: float | None) -> Request:
        if self._remote:
            feed.headers = trace_headers()  # here, since device workers have threads of their own
        if output_names is None:
            return Request(feed, self._all, self._types, limit=timeout, priority=priority)
        wanted = wanted_outputs(output_names, self._backend.outputs)
        return Request(feed, wanted, [self._types[number] for number in wanted], limit=timeout, priority=priority)

    async def _awaited(
        self, output_names: object, input_feed: object, core: int | None, priority: int, timeout: float | None
    ) -> Request:
        """A request that is done."""
        import asyncio  # takes a while, and who awaits has it

        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not answer.done():
                answer.set_result(None)

        def notify(_: Request) -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                log.debug("a result came after its event loop was closed")

        request = self._request(output_names, self._reader.read(input_feed, self._options.copy_inputs), priority, timeout)
        request.notify = notify
        self._runner.post(request, core, "later")
        try:
            await answer
        except asyncio.CancelledError:
            self._runner.cancel(request)
            raise
        return request

    def _post_job(
        self, output_names: object, input_feed: object, core: int | None, priority: int, timeout: float | None, overflow: str
    ) -> Job | None:
        request = self._request(output_names, self._reader.read(input_feed, self._options.copy_inputs), priority, timeout)
        job = request.future = Job(self._runner, request)
        return job if self._runner.post(request, core, overflow) else None

    def _ticket(self, output_names: object, input_feed: object, *, core: int | None = None, priority: int = 0) -> PipelineTicket:
        request = self._request(output_names, self._reader.read(input_feed, self._options.copy_inputs), priority, None)
        ticket = PipelineTicket(request)
        self._runner.post(request, core)
        return ticket

    def _notified(
        self,
        output_names: object,
        input_feed: object,
        notify: Callable[[Request], None],
        *,
        core: int | None = None,
        priority: int = 0,
    ) -> Request:
        request = self._request(output_names, self._reader.read(input_feed, self._options.copy_inputs), priority, None)
        request.notify = notify
        self._runner.post(request, core)
        return request

    def _run_batch(
        self, output_names: object, input_feed: object, core: int | None, priority: int, timeout: float | None
    ) -> Results:
        tickets: list[PipelineTicket] = []
        try:
            for sample in split_batch(self._reader, input_feed):
                request = self._request(output_names, self._reader.read(sample, False), priority, timeout)
                ticket = PipelineTicket(request)
                self._runner.post(request, core)
                tickets.append(ticket)
            parts = [ticket.take() for ticket in tickets]
        except BaseException:
            for ticket in tickets:
                self._runner.cancel(ticket.request)
            raise
        return [np.concatenate(pieces) if pieces[0].ndim else np.stack(pieces) for pieces in zip(*parts, strict=True)]

    def _bound_request(self, io_binding: IOBinding, timeout: float | None) -> Request:
        if io_binding._session is not self:
            raise SessionError("IoBinding belongs to a different session", hint="make it with this session's io_binding()")
        return Request(None, limit=timeout, bound=io_binding.begin())


def _model(path_or_bytes: object) -> str | PathLike[str] | bytes:
    if isinstance(path_or_bytes, bytearray | memoryview):
        path_or_bytes = bytes(path_or_bytes)
    if isinstance(path_or_bytes, bytes):
        if not path_or_bytes:
            raise SessionModelError("model data must not be empty", hint="pass the contents of a model file")
        return path_or_bytes
    if not isinstance(path_or_bytes, str | PathLike):
        raise SessionModelError(
            f"path_or_bytes must be a path-like object or string: a model is a path or bytes, not {type(path_or_bytes).__name__}",
            hint="pass the path of a model file, or its contents; what compile() gives is saved first: model.save('model.rknn')",
        )
    path = os.fspath(path_or_bytes)
    if is_remote(path):
        return path
    if os.path.isdir(path):
        raise SessionModelError(f"Unable to open model: {path} is a folder", hint="pass the path of a model file")
    if not os.path.isfile(path):
        raise SessionModelError(
            f"Unable to open model: there is no model file {path}", hint=f"look at the path; the current folder is {os.getcwd()}"
        )
    return path_or_bytes


def _lender(session: object, options: SessionOptions) -> InferenceSession | None:
    if session is None:
        return None
    if not isinstance(session, InferenceSession):
        raise OptionError(f"use_weight_from must be a session, got {type(session).__name__}", hint="pass an InferenceSession")
    if options.custom_ops:
        raise OptionError(
            "use_weight_from cannot be combined with custom operators", hint="open the session with weights of its own"
        )
    if session.closed:
        raise OptionError("the session of use_weight_from was closed", hint="keep it open")
    return session


def _runner(backend: Backend, options: SessionOptions) -> Runner:
    schedule, mask = options.schedule, options.tp_mask
    cores, legal = backend.cores, backend.core_masks
    for core in schedule or ():
        if core >= cores:
            raise OptionError(
                f"the schedule {list(schedule or ())} names core {core}: {backend.chip} has {cores} core{'s' if cores > 1 else ''}",
                hint=f"use cores from 0 to {cores - 1}" if cores > 1 else "leave the schedule out, or use [0]",
            )
    if mask is not None and mask > 1 and mask not in legal:
        raise OptionError(
            f"tp_mode {options.tp_mode!r} is not possible on {backend.chip}, which has {cores} core{'s' if cores > 1 else ''}",
            hint="use 'auto'" + (f"; core masks of this chip: {', '.join(map(hex, legal))}" if legal else ""),
        )
    per_core = options.threads_per_core
    groups = len(set(schedule)) if schedule is not None else cores if mask is None else 1
    machine = Machine(
        cores=cores,
        schedule=schedule,
        mask=mask or 0,
        lanes=per_core * groups,
        threads_per_core=per_core,
        max_queue_size=options.max_queue_size,
        sequential=options.sequential_callbacks,
    )
    return Runner(
        backend,
        machine,
        submit_timeout=options.submit_timeout_ms / 1000,
        pacer=Pacer(groups) if options.enable_pacing else None,
        watchdog=None if options.watchdog_ms is None else options.watchdog_ms / 1000,
        name=f"anynpu {backend.chip}",
    )


def _overflow(policy: str) -> str:
    if policy not in OVERFLOWS:
        raise OptionError(f"unknown overflow policy: {policy!r}", hint=f"use one of: {', '.join(OVERFLOWS)}")
    return policy
