"""Custom operators of the RKNN interface: C functions of the caller that compute layers in the middle of a run.

What the interface leaves open is answered like this:

* ``init`` is called once for each layer of the operator: at registration, or when the context gets its memory if that comes later.
  ``prepare`` and ``compute`` are called in every run, ``destroy`` once for each layer that ``init`` accepted.
* An operator that the model does not have is accepted and never called. One of a type that is also a standard operator (``ArgMax``)
  computes the layers that were compiled as custom ones and no others.
* Registering a type again destroys the former one first. A registration that fails leaves none of its operators registered.
* A duplicated context has no operators.

Who owns what: :class:`CustomOperators` belongs to one context and owns copies of the caller's structs and one :class:`OperatorLayer` for
each layer, with the C structs that callbacks see. A layer is found by its number, ``internal_ctx``, in a table of the whole process: a
plugin may ask any library in it for an attribute, not only the one that calls it.

Concurrency: callbacks are called with the lock of the context held, by one thread at a time, without Python's lock. What they may do with
their own context is to read attributes and to destroy it; other calls are rejected, since they would wait for the run that they are part
of. ``destroy`` callbacks come after the callback that ended the context has returned. Attributes never change after a layer was made,
so any thread may read them without a lock.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..._rknn import ffi
from ..._util.optional import pyopencl
from ...errors import CustomOperatorError, DeviceClosed, MissingDependencyError
from ...npu import Context, CustomCall
from ...npu.context import CustomTensor
from ...program import AttributeValue
from ...tensor import DType, Layout
from ...vendors.libraries import Refusal
from ..constants import (
    RKNN_MAX_NAME_LEN,
    Code,
    rknn_target_type,
    rknn_tensor_format,
    rknn_tensor_mem_flags,
    rknn_tensor_qnt_type,
    rknn_tensor_type,
)
from ..info import TYPE_OF, TensorAttr, fill
from .context import ModelContext
from .handles import Handles
from .memory import new_outside

# OpenCL for custom operators on the GPU: pyopencl, with whatever device this machine has. PoCL makes one of the CPU.
#
# Who owns what: one :class:`OpenCl` (a ``cl_context`` and a queue) serves one context of the interface, is made with its first operator on
# the GPU and goes with the last reference to it. A kernel belongs to one layer, since a ``cl_kernel`` holds the arguments of its call.
# Concurrency: used by calls that hold the lock of their context.


_INSTALL = (
    "in a clone of anynpu: pip install '.[opencl]'; if PyPI has no PoCL for the machine, install the system's (pocl-opencl-icd)"
)


_AT_SECURE = 23


def has_more_rights() -> bool:
    """Whether this process runs with rights that its caller does not have: set-user-ID, set-group-ID, or file capabilities."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return bool(getauxval(_AT_SECURE))


class Kernels:
    """A program that was built, and the name of the kernel in it.

    :ivar opencl: what it was built for
    """

    def __init__(self, opencl: OpenCl, program: Any, name: str) -> None:
        self.opencl = opencl
        self._program = program
        self._name = name

    def kernel(self) -> Any:
        """A new ``pyopencl.Kernel``."""
        return self.opencl.cl.Kernel(self._program, self._name)


