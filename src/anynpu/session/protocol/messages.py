"""The Open Inference Protocol, version 2: its messages and its tensors.

Both ends use this module: the server (:mod:`anynpu.serve`) and the session that runs on one (``InferenceSession("grpc://...")``).

The messages are described by the table below and made when they are first asked for, in a descriptor pool of their own. So they fit
whatever version of protobuf is installed, and a program may import another package with the same messages (``tritonclient``) as well.

Tensors travel as raw little-endian bytes in row-major order. BF16, which numpy does not have, becomes float32.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ..._util import optional as _optional
from ..._util.types import Array
from ...errors import RequestError, TensorTypeError
from ...modelfile.codec import Mismatch, from_json, to_json
from ...tensor import TensorSpec

DETAILS = "anynpu.model"
"""The property of a model's metadata that holds its :class:`ModelDetails`."""

SERVICE = "inference.GRPCInferenceService"

METHODS = {
    "ServerLive": ("ServerLiveRequest", "ServerLiveResponse"),
    "ServerReady": ("ServerReadyRequest", "ServerReadyResponse"),
    "ModelReady": ("ModelReadyRequest", "ModelReadyResponse"),
    "ServerMetadata": ("ServerMetadataRequest", "ServerMetadataResponse"),
    "ModelMetadata": ("ModelMetadataRequest", "ModelMetadataResponse"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
    "ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse"),
    "ModelConfig": ("ModelConfigRequest", "ModelConfigResponse"),
    "ModelStatistics": ("ModelStatisticsRequest", "ModelStatisticsResponse"),
    "SystemSharedMemoryStatus": ("SystemSharedMemoryStatusRequest", "SystemSharedMemoryStatusResponse"),
    "SystemSharedMemoryRegister": ("SystemSharedMemoryRegisterRequest", "SystemSharedMemoryRegisterResponse"),
    "SystemSharedMemoryUnregister": ("SystemSharedMemoryUnregisterRequest", "SystemSharedMemoryUnregisterResponse"),
    "RepositoryIndex": ("RepositoryIndexRequest", "RepositoryIndexResponse"),
    "RepositoryModelLoad": ("RepositoryModelLoadRequest", "RepositoryModelLoadResponse"),
    "RepositoryModelUnload": ("RepositoryModelUnloadRequest", "RepositoryModelUnloadResponse"),
}
"""Names of the calls, with what they take and give. ``ModelStreamInfer`` streams both ways, the others take and give one message."""

RAW_INPUTS, RAW_OUTPUTS, STREAMED_ANSWER = 7, 6, 2
"""Numbers of fields: the raw contents of ModelInferRequest and ModelInferResponse, and the latter in ModelStreamInferResponse."""

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}
"""The protocol's types and how their elements are stored. BYTES is missing: no model of an NPU takes text."""

_NAMES = {storage.newbyteorder("=").name: name for name, storage in DATATYPES.items() if name != "BF16"}


@dataclass(frozen=True)
class ModelDetails:
    """What a session must know of a model on a server besides the protocol's metadata.

    :ivar layout: the order of the axes in which the server takes images: ``nchw``, ``nhwc`` or ``any``
    """

    description: str
    provider: str
    chip: str
    cores: int
    layout: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shape_sets: tuple[tuple[tuple[int, ...], ...], ...]
    metadata: Mapping[str, str]

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(to_json(self, ModelDetails, _NoArrays()))

    @classmethod
    def from_text(cls, text: str) -> ModelDetails:
        """From JSON; a RequestError if it is something else."""
        try:
            return from_json(json.loads(text), cls, _NoArrays())
        except (Mismatch, ValueError, RecursionError) as error:
            raise RequestError(
                f"the description of a model cannot be read: {error}", hint="do both ends have the same version?"
            ) from None


class _NoArrays:
    """Arrays of a document that has none."""

    def put_array(self, array: Array) -> dict[str, Any]:
        raise Mismatch("there are no arrays here")

    def get_array(self, reference: Any) -> Array:
        raise Mismatch("there are no arrays here")


