"""Trained models on every way to run them: the calls, libawnn, vpm-run and a session give the same bytes, and the class that fp32 gives."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest
from real_models import RealModels

import anynpu
from anynpu.cli.demo.pages import page, text_line
from anynpu.session import InferenceSession
from anynpu.vip import Awnn, Network
from anynpu.vip.vpmrun import VpmOptions, vpm_run

from .support import CHIPS

Array = npt.NDArray[Any]

FORMATS = ("w8a8", "i8", "w16a16", "fp16")
CLEAR = 0.3
"""How far the best class must be ahead of the next one in fp32."""

SHAPES = {"classification": (1, 3, 48, 192), "orientation": (1, 3, 224, 224)}


@functools.cache
def inputs(name: str, count: int = 40) -> list[Array]:
    """Lines of text and pages, each turned in one of the ways that the model distinguishes, normalized."""
    result = []
    for seed in range(count):
        if name == "classification":
            picture = text_line(seed, flipped=bool(seed % 2)).astype(np.float32) / 127.5 - 1
        else:
            turned = np.rot90(page(seed, 224), seed % 4).astype(np.float32) / 255
            picture = (turned - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
        result.append(np.ascontiguousarray(picture.transpose(2, 0, 1)[None], np.float32))
    return result


def clear_cases(path: Path, name: str) -> tuple[list[Array], list[int]]:
    """Inputs whose class is beyond doubt in fp32, and that class."""
    session = onnxruntime.InferenceSession(str(path))
    chosen, classes = [], []
    for values in inputs(name)[8:]:  # the first were calibrated with
        scores = session.run(None, {"x": values})[0][0]
        second, first = np.sort(scores)[-2:]
        if first - second > CLEAR:
            chosen.append(values)
            classes.append(int(scores.argmax()))
    return chosen, classes


@pytest.mark.full
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_way_gives_the_same(
    real_models: RealModels, name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path: Path = getattr(real_models, name)
    chosen, classes = clear_cases(path, name)
    assert len(chosen) >= 20
    dataset = None if dtype == "fp16" else [{"x": values} for values in inputs(name)[:8]]
    for chip in CHIPS.values():
        model = anynpu.compile(path, target=chip, dtype=dtype, shapes={"x": SHAPES[name]}, dataset=dataset)
        file = model.save(f"{chip}.nb")
        device = f"sim:{chip}"
        with Network(file, device=device) as network:
            codes = network.inputs[0].encode(chosen[0])
            by_calls = network.run([codes], decode=False)[0]
            values = network.get_outputs()[0]
            if chip == CHIPS["B"]:
                found = [int(network.run([one])[0].argmax()) for one in chosen]
        with Awnn(file, device=device) as context:
            context.set_input_buffers([codes])
            context.run()
            assert context.get_output_buffer(0).tobytes() == by_calls.tobytes()
            np.testing.assert_array_equal(context.get_output_buffers()[0], values.reshape(-1))
        with InferenceSession(file, device=device) as session:
            np.testing.assert_array_equal(session.run(None, {"x": chosen[0]})[0], values)
        Path("x.dat").write_bytes(codes.tobytes())
        Path("sample.txt").write_text(f"[network]\n{chip}.nb\n[input]\nx.dat\n[output]\ny.dat\n")
        assert vpm_run(VpmOptions("sample.txt", bypass=False), lambda line: None, device=device) == 0
        assert Path("y.dat").read_bytes() == by_calls.tobytes()
    if name == "classification" or dtype in ("w16a16", "fp16"):
        agreement = np.mean([one == other for one, other in zip(found, classes, strict=True)])
        assert agreement >= 0.95
