"""Sessions on the VIPLite calls, answered by the software NPU."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu import errors
from anynpu.session import InferenceSession, OrtValue
from anynpu.vip import Network, SoftwareLibrary, VipBackend

from .support import CHIPS, SHAPE, Calls, picture, small_file, small_onnx

FORMATS = ("w8a8", "i8", "i8dfp", "w16a16", "fp16", "bf16")


class OwnLibrary:
    """A device that is a library of the test's own."""

    def __init__(self, library: SoftwareLibrary) -> None:
        self.library = library

    def open_backend(self, model: Any, options: Any, weights_from: Any) -> Any:
        from anynpu.vip import open_backend

        return open_backend(model, options, self.library, weights_from)


@pytest.fixture
def library(open_calls: Callable[..., Calls]) -> SoftwareLibrary:
    return open_calls(init=False).library


def expected(file: bytes, chip: str = "t527", seed: int = 0) -> list[Any]:
    with Network(file, device=f"sim:{chip}") as network:
        return network.run([picture(seed)])


def equal(found: Any, due: list[Any]) -> None:
    assert len(found) == len(due)
    for one, other in zip(found, due, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", FORMATS)
def test_results_are_those_of_the_calls(dtype: str, tmp_path: Path) -> None:
    file = small_file("t527", dtype)
    path = tmp_path / "model.nb"
    path.write_bytes(file)
    due = expected(file)
    for model in (path, file):
        with InferenceSession(model) as session:
            equal(session.run(None, {"x": picture()}), due)
            (scores,) = session.run(["scores"], {"x": picture()})
            np.testing.assert_array_equal(scores, due[0])
            assert session.run(None, {"x": picture().astype(np.float64)})[0].dtype == np.float32


@pytest.mark.parametrize("chip", CHIPS.values())
def test_queue_stream_and_pipeline(chip: str) -> None:
    file = small_file(chip)
    due = [expected(file, chip, seed) for seed in range(5)]
    with InferenceSession(file, device=f"sim:{chip}", provider_options={"threads_per_core": 2}) as session:
        assert session.device == f"software NPU, {chip}, 1 core"
        jobs = [session.submit(None, {"x": picture(seed)}) for seed in range(5)]
        for job, values in zip(jobs, due, strict=True):
            equal(job.result(120), values)
        for found, values in zip(session.stream([picture(seed) for seed in range(5)], depth=3), due, strict=True):
            equal(found, values)
        done = threading.Event()
        session.run_async(None, {"x": picture(1)}, lambda results, data, error: done.set(), None)
        assert done.wait(120)


def test_what_a_session_tells() -> None:
    with InferenceSession(small_file()) as session:
        assert session.get_providers() == ["VIPLiteExecutionProvider"]
        (given,) = session.get_inputs()
        assert (given.name, given.shape, given.layout) == ("x", list(SHAPE), "NCHW")
        assert [entry.name for entry in session.get_outputs()] == ["scores", "features"]
        assert session.get_native_inputs()[0].layout == "NCHW"
    with InferenceSession(small_file(), providers=["VIPLiteExecutionProvider"]) as session:
        assert session.cores == 1
    with pytest.raises(errors.OptionError, match="another family"):
        InferenceSession(small_file(), providers=["RKNPU2ExecutionProvider"])
    with pytest.raises(errors.OptionError, match="t527"):
        InferenceSession(small_file(), provider_options={"schedule": [0, 1]})


def test_layouts_and_types() -> None:
    due = expected(small_file())
    last = np.ascontiguousarray(picture().transpose(0, 2, 3, 1))
    with InferenceSession(small_file(), provider_options={"layout": "nhwc"}) as session:
        equal(session.run(None, {"x": last}), due)
        assert session.get_inputs()[0].shape == [1, 16, 12, 3]
    with InferenceSession(small_file(), provider_options={"layout": "any"}) as session:
        equal(session.run(None, {"x": last}), due)
        equal(session.run(None, {"x": picture()}), due)
    with InferenceSession(small_file("t527", "i8"), provider_options={"output_type": "model"}) as session:
        scores, features = session.run(None, {"x": picture()})
        assert (scores.dtype, features.dtype) == (np.int8, np.int8)
        codes = next(iter(Network(small_file("t527", "i8"), device="sim:t527").inputs)).encode(picture())
        equal(session.run(None, {"x": codes}), [scores, features])
    with InferenceSession(small_file(), provider_options={"output_type": "float16"}) as session:
        assert session.run(None, {"x": picture()})[0].dtype == np.float16


def pictures() -> list[Any]:
    return [np.random.default_rng(seed).integers(0, 256, SHAPE, np.uint8) for seed in range(4)]


@pytest.mark.parametrize("node", [False, True])
def test_pictures_are_normalised_here_or_inside(node: bool) -> None:
    """The same image gives the same numbers whether mean and std are applied by a node or before the network."""
    options: dict[str, Any] = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 58.0, 57.0), "dtype": "w16a16"}
    dataset = [{"x": image} for image in pictures()]
    model = anynpu.compile(small_onnx(), target="t527", dataset=dataset, **({"preprocess": "rgb"} if node else {}), **options)
    path_bytes = anynpu.modelfile.to_bytes(model)
    mean, std = (np.array(options[key]).reshape(1, 3, 1, 1) for key in ("mean", "std"))
    import onnxruntime

    reference = onnxruntime.InferenceSession(small_onnx().SerializeToString())
    (image, *_) = pictures()
    (due, _) = reference.run(None, {"x": ((image - mean) / std).astype(np.float32)})
    with InferenceSession(path_bytes) as session:
        (scores, _) = session.run(None, {"x": image})
        np.testing.assert_allclose(scores, due, atol=0.02, rtol=0.02)
        if node:
            assert session.get_inputs()[0].type == "tensor(uint8)"
            with pytest.raises(errors.FeedTypeError):
                session.run(None, {"x": image.astype(np.float32)})
        else:
            (again, _) = session.run(None, {"x": image.astype(np.float32)})
            np.testing.assert_array_equal(again, scores)


