"""The playground in a real browser, with the network off, and the process that does its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page
from waiting import PATIENCE

from anynpu.cli.demo.samples import write_detector
from anynpu.serve import ServeOptions, Server
from anynpu.serve.playground import Playground

from .models import brightest_channel, colour_picture

pytestmark = pytest.mark.full

RESULTS = "document.getElementById('results')"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ServeOptions(port=0, grpc_port=None, drain_timeout=PATIENCE)
    with Server([], options, mounts=[Playground(options)]) as server:
        yield server


@pytest.fixture
def with_sample() -> Iterator[Server]:
    options = ServeOptions(port=0, grpc_port=None, drain_timeout=PATIENCE)
    with Server([], options, mounts=[Playground(options, sample=write_detector)]) as server:
        yield server


def opened(server: Server, *, width: int = 1400, dark: bool = False) -> Page:
    page = Page(f"http://{server.http_address}/playground", width=width, dark=dark)
    try:
        page.wait_for(f"{RESULTS}.dataset.ready === 'yes'")
    except BaseException:
        page.close()
        raise
    return page


def shown(page: Page, state: str) -> str:
    page.wait_for(f"{RESULTS}.dataset.state === '{state}'", 3 * PATIENCE)
    text: str = page.value("document.body.innerText")
    return text


def test_from_a_model_and_a_picture_to_both_sides(server: Server, tmp_path: Path) -> None:
    model, red = brightest_channel(tmp_path / "net.onnx"), colour_picture(tmp_path / "red.png", "red")
    with opened(server) as page:
        assert page.value("document.getElementById('go').disabled")
        page.choose("#model", model)
        page.choose("#pictures", red)
        page.value("document.getElementById('scale').value = '0 to 1'")
        page.click("#go")
        text = shown(page, "done")
        sides = page.value(
            "[...document.querySelectorAll('.side')].map(one => one.dataset.side + ' ' + one.querySelector('td').textContent)"
        )
        assert sides == ["float red", "compiled red"]
        page.wait_for("[...document.querySelectorAll('.side img')].every(one => one.naturalWidth === 32)")
        for words in ("int8 on rk3588", "Calibrated on 1 image", "Time per layer", "mix", "cosine", "--target rk3588"):
            assert words in text
        assert page.console == []
        # on a telephone nothing is cut off
        page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
        assert page.value("document.documentElement.scrollWidth") <= 400
        # what is no model is said in words, and the page goes on
        noise = tmp_path / "noise.onnx"
        noise.write_bytes(b"no model at all")
        page.choose("#model", noise)
        page.click("#go")
        shown(page, "failed")
        said = page.value("document.getElementById('trouble').innerText")
        assert "What to do" in said
        assert "noise.onnx" in said
        assert not page.value("document.getElementById('go').disabled")
        assert page.console == []


def test_dark_and_narrow(server: Server) -> None:
    with opened(server, width=400, dark=True) as page:
        colours = page.value("['color', 'backgroundColor'].map(one => getComputedStyle(document.body)[one])")
        ink, paper = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
        assert ink > 600 > 150 > paper
        assert page.value("document.documentElement.scrollWidth") <= 400
        assert page.console == []


def test_the_sample_needs_one_click_and_its_boxes_are_matched(with_sample: Server, server: Server) -> None:
    with opened(with_sample) as page:
        page.click("#sample")
        text = shown(page, "done")
        assert "boxes of the float model are found by int8 too" in text
        rows = page.value(
            "[...[...document.querySelectorAll('h2')].find(one => one.textContent === 'Boxes of both sides')"
            ".nextElementSibling.nextElementSibling.querySelectorAll('tbody tr')].map(one => one.className)"
        )
        kept, floats = (int(word) for word in text.split(" boxes of the float model")[0].split("\n")[-1].split(" of "))
        assert 0 < kept <= floats == len(rows) - rows.count("lost") + (floats - kept)
        assert page.value("document.querySelector('.verdict').textContent").split(",")[0] in ("good", "fair", "poor")
        assert page.console == []
    with opened(server) as page:
        assert not page.value("document.getElementById('sample').getClientRects().length")
