"""One user of a loaded model, with its own inputs, outputs and internal memory.

Who owns what: the context owns its I/O buffers and its internal memory, unless the caller supplied them, and the program bound to them.
Weights and prepared programs belong to the loaded model. Functions of custom operators are registered with one context and serve it alone.

Exclusion: a context does one thing at a time. There is no lock in it: it is an exclusive thing in the device's scheduler, which a call
that reads or writes the context's state holds, and so is its internal memory, which a run holds together with its cores. Two threads may
therefore use one context, and two contexts one piece of internal memory; they take turns.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .._util.lifetime import Closeable
from .._util.types import Array
from ..errors import (
    CustomOperatorError,
    DeviceClosed,
    DeviceMemoryError,
    ModelFormatError,
    ShapeError,
    TensorNameError,
    TensorTypeError,
)
from ..program import AttributeValue, Custom, Float, Layer, Preprocess, Program, convert
from ..tensor import DType, Layout, TensorSpec, round_up
from .control import RunControl
from .cores import CoreMask, Lease, host_threads
from .engines.base import BoundProgram, LayerTime, Step
from .memory import Buffer, Purpose, Resident, internal_size, shape_set
from .value_check import ValueCheck

if TYPE_CHECKING:
    from .device import LoadedModel


# Custom operators: layers that a function of the user computes, in the middle of a run.
#
# A function is registered with a context under the operator's type. A run calls it once for each layer of that type, in the thread that
# runs the job and with the context and its cores held: it must not use the context itself, which would wait for the run to end.
#
# Who owns what: a :class:`CustomCall` and its arrays belong to the context, and are the same objects in every run until a buffer is bound
# or another shape set is selected. The functions belong to the context too; its exclusion (see :mod:`anynpu.npu.context`) protects the
# table of them, which a closed context empties.


@dataclass(frozen=True, eq=False)
class CustomTensor:
    """An input or output of a custom operator.

    :ivar array: the tensor in device memory, row-major; that of an input cannot be written
    :ivar buffer: the memory that it lies in
    :ivar offset: byte of *buffer* at which it begins
    """

    spec: TensorSpec
    array: Array
    buffer: Buffer
    offset: int


@dataclass(frozen=True, eq=False)
class CustomCall:
    """What the function of a custom operator is called with: it reads the inputs and fills the arrays of the outputs.

    :ivar name: the layer
    :ivar attributes: of the ONNX node, as in :class:`anynpu.program.Custom`
    :ivar inputs: all inputs in the order of the node, constants too
    """

    name: str
    op_type: str
    attributes: Mapping[str, AttributeValue]
    inputs: tuple[CustomTensor, ...]
    outputs: tuple[CustomTensor, ...]


CustomFunction = Callable[[CustomCall], "int | None"]
"""Computes a custom operator. None or 0 is success, any other number a failure, and so is an exception."""


def custom_step(
    call: CustomCall, functions: Mapping[str, CustomFunction], held: Mapping[str, Array]
) -> Callable[[RunControl], None]:
    """What executes *call* with the function that is registered then.

    :param held: the tensors of the program as the engine has them; where that is not device memory, values are copied
    """
    before = [(entry.buffer.tensor(entry.spec, entry.offset), held[entry.spec.name]) for entry in _elsewhere(call.inputs, held)]
    after = [(held[entry.spec.name], entry.array) for entry in _elsewhere(call.outputs, held)]

    def step(_: RunControl) -> None:
        for target, source in before:
            np.copyto(target, source)
        require_registered([call], functions)
        _call(functions[call.op_type], call)
        for target, source in after:
            np.copyto(target, source)

    return step


def _elsewhere(tensors: Iterable[CustomTensor], held: Mapping[str, Array]) -> list[CustomTensor]:
    return [
        entry for entry in tensors if entry.spec.name in held and held[entry.spec.name].ctypes.data != entry.array.ctypes.data
    ]


def _call(function: CustomFunction, call: CustomCall) -> None:
    title = f"custom operator '{call.op_type}' in layer '{call.name}'"
    try:
        result = function(call)
    except CustomOperatorError:
        raise  # states already what failed
    except Exception as error:  # the user's own code: it may raise anything
        raise CustomOperatorError(
            f"{title} failed: {type(error).__name__}: {error}", hint="see the cause, in the function that was registered for it"
        ) from error
    if result is None or (isinstance(result, int) and not isinstance(result, bool) and result == 0):
        return
    if isinstance(result, int) and not isinstance(result, bool):
        raise CustomOperatorError(
            f"{title} reported failure {result}", code=result, hint="its function returns None or 0 where all is well"
        )
    raise CustomOperatorError(
        f"{title} returned a {type(result).__name__}",
        hint="fill call.outputs[i].array in place, and return None or 0; any other number means failure",
    )


def require_registered(calls: Iterable[CustomCall], functions: Mapping[str, CustomFunction]) -> None:
    """Reject calls that there is no function for."""
    for call in calls:
        if call.op_type not in functions:
            raise CustomOperatorError(
                f"custom operator '{call.op_type}' of layer '{call.name}' is not registered with the context",
                hint=f"context.register_custom_operator('{call.op_type}', compute) before the run",
            )


# What an array that a caller hands over means for a tensor: its values or its quantized values, in which order of axes.


_VALUE_TYPES = ("float32", "float16", "uint8")


def interpret(
    given: npt.ArrayLike,
    spec: TensorSpec,
    *,
    layout: Layout | str | None = None,
    preprocess: Preprocess | None = None,
    raw: bool = False,
) -> tuple[Array, TensorSpec, Preprocess | None]:
    """The array, what it is as a tensor, and the preprocessing that it still needs.

    * float32, float16, float64 and uint8 are values: they go through *preprocess* and are quantized where the tensor is.
    * int8 for an int8 tensor (and int16 for an int16 one) are quantized values, taken as they are.
    * With *raw* the array has the tensor's own type and its elements are quantized values, whatever the type is.
    * Integer and boolean tensors without quantization take their own type, or any integers that fit.

    :param layout: the order of the array's axes: ``nchw`` (that of the model, by default) or ``nhwc``
    """
    array = np.asarray(given)
    order = _order(layout, spec)
    _check_shape(array, spec, order)
    if raw or _is_code(array, spec):
        if array.dtype != spec.dtype.storage:
            raise _type_error(array, spec, f"raw data must have the tensor's own type, {spec.dtype.storage}")
        return array, TensorSpec(spec.name, spec.shape, spec.dtype, order, spec.quantization), None
    if spec.quantization is None and not spec.dtype.is_float:
        return _integers(array, spec), TensorSpec(spec.name, spec.shape, spec.dtype, order), None
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int8 and spec.dtype.is_float:
        array = array.astype(np.float16)  # exact
    if array.dtype.name not in _VALUE_TYPES:
        raise _type_error(array, spec, "pass float32 or uint8 values, for example array.astype(np.float32)")
    return array, TensorSpec(spec.name, spec.shape, DType(array.dtype.name), order), preprocess


def _order(layout: Layout | str | None, spec: TensorSpec) -> Layout:
    plain = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
    if layout is None:
        return plain
    try:
        order = Layout(layout)
    except ValueError:
        order = Layout.NC1HWC2
    if order is Layout.NC1HWC2:
        raise ShapeError(
            f"{layout!r} is no layout that an array for '{spec.name}' can have",
            hint="use 'nchw' or 'nhwc'; for the device's own layout, bind a buffer",
        )
    if order is Layout.NHWC and len(spec.shape) >= 3:
        return Layout.NHWC
    return plain


def _check_shape(array: Array, spec: TensorSpec, order: Layout) -> None:
    model = spec.shape
    last = (model[0], *model[2:], model[1]) if len(model) >= 3 else model
    expected, other = (last, model) if order is Layout.NHWC else (model, last)
    if array.shape == expected:
        return
    if array.shape == other:
        hint = (
            "this looks like NCHW; leave the layout out, or transpose it"
            if order is Layout.NHWC
            else "this looks like NHWC; pass layout='nhwc' or transpose it"
        )
    elif array.shape in (model[1:], last[1:]) and model[:1] == (1,):
        hint = "the batch axis is missing; pass array[None]"
        if array.shape != expected[1:]:
            hint += ", and layout='nhwc'" if order is not Layout.NHWC else " without layout='nhwc'"
    elif len(array.shape) == len(expected):
        hint = "resize or pad it to the model's input, or compile the model for this shape"
    else:
        hint = f"the model wants {len(expected)} axes"
    raise ShapeError(f"input '{spec.name}' takes {list(expected)}, got {list(array.shape)}", hint=hint)


def _is_code(array: Array, spec: TensorSpec) -> bool:
    """Own type of a quantized tensor; not uint8, which is an image's values on every chip."""
    return spec.quantization is not None and array.dtype == spec.dtype.storage and array.dtype != np.uint8