class OpenCl:
    """The OpenCL device of this machine.

    A device that is a CPU is preferred: it works in the memory of the tensors, where a graphics card needs copies.

    :ivar cl: the package pyopencl
    """

    def __init__(self) -> None:
        if has_more_rights():
            raise Refusal(
                Code.RKNN_ERR_DEVICE_UNAVAILABLE,
                "custom operators on the GPU: the environment chooses the OpenCL driver, which a set-user-ID program must not trust",
                "run the operator on the CPU",
            )
        try:
            self.cl = pyopencl()
        except MissingDependencyError as error:
            raise Refusal(
                Code.RKNN_ERR_DEVICE_UNAVAILABLE, f"custom operators on the GPU: {error.message}", error.hint
            ) from error
        self.context = self.cl.Context([self._device()])
        self.queue = self.cl.CommandQueue(self.context)

    def build(self, operator: str, source: str, options: str, kernel: str) -> Kernels:
        """Compile *source* and look *kernel* up in it.

        :param operator: whose it is, for messages
        """
        title = f"the OpenCL kernel '{kernel}' of custom operator '{operator}'"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self.cl.CompilerWarning)  # that there is compiler output; it is logged below
                program = self.cl.Program(self.context, source).build(options=options)
        except self.cl.Error as error:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"{title} does not compile: {error}", "see the compiler's messages above"
            ) from error
        for device in self.context.devices:
            output = program.get_build_info(device, self.cl.program_build_info.LOG)
            if output and output.strip():
                log.warning("%s: %s", title, output.strip())
        kernels = Kernels(self, program, kernel)
        try:
            kernels.kernel()
        except self.cl.Error as error:
            names = ", ".join(entry.function_name for entry in program.all_kernels()) or "none"
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"{title} is not in its source", f"cl_kernel_name must be one of: {names}"
            ) from error
        return kernels

    def finish(self) -> None:
        """Wait until everything in the queue is done."""
        self.queue.finish()

    def _device(self) -> Any:
        try:
            devices = [device for platform in self.cl.get_platforms() for device in platform.get_devices()]
        except self.cl.Error as error:
            raise self._none() from error
        failures = []
        for device in sorted(devices, key=lambda device: not device.type & self.cl.device_type.CPU):
            try:
                self.cl.Program(self.cl.Context([device]), "__kernel void probe(void) {}").build()
            except self.cl.Error as error:  # a PoCL that is older than the CPU cannot compile for it
                failures.append(f"{device.name} of {device.platform.version}: {error}")
            else:
                return device
        raise self._none("; ".join(failures))

    @staticmethod
    def _none(failures: str = "") -> Refusal[Code]:
        reason = (
            f"no OpenCL device of this machine compiles a kernel ({failures})"
            if failures
            else "this machine has no OpenCL device"
        )
        return Refusal(Code.RKNN_ERR_DEVICE_UNAVAILABLE, f"custom operators on the GPU: {reason}", _INSTALL)


log = logging.getLogger("anynpu.rknn")

_MAX_OPERATORS = 1024
"""In one call; a larger number is a mistake, and reading so many structs would end the process."""

_MAX_OFFSET = 2**31 - 1
_CALLBACKS = ("init", "prepare", "compute", "destroy")
_SHOWN_AS = {"uint64": np.int64, "float64": np.float32}
"""Types that the interface does not know, and what it gets in their place."""

_LAYERS = Handles(0x2000_0001)


class Operator:
    """A registered operator: a copy of the caller's struct.

    :ivar layers: by what identifies a layer in all sets of shapes
    """

    def __init__(self, struct: Any, opencl: Callable[[], OpenCl]) -> None:
        self.op_type = _text(struct.op_type)
        if not self.op_type:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "a custom operator has no op_type", "give it the type of the ONNX node")
        if struct.target not in (rknn_target_type.RKNN_TARGET_TYPE_CPU, rknn_target_type.RKNN_TARGET_TYPE_GPU):
            raise self._invalid(f"has target {struct.target}", "RKNN_TARGET_TYPE_CPU or RKNN_TARGET_TYPE_GPU")
        self.target = rknn_target_type(struct.target)
        functions = {name: getattr(struct, name) for name in _CALLBACKS}
        self.functions = {name: function for name, function in functions.items() if function != ffi.NULL}
        if "compute" not in self.functions:
            raise self._invalid("has no compute function", "only the others may be NULL")
        self.kernels = self._build(struct, opencl) if self.target == rknn_target_type.RKNN_TARGET_TYPE_GPU else None
        self.layers: dict[tuple[str, ...], OperatorLayer] = {}

    def _build(self, struct: Any, opencl: Callable[[], OpenCl]) -> Kernels:
        name = _text(struct.cl_kernel_name)
        if not name or struct.cl_kernel_source == ffi.NULL:
            raise self._invalid("runs on the GPU and has no kernel", "set cl_kernel_name and cl_kernel_source")
        if struct.cl_source_size:
            source = bytes(ffi.buffer(struct.cl_kernel_source, struct.cl_source_size)).rstrip(b"\0")
        else:
            path = os.fsdecode(ffi.string(struct.cl_kernel_source))
            try:
                with open(path, "rb") as file:
                    source = file.read()
            except OSError as error:
                raise self._invalid(
                    f"has its kernel in '{path}', which cannot be read: {error.strerror or error}",
                    "cl_source_size 0 means that cl_kernel_source is the path of a file",
                ) from error
        return opencl().build(self.op_type, source.decode("utf-8", "replace"), _text(struct.cl_build_options), name)

    def _invalid(self, what: str, hint: str) -> Refusal[Code]:
        return Refusal(Code.RKNN_ERR_PARAM_INVALID, f"custom operator '{self.op_type}' {what}", hint)


