"""Spans of OpenTelemetry: one for each request, its stages inside, in the trace of the client."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from session.fake import FakeDevice, feed

from anynpu.errors import MissingDependencyError
from anynpu.serve import Server
from anynpu.serve.traces import STAGES, open_traces, wanted_by_environment
from anynpu.session import InferenceSession
from anynpu.session.protocol.messages import SERVICE
from anynpu.tensor import DType, TensorSpec

from .conftest import Serve, exchange, infer_body
from .malformed import inference_message, wrong_body

INFER = "/v2/models/net/infer"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Spans:
    """What was exported."""

    def __init__(self, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
        self.provider = provider
        self._exporter = exporter

    def take(self) -> list[tuple[ReadableSpan, list[ReadableSpan]]]:
        """The spans of requests in the order of their beginning, each with its stages; and forget them."""
        found = self._exporter.get_finished_spans()
        self._exporter.clear()
        requests = sorted((span for span in found if span.kind is SpanKind.SERVER), key=lambda span: span.start_time or 0)
        stages = [[span for span in found if span.parent and span.parent.span_id == one.context.span_id] for one in requests]
        assert sum(map(len, stages)) + len(requests) + sum(span.name == "client" for span in found) == len(found)
        return list(zip(requests, stages, strict=True))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    """A program that has set OpenTelemetry up."""
    provider, exporter = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return Spans(exporter, provider)


def http_request(server: Server, **headers: str) -> None:
    document = {**json.loads(infer_body()), "id": "seven\ud800"}
    assert exchange(server, "POST", INFER, json.dumps(document).encode(), headers)[0] == 200


def grpc_request(server: Server, **headers: str) -> None:
    request = inference_message()
    request.id = "seven?"
    with grpc.insecure_channel(server.grpc_address) as channel:
        channel.unary_unary(f"/{SERVICE}/ModelInfer")(request.SerializeToString(), metadata=tuple(headers.items()))


@pytest.mark.parametrize(("ask", "protocol"), [(http_request, "http"), (grpc_request, "grpc")])
def test_a_request_is_a_span_with_its_stages_at_their_times(
    serve: Serve, spans: Spans, ask: Callable[..., None], protocol: str
) -> None:
    server = serve(FakeDevice(run_time=0.01))
    ask(server)
    ((request, stages),) = spans.take()
    assert (request.name, request.parent, request.status.status_code) == ("infer", None, StatusCode.UNSET)
    assert dict(request.attributes or {}) == {
        "anynpu.session.protocol": protocol,
        "anynpu.model": "net",
        "anynpu.version": "1",
        "anynpu.request_id": "seven?",
        "anynpu.input_bytes": 16,
        "anynpu.output_bytes": 16,
        "anynpu.outcome": "ok",
    }
    assert [event.name for event in request.events] == ["read"]
    assert tuple(stage.name for stage in stages) == STAGES
    moments = [request.start_time, request.events[0].timestamp, stages[0].start_time]
    moments += [stage.end_time for stage in stages] + [request.end_time]
    steps = np.diff(np.array(moments, np.int64))
    assert (steps > -1_000_000).all(), steps  # two clocks are compared
    assert all(one.end_time == other.start_time for one, other in itertools.pairwise(stages))
    assert (stages[2].end_time or 0) - (stages[2].start_time or 0) >= 10_000_000


@pytest.mark.parametrize("ask", [http_request, grpc_request])
def test_the_trace_of_the_client_goes_on(serve: Serve, spans: Spans, ask: Callable[..., None]) -> None:
    server = serve(FakeDevice())
    ask(server, **PARENT)
    ((request, stages),) = spans.take()
    assert request.parent is not None
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, "b7ad6b7169203331")
    assert {stage.context.trace_id for stage in stages} == {request.context.trace_id}
    for wrong in (
        "",
        "00",
        f"00-{TRACE}-b7ad6b7169203331",
        f"ff-{TRACE}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-{'0' * 16}-01",
        "x" * 999,
    ):
        ask(server, traceparent=wrong)
        ((request, _),) = spans.take()
        assert request.parent is None, wrong
    ask(server, traceparent=f"00-{TRACE}-b7ad6b7169203331-00")  # the client has chosen not to record this one
    assert spans.take() == []


def test_requests_of_a_stream_belong_to_the_trace_of_the_stream(serve: Serve, spans: Spans) -> None:
    server = serve(FakeDevice(), max_wait_ms=1e6)
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        assert len(list(call(iter([inference_message().SerializeToString()] * 5), metadata=tuple(PARENT.items())))) == 5
    found = spans.take()
    assert [len(stages) for _, stages in found] == [4] * 5
    assert {f"{request.context.trace_id:032x}" for request, _ in found} == {TRACE}


def test_what_goes_wrong(serve: Serve, spans: Spans) -> None:
    fails = [False]
    server = serve(FakeDevice(fails=lambda _: fails[0]))
    exchange(server, "POST", INFER, b"{")
    exchange(server, "POST", "/v2/models/other/infer", infer_body())
    fails[0] = True
    exchange(server, "POST", INFER, infer_body())
    found = spans.take()
    assert [(request.attributes or {})["anynpu.outcome"] for request, _ in found] == ["invalid", "invalid", "failed"]
    assert [request.status.status_code for request, _ in found] == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]
    events = [request.events[-1].attributes or {} for request, _ in found]
    assert [event["status"] for event in events] == [400, 404, 500]
    assert "the fake device failed" in str(events[2]["message"])


def test_wrong_requests_have_spans_that_can_be_sent(serve: Serve, spans: Spans) -> None:
    server = serve(FakeDevice(), max_wait_ms=1e6)
    rng = random.Random(30)
    for _ in range(400):
        body, headers = wrong_body(rng)
        status, _, answer = exchange(
            server, "POST", INFER, body, {**headers, "traceparent": rng.choice(["", PARENT["traceparent"], "é"])}
        )
        assert status < 500 or status == 504, answer
    found = spans.take()
    assert len(found) == 400
    for request, _ in found:
        for attributes in (request.attributes, *(event.attributes for event in request.events)):
            json.dumps(dict(attributes or {}), ensure_ascii=False).encode()


def test_requests_that_share_a_run_have_its_stages_each(serve: Serve, spans: Spans) -> None:
    specs = {"inputs": (TensorSpec("x", (3, 4), DType.FLOAT32),), "outputs": (TensorSpec("y", (3, 4), DType.FLOAT32),)}
    device = FakeDevice(1, **specs)
    server = serve(device, batch_window_ms=3_600_000)
    with ThreadPoolExecutor(3) as pool:
        assert [answer[0] for answer in pool.map(lambda _: exchange(server, "POST", INFER, infer_body()), range(3))] == [200] * 3
    found = spans.take()
    assert sum(device.core_runs.values()) == 1
    assert [len(stages) for _, stages in found] == [4, 4, 4]
    starts = [stages[2].start_time or 0 for _, stages in found]
    assert max(starts) - min(starts) < 5_000_000  # the same moment, seen from clocks that each request reads for itself


def test_a_batch_that_is_spread_has_the_stages_of_every_run(serve: Serve, spans: Spans) -> None:
    server = serve(FakeDevice(2), max_wait_ms=1e6)
    tensor = {"name": "x", "datatype": "FP32", "shape": [5, 4], "data": [1] * 20}
    assert exchange(server, "POST", INFER, json.dumps({"inputs": [tensor]}).encode())[0] == 200
    ((_, stages),) = spans.take()
    assert len(stages) == 20


def test_a_remote_session_names_the_span_it_is_used_in(serve: Serve, spans: Spans) -> None:
    server = serve(FakeDevice(2), max_wait_ms=1e6)
    tracer = spans.provider.get_tracer("test")
    with InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        session.run(None, feed())
        ((request, _),) = spans.take()
        assert request.parent is None
        with tracer.start_as_current_span("client") as client:
            session.run(None, feed())
            session.submit(None, feed()).result()
            asyncio.run(session.arun(None, feed()))
            list(session.stream([feed()] * 3))
        found = spans.take()
    assert len(found) == 6
    for request, _ in found:
        assert request.parent is not None
        assert request.parent.span_id == client.get_span_context().span_id


def test_a_server_can_set_opentelemetry_up_itself(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    module = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(OTLPSpanExporter=lambda: exporter))
    server = serve(FakeDevice(), trace=True)
    http_request(server, **PARENT)
    server.stop(30)
    found = exporter.get_finished_spans()
    assert len(found) == 5
    assert {span.resource.attributes["service.name"] for span in found} == {"anynpu"}
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)  # nobody else's setting was touched


def test_traces_need_their_packages_only_if_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter.")]:
        monkeypatch.delitem(sys.modules, name)
    assert open_traces(False, "1") is None
    with pytest.raises(MissingDependencyError, match=r"\.\[trace\]"):
        open_traces(True, "1")


def test_the_environment_switches_traces_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "OTEL_TRACES_EXPORTER",
        "OTEL_SDK_DISABLED",
    ):
        monkeypatch.delenv(name, raising=False)
    assert not wanted_by_environment()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert wanted_by_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert not wanted_by_environment()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not wanted_by_environment()


WITHOUT = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from session.fake import FakeDevice, feed
from anynpu.serve import ServeOptions, Server
from anynpu.session import InferenceSession
folder = pathlib.Path(sys.argv[2])
(folder / "net.rknn").write_bytes(b"model")
with Server([folder], ServeOptions(port=0, grpc_port=0, device=FakeDevice())) as server:
    with InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        assert session.run(None, feed())[0][0, 0] == 2
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_nothing_is_imported_without_traces(tmp_path: Any) -> None:
    tests = __file__.rpartition("/serve/")[0]
    command = [sys.executable, "-c", WITHOUT, tests, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "[]"