def test_zero_copy(library: SoftwareLibrary) -> None:
    """Bytes of the network's own, in memory of the device and behind a descriptor."""
    due = expected(small_file())
    with Network(small_file(), device="sim:t527") as network:
        codes = network.inputs[0].encode(picture())
    with InferenceSession(small_file(), device=OwnLibrary(library)) as session:
        value = OrtValue.ortvalue_from_numpy(codes, "npu", session=session, name="x", layout="native")
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        for name in ("scores", "features"):
            binding.bind_output(name, "npu")
        session.run_with_iobinding(binding)
        equal([result.numpy(np.float32) for result in binding.get_outputs()], due)
        equal(session.run(None, {"x": picture()}), due)  # bound and other runs do not disturb each other
        session.submit_with_iobinding(binding).result(120)
        equal([result.numpy(np.float32) for result in binding.get_outputs()], due)
        (image, *_) = pictures()
        for array in (picture(), image):  # bytes are values, as for every session
            binding = session.io_binding()
            binding.bind_cpu_input("x", array)
            session.run_with_iobinding(binding)
            equal(binding.copy_outputs_to_cpu(), session.run(None, {"x": array}))
    del value, binding, session
    gc.collect()
    assert not library.initialised


def test_memory_by_descriptor(library: SoftwareLibrary) -> None:
    from anynpu.session.options import SessionOptions

    backend = OwnLibrary(library).open_backend(small_file(), SessionOptions(), None)
    assert isinstance(backend, VipBackend)
    fd = os.memfd_create("picture")
    os.ftruncate(fd, 8192)
    os.pwrite(fd, bytes(range(256)), 0)
    os.pwrite(fd, bytes(range(255, -1, -1)), 128)
    for nbytes, offset, first in ((576, 0, 0), (100, 128, 255), (576, 64, 64)):
        memory = backend.import_fd(fd, nbytes, offset)
        assert (memory.nbytes, memory.offset) == (nbytes, offset)
        assert memory.array()[0] == first
        assert memory.fd >= 0
        memory.array()[0] = 7
        assert os.pread(fd, 1, offset) == b"\x07"
        os.pwrite(fd, bytes([first]), offset)
        memory.close()
    with pytest.raises(errors.DeviceMemoryError, match="multiple of 64"):
        backend.import_fd(fd, 576, 3)
    own = backend.allocate(100)
    assert os.fstat(own.fd).st_size >= 100
    own.close()
    os.close(fd)
    backend.close()
    assert not library.initialised


def test_weights_are_shared_and_outlive_the_lender(library: SoftwareLibrary) -> None:
    file = small_file()
    lender = InferenceSession(file, device=OwnLibrary(library))
    weights = library.device_for(anynpu.chips.get("t527")).memory_usage().weights
    borrower = InferenceSession(file, device=OwnLibrary(library), use_weight_from=lender)
    assert library.device_for(anynpu.chips.get("t527")).memory_usage().weights == weights
    with pytest.raises(errors.SessionModelError, match="is not the network"):
        InferenceSession(small_file("t527", "w8a8", 7), device=OwnLibrary(library), use_weight_from=lender)
    lender.close()
    equal(borrower.run(None, {"x": picture()}), expected(file))
    borrower.close()
    assert not library.initialised


def test_a_run_that_is_stopped_or_out_of_time(open_calls: Callable[..., Calls]) -> None:
    library = open_calls(init=False, realtime=1e-6).library
    with InferenceSession(small_file(), device=OwnLibrary(library)) as session:
        with pytest.raises(errors.DeviceTimeout):
            session.run(None, {"x": picture()}, timeout=0.03)
        job = session.submit(None, {"x": picture()})
        device = library.device_for(anynpu.chips.get("t527"))
        while not device.scheduler.busy and not job.done():
            pass
        assert job.cancel()
        with pytest.raises(errors.JobCancelled):
            job.result(120)


def test_nothing_is_left_open(library: SoftwareLibrary) -> None:
    for options in ({}, {"threads_per_core": 2}, {"disable_dup_context": True}):
        with InferenceSession(small_file(), device=OwnLibrary(library), provider_options=options) as session:
            list(session.stream([picture(seed) for seed in range(4)]))
        assert not library.initialised
    for wrong in (b"VPMN" + bytes(40), b"no model"):
        with pytest.raises(errors.SessionModelError):
            InferenceSession(wrong, device=OwnLibrary(library))
        with pytest.raises(RuntimeError):
            InferenceSession(wrong, device="sim:t527")
    assert not library.initialised


def test_the_device_and_the_model_decide_whose_calls_are_made() -> None:
    with pytest.raises(errors.SessionModelError, match="actual target=0x1000003b"):
        InferenceSession(small_file("t527"), device="sim:a733")
    with pytest.raises(errors.AnynpuError, match="cannot be loaded"):
        InferenceSession(small_file(), device="vip:/nowhere/libNBGlinker.so")