# message: field type number name; "*" repeated, "|" in the oneof of the parameter, "<>" a map from text
_MESSAGES = """
ServerLiveRequest
ServerLiveResponse: bool 1 live
ServerReadyRequest
ServerReadyResponse: bool 1 ready
ModelReadyRequest: string 1 name, string 2 version
ModelReadyResponse: bool 1 ready
ServerMetadataRequest
ServerMetadataResponse: string 1 name, string 2 version, *string 3 extensions
ModelMetadataRequest: string 1 name, string 2 version
ModelMetadataResponse.TensorMetadata: string 1 name, string 2 datatype, *int64 3 shape
ModelMetadataResponse: string 1 name, *string 2 versions, string 3 platform, *ModelMetadataResponse.TensorMetadata 4 inputs,
 *ModelMetadataResponse.TensorMetadata 5 outputs, <>string 6 properties
InferParameter: |bool 1 bool_param, |int64 2 int64_param, |string 3 string_param, |double 4 double_param, |uint64 5 uint64_param
InferTensorContents: *bool 1 bool_contents, *int32 2 int_contents, *int64 3 int64_contents, *uint32 4 uint_contents,
 *uint64 5 uint64_contents, *float 6 fp32_contents, *double 7 fp64_contents, *bytes 8 bytes_contents
ModelInferRequest.InferInputTensor: string 1 name, string 2 datatype, *int64 3 shape, <>InferParameter 4 parameters,
 InferTensorContents 5 contents
ModelInferRequest.InferRequestedOutputTensor: string 1 name, <>InferParameter 2 parameters
ModelInferRequest: string 1 model_name, string 2 model_version, string 3 id, <>InferParameter 4 parameters,
 *ModelInferRequest.InferInputTensor 5 inputs, *ModelInferRequest.InferRequestedOutputTensor 6 outputs, *bytes 7 raw_input_contents
ModelInferResponse.InferOutputTensor: string 1 name, string 2 datatype, *int64 3 shape, <>InferParameter 4 parameters,
 InferTensorContents 5 contents
ModelInferResponse: string 1 model_name, string 2 model_version, string 3 id, <>InferParameter 4 parameters,
 *ModelInferResponse.InferOutputTensor 5 outputs, *bytes 6 raw_output_contents
ModelStreamInferResponse: string 1 error_message, ModelInferResponse 2 infer_response
ModelStatisticsRequest: string 1 name, string 2 version
StatisticDuration: uint64 1 count, uint64 2 ns
InferStatistics: StatisticDuration 1 success, StatisticDuration 2 fail, StatisticDuration 3 queue, StatisticDuration 4 compute_input,
 StatisticDuration 5 compute_infer, StatisticDuration 6 compute_output
ModelStatistics: string 1 name, string 2 version, uint64 3 last_inference, uint64 4 inference_count, uint64 5 execution_count,
 InferStatistics 6 inference_stats
ModelStatisticsResponse: *ModelStatistics 1 model_stats
ModelInput: string 1 name, int32 2 data_type, int32 3 format, *int64 4 dims
ModelOutput: string 1 name, int32 2 data_type, *int64 3 dims
ModelInstanceGroup: string 1 name, int32 2 count, int32 4 kind
ModelDynamicBatching: *int32 1 preferred_batch_size, uint64 2 max_queue_delay_microseconds
ModelConfig: string 1 name, string 2 platform, int32 4 max_batch_size, *ModelInput 5 input, *ModelOutput 6 output,
 *ModelInstanceGroup 7 instance_group, string 8 default_model_filename, ModelDynamicBatching 11 dynamic_batching, string 17 backend
ModelConfigRequest: string 1 name, string 2 version
ModelConfigResponse: ModelConfig 1 config
SystemSharedMemoryStatusRequest: string 1 name
SystemSharedMemoryStatusResponse.RegionStatus: string 1 name, string 2 key, uint64 3 offset, uint64 4 byte_size
SystemSharedMemoryStatusResponse: <>SystemSharedMemoryStatusResponse.RegionStatus 1 regions
SystemSharedMemoryRegisterRequest: string 1 name, string 2 key, uint64 3 offset, uint64 4 byte_size
SystemSharedMemoryRegisterResponse
SystemSharedMemoryUnregisterRequest: string 1 name
SystemSharedMemoryUnregisterResponse
ModelRepositoryParameter: |bool 1 bool_param, |int64 2 int64_param, |string 3 string_param, |bytes 4 bytes_param
RepositoryIndexRequest: string 1 repository_name, bool 2 ready
RepositoryIndexResponse.ModelIndex: string 1 name, string 2 version, string 3 state, string 4 reason
RepositoryIndexResponse: *RepositoryIndexResponse.ModelIndex 1 models
RepositoryModelLoadRequest: string 1 repository_name, string 2 model_name, <>ModelRepositoryParameter 3 parameters
RepositoryModelLoadResponse
RepositoryModelUnloadRequest: string 1 repository_name, string 2 model_name, <>ModelRepositoryParameter 3 parameters
RepositoryModelUnloadResponse
"""