def _integers(array: Array, spec: TensorSpec) -> Array:
    storage = spec.dtype.storage
    if array.dtype == storage:
        return array
    if spec.dtype is DType.BOOL or spec.dtype.bits < 8 or array.dtype.kind not in "iu":
        raise _type_error(array, spec, f"pass {storage}")
    first, last = spec.dtype.limits
    if array.size and (int(array.min()) < first or int(array.max()) > last):
        raise _type_error(array, spec, f"its values must lie from {first} to {last}")
    return array.astype(storage)


def _type_error(array: Array, spec: TensorSpec, hint: str) -> TensorTypeError:
    return TensorTypeError(f"input '{spec.name}' is {spec.dtype.value} and does not take {array.dtype}", hint=hint)


log = logging.getLogger("anynpu.npu")

Inputs = Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike] | Array | None
"""Inputs by name, or in the order of the model; a bare array for a model with one input; None to run on what the buffers hold."""

_ALIGNMENT = 64  # of the tensors inside a block of I/O memory


class Context(Closeable):
    """Runs a loaded model. Made by :meth:`LoadedModel.context`.

    >>> with Device("rk3588") as device, device.load("det.rknn").context() as context:        # doctest: +SKIP
    ...     (heat,) = context.run({"x": page}, layout="nhwc")
    """

    def __init__(
        self, loaded: LoadedModel, *, internal: Buffer | None = None, shapes: int | Mapping[str, Sequence[int]] = 0
    ) -> None:
        self._device = loaded.device
        self._device.require_open()
        self._scheduler = self._device.scheduler
        self._resident: Resident | None = loaded._require()
        model = self._resident.model
        self._index = shape_set(model, shapes)
        needed = internal_size(model)
        if internal is not None and internal.size < needed:
            raise DeviceMemoryError(
                f"the internal memory of '{model.name}' takes {needed} bytes, the buffer has {internal.size}",
                hint=f"supply at least {needed} bytes (LoadedModel.internal_size), or leave it to the device",
            )
        self._internal: Buffer | None = internal
        if internal is None:
            self._internal = self._device.memory.allocate(needed, Purpose.INTERNAL)
        self._key = object()  # what the scheduler knows the context by
        self.exclusive: frozenset[object] = frozenset((self._key, self._internal))
        """What a run needs besides cores, for the scheduler."""
        self._inputs: dict[str, Buffer] = {}
        self._outputs: dict[str, Buffer] = {}
        self._supplied: set[str] = set()  # inputs in buffers of the caller
        self._bound: BoundProgram | None = None
        self._checked: object = None  # the closings of buffers that the bound program has seen
        self._copies: list[tuple[Array, Array]] = []
        self._custom: dict[str, CustomFunction] = {}
        self._calls: dict[int, CustomCall] = {}  # of the bound program, by layer
        self._values = ValueCheck(log.warning)
        self._device.adopt(self)

    @property
    def program(self) -> Program:
        """The program of the selected shape set."""
        return self._require().model.programs[self._index]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.program.input_specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.program.output_specs

    @property
    def internal_memory(self) -> Buffer:
        """Where the intermediates are, at the offsets of ``program.memory``. May be given to another context, which then takes turns."""
        internal = self._internal
        if internal is None:
            raise _closed()
        return internal

    @property
    def closed(self) -> bool:
        return self._resident is None

    @property
    def custom_operators(self) -> Mapping[str, CustomFunction | None]:
        """The types of the custom operators that the model needs, each with its function, or None where that is still missing."""
        return {name: self._custom.get(name) for name in self._require().model.custom_operators}

    def register_custom_operator(self, op_type: str, compute: CustomFunction) -> None:
        """Let *compute* execute all layers of a custom operator in this context; it takes the place of an earlier function.

        Waits for a run that is in progress. The operator need not be in the model.

        >>> def double(call):
        ...     np.multiply(call.inputs[0].array, 2, out=call.outputs[0].array)
        >>> context.register_custom_operator("Double", double)                                    # doctest: +SKIP
        """
        with self._turn():
            self._custom[op_type] = compute

    def custom_calls(self) -> tuple[CustomCall, ...]:
        """What a run calls functions of custom operators with, layer by layer, in memory as it is bound now."""
        with self._turn():
            self._arrange()
            return tuple(self._calls.values())

    def select_shapes(self, shapes: int | Mapping[str, Sequence[int]]) -> None:
        """Change to another shape set, by index or by the shape of each input. Buffers that were bound are let go."""
        with self._turn():
            index = shape_set(self._require().model, shapes)
            if index != self._index:
                self._index = index
                self._inputs, self._outputs = {}, {}
                self._supplied.clear()
                self._unbind()

    def bind_input(self, name: str, buffer: Buffer | None) -> None:
        """Read an input from *buffer*, in the tensor's own layout and type; None goes back to memory of the context's own."""
        with self._turn():
            self._bind(self._inputs, self._spec(name, self.program.inputs, "input"), buffer)
            if buffer is None:
                self._supplied.discard(name)
            else:
                self._supplied.add(name)

    def bind_output(self, name: str, buffer: Buffer | None) -> None:
        """Write an output to *buffer*, in the tensor's own layout and type; None goes back to memory of the context's own."""
        with self._turn():
            self._bind(self._outputs, self._spec(name, self.program.outputs, "output"), buffer)

    def input_buffer(self, name: str) -> Buffer:
        """The memory of an input."""
        with self._turn():
            spec = self._spec(name, self.program.inputs, "input")
            self._provide()
            return self._inputs[spec.name]

    def output_buffer(self, name: str) -> Buffer:
        """The memory of an output."""
        with self._turn():
            spec = self._spec(name, self.program.outputs, "output")
            self._provide()
            return self._outputs[spec.name]

    def write(self, name: str, array: npt.ArrayLike, *, layout: Layout | str | None = None, raw: bool = False) -> None:
        """Put an array into an input, converted in one pass: layout, mean and std, quantization.

        Floats and uint8 are values. int8 for an int8 tensor are quantized values, taken as they are; so is everything with *raw*.

        :param layout: ``nchw`` (the model's order, by default) or ``nhwc``
        """
        with self._turn():
            self._write(name, array, layout, raw)

    def read(self, name: str, *, dequantize: bool = True) -> Array:
        """A copy of an output in the model's order of axes: float32 (integers and booleans that are not quantized keep their type).

        :param dequantize: False gives the quantized values in the tensor's own type
        """
        with self._turn():
            return self._read(self._spec(name, self.program.outputs, "output"), dequantize)

    def run(
        self,
        inputs: Inputs = None,
        *,
        layout: Layout | str | None = None,
        dequantize: bool = True,
        mask: CoreMask | int | Iterable[int] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        control: RunControl | None = None,
    ) -> list[Array]:
        """Write the inputs, execute, read the outputs; all in the calling thread.

        :param inputs: by name, or in the order of the model; an input in a buffer of the caller may be left out
        :param mask: the cores to use; any idle one by default. Several let the run use as many host threads
        :param priority: smaller goes first
        :param timeout: seconds for all of it, waiting included
        :param control: for who wants to cancel it from another thread; takes the place of *timeout*
        :return: the outputs in the order of the model
        """
        control = control or RunControl(timeout)
        with self._turn(control, priority):
            self._write_all(inputs, layout)
            with self._cores(control, mask, priority) as lease:
                self._execute(lease)
            return self._read_all(dequantize)

    def execute(
        self,
        *,
        mask: CoreMask | int | Iterable[int] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        control: RunControl | None = None,
        profile: bool = False,
        between: Callable[[int], None] | None = None,
        duration_us: float | None = None,
    ) -> list[LayerTime]:
        """Execute on what the input buffers hold; the results are in the output buffers.

        :param profile: measure each layer
        :param between: called before each layer with its index
        :param duration_us: the time that the chip takes, for a device in real time; the prediction of the program if not given
        :return: the host time of each layer, in order; empty without *profile*
        """
        if control is None:
            control = RunControl(timeout)
        clock: list[LayerTime] | None = [] if profile else None
        if self._device.closed or self._resident is None:
            self._require_open()
        # nothing is read or written but by the run itself, so one lease takes the context and its cores
        with self._scheduler.acquire(mask, priority=priority, control=control, exclusive=self.exclusive) as lease:
            self._execute(lease, between, clock, duration_us)
        return clock or []

    def close(self) -> None:
        """Stop what runs here between two layers, deny what waits (both with :class:`DeviceClosed`), and give the memory back."""
        self._resident = None
        self._scheduler.retire(self._key, _closed())
        self._unbind()
        self._internal = None
        self.exclusive = frozenset((self._key,))
        self._copies = []
        self._custom, self._calls = {}, {}
        self._inputs, self._outputs = {}, {}

    # What follows expects that the context is held, except `_turn` and `_cores`, which take hold of it.

    def _turn(self, control: RunControl | None = None, priority: int = 0) -> Lease:
        self._require_open()
        lease = self._scheduler.acquire(priority=priority, control=control, exclusive=(self._key,), no_cores=True)
        if self._resident is None:  # closed while this thread waited
            lease.release()
            raise _closed()
        return lease

    def _cores(self, control: RunControl, mask: CoreMask | int | Iterable[int] | None, priority: int) -> Lease:
        return self._scheduler.acquire(mask, priority=priority, control=control, exclusive=(self.internal_memory,))

    def _require_open(self) -> None:
        self._require()
        self._device.require_open()

    def _require(self) -> Resident:
        resident = self._resident
        if resident is None:
            raise _closed()
        return resident

    def _spec(self, name: str, names: Sequence[str], what: str) -> TensorSpec:
        if name in names:
            return self.program.tensors[name]
        near = difflib.get_close_matches(str(name), names, n=1)
        guess = f"did you mean '{near[0]}'? " if near else ""
        raise TensorNameError(f"there is no {what} '{name}'", hint=f"{guess}The model has: {', '.join(names)}")

    def _bind(self, buffers: dict[str, Buffer], spec: TensorSpec, buffer: Buffer | None) -> None:
        if buffer is None:
            buffers.pop(spec.name, None)
        else:
            if buffer.size < spec.nbytes:
                raise DeviceMemoryError(
                    f"tensor '{spec.name}' takes {spec.nbytes} bytes, the buffer has {buffer.size}",
                    hint=f"bind at least {spec.nbytes} bytes",
                )
            buffer.view()  # rejects a closed one
            buffers[spec.name] = buffer
        self._unbind()

    def _unbind(self) -> None:
        bound, self._bound = self._bound, None
        self._checked = None
        if bound is not None:
            bound.close()

    def _provide(self) -> None:
        """Give every input and output without memory a place in one block."""
        missing = [
            (buffers, spec)
            for buffers, specs in ((self._inputs, self.inputs), (self._outputs, self.outputs))
            for spec in specs
            if spec.name not in buffers
        ]
        if not missing:
            return
        sizes = [round_up(spec.nbytes, _ALIGNMENT) for _, spec in missing]
        block = self._device.memory.allocate(sum(sizes), Purpose.IO)
        offset = 0
        for (buffers, spec), size in zip(missing, sizes, strict=True):
            buffers[spec.name] = block.slice(offset, spec.nbytes)
            offset += size

    def _arrange(self) -> BoundProgram:
        """The program tied to the buffers as they are bound now."""
        closings = Buffer.closings
        for buffer in (self.internal_memory, *self._inputs.values(), *self._outputs.values()):
            buffer.view()  # rejects one that its owner has closed
        if self._bound is None:
            self._provide()
            program = self.program
            owners = {name: self._owner(program, name) for name in _used(program)}
            arrays = {name: self._place(program, name, owner) for name, owner in owners.items()}
            # an output that is another tensor's memory is copied to its own at the end
            self._copies = [
                (self._outputs[name].array(np.uint8), _bytes(arrays[name]))
                for name in program.outputs
                if owners[name] != name or name in program.inputs
            ]
            self._calls = {
                index: self._call(program, layer, layer.op)
                for index, layer in enumerate(program.layers)
                if isinstance(layer.op, Custom)
            }
            self._bound = self._require().executable(self._index).bind(arrays, self._custom_step)
        self._checked = closings
        return self._bound

    def _custom_step(self, index: int, arrays: Mapping[str, Array]) -> Step:
        return custom_step(self._calls[index], self._custom, arrays)

    def _call(self, program: Program, layer: Layer, op: Custom) -> CustomCall:
        def tensor(name: str, *, writable: bool) -> CustomTensor:
            spec = program.tensors[name]
            buffer, offset = self._location(program, self._owner(program, name))
            array = buffer.tensor(spec, offset)
            array.flags.writeable = writable
            return CustomTensor(spec, array, buffer, offset)

        weights = self._require().weights
        inputs = [tensor(name, writable=False) for name in layer.inputs]
        for constant in sorted(op.constants, key=lambda entry: entry.position):
            array = constant.value.view()
            array.flags.writeable = False
            offset = array.ctypes.data - weights.address if array.size else 0
            inputs.insert(constant.position, CustomTensor(constant.spec, array, weights, offset))
        outputs = tuple(tensor(name, writable=True) for name in layer.outputs)
        return CustomCall(layer.name, op.op_type, op.attributes, tuple(inputs), outputs)

    @staticmethod
    def _owner(program: Program, name: str) -> str:
        while name in program.views:
            name = program.views[name]
        return name

    def _place(self, program: Program, name: str, owner: str) -> Array:
        buffer, offset = self._location(program, owner)
        return buffer.tensor(program.tensors[name], offset)

    def _location(self, program: Program, owner: str) -> tuple[Buffer, int]:
        """The buffer and the byte in it where a tensor that owns memory begins."""
        for buffers in (self._inputs, self._outputs):
            if owner in buffers:
                return buffers[owner], 0
        if owner not in program.memory.offsets:
            raise ModelFormatError(f"the program has no memory for tensor '{owner}'", hint="compile the model again")
        return self.internal_memory, program.memory.offsets[owner]

    def _execute(
        self,
        lease: Lease,
        between: Callable[[int], None] | None = None,
        clock: list[LayerTime] | None = None,
        duration_us: float | None = None,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Compute; on a device in real time, for as long as the chip takes. *before* and *after* are part of that."""
        if self._resident is None:
            raise _closed()
        faults, faulty = self._device.faults, None
        if faults is not None:
            faulty = faults.begin(lease.cores, self._scheduler.busy, lease.control)
        real = self._device.clock
        started = ends = 0.0
        if faulty is not None:
            started = time.monotonic()
        if real is not None:
            if duration_us is None:
                duration_us = self._duration_us(len(lease.cores))
            started = time.monotonic()
            ends = real.begin(lease.cores, duration_us)
        if before is not None:
            before()
        bound = self._bound
        if bound is None or self._checked is not Buffer.closings:
            bound = self._arrange()
        if self._calls:
            require_registered(self._calls.values(), self._custom)
        cores = len(lease.cores)
        bound.run(lease.control, between=between, clock=clock, threads=1 if cores == 1 else host_threads(cores))
        for target, source in self._copies:
            target[: source.size] = source
        if after is not None:
            after()
        if real is not None and duration_us is not None:
            real.finish(lease.cores, duration_us, started, ends, lease.control)
        if faulty is not None:
            faulty.end(time.monotonic() - started, self._output_bytes, lease.control)

    def _output_bytes(self) -> list[Array]:
        return [self._outputs[name].array(np.uint8) for name in self.program.outputs]

    def _duration_us(self, cores: int) -> float:
        prediction = self._device.prediction(self.program, cores=max(cores, 1))
        return prediction.latency_us if cores > 1 else prediction.busy_us(max(self._scheduler.busy, 1))

    def _run(self, lease: Lease, inputs: Inputs, layout: Layout | str | None, dequantize: bool) -> list[Array]:
        """Write, execute and read, for a job that holds the context and the cores."""
        self._require()
        self._write_all(inputs, layout)
        self._execute(lease)
        return self._read_all(dequantize)

    def _write_all(self, inputs: Inputs, layout: Layout | str | None) -> None:
        if inputs is None:
            return
        names = self.program.inputs
        if isinstance(inputs, Mapping):
            given: Mapping[str, npt.ArrayLike] = inputs
            missing = [name for name in names if name not in given and name not in self._supplied]
        else:
            arrays: Sequence[npt.ArrayLike] = [inputs] if isinstance(inputs, np.ndarray) else inputs
            if len(arrays) > len(names):
                raise TensorNameError(f"{len(arrays)} inputs for a model with {len(names)}", hint=f"it has: {', '.join(names)}")
            given, missing = dict(zip(names, arrays, strict=False)), list(names[len(arrays) :])
        if missing:
            raise TensorNameError(
                f"no array for input '{missing[0]}'",
                hint=f"the model has: {', '.join(names)}; only one that is bound to a buffer may be left out",
            )
        for name, array in given.items():
            self._write(name, array, layout, False)

    def _write(self, name: str, given: npt.ArrayLike, layout: Layout | str | None, raw: bool) -> None:
        spec = self._spec(name, self.program.inputs, "input")
        array, source, preprocess = interpret(
            given, spec, layout=layout, preprocess=self._require().model.preprocess.get(name), raw=raw
        )
        self._values.inputs([name], [array])
        self._provide()
        convert.convert(array, source, spec, out=self._inputs[name].tensor(spec), preprocess=preprocess)

    def _read_all(self, dequantize: bool) -> list[Array]:
        return [self._read(spec, dequantize) for spec in self.outputs]

    def _read(self, spec: TensorSpec, dequantize: bool) -> Array:
        self._provide()
        order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
        if dequantize and (spec.quantization is not None or spec.dtype.is_float):
            target = TensorSpec(spec.name, spec.shape, DType.FLOAT32, order)
        else:
            target = TensorSpec(spec.name, spec.shape, spec.dtype, order, spec.quantization)
        result = convert.convert(self._outputs[spec.name].tensor(spec), spec, target)
        self._values.output(spec.name, spec.dtype, result)
        return result

    def __repr__(self) -> str:
        resident = self._resident
        return "<Context, closed>" if resident is None else f"<Context of {resident.model.name or 'a model'} on {self._device}>"


def _used(program: Program) -> set[str]:
    """The tensors that need memory: all but those inside a segment of float layers."""
    names = {*program.inputs, *program.outputs}
    for layer in program.layers:
        if not isinstance(layer.op, Float):
            names.update(layer.inputs, layer.outputs)
    for stretch in program.float_stretches():
        names.update(stretch.inputs, stretch.outputs)
    return names


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _closed() -> DeviceClosed:
    return DeviceClosed("the context was closed", hint="make a new one from the loaded model")
