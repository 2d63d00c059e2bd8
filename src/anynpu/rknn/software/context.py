"""One ``rknn_context``: a model, its inputs and outputs, and what the caller has set.

Who owns what: the context owns its ports, the output buffers it has given out, its share of the SRAM and its engine context; the loaded
model (with the weights) is shared with the contexts that were duplicated from it or take their weights from it.

Locks: ``lock`` is held by every call that changes the context or moves data, a run included. Queries read what was set once, or single
values, and hold nothing. ``close`` must end a run that holds the lock, so it closes the engine context first, which stops the run between
two layers, and only then takes the lock. Neither that nor the destroying of memory by another thread takes memory away from a call that
uses it: ``_places`` and the bindings of ports keep it mapped, and change under the lock alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..._rknn import ffi
from ...chips.timing import Prediction
from ...npu import Buffer, Context, Device, LoadedModel, RunControl
from ...npu.memory import internal_size
from ...npu.value_check import ValueCheck
from ...program import Model
from ...program.convert import Conversion
from ...tensor import TensorSpec
from ...vendors.libraries import Refusal
from ..constants import Code, Flag
from .memory import Sram, SramShare, TensorMemory, new_outside
from .ports import Binding, InputPort, OutputPort, Ports, attr_key, cut_name, indices

if TYPE_CHECKING:
    from .custom_operators import CustomOperators


# Runs that do not block: frames, one after the other, on a thread of the context's own.
#
# The vendor declares this in ``rknn_run_extend`` and does not offer it; here it works. A context has one set of inputs and outputs, so
# frames do not overlap: the next one begins when the one before has finished, and its outputs are there until then. A call that changes
# inputs, shapes or memory waits for the frames before it.
#
# Concurrency: the thread is started with the first frame and ends with :meth:`Frames.close`, after which frames are rejected. Futures are
# kept by frame number under the lock, so that a frame can be waited for more than once; of those that have finished, at most ``KEPT``.


KEPT = 64
"""Frames that no call waited for; the oldest are forgotten."""


_MAX_NUMBER = 2**64 - 1


class Frames:
    """The frames of one context."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "anynpu frame")
        self._lock = threading.Lock()
        self._futures: OrderedDict[int, Future[None]] = OrderedDict()
        self._next = 1
        self._thread = 0
        self._closed = False

    def submit(self, frame: int, run: Callable[[], None]) -> int:
        """Queue *run* as *frame* (0: the next number) and return its number."""
        with self._lock:
            if self._closed:
                raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
            if not frame:
                frame = self._next
                while self._on_its_way(frame):  # the numbers have started again
                    frame = frame % _MAX_NUMBER + 1
            if self._on_its_way(frame):
                raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"frame {frame} is on its way already", "give every frame its number")
            self._next = max(self._next, frame) % _MAX_NUMBER + 1
            self._futures[frame] = self._pool.submit(self._run, run)
            self._futures.move_to_end(frame)
            while len(self._futures) > KEPT and next(iter(self._futures.values())).done():
                self._futures.popitem(last=False)
        return frame

    def _on_its_way(self, frame: int) -> bool:
        return frame in self._futures and not self._futures[frame].done()

    def wait(self, frame: int, timeout: float | None) -> int:
        """Wait for *frame* (0: the latest) and return its number; raises what its run raised."""
        with self._lock:
            if not frame and self._futures:
                frame = next(reversed(self._futures))
            future = self._futures.get(frame)
            closed = self._closed
        if future is None and closed:
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
        if future is None:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"no frame {frame} was started", "wait for a frame that rknn_run queued")
        try:
            future.result(timeout)
        except CancelledError:
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed before the frame ran") from None
        except FutureTimeoutError:
            if not future.done():
                raise Refusal(Code.RKNN_ERR_TIMEOUT, f"frame {frame} was not finished in time") from None
            raise
        return frame

    def settle(self) -> None:
        """Wait until all frames have ended, however they did; a frame's own thread (a custom operator) waits for nothing."""
        if threading.get_ident() != self._thread:
            with self._lock:
                pending = [future for future in self._futures.values() if not future.done()]
            for future in pending:  # not concurrent.futures.wait, which never returns for one that a shutdown has cancelled
                try:
                    future.exception()
                except CancelledError:
                    continue

    def _run(self, run: Callable[[], None]) -> None:
        self._thread = threading.get_ident()
        run()

    @property
    def latest(self) -> int:
        """The number of the frame queued last."""
        with self._lock:
            return next(reversed(self._futures)) if self._futures else 0

    def close(self) -> None:
        """Drop what waits and let what runs end (which may be the caller: a custom operator may destroy its context)."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=threading.get_ident() != self._thread, cancel_futures=True)
        with self._lock:
            self._futures.clear()  # an error refers to the frames of its run, and so to the context


_ALL_OUTSIDE = Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE
_INTERNAL_OUTSIDE = _ALL_OUTSIDE | Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE
_PRIORITIES = Flag.RKNN_FLAG_PRIOR_MEDIUM | Flag.RKNN_FLAG_PRIOR_LOW


Move = tuple[Conversion, int, int]
"""A conversion, the address to read from and the address to write to."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """What the runs of a context have in common until something is set, bound or destroyed.

    :ivar version: of the context's settings, and *closings* of buffers, for which it was made
    :ivar float_inputs: bound memory whose values are checked, and what it holds; *float_outputs* too
    """

    version: object
    closings: object
    npu: Context
    mask: int
    before: tuple[Move, ...]
    after: tuple[Move, ...]
    own_time: bool
    float_inputs: tuple[tuple[TensorSpec, int], ...] = ()
    float_outputs: tuple[tuple[TensorSpec, int], ...] = ()


class ModelContext:
    """The state behind the handle of a model.

    :param sram_from: a context whose SRAM serves this one as well
    :param weights_from: a context whose weights serve this one as well
    :param values: checks what the caller gives and gets
    """

    def __init__(
        self,
        device: Device,
        sram: Sram,
        model: Model,
        flags: Flag,
        *,
        weights_from: ModelContext | None = None,
        sram_from: ModelContext | None = None,
        values: ValueCheck | None = None,
    ) -> None:
        self.device = device
        self.values = values
        self.sram = sram
        self.model = model
        self.flags = flags
        self.info_only = bool(flags & Flag.RKNN_FLAG_COLLECT_MODEL_INFO_ONLY)
        self.priority = min(int(flags & _PRIORITIES), 2)  # 0 is high
        self.lock = threading.RLock()
        self.mask = 0
        self.batch_cores = 0
        self.missing_calls = frozenset(name for name, available in device.chip.calls.items() if not available)
        self.closed = False
        self.restricted = self.info_only
        """Whether some call may be rejected: the context is closed, only reports about its model, or has custom operators."""
        self.runs = 0
        self.last_control: RunControl | None = None
        self.perf_texts: dict[str, Any] = {}  # given out until the context ends; there are as many as ways to run it
        self.frames: Frames | None = None
        self._frames_lock = threading.Lock()
        self.outputs_of_frame = False  # what ran last, or must run last, did not block
        self.custom: CustomOperators | None = None
        self._needed_operators = model.custom_operators
        self.loaded: LoadedModel | None = None
        self.npu: Context | None = None
        self.dynamic = len(model.programs) > 1
        self.shapes = 0
        self.shapes_chosen = not self.dynamic
        self.ports = Ports(device, model, 0)
        """The inputs and outputs of the shapes that are set."""
        self._ports = {0: self.ports}
        self._given: dict[int, Any] = {}
        self._plan: _Plan | None = None
        self._version = object()  # another one after each change that concerns runs
        self._places: dict[InputPort | OutputPort, tuple[int, memoryview]] = {}  # the engine's memory, until something is bound
        self._weight_source = weights_from
        self._share: SramShare | None = None
        self._pending_internal: Buffer | None = None
        if self.info_only:
            return
        if not flags & _ALL_OUTSIDE or weights_from is not None:
            self.loaded = self._load()
        if self.loaded is not None and not flags & _INTERNAL_OUTSIDE:
            self.npu = self.loaded.context()
        if flags & Flag.RKNN_FLAG_ENABLE_SRAM:
            share = sram_from._share if sram_from is not None else None
            self._share = share or sram.take(self.internal_size)

    @property
    def internal_size(self) -> int:
        return internal_size(self.model)

    @property
    def batch(self) -> int:
        shape = self.model.programs[self.shapes].input_specs[0].shape
        return shape[0] if shape else 1

    @property
    def dma_size(self) -> int:
        """Bytes of device memory that were allocated for this context alone."""
        total = 0
        loaded, npu = self.loaded, self.npu
        if loaded is not None and self._weight_source is None and not self.flags & _ALL_OUTSIDE:
            total += loaded.weights.size
        if npu is not None and not self.flags & _INTERNAL_OUTSIDE:
            total += npu.internal_memory.size
        return total + sum(port.spec.nbytes for port in (*self.ports.inputs, *self.ports.outputs) if port.binding is None)

    def prediction(self) -> Prediction:
        """What the chip is predicted to take for a run as the context is set now."""
        cores = bin(self._cores()).count("1") if not self._shares_batch else 1
        sram = self._share.size if self._share is not None else 0
        return self.device.prediction(self.model.programs[self.shapes], cores=max(cores, 1), sram_bytes=sram)

    def latency_us(self) -> float:
        """The predicted time of a run."""
        prediction = self.prediction()
        return prediction.batch_us(self.batch, self.batch_cores) if self._shares_batch else prediction.latency_us

    def _has_own_time(self) -> bool:
        """Whether a run takes another time than the program on its own."""
        return self._shares_batch or self._share is not None

    @property
    def _shares_batch(self) -> bool:
        return not self.mask and self.batch_cores > 1 and self.batch > 1

    def set_cores(self, *, mask: int | None = None, batch_cores: int | None = None) -> None:
        """State which cores a run uses, or how many share its batch. Does not wait for a run in progress."""
        self.mask = self.mask if mask is None else mask
        self.batch_cores = self.batch_cores if batch_cores is None else batch_cores
        self._version = object()

    def duplicate(self) -> ModelContext:
        """A context of the same model with the same weights, and inputs and outputs of its own."""
        if self.dynamic:
            raise Refusal(
                Code.RKNN_ERR_MODEL_INVALID,
                f"'{self.model.name}' has dynamic shapes, and such a context cannot be duplicated",
                "call rknn_init again",
            )
        self.require_runnable_kind()
        with self.lock:
            flags = self.flags & ~(Flag.RKNN_FLAG_SHARE_WEIGHT_MEM | Flag.RKNN_FLAG_SHARE_SRAM)
            if self.loaded is None:
                raise Refusal(Code.RKNN_ERR_MALLOC_FAIL, "the context has no weights yet", "call rknn_set_weight_mem before")
            twin = ModelContext(self.device, self.sram, self.model, flags, weights_from=self, values=self.values)
            twin.mask, twin.batch_cores = self.mask, self.batch_cores
        return twin

    def require_runnable_kind(self) -> None:
        """Reject what a context that only reports about its model cannot do."""
        if self.closed:
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
        if self.info_only:
            raise Refusal(
                Code.RKNN_ERR_CTX_INVALID,
                "the context was made with RKNN_FLAG_COLLECT_MODEL_INFO_ONLY and answers queries only",
                "call rknn_init without that flag",
            )
        if self.custom is not None and self.custom.calling():
            raise Refusal(
                Code.RKNN_ERR_FAIL,
                "the call comes from a callback of a custom operator of the same context, and would wait for itself",
                "callbacks may read attributes of their operator and use other contexts",
            )

    def started_frames(self) -> Frames:
        """The frames, made now if there were none; not under the lock, which a frame that runs holds."""
        with self._frames_lock:
            self.require_runnable_kind()
            self.frames = self.frames or Frames()
            self.outputs_of_frame = True
            return self.frames

    def settle(self) -> None:
        """Wait for frames that are in flight; what the caller changes next is not for them."""
        if self.frames is not None:
            self.frames.settle()

    def set_weights(self, memory: TensorMemory) -> None:
        """Put the weights into memory of the caller, and use them there."""
        self.require_runnable_kind()
        if not self.flags & _ALL_OUTSIDE:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                "the context has its weights in memory of its own",
                "call rknn_init with RKNN_FLAG_MEM_ALLOC_OUTSIDE",
            )
        with self.lock:
            self.require_runnable_kind()
            loaded = self.device.load(self.model, weights=memory.buffer)  # if that is rejected, nothing has changed
            internal = self.npu.internal_memory if self.npu is not None else None
            self._drop_engine()
            self.loaded = loaded
            if internal is not None and not internal.closed:
                self._use_internal(internal)

    def set_internal(self, memory: TensorMemory) -> None:
        """Use memory of the caller for intermediate tensors."""
        self.require_runnable_kind()
        if not self.flags & _INTERNAL_OUTSIDE:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                "the context has its internal memory itself",
                "call rknn_init with RKNN_FLAG_MEM_ALLOC_OUTSIDE or RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE",
            )
        if memory.size < self.internal_size:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                f"'{self.model.name}' takes {self.internal_size} bytes of internal memory, the memory has {memory.size}",
                "RKNN_QUERY_MEM_SIZE returns total_internal_size",
            )
        with self.lock:
            self.require_runnable_kind()
            if self.loaded is None:
                self._pending_internal = memory.buffer
            else:
                self._use_internal(memory.buffer)

    def set_shapes(self, index: int) -> None:
        """Change to another set of shapes; what was bound to the inputs and outputs of the old one is let go."""
        with self.lock:
            self.require_runnable_kind()
            if index != self.shapes or not self.shapes_chosen:
                for port in (*self.ports.inputs, *self.ports.outputs):
                    if port.binding is not None and self.npu is not None:
                        (self.npu.bind_input if isinstance(port, InputPort) else self.npu.bind_output)(port.name, None)
                    port.binding = None
                self.shapes = index
                if index not in self._ports:
                    self._ports[index] = Ports(self.device, self.model, index)
                self.ports = self._ports[index]
                self.shapes_chosen = True
                self.runs = 0
                for source in self.ports.inputs:
                    source.given = False
                self._forget_places()
                if self.npu is not None:
                    self.npu.select_shapes(index)

    def set_inputs(self, count: int, inputs: Any) -> None:
        """Convert what the caller has, as ``rknn_input`` structs, into the engine's inputs: all of them, or none."""
        with self.lock:
            ports = self.ports.inputs
            if inputs == ffi.NULL or count != len(ports):
                raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{count} inputs given, the model has {len(ports)}")
            if not self.shapes_chosen:
                raise Refusal(
                    Code.RKNN_ERR_INPUT_INVALID, "the model has dynamic shapes and none is set", "call rknn_set_input_shapes"
                )
            plan = self._plan
            planned = plan is not None and plan.version is self._version and plan.closings is Buffer.closings
            npu = plan.npu if plan is not None and planned else self._engine()
            places, accepted = self._places, []
            for position, index in enumerate(indices(inputs, count)):
                one = inputs[position]
                if index >= count:
                    raise Refusal(Code.RKNN_ERR_INPUT_INVALID, f"there is no input {index}: the model has {count}")
                port, address = ports[index], int(ffi.cast("uintptr_t", one.buf))
                if not address:
                    raise Refusal(Code.RKNN_ERR_INPUT_INVALID, f"input '{port.name}' is a null pointer")
                if port.binding is not None:
                    raise Refusal(
                        Code.RKNN_ERR_PARAM_INVALID,
                        f"input '{port.name}' is bound to memory",
                        "write into that memory; rknn_inputs_set and rknn_set_io_mem exclude each other",
                    )
                transfer = port.transfer(one.type, one.fmt, one.pass_through)
                if one.size < transfer.nbytes:
                    raise Refusal(
                        Code.RKNN_ERR_PARAM_INVALID,
                        f"input '{port.name}' takes {transfer.nbytes} bytes, got {one.size}",
                        "size is in bytes: elements times the size of the type",
                    )
                accepted.append((port, transfer.conversion, address))
            for port, conversion, address in accepted:
                if self.values is not None:
                    self.values.input_at(conversion.source, address)
                known = places.get(port)
                conversion.run(address, self._address(npu, port) if known is None else known[0])
                port.given = True

    def bind(self, memory: TensorMemory, attr: Any) -> None:
        """Bind memory to the input or output that the attributes name."""
        with self.lock:
            self.require_runnable_kind()
            port = self._named(attr)
            key = attr_key(attr)
            bound = port.binding
            if bound is not None and bound.memory is memory and bound.key == key:
                return
            binding = port.bind(memory, attr, key)
            direct = memory.buffer if binding.conversion is None else None
            npu = self._engine()
            bind = npu.bind_input if isinstance(port, InputPort) else npu.bind_output
            if direct is not None or bound is None or bound.conversion is None:
                bind(port.name, direct)
                self._forget_places()
            port.binding = binding
            self._version = object()

    def run(self, control: RunControl) -> None:
        """Execute on what the inputs hold."""
        if self.restricted:
            self.require_runnable_kind()
        with self.lock:
            plan = self._plan
            if plan is None or plan.version is not self._version or plan.closings is not Buffer.closings:
                plan = self._plan = self._planned()
            if self.values is not None:
                for spec, address in plan.float_inputs:
                    self.values.input_at(spec, address)
            for conversion, source, target in plan.before:
                conversion.run(source, target)
            self.last_control = control
            duration = self.latency_us() if plan.own_time else None
            plan.npu.execute(mask=plan.mask, priority=self.priority, control=control, duration_us=duration)
            for conversion, source, target in plan.after:
                conversion.run(source, target)
            if self.values is not None:
                for spec, address in plan.float_outputs:
                    self.values.output_at(spec, address, spec.dtype)
            self.runs += 1

    def _planned(self) -> _Plan:
        """Check everything that a run needs, and look up what it uses."""
        version, closings = self._version, Buffer.closings
        npu = self._engine()
        self._check_bound()
        self._check_operators()
        ports = self.ports
        return _Plan(
            version,
            closings,
            npu,
            self._cores(),
            tuple(
                (bound.conversion, bound.address, self._address(npu, port))
                for port in ports.inputs
                if (bound := port.binding) is not None and bound.conversion is not None
            ),
            tuple(
                (bound.conversion, self._address(npu, port), bound.address)
                for port in ports.outputs
                if (bound := port.binding) is not None and bound.conversion is not None
            ),
            self.device.clock is not None and self._has_own_time(),
            tuple(_floats(port, bound) for port in ports.inputs if (bound := port.binding) is not None),
            tuple(
                _floats(port, bound) for port in ports.outputs if (bound := port.binding) is not None and port.spec.dtype.is_float
            ),
        )

    def run_now(self, control: RunControl) -> None:
        """:meth:`run` for a caller who waits; its outputs take the place of those of earlier frames."""
        if self.frames is not None:
            self.settle()
        self.outputs_of_frame = False
        self.run(control)

    def read(self, port: OutputPort, conversion: Conversion, address: int) -> None:
        """Convert an output to the caller's memory."""
        known = self._places.get(port)
        # outputs are there also without internal memory
        conversion.run(self._address(self.npu or self._engine(), port) if known is None else known[0], address)
        if self.values is not None:
            self.values.output_at(conversion.target, address, port.spec.dtype)

    def give_output(self, nbytes: int) -> Any:
        """Memory for an output that stays until the caller releases it."""
        memory = new_outside("char[]", max(nbytes, 1))
        self._given[int(ffi.cast("uintptr_t", memory))] = memory
        return memory

    def take_output(self, pointer: Any) -> bool:
        """Free memory of :meth:`give_output`; False for any other."""
        return self._given.pop(int(ffi.cast("uintptr_t", pointer)), None) is not None

    def close(self) -> None:
        """End what runs, then give everything back."""
        with self._frames_lock:
            self.closed = self.restricted = True
        npu = self.npu
        if npu is not None:
            npu.close()
        with self.lock:  # what began before has ended, and nothing else begins
            npu, frames, custom = self.npu, self.frames, self.custom
            if npu is not None:
                npu.close()  # it may have been made a moment ago
        if frames is not None:
            frames.close()
        with self.lock:
            if custom is not None:
                custom.close()
            self._given.clear()
            for ports in self._ports.values():
                for port in (*ports.inputs, *ports.outputs):
                    port.binding = None
            self._forget_places()
            self.perf_texts.clear()
            self.npu = None
            self.loaded = None
            self._weight_source = None
            self._pending_internal = None
            self._share = None

    def _load(self) -> LoadedModel:
        source = self._weight_source
        if source is None:
            return self.device.load(self.model)
        loaded = source.loaded
        if loaded is None:
            raise Refusal(Code.RKNN_ERR_MALLOC_FAIL, "the context to take weights from has none", "set its weight memory before")
        if source.device is not self.device:
            raise Refusal(Code.RKNN_ERR_MODEL_INVALID, "the context to take weights from is one of another chip")
        if source.model is self.model:
            return loaded
        if loaded.weights.closed:
            raise Refusal(Code.RKNN_ERR_MALLOC_FAIL, "the memory of the weights to share was destroyed", "set other memory there")
        return self.device.load(self.model, weights_from=loaded)

    def _use_internal(self, internal: Buffer) -> None:
        assert self.loaded is not None
        self._forget_places()
        self.runs = 0
        previous, self.npu = self.npu, self.loaded.context(internal=internal, shapes=self.shapes)
        if previous is not None:
            previous.close()
        self._forget_bindings()
        if self.custom is not None:
            self.custom.attach(self.npu)

    def _forget_bindings(self) -> None:
        """An engine context that is new has nothing bound; what the caller bound is bound again."""
        for ports in self._ports.values():
            for source in ports.inputs:
                source.given = False
                if self.npu is not None and (buffer := _direct(source)) is not None:
                    self.npu.bind_input(source.name, buffer)
            for target in ports.outputs:
                if self.npu is not None and (buffer := _direct(target)) is not None:
                    self.npu.bind_output(target.name, buffer)

    def _drop_engine(self) -> None:
        if self.npu is not None:
            self.npu.close()
            self.npu = None
        self.loaded = None
        self.runs = 0
        self._forget_places()

    def _engine(self) -> Context:
        """The engine's context; made now where the caller's memory has come in the meantime."""
        self.require_runnable_kind()
        if self.npu is None:
            if self.loaded is None:
                raise Refusal(
                    Code.RKNN_ERR_MALLOC_FAIL,
                    "the context has no memory for its weights",
                    "RKNN_FLAG_MEM_ALLOC_OUTSIDE asks for rknn_set_weight_mem",
                )
            pending, self._pending_internal = self._pending_internal, None
            if pending is None or pending.closed:
                raise Refusal(
                    Code.RKNN_ERR_MALLOC_FAIL,
                    "the context has no internal memory",
                    "call rknn_set_internal_mem with total_internal_size bytes",
                )
            self._use_internal(pending)
        assert self.npu is not None
        self._require_internal(self.npu)
        return self.npu

    def _require_internal(self, npu: Context) -> None:
        if npu.internal_memory.closed and not self.device.closed:
            raise Refusal(
                Code.RKNN_ERR_MALLOC_FAIL, "the internal memory was destroyed", "call rknn_set_internal_mem with other memory"
            )

    def _forget_places(self) -> None:
        self._places.clear()
        self._version = object()

    def _address(self, npu: Context, port: InputPort | OutputPort) -> int:
        """Where the engine has an input or output. It stays mapped while the context's lock is held, also if the engine is closed."""
        known = self._places.get(port)
        if known is None:
            buffer = npu.input_buffer(port.name) if isinstance(port, InputPort) else npu.output_buffer(port.name)
            known = self._places[port] = buffer.address, buffer.view()
        return known[0]

    def _check_bound(self) -> None:
        if not self.shapes_chosen:
            raise Refusal(
                Code.RKNN_ERR_INPUT_INVALID,
                f"'{self.model.name}' has dynamic shapes and none is set",
                "call rknn_set_input_shapes",
            )
        ports = self.ports
        for source in ports.inputs:
            if source.binding is None and not source.given:
                raise Refusal(
                    Code.RKNN_ERR_INPUT_INVALID,
                    f"input '{source.name}' has no data",
                    "call rknn_inputs_set, or bind memory with rknn_set_io_mem",
                )
        must_bind = self.device.chip.library == "librknnmrt"
        for target in ports.outputs:
            if target.binding is None and must_bind:
                raise Refusal(
                    Code.RKNN_ERR_OUTPUT_INVALID, f"output '{target.name}' has no memory", "bind some with rknn_set_io_mem"
                )
        self._require_bound()

    def require_memory(self, npu: Context) -> None:
        """Reject to use memory that the caller has destroyed."""
        self._require_internal(npu)
        self._require_bound()

    def _require_bound(self) -> None:
        ports = self.ports
        for port in (*ports.inputs, *ports.outputs):
            if port.binding is not None and port.binding.memory.buffer.closed:
                code = Code.RKNN_ERR_INPUT_INVALID if isinstance(port, InputPort) else Code.RKNN_ERR_OUTPUT_INVALID
                raise Refusal(code, f"the memory bound to '{port.name}' was destroyed", "bind other memory")

    def _check_operators(self) -> None:
        needed = self._needed_operators
        missing = needed and (needed[0] if self.custom is None else self.custom.missing(needed))
        if missing:
            raise Refusal(
                Code.RKNN_ERR_FAIL,
                f"'{self.model.name}' has the custom operator '{missing}', which is not registered",
                "call rknn_register_custom_ops before rknn_run; a duplicated context has no operators of its own",
            )

    def _cores(self) -> int:
        """The mask of a run: what was set; for a model of several batches, as many cores as were asked for."""
        if self.mask:
            return self.mask & ((1 << self.device.cores) - 1)
        if self._shares_batch:
            return (1 << self.batch_cores) - 1
        return 0

    def _named(self, attr: Any) -> InputPort | OutputPort:
        name = ffi.string(attr.name, len(attr.name)).decode("utf-8", "replace")
        ports: list[InputPort | OutputPort] = [*self.ports.inputs, *self.ports.outputs]
        for port in ports:
            if cut_name(port.name) == name:
                return port
        known = ", ".join(port.name for port in ports)
        raise Refusal(
            Code.RKNN_ERR_PARAM_INVALID,
            f"the attributes name '{name}', which is neither an input nor an output",
            f"begin with attributes that rknn_query gave; the model has: {known}",
        )


def _direct(port: InputPort | OutputPort) -> Buffer | None:
    """The memory that the engine itself must use; what was destroyed is rejected by the next run."""
    binding = port.binding
    if binding is None or binding.conversion is not None or binding.memory.buffer.closed:
        return None
    return binding.memory.buffer


def _floats(port: InputPort | OutputPort, bound: Binding) -> tuple[TensorSpec, int]:
    """What the bound memory of a port holds, and where."""
    conversion = bound.conversion
    if conversion is None:
        return port.spec, bound.address
    return conversion.source if isinstance(port, InputPort) else conversion.target, bound.address
