"""Values in memory of the caller's choice, and runs on them."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

from anynpu.errors import DeviceClosed, FeedError, FeedNameError, FeedShapeError, FeedTypeError, SessionError
from anynpu.session import InferenceSession, OrtValue
from anynpu.tensor import DType, TensorSpec

from .fake import IMAGE, FakeDevice, feed
from .test_callbacks import Collector


def test_a_value_on_the_host_is_the_array() -> None:
    array = feed(3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.numpy() is array
    assert value.data_ptr() == array.ctypes.data
    assert value.shape() == [1, 4]
    assert value.element_type() == "tensor(float)"
    assert value.device_name() == value.device_type() == "cpu"
    assert value.device_id() == 0
    assert value.is_tensor()
    assert value.has_value()
    value.update_inplace(feed(5))
    assert array.tolist() == [[5] * 4]
    assert value.numpy(np.float16).dtype == np.float16
    assert value.memory_info() == {"device_type": "cpu", "device_id": 0}
    with pytest.raises(FeedShapeError):
        value.update_inplace(np.zeros((2, 2), np.float32))
    empty = OrtValue.ortvalue_from_shape_and_type([2, 3], np.int64)
    assert empty.numpy().tolist() == [[0] * 3] * 2
    assert OrtValue.ortvalue_from_shape_and_type([1], "tensor(float)").element_type() == "tensor(float)"


def test_a_value_on_the_device() -> None:
    with FakeDevice().open() as session:
        value = OrtValue.ortvalue_from_numpy(feed(3), "npu", session=session, name="x")
        assert value.device_name() == "npu"
        assert value.numpy().tolist() == [[3] * 4]
        info = value.memory_info()
        assert info["fd"] >= 0
        assert info["dmabuf_backed"]
        assert (info["size"], info["attr_size"]) == (16, 16)
        assert info["virt_addr"] == value.data_ptr() != 0
        value.update_inplace(feed(4))
        assert value.numpy().tolist() == [[4] * 4]
        value.sync_to_device()
        value.sync_from_device()
        other = OrtValue.ortvalue_from_shape_and_type([1, 4], np.float32, "rknpu2", session=session, name="y", io_kind="output")
        assert other.numpy().tolist() == [[0] * 4]


def test_values_that_cannot_be() -> None:
    with FakeDevice().open() as session:
        calls: list[tuple[Any, type[Exception], str]] = [
            (lambda: OrtValue.ortvalue_from_numpy(feed(), "npu"), FeedError, "needs session and name"),
            (lambda: OrtValue.ortvalue_from_numpy(feed(), "gpu"), FeedError, "there is no device 'gpu'"),
            (lambda: OrtValue.ortvalue_from_numpy(feed(), "npu", session=session, name="z"), FeedNameError, "no input 'z'"),
            (
                lambda: OrtValue.ortvalue_from_numpy(feed(), "npu", session=session, name="x", io_kind="in"),
                FeedError,
                "io_kind",
            ),
            (
                lambda: OrtValue.ortvalue_from_shape_and_type([2, 4], "float32", "npu", session=session, name="x"),
                FeedShapeError,
                r"takes \[1, 4\]",
            ),
            (
                lambda: OrtValue.ortvalue_from_shape_and_type([1, 4], "int64", "npu", session=session, name="x"),
                FeedTypeError,
                "not int64",
            ),
            (lambda: OrtValue.ortvalue_from_shape_and_type([1, 4], "nonsense"), FeedTypeError, "no element type"),
        ]
        for call, kind, text in calls:
            with pytest.raises(kind, match=text):
                call()


def test_memory_behind_a_descriptor_is_used_where_it_lies() -> None:
    fd = os.memfd_create("camera")
    os.ftruncate(fd, 8192)
    os.pwrite(fd, feed(7).tobytes(), 4096 + 64)
    with FakeDevice().open() as session:
        for owner in (session, None):
            arguments = {} if owner is None else {"session": owner, "name": "x"}
            value = OrtValue.ortvalue_from_dmabuf(fd, [1, 4], np.float32, size=16, offset=4096 + 64, **arguments)
            assert value.numpy().tolist() == [[7] * 4], "the offset counts for the host too"
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", value)
            session.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0].tolist() == [[14] * 4]
        with pytest.raises(FeedShapeError, match="16 bytes, the memory has 8"):
            OrtValue.ortvalue_from_dmabuf(fd, [1, 4], np.float32, size=8)
    os.close(fd)


def test_a_run_on_host_arrays_reads_them_anew_each_time() -> None:
    with FakeDevice().open() as session:
        binding = session.io_binding()
        array = feed(1)
        binding.bind_cpu_input("x", array)
        for value in (1, 2, 3):
            array[:] = value
            session.run_with_iobinding(binding)
            assert binding.copy_outputs_to_cpu()[0].tolist() == [[2 * value] * 4]
        assert [value.device_name() for value in binding.get_outputs()] == ["cpu"]


def test_outputs_in_memory_of_every_kind() -> None:
    with FakeDevice().open() as session:
        target = np.zeros((1, 4), np.float32)
        host = OrtValue.ortvalue_from_numpy(target)
        device = OrtValue.ortvalue_from_shape_and_type([1, 4], np.float32, "npu", session=session, name="y", io_kind="output")
        raw = np.zeros((1, 4), np.float16)
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(3))
        for bind in (
            lambda: binding.bind_ortvalue_output("y", host),
            lambda: binding.bind_ortvalue_output("y", device),
            lambda: binding.bind_output("y"),
            lambda: binding.bind_output("y", "npu"),
            lambda: binding.bind_output("y", "cpu", 0, np.float16, [1, 4], raw.ctypes.data),
        ):
            bind()
            session.run_with_iobinding(binding)
            binding.synchronize_inputs()
            binding.synchronize_outputs()
            assert binding.copy_outputs_to_cpu()[0].tolist() == [[6] * 4]
        assert target.tolist() == raw.tolist() == device.numpy().tolist() == [[6] * 4]


def test_host_memory_at_an_address() -> None:
    with FakeDevice().open() as session:
        array = feed(8)
        binding = session.io_binding()
        binding.bind_input("x", "cpu", 0, np.float32, [1, 4], array.ctypes.data)
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == [[16] * 4]
        with pytest.raises(FeedError, match="by its address"):
            binding.bind_input("x", "npu", 0, np.float32, [1, 4], array.ctypes.data)
        with pytest.raises(FeedError, match="by its address"):
            binding.bind_output("y", "npu", buffer_ptr=array.ctypes.data)


def test_bindings_that_cannot_be() -> None:
    with FakeDevice().open() as session:
        binding = session.io_binding()
        with pytest.raises(FeedNameError, match=r"^All model inputs must be bound before run_with_iobinding; 'x' is not"):
            session.run_with_iobinding(binding)
        for call, kind in (
            (lambda: binding.bind_cpu_input("z", feed()), FeedNameError),
            (lambda: binding.bind_cpu_input("x", feed()[0]), FeedShapeError),
            (lambda: binding.bind_output("z"), FeedNameError),
            (lambda: binding.bind_output("y", shape=[2, 2]), FeedShapeError),
            (lambda: binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(np.zeros((2, 2)))), FeedShapeError),
        ):
            with pytest.raises(kind):
                call()
        binding.bind_cpu_input("x", feed())
        binding.clear_binding_inputs()
        with pytest.raises(FeedNameError):
            session.run_with_iobinding(binding)
        assert binding.get_outputs() == []
        binding.bind_cpu_input("x", feed())
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert len(binding.get_outputs()) == 1
        binding.clear_binding_outputs()
        assert binding.get_outputs() == []


def test_values_of_an_image_are_laid_out_for_the_device() -> None:
    outputs = (TensorSpec("y", (1, 3, 4, 5), DType.FLOAT32),)
    picture = np.arange(60, dtype=np.uint8).reshape(1, 3, 4, 5)
    device = FakeDevice(inputs=(IMAGE,), outputs=outputs)
    with device.open() as session:
        value = OrtValue.ortvalue_from_numpy(picture, "npu", session=session, name="image")
        assert (value.memory_info()["fmt"], value.memory_info()["layout"]) == (1, "NHWC")
        assert value.numpy().tolist() == picture.tolist()
        binding = session.io_binding()
        binding.bind_ortvalue_input("image", value)
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == (picture.astype(np.float32) * 2).tolist()
        assert device.bound_runs[-1][1][0].dtype is DType.UINT8
    with device.open(layout="nhwc") as session:
        binding = session.io_binding()
        binding.bind_cpu_input("image", np.ascontiguousarray(picture.transpose(0, 2, 3, 1)))
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == (picture.astype(np.float32) * 2).tolist()


def test_bound_runs_on_any_core_and_in_the_background() -> None:
    device = FakeDevice(3, run_time=0.002)
    with device.open() as session:
        bindings = []
        for value in range(6):
            binding = session.io_binding()
            binding.bind_cpu_input("x", feed(value))
            bindings.append(binding)
        session.run_with_iobinding(bindings[0], core=2)
        jobs = [session.submit_with_iobinding(binding, core=number % 3) for number, binding in enumerate(bindings)]
        assert [job.result(120) for job in jobs] == [[]] * 6
        collector = Collector(6)
        for number, binding in enumerate(bindings):
            session.run_async_with_iobinding(binding, collector, number)
        assert [(results, number) for results, number, _ in collector.wait()] == [([], number) for number in range(6)]
        assert [binding.copy_outputs_to_cpu()[0][0, 0] for binding in bindings] == [2 * value for value in range(6)]
        assert {mask for mask, _ in device.bound_runs} >= {1, 2, 4}
        with pytest.raises(TypeError):
            session.run_async_with_iobinding(bindings[0], 7)  # type: ignore[arg-type]
    assert device.violations == []


def test_a_binding_is_in_one_run_at_a_time() -> None:
    device = FakeDevice(3, gated=True)
    assert device.gate is not None
    with device.open() as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(1))
        job = session.submit_with_iobinding(binding)
        device.wait_entered()
        with pytest.raises(SessionError, match="has not finished"):
            session.run_with_iobinding(binding)
        with pytest.raises(SessionError, match="has not finished"):
            binding.bind_cpu_input("x", feed(2))
        device.gate.set()
        job.result(120)
        session.run_with_iobinding(binding)


def test_a_failed_run_lets_go_of_its_binding() -> None:
    failing = [True]
    with FakeDevice(1, fails=lambda lane: failing[0]).open() as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(1))
        for _ in range(2):
            with pytest.raises(Exception, match="fake device failed"):
                session.run_with_iobinding(binding)
        failing[0] = False
        session.run_with_iobinding(binding)


def test_a_binding_outlives_the_name_of_its_session() -> None:
    def bound() -> Any:
        session = FakeDevice().open()
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(2))
        session.run_with_iobinding(binding)
        return binding

    binding = bound()
    gc.collect()
    assert binding.copy_outputs_to_cpu()[0].tolist() == [[4] * 4]
    session: InferenceSession = binding._session
    session.close()
    with pytest.raises(DeviceClosed):
        session.run_with_iobinding(binding)


def test_a_value_says_where_it_lies_as_it_was_asked_for() -> None:
    with FakeDevice().open() as session:
        for name in ("npu", "rknpu2", "RKNPU2"):
            value = OrtValue.ortvalue_from_numpy(feed(), name, session=session, name="x")
            assert value.device_name() == value.device_type() == value.memory_info()["device_type"] == name.lower()
        binding = session.io_binding()
        binding.bind_output("y", "rknpu2")
        (output,) = binding.get_outputs()
        assert output.device_type() == "rknpu2"
        with pytest.raises(FeedError, match="there is no device 'cuda'"):
            OrtValue.ortvalue_from_numpy(feed(), "cuda", session=session, name="x")


def test_memory_info_of_device_memory() -> None:
    outputs = (TensorSpec("y", (1, 3, 4, 5), DType.FLOAT32),)
    with FakeDevice(inputs=(IMAGE,), outputs=outputs).open() as session:
        value = OrtValue.ortvalue_from_numpy(np.zeros((1, 3, 4, 5), np.float32), "npu", session=session, name="image")
        info = value.memory_info()
        assert set(info) >= {"size", "fd", "offset", "virt_addr", "dmabuf_backed"}
        assert {key: info[key] for key in ("device_id", "import_count", "h_stride", "core_id", "fmt", "layout")} == {
            "device_id": 0,
            "import_count": 1,
            "h_stride": 0,
            "core_id": -1,
            "fmt": 1,
            "layout": "NHWC",
        }
        assert info["w_stride"] >= 5
        assert info["attr_size"] == value.tensor_size_in_bytes() == 240
        assert info["size_with_stride"] == 4 * info["w_stride"] * 3 * 4 <= info["aligned_size"] == info["size"]
        assert info["strides"] == [240, 60, 12, 4]
        assert not info["pass_through"]


def test_device_memory_without_a_session() -> None:
    value = OrtValue.ortvalue_from_shape_and_type([1, 4], np.float32, "rknpu2")
    info = value.memory_info()
    assert (info["device_type"], info["fmt"], info["import_count"], info["size_with_stride"]) == ("rknpu2", 3, 0, 16)
    assert not value.numpy().any()
    value.update_inplace(feed(5))
    assert value.numpy().tolist() == feed(5).tolist()
    with FakeDevice().open() as session:
        binding = session.io_binding()
        with pytest.raises(FeedTypeError, match=r"^OrtValue for input 'x' native zero-copy layout mismatch"):
            binding.bind_ortvalue_input("x", value)
        wrong = OrtValue.ortvalue_from_shape_and_type([1, 5], np.float32, "rknpu2")
        with pytest.raises(FeedShapeError, match=r"^OrtValue for output 'y' shape mismatch"):
            binding.bind_ortvalue_output("y", wrong)
        with pytest.raises(FeedShapeError, match=r"^OrtValue for output 'y' shape mismatch"):
            binding.bind_output("y", "rknpu2", shape=[1, 5])
        with pytest.raises(FeedTypeError, match=r"^OrtValue for output 'y' element type mismatch"):
            binding.bind_output("y", "rknpu2", element_type=np.float16)
        with pytest.raises(FeedShapeError, match=r"^OrtValue for input 'x' shape mismatch"):
            OrtValue.ortvalue_from_shape_and_type([1, 5], np.float32, "rknpu2", session=session, name="x")
        with pytest.raises(FeedTypeError, match=r"^OrtValue for input 'x' element type mismatch"):
            OrtValue.ortvalue_from_shape_and_type([1, 4], np.float16, "rknpu2", session=session, name="x")
        assert OrtValue.ortvalue_from_shape_and_type([1, 4], np.float16, "rknpu2", session=session, name="x", layout="onnx")


def test_an_output_is_the_next_input() -> None:
    """Memory of an output that lies as the input does can be bound to it; nothing is copied between the runs."""
    with FakeDevice().open() as session:
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(3))
        binding.bind_output("y", "npu")
        session.run_with_iobinding(binding)
        following = session.io_binding()
        following.bind_ortvalue_input("x", binding.get_outputs()[0])
        session.run_with_iobinding(following)
        assert following.copy_outputs_to_cpu()[0].tolist() == [[12] * 4]


def test_values_are_shown_in_the_layout_of_the_session() -> None:
    outputs = (TensorSpec("y", (1, 3, 4, 5), DType.FLOAT32),)
    picture = np.arange(60, dtype=np.uint8).reshape(1, 4, 5, 3)
    with FakeDevice(inputs=(IMAGE,), outputs=outputs).open(layout="nhwc") as session:
        value = OrtValue.ortvalue_from_numpy(picture, "npu", session=session, name="image")
        assert value.shape() == session.get_inputs()[0].shape == [1, 4, 5, 3]
        assert value.numpy().tolist() == picture.tolist()
        value.update_inplace(picture + 1)
        assert value.numpy().tolist() == (picture + 1).tolist()
        binding = session.io_binding()
        binding.bind_output("y", "npu")
        assert binding.get_outputs()[0].shape() == session.get_outputs()[0].shape == [1, 3, 4, 5]


def test_dlpack_shares_memory() -> None:
    array = feed(3)
    value = OrtValue.from_dlpack(array)
    assert value.data_ptr() == array.ctypes.data
    assert np.shares_memory(np.from_dlpack(value), array)
    assert value.__dlpack_device__() == (1, 0)
    assert OrtValue.from_dlpack(array.__dlpack__()).data_ptr() == array.ctypes.data
    truths = OrtValue.from_dlpack(np.array([0, 1], np.uint8), is_bool_tensor=True)
    assert truths.data_type() == "tensor(bool)"
    assert (value.data_type(), value.tensor_size_in_bytes()) == ("tensor(float)", 16)
    assert not value.is_sparse_tensor()
    assert not value.is_tensor_sequence()


def test_the_names_of_ez_rknn_async() -> None:
    from importlib import metadata

    from anynpu import session

    assert session.make_rknpu2_provider_options is session.make_provider_options
    assert session.Rknpu2ProviderOptions is session.RknnProviderOptions
    assert session.SessionIOBinding is session.IOBinding
    assert session.__version__ == metadata.version("anynpu")
