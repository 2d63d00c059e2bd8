from __future__ import annotations

import dataclasses
import gc
import json
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import every_operator, every_operator_model, wide_model
from vendor_files import rknn_file

from anynpu import modelfile
from anynpu.errors import DeviceMemoryError, ModelError, ModelFormatError, ModelVersionError, UnknownChipError, VendorModelError
from anynpu.modelfile import CompiledModel, FileKind, WeightlessModel
from anynpu.modelfile.container import HEADER, WEIGHTS, Section, pack, unpack
from anynpu.modelfile.recognize import open_source
from anynpu.program import Conv, Model, Weights


def assert_same(a: Any, b: Any, where: str = "model") -> None:
    """All fields equal, arrays to the byte."""
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray), where
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), where
    elif dataclasses.is_dataclass(a):
        assert type(a) is type(b) or {type(a), type(b)} == {Model, CompiledModel}, where  # what is read can be saved
        for field in dataclasses.fields(a):
            assert_same(getattr(a, field.name), getattr(b, field.name), f"{where}.{field.name}")
    elif isinstance(a, Mapping):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key}]")
    elif isinstance(a, tuple):
        assert type(b) is tuple, where
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{where}[{index}]")
    else:
        assert type(a) is type(b), where
        assert a == b, where


def arrays_of(value: Any) -> Iterator[np.ndarray]:
    """Every array inside a model that has elements."""
    if isinstance(value, np.ndarray):
        if value.size:
            yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from arrays_of(getattr(value, field.name))
    elif isinstance(value, (tuple, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from arrays_of(item)


def base_of(array: np.ndarray) -> Any:
    """What an array is a view of, in the end."""
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


def rebuilt(data: bytes, change: Callable[[Any], None]) -> bytes:
    """A file with valid checksums whose header was changed."""
    sections = unpack(memoryview(data))
    document = json.loads(bytes(sections[HEADER]))
    change(document)
    header = json.dumps(document).encode()
    parts = {kind: header if kind == HEADER else bytes(part) for kind, part in sections.items()}
    return b"".join(pack(data[:4], [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))


class TestRoundTrip:
    @pytest.mark.parametrize(
        "model", [every_operator_model(), wide_model(), every_operator_model("t527", (8,))], ids=["8", "16", "vip"]
    )
    def test_every_field_and_every_byte(self, model: Model, tmp_path) -> None:
        path = modelfile.write(model, tmp_path / "m.rknn")
        assert_same(modelfile.read(path), model)
        assert_same(modelfile.read(str(path)), model)
        assert_same(modelfile.read(path.read_bytes()), model)
        assert_same(modelfile.read(memoryview(path.read_bytes())), model)

    def test_a_model_without_any_weights(self) -> None:
        program = every_operator(8)
        layer = next(layer for layer in program.layers if layer.name == "Convert_logits")
        alone = replace(
            program,
            inputs=("logits8",),
            outputs=("logits",),
            layers=(layer,),
            views={},
            memory=replace(program.memory, offsets={}),
        )
        model = Model("rk3588", "fp16", (alone,))
        assert modelfile.weight_size(model) == 0
        assert_same(modelfile.read(modelfile.to_bytes(model)), model)
        bare = modelfile.read(modelfile.to_bytes(model, remove_weight=True))
        assert bare.weightless
        assert_same(modelfile.attach_weights(bare, bytearray()), model)

    def test_the_same_model_gives_the_same_bytes(self, tmp_path) -> None:
        data = modelfile.to_bytes(every_operator_model())
        assert modelfile.to_bytes(modelfile.read(data)) == data
        assert modelfile.write(every_operator_model(), tmp_path / "a").read_bytes() == data

    def test_strided_and_big_endian_arrays_are_stored_plainly(self) -> None:
        program = every_operator(8)
        conv = program.layers[0]
        assert isinstance(conv.op, Conv)
        odd = replace(conv.op, weights=np.repeat(conv.op.weights, 2, axis=0)[::2], bias=conv.op.bias.astype(">i4"))
        model = Model("rk3588", "w8a8", (replace(program, layers=(replace(conv, op=odd), *program.layers[1:])),))
        assert modelfile.to_bytes(model) == modelfile.to_bytes(Model("rk3588", "w8a8", (program,)))

    def test_numpy_numbers_in_fields_are_written_as_numbers(self) -> None:
        program = every_operator(8)
        layers = (replace(program.layers[0], macs=np.int64(5)), *program.layers[1:])  # type: ignore[arg-type]
        model = modelfile.read(modelfile.to_bytes(Model("rk3588", "w8a8", (replace(program, layers=layers),))))
        assert type(model.programs[0].layers[0].macs) is int

    def test_decode_is_the_way_back_from_encode(self) -> None:
        model = every_operator_model()
        encoded = modelfile.encode(model)
        memory = modelfile.aligned_memory(encoded.weight_size)
        encoded.write_weights(memory)
        decoded = modelfile.decode(encoded.header, memory)
        assert_same(decoded, model)
        assert all(base_of(array) is base_of(np.frombuffer(memory, np.uint8)) for array in arrays_of(decoded))


class TestContainer:
    @pytest.mark.parametrize(("chip", "magic"), [("rk3588", b"RKNN"), ("rv1106", b"RKNN"), ("v853", b"VPMN"), ("a733", b"VPMN")])
    def test_the_first_bytes_follow_the_family(self, chip: str, magic: bytes) -> None:
        data = modelfile.to_bytes(every_operator_model(chip, (8,)))
        assert data[:4] == magic
        assert modelfile.identify(data) is FileKind.ANYNPU
        assert modelfile.read(data).chip == chip

    def test_it_cannot_be_taken_for_a_vendor_file(self) -> None:
        data = modelfile.to_bytes(every_operator_model())
        assert data[4:8] != bytes(4)  # zeros in a vendor-compiled .rknn
        assert struct.unpack_from("<I", data, 4)[0] >> 28 != 0  # small in a vendor-compiled .nb

    def test_sections_are_aligned_and_arrays_within(self, tmp_path) -> None:
        model = modelfile.read(modelfile.write(every_operator_model(), tmp_path / "m"))
        assert all(array.ctypes.data % 64 == 0 for array in arrays_of(model))
        copied = modelfile.read(modelfile.to_bytes(model))
        assert all(array.ctypes.data % 64 == 0 for array in arrays_of(copied))

    def test_a_newer_version_says_so(self, tmp_path) -> None:
        path = modelfile.write(every_operator_model(), tmp_path / "new.rknn")
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, 12, modelfile.VERSION + 1)
        path.write_bytes(data)
        with pytest.raises(ModelVersionError, match=rf"new.rknn: the file has version {modelfile.VERSION + 1}") as caught:
            modelfile.read(path)
        assert "install a newer anynpu" in caught.value.hint

    def test_a_file_of_the_first_version_says_that_the_model_must_be_compiled_again(self, tmp_path) -> None:
        path = modelfile.write(every_operator_model(), tmp_path / "old.rknn")
        data = bytearray(path.read_bytes())
        struct.pack_into("<I", data, 12, 1)
        path.write_bytes(data)
        with pytest.raises(ModelVersionError, match=r"old.rknn: the file has version 1, which an older anynpu wrote") as caught:
            modelfile.read(path)
        assert caught.value.hint == "compile the model again"

    def test_bytes_behind_the_file_do_no_harm(self) -> None:
        model = every_operator_model()
        assert_same(modelfile.read(modelfile.to_bytes(model) + bytes(4096)), model)

    @pytest.mark.parametrize("kind", [HEADER, WEIGHTS])
    def test_a_flipped_bit_is_found(self, kind: int) -> None:
        data = bytearray(modelfile.to_bytes(every_operator_model()))
        section = unpack(memoryview(bytes(data)))[kind]
        data[bytes(data).index(bytes(section)) + len(section) // 2] ^= 1
        with pytest.raises(ModelFormatError, match="checksum"):
            modelfile.read(bytes(data))

    def test_weights_are_not_read_where_the_caller_trusts_them(self) -> None:
        data = bytearray(modelfile.to_bytes(every_operator_model()))
        first = bytes(unpack(memoryview(bytes(data)))[WEIGHTS][:64])
        data[bytes(data).index(first)] ^= 1
        assert not modelfile.read(bytes(data), verify=False).weightless

    def test_the_magic_must_fit_the_chip(self) -> None:
        sections = unpack(memoryview(modelfile.to_bytes(every_operator_model())))
        parts = [Section(kind, len(part), lambda part=part: [part]) for kind, part in sections.items()]
        with pytest.raises(ModelFormatError, match="rk3588, but begins with b'VPMN'"):
            modelfile.read(b"".join(pack(b"VPMN", parts)))

    def test_an_unknown_chip(self) -> None:
        with pytest.raises(UnknownChipError):
            modelfile.to_bytes(every_operator_model("rk9999"))
        data = rebuilt(modelfile.to_bytes(every_operator_model()), lambda document: document["model"].update(chip="rk9999"))
        with pytest.raises(ModelFormatError, match="rk9999"):
            modelfile.read(data)

    @pytest.mark.parametrize("data", [b"", b"RKNN", b"hello world, this is no model", bytes(1000)])
    def test_other_files(self, data: bytes, tmp_path) -> None:
        path = tmp_path / "other.rknn"
        path.write_bytes(data)
        for source in (data, path):
            with pytest.raises(ModelFormatError, match="not a model file") as caught:
                modelfile.read(source)
            assert caught.value.hint

    def test_an_onnx_model_is_recognised(self) -> None:
        with pytest.raises(ModelFormatError, match="ONNX") as caught:
            modelfile.read(relu_onnx())
        assert "anynpu compile" in caught.value.hint


class TestMapping:
    def test_arrays_are_views_of_the_file(self, tmp_path) -> None:
        model = modelfile.read(modelfile.write(every_operator_model(), tmp_path / "m"))
        arrays = list(arrays_of(model))
        assert len(arrays) > 50
        bases = {id(base_of(array)) for array in arrays}
        assert len(bases) == 1
        assert isinstance(base_of(arrays[0]), mmap.mmap)
        assert not any(array.flags.owndata or array.flags.writeable for array in arrays)

    def test_the_mapping_outlives_the_file_and_the_model(self, tmp_path) -> None:
        path = modelfile.write(every_operator_model(), tmp_path / "m")
        weights = modelfile.read(path).programs[0].layers[0].op.weights  # type: ignore[union-attr]
        path.unlink()
        gc.collect()
        expected = every_operator(8).layers[0].op.weights  # type: ignore[union-attr]
        np.testing.assert_array_equal(weights, expected)

    def test_bytes_are_copied(self) -> None:
        data = bytearray(modelfile.to_bytes(every_operator_model()))
        model = modelfile.read(data)
        data[:] = bytes(len(data))
        assert_same(model, every_operator_model())

    def test_replacing_a_file_leaves_its_readers_alone(self, tmp_path) -> None:
        path = modelfile.write(every_operator_model(), tmp_path / "m")
        before = modelfile.read(path)
        modelfile.write(wide_model(), path)
        assert_same(before, every_operator_model())
        assert_same(modelfile.read(path), wide_model())
        assert os.listdir(tmp_path) == ["m"]

    def test_a_failed_write_leaves_nothing(self, tmp_path) -> None:
        (tmp_path / "taken").mkdir()
        with pytest.raises(ModelError, match="cannot be written") as caught:
            modelfile.write(every_operator_model(), tmp_path / "taken")
        assert caught.value.hint
        with pytest.raises(ModelError, match="cannot be written"):
            modelfile.write(every_operator_model(), tmp_path / "absent" / "m")
        assert os.listdir(tmp_path) == ["taken"]


def relu_onnx() -> bytes:
    import onnx

    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", values[:1], values[1:])
    return bytes(onnx.helper.make_model(graph).SerializeToString())


class TestSharing:
    def test_equal_arrays_are_stored_once(self) -> None:
        one = modelfile.weight_size(every_operator_model(sides=(8,)))
        two = modelfile.weight_size(every_operator_model(sides=(8, 12)))
        assert one < two < 1.2 * one  # only the index arrays of the resize differ
        assert modelfile.weight_size(every_operator_model(sides=(8, 8))) == one
        loaded = modelfile.read(modelfile.to_bytes(every_operator_model()))
        first, second = (program.layers[0].op for program in loaded.programs)
        assert first.weights.ctypes.data == second.weights.ctypes.data  # type: ignore[union-attr]
        one, two = (program.layers[-2].op for program in loaded.programs)
        assert one.constants["w"].value.ctypes.data == two.constants["w"].value.ctypes.data  # type: ignore[union-attr]

    def test_weights_left_out_and_attached(self, tmp_path) -> None:
        model = every_operator_model()
        path = modelfile.write(model, tmp_path / "bare.rknn", remove_weight=True)
        assert path.stat().st_size < len(modelfile.to_bytes(model)) - modelfile.weight_size(model)
        bare = modelfile.read(path)
        assert isinstance(bare, WeightlessModel)
        assert bare.weightless
        assert modelfile.weight_size(bare) == modelfile.weight_size(model)
        assert bare.programs[0].layers[0].op.weights.shape == (8, 3, 3, 3)  # type: ignore[union-attr]
        memory = modelfile.aligned_memory(modelfile.weight_size(model) + 100)  # a device rounds up
        placed = modelfile.place_weights(model, memory)
        assert_same(modelfile.attach_weights(bare, memory), placed)
        assert_same(modelfile.read(path, weights=memory), placed)
        assert modelfile.to_bytes(bare) == path.read_bytes()

    def test_a_file_with_weights_can_use_those_of_another(self, tmp_path) -> None:
        model = every_operator_model()
        memory = modelfile.aligned_memory(modelfile.weight_size(model))
        modelfile.place_weights(model, memory)
        shared = modelfile.read(modelfile.write(model, tmp_path / "m"), weights=memory)
        assert all(address(memory) <= array.ctypes.data < address(memory) + len(memory) for array in arrays_of(shared))

    def test_weights_of_another_model_are_refused(self) -> None:
        model = every_operator_model()
        bare = modelfile.read(modelfile.to_bytes(model, remove_weight=True))
        memory = modelfile.aligned_memory(modelfile.weight_size(model))
        modelfile.place_weights(model, memory)
        memory[100] ^= 1
        with pytest.raises(ModelFormatError, match="not the weights"):
            modelfile.attach_weights(bare, memory)
        with pytest.raises(ModelFormatError, match="not the weights"):
            modelfile.read(modelfile.to_bytes(model), weights=memory)
        with pytest.raises(ModelFormatError, match="already"):
            modelfile.attach_weights(model, memory)
        with pytest.raises(ModelFormatError, match="without weights"):
            modelfile.place_weights(bare, memory)
        with pytest.raises(ModelFormatError, match="weightless"):
            modelfile.to_bytes(replace(model, weightless=True))

    def test_placed_weights_are_where_the_caller_wants_them(self) -> None:
        model = every_operator_model()
        size = modelfile.weight_size(model)
        memory = modelfile.aligned_memory(size + 64)
        memory[:] = b"\xa5" * len(memory)
        placed = modelfile.place_weights(model, memory)
        assert_same(placed, model)
        assert all(address(memory) <= array.ctypes.data < address(memory) + size for array in arrays_of(placed))
        assert bytes(memory[:size]) == bytes(unpack(memoryview(modelfile.to_bytes(model)))[WEIGHTS])
        assert bytes(memory[size:]) == b"\xa5" * 64
        first = placed.programs[0].layers[0].op.weights  # type: ignore[union-attr]
        place = first.ctypes.data - address(memory)
        memory[place] = 77
        assert first.reshape(-1)[0] == 77

    def test_memory_that_will_not_do(self) -> None:
        model = every_operator_model()
        size = modelfile.weight_size(model)
        with pytest.raises(DeviceMemoryError, match=f"take {size} bytes, the memory has {size - 1}"):
            modelfile.place_weights(model, modelfile.aligned_memory(size)[:-1])
        with pytest.raises(DeviceMemoryError, match="multiple of 64"):
            modelfile.place_weights(model, modelfile.aligned_memory(size + 4)[4:])
        with pytest.raises(DeviceMemoryError, match="read-only"):
            modelfile.place_weights(model, modelfile.aligned_memory(size).toreadonly())
        with pytest.raises(DeviceMemoryError, match="contiguous"):
            modelfile.place_weights(model, modelfile.aligned_memory(2 * size)[::2])


def at(document: Any, *path: Any) -> Any:
    for step in path:
        document = document[step]
    return document


class TestStrictness:
    """What a header may not state, though its checksum is right."""

    FIRST = ("model", "programs", 0)
    CONV = (*FIRST, "layers", 0, "op")
    SCORES = (*FIRST, "layers", -2, "op")
    SHARES = (*FIRST, "layers", -1, "op")

    @pytest.mark.parametrize(
        ("path", "value", "message"),
        [
            ((*CONV, "type"), "Teleport", "unknown type 'Teleport'"),
            ((*CONV, "weights", "dtype"), "object", "unknown type"),
            ((*CONV, "weights", "dtype"), "float128", "unknown type"),
            ((*CONV, "weights", "offset"), -64, "integer from zero"),
            ((*CONV, "weights", "offset"), 1 << 40, "bytes of weights"),
            ((*CONV, "weights", "offset"), 1, "bytes of weights"),
            ((*CONV, "weights", "shape"), [1 << 62, 1 << 62], "elements along one axis"),
            ((*CONV, "weights", "shape"), [4000, 4000], "bytes of weights"),
            ((*CONV, "weights", "shape"), [8, -3, 3, 3], "integer from zero"),
            ((*CONV, "weights", "shape"), [1] * 9, "more than 8 axes"),
            ((*CONV, "weights", "shape"), [True], "integer from zero"),
            ((*CONV, "weights"), [1, 2], "not a reference"),
            ((*CONV, "strides"), [1], "takes 2 entries, got 1"),
            ((*CONV, "strides"), "11", "takes a list"),
            ((*CONV, "groups"), 1.0, "takes an integer"),
            ((*CONV, "groups"), True, "takes an integer"),
            ((*CONV, "groups"), 10**19, "beyond 64 bits"),
            ((*CONV, "colour"), 1, "unknown field 'colour'"),
            ((*FIRST, "layers", 0, "placement"), "gpu", "is no Placement: 'gpu'"),
            ((*FIRST, "layers", 0, "name"), 5, "takes text"),
            ((*FIRST, "layers", 0, "name"), "\ud800", "not valid Unicode"),
            ((*FIRST, "layers", 3, "op", "kind"), "median", "takes one of max, average"),
            ((*FIRST, "tensors", "c1", "dtype"), "int9", "is no DType"),
            ((*FIRST, "tensors", "c1", "quantization", "scales"), [0.0, 1.0], "positive and finite"),
            ((*SCORES, "compute"), "int8", "no chip computes in int8"),
            ((*SCORES, "operators", 0, "name"), "If", "is not a float operator"),
            ((*SCORES, "operators", 0, "attributes"), {"axis": 1}, "unknown attribute 'axis'"),
            ((*SCORES, "operators", 0, "attributes"), {"body": {"graph": []}}, "takes an integer or a number or text"),
            ((*SCORES, "operators", 0, "inputs"), ["logits"], "has 1 inputs, takes 2 to 2"),
            ((*SCORES, "operators", 0, "inputs"), ["logits", "/some/file"], "which nothing makes"),
            ((*SCORES, "constants", "w", "value", "shape"), [5, 20], r"multiplies \[1, 10\] by \[5, 20\]"),
            ((*SCORES, "constants", "w", "type"), "External", "unknown type 'External'"),
            ((*SCORES, "constants", "w", "location"), "/some/file", "unknown field 'location'"),
            ((*SHARES, "operators", 1, "attributes", "axis"), 7, "no axis 7 among 2"),
            ((*SHARES, "operators", 1, "attributes", "axis"), 1.5, "that is not int"),
            ((*SHARES, "constants", "half", "data"), "zz" * 4, "non-hexadecimal"),
            ((*SHARES, "constants", "half", "data"), "00" * 5, "4 bytes with 10 digits"),
            ((*SHARES, "constants", "half", "shape"), [1 << 40], "a constant of 4398046511104 bytes"),
            ((*SHARES, "constants", "half", "dtype"), "object", "unknown type 'object'"),
            (("model", "programs"), [], "0 programs"),
            (("model", "preprocess", "image", "std"), [0], "std of 'image' is zero"),
            (("model", "preprocess", "image", "mean"), [1, 2], "2 values for 3 channels"),
            (("model", "chip"), None, "takes text"),
            (("weights", "size"), 1 << 41, "makes no sense"),
            (("weights", "size"), 64, "different files"),
            (("weights", "digest"), 5, "makes no sense"),
            (("weights",), [], "not a reference"),
            (("model",), None, "takes the fields of a Model"),
        ],
    )
    def test_refused(self, path: tuple[Any, ...], value: Any, message: str) -> None:
        def change(document: Any) -> None:
            at(document, *path[:-1])[path[-1]] = value

        with pytest.raises(ModelFormatError, match=message):
            modelfile.read(rebuilt(modelfile.to_bytes(every_operator_model()), change))

    def test_a_missing_field_is_named_with_its_place(self) -> None:
        data = rebuilt(modelfile.to_bytes(every_operator_model()), lambda document: at(document, *self.CONV).pop("bias"))
        with pytest.raises(ModelFormatError, match=r"programs\[0\]\.layers\[0\]\.op: lacks the field 'bias'"):
            modelfile.read(data)

    def test_arrays_that_overlap_are_refused(self) -> None:
        def change(document: Any) -> None:
            conv = at(document, *self.CONV)
            conv["weight_zero"]["offset"] = conv["weights"]["offset"] + 64

        with pytest.raises(ModelFormatError, match="overlap"):
            modelfile.read(rebuilt(modelfile.to_bytes(every_operator_model()), change))

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"null",
            b"[]",
            b'{"model":{},"weights":{}}',
            b'{"model":NaN,"weights":{}}',
            b'{"model":' + b"1" * 5000 + b',"weights":{}}',
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b"\xff\xfe\x00",
            b"[" + b"{}," * 100_000 + b"{}]",
        ],
        ids=str,
    )
    def test_headers_that_are_no_header(self, header: bytes) -> None:
        parts = {HEADER: header, WEIGHTS: b""}
        data = b"".join(pack(b"RKNN", [Section(kind, len(part), lambda part=part: [part]) for kind, part in parts.items()]))
        with pytest.raises(ModelFormatError):
            modelfile.read(data)

    def test_a_weightless_header_may_claim_much_and_gets_nothing(self) -> None:
        def change(document: Any) -> None:
            document["weights"]["size"] = 1 << 40
            dense = next(layer for layer in at(document, *self.FIRST, "layers") if layer["op"]["type"] == "Dense")
            dense["op"]["weights"].update(offset=1 << 20, shape=[10, 1 << 36])

        with pytest.raises(ModelFormatError, match="rows of 68719476736 elements"):
            modelfile.read(rebuilt(modelfile.to_bytes(every_operator_model(), remove_weight=True), change))

    def test_values_of_attached_weights_are_checked_too(self) -> None:
        model = every_operator_model()
        memory = modelfile.aligned_memory(modelfile.weight_size(model))
        placed = modelfile.place_weights(model, memory)
        first = placed.programs[0].layers[0].op
        assert isinstance(first, Conv)
        first.epilogue.multiplier[0] = np.nan
        bare = modelfile.read(modelfile.to_bytes(model, remove_weight=True))
        with pytest.raises(ModelFormatError, match="multiplier is not finite"):
            modelfile.attach_weights(bare, memory, verify=False)
        with pytest.raises(ModelFormatError, match="multiplier is not finite"):
            modelfile.to_bytes(placed)

    def test_a_model_that_is_not_one_is_refused_on_writing(self) -> None:
        model = every_operator_model()
        with pytest.raises(ModelFormatError, match=r"cannot be written: custom_string: takes text"):
            modelfile.to_bytes(replace(model, custom_string=5))  # type: ignore[arg-type]
        *others, scores, last = model.programs[0].layers
        odd = replace(scores, op=replace(scores.op, constants={"w": Weights(np.zeros(3, "datetime64[s]"))}))  # type: ignore[type-var]
        with pytest.raises(ModelFormatError, match=r"constants\['w'\]\.value: is an array of datetime64"):
            modelfile.to_bytes(replace(model, programs=(replace(model.programs[0], layers=(*others, odd, last)),)))


def test_the_twin_of_a_vendors_file_is_read_in_its_place(tmp_path: Path) -> None:
    theirs = tmp_path / "net.rknn"
    theirs.write_bytes(rknn_file())
    with pytest.raises(VendorModelError, match="twin"):
        modelfile.read_or_twin(theirs)
    model = every_operator_model()
    modelfile.write(model, tmp_path / "net.anynpu")
    assert modelfile.read_or_twin(theirs).name == model.name
    assert modelfile.read_or_twin(tmp_path / "net.anynpu").name == model.name


def test_a_file_that_cannot_be_read_back_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = modelfile.file._pieces
    monkeypatch.setattr(modelfile.file, "_pieces", lambda *given: list(pieces(*given))[:-1])
    with pytest.raises(ModelFormatError) as caught:
        modelfile.write(every_operator_model(), tmp_path / "model.rknn")
    assert "tmp" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_cut_short_after_it_was_opened(tmp_path: Path) -> None:
    """A mapping of the file would end the process here."""
    path = modelfile.write(every_operator_model(), tmp_path / "model.rknn")
    whole = path.read_bytes()
    contents = open_source(path)
    path.write_bytes(b"")
    assert contents.data == whole


def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = modelfile.write(every_operator_model(), tmp_path / "model.rknn")
    fstat, calls = os.fstat, []

    def changing(fd: int) -> os.stat_result:
        calls.append(fd)
        if len(calls) == 2:
            os.utime(path, (1, 1))
        return fstat(fd)

    monkeypatch.setattr("anynpu.modelfile.recognize.os.fstat", changing)
    with pytest.raises(ModelError, match="changed while it was read"):
        open_source(path)
