"""The matmul calls: products of two matrices without a model.

A product reads A and B and writes C where the caller bound them, again each time: what changed in the memory of B since the last run is
seen. Nothing is kept of either.

``rknn_matmul_info`` had 24 bytes in SDK 1.6.0 and has 64 since 2.0. Its first 24 bytes mean the same in both (the old fields of 32 bits are
the new layout fields of 16 followed by a quantisation type of 0). Later bytes are read in one case only: for the group size, if the
quantisation of B is one by groups, which no program of 1.6.0 can ask for.

Who owns what: a context owns the description of its product and the working memory of the kernels; the memory of A, B and C belongs to
whoever made it. The scheduler of the device lets one run of a context go at a time, on the virtual cores that models use as well. Settings
are replaced as a whole under the context's lock, and a run takes those that it finds when it starts.

On a device in real time a product takes as long as the chip is predicted to; ``RKNN_QUERY_PERF_RUN`` gives that time after a run.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._rknn import ffi
from ...chips import Chip
from ...chips.timing import predict_matmul
from ...errors import DeviceClosed
from ...npu import Buffer, Device
from ...npu.cores import host_threads
from ...npu.matmul import StoredMatrix
from ...tensor import DType
from ..constants import RKNN_MAX_DYNAMIC_SHAPE_NUM, Code, rknn_matmul_layout, rknn_matmul_quant_type, rknn_query_cmd
from .handles import Handles
from .matmul_layouts import MatmulLayout, MatrixAttributes, convert_b
from .matmul_quantization import Parameters, Quantization
from .memory import MemoryTable, TensorMemory
from .program_memory import new_outside
from .refusal import Refusal

__all__ = ["MatmulCalls", "MatmulState"]

_FIRST_PAGE = 4096
"""No struct lies below: a caller of SDK 2.0 passes a small number where there is a pointer now."""

_GROUPED = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_ASYM)


class _Ready(NamedTuple):
    """A product that has run, and what it ran with."""

    layout: MatmulLayout
    quantization: Quantization
    bound: dict[str, TensorMemory]
    cores: int
    closings: object
    spent_us: float
    again: Callable[[], None]


class MatmulState:
    """One context of the matmul calls.

    :param layouts: one, or those of all dynamic shapes
    :param dynamic: a shape must be chosen before the first run
    :ivar device: whose cores it runs on
    """

    def __init__(self, device: Device, layouts: Sequence[MatmulLayout], quantization: Quantization, *, dynamic: bool) -> None:
        self.device = device
        self._layouts = tuple(layouts)
        self._lock = threading.Lock()
        self._layout = None if dynamic else layouts[0]
        self._quantization = quantization
        self._bound: dict[str, TensorMemory] = {}
        self._mask = 0
        self._closed = False
        self._matrix: tuple[tuple[int, int, int], StoredMatrix] | None = None  # of the run that has the context to itself
        self._sums: npt.NDArray[Any] | None = None  # the same
        self._ready: _Ready | None = None  # the same
        self._given: Any = None
        self._times: dict[tuple[int, int, int, int], float] = {}
        self._spent_us: float | None = None  # of the last run

    @property
    def spent_us(self) -> float:
        """What the chip is predicted to have taken for the last run."""
        if self._spent_us is None:
            raise Refusal(Code.RKNN_ERR_FAIL, "the product has not run yet", "call rknn_matmul_run before")
        return self._spent_us

    def predicted_us(self, layout: MatmulLayout, cores: int) -> float:
        """What the chip is predicted to take for a product on so many cores."""
        key = (layout.m, layout.k, layout.n, cores)
        if key not in self._times:
            a, b, c = (dtype.value for dtype in layout.types)
            normal = layout.ac_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_NORM
            self._times[key] = predict_matmul(
                self.device.chip,
                layout.m,
                layout.k,
                layout.n,
                dtype=a,
                weight_type=b,
                result_type=c,
                layout="normal" if normal else "native",
                cores=cores,
                profile=self.device.timing,
            ).time_us
        return self._times[key]

    def bind(self, name: str, size: int, memory: TensorMemory) -> None:
        """Use *memory* for one matrix.

        :param size: what the caller's attributes say
        """
        sizes = sorted({_named(layout, name).size for layout in self._layouts})
        if size not in sizes:
            raise _invalid(
                f"matrix {name} does not take {size} bytes",
                f"it takes {' or '.join(map(str, sizes))}: pass the attributes as given",
            )
        if memory.size < size:
            raise _invalid(f"memory of {memory.size} bytes is too small for matrix {name}", f"make it with {size} bytes")
        with self._lock:
            self._bound = {**self._bound, name: memory}
            self._ready = None

    def set_mask(self, mask: int) -> None:
        """Choose the cores."""
        chip = self.device.chip
        if not chip.core_masks:
            raise Refusal(
                Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{chip.name} has one core", "leave out rknn_matmul_set_core_mask"
            )
        if mask not in chip.core_masks:
            known = ", ".join(map(hex, chip.core_masks))
            raise _invalid(f"{mask:#x} is not a core mask of {chip.name}", f"it has {known}")
        self._mask = mask

    def set_parameters(self, name: str, params: Any) -> None:
        """Copy scales and zero points of one matrix from where the caller's struct points."""
        count, zeros = params.scale_len, params.zp_len
        with self._lock:
            self._quantization.check_lengths(name, count, zeros, [(layout.k, layout.n) for layout in self._layouts])
            if params.scale == ffi.NULL or (zeros and params.zp == ffi.NULL):
                raise _invalid(f"the parameters of {name} are a null pointer", "point to as many as the lengths say")
            scale = np.frombuffer(ffi.buffer(params.scale, 4 * count), np.float32).copy()
            zero_point = np.frombuffer(ffi.buffer(params.zp, 4 * zeros), np.int32).copy() if zeros else np.zeros(count, np.int32)
            self._quantization = self._quantization.with_parameters(name, Parameters(scale, zero_point))

    def give_parameters(self, params: Any) -> float:
        """Let *params* point to the parameters of B, which live until this is called again or the context ends.

        :return: the scale to which C is normalised
        """
        scale = self._quantization.normalised_scale()
        if params != ffi.NULL:
            held = self._quantization.of("B")
            scales, zeros = new_outside("float[]", held.scale.tolist()), new_outside("int32_t[]", held.zero_point.tolist())
            self._given = (scales, zeros)
            params.name = b"B"
            params.scale, params.scale_len = scales, len(scales)
            params.zp, params.zp_len = zeros, len(zeros)
        return scale

    def set_shape(self, m: int, k: int, n: int) -> None:
        """Choose one of the shapes."""
        for layout in self._layouts:
            if (layout.m, layout.k, layout.n) == (m, k, n):
                self._layout = layout
                return
        known = ", ".join(f"{layout.m} x {layout.k} x {layout.n}" for layout in self._layouts)
        raise _invalid(f"{m} x {k} x {n} is not a shape of this context", f"it was created for {known}")

    def run(self) -> None:
        """Multiply."""
        with self.device.scheduler.acquire(self._mask, exclusive=(self,)) as lease:
            with self._lock:
                if self._closed:
                    raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
                layout, quantization, bound = self._layout, self._quantization, self._bound
            if layout is None:
                raise _invalid("no shape is chosen", "call rknn_matmul_set_dynamic_shape before")
            faults, real = self.device.faults, self.device.clock
            if faults is None and real is None and self._ran_again(layout, quantization, bound, len(lease.cores)):
                return
            closings = Buffer.closings
            a, b, c = (_memory_of(matrix, bound) for matrix in layout.matrices)
            faulty = None if faults is None else faults.begin(lease.cores, self.device.scheduler.busy, lease.control)
            spent = self.predicted_us(layout, max(len(lease.cores), 1))
            started = time.monotonic()
            ends = real.begin(lease.cores, spent) if real is not None else 0.0
            threads = host_threads(len(lease.cores))
            matrix = self._matrix_of(layout, threads)
            target = layout.direct_c(c)
            direct = target is not None and threads == 1
            if target is None:
                target = self._working_c(layout)
            left, right = layout.read_a(a), b[: layout.b.size]
            values = quantization.product(left, right, matrix, target)
            layout.write_c(values, c)
            if direct and values is target and np.may_share_memory(left, a) and not np.may_share_memory(left, target):
                again = quantization.prepared(left, right, matrix, target)
                self._ready = again and _Ready(layout, quantization, bound, len(lease.cores), closings, spent, again)
            if real is not None:
                real.finish(lease.cores, spent, started, ends, lease.control)
            if faulty is not None:
                faulty.end(time.monotonic() - started, lambda: (c,), lease.control)
            self._spent_us = spent

    def _ran_again(self, layout: MatmulLayout, quantization: Quantization, bound: dict[str, TensorMemory], cores: int) -> bool:
        """Multiply as in the last run, if all is as it was then: what a run looks up and checks costs as much as a small product, and
        far more where the matrices have displaced the interpreter from the caches."""
        ready = self._ready
        if ready is None or ready.bound is not bound or ready.layout is not layout or ready.quantization is not quantization:
            return False
        try:
            held = [memory.buffer.view() for memory in bound.values()]  # from here on nobody takes the memory away
        except DeviceClosed:
            return False
        if ready.closings is not Buffer.closings or ready.cores != cores:
            return False
        ready.again()
        self._spent_us = ready.spent_us
        del held
        return True

    def close(self) -> None:
        """End the context when its run has ended; runs that wait are refused."""
        with self._lock:
            self._closed = True
            self._bound = {}
            self._ready = None
        try:
            lease = self.device.scheduler.acquire(exclusive=(self,), no_cores=True)
        except DeviceClosed:
            return  # nothing runs on a closed device, and what is left goes with the object
        with lease:
            if self._matrix is not None:
                self._matrix[1].close()
                self._matrix = self._sums = None

    def _working_c(self, layout: MatmulLayout) -> npt.NDArray[Any]:
        """Memory for the sums where C lies in another way: new memory in each run would cost as much as a small product."""
        elements = layout.m * layout.n
        dtype = np.float32 if layout.types[0] is DType.FLOAT16 else np.int32
        if self._sums is None or self._sums.size < elements or self._sums.dtype != dtype:
            self._sums = np.empty(elements, dtype)
        return self._sums[:elements].reshape(layout.m, layout.n)

    def _matrix_of(self, layout: MatmulLayout, threads: int) -> StoredMatrix:
        key = (layout.k, layout.n, threads)
        if self._matrix is None or self._matrix[0] != key:
            if self._matrix is not None:
                self._matrix[1].close()
            a_type, b_type, _ = layout.types
            matrix = StoredMatrix(layout.k, layout.n, b_type, a_type, order=layout.b_order, threads=threads)
            self._matrix = (key, matrix)
        return self._matrix[1]


