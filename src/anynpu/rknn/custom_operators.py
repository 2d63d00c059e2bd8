"""Custom operators in Python, and from plugins: what :func:`register` hands to a library, the vendor's or the software NPU.

A :class:`CustomOperator` is described by Python functions. They are called with an :class:`OperatorCall`, one for each layer, which has
the tensors as numpy arrays that are the device's memory:

>>> def softmax(call):
...     x, axis = call.inputs[0].array, call.attr("axis", -1)
...     raised = np.exp(x - x.max(axis, keepdims=True))
...     np.divide(raised, raised.sum(axis, keepdims=True), out=call.outputs[0].array)
>>> operator = CustomOperator("cstSoftmax", softmax)
>>> registration = register(library, handle, [operator])                                           # doctest: +SKIP

Who owns what: a :class:`Registration` owns everything that C code points to (structs, callbacks, kernel sources) and must live until
``rknn_destroy`` of its context has returned, since that calls ``destroy``. Operators themselves hold no state and may be registered with
any number of contexts. Concurrency: a library calls the functions of one context one after the other, from the thread that runs it.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .._rknn import ffi
from .._util.optional import pyopencl
from .._util.types import Array
from ..errors import DeviceError, ParameterError
from .constants import RKNN_MAX_NAME_LEN, Code, rknn_target_type, rknn_tensor_format, rknn_tensor_type
from .info import DTYPE_OF
from .interface import RknnLibrary
from .library import check

log = logging.getLogger("anynpu.rknn")

_TENSOR_CALLBACK = "int(rknn_custom_op_context *, rknn_custom_op_tensor *, uint32_t, rknn_custom_op_tensor *, uint32_t)"
_DESTROY_CALLBACK = "int(rknn_custom_op_context *)"
_ENTRY = "get_rknn_custom_op"
_TARGETS = {"cpu": rknn_target_type.RKNN_TARGET_TYPE_CPU, "gpu": rknn_target_type.RKNN_TARGET_TYPE_GPU}


class OperatorTensor:
    """An input or output of a custom operator.

    :ivar array: the tensor in device memory; that of an input cannot be written. Not to be used after the callback has returned
    :ivar attr: a copy of its ``rknn_tensor_attr``
    :ivar mem: a copy of its ``rknn_tensor_mem``
    """

    def __init__(self, struct: Any, *, writable: bool) -> None:
        self._struct = ffi.new("rknn_custom_op_tensor *", struct)
        self.attr = self._struct.attr
        self.mem = self._struct.mem
        self.array = self._view()
        self.array.flags.writeable = writable

    @property
    def name(self) -> str:
        return bytes(ffi.string(self.attr.name, len(self.attr.name))).decode("utf-8", "replace")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.attr.dims[0 : self.attr.n_dims])

    @property
    def type(self) -> rknn_tensor_type:
        return rknn_tensor_type(self.attr.type)

    @property
    def fmt(self) -> rknn_tensor_format:
        return rknn_tensor_format(self.attr.fmt)

    def _view(self) -> Array:
        """The memory at ``virt_addr`` plus ``offset``; types that numpy lacks as the bytes or halves that hold them."""
        dtype = DTYPE_OF[self.type]
        shape = self.shape if dtype.bits >= 8 else (dtype.nbytes(math.prod(self.shape)),)
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype.storage)
        memory = ffi.buffer(ffi.cast("char *", self.mem.virt_addr) + self.mem.offset, count * dtype.storage.itemsize)
        return np.frombuffer(memory, dtype.storage).reshape(shape)


class GpuObjects:
    """The OpenCL objects of an operator on the GPU, as objects of pyopencl.

    :ivar context: ``pyopencl.Context``
    :ivar queue: ``pyopencl.CommandQueue``
    :ivar kernel: ``pyopencl.Kernel``, of this layer alone
    """

    def __init__(self, struct: Any) -> None:
        self._cl = pyopencl()
        self.context = self._cl.Context.from_int_ptr(_address(struct.cl_context))
        self.queue = self._cl.CommandQueue.from_int_ptr(_address(struct.cl_command_queue))
        self.kernel = self._cl.Kernel.from_int_ptr(_address(struct.cl_kernel))
        self._buffers: list[Any] = []  # an argument of a kernel keeps nothing alive before the kernel is in the queue

    def buffer(self, tensor: OperatorTensor) -> Any:
        """A ``pyopencl.Buffer`` on the memory of *tensor*, without a copy where the device can work there.

        It lives at least until the next function of the layer is called.
        """
        self._buffers.append(self._on(tensor))
        return self._buffers[-1]

    def _on(self, tensor: OperatorTensor) -> Any:
        flags = self._cl.mem_flags
        array = tensor.array
        if array.flags.writeable:
            return self._cl.Buffer(self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=array)
        # pyopencl wants an array that can be written, although the kernel only reads it
        memory = ffi.buffer(ffi.cast("char *", array.ctypes.data), array.nbytes)
        return self._cl.Buffer(self.context, flags.READ_ONLY | flags.USE_HOST_PTR, hostbuf=np.frombuffer(memory, np.uint8))


class OperatorCall:
    """What the functions of a custom operator are called with: one object for each layer, the same in every call.

    :ivar op_type: the operator
    :ivar inputs: all inputs in the order of the node, constants too; none in ``destroy``
    :ivar outputs: to be filled by ``compute``; none in ``destroy``
    :ivar private: yours: whatever the functions of a layer have to remember
    """

    def __init__(self, op_type: str, library: RknnLibrary, struct: Any) -> None:
        self.op_type = op_type
        self.inputs: tuple[OperatorTensor, ...] = ()
        self.outputs: tuple[OperatorTensor, ...] = ()
        self.private: Any = None
        self._library = library
        self._struct = struct
        self._seen = b""
        self._gpu: GpuObjects | None = None

    @property
    def gpu(self) -> GpuObjects:
        """The OpenCL objects, for an operator with ``target="gpu"``."""
        if self._gpu is None:
            if self._struct == ffi.NULL or self._struct.target != rknn_target_type.RKNN_TARGET_TYPE_GPU:
                raise DeviceError(
                    f"custom operator '{self.op_type}' has no GPU", hint="make it with target='gpu', and ask in a callback"
                )
            self._gpu = GpuObjects(self._struct.gpu_ctx)
        return self._gpu

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the ONNX node: a number, an array if there are several, or text; *default* if it is not there.

        The interface does not report a list of one number from a number: both are a number here. Several texts are one, with a zero
        character between them.
        """
        if self._struct == ffi.NULL:
            raise DeviceError(f"the layer of custom operator '{self.op_type}' has ended", hint="read attributes in a callback")
        struct = ffi.new("rknn_custom_op_attr *")
        self._library.rknn_custom_op_get_op_attr(self._struct, name.encode(), struct)
        if struct.data == ffi.NULL or struct.dtype not in DTYPE_OF:
            return default
        kind = rknn_tensor_type(struct.dtype)
        storage = DTYPE_OF[kind].storage
        data = bytes(ffi.buffer(ffi.cast("char *", struct.data), struct.n_elems * storage.itemsize))
        if kind is rknn_tensor_type.RKNN_TENSOR_UINT8:
            return data.decode("utf-8", "replace")
        values = np.frombuffer(data, storage)
        return values[0].item() if values.size == 1 else values

    def _enter(self, struct: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> None:
        """Take over the arguments of a callback; tensors that are where they were keep their objects."""
        self._struct = struct
        self._forget_buffers()
        seen = _bytes(inputs, n_inputs) + _bytes(outputs, n_outputs)
        if seen != self._seen:
            self.inputs = tuple(OperatorTensor(inputs[index], writable=False) for index in range(n_inputs))
            self.outputs = tuple(OperatorTensor(outputs[index], writable=True) for index in range(n_outputs))
            self._seen = seen

    def _leave(self) -> None:
        self._forget_buffers()
        self.inputs = self.outputs = ()
        self._seen = b""

    def _forget_buffers(self) -> None:
        if self._gpu is not None:
            self._gpu._buffers.clear()


OperatorFunction = Callable[[OperatorCall], "int | None"]
"""None or 0 is success; any other number, or an exception, stops the run."""


class CustomOperator:
    """A custom operator whose functions are written in Python.

    :param op_type: the type of the ONNX node
    :param compute: fills ``call.outputs[i].array``; called in every run
    :param init: called once for each layer, at registration
    :param prepare: called in every run before *compute*; it may return ``RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE``
    :param destroy: called once for each layer, when the context ends
    :param target: ``cpu``, or ``gpu`` for one that uses an OpenCL kernel
    :param kernel_name: the function in *kernel_source*
    :param kernel_source: OpenCL C as text, or the ``Path`` of a file with it
    :param build_options: for the OpenCL compiler
    """

    def __init__(
        self,
        op_type: str,
        compute: OperatorFunction,
        *,
        init: OperatorFunction | None = None,
        prepare: OperatorFunction | None = None,
        destroy: OperatorFunction | None = None,
        target: str = "cpu",
        kernel_name: str = "",
        kernel_source: str | Path = "",
        build_options: str = "",
        version: int = 1,
    ) -> None:
        if target not in _TARGETS:
            raise ParameterError(f"custom operator '{op_type}' cannot run on '{target}'", hint="target is 'cpu' or 'gpu'")
        for what, text in (("type", op_type), ("kernel name", kernel_name), ("build options", build_options)):
            if len(text.encode()) >= RKNN_MAX_NAME_LEN or "\0" in text:
                raise ParameterError(
                    f"the {what} of custom operator '{op_type[:64]}' do not fit the interface",
                    hint=f"at most {RKNN_MAX_NAME_LEN - 1} bytes, and no zero among them",
                )
        self.op_type = op_type
        self.compute = compute
        self.init = init
        self.prepare = prepare
        self.destroy = destroy
        self.target = target
        self.kernel_name = kernel_name
        self.kernel_source = kernel_source
        self.build_options = build_options
        self.version = version

    def __repr__(self) -> str:
        return f"<CustomOperator {self.op_type} on the {self.target.upper()}>"


class PluginOperator:
    """A custom operator of a shared library. Made by :func:`load_plugin`.

    :ivar path: the library, which stays loaded
    :ivar struct: the ``rknn_custom_op`` that it gave
    """

    def __init__(self, path: Path, library: ctypes.CDLL, struct: Any) -> None:
        self.path = path
        self.struct = struct
        self._library = library
        self.op_type = bytes(ffi.string(struct.op_type, len(struct.op_type))).decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<PluginOperator {self.op_type} of {self.path.name}>"


def load_plugin(path: str | os.PathLike[str]) -> PluginOperator:
    """The operator of a shared library that exports ``get_rknn_custom_op``."""
    file = Path(path)
    if not file.is_file():
        raise DeviceError(f"there is no plugin {file}", hint="give the path of a shared library that exports get_rknn_custom_op")
    try:
        library = ctypes.CDLL(str(file.resolve()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        raise DeviceError(
            f"plugin {file} cannot be loaded: {error}",
            hint="it must be built for this machine; a plugin that calls rknn functions needs the library that has them: "
            "link it with librknnrt.so",
        ) from error
    try:
        address = ctypes.cast(getattr(library, _ENTRY), ctypes.c_void_p).value
    except AttributeError:
        raise DeviceError(
            f"plugin {file} does not export {_ENTRY}", hint=f'in C++, declare it extern "C": rknn_custom_op *{_ENTRY}(void)'
        ) from None
    struct = ffi.cast("get_custom_op_func", address)()
    if struct == ffi.NULL:
        raise DeviceError(f"{_ENTRY} of plugin {file} gave a null pointer", hint="it must return its rknn_custom_op")
    return PluginOperator(file, library, struct)


class Registration:
    """Operators that are registered with one context. Keep it until the context is destroyed."""

    def __init__(self, library: RknnLibrary, operators: Iterable[CustomOperator | PluginOperator]) -> None:
        self._library = library
        self._kept: list[Any] = []
        self._calls: dict[int, tuple[Any, OperatorCall]] = {}
        self._failure: BaseException | None = None
        self.operators = tuple(operators)
        self.structs = ffi.new("rknn_custom_op[]", len(self.operators))
        for struct, operator in zip(self.structs, self.operators, strict=True):
            if isinstance(operator, PluginOperator):
                ffi.memmove(ffi.addressof(struct), operator.struct, ffi.sizeof("rknn_custom_op"))
            else:
                self._describe(struct, operator)

    def take_failure(self) -> BaseException | None:
        """The exception that a function raised since this was asked last: the cause of an error that a call reports."""
        failure, self._failure = self._failure, None
        return failure

    def _describe(self, struct: Any, operator: CustomOperator) -> None:
        struct.version = operator.version
        struct.target = int(_TARGETS[operator.target])
        struct.op_type = operator.op_type.encode()
        struct.cl_kernel_name = operator.kernel_name.encode()
        struct.cl_build_options = operator.build_options.encode()
        if operator.kernel_source:
            in_file = isinstance(operator.kernel_source, Path)
            source = os.fsencode(operator.kernel_source) if in_file else str(operator.kernel_source).encode()
            struct.cl_kernel_source = self._keep(ffi.new("char[]", source))
            struct.cl_source_size = 0 if in_file else len(source)
        for name in ("init", "prepare", "compute"):
            function = getattr(operator, name)
            if function is not None:
                setattr(struct, name, self._keep(ffi.callback(_TENSOR_CALLBACK, self._with_tensors(operator, name, function))))
        struct.destroy = self._keep(ffi.callback(_DESTROY_CALLBACK, self._destroy(operator)))

    def _keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value

    def _with_tensors(self, operator: CustomOperator, name: str, function: OperatorFunction) -> Callable[..., int]:
        def callback(struct: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
            try:
                call = self._call(operator, struct)
                call._enter(struct, inputs, n_inputs, outputs, n_outputs)
                return _result(operator, name, function(call))
            except BaseException as error:  # no exception can pass through C; the error that the call reports has it as its cause
                self._failure = error
                return int(Code.RKNN_ERR_FAIL)

        return callback

    def _destroy(self, operator: CustomOperator) -> Callable[..., int]:
        def callback(struct: Any) -> int:
            try:
                call = self._call(operator, struct)
                call._leave()
                self._calls.pop(_address(struct.priv_data), None)
                struct.priv_data = ffi.NULL
                try:
                    return 0 if operator.destroy is None else _result(operator, "destroy", operator.destroy(call))
                finally:
                    call._struct = ffi.NULL
            except BaseException as error:  # as above; errors at the end are not reported to a caller
                log.warning("destroy of custom operator '%s' failed", operator.op_type, exc_info=error)
                return int(Code.RKNN_ERR_FAIL)

        return callback

    def _call(self, operator: CustomOperator, struct: Any) -> OperatorCall:
        """The object of a layer, which ``priv_data`` leads to."""
        known = self._calls.get(_address(struct.priv_data))
        if known is not None:
            return known[1]
        call = OperatorCall(operator.op_type, self._library, struct)
        handle = ffi.new_handle(call)
        struct.priv_data = handle
        self._calls[_address(handle)] = handle, call
        return call


def register(library: RknnLibrary, handle: int, operators: Iterable[CustomOperator | PluginOperator]) -> Registration:
    """Register operators with the context *handle* of *library*.

    Where the library rejects, it raises what :func:`anynpu.rknn.check` raises; an exception of an ``init`` is the cause of a
    :class:`CustomOperatorError`.
    """
    registration = Registration(library, operators)
    if not registration.operators:
        return registration
    code = library.rknn_register_custom_ops(handle, registration.structs, len(registration.operators))
    check(library, "rknn_register_custom_ops", code, cause=registration.take_failure())
    return registration


def _result(operator: CustomOperator, name: str, result: Any) -> int:
    if result is None:
        return 0
    if isinstance(result, (int, np.integer)) and not isinstance(result, bool):
        return int(result)
    raise TypeError(
        f"{name} of custom operator '{operator.op_type}' returned a {type(result).__name__}: "
        "it fills call.outputs[i].array in place and returns None, or a number that means failure"
    )


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _bytes(tensors: Any, count: int) -> bytes:
    return bytes(ffi.buffer(tensors, count * ffi.sizeof("rknn_custom_op_tensor"))) if count else b""
