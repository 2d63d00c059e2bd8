"""The model file: write, read, map.

One container for both families, of two sections: the header (JSON: the whole model but for its arrays) and the weights: one blob, in
which every array is aligned to 64 bytes and equal arrays are stored once. A model without weights lacks the second section, but still
states how large they are and what they must hash to.

A file is never trusted: whatever it claims is checked before memory is taken or an address is formed. Reading allocates at most
``MAX_GROWTH`` times the size of the header, and no copy of the weights where a path is given.

>>> model = modelfile.read("det.rknn")                            # doctest: +SKIP
>>> modelfile.write(model, "second.rknn", remove_weight=True)     # doctest: +SKIP
>>> modelfile.read("second.rknn", weights=memory)                 # doctest: +SKIP
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from .. import chips
from .._util.output_files import check_suffix, write_output
from .._util.types import Array
from ..errors import DeviceMemoryError, ModelFormatError, ModelVersionError, UnknownChipError, VendorModelError
from ..program import Model
from ..tensor import round_up
from ..vendors import registry
from .codec import Mismatch, from_json, map_arrays, to_json
from .container import ALIGNMENT, HEADER, VERSION, WEIGHTS, Buffer, Section, pack, unpack
from .operator_rules import MAX_DIMENSIONS
from .recognize import Contents, FileKind, Source, identify, kind_of, name_content, open_source, vendor_of
from .stand_ins import VENDOR_HASH, find_twin, vendor_hash
from .validate import validate_model
from .vendorfile import refuse_vendor_model

__all__ = [
    "CompiledModel",
    "Encoded",
    "FileKind",
    "VERSION",
    "WeightlessModel",
    "aligned_memory",
    "attach_weights",
    "decode",
    "encode",
    "identify",
    "place_weights",
    "read",
    "read_or_twin",
    "to_bytes",
    "weight_size",
    "write",
]


_ModelT = TypeVar("_ModelT", bound=Model)

MAX_GROWTH = 64
"""How many times the size of the header reading may take, for the objects that it becomes."""

_MAX_HEADER = 8 << 20
"""Text recognition of PP-OCR needs 0.2 MB for each input shape, a chain of 1,500 layers 1.9 MB. The worst header of this size reads in
about two seconds."""
_MAX_WEIGHTS = 1 << 40
_MAX_NUMBER_LENGTH = 20
_WHOLE = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_DTYPES = frozenset(_WHOLE | {"float16", "float32", "float64", "bool"})  # little endian, all of them
_COMPILE_AGAIN = "the file is damaged or was cut off; copy it again or compile the model again"
_WRONG_WEIGHTS = "these are not the weights of this model"
_TAKE_WEIGHTS = "take the weights of the model it was written with"


@dataclass(frozen=True, eq=False, repr=False)
class CompiledModel(Model):
    """A model that can be saved: what the compiler makes and what :func:`read` gives.

    >>> model = anynpu.compile("det.onnx", target="rk3588", dtype="fp16")    # doctest: +SKIP
    >>> model.save("det.rknn")                                              # doctest: +SKIP
    """

    def save(self, path: str | os.PathLike[str], *, remove_weight: bool = False) -> Path:
        """Write the model file and return its path."""
        return write(self, path, remove_weight=remove_weight)


@dataclass(frozen=True, eq=False, repr=False)
class WeightlessModel(CompiledModel):
    """A model whose weights were left out. Its arrays have type and shape and take no memory; :func:`attach_weights` fills them.

    :ivar weight_size: bytes of the weights
    :ivar weight_digest: what they must hash to
    :ivar weight_offsets: where each array lies in the weights, in the order in which the model holds them
    """

    weight_size: int = 0
    weight_digest: str = ""
    weight_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class Encoded:
    """A model taken apart: what the sections of its file hold, the weights still as arrays.

    :ivar header: JSON
    :ivar arrays: offset in the weights and contents, ascending; empty where they were left out
    :ivar weight_size: bytes of the weights, whether they are here or not
    :ivar weight_digest: BLAKE2b of the weights
    :ivar weightless: the weights were left out
    """

    header: bytes
    arrays: tuple[tuple[int, Array], ...]
    weight_size: int
    weight_digest: str
    weightless: bool = False

    def __repr__(self) -> str:
        return f"Encoded({len(self.header)} bytes of header, {self.weight_size} of weights)"

    def weight_pieces(self) -> Iterator[memoryview]:
        """The weights from start to end, padding included."""
        position = 0
        for offset, array in self.arrays:
            yield memoryview(bytes(offset - position))
            yield _bytes_of(array)
            position = offset + array.nbytes
        if self.arrays:
            yield memoryview(bytes(self.weight_size - position))

    def write_weights(self, buffer: Buffer) -> None:
        """Copy the weights into memory of the caller, of ``weight_size`` bytes or more."""
        memory = _writable(buffer, self.weight_size)
        position = 0
        for piece in self.weight_pieces():
            memory[position : position + len(piece)] = piece
            position += len(piece)


def aligned_memory(size: int) -> memoryview:
    """New memory of *size* bytes that begins at a multiple of 64."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].data


