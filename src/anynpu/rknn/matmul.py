"""Products of matrices for Python: the matmul calls of the RKNN API with numpy arrays and exceptions.

>>> import numpy as np
>>> b = np.arange(64 * 32, dtype=np.int64).reshape(64, 32).astype(np.int8)
>>> with Matmul(4, 64, 32, "int8", device="sim:rk3588") as product:
...     product.set_b(b)
...     c = product(np.ones((4, 64), np.int8))
>>> c.dtype, c.shape, bool((c == b.sum(axis=0, dtype=np.int32)).all())
(dtype('int32'), (4, 32), True)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._rknn import ffi
from .._util.lifetime import Closeable, at_end
from .._util.types import Array
from ..errors import DeviceClosed, ShapeError, TensorTypeError
from ..program.convert import bfloat16_to_float32, pack_int4
from ..tensor import DType
from ..vendors.devices import DeviceChoice
from .constants import rknn_core_mask, rknn_matmul_layout, rknn_matmul_quant_type, rknn_matmul_type
from .interface import RknnLibrary
from .library import check, open_library
from .software.matmul import TYPES, from_blocks, to_blocks
from .tensormemory import TensorMemory

Name = Literal["A", "B", "C"]

_SHORT = {"int8": 2, "float16": 1, "int4": 10}
_LAYOUTS = {
    "normal": rknn_matmul_layout.RKNN_MM_LAYOUT_NORM,
    "native": rknn_matmul_layout.RKNN_MM_LAYOUT_NATIVE,
    "transposed": rknn_matmul_layout.RKNN_MM_LAYOUT_TP_NORM,
}
_SCHEMES = {"layer": 0, "channel": 2, "group": 4}


def _end(library: RknnLibrary, handle: int, memories: list[TensorMemory]) -> None:
    for memory in memories:
        memory.close()
    library.rknn_matmul_destroy(handle)


class Matmul(Closeable):
    """A product of A ``[m, k]`` and B ``[k, n]`` on the NPU. One thread at a time may use it.

    Arrays are given and returned as plain matrices; where the memory has another layout, they are converted. int4 is held in arrays of
    int8 and bfloat16 is returned as float32. :attr:`a`, :attr:`b` and :attr:`c` are the memory itself.

    :param m: rows of A; several, where the shape varies: a product then takes the shape that fits its A
    :param kind: ``"int8"`` (to int32), ``"float16"`` (to float32), ``"int4"`` (to int16), or the types of all three, such as
        ``"float16 x int4 -> float32"``, or a ``rknn_matmul_type``
    :param device: as for :class:`anynpu.rknn.Context`, or a library object
    :param b_layout: how B lies in memory: ``"normal"``, ``"native"`` or ``"transposed"``
    :param ac_layout: how A and C lie: ``"normal"`` or ``"native"``
    :param b_scales: one scale for the whole of B (``"layer"``), one for each of its columns (``"channel"``), or one for each column of each
        group of rows (``"group"``)
    :param group_size: rows of a group
    :param symmetric: no matrix has a zero point other than 0
    :param core_mask: the cores that it runs on; if not given, any
    """

    def __init__(
        self,
        m: int | Sequence[int],
        k: int,
        n: int,
        kind: str | rknn_matmul_type = "int8",
        *,
        device: str | DeviceChoice | RknnLibrary | None = None,
        b_layout: Literal["normal", "native", "transposed"] = "normal",
        ac_layout: Literal["normal", "native"] = "normal",
        b_scales: Literal["layer", "channel", "group"] = "layer",
        group_size: int = 0,
        symmetric: bool = True,
        core_mask: int | None = None,
    ) -> None:
        self._library = open_library(device)
        self.kind = _kind_of(kind)
        self.types: tuple[DType, DType, DType] = TYPES[self.kind]
        self._b_layout, self._ac_layout = _LAYOUTS[b_layout], _LAYOUTS[ac_layout]
        self.k, self.n = k, n
        self._rows = (m,) if isinstance(m, int) else tuple(m)
        asymmetric = 0 if symmetric else 1
        self._info = ffi.new(
            "rknn_matmul_info *",
            {
                "M": self._rows[0],
                "K": k,
                "N": n,
                "type": int(self.kind),
                "B_layout": int(self._b_layout),
                "B_quant_type": int(rknn_matmul_quant_type(_SCHEMES[b_scales] + asymmetric)),
                "AC_layout": int(self._ac_layout),
                "AC_quant_type": int(rknn_matmul_quant_type(asymmetric)),
                "group_size": group_size,
            },
        )
        context = ffi.new("rknn_matmul_ctx *")
        self._attributes = ffi.new("rknn_matmul_io_attr[]", len(self._rows))
        self._shapes = ffi.new("rknn_matmul_shape[]", [(rows, k, n) for rows in self._rows])
        if isinstance(m, int):
            self._check("rknn_matmul_create", self._library.rknn_matmul_create(context, self._info, self._attributes))
        else:
            code = self._library.rknn_matmul_create_dynamic_shape(
                context, self._info, len(self._rows), self._shapes, self._attributes
            )
            self._check("rknn_matmul_create_dynamic_shape", code)
        self._handle = int(context[0])
        memories: list[TensorMemory] = []
        self._finalizer = at_end(self, _end, self._library, self._handle, memories)
        try:
            for name in ("A", "B", "C"):
                size = max(getattr(attribute, name).size for attribute in self._attributes)
                pointer = self._library.rknn_create_mem(self._handle, size)
                memories.append(TensorMemory(self._library, self._handle, pointer, "rknn_create_mem"))
            self._memory = dict(zip("ABC", memories, strict=True))
            if core_mask is not None:
                self.set_core_mask(core_mask)
            self._current = -1
            self._choose(self._rows[0])
        except BaseException:
            self._finalizer()
            raise

    @property
    def m(self) -> int:
        """Rows of A in the current shape."""
        return self._rows[self._current]

    @property
    def a(self) -> Array:
        """The memory of A in the current shape, as it lies; two elements a byte for int4. Valid until the product is closed."""
        return self._view("A")

    @property
    def b(self) -> Array:
        """The memory of B. What is written here takes effect with :meth:`bind`."""
        return self._view("B")

    @property
    def c(self) -> Array:
        """The memory of C; bfloat16 as its 16 bits."""
        return self._view("C")

    @property
    def result(self) -> Array:
        """C as a matrix ``[m, n]``, copied."""
        self._memory_of("C").sync("from_device")
        values = self._view("C")
        if self._ac_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_NATIVE:
            values = from_blocks(values, self.m, self.n, values.shape[-1])
        if self.types[2] is DType.BFLOAT16:
            return bfloat16_to_float32(values)
        return values if values.base is None else values.copy()

    @property
    def normalised_scale(self) -> float:
        """Where C is int32 and B has scales per channel: what an element of C stands for is ``C * (scale of A) * this``."""
        scale = ffi.new("float *")
        call = self._library.rknn_matmul_get_quant_params
        self._check("rknn_matmul_get_quant_params", call(self._open(), ffi.new("rknn_quant_params *"), scale))
        return float(scale[0])

    def set_core_mask(self, mask: int | rknn_core_mask) -> None:
        """Choose the cores; chips with one core reject it."""
        self._check("rknn_matmul_set_core_mask", self._library.rknn_matmul_set_core_mask(self._open(), int(mask)))

    def set_quantization(self, name: Name, scale: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> None:
        """Set the scales, and the zero points where the product is not symmetric, of one matrix.

        :param scale: one; for B as many as *b_scales* states: by column, or ``[k / group_size, n]``
        """
        scales = np.ascontiguousarray(scale, np.float32).reshape(-1)
        zeros = np.ascontiguousarray(np.broadcast_to(np.asarray(zero_point, np.int32).reshape(-1), scales.shape))
        params = ffi.new("rknn_quant_params *")
        params.name = name.encode()
        params.scale, params.scale_len = ffi.from_buffer("float[]", scales), len(scales)
        params.zp, params.zp_len = ffi.from_buffer("int32_t[]", zeros), len(zeros)
        self._check("rknn_matmul_set_quant_params", self._library.rknn_matmul_set_quant_params(self._open(), params))

    def set_a(self, a: Array) -> None:
        """Write A ``[m, k]``; where the product has several shapes, choose the one with so many rows."""
        self._check_matrix("A", a, self.types[0], (len(a), self.k))
        self._choose(len(a))
        if self._ac_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_NATIVE:
            a = to_blocks(a, self._attributes[self._current].A.dims[2])
        self._write("A", a)
        self.bind("A")

    def set_b(self, b: Array) -> None:
        """Write B ``[k, n]``."""
        self._check_matrix("B", b, self.types[1], (self.k, self.n))
        if self._b_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_NATIVE:
            plain = pack_int4(b) if self.types[1] is DType.INT4 else np.ascontiguousarray(b)
            target = ffi.cast("void *", self._memory_of("B").address)
            convert = self._library.rknn_B_normal_layout_to_native_layout
            code = convert(ffi.from_buffer(plain), target, self.k, self.n, self._info)
            self._check("rknn_B_normal_layout_to_native_layout", code)
        else:
            self._write("B", b.T if self._b_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_TP_NORM else b)
        self.bind("B")

    def bind(self, name: Name) -> None:
        """Notify the NPU that the memory of a matrix was written: Rockchip's library rearranges A and B at this moment."""
        memory = self._memory_of(name)
        if name != "C":
            memory.sync("to_device")
        attribute = ffi.addressof(self._attributes[self._current], name)
        self._check("rknn_matmul_set_io_mem", self._library.rknn_matmul_set_io_mem(self._handle, memory.pointer, attribute))

    def run(self) -> None:
        """Multiply what is in the memory of A and B."""
        self._check("rknn_matmul_run", self._library.rknn_matmul_run(self._open()))

    def __call__(self, a: Array) -> Array:
        """The product of *a* and the B that was set last, as a new array ``[m, n]``."""
        self.set_a(a)
        self.run()
        return self.result

    def close(self) -> None:
        """Give the context and its memory back; again is harmless."""
        self._finalizer()

    def __repr__(self) -> str:
        a, b, c = (dtype.value for dtype in self.types)
        rows = self._rows[0] if len(self._rows) == 1 else list(self._rows)
        return f"<Matmul {rows} x {self.k} x {self.n}, {a} x {b} -> {c}, {self._library.description}>"

    def _choose(self, rows: int) -> None:
        if rows not in self._rows:
            raise ShapeError(f"A has {rows} rows", hint=f"this product takes {' or '.join(map(str, self._rows))}")
        index = self._rows.index(rows)
        if index == self._current:
            return
        if len(self._rows) > 1:
            shape = ffi.addressof(self._shapes, index)
            self._check("rknn_matmul_set_dynamic_shape", self._library.rknn_matmul_set_dynamic_shape(self._open(), shape))
        self._current = index
        for name in ("A", "B", "C"):
            self.bind(name)

    def _write(self, name: Name, values: Array) -> None:
        view = self._view(name)
        if self.types["ABC".index(name)] is DType.INT4:
            pack_int4(np.ascontiguousarray(values), out=view)
        else:
            np.copyto(view, values)

    def _view(self, name: Name) -> Array:
        dtype = self.types["ABC".index(name)]
        attribute = getattr(self._attributes[self._current], name)
        shape = tuple(attribute.dims[index] for index in range(attribute.n_dims))
        if dtype is DType.INT4:
            shape = (int(np.prod(shape)) // 2,)
        return self._memory_of(name).array(dtype.storage, shape)

    def _memory_of(self, name: Name) -> TensorMemory:
        self._open()
        return self._memory[name]

    def _open(self) -> int:
        if not self._finalizer.alive:
            raise DeviceClosed("the product was closed", hint="make a new one")
        return self._handle

    def _check(self, call: str, code: int) -> None:
        check(self._library, call, code)

    def _check_matrix(self, name: Name, values: Array, dtype: DType, shape: tuple[int, int]) -> None:
        wanted = np.dtype(np.int8 if dtype is DType.INT4 else dtype.value)
        if not isinstance(values, np.ndarray) or values.dtype != wanted:
            kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
            raise TensorTypeError(f"{name} is {kind}, {dtype.value} was meant", hint=f"pass an array of {wanted}")
        if values.shape != shape:
            raise ShapeError(f"{name} has shape {list(values.shape)}", hint=f"it is {list(shape)}")
        if dtype is DType.INT4 and values.size and (values.min() < -8 or values.max() > 7):
            raise TensorTypeError(f"{name} has values that int4 does not have", hint="int4 is -8 to 7")


def _kind_of(kind: str | rknn_matmul_type) -> rknn_matmul_type:
    if isinstance(kind, rknn_matmul_type):
        return kind
    if kind in _SHORT:
        return rknn_matmul_type(_SHORT[kind])
    words = tuple(re.findall(r"[a-z]+\d+", kind))
    for found, types in TYPES.items():
        if tuple(dtype.value for dtype in types) == words:
            return found
    known = ", ".join(f"'{a.value} x {b.value} -> {c.value}'" for a, b, c in TYPES.values())
    raise TensorTypeError(f"there is no product '{kind}'", hint=f"there are {', '.join(map(repr, _SHORT))}, {known}")