_SCALARS = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


@functools.lru_cache(maxsize=1)
def messages() -> Any:
    """The classes of all messages, as attributes; an inner one is an attribute of its outer one."""
    file = _optional.protobuf("descriptor_pb2").FileDescriptorProto(
        name="anynpu/inference_protocol.proto", package="inference", syntax="proto3"
    )
    described: dict[str, Any] = {}
    for line in _MESSAGES.strip().replace(",\n ", ", ").splitlines():
        path, _, fields = line.partition(": ")
        message = _describe(file, described, path)
        for entry in filter(None, fields.split(", ")):
            _add_field(message, path, entry)
    pool = _optional.protobuf("descriptor_pool").DescriptorPool()
    pool.Add(file)
    make = _optional.protobuf("message_factory").GetMessageClass
    return SimpleNamespace(
        **{name: make(pool.FindMessageTypeByName(f"inference.{name}")) for name in described if "." not in name}
    )


def _describe(file: Any, described: dict[str, Any], path: str) -> Any:
    """The description of a message; an inner one may come before its outer one."""
    if path not in described:
        outer, _, name = path.rpartition(".")
        described[path] = (_describe(file, described, outer).nested_type if outer else file.message_type).add(name=name)
    return described[path]


def _add_field(message: Any, path: str, entry: str) -> None:
    found = re.fullmatch(r"(\*|\||<>)?(\S+) (\d+) (\w+)", entry)
    assert found is not None, entry
    mark, kind, number, name = found.groups()
    field = message.field.add(name=name, number=int(number), label=_REPEATED if mark in ("*", "<>") else _OPTIONAL)
    if mark == "<>":
        inner = message.nested_type.add(name=f"{name.title()}Entry")
        inner.options.map_entry = True
        inner.field.add(name="key", number=1, label=_OPTIONAL, type=_SCALARS["string"])
        _set_type(inner.field.add(name="value", number=2, label=_OPTIONAL), kind)
        kind = f"{path}.{name.title()}Entry"
    if mark == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    _set_type(field, kind)