class MatmulCalls(abc.ABC):
    """The matmul functions of the interface; parameters as in ``abi.h``. Failures are raised."""

    handles: Handles
    memories: MemoryTable

    @abc.abstractmethod
    def chip_for_matmul(self) -> Chip:
        """The chip whose rules hold."""

    @abc.abstractmethod
    def device_for(self, chip: Chip) -> Device:
        """The device that stands for *chip*."""

    def rknn_matmul_create(self, ctx: Any, info: Any, io_attr: Any) -> int:
        """Make a context for one product and say how its matrices lie."""
        _check_pointers(ctx=ctx, info=info, io_attr=io_attr)
        return self._create(ctx, info, [(info.M, info.K, info.N)], io_attr, dynamic=False)

    def rknn_matmul_create_dynamic_shape(self, ctx: Any, info: Any, shape_num: int, dynamic_shapes: Any, io_attrs: Any) -> int:
        """Make a context for products of several shapes; M, K and N of *info* are not read."""
        _check_pointers(ctx=ctx, info=info, dynamic_shapes=dynamic_shapes, io_attrs=io_attrs)
        if not 1 <= shape_num <= RKNN_MAX_DYNAMIC_SHAPE_NUM:
            raise _invalid(f"{shape_num} shapes cannot be", f"give 1 to {RKNN_MAX_DYNAMIC_SHAPE_NUM}")
        shapes = [(shape.M, shape.K, shape.N) for shape in (dynamic_shapes[index] for index in range(shape_num))]
        return self._create(ctx, info, shapes, io_attrs, dynamic=True)

    def rknn_matmul_create_dyn_shape(self, ctx: Any, info: Any, shape_num: int, dynamic_shapes: Any, io_attrs: Any) -> int:
        """The same under its name of SDK 2.0."""
        return MatmulCalls.rknn_matmul_create_dynamic_shape(self, ctx, info, shape_num, dynamic_shapes, io_attrs)

    def rknn_matmul_set_io_mem(self, ctx: int, mem: Any, attr: Any) -> int:
        """Bind memory to the matrix that the attributes name."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(attr=attr)
        state.bind(_name_of(attr), attr.size, self.memories.find(mem))
        return 0

    def rknn_matmul_set_core_mask(self, ctx: int, core_mask: int) -> int:
        """Choose the cores that the product runs on."""
        self.handles.get(ctx, MatmulState).set_mask(int(core_mask))
        return 0

    def rknn_matmul_set_quant_params(self, ctx: int, params: Any) -> int:
        """Set scales and zero points of the matrix that the parameters name; they are copied."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(params=params)
        state.set_parameters(_name_of(params), params)
        return 0

    def rknn_matmul_get_quant_params(self, ctx: int, params: Any, scale: Any) -> int:
        """Give the scale to which an int32 C is normalised, and let *params* point to those of B."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(scale=scale)
        scale[0] = state.give_parameters(params)
        return 0

    def rknn_matmul_set_dynamic_shape(self, ctx: int, shape: Any) -> int:
        """Choose the shape of the next runs."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(shape=shape)
        state.set_shape(shape.M, shape.K, shape.N)
        return 0

    def rknn_matmul_run(self, ctx: int) -> int:
        """Multiply; returns when C is written."""
        self.handles.get(ctx, MatmulState).run()
        return 0

    def answers_product(self, ctx: int, cmd: int, info: Any, size: int) -> bool:
        """Write the time of a product's last run, which is the one query that a product answers; False for anything else."""
        if cmd != rknn_query_cmd.RKNN_QUERY_PERF_RUN or not self.handles.holds(ctx, MatmulState):
            return False
        if info == ffi.NULL or size < ffi.sizeof("rknn_perf_run"):
            raise _invalid(f"the answer takes {ffi.sizeof('rknn_perf_run')} bytes", "pass a rknn_perf_run and its size")
        ffi.cast("rknn_perf_run *", info).run_duration = round(self.handles.get(ctx, MatmulState).spent_us)
        return True

    def rknn_matmul_destroy(self, ctx: int) -> int:
        """End a context; the memory that it used stays."""
        self.handles.remove(ctx, MatmulState).close()
        return 0

    def matrix_bytes(self, type: int, k: int, n: int) -> int:
        """Bytes of matrix B of a product of this type; 0 where there is no such matrix."""
        try:
            return int(MatmulLayout(self.chip_for_matmul(), type, 1, k, n, b_layout=1).b.size)
        except Refusal:
            return 0

    def rknn_B_normal_layout_to_native_layout(  # noqa: N802 (the interface has it so)
        self, b_input: Any, b_output: Any, k: int, n: int, info: Any
    ) -> int:
        """Write the normal B at one place in the native layout to another."""
        _check_pointers(B_input=b_input, B_output=b_output, info=info)
        if int(ffi.cast("uintptr_t", info)) < _FIRST_PAGE:
            raise _invalid("the information is not a pointer", "call it as since SDK 2.1: B_input, B_output, K, N, info")
        layout = MatmulLayout(self.chip_for_matmul(), info.type, 1, k, n, b_layout=1)
        dtype: DType = layout.types[1]
        source = _bytes_at(b_input, layout.b.size)
        _bytes_at(b_output, layout.b.size)[:] = convert_b(source, k, n, dtype, layout.blocks)
        return 0

    def _create(self, ctx: Any, info: Any, shapes: list[tuple[int, int, int]], io_attrs: Any, *, dynamic: bool) -> int:
        chip = self.chip_for_matmul()
        layouts = [MatmulLayout(chip, info.type, m, k, n, b_layout=info.B_layout, ac_layout=info.AC_layout) for m, k, n in shapes]
        group_size = info.group_size if info.B_quant_type in _GROUPED else 0
        quantization = Quantization(layouts[0].types, info.B_quant_type, info.AC_quant_type, group_size)
        for layout in layouts:
            quantization.check_extents(layout.k)
        state = MatmulState(self.device_for(chip), layouts, quantization, dynamic=dynamic)
        for index, layout in enumerate(layouts):
            for matrix, attr in zip(layout.matrices, (io_attrs[index].A, io_attrs[index].B, io_attrs[index].C), strict=True):
                _fill(attr, matrix)
        ctx[0] = self.handles.add(state)
        return 0


