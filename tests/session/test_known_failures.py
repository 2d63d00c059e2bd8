"""What goes wrong with EZ RKNN Async 0.11.0, one test for each; here it must not."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from anynpu.errors import AnynpuError, OptionError
from anynpu.session import InferenceSession, make_provider_options
from anynpu.tensor import DType, TensorSpec

from .fake import FakeDevice, feed
from .test_callbacks import Collector, wait_until


def test_01_deleting_sessions_never_hangs() -> None:
    """Ten thousand of these, twice: test_safety.py."""
    device = FakeDevice(3)
    for _ in range(500):
        session = device.open(schedule=[0, 1, 2])
        session.run_async(None, feed(), lambda *answer: None)
        del session
    assert wait_until(lambda: device.open_backends == 0)


def test_02_an_empty_list_of_output_names_means_all() -> None:
    with FakeDevice(1).open() as session:
        collector = Collector(1)
        session.run_async([], feed(2), collector)
        assert collector.wait()[0][0][0].tolist() == [[4] * 4]


def test_03_a_binding_survives_the_name_of_its_session() -> None:
    session = FakeDevice(1).open()
    binding = session.io_binding()
    binding.bind_cpu_input("x", feed(2))
    session.run_with_iobinding(binding)
    del session
    gc.collect()
    binding.bind_cpu_input("x", feed(3))
    assert binding.copy_outputs_to_cpu()[0].tolist() == [[4] * 4]


def test_04_cores_that_do_not_exist_are_an_exception() -> None:
    device = FakeDevice(1)
    with pytest.raises(OptionError, match=r"the schedule \[0, 1\] names core 1: fake1 has 1 core"):
        device.open(schedule=[0, 1])
    refusing = FakeDevice(3, refuses=lambda mask, opened: mask == 2)
    with pytest.raises(AnynpuError, match="no more contexts"):
        refusing.open(schedule=[0, 1])
    assert device.open_backends == refusing.open_backends == refusing.open_lanes == 0


def test_05_a_callback_may_run_and_may_drop_the_session() -> None:
    device = FakeDevice(1)
    held = [device.open()]
    collector = Collector(1)

    def callback(results: Any, user_data: Any, err: str) -> None:
        again = held[0].run(None, feed(5))
        held.clear()
        collector(again, user_data, err)

    held[0].run_async(None, feed(), callback)
    assert collector.wait()[0][0][0].tolist() == [[10] * 4]
    assert wait_until(lambda: device.open_backends == 0)


def test_07_dynamic_shapes_are_chosen_from_the_input() -> None:
    device = FakeDevice(1, shape_sets=(((1, 4),), ((1, 8),)))
    with device.open() as session:
        session.run(None, np.zeros((1, 8), np.float32))
        session.run(None, np.zeros((1, 4), np.float32))
        assert [shape_set for _, _, shape_set in device.writes] == [1, 0]


def test_08_integers_stay_integers() -> None:
    """With the values that a float32 cannot hold, on the software NPU: tests/rknn/test_backend.py; test 6 is there too."""
    device = FakeDevice(1, outputs=(TensorSpec("ids", (1, 1), DType.INT64),))
    with device.open() as session:
        assert session.run(None, feed(3))[0].dtype == np.int64


def test_09_inputs_and_options() -> None:
    frozen = np.frombuffer(feed(3).tobytes(), np.float32).reshape(1, 4)
    with FakeDevice(1).open() as session:
        for array in (frozen, feed(3).astype(np.float64), feed(3).astype(">f4"), [[3, 3, 3, 3]]):
            assert session.run(None, {"x": array})[0].tolist() == [[6] * 4]
    for wrong in ({"schedule": "0,x"}, {"max_queue_size": -1}):
        with pytest.raises(OptionError):
            FakeDevice(1).open(**wrong)


def test_10_the_queue_never_holds_more_than_it_may_and_never_loses_a_wake_up() -> None:
    device = FakeDevice(1, run_time=0.0002)
    most = 0
    with device.open(max_queue_size=2, submit_timeout_ms=60000) as session:
        group = session._runner.machine._main

        def submit() -> None:
            nonlocal most
            for _ in range(50):
                session.submit(None, feed())
                most = max(most, len(group.queue))

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
    assert most <= 2
    assert sum(device.core_runs.values()) == 400


def test_11_a_constructor_that_fails_leaves_nothing_open() -> None:
    device = FakeDevice(3, refuses=lambda mask, opened: opened >= 2)
    for options in ({"schedule": [0, 1, 2]}, {"schedule": [5]}, {"output_type": {"nothing": "model"}}):
        with pytest.raises(AnynpuError):
            device.open(**options)
    assert device.open_lanes == device.open_backends == 0


def test_12_what_was_missing_is_there() -> None:
    for name in (
        "drain",
        "submit",
        "arun",
        "stream",
        "close",
        "try_submit",
        "submit_with_iobinding",
        "statistics",
        "write_trace",
    ):
        assert hasattr(InferenceSession, name)
    device = FakeDevice(3)
    with device.open(**make_provider_options(schedule=[0])) as session:
        session.run(None, feed(), core=2)
        assert device.core_runs == {4: 1}


def test_13_a_synchronous_run_copies_nothing_itself() -> None:
    device = FakeDevice(1)
    with device.open() as session:
        array = feed(1)
        session.run(None, {"x": array})
        ((given,), _, _) = device.writes[0]
        assert given is array


def test_14_without_an_npu_there_is_the_software_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from npu.builders import dense_chain

    from anynpu import modelfile

    monkeypatch.setenv("ANYNPU_DEVICE", "sim")
    model = modelfile.to_bytes(dense_chain())
    with InferenceSession(model) as session:
        assert session.device == "software NPU, rk3588, 3 cores"
        session.run(None, np.zeros((1, 8), np.float32))
    with pytest.raises(AnynpuError, match="cannot be loaded") as caught:
        InferenceSession(model, device="rknn:/nowhere/librknnrt.so")
    assert "ANYNPU_RKNN_LIBRARY" in caught.value.hint
