"""rknn_register_custom_ops and rknn_custom_op_get_op_attr: callbacks, their order and number, what they get, and how they fail."""

from __future__ import annotations

import ctypes
import gc
import mmap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.npu import Buffer
from anynpu.program import CustomConstant
from anynpu.rknn import Code, Flag, SoftwareLibrary, rknn_query_cmd, rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from anynpu.rknn.constants import rknn_tensor_mem_flags
from anynpu.rknn.custom_operators import load_plugin
from anynpu.rknn.software.custom_operators import OperatorLayer

from .customop_helpers import Callbacks, RawContext, build_plugin, chain_model, chain_program, function, view

X = np.arange(8, dtype=np.float32)[None]
TWO = (("Scale", {"gain": np.array(2.0, np.float32)}), ("Scale", {"gain": np.array(0.25, np.float32)}))
INVALID, FAIL, SKIP = Code.RKNN_ERR_PARAM_INVALID, Code.RKNN_ERR_FAIL, Code.RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE


@pytest.fixture
def library() -> Iterator[SoftwareLibrary]:
    library = SoftwareLibrary("rk3588")
    yield library
    library.close()


class Plugin:
    """The operator Scale, in C."""

    def __init__(self, path: Path) -> None:
        self.struct = load_plugin(path).struct
        self._library = ctypes.CDLL(str(path))

    def reset(self, library: SoftwareLibrary) -> None:
        getter = library.rknn_custom_op_get_op_attr
        self._getter = ffi.callback("void(rknn_custom_op_context *, char *, rknn_custom_op_attr *)", getter)
        function(self._library, "plugin_reset", "void (*)(void *)")(self._getter)

    def fail(self, callback: str, code: int) -> None:
        function(self._library, "plugin_fail", "void (*)(const char *, int)")(callback.encode(), code)

    @property
    def notes(self) -> list[str]:
        text = function(self._library, "plugin_notes", "const char *(*)(void)")()
        return bytes(ffi.string(text)).decode().split(", ")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    return Plugin(build_plugin(Path(__file__).with_name("custom_plugin.c"), tmp_path_factory.mktemp("plugin")))


@pytest.fixture
def plugin(built: Plugin, library: SoftwareLibrary) -> Plugin:
    built.reset(library)
    return built


