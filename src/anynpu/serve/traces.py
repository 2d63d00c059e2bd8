"""OpenTelemetry: a span for each inference, with the stages of its runs inside it.

Belongs to the event loop of the server: no lock. Which requests a run is for is a context variable: a task that runs a batch sets it to the
requests of that batch. A server without traces has an empty one, and imports nothing.

Spans go where the program that holds the server has configured OpenTelemetry to send them, or, if it has configured nothing, to
the collector that the ``OTEL_`` variables name. A provider that was made here is shut down here.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from .._util import optional as _optional
from .._util.printable import printable
from .failures import Failure, message_of

if TYPE_CHECKING:
    from ..session import RunTimes
    from .model import InferAnswer, InferRequest


# Logs for people and for programs: one line, or one JSON object, per message.


_FIELDS = ("model", "version", "protocol", "outcome", "ms")


class LineFormatter(logging.Formatter):
    """Messages that stay on their line, whatever is in a name that a client or a file chose; tracebacks follow on lines of their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        """The line without the traceback."""
        record.message = printable(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, and what the server adds: model, version, protocol, outcome, ms.

    >>> record = logging.LogRecord("anynpu.serve", logging.INFO, "", 0, "model %s is ready", ("det",), None)
    >>> json.loads(JsonFormatter().format(record))["message"]
    'model det is ready'
    """

    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        document = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document.update({key: getattr(record, key) for key in _FIELDS if hasattr(record, key)})
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


MAX_RUNS = 64
"""Runs of one request that get spans."""

STAGES = ("queue", "convert inputs", "device", "convert outputs")

_OWN_FAILURES = ("failed", "late", "unavailable")
"""Outcomes that are not the fault of the client."""

_current: ContextVar[tuple[RequestTrace, ...]] = ContextVar("anynpu_traced_requests", default=())


def traced_requests() -> tuple[RequestTrace, ...]:
    """Those that what happens now is for."""
    return _current.get()


def join_requests(requests: tuple[RequestTrace, ...]) -> None:
    """What happens in this task from now on is for *requests*."""
    if requests or _current.get():
        _current.set(requests)


def note_run(times: RunTimes) -> None:
    """The device has run."""
    for request in _current.get():
        request.ran(times)


def wanted_by_environment() -> bool:
    """Whether the standard variables ask for traces: a collector or an exporter is named, and nothing is switched off."""
    given = os.environ.get
    if given("OTEL_SDK_DISABLED", "").lower() == "true" or given("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return False
    return any(
        given(name) for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
    )


def open_traces(wanted: bool, version: str) -> Traces | None:
    """The traces of a server; None if there are none to be made.

    :param wanted: whether to set OpenTelemetry up if the program has not
    """
    trace = sys.modules.get("opentelemetry.trace")
    provider = None if trace is None else trace.get_tracer_provider()
    if trace is not None and isinstance(provider, trace.ProxyTracerProvider):
        provider = None  # a stand-in where none is set
    if provider is not None:
        return Traces(provider, version)
    return Traces(_make_provider(version), version, own=True) if wanted else None


def _make_provider(version: str) -> Any:
    """A provider that sends spans to the collector of the ``OTEL_`` variables: to localhost:4318 if they name none."""
    sdk, export = _optional.opentelemetry("sdk.trace"), _optional.opentelemetry("sdk.trace.export")
    exporter = _optional.opentelemetry("exporter.otlp.proto.http.trace_exporter").OTLPSpanExporter()
    attributes = {"service.version": version}
    if not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "anynpu"
    provider = sdk.TracerProvider(resource=_optional.opentelemetry("sdk.resources").Resource.create(attributes))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return provider


class Traces:
    """Makes the spans of a server.

    :param own: whether the provider ends with the server
    """

    def __init__(self, provider: Any, version: str, own: bool = False) -> None:
        self._provider = provider
        self._own = own
        self._extract = _optional.opentelemetry("propagate").extract
        self.api = _optional.opentelemetry("trace")
        self.tracer = provider.get_tracer("anynpu.serve", version)

    def begin(self, protocol: str, model: str, carrier: Mapping[str, str]) -> RequestTrace:
        """A request has come.

        :param carrier: its headers, of which ``traceparent`` names the span of the client
        """
        attributes = {"anynpu.session.protocol": protocol, "anynpu.model": _clean(model)}
        span = self.tracer.start_span("infer", self._extract(dict(carrier)), self.api.SpanKind.SERVER, attributes)
        return RequestTrace(self, span)

    def close(self) -> None:
        """Send what is left. Takes as long as the collector does, at most some seconds."""
        if self._own:
            self._provider.shutdown()


class RequestTrace:
    """The span of one request."""

    def __init__(self, traces: Traces, span: Any) -> None:
        self._traces = traces
        self._span = span
        self._runs: list[RunTimes] = []
        self._epoch = _epoch()
        self._token: Token[tuple[RequestTrace, ...]] = _current.set((self,))

    def read(self, request: InferRequest, version: str) -> None:
        """Its body is there and has been understood."""
        if self._span.is_recording():
            self._span.add_event("read")
            self._span.set_attribute("anynpu.version", version)
            self._span.set_attribute("anynpu.request_id", _clean(request.id))
            self._span.set_attribute("anynpu.input_bytes", sum(array.nbytes for array in request.inputs.values()))

    def ran(self, times: RunTimes) -> None:
        """The device has run for it."""
        if len(self._runs) < MAX_RUNS:
            self._runs.append(times)

    def answered(self, answer: InferAnswer) -> None:
        """It has outputs."""
        self._span.set_attribute("anynpu.output_bytes", sum(array.nbytes for array in answer.outputs.values()))

    def end(self, outcome: str, failure: Failure | None = None, error: BaseException | None = None) -> None:
        """It is over."""
        _current.reset(self._token)
        span = self._span
        if span.is_recording():
            for times in self._runs:
                self._add_stages(times)
            span.set_attribute("anynpu.outcome", outcome)
            if failure is not None and error is not None and outcome != "cancelled":
                span.add_event("error", {"status": failure.status, "message": _clean(message_of(error))})
                if outcome in _OWN_FAILURES:
                    span.set_status(self._traces.api.StatusCode.ERROR, _clean(message_of(error)))
        span.end()

    def _add_stages(self, times: RunTimes) -> None:
        """Spans for what the session did, at the times at which it did it."""
        parent = self._traces.api.set_span_in_context(self._span)
        start = times.submitted + self._epoch
        for name, length in zip(STAGES, (times.wait, times.inputs, times.run, times.outputs), strict=True):
            span = self._traces.tracer.start_span(name, parent, start_time=start)
            start += length
            span.end(start)


def _epoch() -> int:
    """The moment 0 of the clock that runs are measured with, in nanoseconds since 1970."""
    for _ in range(3):
        before, now, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        if after - before < 50_000:  # or another thread ran in between
            break
    return now - (before + after) // 2


def _clean(text: str) -> str:
    """A text that can be sent: clients may write halves of characters."""
    return text.encode(errors="replace").decode()[:1000]
