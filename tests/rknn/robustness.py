"""Models and small helpers of the tests that misuse, share and soak the software library."""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from waiting import wait_until

import anynpu
from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.program import Custom, Layer, MemoryPlan, Model, Placement, Program
from anynpu.rknn.software.library import SoftwareLibrary
from anynpu.tensor import DType, Layout, TensorSpec


@dataclass(frozen=True)
class Sample:
    """A model as a caller has it.

    :ivar network: of models that have the same weights on the same chip it is the same
    """

    name: str
    model: Model
    data: bytes
    network: str

    @property
    def weightless(self) -> bool:
        return self.name == "bare"


def picture_network(channels: int = 8) -> Any:
    """An image through two convolutions; the outputs are an image and a vector."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array((rng.standard_normal((channels, 3, 3, 3)) * 0.2).astype(np.float32), "w"),
        numpy_helper.from_array((rng.standard_normal((5, channels, 1, 1)) * 0.2).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["y"]),
        helper.make_node("GlobalAveragePool", ["b"], ["p"]),
        helper.make_node("Flatten", ["p"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "picture",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def pair_network() -> Any:
    """Two inputs of different kinds, one output."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(4)
    weights = [numpy_helper.from_array((rng.standard_normal((4, 3, 1, 1)) * 0.3).astype(np.float32), "w")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "gain"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pair",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 6]),
            helper.make_tensor_value_info("gain", TensorProto.FLOAT, [1, 4, 1, 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def custom_model() -> Model:
    """x -> y by a custom operator of type Twice."""
    tensors = {name: TensorSpec(name, (1, 3, 8, 8), DType.FLOAT32, Layout.NCHW) for name in ("x", "y")}
    layer = Layer("twice", "Twice", Custom("Twice", {}), ("x",), ("y",), Placement.CPU, "custom")
    return Model("rk3588", "fp16", (Program(("x",), ("y",), tensors, (layer,), MemoryPlan({}, 0)),), name="custom")


@functools.lru_cache(maxsize=1)
def samples() -> Mapping[str, Sample]:
    """Models of several kinds and chips, by name."""
    rng = np.random.default_rng(0)
    picture, pair = picture_network(), pair_network()
    images = [(rng.random((1, 3, 8, 8)) * 255).astype(np.float32) for _ in range(2)]
    small = {"x": (1, 3, 8, 8)}
    norm: dict[str, Any] = {"mean": (100, 110, 120), "std": (50, 60, 70)}
    numbers = {"x": rng.random((1, 3, 4, 6)).astype(np.float32), "gain": rng.random((1, 4, 1, 1)).astype(np.float32)}
    int8 = anynpu.compile(picture, "rk3588", dataset=images, shapes=small, custom_string="words", name="int8", **norm)
    models = {
        "int8": int8,
        "fp16": anynpu.compile(picture, "rk3588", dtype="fp16", shapes=small, name="fp16"),
        "pair": anynpu.compile(pair, "rk3588", dataset=[numbers], name="pair"),
        "batch": anynpu.compile(picture, "rk3588", dataset=images, shapes={"x": (3, 3, 8, 8)}, name="batch", **norm),
        "dynamic": anynpu.compile(
            picture, "rk3588", dataset=images, shapes=[small, {"x": (1, 3, 12, 8)}, {"x": (1, 3, 4, 4)}], name="dynamic"
        ),
        "single": anynpu.compile(picture, "rk3566", dataset=images, shapes=small, name="single", **norm),
        "custom": custom_model(),
        "mini": anynpu.compile(picture, "rv1106", dataset=images, shapes=small, name="mini", **norm),
    }
    made = {name: Sample(name, model, modelfile.to_bytes(model), _digest(model)) for name, model in models.items()}
    made["bare"] = Sample("bare", int8, modelfile.to_bytes(int8, remove_weight=True), _digest(int8))
    return made


def _digest(model: Model) -> str:
    pieces = modelfile.encode(model).weight_pieces()
    return f"{model.chip} {hashlib.sha256(b''.join(pieces)).hexdigest()}"


def init(library: SoftwareLibrary, name: str, flags: int = 0) -> int:
    """A context of a sample, which must succeed."""
    handle = ffi.new("rknn_context *")
    data = samples()[name].data
    code = library.rknn_init(handle, ffi.from_buffer(data), len(data), flags, ffi.NULL)
    assert code == 0, library.last_error()
    return int(handle[0])


def image(seed: int = 0, shape: tuple[int, ...] = (1, 8, 8, 3)) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An image of noise."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def set_image(library: SoftwareLibrary, handle: int, picture: np.ndarray[Any, Any]) -> int:
    """``rknn_inputs_set`` for a model with one input, as uint8 NHWC."""
    inputs = ffi.new("rknn_input[1]")
    inputs[0].buf = ffi.cast("void *", picture.ctypes.data)
    inputs[0].size = picture.nbytes
    inputs[0].type, inputs[0].fmt = 3, 1
    return int(library.rknn_inputs_set(handle, 1, inputs))


def get_outputs(library: SoftwareLibrary, handle: int, count: int = 2, want_float: bool = True) -> tuple[int, list[bytes]]:
    """``rknn_outputs_get`` and release: the code, and what came."""
    outputs = ffi.new("rknn_output[]", count)
    for index in range(count):
        outputs[index].index, outputs[index].want_float = index, int(want_float)
    code = library.rknn_outputs_get(handle, count, outputs, ffi.NULL)
    if code:
        return code, []
    values = [bytes(ffi.buffer(outputs[index].buf, outputs[index].size)) for index in range(count)]
    library.rknn_outputs_release(handle, count, outputs)
    return 0, values


class Surprises(logging.Handler):
    """Keeps what the library reports as a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(logging.Formatter().format(record))

    def __enter__(self) -> Surprises:
        logging.getLogger("anynpu.rknn").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("anynpu.rknn").removeHandler(self)


@dataclass(frozen=True)
class Footprint:
    """What a process has open."""

    fds: int
    threads: int

    @classmethod
    def now(cls) -> Footprint:
        """After everything that was forgotten is gone."""
        gc.collect()
        return cls(len(os.listdir("/proc/self/fd")), threading.active_count())

    def assert_unchanged(self) -> None:
        """No more than this is open; threads get a moment to end."""
        wait_until(lambda: threading.active_count() <= self.threads, "the threads end")
        now = Footprint.now()
        assert now.fds <= self.fds, (self, now)
        assert now.threads <= self.threads, (self, now, threading.enumerate())


def assert_empty(library: SoftwareLibrary) -> None:
    """Nothing is left in the library's tables and on the accounts of its devices."""
    gc.collect()
    assert len(library.memories) == 0
    assert len(library.handles) == 0
    for device, sram in library._devices.values():
        usage = device.memory_usage()
        assert usage.total == 0, usage
        assert sram.free == sram.total


def resident_bytes() -> int:
    """Memory of this process that is in RAM, without files and shared memory that others have."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