def passing(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
    view(outputs[0])[...] = view(inputs[0])


def nothing(*arguments: Any) -> None:
    return None


# order and number of calls


def test_callbacks_in_c_in_their_order(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(*TWO))
    assert context.register(plugin.struct) == 0
    assert plugin.notes == ["init 1", "init 2"]
    for _ in range(2):
        assert context.run(X) == 0
        np.testing.assert_array_equal(context.output(X.shape), X * 0.5)
    assert plugin.notes[2:] == ["prepare 1", "compute 1", "prepare 2", "compute 2"] * 2
    assert context.destroy() == 0
    assert plugin.notes[10:] == ["destroy 2", "destroy 1"]


def test_two_contexts_have_layers_of_their_own(library: SoftwareLibrary, plugin: Plugin) -> None:
    first, second = RawContext(library, chain_model(*TWO)), RawContext(library, chain_model(*TWO, TWO[0]))
    assert first.register(plugin.struct) == second.register(plugin.struct) == 0
    assert plugin.notes == [f"init {number}" for number in (1, 2, 3, 4, 5)]
    assert first.destroy() == 0
    assert plugin.notes[5:] == ["destroy 2", "destroy 1"]
    assert second.run(X) == 0
    np.testing.assert_array_equal(second.output(X.shape), X)
    library.close()
    assert plugin.notes[-3:] == ["destroy 5", "destroy 4", "destroy 3"]


def test_registering_again_destroys_the_former(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(*TWO))
    assert context.register(plugin.struct) == 0
    other = Callbacks("Scale", compute=passing)
    assert context.register(other.struct) == 0
    assert plugin.notes == ["init 1", "init 2", "destroy 2", "destroy 1"]
    assert context.run(X) == 0
    np.testing.assert_array_equal(context.output(X.shape), X)
    assert other.notes == ["compute", "compute"]
    context.destroy()
    assert len(plugin.notes) == 4


def test_only_compute_is_needed_and_an_operator_may_be_unused(library: SoftwareLibrary) -> None:
    context = RawContext(library, chain_model(TWO[0]))
    needed, unused = Callbacks("Scale", compute=passing), Callbacks("Other", init=nothing, compute=passing, destroy=nothing)
    assert context.register(unused.struct, needed.struct) == 0
    assert context.run(X) == 0
    assert context.destroy() == 0
    assert (needed.notes, unused.notes) == (["compute"], [])


def test_a_model_runs_when_all_its_operators_are_registered(library: SoftwareLibrary) -> None:
    context = RawContext(library, chain_model(("Scale", {}), ("Shift", {})))
    scale, shift = Callbacks("Scale", compute=passing), Callbacks("Shift", compute=passing)
    for operator, missing in ((None, "Scale"), (scale, "Shift")):
        if operator is not None:
            assert context.register(operator.struct) == 0
        assert context.run(X) == FAIL
        assert f"custom operator '{missing}'" in context.error
        assert "rknn_register_custom_ops" in library.last_error().hint  # type: ignore[union-attr]
    assert context.register(shift.struct) == 0
    assert context.run(X) == 0
    np.testing.assert_array_equal(context.output(X.shape), X)


@pytest.mark.parametrize("flags", [Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE, Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE])
def test_init_waits_for_the_memory_and_memory_may_change(library: SoftwareLibrary, plugin: Plugin, flags: Flag) -> None:
    context = RawContext(library, chain_model(*TWO), int(flags))
    assert context.register(plugin.struct) == 0
    assert plugin.notes == [""]
    sizes = ffi.new("rknn_mem_size *")
    assert library.rknn_query(context.handle, int(rknn_query_cmd.RKNN_QUERY_MEM_SIZE), sizes, ffi.sizeof("rknn_mem_size")) == 0
    if flags & Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE:
        weights = library.rknn_create_mem(context.handle, max(sizes.total_weight_size, 1))
        assert library.rknn_set_weight_mem(context.handle, weights) == 0
    for _ in range(2):
        internal = library.rknn_create_mem(context.handle, sizes.total_internal_size)
        assert library.rknn_set_internal_mem(context.handle, internal) == 0
        assert context.run(X) == 0
        np.testing.assert_array_equal(context.output(X.shape), X * 0.5)
        between = np.frombuffer(ffi.buffer(internal.virt_addr, 32), np.float32)
        np.testing.assert_array_equal(between, X[0] * 2)  # the first layer wrote there
    assert [note for note in plugin.notes if "init" in note] == ["init 1", "init 2"]
    context.destroy()
    assert plugin.notes[-2:] == ["destroy 2", "destroy 1"]


def test_a_duplicate_has_no_operators(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(*TWO))
    assert context.register(plugin.struct) == 0
    source, result = ffi.new("rknn_context *", context.handle), ffi.new("rknn_context *")
    assert library.rknn_dup_context(source, result) == 0
    duplicate = RawContext.__new__(RawContext)
    duplicate.library, duplicate.handle = library, result[0]
    assert duplicate.run(X) == FAIL
    assert "'Scale', which is not registered" in duplicate.error
    assert duplicate.register(plugin.struct) == 0
    assert context.destroy() == 0
    assert duplicate.run(X) == 0
    np.testing.assert_array_equal(duplicate.output(X.shape), X * 0.5)


def test_sets_of_shapes_share_a_layer(library: SoftwareLibrary) -> None:
    shapes: list[tuple[int, ...]] = []

    def compute(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
        passing(op, inputs, n_in, outputs, n_out)
        shapes.append(view(inputs[0]).shape)

    model = chain_model(TWO[0])
    model = replace(model, programs=(model.programs[0], chain_program(TWO[0], shape=(1, 4))))
    context = RawContext(library, model)
    operator = Callbacks("Scale", init=nothing, compute=compute, destroy=nothing)
    assert context.register(operator.struct) == 0
    attr = ffi.new("rknn_tensor_attr *")
    for width in (4, 8, 4):
        assert library.rknn_query(context.handle, int(rknn_query_cmd.RKNN_QUERY_INPUT_ATTR), attr, ffi.sizeof(attr[0])) == 0
        attr.dims[1] = width
        assert library.rknn_set_input_shapes(context.handle, 1, attr) == 0, context.error
        assert context.run(X[:, :width]) == 0, context.error
        np.testing.assert_array_equal(context.output((1, width)), X[:, :width])
    assert shapes == [(1, 4), (1, 8), (1, 4)]
    context.destroy()
    assert operator.notes == ["init", *["compute"] * 3, "destroy"]


# failures


@pytest.mark.parametrize("callback", ["prepare", "compute"])
@pytest.mark.parametrize("code", [-1, -5, 7])
def test_a_callback_that_fails_stops_the_run(library: SoftwareLibrary, plugin: Plugin, callback: str, code: int) -> None:
    context = RawContext(library, chain_model(*TWO))
    assert context.register(plugin.struct) == 0
    plugin.fail(callback, code)
    assert context.run(X) == FAIL
    assert context.error == f"custom operator 'Scale' in layer 'layer_0': {callback} returned {code}"
    assert plugin.notes[-1] == f"{callback} 1"
    plugin.fail("", 0)
    assert context.run(X) == 0
    np.testing.assert_array_equal(context.output(X.shape), X * 0.5)


def test_prepare_can_skip_compute_and_compute_cannot(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(TWO[0]))
    assert context.register(plugin.struct) == 0
    assert context.run(X) == 0
    plugin.fail("prepare", SKIP)
    assert context.run(X + 1) == 0
    assert plugin.notes == ["init 1", "prepare 1", "compute 1", "prepare 1"]
    np.testing.assert_array_equal(context.output(X.shape), X * 2)  # what was there before
    plugin.fail("compute", SKIP)
    assert context.run(X) == FAIL
    assert "compute returned -14" in context.error


def test_an_init_that_fails(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(("Shift", {}), TWO[0], ("Shift", {})))
    shift = Callbacks("Shift", init=nothing, compute=passing, destroy=nothing)
    plugin.fail("init", -4)
    assert context.register(shift.struct, plugin.struct) == FAIL
    assert context.error == "custom operator 'Scale' in layer 'layer_1': init returned -4"
    assert shift.notes == ["init", "init", "destroy", "destroy"]  # all or none
    assert plugin.notes == ["init 1"]
    assert context.run(X) == FAIL
    assert "'Shift', which is not registered" in context.error
    plugin.fail("", 0)
    assert context.register(shift.struct, plugin.struct) == 0
    assert context.run(X) == 0
    np.testing.assert_array_equal(context.output(X.shape), X * 2)


def test_an_init_that_fails_late_is_tried_again(library: SoftwareLibrary, plugin: Plugin) -> None:
    context = RawContext(library, chain_model(*TWO), int(Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE))
    assert context.register(plugin.struct) == 0
    plugin.fail("init", -1)
    memory = library.rknn_create_mem(context.handle, 4096)
    assert library.rknn_set_internal_mem(context.handle, memory) == FAIL
    assert context.run(X) == FAIL
    assert "init returned -1" in context.error
    plugin.fail("", 0)
    assert library.rknn_set_internal_mem(context.handle, memory) == 0
    assert context.run(X) == 0
    np.testing.assert_array_equal(context.output(X.shape), X * 0.5)


def test_a_destroy_that_fails_is_logged(library: SoftwareLibrary, plugin: Plugin, caplog: pytest.LogCaptureFixture) -> None:
    context = RawContext(library, chain_model(*TWO))
    assert context.register(plugin.struct) == 0
    plugin.fail("destroy", -3)
    assert context.destroy() == 0
    assert plugin.notes[-2:] == ["destroy 2", "destroy 1"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"custom operator 'Scale' in layer 'layer_{index}': destroy returned -3" for index in (1, 0)
    ]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"compute": ffi.NULL}, "'Scale' has no compute function"),
        ({"target": 0}, "'Scale' has target 0"),
        ({"target": 3}, "'Scale' has target 3"),
        ({"op_type": b""}, "no op_type"),
        ({"target": 2}, "'Scale' runs on the GPU and has no kernel"),
    ],
    ids=["compute", "no target", "unknown target", "no type", "no kernel"],
)
def test_structs_that_are_refused_change_nothing(library: SoftwareLibrary, changes: dict[str, Any], text: str) -> None:
    context = RawContext(library, chain_model(TWO[0]))
    good = Callbacks("Scale", init=nothing, compute=passing, destroy=nothing)
    assert context.register(good.struct) == 0
    bad = Callbacks("Scale", compute=passing)
    for name, value in changes.items():
        setattr(bad.struct, name, value)
    assert context.register(Callbacks("Scale", compute=passing).struct, bad.struct) == INVALID
    assert text in context.error
    assert context.run(X) == 0
    assert good.notes == ["init", "compute"]


