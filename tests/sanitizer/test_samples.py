"""Programs that do everything right: sessions, the vendors' classes and our examples are silent."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import anynpu
from anynpu import modelfile
from anynpu.devtools.recording import read_trace
from anynpu.devtools.sanitizer import Reporter
from anynpu.rknn import Context, Matmul, RknnModel
from anynpu.rknn.lite import RKNNLite
from anynpu.vip import Awnn, Network
from anynpu.vip.vpmrun import VpmOptions, vpm_run

from .rknn_programs import model, picture
from .vip_programs import model_file
from .vip_programs import picture as planes

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def rknn_file(tmp_path: Path) -> Path:
    return modelfile.write(model(), tmp_path / "small.rknn")


@pytest.fixture
def nb_file(tmp_path: Path) -> Path:
    (tmp_path / "small.nb").write_bytes(model_file())
    return tmp_path / "small.nb"


@pytest.fixture(autouse=True)
def sanitizer_is_sound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "anynpu.devtools.sanitizer")


def check(found: Reporter, caplog: pytest.LogCaptureFixture) -> None:
    assert found.findings == [], found.text()
    assert not [record for record in caplog.records if record.name == "anynpu.devtools.sanitizer"]


def test_sessions(rknn_file: Path, nb_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with anynpu.sanitize(check=False) as found:
        session = anynpu.InferenceSession(rknn_file)
        feed = {"image": picture()[None].transpose(0, 3, 1, 2).astype(np.float32)}
        first = session.run(None, feed)[0]
        assert first.any()
        binding = session.io_binding()
        binding.bind_cpu_input("image", feed["image"])
        binding.bind_output(session.get_outputs()[0].name)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], first)
        other = anynpu.InferenceSession(nb_file)
        other.run(None, {"image": planes()[None].astype(np.float32)})
    check(found, caplog)
    np.testing.assert_array_equal(session.run(None, feed)[0], first)  # it goes on after the block


def test_classes_of_rockchip(rknn_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with anynpu.sanitize(check=False) as found:
        lite = RKNNLite()
        assert lite.load_rknn(str(rknn_file)) == 0
        assert lite.init_runtime(core_mask=RKNNLite.NPU_CORE_0) == 0
        assert lite.inference(inputs=[picture()[None]])[0].any()
        lite.release()
        with RknnModel.load(rknn_file) as whole:
            whole.run(picture().tobytes())
            assert np.asarray(whole.output_raw(0)).any()
        with Matmul(4, 64, 32, "int8", device="sim:rk3588") as product:
            product.set_b(np.ones((64, 32), np.int8))
            assert (product(np.ones((4, 64), np.int8)) == 64).all()
    check(found, caplog)


def test_objects_of_python_close_themselves_and_the_vendors_class_has_to_be_released(rknn_file: Path) -> None:
    with anynpu.sanitize(check=False) as found:
        context = Context(rknn_file)
        lite = RKNNLite()
        assert lite.load_rknn(str(rknn_file)) == 0
        assert lite.init_runtime() == 0
    assert [(one.id, one.stack.frames()[0].file) for one in found.findings] == [("context-leak", __file__)]
    lite.release()
    context.close()


def test_zero_copy_in_python(rknn_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with anynpu.sanitize(check=False) as found, Context(rknn_file) as context:
        source, target = context.bind_input(0), context.bind_output(0)
        source.array()[:] = 7
        source.sync("to_device")
        context.execute()
        target.sync("from_device")
        assert target.array().any()
        source.close()
        target.close()
    check(found, caplog)


def test_classes_of_allwinner(
    nb_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planes().tofile("input.dat")
    Path("sample.txt").write_text("[network]\nsmall.nb\n[input]\ninput.dat\n")
    with anynpu.sanitize(check=False) as found:
        with Network(nb_file, device="sim:t527") as network:
            buffer = network.bind_input(0)
            buffer.bytes()[:] = planes().reshape(-1)
            network.execute()
            assert network.get_outputs()
        with Awnn(nb_file, device="sim:t527") as context:
            context.set_input_buffers([planes().reshape(-1)])
            context.run()
            assert context.get_output_buffers()
        assert vpm_run(VpmOptions(sample="sample.txt", loops=2), lambda line: None, device="sim:t527") == 0
    check(found, caplog)


@pytest.mark.full
@pytest.mark.parametrize("faulty", [False, True])
def test_an_example_as_it_stands(faulty: bool, rknn_file: Path, tmp_path: Path) -> None:
    """With the variable alone, and with exit code 23 if there were anything; also recorded, on a board that is busy and hot."""
    script = EXAMPLES / "cameras" / "cameras.py"
    environment = {**os.environ, "ANYNPU_SANITIZE": "1"}
    if faulty:
        kinds = [{"kind": "slow", "every": 3, "factor": 2}, {"kind": "busy", "every": 7, "seconds": 0.001}]
        (tmp_path / "plan.json").write_text(json.dumps({"fault": kinds}))
        environment |= {"ANYNPU_FAULTS": str(tmp_path / "plan.json"), "ANYNPU_RECORD": str(tmp_path / "trace.jsonl")}
    command = [sys.executable, str(script), str(rknn_file), "--device", "sim:rk3588", "--cameras", "2", "--seconds", "0.5"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sanitizer" not in done.stderr
    assert not faulty or read_trace(tmp_path / "trace.jsonl").calls
