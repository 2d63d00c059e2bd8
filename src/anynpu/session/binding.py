"""I/O binding: runs on caller-supplied buffers.

An :class:`IOBinding` ties values to the inputs and outputs of a session; a run on it copies nothing that is on the device already: the
context reads and writes the bound memory. What is in the memory of this process is converted in one pass on the way.

Ownership: a binding keeps its session and its values alive. It belongs to one run at a time: a second one, while the first has not
finished, is rejected. ``_busy`` reports it; it changes under the binding's lock, which is never held while anything runs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .._util.types import Array
from ..errors import FeedError, FeedNameError, FeedShapeError, FeedTypeError, SessionError
from ..program import convert
from ..tensor import DType, Layout, TensorSpec
from .backend import Bound, Lane, Memory
from .ortvalue import (
    VALUES,
    OrtValue,
    at_address,
    check_shape,
    device_named,
    dtype_of,
    is_cpu,
    named,
    plain,
    stored,
    type_mismatch,
    value_spec,
    write_array,
)

if TYPE_CHECKING:
    from .session import InferenceSession


class IOBinding:
    """Ties values to the inputs and outputs of a session. Made by ``session.io_binding()``."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._busy = False
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue] = {}
        self._own: dict[str, OrtValue] = {}  # device memory behind inputs and outputs on the host

    _value: type[OrtValue] = OrtValue
    """The class of the values that a binding makes itself."""

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Read an input from an array; each run converts what the array holds then."""
        spec = self._input(name)
        array = np.asarray(arr_on_cpu)
        check_shape(array.shape, spec, self._session._layout_last)
        self._bind(self._inputs, name, self._value.ortvalue_from_numpy(array))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: object, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Read an input from host memory at an address."""
        if not is_cpu(device_type):
            raise FeedError(
                "device memory cannot be bound by its address", hint="use OrtValue.ortvalue_from_dmabuf and bind_ortvalue_input"
            )
        self.bind_cpu_input(name, at_address(buffer_ptr, tuple(shape), dtype_of(element_type)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Read an input from a value: in place if it is on the device."""
        spec = self._input(name)
        held = ortvalue._spec
        if ortvalue._memory is None:
            self.bind_cpu_input(name, ortvalue._held())
            return
        if ortvalue._generic:
            raise FeedTypeError(
                f"OrtValue for input '{name}' native zero-copy layout mismatch: it was made for no session",
                hint="make it with session=, name= and io_kind='input'",
            )
        self._bind(self._inputs, name, self._view(ortvalue, self._understood(held, spec, "input")))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: object = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
        *,
        layout: str = "native",
        mem_flags: str | int = "cacheable",
    ) -> None:
        """Have an output put into new memory: of this process, or of the device.

        :param element_type: of an output on ``cpu``; by default as ``run`` gives it
        :param buffer_ptr: address of host memory to put it into
        """
        spec = self._output(name)
        session = self._session
        kind = session._types[session._output_numbers[name]] if element_type is None else dtype_of(element_type).storage
        if shape is not None:
            check_shape(tuple(shape), spec, False, "output")
        if is_cpu(device_type):
            if buffer_ptr is None:
                array = np.zeros(spec.shape, kind)
            else:
                array = at_address(buffer_ptr, spec.shape, dtype_of(kind))
            value = self._value(plain(spec.shape, dtype_of(kind)), array=array)
        elif buffer_ptr is not None:
            raise FeedError("device memory cannot be bound by its address", hint="use OrtValue.ortvalue_from_dmabuf")
        else:
            if element_type is not None and dtype_of(element_type) is not spec.dtype:
                raise type_mismatch(spec, dtype_of(element_type), "output", "leave the type out, or bind the output on 'cpu'")
            memory = session._backend.allocate(spec.nbytes)
            value = self._value(spec, memory=memory, owner=session, device=device_named(device_type))
        self._bind(self._outputs, name, value)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Have an output put into a value: in place if it is on the device."""
        spec = self._output(name)
        if ortvalue._memory is None:
            held = ortvalue._held()
            check_shape(held.shape, spec, False, "output")
            if not held.flags.c_contiguous or not held.flags.writeable:
                raise FeedError(f"output '{name}' cannot be put into a read-only or scattered array", hint="bind a new array")
            self._bind(self._outputs, name, ortvalue)
            return
        self._bind(self._outputs, name, self._view(ortvalue, self._understood(ortvalue._spec, spec, "output")))

    def clear_binding_inputs(self) -> None:
        """Let go of all inputs."""
        with self._lock:
            self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Let go of all outputs."""
        with self._lock:
            self._outputs.clear()

    def synchronize_inputs(self) -> None:
        """Make bound inputs visible to the device."""
        for value in self._inputs.values():
            value.sync_to_device()

    def synchronize_outputs(self) -> None:
        """Make bound outputs visible to the host."""
        for value in self._outputs.values():
            value.sync_from_device()

    def get_outputs(self) -> list[OrtValue]:
        """The values of the outputs, in the order of the model; those that were not bound, after a run."""
        return [self._outputs[spec.name] for spec in self._session._backend.outputs if spec.name in self._outputs]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """The outputs as arrays, in the order of the model."""
        return [value.numpy() for value in self.get_outputs()]

    # -- for the session

    def begin(self) -> _BoundRun:
        """Take hold of the binding for one run."""
        session = self._session
        backend = session._backend
        missing = [spec.name for spec in backend.inputs if spec.name not in self._inputs]
        if missing:
            raise FeedNameError(
                f"All model inputs must be bound before run_with_iobinding; '{missing[0]}' is not",
                hint="bind_cpu_input or bind_ortvalue_input",
            )
        for spec in backend.outputs:
            if spec.name not in self._outputs:
                self.bind_output(spec.name)
        with self._lock:
            if self._busy:
                raise SessionError(
                    "this binding is in a run that has not finished", hint="use one binding for each request in flight"
                )
            self._busy = True
        try:
            return _BoundRun(self)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Let the next run have the binding."""
        with self._lock:
            self._busy = False

    def device_value(self, name: str, spec: TensorSpec, kind: str) -> OrtValue:
        """Device memory of the binding's own, for an input or output that is on the host."""
        key = f"{kind} {name}"
        value = self._own.get(key)
        if value is None or value._spec != spec:
            value = OrtValue(spec, memory=self._session._backend.allocate(spec.nbytes), owner=self._session)
            self._own[key] = value
        return value

    def _bind(self, values: dict[str, OrtValue], name: str, value: OrtValue) -> None:
        with self._lock:
            if self._busy:
                raise SessionError(
                    "this binding is in a run that has not finished", hint="use one binding for each request in flight"
                )
            values[name] = value

    def _view(self, value: OrtValue, spec: TensorSpec) -> OrtValue:
        """A value's memory, understood as that of an input or output."""
        return self._value(spec, memory=value._memory, owner=value, device=value._device, last=value._last)

    def _input(self, name: str) -> TensorSpec:
        return named(self._session._backend.native_inputs, name, "input")

    def _output(self, name: str) -> TensorSpec:
        return named(self._session._backend.native_outputs, name, "output")

    def _understood(self, held: TensorSpec, spec: TensorSpec, kind: str) -> TensorSpec:
        """What the memory of a value means for an input or output: a value without a place of its own is taken as one that has it."""
        if held.name:
            if held.name == spec.name:
                return held
            if replace(held, name=spec.name) == spec:  # an output that is the next run's input
                return spec
            raise FeedNameError(
                f"OrtValue for {kind} '{spec.name}' native zero-copy layout mismatch: it was made for '{held.name}'",
                hint="make one for each",
            )
        if kind == "input" and held.dtype in VALUES and held.dtype is not spec.dtype:
            target = value_spec(spec, held.dtype)
        else:
            target = spec
        if held.dtype is not target.dtype:
            raise type_mismatch(target, held.dtype, kind, "use its type")
        if math.prod(held.shape) != math.prod(target.memory_shape):
            raise FeedShapeError(
                f"OrtValue for {kind} '{spec.name}' shape mismatch: "
                f"it takes {list(target.memory_shape)} in memory, the value has {list(held.shape)}",
                hint="get_native_inputs() and get_native_outputs() return the shapes in memory",
            )
        return target


class _BoundRun:
    """What a device worker executes for a binding: host arrays in, the run, host arrays out."""

    def __init__(self, binding: IOBinding) -> None:
        backend = binding._session._backend
        last = binding._session._layout_last
        self._copies_in: list[tuple[Memory, TensorSpec, Array, bool]] = []
        self._copies_out: list[tuple[Memory, TensorSpec, Array]] = []
        self._inputs: list[Bound] = []
        self._outputs: list[Bound] = []
        for spec in backend.native_inputs:
            value = binding._inputs[spec.name]
            if value._memory is None:
                array = value._held()
                kind = dtype_of(array.dtype)
                codes = kind is spec.dtype and (
                    kind is not DType.UINT8 or spec.quantization is None
                )  # bytes are an image's values
                held = value_spec(spec, kind) if kind in VALUES and not codes else spec
                device = binding.device_value(spec.name, held, "input")
                assert device._memory is not None
                self._copies_in.append((device._memory, held, array, last))
                value = device
            assert value._memory is not None
            self._inputs.append(Bound(value._memory, value._spec))
        for spec in backend.native_outputs:
            value = binding._outputs[spec.name]
            if value._memory is None:
                device = binding.device_value(spec.name, spec, "output")
                assert device._memory is not None
                self._copies_out.append((device._memory, spec, value._held()))
                value = device
            assert value._memory is not None
            self._outputs.append(Bound(value._memory, value._spec))

    def __call__(self, lane: Lane, timeout: float | None) -> None:
        for memory, spec, array, last in self._copies_in:
            write_array(memory, spec, array, last)
            memory.sync_to_device()
        lane.run_bound(self._inputs, self._outputs, timeout)
        for memory, spec, array in self._copies_out:
            memory.sync_from_device()
            order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
            kind = dtype_of(array.dtype)
            codes = spec.quantization if kind is spec.dtype else None
            convert.convert(stored(memory, spec), spec, TensorSpec(spec.name, spec.shape, kind, order, codes), out=array)