class OperatorLayer:
    """One layer that a registered operator computes, with the structs that its callbacks are called with.

    :ivar struct: the ``rknn_custom_op_context``; its ``priv_data`` is the caller's
    :ivar attributes: of the ONNX node, as the interface shows them
    """

    def __init__(self, operator: Operator, call: CustomCall) -> None:
        self.name = call.name
        self.attributes = {name: OperatorAttribute(value) for name, value in call.attributes.items()}
        self._call: CustomCall | None = None
        self._inputs: Any = None
        self._outputs: Any = None
        self._kernel: Any = None
        self.struct = new_outside("rknn_custom_op_context *")
        self.struct.target = int(operator.target)
        if operator.kernels is not None:
            opencl, self._kernel = operator.kernels.opencl, operator.kernels.kernel()
            gpu = self.struct.gpu_ctx
            gpu.cl_context = ffi.cast("void *", opencl.context.int_ptr)
            gpu.cl_command_queue = ffi.cast("void *", opencl.queue.int_ptr)
            gpu.cl_kernel = ffi.cast("void *", self._kernel.int_ptr)
        self._number = _LAYERS.add(self)
        self.struct.internal_ctx = self._number

    def arguments(self, call: CustomCall) -> tuple[Any, Any, int, Any, int]:
        """What a callback gets, with tensors where *call* has them."""
        if call is not self._call:
            self._inputs, self._outputs = _tensors(call.inputs), _tensors(call.outputs)
            self._call = call
        return self.struct, self._inputs, len(call.inputs), self._outputs, len(call.outputs)

    def forget(self) -> None:
        """End the validity of ``internal_ctx``."""
        if _LAYERS.known(self._number):
            _LAYERS.remove(self._number, OperatorLayer)


class OperatorAttribute:
    """An attribute as the interface shows it: numbers of one type, or the bytes of a text with a zero behind them.

    The zero is not counted; several texts have one between them as well.
    """

    def __init__(self, value: AttributeValue) -> None:
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value, _SHOWN_AS.get(value.dtype.name, value.dtype))
            self.dtype = TYPE_OF[DType(array.dtype.name)]
            self.count = array.size
            data = array.tobytes()
        else:
            data = "\0".join((value,) if isinstance(value, str) else value).encode()
            self.dtype = rknn_tensor_type.RKNN_TENSOR_UINT8
            self.count = len(data)
        # an allocation of our own is aligned for every type
        self.data = new_outside("char[]", len(data) + 1)
        ffi.memmove(self.data, data, len(data))