def write(model: Model, path: str | os.PathLike[str], *, remove_weight: bool = False) -> Path:
    """Write a model file and return its path. The file is read back and validated before it appears, complete or not at all.

    :param remove_weight: leave the weights out; they must then come from another context, see :func:`attach_weights`
    :raises OutputFileError: it cannot be written, is not a regular file, or has the extension of a source model
    """
    check_suffix(path)
    return write_output(path, _pieces(model, encode(model, remove_weight=remove_weight)), check=_read_back)


def _read_back(path: Path) -> None:
    """Raise where a file that was just written is not a sound model file."""
    _read(open_source(path), None, True)


def to_bytes(model: Model, *, remove_weight: bool = False) -> bytes:
    """The model file as bytes."""
    return b"".join(_pieces(model, encode(model, remove_weight=remove_weight)))


def read(source: Source, *, weights: Buffer | None = None, verify: bool = True) -> CompiledModel:
    """Read a model file.

    From a path the file is read into memory, and the model's arrays are views of it. Bytes are copied.

    :param weights: memory that holds the weights already, for a file that was written without them (or to share them between models);
        the arrays are views of it
    :param verify: compare the weights with their checksum; without it a large file opens without being read
    :raises VendorModelError: the file was compiled by a vendor's tool
    :raises ModelVersionError: the file was written by a newer anynpu, or by one so old that the model must be compiled again
    :raises ModelFormatError: the file is anything else, or damaged
    """
    contents = open_source(source)
    try:
        return _read(contents, weights, verify)
    except (ModelFormatError, ModelVersionError) as error:
        raise type(error)(f"{contents.name}: {error.message}", hint=error.hint) from None


def read_or_twin(source: Source) -> CompiledModel:
    """Read a model file; for one that a vendor's tool compiled, read its *twin*: the same model, found by :func:`find_twin`.

    :raises VendorModelError: it is a vendor's file and there is no anynpu model
    :raises ModelFormatError: the anynpu model was built with another vendor file
    """
    try:
        return read(source)
    except VendorModelError:
        twin = find_twin(source)
        if twin is None:
            raise
        model = read(twin)
        built_with = model.provenance.get(VENDOR_HASH, "")
        if built_with and built_with != vendor_hash(source):
            raise ModelFormatError(
                f"{twin} was built with another vendor file than {open_source(source).name}",
                hint="build both again with 'anynpu build', or delete the .anynpu file",
            ) from None
        return model


