"""What can be seen: numbers for Prometheus, logs, and the page in a real browser."""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path

import pytest
from browser import open_page
from prometheus_client.parser import text_string_to_metric_families
from session.fake import FakeDevice
from waiting import PATIENCE, wait_until

from anynpu.serve import Server
from anynpu.serve.metrics import KEPT, History
from anynpu.serve.traces import JsonFormatter

from .conftest import Serve, exchange, infer_body
from .test_load import one_model

INFER = "/v2/models/net/infer"


def figures(server: Server) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their labels, in the order of the labels' names."""
    _, headers, text = exchange(server, "GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[(sample.name, *(sample.labels[key] for key in sorted(sample.labels)))] = sample.value
    return found


def test_figures_for_prometheus(serve: Serve) -> None:
    server = serve(FakeDevice(2, run_time=0.002), max_wait_ms=1e6)
    for _ in range(5):
        exchange(server, "POST", INFER, infer_body())
    exchange(server, "POST", INFER, b"{}")
    exchange(server, "POST", "/v2/models/no-such-model/infer", infer_body())
    found = figures(server)
    assert found["anynpu_requests_total", "net", "ok", "http", "1"] == 5
    assert found["anynpu_requests_total", "net", "invalid", "http", "1"] == 1
    assert found["anynpu_requests_total", "", "invalid", "http", ""] == 1
    assert found["anynpu_request_seconds_count", "net", "http", "1"] == 5
    assert found["anynpu_runs_total", "net", "1"] == 5
    assert found["anynpu_waiting", "net", "1"] == 0
    assert found["anynpu_shed_total", "net", "1"] == 0
    busy = [value for key, value in found.items() if key[0] == "anynpu_core_busy_seconds_total"]
    assert sum(busy) >= 0.0099  # five runs of 2 ms
    assert found["anynpu_connections",] == 1


def test_logs_are_json(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "anynpu.serve"):
        server = serve(FakeDevice(fails=lambda _: True), access_log=True)
        exchange(server, "POST", INFER, infer_body())
        server.stop(PATIENCE)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records if record.name == "anynpu.serve"]
    access = [line for line in lines if "outcome" in line]
    assert [(line["model"], line["protocol"], line["outcome"]) for line in access] == [("net", "http", "failed")]
    assert any("the fake device failed" in line["message"] and line["level"] == "error" for line in lines)
    assert lines[-1]["message"] == "ended"


@pytest.mark.full
def test_the_page_moves_under_load(serve: Serve, tmp_path: Path) -> None:
    server = serve(FakeDevice(3, run_time=0.5), max_wait_ms=1e6)  # far longer than what a busy machine adds
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            exchange(server, "POST", INFER, infer_body())

    clients = [threading.Thread(target=load) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: one_model(server)["answered"] > 0, "a request is answered")
        first, console = open_page(f"http://{server.http_address}/status")
        wait_until(lambda: len(one_model(server)["history"]) >= 3, "the history grows")
        second, more = open_page(f"http://{server.http_address}/")
        picture = tmp_path / "status.png"
        open_page(f"http://{server.http_address}/status", screenshot=picture)
    finally:
        stop.set()
        for client in clients:
            client.join(PATIENCE)
    assert console + more == []
    assert 'data-model="net:1"' in first
    assert "live" in first
    assert 0 < _figure(first, "answered") < _figure(second, "answered")
    assert _figure(second, "p50 ms") > 3
    assert first.count("<polyline") == 7
    lines = re.findall(r'<polyline points="([^"]*)"', second)
    assert len(lines[0].split()) >= 2  # answers a second
    heights = [float(point.partition(",")[2]) for point in lines[0].split()]
    assert min(heights) < 100  # the line is not at the bottom
    assert any(int(share) > 10 for share in re.findall(r'data-core="\d">(\d+) %<', second))
    assert picture.stat().st_size > 10_000


def _figure(page: str, name: str) -> float:
    found = re.search(rf'data-figure="{name}">([0-9.]+)<', page)
    assert found is not None, name
    return float(found[1])


@pytest.mark.full
def test_the_page_asks_for_a_key(serve: Serve) -> None:
    server = serve(FakeDevice(), api_keys=("a-key-of-the-tests-0123456789",))
    page, _ = open_page(f"http://{server.http_address}/status")
    assert "needs an API key" in page
    assert "fake NPU" not in page


def test_the_history_of_a_model_that_was_loaded_anew_begins_anew() -> None:
    history = History()
    model = {"answered": 5, "shed": 2, "failed": 0, "waiting": 1, "cores": [{"busy_ms": 100.0}]}
    history.add("net:1", 10.0, model, [])
    later = {"answered": 9, "shed": 3, "failed": 1, "waiting": 0, "cores": [{"busy_ms": 1100.0}, {"busy_ms": 50.0}]}
    history.add("net:1", 12.0, later, [7_000_000] * 5 + [1_000_000, 2_000_000, 3_000_000, 4_000_000])
    (point,) = history.points("net:1")
    assert (point["at"], point["rate"], point["shed"], point["failed"], point["waiting"]) == (12.0, 2.0, 0.5, 0.5, 0)
    assert (point["p50_ms"], point["p99_ms"], point["busy"]) == (3.0, 4.0, [0.5, 0.0])
    history.add("net:1", 13.0, {**model, "answered": 0, "shed": 0}, [])
    history.add("net:1", 14.0, {**model, "answered": 4, "shed": 0}, [1_000_000] * 4)
    assert [one["rate"] for one in history.points("net:1")] == [2.0, 4.0]
    for second in range(2 * KEPT):
        history.add("net:1", 15.0 + second, model, [])
    assert len(history.points("net:1")) == KEPT
    history.keep(["other:1"])
    assert history.points("net:1") == []


def test_the_page_is_no_place_for_other_pages(serve: Serve) -> None:
    server = serve(FakeDevice())
    for path in ("/", "/status"):
        _, headers, page = exchange(server, "GET", path)
        policy = dict(part.split(maxsplit=1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert not re.search(rb"<style|<script>|<script(?! src)| on\\w+=| style=", page)
    for path, kind in (("/status.js", "text/javascript"), ("/status.css", "text/css")):
        status, headers, _ = exchange(server, "GET", path)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