class CustomOperators:
    """The custom operators of one context. The context's lock is held by who calls any method but :meth:`calling`."""

    def __init__(self) -> None:
        self._operators: dict[str, Operator] = {}
        self._npu: Context | None = None
        self._opencl: OpenCl | None = None
        self._thread = 0  # that is inside a callback now
        self._ending = False

    def calling(self) -> bool:
        """Whether the thread that asks is inside a callback of this context."""
        return self._thread == threading.get_ident()

    def missing(self, needed: tuple[str, ...]) -> str:
        """The first of the operators *needed* that is not registered; empty if all are."""
        return next((name for name in needed if name not in self._operators), "")

    def register(self, structs: Any, count: int) -> None:
        """Register *count* operators from an array of ``rknn_custom_op``; all of them or none."""
        operators = [Operator(structs[index], self._shared_opencl) for index in range(count)]
        with self._callbacks():
            done: list[Operator] = []
            try:
                for operator in operators:
                    self._remove(self._operators.get(operator.op_type))
                    self._operators[operator.op_type] = operator
                    done.append(operator)
                    self._introduce(operator)
            except BaseException:
                for operator in done:
                    self._remove(operator)
                raise

    def attach(self, npu: Context) -> None:
        """Serve another engine context; layers keep what ``init`` made, and get new tensors."""
        self._npu = npu
        with self._callbacks():
            for operator in list(self._operators.values()):
                self._introduce(operator)

    def close(self) -> None:
        """Call ``destroy`` for every layer, once, and forget everything; inside a callback, when that has returned."""
        if self.calling():
            self._ending = True
        else:
            with self._callbacks():
                self._remove_all()

    @contextmanager
    def _callbacks(self) -> Iterator[None]:
        """Around everything that calls functions of the caller."""
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            if self._ending:
                self._remove_all()
            self._thread = 0

    def _shared_opencl(self) -> OpenCl:
        if self._opencl is None:
            self._opencl = OpenCl()
        return self._opencl

    def _introduce(self, operator: Operator) -> None:
        """Make the engine call *operator*, and initialize its layers where they are known."""
        npu = self._npu
        if npu is None:
            return
        npu.register_custom_operator(operator.op_type, partial(self._execute, operator.op_type))
        for call in npu.custom_calls():
            if call.op_type == operator.op_type:
                self._layer(operator, call)
            if self._ending:
                raise DeviceClosed("the context was destroyed by a callback of its own", hint="make a new one")

    def _execute(self, op_type: str, call: CustomCall) -> None:
        """A layer, in the middle of a run."""
        operator = self._operators.get(op_type)
        if operator is None:
            raise CustomOperatorError(
                f"custom operator '{op_type}' in layer '{call.name}' is no longer registered",
                hint="its last registration failed; call rknn_register_custom_ops again",
            )
        with self._callbacks():
            layer = self._layer(operator, call)
            arguments = layer.arguments(call)
            prepare = operator.functions.get("prepare")
            if prepare is not None:
                result = prepare(*arguments)
                if result == Code.RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE:
                    return
                _check(operator, layer, "prepare", result)
            if not self._ending:
                _check(operator, layer, "compute", operator.functions["compute"](*arguments))
                if operator.kernels is not None:
                    operator.kernels.opencl.finish()

    def _layer(self, operator: Operator, call: CustomCall) -> OperatorLayer:
        """The layer of *call*; a new one is initialized."""
        key = (call.name, *(entry.spec.name for entry in call.outputs))
        layer = operator.layers.get(key)
        if layer is None:
            layer = OperatorLayer(operator, call)
            init = operator.functions.get("init")
            try:
                if init is not None:
                    _check(operator, layer, "init", init(*layer.arguments(call)))
            except CustomOperatorError:
                layer.forget()
                raise
            operator.layers[key] = layer
        return layer

    def _remove(self, operator: Operator | None) -> None:
        if operator is None:
            return
        if self._operators.get(operator.op_type) is operator:
            del self._operators[operator.op_type]
        destroy = operator.functions.get("destroy")
        while operator.layers:
            _, layer = operator.layers.popitem()
            result = 0 if destroy is None else destroy(layer.struct)
            if result:
                log.warning("custom operator '%s' in layer '%s': destroy returned %d", operator.op_type, layer.name, result)
            layer.forget()

    def _remove_all(self) -> None:
        self._ending = False
        for operator in list(self._operators.values()):
            self._remove(operator)
        self._npu = None
        self._opencl = None


class _Library(Protocol):
    """What the calls need of the library that they are part of."""

    def _context(self, handle: int) -> ModelContext: ...

    def _supported(self, name: str, context: ModelContext) -> None: ...