def encode(model: Model, *, remove_weight: bool = False) -> Encoded:
    """Take a model apart; :func:`decode` is the way back."""
    weightless = isinstance(model, WeightlessModel)
    if model.weightless and not weightless:
        raise ModelFormatError("the model is marked weightless, but was not read from a file", hint="read it with modelfile.read")
    store = _Store(model.weight_offsets if isinstance(model, WeightlessModel) else None)
    try:
        body = to_json(replace(model, weightless=False), Model, store)
    except Mismatch as mismatch:
        raise ModelFormatError(f"the model cannot be written: {mismatch}", hint="see anynpu.program.Model") from None
    validate_model(model, contents=not weightless)
    if isinstance(model, WeightlessModel):
        size, digest = model.weight_size, model.weight_digest
    else:
        size = store.size
        digest = _digest(Encoded(b"", store.arrays, size, "").weight_pieces())
    header = json.dumps({"weights": {"size": size, "digest": digest}, "model": body}, separators=(",", ":")).encode("ascii")
    if len(header) > _MAX_HEADER:
        raise ModelFormatError(
            f"the model needs a header of {len(header)} bytes; at most {_MAX_HEADER} are possible",
            hint="compile it for fewer input shapes",
        )
    left_out = remove_weight or weightless
    return Encoded(header, () if left_out else store.arrays, size, digest, left_out)


def decode(header: Buffer, weights: Buffer | None, *, verify: bool = True) -> CompiledModel:
    """Put a model together whose arrays are views of *weights*; without weights it is a :class:`WeightlessModel`.

    :param weights: memory of at least the size that the header states, at a multiple of 64
    """
    return _assemble(_parse(memoryview(header)), weights, verify)


def _assemble(document: dict[str, Any], weights: Buffer | None, verify: bool) -> CompiledModel:
    size, digest = _weight_record(document)
    memory = None
    if weights is not None:
        memory = _readable(weights, size)
        if verify and _digest([memory]) != digest:
            raise ModelFormatError(_WRONG_WEIGHTS, hint=_TAKE_WEIGHTS)
    loader = _Loader(memory, size)
    try:
        model = from_json(document["model"], Model, loader)
        loader.check_overlaps()
    except Mismatch as mismatch:
        raise ModelFormatError(f"{mismatch}", hint=_COMPILE_AGAIN) from None
    validate_model(model, contents=memory is not None)
    kept = {field.name: getattr(model, field.name) for field in fields(Model)}
    kept["weightless"] = memory is None
    if memory is not None:
        return CompiledModel(**kept)
    return WeightlessModel(**kept, weight_size=size, weight_digest=digest, weight_offsets=tuple(loader.offsets))


def weight_size(model: Model) -> int:
    """Bytes that the weights of a model take, as one blob."""
    if isinstance(model, WeightlessModel):
        return model.weight_size
    return _layout(model).size


def place_weights(model: _ModelT, buffer: Buffer) -> _ModelT:
    """Copy the weights into memory of the caller and return the model whose arrays are views of it.

    :param buffer: writable, of at least :func:`weight_size` bytes, at a multiple of 64
    """
    store = _layout(model)
    memory = _writable(buffer, store.size)
    Encoded(b"", store.arrays, store.size, "").write_weights(memory)
    return _viewing(model, memory, store.offsets)


def attach_weights(model: Model, buffer: Buffer, *, verify: bool = True) -> CompiledModel:
    """The model with weights that are in *buffer* already: another context's, placed there by :func:`place_weights`.

    :param model: read from a file that was written without weights
    :raises ModelFormatError: the buffer holds the weights of another model
    """
    if not isinstance(model, WeightlessModel):
        raise ModelFormatError("the model has its weights already", hint="attach weights to a model written with remove_weight")
    memory = _readable(buffer, model.weight_size)
    if verify and _digest([memory]) != model.weight_digest:
        raise ModelFormatError(_WRONG_WEIGHTS, hint=_TAKE_WEIGHTS)
    kept = {field.name: getattr(model, field.name) for field in fields(Model)}
    kept["weightless"] = False
    attached = _viewing(CompiledModel(**kept), memory, model.weight_offsets)
    validate_model(attached)
    return attached


def _viewing(model: _ModelT, memory: memoryview, offsets: Iterable[int]) -> _ModelT:
    places = iter(offsets)
    return map_arrays(model, lambda array: np.ndarray(array.shape, array.dtype, memory, next(places)))


def _layout(model: Model) -> _Store:
    if isinstance(model, WeightlessModel):
        raise ModelFormatError("the model was written without weights", hint="attach the weights of another context first")
    store = _Store(None)
    map_arrays(model, store.keep)
    return store


