"""Models for the tests of the RKNN calls, compiled once for each chip, and the calls that every test begins with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from compiler.onnx_builders import Net, feeds

import anynpu
from anynpu import chips, modelfile
from anynpu._rknn import ffi
from anynpu.program import Model
from anynpu.rknn.constants import rknn_query_cmd, rknn_tensor_format, rknn_tensor_type
from anynpu.rknn.interface import RknnLibrary

Array = npt.NDArray[Any]

NULL = ffi.NULL
RKNN_CHIPS = tuple(chip.name for chip in chips.all_chips() if chip.family == "rknn")
MINI = tuple(name for name in RKNN_CHIPS if chips.get(name).library == "librknnmrt")

FP32, FP16 = rknn_tensor_type.RKNN_TENSOR_FLOAT32, rknn_tensor_type.RKNN_TENSOR_FLOAT16
INT8, UINT8 = rknn_tensor_type.RKNN_TENSOR_INT8, rknn_tensor_type.RKNN_TENSOR_UINT8
INT64 = rknn_tensor_type.RKNN_TENSOR_INT64
NCHW, NHWC = rknn_tensor_format.RKNN_TENSOR_NCHW, rknn_tensor_format.RKNN_TENSOR_NHWC
NC1HWC2, UNDEFINED = rknn_tensor_format.RKNN_TENSOR_NC1HWC2, rknn_tensor_format.RKNN_TENSOR_UNDEFINED

HEIGHT, WIDTH, CHANNELS, CLASSES = 6, 20, 20, 10
MEAN, STD = (100.0, 110.0, 120.0), (60.0, 50.0, 55.0)


@functools.cache
def picture_model(chip: str = "rk3588", dtype: str = "w8a8", batch: int = 1, seed: int = 0) -> Model:
    """An image of 3 x 6 x 20, whose rows every chip pads; gives feature maps of 20 channels and 10 scores."""
    net = Net(seed=seed)
    maps = net.op("Relu", net.conv(net.input("image", (batch, 3, HEIGHT, WIDTH)), CHANNELS, pads=[1, 1, 1, 1]))
    pooled = net.op("Flatten", net.op("GlobalAveragePool", maps))
    scores = net.op("Gemm", pooled, net.weights(CHANNELS, CLASSES), net.weights(CLASSES))
    net.output(maps, scores)
    samples = feeds(net.proto(), 3, low=0, high=255)
    return anynpu.compile(
        net.proto(), target=chip, dataset=samples, mean=MEAN, std=STD, dtype=dtype, custom_string="RGB", name=f"picture {seed}"
    )


@functools.cache
def features_model(chip: str = "rk3588", dtype: str = "w8a8") -> Model:
    """Inputs that are no images: 20 channels, which the NPU reads in blocks, and a vector."""
    net = Net(seed=5)
    maps = net.conv(net.input("features", (1, 20, 4, 6)), 12)
    vector = net.op("Gemm", net.input("vector", (1, 24)), net.weights(24, 12), net.weights(12))
    net.output(net.op("Relu", maps), net.op("Relu", vector))
    return anynpu.compile(net.proto(), target=chip, dataset=feeds(net.proto(), 3), dtype=dtype, name="features")


@functools.cache
def dynamic_model(chip: str = "rk3588") -> Model:
    """A model with two sets of shapes: an image of 8 x 8 and a vector of 4, or 12 x 16 and 6."""
    net = Net(seed=6)
    maps = net.conv(net.input("image", (1, 3, "h", "w")), 4, pads=[1, 1, 1, 1])
    net.output(net.op("Relu", maps), net.op("Relu", net.input("vector", (1, "n"))))
    shapes = [{"image": (1, 3, 8, 8), "vector": (1, 4)}, {"image": (1, 3, 12, 16), "vector": (1, 6)}]
    random = np.random.default_rng(3)
    samples = [
        {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in sizes.items()} for sizes in shapes[:1] * 3
    ]
    return anynpu.compile(net.proto(), target=chip, dataset=samples, shapes=shapes, name="dynamic")


@functools.cache
def resolution_model(side: int, chip: str = "rk3588") -> Model:
    """The same weights for images of another size: what weights are shared for."""
    net = Net(seed=8)
    net.output(net.op("Relu", net.conv(net.input("image", (1, 3, side, side)), 8)))
    samples = [{"image": np.full((1, 3, side, side), value, np.float32)} for value in (-1.0, 1.0)]
    return anynpu.compile(net.proto(), target=chip, dataset=samples, name=f"resolution {side}")


@functools.cache
def file_bytes(model: Model, remove_weight: bool = False) -> bytes:
    """The model as a file has it."""
    return modelfile.to_bytes(model, remove_weight=remove_weight)


def pixels(batch: int = 1, seed: int = 0) -> Array:
    """An image for :func:`picture_model`, as NHWC."""
    return np.random.default_rng(seed).integers(0, 256, (batch, HEIGHT, WIDTH, 3), np.uint8)


def init(library: RknnLibrary, model: Model | bytes, flags: int = 0, extend: Any = NULL) -> tuple[int, int]:
    """``rknn_init`` from bytes; gives the code and the handle."""
    data = model if isinstance(model, bytes) else file_bytes(model)
    handle = ffi.new("rknn_context *")
    code = library.rknn_init(handle, ffi.from_buffer(data), len(data), int(flags), extend)
    return code, handle[0]


def opened(library: RknnLibrary, model: Model | bytes, flags: int = 0, extend: Any = NULL) -> int:
    """The handle of a context that could be made."""
    code, handle = init(library, model, flags, extend)
    assert code == 0, library.last_error()
    assert handle
    return handle


def attr(library: RknnLibrary, handle: int, command: rknn_query_cmd, index: int = 0) -> Any:
    """The answer to a query for attributes."""
    answer = ffi.new("rknn_tensor_attr *")
    answer.index = index
    assert library.rknn_query(handle, int(command), answer, ffi.sizeof("rknn_tensor_attr")) == 0, library.last_error()
    return answer


def input_struct(array: Array, *, index: int = 0, kind: int | None = None, fmt: int = NHWC, pass_through: int = 0) -> Any:
    """A ``rknn_input *`` for an array, which must outlive it."""
    kinds = {"float32": FP32, "float16": FP16, "int8": INT8, "uint8": UINT8, "int64": INT64}
    one = ffi.new("rknn_input *")
    one.index, one.buf, one.size = index, ffi.from_buffer(array), array.nbytes
    one.pass_through, one.type, one.fmt = pass_through, int(kinds[array.dtype.name] if kind is None else kind), int(fmt)
    return one


def set_picture(library: RknnLibrary, handle: int, array: Array, **fields: Any) -> int:
    """``rknn_inputs_set`` for a model with one input."""
    contiguous = np.ascontiguousarray(array)
    code: int = library.rknn_inputs_set(handle, 1, input_struct(contiguous, **fields))
    return code


def get_outputs(library: RknnLibrary, handle: int, count: int, *, want_float: bool = True) -> list[bytes]:
    """``rknn_outputs_get`` with memory of the library, and ``rknn_outputs_release``."""
    outputs = ffi.new("rknn_output[]", count)
    for index in range(count):
        outputs[index].index, outputs[index].want_float = index, want_float
    assert library.rknn_outputs_get(handle, count, outputs, NULL) == 0, library.last_error()
    contents = [bytes(ffi.buffer(outputs[index].buf, outputs[index].size)) for index in range(count)]
    assert library.rknn_outputs_release(handle, count, outputs) == 0
    return contents


def memory_array(memory: Any) -> npt.NDArray[np.uint8]:
    """The bytes of a ``rknn_tensor_mem *``."""
    address = int(ffi.cast("uintptr_t", memory.virt_addr)) + memory.offset
    return np.frombuffer(ffi.buffer(ffi.cast("char *", address), memory.size), np.uint8)
