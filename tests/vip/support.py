"""What tests of VIPLite share: small models, and calls as a C program makes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile
from anynpu._vip import ffi
from anynpu.program import Model
from anynpu.vip import SoftwareLibrary

Array = npt.NDArray[Any]

SHAPE = (1, 3, 16, 12)
CHIPS = {"A": "v853", "B": "t527", "C": "a733"}
"""A chip of each generation."""

FILE, MEMORY = 1, 2


def small_onnx(outputs: int = 5) -> onnx.ModelProto:
    """A convolution that is also an output, and a classifier behind it."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["features"]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w2"], ["scores"]),
    ]
    weights = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, outputs)}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, outputs]),
            helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 8, 8, 6]),
        ],
        [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@functools.cache
def small_model(chip: str = "t527", dtype: str = "w8a8", outputs: int = 5) -> Model:
    """The model above, compiled."""
    rng = np.random.default_rng(4)
    samples = [{"x": rng.normal(size=SHAPE).astype(np.float32)} for _ in range(4)]
    dataset = None if dtype in ("fp16", "bf16") else samples
    return anynpu.compile(small_onnx(outputs), target=chip, dtype=dtype, dataset=dataset)


@functools.cache
def small_file(chip: str = "t527", dtype: str = "w8a8", outputs: int = 5) -> bytes:
    """Its file."""
    return modelfile.to_bytes(small_model(chip, dtype, outputs))


def picture(seed: int = 0) -> Array:
    """Values for its input."""
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


class Calls:
    """The calls of a library with the pointers that C needs; each method asserts that the call succeeds."""

    def __init__(self, library: SoftwareLibrary, *, init: bool = True, memory: int = 0) -> None:
        self.library = library
        if init:
            self.ok(library.vip_init(memory))

    def ok(self, status: int) -> None:
        assert status == 0, self.library.last_error()

    def create(self, data: bytes, kind: int = MEMORY) -> Any:
        network = ffi.new("vip_network *")
        source = ffi.from_buffer(data) if kind == MEMORY else ffi.new("char[]", data)
        self.ok(self.library.vip_create_network(source, len(data) if kind == MEMORY else 0, kind, network))
        return network[0]

    def query(self, call: Callable[..., int], *arguments: Any, kind: str = "uint32_t *") -> Any:
        value = ffi.new(kind)
        self.ok(call(*arguments, value))
        return value

    def number(self, network: Any, property: int, kind: str = "uint32_t *") -> int:
        return int(self.query(self.library.vip_query_network, network, property, kind=kind)[0])

    def params(self, network: Any, index: int, *, is_input: bool) -> Any:
        ask = self.library.vip_query_input if is_input else self.library.vip_query_output
        params = ffi.new("vip_buffer_create_params_t *")
        params.num_of_dims = self.query(ask, network, index, 1)[0]
        self.ok(ask(network, index, 2, params.sizes))
        params.data_format = self.query(ask, network, index, 3, kind="int32_t *")[0]
        params.quant_format = self.query(ask, network, index, 0, kind="int32_t *")[0]
        if params.quant_format == 1:
            params.quant_data.dfp.fixed_point_pos = self.query(ask, network, index, 4, kind="int32_t *")[0]
        elif params.quant_format == 2:
            params.quant_data.affine.scale = self.query(ask, network, index, 5, kind="float *")[0]
            params.quant_data.affine.zeroPoint = self.query(ask, network, index, 6, kind="int32_t *")[0]
        return params

    def buffer(self, params: Any) -> Any:
        buffer = ffi.new("vip_buffer *")
        self.ok(self.library.vip_create_buffer(params, ffi.sizeof("vip_buffer_create_params_t"), buffer))
        return buffer[0]

    def bind_all(self, network: Any) -> tuple[list[Any], list[Any]]:
        """New buffers for everything."""
        sides: tuple[list[Any], list[Any]] = ([], [])
        for side, count, call in ((0, 1, self.library.vip_set_input), (1, 2, self.library.vip_set_output)):
            for index in range(self.number(network, count)):
                buffer = self.buffer(self.params(network, index, is_input=side == 0))
                self.ok(call(network, index, buffer))
                sides[side].append(buffer)
        return sides

    def ready(self, data: bytes | None = None) -> tuple[Any, list[Any], list[Any]]:
        """A network that can run."""
        network = self.create(small_file() if data is None else data)
        self.ok(self.library.vip_prepare_network(network))
        return network, *self.bind_all(network)

    def bytes(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """The memory of a buffer."""
        size = self.library.vip_get_buffer_size(buffer)
        return np.frombuffer(ffi.buffer(self.library.vip_map_buffer(buffer), size), np.uint8)

    def why(self, status: int) -> str:
        """The words for a call that failed with *status*."""
        failure = self.library.last_error()
        assert failure is not None
        assert failure.status == status, failure
        return failure.text