class _Store:
    """Gives every array its place."""

    def __init__(self, known_offsets: tuple[int, ...] | None) -> None:
        self.size = 0
        self.offsets: list[int] = []
        self._known = None if known_offsets is None else iter(known_offsets)
        self._arrays: dict[int, Array] = {}
        self._places: dict[tuple[int, bytes], int] = {}

    @property
    def arrays(self) -> tuple[tuple[int, Array], ...]:
        return tuple(self._arrays.items())

    def keep(self, array: Array) -> Array:
        """Take an array, and return it as it is."""
        self.offsets.append(self._place(array))
        return array

    def put_array(self, array: Array) -> dict[str, Any]:
        if array.dtype.name not in _DTYPES:
            raise Mismatch(f"is an array of {array.dtype}; a model file holds {', '.join(sorted(_DTYPES))}")
        offset = next(self._known, -1) if self._known is not None else self._place(array)
        if offset < 0:
            raise Mismatch("is an array that the weights have no place for")
        return {"offset": offset, "dtype": array.dtype.name, "shape": list(array.shape)}

    def _place(self, array: Array) -> int:
        if not array.size:
            return 0
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
        key = (stored.nbytes, hashlib.blake2b(_bytes_of(stored), digest_size=16).digest())
        offset = self._places.get(key)
        if offset is None:
            offset = self._places[key] = self.size
            self._arrays[offset] = stored
            self.size += round_up(stored.nbytes, ALIGNMENT)
        return offset


class _Loader:
    """Turns references into views of the weights, or into arrays without memory where there are no weights."""

    def __init__(self, memory: memoryview | None, size: int) -> None:
        self.offsets: list[int] = []
        self._memory = memory
        self._size = size
        self._ranges: set[tuple[int, int]] = set()

    def get_array(self, reference: Any) -> Array:
        offset, dtype, shape = _fields(reference, ("offset", "dtype", "shape"))
        _natural(offset)
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise Mismatch("is an array of an unknown type")
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise Mismatch(f"is an array of more than {MAX_DIMENSIONS} axes, or of none that make sense")
        kind = np.dtype(dtype).newbyteorder("<")
        bytes_needed = kind.itemsize
        for extent in shape:
            bytes_needed *= _natural(extent)
            if extent > self._size:
                raise Mismatch(f"is an array of {extent} elements along one axis in {self._size} bytes of weights")
        if bytes_needed > self._size - offset or offset % ALIGNMENT:
            raise Mismatch(f"is an array of {bytes_needed} bytes at {offset} in {self._size} bytes of weights")
        self._ranges.add((offset, bytes_needed))
        self.offsets.append(offset)
        if self._memory is None:
            return np.broadcast_to(np.zeros((), kind), tuple(shape))
        array: Array = np.ndarray(tuple(shape), kind, self._memory, offset)
        return array

    def check_overlaps(self) -> None:
        """Arrays are equal or apart: otherwise a small file could make much work of few bytes."""
        end = 0
        for offset, size in sorted(self._ranges):
            if size and offset < end:
                raise Mismatch(f"two arrays overlap at {offset}")
            end = max(end, offset + size)


