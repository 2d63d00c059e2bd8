"""Synchronous runs, what a session reports about its model, and types of outputs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.errors import DeviceClosed, DeviceTimeout, FeedNameError, FeedShapeError, OptionError, SessionError, SessionModelError
from anynpu.session import InferenceSession
from anynpu.tensor import Affine, DType, Layout, TensorSpec

from .fake import IMAGE, FakeDevice, FakeLane, feed

OUTPUTS = (
    TensorSpec("boxes", (1, 2), DType.INT8, Layout.PLAIN, Affine.per_tensor(0.5, 0)),
    TensorSpec("half", (1, 2), DType.FLOAT16),
    TensorSpec("ids", (1, 2), DType.INT64),
    TensorSpec("valid", (1, 2), DType.BOOL),
)


def test_a_run_on_an_idle_core_stays_in_the_callers_thread() -> None:
    device = FakeDevice(3)
    with device.open() as session:
        before = set(threading.enumerate())  # threads of earlier tests may still be ending
        for value in range(5):
            (result,) = session.run(None, {"x": feed(value)})
            assert result.tolist() == [[2 * value] * 4]
        assert set(threading.enumerate()) <= before
        assert device.threads == {threading.get_ident()}
        assert device.open_lanes == 1, "one lane is enough for one request at a time"


@pytest.mark.parametrize("options", [{}, {"schedule": [0, 1, 2]}, {"tp_mode": "all"}, {"watchdog_ms": 20000}])
def test_runs_from_many_threads_never_share_a_context(options: dict[str, Any]) -> None:
    device = FakeDevice(3, run_time=0.0005)
    errors: list[BaseException] = []
    with device.open(max_queue_size=50, **options) as session:

        def use(number: int) -> None:
            try:
                for step in range(20):
                    value = number * 100 + step
                    assert session.run(None, feed(value))[0].tolist() == [[2 * value] * 4]
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
    assert errors == []
    assert device.violations == []
    assert device.open_lanes == 0


def test_outputs_are_chosen_by_name() -> None:
    with FakeDevice(outputs=OUTPUTS).open() as session:
        everything = session.run(None, feed())
        assert len(everything) == len(session.run([], feed())) == 4
        ids, boxes, again = session.run(["ids", "boxes", "ids"], feed())
        assert ids.tolist() == again.tolist() == everything[2].tolist()
        assert boxes.tolist() == everything[0].tolist()
        assert session.run("ids", feed())[0].tolist() == ids.tolist()  # type: ignore[arg-type]
        with pytest.raises(FeedNameError, match="there is no output 'idz'") as caught:
            session.run(["idz"], feed())
        assert "boxes, half, ids, valid" in caught.value.hint
        with pytest.raises(FeedNameError, match="not int"):
            session.run(3, feed())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "types"),
    [
        ("float32", ["float32", "float32", "int64", "bool"]),
        ("model", ["int8", "float16", "int64", "bool"]),
        ({"boxes": "model", "ids": "float32"}, ["int8", "float32", "float32", "float32"]),
        ("float16", ["float16"] * 4),
    ],
)
def test_types_of_outputs(asked: Any, types: list[str]) -> None:
    with FakeDevice(outputs=OUTPUTS).open(output_type=asked) as session:
        assert [result.dtype.name for result in session.run(None, feed())] == types


def test_an_output_type_for_what_is_no_output_is_refused() -> None:
    device = FakeDevice(outputs=OUTPUTS)
    with pytest.raises(OptionError, match="'nothing'"):
        device.open(output_type={"nothing": "model"})
    assert device.open_backends == 0


def test_what_a_session_tells_about_its_model() -> None:
    device = FakeDevice(3, inputs=(IMAGE,), outputs=OUTPUTS, metadata={"rknn_custom_string": "v7"})
    with device.open() as session:
        (image,) = session.get_inputs()
        assert (image.name, image.shape, image.type, image.layout) == ("image", [1, 3, 4, 5], "tensor(int8)", "NCHW")
        assert image.quantization == IMAGE.quantization
        assert image.strides == [60, 20, 5, 1]
        assert [(node.name, node.type) for node in session.get_outputs()] == [
            ("boxes", "tensor(int8)"),
            ("half", "tensor(float16)"),
            ("ids", "tensor(int64)"),
            ("valid", "tensor(bool)"),
        ]
        assert {node.layout for node in session.get_outputs()} == {"UNDEFINED"}
        (native,) = session.get_native_inputs()
        assert (native.shape, native.layout) == ([1, 4, 5, 3], "NHWC")
        assert len(session.get_native_outputs()) == 4
        assert session.get_modelmeta().custom_metadata_map == {"rknn_custom_string": "v7"}
        assert session.input_names == ["image"]
        assert session.output_names == ["boxes", "half", "ids", "valid"]
        assert session.device == "fake NPU, 3 cores"
        assert "fake NPU" in repr(session)
    with device.open(layout="nhwc") as session:
        (image,) = session.get_inputs()
        assert (image.shape, image.layout) == ([1, 4, 5, 3], "NHWC")


@pytest.mark.parametrize("wrong", [None, 7, 1.5, ["model"]])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    with pytest.raises(RuntimeError, match="a model is a path or bytes"):
        InferenceSession(wrong, device=FakeDevice())


def test_model_files_that_are_not_there(tmp_path: Path) -> None:
    device = FakeDevice()
    with pytest.raises(SessionModelError, match=r"^Unable to open model: there is no model file .*gone\.rknn"):
        InferenceSession(tmp_path / "gone.rknn", device=device)
    with pytest.raises(SessionModelError, match="is a folder"):
        InferenceSession(str(tmp_path), device=device)
    with pytest.raises(SessionModelError, match=r"^model data must not be empty"):
        InferenceSession(b"", device=device)
    assert device.backends == []
    (tmp_path / "model.rknn").write_bytes(b"RKNN")
    for model in (tmp_path / "model.rknn", str(tmp_path / "model.rknn"), b"RKNN", bytearray(b"RKNN"), memoryview(b"RKNN")):
        InferenceSession(model, device=device).close()  # type: ignore[arg-type]


def test_session_options_and_unknown_arguments_are_ignored() -> None:
    with InferenceSession(b"model", object(), disabled_optimizers=[], device=FakeDevice()) as session:
        session.run(None, feed())


def test_a_batch_is_spread_over_the_cores_when_asked() -> None:
    device = FakeDevice(3, run_time=0.005)
    batch = np.arange(28, dtype=np.float32).reshape(7, 4)

    class Options:
        def get_run_config_entry(self, key: str) -> str:
            return "1" if key == "ztu_modelrt_dispatch_batch" else "0"

    with device.open(schedule=[0, 1, 2]) as session:
        for options in ({"ztu_modelrt_dispatch_batch": True}, {"ztu_modelrt_dispatch_batch": "1"}, Options()):
            (result,) = session.run(None, batch, options)
            assert result.tolist() == (batch * 2).tolist()
        assert set(device.core_runs) == {1, 2, 4}
        for options in (None, {}, {"other": True}, {"ztu_modelrt_dispatch_batch": False}, object()):
            with pytest.raises(FeedShapeError):
                session.run(None, batch, options)


def test_batches_that_cannot_be_spread() -> None:
    spread = {"ztu_modelrt_dispatch_batch": True}
    two = (TensorSpec("a", (1, 4), DType.FLOAT32), TensorSpec("b", (1, 4), DType.FLOAT32))
    with FakeDevice(inputs=two).open() as session:
        with pytest.raises(FeedShapeError, match="different sizes"):
            session.run(None, [np.zeros((2, 4)), np.zeros((3, 4))], spread)
        with pytest.raises(FeedShapeError, match="empty"):
            session.run(None, [np.zeros((0, 4)), np.zeros((0, 4))], spread)
    two_at_once = FakeDevice(inputs=(TensorSpec("a", (2, 4), DType.FLOAT32),))
    with two_at_once.open() as session, pytest.raises(FeedShapeError, match="only where the model's own is 1"):
        session.run(None, np.zeros((4, 4)), spread)


def test_the_first_error_of_a_batch_ends_it() -> None:
    device = FakeDevice(1, fails=lambda lane: lane.arrays[0][0, 0] == 2)
    with device.open() as session:
        batch = np.repeat(np.arange(5, dtype=np.float32)[:, None], 4, axis=1)
        with pytest.raises(Exception, match="fake device failed"):
            session.run(None, batch, {"ztu_modelrt_dispatch_batch": True})
        assert session.run(None, feed(1))[0].tolist() == [[2] * 4]


def test_a_run_has_its_core_its_priority_and_its_time() -> None:
    device = FakeDevice(3, run_time=0.2)
    with device.open() as session:
        with pytest.raises(DeviceTimeout):
            session.run(None, feed(), timeout=0.01)
        device.run_time = 0
        session.run(None, feed(), core=2)
        assert device.core_runs[4] == 1
        for wrong in (3, -1, "0"):
            with pytest.raises(OptionError, match="does not exist"):
                session.run(None, feed(), core=wrong)  # type: ignore[arg-type]


def test_a_run_that_waits_in_the_queue_gives_up_in_time() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open() as session:
        job = session.submit(None, feed())
        device.wait_entered()
        with pytest.raises(DeviceTimeout, match=r"did not finish within 0\.02 s"):
            session.run(None, feed(), timeout=0.02)
        device.gate.set()
        job.result(120)


def test_a_device_error_reaches_the_caller_and_the_next_run_works() -> None:
    failing = [True]
    device = FakeDevice(1, fails=lambda lane: failing[0])
    with device.open() as session:
        with pytest.raises(Exception, match="fake device failed") as caught:
            session.run(None, feed())
        assert caught.value.code == -1  # type: ignore[attr-defined]
        failing[0] = False
        session.run(None, feed())


def test_a_context_that_keeps_failing_is_opened_anew() -> None:
    bad: list[FakeLane] = []

    def fails(lane: FakeLane) -> bool:
        if not bad:
            bad.append(lane)
        return lane is bad[0]

    device = FakeDevice(1, fails=fails)
    with device.open() as session:
        for _ in range(3):
            with pytest.raises(Exception, match="fake device failed"):
                session.run(None, feed())
        session.run(None, feed())
        assert bad[0].closed
    assert device.open_lanes == 0


def test_after_the_end() -> None:
    device = FakeDevice(3)
    session = device.open()
    session.run(None, feed())
    session.close()
    session.close()
    assert session.closed
    assert "closed" in repr(session)
    calls: list[Any] = [
        lambda: session.run(None, feed()),
        lambda: session.run_async(None, feed(), print),
        lambda: session.submit(None, feed()),
        lambda: session.try_submit(None, feed()),
        lambda: session.run_pipeline(feed()),
        lambda: list(session.stream([feed()])),
    ]
    for call in calls:
        with pytest.raises(DeviceClosed, match="the session was closed") as caught:
            call()
        assert isinstance(caught.value, RuntimeError)
    assert session.get_inputs()[0].name == "x"
    assert device.open_lanes == device.open_backends == 0


def test_weights_of_another_session() -> None:
    device = FakeDevice()
    master = device.open()
    with InferenceSession(b"model", device=device, use_weight_from=master) as slave:
        assert device.lent == [None, master._backend]
        del master
        slave.run(None, feed())
    for wrong in (7, "master", slave):
        with pytest.raises(OptionError, match="use_weight_from"):
            InferenceSession(b"model", device=device, use_weight_from=wrong)  # type: ignore[arg-type]
    with device.open() as other, pytest.raises(OptionError, match="cannot be combined"):
        InferenceSession(b"model", device=device, use_weight_from=other, provider_options={"custom_op_path": "a.so"})


def test_fewer_contexts_than_wished_for_are_enough() -> None:
    device = FakeDevice(3, run_time=0.005, refuses=lambda mask, opened: opened >= 2)
    with device.open() as session:
        jobs = [session.submit(None, feed(value)) for value in range(12)]
        assert [job.result(120)[0][0, 0] for job in jobs] == [2 * value for value in range(12)]
        assert device.open_lanes == 2


def test_a_first_context_that_cannot_be_had_is_an_error_that_leaves_nothing_open() -> None:
    device = FakeDevice(3, refuses=lambda mask, opened: opened >= 2)
    with pytest.raises(Exception, match="no more contexts"):
        device.open(schedule=[0, 1, 2])
    assert device.open_lanes == device.open_backends == 0


def test_a_binding_of_another_session_is_refused() -> None:
    device = FakeDevice()
    with (
        device.open() as one,
        device.open() as other,
        pytest.raises(SessionError, match=r"^IoBinding belongs to a different session"),
    ):
        one.run_with_iobinding(other.io_binding())