def test_parameters_that_are_refused(library: SoftwareLibrary) -> None:
    context = RawContext(library, chain_model(TWO[0]))
    operator = Callbacks("Scale", compute=passing)
    register = library.rknn_register_custom_ops
    assert register(context.handle, ffi.NULL, 1) == INVALID
    assert register(context.handle, operator.struct, 0) == INVALID
    assert register(context.handle, operator.struct, 0xFFFF_FFFF) == INVALID
    assert register(context.handle + 1, operator.struct, 1) == Code.RKNN_ERR_CTX_INVALID
    told = RawContext(library, chain_model(TWO[0]), int(Flag.RKNN_FLAG_COLLECT_MODEL_INFO_ONLY))
    assert register(told.handle, operator.struct, 1) == Code.RKNN_ERR_CTX_INVALID
    context.destroy()
    assert register(context.handle, operator.struct, 1) == Code.RKNN_ERR_CTX_INVALID


@pytest.mark.parametrize("chip", [chip.name for chip in chips.all_chips() if chip.family == "rknn"])
def test_each_chip(chip: str) -> None:
    available = chips.get(chip).calls["rknn_register_custom_ops"]
    for library in (SoftwareLibrary(chip), SoftwareLibrary()):
        context = RawContext(library, chain_model(TWO[0], chip=chip))
        code = context.register(Callbacks("Scale", compute=passing).struct)
        assert code == (0 if available else Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH)
        library.close()


