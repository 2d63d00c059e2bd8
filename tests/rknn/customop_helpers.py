"""Models with custom operators, plugins in C, and a context that is driven by the calls alone."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tools import need

from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.program import Custom, CustomConstant, Layer, MemoryPlan, Model, Placement, Program
from anynpu.rknn import SoftwareLibrary, rknn_tensor_format, rknn_tensor_type
from anynpu.tensor import DType, Layout, TensorSpec

Array = np.ndarray[Any, Any]
ABI_FOLDER = Path(__file__).parents[2] / "src" / "anynpu" / "rknn"


def chain_model(
    *operators: tuple[str, Mapping[str, Any]],
    shape: Sequence[int] = (1, 8),
    chip: str = "rk3588",
    constants: Sequence[CustomConstant] = (),
) -> Model:
    """x -> operator -> operator ... -> y, all of one shape in float32; layers are named layer_0, layer_1 ...

    :param constants: inputs of every operator besides its x
    """
    return Model(chip, "fp16", (chain_program(*operators, shape=shape, constants=constants),), name="chain")


def chain_program(
    *operators: tuple[str, Mapping[str, Any]], shape: Sequence[int] = (1, 8), constants: Sequence[CustomConstant] = ()
) -> Program:
    """The program of :func:`chain_model`."""
    names = ["x", *(f"t{index}" for index in range(1, len(operators))), "y"]
    layout = Layout.row_major(len(shape))
    tensors = {name: TensorSpec(name, tuple(shape), DType.FLOAT32, layout) for name in names}
    step = -(-tensors["x"].nbytes // 64) * 64
    offsets = {name: index * step for index, name in enumerate(names[1:-1])}
    layers = tuple(
        Layer(
            f"layer_{index}",
            kind,
            Custom(kind, dict(attributes), tuple(constants)),
            (names[index],),
            (names[index + 1],),
            Placement.CPU,
            "custom",
        )
        for index, (kind, attributes) in enumerate(operators)
    )
    return Program(("x",), ("y",), tensors, layers, MemoryPlan(offsets, step * len(offsets)))


def build_plugin(source: Path, folder: Path, *flags: str) -> Path:
    """Compile a plugin written in C."""
    target = folder / f"lib{source.stem}.so"
    command = [need("cc"), "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", f"-I{ABI_FOLDER}"]
    subprocess.run([*command, str(source), *flags, "-o", str(target)], check=True, timeout=600)
    return target


def function(library: ctypes.CDLL, name: str, c_type: str) -> Any:
    """A function of a shared library as a pointer of cffi."""
    return ffi.cast(c_type, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)


class RawContext:
    """One context of a library, by calls and codes."""

    def __init__(self, library: SoftwareLibrary, model: Model, flags: int = 0) -> None:
        self.library = library
        data = modelfile.to_bytes(model)
        handle = ffi.new("rknn_context *")
        assert library.rknn_init(handle, ffi.from_buffer(data), len(data), flags, ffi.NULL) == 0, library.last_error()
        self.handle: int = handle[0]

    @property
    def error(self) -> str:
        """The text of the last failure."""
        failure = self.library.last_error()
        assert failure is not None
        return failure.text

    def register(self, *operators: Any) -> int:
        """Register structs, given as pointers."""
        array = ffi.new("rknn_custom_op[]", max(len(operators), 1))
        for index, operator in enumerate(operators):
            ffi.memmove(ffi.addressof(array[index]), operator, ffi.sizeof("rknn_custom_op"))
        code: int = self.library.rknn_register_custom_ops(self.handle, array, len(operators))
        ffi.memmove(array, b"\xff" * ffi.sizeof(array), ffi.sizeof(array))  # the caller's memory may go
        return code

    def run(self, x: Array) -> int:
        """``rknn_inputs_set`` and ``rknn_run``."""
        array = np.ascontiguousarray(x, np.float32)
        given = ffi.new("rknn_input *")
        given.buf, given.size = ffi.from_buffer(array), array.nbytes
        given.type = int(rknn_tensor_type.RKNN_TENSOR_FLOAT32)
        given.fmt = int(rknn_tensor_format.RKNN_TENSOR_NCHW if x.ndim == 4 else rknn_tensor_format.RKNN_TENSOR_UNDEFINED)
        code: int = self.library.rknn_inputs_set(self.handle, 1, given)
        return code or self.library.rknn_run(self.handle, ffi.NULL)

    def output(self, shape: Sequence[int], index: int = 0, count: int = 1) -> Array:
        """``rknn_outputs_get`` as float32."""
        outputs = ffi.new("rknn_output[]", count)
        for position in range(count):
            outputs[position].index, outputs[position].want_float = position, 1
        assert self.library.rknn_outputs_get(self.handle, count, outputs, ffi.NULL) == 0, self.error
        array = np.frombuffer(bytes(ffi.buffer(outputs[index].buf, outputs[index].size)), np.float32).reshape(shape)
        assert self.library.rknn_outputs_release(self.handle, count, outputs) == 0
        return array

    def destroy(self) -> int:
        """``rknn_destroy``."""
        code: int = self.library.rknn_destroy(self.handle)
        return code


class Callbacks:
    """An operator whose C functions are given as Python functions of the raw arguments, and the order of their calls.

    The functions stay for good, as those of a shared library do: a library may call them as long as a context lives.
    """

    _functions: ClassVar[list[Any]] = []

    def __init__(self, op_type: str, **functions: Any) -> None:
        self.struct = ffi.new("rknn_custom_op *")
        self.struct.op_type = op_type.encode()
        self.struct.version = 1
        self.struct.target = 1
        self.notes: list[str] = []
        for name, body in functions.items():
            c_type = f"int(rknn_custom_op_context *{'' if name == 'destroy' else _TENSORS})"
            callback = ffi.callback(c_type, self._noting(name, body), error=-99)
            self._functions.append(callback)
            setattr(self.struct, name, callback)

    def _noting(self, name: str, body: Any) -> Any:
        def callback(*arguments: Any) -> int:
            self.notes.append(name)
            return body(*arguments) or 0

        return callback


_TENSORS = ", rknn_custom_op_tensor *, uint32_t, rknn_custom_op_tensor *, uint32_t"


def view(tensor: Any) -> Array:
    """The float32 data of a ``rknn_custom_op_tensor``, found as a C program finds it."""
    address = ffi.cast("char *", tensor.mem.virt_addr) + tensor.mem.offset
    data = np.frombuffer(ffi.buffer(address, tensor.attr.size), np.float32)
    return data.reshape(tuple(tensor.attr.dims[0 : tensor.attr.n_dims]))