def _set_type(field: Any, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _MESSAGE
        field.type_name = f".inference.{kind}"


@functools.lru_cache(maxsize=64)  # numpy takes long to name a type
def datatype_of(dtype: np.dtype[Any]) -> str:
    """The protocol's name of a numpy type.

    >>> datatype_of(np.dtype(np.float32)), datatype_of(np.dtype(np.uint8))
    ('FP32', 'UINT8')
    """
    try:
        return _NAMES[dtype.name]
    except KeyError:
        raise TensorTypeError(
            f"the protocol has no type for arrays of {dtype}", hint=f"use one of: {', '.join(_NAMES)}"
        ) from None


def element_size(datatype: str, name: str) -> int:
    """Bytes of one element of tensor *name*.

    >>> element_size("FP16", "x")
    2
    """
    storage = DATATYPES.get(datatype)
    if storage is None:
        raise RequestError(f"tensor '{name}' has the datatype {datatype!r}", hint=f"use one of: {', '.join(DATATYPES)}")
    return storage.itemsize


def array_from_bytes(data: bytes | memoryview, offset: int, nbytes: int, datatype: str, shape: Sequence[int], name: str) -> Array:
    """The tensor that lies in *data*, without a copy wherever it is aligned.

    >>> array_from_bytes(bytes([1, 0, 2, 0]), 0, 4, "INT16", (2,), "x").tolist()
    [1, 2]
    """
    expected = math.prod(shape) * element_size(datatype, name)
    if nbytes != expected:
        raise RequestError(
            f"tensor '{name}' has {nbytes} bytes, and {datatype} of shape {list(shape)} needs {expected}",
            hint="send as many bytes as datatype and shape require",
        )
    storage = DATATYPES[datatype]
    if datatype == "BOOL":  # any byte but 0 and 1 would be an invalid bool
        return np.not_equal(np.frombuffer(data, np.uint8, nbytes, offset), 0).reshape(shape)
    array = np.frombuffer(data, storage, nbytes // storage.itemsize, offset).reshape(shape)
    if datatype == "BF16":
        return np.left_shift(array.astype(np.uint32), 16).view(np.float32)
    return array if array.flags.aligned else array.copy()


def bytes_of(array: Array) -> bytes:
    """The elements of *array* as they travel.

    >>> bytes_of(np.array([1, 258], np.int16)).hex()
    '01000201'
    """
    if array.dtype.byteorder == ">" or not np.little_endian:
        array = array.astype(array.dtype.newbyteorder("<"))
    return array.tobytes()


# The raw contents of tensors in messages of the inference protocol, without protobuf's copies of them.
#
# A message on the wire is a row of fields, each with its number. Raw contents are fields of bytes at the top of a message: they can
# be taken out of it as views, and what is left is a small message that protobuf reads; and they can be put behind a message that
# protobuf has written.


Wire = TypeVar("Wire", bound=bytes | memoryview)

MAX_FIELDS = 4096
"""Fields that are looked at here; protobuf is quicker for messages with more."""

VARINT, BYTES = 0, 2
"""Wire types of fields: a number, and bytes or a message."""

_EIGHT_BYTES, _FOUR_BYTES = 1, 5


def split_contents(message: Wire, field: int) -> tuple[Wire | bytes, list[memoryview]]:
    """A message without its fields number *field*, and these.

    A message that is broken comes back whole: protobuf states what it is.

    >>> rest, contents = split_contents(b"\\x0a\\x03net" + b"\\x3a\\x02ab" + b"\\x3a\\x01c", 7)
    >>> rest, [bytes(one) for one in contents]
    (b'\\n\\x03net', [b'ab', b'c'])
    """
    view = memoryview(message)
    contents: list[memoryview] = []
    rest: list[memoryview] = []
    kept = end = 0
    try:
        for number, kind, begin, after in islice(fields_of(message), MAX_FIELDS):
            if number == field and kind == BYTES:
                contents.append(view[begin:after])
                rest.append(view[kept:end])
                kept = after
            end = after
    except IndexError:
        return message, []
    if end != len(message):
        return message, []
    return b"".join((*rest, view[kept:])) if contents else message, contents


def fields_of(message: bytes | memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, begin and end of the value of each field of a message; an IndexError where it is broken or has groups.

    >>> list(fields_of(b"\\x0a\\x03net" + b"\\x18\\x05"))
    [(1, 2, 2, 5), (3, 0, 6, 7)]
    """
    at, size = 0, len(message)
    while at < size:
        tag, at = _varint(message, at)
        kind = tag & 7
        begin = at
        if kind == BYTES:
            length, begin = _varint(message, at)
            at = begin + length
        elif kind == VARINT:
            _, at = _varint(message, at)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise IndexError
        if at > size:
            raise IndexError
        yield tag >> 3, kind, begin, at


def join_contents(message: bytes, field: int, arrays: Iterable[Array]) -> bytes:
    """A message with the elements of *arrays* as its fields number *field*.

    >>> join_contents(b"\\x0a\\x03net", 6, [np.array([1, 258], np.int16)])
    b'\\n\\x03net2\\x04\\x01\\x00\\x02\\x01'
    """
    parts: list[bytes | memoryview] = [message]
    for array in arrays:
        if array.dtype.byteorder == ">" or not np.little_endian:
            array = array.astype(array.dtype.newbyteorder("<"))
        parts.append(_head(field, array.nbytes))
        parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return b"".join(parts)


def field_of(field: int, data: bytes) -> bytes:
    """A field of bytes, or of a message that is inside another one.

    >>> field_of(2, b"abc")
    b'\\x12\\x03abc'
    """
    return _head(field, len(data)) + data


def _head(field: int, size: int) -> bytes:
    return _packed(field << 3 | BYTES) + _packed(size)


def _packed(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number and where it ends; an IndexError where it does not end."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