def _fields(reference: Any, names: tuple[str, ...]) -> list[Any]:
    if not isinstance(reference, dict) or set(reference) != set(names):
        raise Mismatch(f"is not a reference with {', '.join(names)}")
    return [reference[name] for name in names]


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise Mismatch("has an offset, size or size that is not an integer from zero")
    return value


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def _digest(pieces: Iterable[Buffer]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _readable(buffer: Buffer, size: int) -> memoryview:
    """The first *size* bytes of memory that a caller supplies for weights."""
    view = memoryview(buffer)
    if not view.c_contiguous:
        raise DeviceMemoryError("the memory for the weights is not contiguous", hint="supply contiguous memory")
    view = view.cast("B")
    if view.nbytes < size:
        raise DeviceMemoryError(
            f"the weights take {size} bytes, the memory has {view.nbytes}", hint=f"supply at least {size} bytes"
        )
    if size and np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT:
        raise DeviceMemoryError(
            f"the memory for the weights does not begin at a multiple of {ALIGNMENT}",
            hint="supply memory of a device, or of mmap",
        )
    return view[:size]


def _writable(buffer: Buffer, size: int) -> memoryview:
    view = _readable(buffer, size)
    if view.readonly:
        raise DeviceMemoryError("the memory for the weights is read-only", hint="supply writable memory")
    return view


def _magic(chip: str) -> bytes:
    return registry.of_chip(chips.get(chip)).mark


def _pieces(model: Model, encoded: Encoded) -> Iterator[Buffer]:
    """The bytes of the file, in order."""
    sections = [Section(HEADER, len(encoded.header), lambda: [encoded.header])]
    if not encoded.weightless:
        sections.append(Section(WEIGHTS, encoded.weight_size, encoded.weight_pieces))
    return pack(_magic(model.chip), sections)


def _read(contents: Contents, weights: Buffer | None, verify: bool) -> CompiledModel:
    data = contents.data
    vendor, form = vendor_of(data) or (None, None)
    if vendor is not None and form is not None:
        refuse_vendor_model(contents, vendor, form)
    kind = kind_of(data)
    if kind is FileKind.ONNX:
        raise ModelFormatError(
            "this is an ONNX model, not a compiled one", hint="compile it first: anynpu compile MODEL.onnx -o OUT"
        )
    if kind is not FileKind.ANYNPU:
        other = name_content(data)
        raise ModelFormatError(
            f"this is {other[0]}, not a model file" if other else "this is not a model file",
            hint=other[1] if other else "give a file that anynpu compile wrote",
        )
    sections = unpack(data, verify=verify)
    if HEADER not in sections:
        raise ModelFormatError("the header is missing", hint=_COMPILE_AGAIN)
    document = _parse(sections[HEADER])
    memory: Buffer | None = weights
    if WEIGHTS in sections and len(sections[WEIGHTS]) != _weight_record(document)[0]:
        raise ModelFormatError("header and weights are of different files", hint=_COMPILE_AGAIN)
    if weights is None and WEIGHTS in sections:
        memory = sections[WEIGHTS]
        if not contents.mapped:
            memory = aligned_memory(len(sections[WEIGHTS]))
            memory[:] = sections[WEIGHTS]
    # what is in the file has its own checksum; what the caller brings must prove to be the same
    model = _assemble(document, memory, verify and weights is not None)
    try:
        family = _magic(model.chip)
    except UnknownChipError as error:
        raise ModelFormatError(f"it is for the chip {model.chip!r}, which is unknown here", hint=error.hint) from None
    if bytes(data[:4]) != family:
        raise ModelFormatError(f"it is for {model.chip}, but begins with {bytes(data[:4])!r}", hint=_COMPILE_AGAIN)
    return model


def _parse(header: memoryview) -> dict[str, Any]:
    if header.nbytes > _MAX_HEADER:
        raise ModelFormatError(
            f"a header of {header.nbytes} bytes; at most {_MAX_HEADER} are possible",
            hint="the file is damaged, or no network of a real size; compile the model again, for fewer input shapes",
        )
    try:
        document = json.loads(bytes(header), parse_int=_parse_int, parse_constant=_parse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"the header is not readable: {str(error)[:200]}", hint=_COMPILE_AGAIN) from None
    if not isinstance(document, dict) or set(document) != {"model", "weights"}:
        raise ModelFormatError("the header lacks the model or the record of its weights", hint=_COMPILE_AGAIN)
    return document


def _parse_int(text: str) -> int:
    if len(text) > _MAX_NUMBER_LENGTH:
        raise ValueError("a number of too many digits")
    return int(text)


def _parse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _weight_record(document: dict[str, Any]) -> tuple[int, str]:
    try:
        size, digest = _fields(document["weights"], ("size", "digest"))
        _natural(size)
    except Mismatch as mismatch:
        raise ModelFormatError(f"the record of the weights {mismatch}", hint=_COMPILE_AGAIN) from None
    if size > _MAX_WEIGHTS or size % ALIGNMENT or not isinstance(digest, str) or len(digest) != 32:
        raise ModelFormatError("the record of the weights makes no sense", hint=_COMPILE_AGAIN)
    return size, digest
