"""Profiles: their numbers, their page and their trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser import open_page
from silu_network import silu_network

import anynpu
from anynpu import chips
from anynpu.analysis.profile import Profile, chrome_trace, profile_events, profile_page, profile_program
from anynpu.chips.timing import Bound
from anynpu.program import Model


@pytest.fixture(scope="module")
def model() -> Model:
    rng = np.random.default_rng(4)
    samples = [{"x": rng.random((1, 3, 96, 96), np.float32)} for _ in range(2)]
    return anynpu.compile(silu_network(), target="rk3588", dataset=samples, name="net")


@pytest.fixture(scope="module")
def profile(model: Model) -> Profile:
    return profile_program(model.programs[0], chips.get("rk3588"))


def test_layers_follow_each_other_and_add_up(profile: Profile) -> None:
    clock = 0.0
    for layer in profile.layers:
        assert layer.start_us == pytest.approx(clock)
        clock += layer.time_us
    assert clock == pytest.approx(profile.latency_us)


def test_memory_in_use_never_exceeds_what_the_plan_reserves(profile: Profile) -> None:
    assert max(layer.live_bytes for layer in profile.layers) <= profile.internal_bytes
    assert any(layer.live_bytes for layer in profile.layers)


def test_advice_names_what_takes_the_time(profile: Profile) -> None:
    text = " ".join(profile.advice())
    assert re.search(r"\d+ layers? takes? \d+ % of \d+(\.\d ms| us)", text)
    assert any(layer.bound is Bound.LOOKUP for layer in profile.layers)
    assert "ReLU in their place would save" in text


def test_several_cores_share_what_can_be_shared(model: Model) -> None:
    shared = profile_program(model.programs[0], chips.get("rk3588"), cores=3)
    assert "core 0" in {event.track for event in profile_events(shared)}
    assert all(len(layer.core_shares) == 3 for layer in shared.layers)


def test_the_trace_is_one_that_perfetto_reads(profile: Profile) -> None:
    trace = json.loads(chrome_trace(profile_events(profile), process="net on rk3588"))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    tracks = {}
    complete = []
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "M" and event["name"] == "thread_name":
            tracks[event["tid"]] = event["args"]["name"]
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            complete.append(event)
    assert {event["tid"] for event in complete} <= set(tracks)
    assert "core 0" in tracks.values()
    assert len(complete) >= len(profile.layers)
    assert sum(event["dur"] for event in complete) == pytest.approx(profile.latency_us, rel=0.01)


@pytest.mark.full
def test_the_page_shows_its_charts_in_a_browser(profile: Profile, tmp_path: Path) -> None:
    page = tmp_path / "profile.html"
    page.write_text(profile_page(profile, "net & <more>"), encoding="utf-8")
    document, console = open_page(page)
    assert not console
    assert document.count("<svg") == 4
    assert document.count("<circle") == sum(1 for layer in profile.layers if layer.operations and layer.time_us)
    assert "net &amp; &lt;more&gt;" in document
    picture = tmp_path / "profile.png"
    open_page(page, screenshot=picture)
    import cv2

    pixels = cv2.imread(str(picture))
    assert pixels is not None
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_the_page_needs_nothing_from_elsewhere(profile: Profile) -> None:
    text = profile_page(profile, "net")
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "http" not in text.replace("http-equiv", "")