def _fill(attr: Any, matrix: MatrixAttributes) -> None:
    attr.name = matrix.name.encode()
    attr.n_dims = len(matrix.dims)
    attr.dims = [*matrix.dims, *[0] * (len(attr.dims) - len(matrix.dims))]
    attr.size = matrix.size
    attr.type = int(matrix.tensor_type)


def _name_of(struct: Any) -> str:
    name = ffi.string(struct.name, len(struct.name)).decode("ascii", "replace")
    if name not in ("A", "B", "C"):
        raise _invalid(f"there is no matrix '{name}'", "copy the name from the attributes that rknn_matmul_create gave")
    return str(name)


def _named(layout: MatmulLayout, name: str) -> MatrixAttributes:
    return layout.matrices["ABC".index(name)]


def _memory_of(matrix: MatrixAttributes, bound: dict[str, TensorMemory]) -> npt.NDArray[np.uint8]:
    code = Code.RKNN_ERR_OUTPUT_INVALID if matrix.name == "C" else Code.RKNN_ERR_INPUT_INVALID
    memory = bound.get(matrix.name)
    if memory is None:
        raise Refusal(code, f"matrix {matrix.name} has no memory", "call rknn_matmul_set_io_mem for A, B and C before")
    if memory.buffer.closed:
        raise Refusal(code, f"the memory of matrix {matrix.name} was destroyed", "bind other memory")
    if memory.size < matrix.size:
        raise Refusal(
            code,
            f"the memory of matrix {matrix.name} has {memory.size} bytes, {matrix.size} are needed for this shape",
            "make memory for the largest shape",
        )
    return memory.bytes()


def _bytes_at(pointer: Any, size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", pointer), size), np.uint8)


def _check_pointers(**pointers: Any) -> None:
    for name, pointer in pointers.items():
        if pointer == ffi.NULL:
            raise _invalid(f"{name} is a null pointer", f"pass a pointer for {name}")


def _invalid(text: str, hint: str) -> Refusal[Code]:
    return Refusal(Code.RKNN_ERR_PARAM_INVALID, text, hint)