# what callbacks get


def test_tensors(library: SoftwareLibrary) -> None:
    seen: list[tuple[Any, ...]] = []

    def compute(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
        view(outputs[0])[...] = view(inputs[1]) + view(inputs[0])
        for tensor, _ in ((inputs[0], 0), (inputs[1], 1), (outputs[0], 2)):
            attr, mem = tensor.attr, tensor.mem
            with mmap.mmap(mem.fd, 0) as shared:
                through_fd = np.frombuffer(shared[mem.offset : mem.offset + attr.size], np.float32)
            assert mem.size == attr.size == attr.size_with_stride == attr.n_elems * 4
            assert mem.phys_addr != 0
            assert mem.flags == 1
            np.testing.assert_array_equal(through_fd, view(tensor).reshape(-1))
            dims = tuple(attr.dims)
            assert dims[attr.n_dims :] == (0,) * (16 - attr.n_dims)
            assert attr.type == rknn_tensor_type.RKNN_TENSOR_FLOAT32
            assert (attr.qnt_type, attr.zp, attr.scale) == (rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC, 0, 1.0)
            seen.append((attr.index, ffi.string(attr.name), dims[: attr.n_dims], rknn_tensor_format(attr.fmt).name[12:]))
        seen.append((op.target, op.priv_data, n_in, n_out, op.gpu_ctx.cl_kernel))

    shift = CustomConstant(0, "shift", np.arange(4, dtype=np.float32).reshape(4))
    context = RawContext(library, chain_model(("Add", {}), shape=(1, 2, 3, 4), constants=[shift]))
    operator = Callbacks("Add", compute=compute)
    assert context.register(operator.struct) == 0
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    assert context.run(x) == 0, context.error
    np.testing.assert_array_equal(context.output(x.shape), x + shift.value)
    assert seen == [
        (0, b"shift", (4,), "UNDEFINED"),
        (1, b"x", (1, 2, 3, 4), "NCHW"),
        (0, b"y", (1, 2, 3, 4), "NCHW"),
        (1, ffi.NULL, 2, 1, ffi.NULL),
    ]


def test_memory_of_the_caller_is_what_callbacks_get(library: SoftwareLibrary) -> None:
    model = chain_model(("Copy", {}), shape=(1, 16))
    context = RawContext(library, model)
    places: list[int] = []

    def compute(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
        passing(op, inputs, n_in, outputs, n_out)
        places.append(view(outputs[0]).ctypes.data)

    operator = Callbacks("Copy", init=nothing, compute=compute)
    assert context.register(operator.struct) == 0
    x = np.arange(16, dtype=np.float32)[None]
    assert context.run(x) == 0
    attr = ffi.new("rknn_tensor_attr *")
    assert library.rknn_query(context.handle, int(rknn_query_cmd.RKNN_QUERY_OUTPUT_ATTR), attr, ffi.sizeof(attr[0])) == 0
    attr.type = int(rknn_tensor_type.RKNN_TENSOR_FLOAT32)
    memory = library.rknn_create_mem(context.handle, 64)
    assert library.rknn_set_io_mem(context.handle, memory, attr) == 0, context.error
    assert context.run(x + 1) == 0, context.error
    assert places[1] == int(ffi.cast("uintptr_t", memory.virt_addr)) != places[0]
    np.testing.assert_array_equal(np.frombuffer(ffi.buffer(memory.virt_addr, 64), np.float32), x[0] + 1)
    assert operator.notes == ["init", "compute", "compute"]


def test_memory_without_a_descriptor_and_beyond_the_offset(library: SoftwareLibrary) -> None:
    """An address of the caller has no descriptor; an offset of 2 GiB does not fit its field."""
    context = RawContext(library, chain_model(("Copy", {}), shape=(1, 16)))
    seen: list[tuple[int, int, int, int]] = []

    def compute(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
        mem = outputs[0].mem
        seen.append((int(ffi.cast("uintptr_t", mem.virt_addr)), mem.offset, mem.fd, mem.flags))

    assert context.register(Callbacks("Copy", compute=compute).struct) == 0
    attr = ffi.new("rknn_tensor_attr *")
    assert library.rknn_query(context.handle, int(rknn_query_cmd.RKNN_QUERY_OUTPUT_ATTR), attr, ffi.sizeof(attr[0])) == 0
    attr.type = int(rknn_tensor_type.RKNN_TENSOR_FLOAT32)
    own = np.zeros(64, np.float32)
    memory = library.rknn_create_mem_from_phys(context.handle, 0x1234_0000, ffi.from_buffer(own), own.nbytes)
    assert library.rknn_set_io_mem(context.handle, memory, attr) == 0, context.error
    assert context.run(np.zeros((1, 16), np.float32)) == 0
    with Buffer.allocate(2**31 + 4096) as large:  # pages that nobody touches take no memory
        for start in (64, 2**31):
            assert (
                library.rknn_set_io_mem(
                    context.handle,
                    library.memories.add(
                        large.slice(start, 64),
                        rknn_tensor_mem_flags.RKNN_TENSOR_MEMORY_FLAGS_ALLOC_INSIDE,
                        virtual=large.address + start,
                        physical=1,
                        fd=large.fd,
                    ),
                    attr,
                )
                == 0
            )
            assert context.run(np.zeros((1, 16), np.float32)) == 0
        assert seen == [
            (own.ctypes.data, 0, -1, 4),
            (large.address, 64, large.fd, 1),
            (large.address + 2**31, 0, -1, 4),
        ]
        context.destroy()


ATTRIBUTES = {
    "axis": np.array(-1, np.int64),
    "sizes": np.array([1, 2, 3], np.int64),
    "gain": np.array(0.5, np.float32),
    "weights": np.array([0.25, 4.0], np.float32),
    "mode": "schnell-ä",
    "names": ("a", "bc"),
    "none": np.zeros(0, np.int64),
    "grid": np.arange(4, dtype=np.float64).reshape(2, 2),
    "small": np.array([-3, 4], np.int8),
    "large": np.array([2**63 + 1], np.uint64),
}


def test_attributes(library: SoftwareLibrary) -> None:
    found: dict[str, tuple[int, int, bytes]] = {}
    pointers: list[Any] = []
    sizes = {0: 4, 2: 1, 3: 1, 8: 8}

    def read(op: Any, *rest: Any) -> None:
        pointers.clear()
        for name in (*ATTRIBUTES, "missing"):
            attr = ffi.new("rknn_custom_op_attr *")
            ffi.memmove(attr, b"\xaa" * ffi.sizeof(attr[0]), ffi.sizeof(attr[0]))
            assert library.rknn_custom_op_get_op_attr(op, ffi.new("char[]", name.encode()), attr) is None
            assert ffi.string(attr.name) == name.encode()
            nbytes = attr.n_elems * sizes.get(attr.dtype, 0)
            found[name] = (attr.dtype, attr.n_elems, bytes(ffi.buffer(attr.data, nbytes + 1)) if attr.data else b"NULL")
            pointers.append(attr.data)

    def compute(op: Any, *rest: Any) -> None:
        before = list(pointers)
        read(op)
        assert pointers == before  # they stay where they are

    context = RawContext(library, chain_model(("Scale", ATTRIBUTES)))
    operator = Callbacks("Scale", init=read, compute=compute, destroy=read)
    assert context.register(operator.struct) == 0, context.error
    assert context.run(X) == 0
    zero = b"\0"
    types = rknn_tensor_type
    assert found == {
        "axis": (types.RKNN_TENSOR_INT64, 1, np.int64(-1).tobytes() + zero),
        "sizes": (types.RKNN_TENSOR_INT64, 3, np.array([1, 2, 3], np.int64).tobytes() + zero),
        "gain": (types.RKNN_TENSOR_FLOAT32, 1, np.float32(0.5).tobytes() + zero),
        "weights": (types.RKNN_TENSOR_FLOAT32, 2, np.array([0.25, 4], np.float32).tobytes() + zero),
        "mode": (types.RKNN_TENSOR_UINT8, 10, "schnell-ä".encode() + zero),
        "names": (types.RKNN_TENSOR_UINT8, 4, b"a\0bc\0"),
        "none": (types.RKNN_TENSOR_INT64, 0, zero),
        "grid": (types.RKNN_TENSOR_FLOAT32, 4, np.arange(4, dtype=np.float32).tobytes() + zero),
        "small": (types.RKNN_TENSOR_INT8, 2, b"\xfd\x04\0"),
        "large": (types.RKNN_TENSOR_INT64, 1, np.uint64(2**63 + 1).tobytes() + zero),
        "missing": (types.RKNN_TENSOR_TYPE_MAX, 0, b"NULL"),
    }
    found.clear()
    context.destroy()
    assert found["axis"][1] == 1  # still there in destroy


def test_attributes_of_an_operator_that_is_gone_or_never_was(library: SoftwareLibrary) -> None:
    copies = ffi.new("rknn_custom_op_context[2]")

    def init(op: Any, *rest: Any) -> None:
        copies[0] = op[0]

    context = RawContext(library, chain_model(TWO[0]))
    operator = Callbacks("Scale", init=init, compute=passing)
    assert context.register(operator.struct) == 0
    attr = ffi.new("rknn_custom_op_attr *")
    get = library.rknn_custom_op_get_op_attr
    get(ffi.addressof(copies[0]), b"gain", attr)
    assert attr.n_elems == 1  # a copy of the context is as good
    assert SoftwareLibrary("rk3566").rknn_custom_op_get_op_attr(ffi.addressof(copies[0]), b"gain", attr) is None
    assert attr.n_elems == 1  # and so is any library of the process
    context.destroy()
    for op in (ffi.addressof(copies[0]), ffi.addressof(copies[1]), ffi.NULL):
        attr.n_elems = 5
        assert get(op, b"gain", attr) is None
        assert (attr.n_elems, attr.data) == (0, ffi.NULL)
        assert library.last_error().code == INVALID  # type: ignore[union-attr]
    get(ffi.addressof(copies[0]), ffi.NULL, attr)
    get(ffi.addressof(copies[0]), b"gain", ffi.NULL)
    assert "null pointer" in library.last_error().text  # type: ignore[union-attr]


# callbacks that use the interface


def test_calls_from_inside_a_callback(library: SoftwareLibrary) -> None:
    """Those that would wait for the run that they are part of are rejected; other contexts can be used."""
    outer, inner = RawContext(library, chain_model(TWO[0])), RawContext(library, chain_model(TWO[0]))
    codes: dict[str, int] = {}

    def compute(op: Any, inputs: Any, n_in: int, outputs: Any, n_out: int) -> None:
        passing(op, inputs, n_in, outputs, n_out)
        codes["run"] = outer.run(X)
        codes["rknn_run"] = library.rknn_run(outer.handle, ffi.NULL)
        codes["register"] = outer.register(operator.struct)
        counts = ffi.new("rknn_input_output_num *")
        codes["query"] = library.rknn_query(outer.handle, 0, counts, 8)
        codes["inner"] = inner.run(X + 1)

    operator, other = Callbacks("Scale", compute=compute), Callbacks("Scale", compute=passing)
    assert outer.register(operator.struct) == inner.register(other.struct) == 0
    assert outer.run(X) == 0, outer.error
    assert codes == {"run": FAIL, "rknn_run": FAIL, "register": FAIL, "query": 0, "inner": 0}
    np.testing.assert_array_equal(outer.output(X.shape), X)
    np.testing.assert_array_equal(inner.output(X.shape), X + 1)


@pytest.mark.parametrize("where", ["init", "prepare", "compute"])
def test_a_callback_may_destroy_its_context(library: SoftwareLibrary, where: str) -> None:
    context = RawContext(library, chain_model(*TWO))
    ended: list[int] = []

    def end(op: Any, *rest: Any) -> None:
        ended.append(context.destroy())
        assert "destroy" not in operator.notes  # comes when this has returned
        gc.collect()
        op.priv_data = ffi.NULL  # the struct is still there

    functions = dict.fromkeys(("init", "prepare", "compute", "destroy"), nothing) | {where: end}
    operator = Callbacks("Scale", **functions)
    code = context.register(operator.struct)
    if where != "init":
        assert code == 0
        code = context.run(X)
    assert code != 0
    assert ended == [0]
    assert operator.notes.count("destroy") == operator.notes.count("init")
    assert library.rknn_run(context.handle, ffi.NULL) == Code.RKNN_ERR_CTX_INVALID


def test_destroying_from_another_thread_waits_for_the_callback(library: SoftwareLibrary) -> None:
    context = RawContext(library, chain_model(*TWO))
    entered, gate = threading.Event(), threading.Event()

    def compute(op: Any, *rest: Any) -> None:
        entered.set()
        assert gate.wait(120)
        operator.notes.append("left")

    operator = Callbacks("Scale", compute=compute, destroy=nothing)
    assert context.register(operator.struct) == 0
    codes: list[int] = []
    run = threading.Thread(target=lambda: codes.append(context.run(X)))
    run.start()
    assert entered.wait(120)
    end = threading.Thread(target=lambda: codes.append(context.destroy()))
    end.start()
    end.join(0.1)
    assert end.is_alive()
    gate.set()
    for thread in (run, end):
        thread.join(120)
        assert not thread.is_alive()
    assert operator.notes == ["compute", "left", "destroy", "destroy"]
    assert sorted(codes) == [Code.RKNN_ERR_CTX_INVALID, 0]


def test_runs_that_do_not_block_and_threads(library: SoftwareLibrary, plugin: Plugin) -> None:
    """Callbacks run in the thread of the run, and contexts in parallel."""
    contexts = [RawContext(library, chain_model(*TWO)) for _ in range(4)]
    assert [context.register(plugin.struct) for context in contexts] == [0] * 4
    failures: list[str] = []

    def work(context: RawContext, x: Any) -> None:
        for _ in range(10):
            if context.run(x) or not np.array_equal(context.output(x.shape), x * 0.5):
                failures.append(context.error)

    threads = [threading.Thread(target=work, args=(context, X + index)) for index, context in enumerate(contexts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures
    extend = ffi.new("rknn_run_extend *")
    extend.non_block = 1
    assert library.rknn_run(contexts[0].handle, extend) == 0
    assert library.rknn_wait(contexts[0].handle, extend) == 0
    plugin.fail("compute", -6)
    assert library.rknn_run(contexts[0].handle, extend) == 0
    assert library.rknn_wait(contexts[0].handle, extend) == FAIL
    assert "compute returned -6" in contexts[0].error


def test_nothing_is_left(library: SoftwareLibrary, plugin: Plugin) -> None:
    def layers() -> int:
        gc.collect()
        return sum(isinstance(entry, OperatorLayer) for entry in gc.get_objects())

    before = layers()
    for _ in range(3):
        context = RawContext(library, chain_model(*TWO))
        assert context.register(plugin.struct) == 0
        assert context.register(plugin.struct) == 0
        assert context.run(X) == 0
        assert layers() == before + 2
        assert context.destroy() == 0
    assert layers() == before
