"""Writes the cases that replay.c runs: random layers of every operator with the reference engine's outputs.

The layers are recorded as the native engine's own lowering makes them, so a processor that cannot run Python here (an emulated one, or one
under a sanitizer) sees exactly what the engine would hand it. ``python -m native.record FILE`` in the folder tests writes a file by hand.
The format is described in replay.c.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from npu.engines.cases import BUILDERS, case
from npu.engines.cases_large import LARGE_BUILDERS, large_case, reference_result
from npu.engines.ingredients import Case
from npu.engines.large_sums import ENDINGS, FACTORS, large_sums
from npu.engines.native_support import single_layer

from anynpu._native import ffi, lib
from anynpu.npu.engines.native_lowering import Lowering, NativeLayer
from anynpu.npu.engines.native_operators import lower
from anynpu.program.convert.kernel import KernelCall
from anynpu.tensor import DType

from .chip_layers import chip_layers
from .extremes import extreme_cases

__all__ = ["SMALL_SEEDS", "LARGE_SEEDS", "record", "write_cases"]

MAGIC = b"ANYNPU-REPLAY-1"
SMALL_SEEDS = 24
LARGE_SEEDS = 128
CHIP_SEEDS = int(os.environ.get("ANYNPU_CHIP_CASES", "3"))
"""Networks of each family of tests/arithmetic, layer by layer; `make soak` asks for more."""

DTYPES = (DType.INT8, DType.INT16)

DESCRIPTORS = {
    lib.ANYNPU_LAYER_CONV: "anynpu_conv",
    lib.ANYNPU_LAYER_CONV_TRANSPOSE: "anynpu_conv",
    lib.ANYNPU_LAYER_SUBPIXEL: "anynpu_subpixel",
    lib.ANYNPU_LAYER_MATMUL: "anynpu_matmul",
    lib.ANYNPU_LAYER_BINARY: "anynpu_binary",
    lib.ANYNPU_LAYER_TABLE: "anynpu_table",
    lib.ANYNPU_LAYER_CONCAT: "anynpu_concat",
    lib.ANYNPU_LAYER_MOVE: "anynpu_move",
    lib.ANYNPU_LAYER_PAD: "anynpu_pad",
    lib.ANYNPU_LAYER_POOL: "anynpu_pool",
    lib.ANYNPU_LAYER_RESIZE: "anynpu_resize",
    lib.ANYNPU_LAYER_CONVERT: "anynpu_conversion",
}
"""The descriptor of each kind of layer."""


def record(path: Path) -> int:
    """Write all cases; returns their number."""
    return write_cases(path, _all_cases())


def write_cases(path: Path, cases: Iterator[tuple[str, Case]]) -> int:
    """Write those of the named *cases* that the native engine runs in C; returns their number."""
    recorded = [held for name, made in cases if (held := _recorded(name, made))]
    sizes = [ffi.sizeof(f"struct {DESCRIPTORS[kind]}") for kind in range(len(DESCRIPTORS))]
    path.write_bytes(MAGIC + _numbers(len(sizes), *sizes, len(recorded)) + b"".join(recorded))
    return len(recorded)


def _all_cases() -> Iterator[tuple[str, Case]]:
    for operator in BUILDERS:
        for dtype in DTYPES:
            for seed in range(SMALL_SEEDS):
                yield f"{operator} {dtype.value} {seed}", case(operator, dtype, seed)
    for operator in LARGE_BUILDERS:
        for seed in range(LARGE_SEEDS):
            yield f"large {operator} {seed}", large_case(operator, seed)
    for ending in ENDINGS:
        for factor in FACTORS:
            yield f"sums {ending} {factor}", large_sums(factor, ending)
    yield from chip_layers(CHIP_SEEDS)
    yield from extreme_cases()


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))


def _sized(data: bytes) -> bytes:
    return _numbers(len(data)) + data


def _recorded(name: str, made: Case) -> bytes:
    """One case; empty where C has nothing for it."""
    program = single_layer(made)
    lowering = Lowering(program.tensors)
    layers = lower(lowering, program.layers[0])
    if layers is None:
        return b""
    blocks = _Blocks(lowering.keeper._alive)
    forms = b"".join(_forms(layer, blocks) for layer in layers)
    held: Mapping[str, npt.NDArray[Any]] = dict(
        zip((*program.inputs, *program.outputs), (*made.inputs, *reference_result(made)), strict=True)
    )
    tensors = b"".join(_numbers(place in program.inputs) + _sized(held[place].tobytes()) for place in lowering.places)
    return b"".join(
        (_sized(name.encode()), blocks.written(), _numbers(len(lowering.places)), tensors, _numbers(len(layers)), forms)
    )


def _forms(layer: NativeLayer, blocks: _Blocks) -> bytes:
    forms = [layer] if layer.fast is None else [layer.fast, layer]
    written = [_numbers(len(forms))]
    for form in forms:
        descriptor = blocks.structs(form.descriptor, DESCRIPTORS[form.kind])
        inputs = list(form.inputs)
        written.append(_numbers(form.kind, form.codes, descriptor, form.output, len(inputs), *inputs))
    return b"".join(written)


class _Blocks:
    """Memory that descriptors refer to, with the pointers in it.

    :param alive: what keeps that memory: a pointer in a descriptor does not state how much there is
    """

    def __init__(self, alive: Sequence[Any]) -> None:
        self._sizes: dict[int, int] = {}
        self._blocks: list[bytes] = []
        self._number: dict[int, int] = {}
        for thing in alive:
            for part in thing._alive if isinstance(thing, KernelCall) else (thing,):
                is_array = isinstance(part, np.ndarray)
                address = part.ctypes.data if is_array else _address(part)
                self._sizes[address] = max(part.nbytes if is_array else _size(part), self._sizes.get(address, 0))

    def structs(self, pointer: Any, name: str) -> int:
        """The block of one or several structs, and all that they point to."""
        address = _address(pointer)
        if address not in self._number:
            kind = ffi.typeof(f"struct {name}")
            size = ffi.sizeof(kind)
            memory = bytearray(ffi.buffer(ffi.cast("char *", address), self._sizes.get(address, size)))
            pointers = []
            for base in range(0, len(memory), size):
                for offset, target in _pointers(kind, base):
                    value = int.from_bytes(memory[offset : offset + 8], "little")
                    memory[offset : offset + 8] = bytes(8)
                    if value:
                        pointers += [offset, self._target(value, target)]
            self._number[address] = self._append(bytes(memory), pointers)
        return self._number[address]

    def _target(self, address: int, kind: Any) -> int:
        if kind.kind == "struct":
            return self.structs(ffi.cast(f"{kind.cname} *", address), kind.cname.removeprefix("struct "))
        if address not in self._number:
            data = bytes(ffi.buffer(ffi.cast("char *", address), self._sizes[address]))
            self._number[address] = self._append(data, [])
        return self._number[address]

    def _append(self, data: bytes, pointers: Sequence[int]) -> int:
        self._blocks.append(_sized(data) + _numbers(len(pointers) // 2, *pointers))
        return len(self._blocks) - 1

    def written(self) -> bytes:
        return _numbers(len(self._blocks)) + b"".join(self._blocks)


def _pointers(kind: Any, base: int) -> Iterator[tuple[int, Any]]:
    """Offset and type of target of each pointer in a struct and in the structs inside it."""
    for _, field in kind.fields:
        if field.type.kind == "pointer":
            yield base + field.offset, field.type.item
        elif field.type.kind == "struct":
            yield from _pointers(field.type, base + field.offset)


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _size(made: Any) -> int:
    """Bytes of what ``ffi.new`` made."""
    kind = ffi.typeof(made)
    return int(ffi.sizeof(kind.item) if kind.kind == "pointer" else ffi.sizeof(made))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