class CustomOperatorCalls:
    """The calls of the interface for custom operators."""

    def rknn_register_custom_ops(self: _Library, context: int, op: Any, custom_op_num: int) -> int:
        """Let functions of the caller compute the layers of custom operators."""
        entry = self._context(context)
        self._supported("rknn_register_custom_ops", entry)
        entry.require_runnable_kind()
        if op == ffi.NULL or not 0 < custom_op_num <= _MAX_OPERATORS:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                "the operators are a null pointer" if op == ffi.NULL else f"{custom_op_num} operators cannot be registered",
                "pass an array of rknn_custom_op and its length",
            )
        with entry.lock:
            entry.require_runnable_kind()
            if entry.npu is not None:
                entry.require_memory(entry.npu)
            if entry.custom is None:
                entry.custom = CustomOperators()
                entry.restricted = True
                if entry.npu is not None:
                    entry.custom.attach(entry.npu)
            entry.custom.register(op, custom_op_num)
        return 0

    def rknn_custom_op_get_op_attr(self, op_ctx: Any, attr_name: Any, op_attr: Any) -> None:
        """Write an attribute of the operator into *op_attr*; one that it does not have has no elements and no data."""
        if op_attr == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "op_attr is a null pointer")
        ffi.memmove(op_attr, bytes(ffi.sizeof("rknn_custom_op_attr")), ffi.sizeof("rknn_custom_op_attr"))
        op_attr.dtype = int(rknn_tensor_type.RKNN_TENSOR_TYPE_MAX)
        if op_ctx == ffi.NULL or attr_name == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "the operator's context or the attribute's name is a null pointer")
        number = op_ctx.internal_ctx
        if not _LAYERS.known(number):
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                f"there is no custom operator with internal_ctx {number:#x}",
                "pass the op_ctx of a callback, not later than in destroy",
            )
        name = (attr_name if isinstance(attr_name, bytes) else bytes(ffi.string(attr_name)))[: RKNN_MAX_NAME_LEN - 1]
        ffi.memmove(op_attr.name, name, len(name))
        attribute = _LAYERS.get(number, OperatorLayer).attributes.get(name.decode("utf-8", "replace"))
        if attribute is not None:
            op_attr.dtype = int(attribute.dtype)
            op_attr.n_elems = attribute.count
            op_attr.data = attribute.data


def _check(operator: Operator, layer: OperatorLayer, callback: str, result: int) -> None:
    if result:
        raise CustomOperatorError(
            f"custom operator '{operator.op_type}' in layer '{layer.name}': {callback} returned {result}",
            hint=f"its {callback} function returns 0 where all is well",
        )


def _text(field: Any) -> str:
    return bytes(ffi.string(field, len(field))).decode("utf-8", "replace")


def _tensors(tensors: tuple[CustomTensor, ...]) -> Any:
    """An array of ``rknn_custom_op_tensor``, at least one long."""
    array = new_outside("rknn_custom_op_tensor[]", max(len(tensors), 1))
    for index, (struct, tensor) in enumerate(zip(array, tensors, strict=False)):
        fill(_attr(index, tensor), ffi.addressof(struct, "attr"))
        _place(struct.mem, tensor)
    return array


def _attr(index: int, tensor: CustomTensor) -> TensorAttr:
    spec = tensor.spec
    kind = TYPE_OF.get(spec.dtype, rknn_tensor_type.RKNN_TENSOR_INT64)  # uint64 has no type of its own
    return TensorAttr(
        index,
        spec.shape,
        spec.name,
        spec.elements,
        spec.nbytes,
        rknn_tensor_format.RKNN_TENSOR_UNDEFINED if spec.layout is Layout.PLAIN else rknn_tensor_format.RKNN_TENSOR_NCHW,
        kind,
        rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC,  # with scale 1, as attributes of other tensors without codes
        0,
        0,
        1.0,
        0,
        spec.nbytes,
        0,
        0,
        spec,
    )


def _place(mem: Any, tensor: CustomTensor) -> None:
    """State where a tensor is. Address, physical address and descriptor all count from the same byte, to which ``offset`` is added."""
    buffer = tensor.buffer
    offset = buffer.offset + tensor.offset
    mem.fd = buffer.fd
    if offset > _MAX_OFFSET:  # the field has 32 bits; without it the descriptor leads nowhere
        offset, mem.fd = 0, -1
    own = mem.fd >= 0
    flags = rknn_tensor_mem_flags
    mem.virt_addr = ffi.cast("void *", buffer.address + tensor.offset - offset)
    mem.phys_addr = (buffer.physical_address + tensor.offset - offset) & 0xFFFF_FFFF_FFFF_FFFF
    mem.offset = offset
    mem.size = tensor.spec.nbytes
    mem.flags = int(flags.RKNN_TENSOR_MEMORY_FLAGS_ALLOC_INSIDE if own else flags.RKNN_TENSOR_MEMORY_FLAGS_UNKNOWN)
