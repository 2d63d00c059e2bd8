"""The matmul calls as a C program makes them, without the ceremony; and matrices written as plainly as can be."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.rknn import SoftwareLibrary
from anynpu.rknn.constants import rknn_matmul_type

Array = npt.NDArray[Any]

TYPES = {
    kind: tuple(part.lower() for part in kind.name.removeprefix("RKNN_").replace("_TO_", "_MM_").split("_MM_"))
    for kind in rknn_matmul_type
}
NUMPY = {"int4": np.int8, "int8": np.int8, "float16": np.float16, "int16": np.int16, "int32": np.int32, "float32": np.float32}
CHIPS = [chip.name for chip in chips.all_chips() if chip.matmul]


def possible(chip: str) -> list[rknn_matmul_type]:
    """The types that a chip multiplies."""
    return [kind for kind, types in TYPES.items() if types in chips.get(chip).matmul_types]


def random_matrix(rng: np.random.Generator, kind: str, shape: tuple[int, int]) -> Array:
    if kind == "float16":
        return rng.standard_normal(shape).astype(np.float16)
    low, high = (-8, 8) if kind == "int4" else (-128, 128)
    return rng.integers(low, high, shape, np.int8)


def nibbles(values: Array) -> Array:
    """Two elements a byte, the first in the low half."""
    flat = values.reshape(-1).astype(np.uint8) & 15
    return flat[::2] | flat[1::2] << 4


def native_rows(values: Array, block: int) -> Array:
    """[M, X] as [X / block, M, block], element by element as the vendor's documents describe it."""
    m, x = values.shape
    flat = [values[row, first * block + j] for first in range(x // block) for row in range(m) for j in range(block)]
    return np.array(flat, values.dtype)


def native_b(values: Array, columns: int, rows: int, segment: int | None) -> Array:
    """[K, N] in blocks, segment by segment."""
    k, n = values.shape
    flat = [
        values[first + k1 * rows + k2, n1 * columns + n2]
        for first in range(0, k, segment or k)
        for n1 in range(n // columns)
        for k1 in range(min(segment or k, k - first) // rows)
        for n2 in range(columns)
        for k2 in range(rows)
    ]
    return np.array(flat, values.dtype)


class Calls:
    """One matmul context of a library, with memory for its matrices. Codes are returned, not raised."""

    def __init__(self, library: SoftwareLibrary) -> None:
        self.library = library
        self.handle = ffi.new("rknn_matmul_ctx *")
        self.attributes = ffi.new("rknn_matmul_io_attr *")
        self.info = ffi.new("rknn_matmul_info *")
        self.memory: dict[str, Any] = {}

    def create(self, m: int, k: int, n: int, kind: int, **fields: int) -> int:
        self.info = ffi.new("rknn_matmul_info *", {"M": m, "K": k, "N": n, "type": int(kind), **fields})
        return int(self.library.rknn_matmul_create(self.handle, self.info, self.attributes))

    @property
    def context(self) -> int:
        return int(self.handle[0])

    def attribute(self, name: str) -> Any:
        return ffi.addressof(self.attributes, name)

    def allocate(self) -> None:
        """Make and bind memory for all three matrices."""
        for name in "ABC":
            self.memory[name] = self.library.rknn_create_mem(self.context, self.attribute(name).size)
            assert self.memory[name] != ffi.NULL
            assert self.library.rknn_matmul_set_io_mem(self.context, self.memory[name], self.attribute(name)) == 0

    def bytes(self, name: str) -> npt.NDArray[np.uint8]:
        memory = self.memory[name]
        return np.frombuffer(ffi.buffer(ffi.cast("char *", memory.virt_addr), memory.size), np.uint8)

    def write(self, name: str, values: Array, kind: str) -> None:
        data = nibbles(values) if kind == "int4" else np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.bytes(name)[: data.size] = data

    def run(self) -> int:
        return int(self.library.rknn_matmul_run(self.context))

    def set_parameters(self, name: str, scale: Any, zero_point: Any = None) -> int:
        scales = np.ascontiguousarray(scale, np.float32).reshape(-1)
        params = ffi.new("rknn_quant_params *")
        params.name = name.encode()
        params.scale, params.scale_len = ffi.from_buffer("float[]", scales), len(scales)
        if zero_point is not None:
            zeros = np.ascontiguousarray(zero_point, np.int32).reshape(-1)
            params.zp, params.zp_len = ffi.from_buffer("int32_t[]", zeros), len(zeros)
        return int(self.library.rknn_matmul_set_quant_params(self.context, params))

    def why(self) -> str:
        failure = self.library.last_error()
        assert failure is not None
        return failure.text

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for memory in self.memory.values():
            self.library.rknn_destroy_mem(self.context, memory)
        if self.context:
            self.library.rknn_matmul_destroy(self.context)
