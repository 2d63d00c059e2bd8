"""The commands of rknn_query: what they answer, what they reject. Which chip answers which is in test_availability.py, what attributes
state is in test_attributes.py."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.npu import Device
from anynpu.rknn import Code, Flag, RknnLibrary, SoftwareLibrary, rknn_query_cmd
from anynpu.rknn.info import View, input_attr, output_attr

from .conftest import Open
from .support import (
    INT8,
    MINI,
    NC1HWC2,
    NCHW,
    NHWC,
    NULL,
    RKNN_CHIPS,
    UNDEFINED,
    attr,
    dynamic_model,
    features_model,
    opened,
    picture_model,
    pixels,
    set_picture,
)

Q = rknn_query_cmd
STRUCTS = {
    Q.RKNN_QUERY_IN_OUT_NUM: "rknn_input_output_num",
    Q.RKNN_QUERY_INPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_OUTPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_PERF_DETAIL: "rknn_perf_detail",
    Q.RKNN_QUERY_PERF_RUN: "rknn_perf_run",
    Q.RKNN_QUERY_SDK_VERSION: "rknn_sdk_version",
    Q.RKNN_QUERY_MEM_SIZE: "rknn_mem_size",
    Q.RKNN_QUERY_CUSTOM_STRING: "rknn_custom_string",
    Q.RKNN_QUERY_NATIVE_INPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_DEVICE_MEM_INFO: "rknn_tensor_mem",
    Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE: "rknn_input_range",
    Q.RKNN_QUERY_CURRENT_INPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_CURRENT_OUTPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR: "rknn_tensor_attr",
    Q.RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR: "rknn_tensor_attr",
}
ATTRIBUTES = [command for command, struct in STRUCTS.items() if struct == "rknn_tensor_attr"]
CURRENT = [command for command in ATTRIBUTES if "CURRENT" in command.name]
STATIC = [command for command in ATTRIBUTES if command not in CURRENT]


def ask(
    library: RknnLibrary, handle: int, command: int, *, index: int = 0, size: int | None = None, fill: int = 0
) -> tuple[int, Any]:
    """The code and the answer; *fill* is what the answer holds before."""
    struct = STRUCTS[rknn_query_cmd(command)]
    answer = ffi.new(f"{struct} *")
    ffi.memmove(answer, bytes([fill]) * ffi.sizeof(struct), ffi.sizeof(struct))
    if hasattr(answer, "index"):
        answer.index = index
    return library.rknn_query(handle, int(command), answer, ffi.sizeof(struct) if size is None else size), answer


def answered(library: RknnLibrary, handle: int, command: int, **fields: int) -> Any:
    code, answer = ask(library, handle, command, **fields)
    assert code == 0, library.last_error()
    return answer


def choose(library: RknnLibrary, handle: int, which: int) -> None:
    """One of the two sets of shapes of the dynamic model."""
    shapes = ffi.new("rknn_tensor_attr[2]")
    for index in (0, 1):
        ranges = answered(library, handle, Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE, index=index)
        shapes[index] = attr(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)[0]
        for axis in range(ranges.n_dims):
            shapes[index].dims[axis] = ranges.dyn_range[which][axis]
    assert library.rknn_set_input_shapes(handle, 2, shapes) == 0


# what all commands have in common


@pytest.mark.parametrize("command", STRUCTS, ids=lambda command: command.name)
def test_an_answer_without_room_is_refused(library: SoftwareLibrary, command: rknn_query_cmd) -> None:
    handle = opened(library, dynamic_model(), Flag.RKNN_FLAG_COLLECT_PERF_MASK)
    smallest = 8 if command == Q.RKNN_QUERY_MEM_SIZE else ffi.sizeof(STRUCTS[command])
    for size in (0, smallest - 1):
        code, answer = ask(library, handle, command, size=size, fill=0xAA, index=0xAAAAAAAA)
        assert code == Code.RKNN_ERR_PARAM_INVALID
        assert set(bytes(ffi.buffer(answer))) == {0xAA}  # nothing was written
    assert library.rknn_query(handle, int(command), NULL, 100_000) == Code.RKNN_ERR_PARAM_INVALID


@pytest.mark.parametrize("command", [-1, 18, 19, 1000])
def test_commands_that_do_not_exist(library: SoftwareLibrary, command: int) -> None:
    handle = opened(library, picture_model())
    assert library.rknn_query(handle, command, ffi.new("char[100000]"), 100_000) == Code.RKNN_ERR_PARAM_INVALID


def test_both_names_of_the_native_commands() -> None:
    assert Q["RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR"] is Q.RKNN_QUERY_NATIVE_INPUT_ATTR
    assert Q["RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR"] is Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR


@pytest.mark.parametrize("command", [*ATTRIBUTES, Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE], ids=lambda command: command.name)
@pytest.mark.parametrize("index", [2, 0xFFFFFFFF])
def test_an_index_that_does_not_exist(library: SoftwareLibrary, command: rknn_query_cmd, index: int) -> None:
    handle = opened(library, dynamic_model())
    choose(library, handle, 0)
    assert ask(library, handle, command, index=1 if command != Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR else 0)[0] == 0
    assert ask(library, handle, command, index=index)[0] == Code.RKNN_ERR_PARAM_INVALID


@pytest.mark.parametrize("command", STATIC, ids=lambda command: command.name)
def test_attributes_are_written_whole(library: SoftwareLibrary, command: rknn_query_cmd) -> None:
    """Callers leave the rest of the struct as it was: every byte that has no meaning must be zero."""
    handle = opened(library, picture_model())
    dirty = answered(library, handle, command, fill=0xAA)
    assert bytes(ffi.buffer(dirty)) == bytes(ffi.buffer(answered(library, handle, command)))
    assert list(dirty.dims)[dirty.n_dims :] == [0] * (16 - dirty.n_dims)


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_attributes_are_those_of_the_model(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), features_model(chip)
    handle = opened(library, model)
    views = {"": View.LOGICAL, "NATIVE_": View.NATIVE, "NATIVE_NHWC_": View.NHWC}
    device = library.device_for(library.chip or pytest.fail("no chip"))
    for prefix, view in views.items():
        for side, specs, expect in (("INPUT", model.inputs, input_attr), ("OUTPUT", model.outputs, output_attr)):
            if (prefix, side) == ("NATIVE_NHWC_", "OUTPUT") and chip in ("rv1103b", "rv1106b"):
                continue
            index = 0
            got = answered(library, handle, Q[f"RKNN_QUERY_{prefix}{side}_ATTR"], index=index)
            wanted = expect(specs[index], device.chip, index, view)
            assert ffi.string(got.name).decode() == wanted.name
            assert tuple(got.dims)[: got.n_dims] == wanted.dims
            assert (got.fmt, got.type, got.qnt_type) == (wanted.fmt, wanted.type, wanted.qnt_type)
            assert (got.zp, got.n_elems, got.size, got.size_with_stride) == (
                *(wanted.zp, wanted.n_elems, wanted.size, wanted.size_with_stride),
            )
            assert got.scale == pytest.approx(wanted.scale)


def test_views_of_one_input(library: SoftwareLibrary) -> None:
    handle = opened(library, features_model())
    logical = answered(library, handle, Q.RKNN_QUERY_INPUT_ATTR)
    native = answered(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    nhwc = answered(library, handle, Q.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR)
    assert (logical.fmt, list(logical.dims)[:4]) == (NHWC, [1, 4, 6, 20])
    assert (native.fmt, list(native.dims)[:5]) == (NC1HWC2, [1, 2, 4, 6, 16])
    assert (nhwc.fmt, list(nhwc.dims)[:4]) == (NHWC, [1, 4, 6, 20])
    vector = answered(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index=1)
    assert (vector.fmt, vector.n_dims, vector.type) == (UNDEFINED, 2, INT8)


@pytest.mark.parametrize("chip", MINI)
def test_small_chips_show_native_inputs_first(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    handle = opened(library, features_model(chip))
    first, native = (answered(library, handle, Q[f"RKNN_QUERY_{prefix}INPUT_ATTR"]) for prefix in ("", "NATIVE_"))
    assert bytes(ffi.buffer(first)) == bytes(ffi.buffer(native))
    assert first.fmt == NC1HWC2


def test_nhwc_of_what_has_no_four_axes(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    code, _ = ask(library, handle, Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR, index=1)
    assert code == Code.RKNN_ERR_PARAM_INVALID
    assert "RKNN_QUERY_NATIVE_OUTPUT_ATTR" in getattr(library.last_error(), "hint", "")


# one by one


@pytest.mark.parametrize(("model", "counts"), [(picture_model, (1, 2)), (features_model, (2, 2)), (dynamic_model, (2, 2))])
def test_in_out_num(library: SoftwareLibrary, model: Any, counts: tuple[int, int]) -> None:
    answer = answered(library, opened(library, model()), Q.RKNN_QUERY_IN_OUT_NUM, fill=0xAA)
    assert (answer.n_input, answer.n_output) == counts


@pytest.mark.parametrize("chip", RKNN_CHIPS)
def test_sdk_version(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    answer = answered(library, opened(library, picture_model(chip)), Q.RKNN_QUERY_SDK_VERSION, fill=0xAA)
    assert re.fullmatch(r"2\.\d+\.\d+ \(anynpu[^()]*\)", ffi.string(answer.api_version).decode())
    assert ffi.string(answer.drv_version).decode() == ("0.8.2" if chip in MINI else "0.9.8")


@pytest.mark.parametrize("text", ["", "RGB", "für Bilder, 中文", "x" * 1023, "x" + "ä" * 5000], ids=len)
def test_custom_string(library: SoftwareLibrary, text: str) -> None:
    model = replace(picture_model(), custom_string=text)
    answer = answered(library, opened(library, modelfile.to_bytes(model)), Q.RKNN_QUERY_CUSTOM_STRING, fill=0xAA)
    assert ffi.string(answer.string).decode() == text.encode()[:1023].decode(errors="ignore")


def test_mem_size_is_that_of_the_memory_plan(library: SoftwareLibrary) -> None:
    model = features_model()
    handle = opened(library, model)
    sizes = answered(library, handle, Q.RKNN_QUERY_MEM_SIZE, fill=0xAA)
    assert sizes.total_weight_size == modelfile.weight_size(model)
    with Device("rk3588") as device:
        loaded = device.load(model)
        assert sizes.total_internal_size == loaded.internal_size
    assert sizes.total_dma_allocated_size >= sizes.total_weight_size + sizes.total_internal_size
    assert list(sizes.reserved) == [0] * 10


def test_mem_size_of_old_clients(library: SoftwareLibrary) -> None:
    """Before version 1.4 the struct had 8 bytes; nothing may be written behind them."""
    handle = opened(library, picture_model())
    whole = answered(library, handle, Q.RKNN_QUERY_MEM_SIZE)
    for size in (8, 16, 63):
        code, answer = ask(library, handle, Q.RKNN_QUERY_MEM_SIZE, size=size, fill=0xAA)
        assert code == 0
        assert bytes(ffi.buffer(answer)) == bytes(ffi.buffer(whole))[:size] + b"\xaa" * (64 - size)


@pytest.mark.parametrize("chip", ["rk3566", "rk3576", "rv1106"])
def test_sram_is_for_rk3588(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    sizes = answered(library, opened(library, picture_model(chip)), Q.RKNN_QUERY_MEM_SIZE)
    assert (sizes.total_sram_size, sizes.free_sram_size) == (0, 0)


def test_dynamic_range(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    image = answered(library, handle, Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE, fill=0xAA)
    assert (image.index, image.shape_number, image.fmt, image.n_dims, ffi.string(image.name)) == (0, 2, NHWC, 4, b"image")
    assert [list(image.dyn_range[row]) for row in range(3)] == [
        [1, 8, 8, 3, *[0] * 12],
        [1, 12, 16, 3, *[0] * 12],
        [0] * 16,
    ]
    vector = answered(library, handle, Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE, index=1)
    assert (vector.index, vector.shape_number, vector.fmt, vector.n_dims) == (1, 2, UNDEFINED, 2)
    assert [list(vector.dyn_range[row])[:2] for row in range(2)] == [[1, 4], [1, 6]]


@pytest.mark.parametrize("command", [Q.RKNN_QUERY_INPUT_DYNAMIC_RANGE, *CURRENT], ids=lambda command: command.name)
def test_a_model_with_one_set_of_shapes_has_no_range(library: SoftwareLibrary, command: rknn_query_cmd) -> None:
    assert ask(library, opened(library, picture_model()), command)[0] == Code.RKNN_ERR_MODEL_INVALID


@pytest.mark.parametrize("command", CURRENT, ids=lambda command: command.name)
def test_current_attributes(library: SoftwareLibrary, command: rknn_query_cmd) -> None:
    handle = opened(library, dynamic_model())
    assert ask(library, handle, command)[0] == Code.RKNN_ERR_FAIL  # before shapes are set
    sizes = []
    for which in (0, 1, 0):
        choose(library, handle, which)
        for index in (0, 1):
            dirty = answered(library, handle, command, index=index, fill=0xAA)
            assert bytes(ffi.buffer(dirty)) == bytes(ffi.buffer(answered(library, handle, command, index=index)))
        about = answered(library, handle, command)
        extents = {NHWC: slice(1, 3), NCHW: slice(2, 4), NC1HWC2: slice(2, 4)}[about.fmt]
        sizes.append(tuple(about.dims)[extents])
    assert sizes == [(8, 8), (12, 16), (8, 8)]


def test_native_and_other_current_attributes(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    choose(library, handle, 1)
    formats = [answered(library, handle, command).fmt for command in CURRENT]
    assert formats == [NHWC, NCHW, NHWC, NC1HWC2]


@pytest.mark.parametrize("chip", MINI)
def test_device_memory(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    memory = answered(library, handle, Q.RKNN_QUERY_DEVICE_MEM_INFO, fill=0xAA)
    assert memory.size >= answered(library, handle, Q.RKNN_QUERY_MEM_SIZE).total_internal_size
    assert memory.phys_addr != 0
    assert memory.fd >= 0
    assert memory.virt_addr != NULL
    outside = opened(library, model, Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE)
    assert ask(library, outside, Q.RKNN_QUERY_DEVICE_MEM_INFO)[0] == Code.RKNN_ERR_MALLOC_FAIL


# times


def run(library: RknnLibrary, handle: int) -> None:
    assert set_picture(library, handle, pixels()) == 0
    assert library.rknn_run(handle, NULL) == 0


def test_times_need_a_run(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model(), Flag.RKNN_FLAG_COLLECT_PERF_MASK)
    for command in (Q.RKNN_QUERY_PERF_RUN, Q.RKNN_QUERY_PERF_DETAIL):
        assert ask(library, handle, command)[0] == Code.RKNN_ERR_FAIL


def test_the_time_of_a_run(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    run(library, handle)
    first = answered(library, handle, Q.RKNN_QUERY_PERF_RUN, fill=0xAA).run_duration
    run(library, handle)
    assert first == answered(library, handle, Q.RKNN_QUERY_PERF_RUN).run_duration  # of the modelled clock, not of this machine
    assert 0 < first < 1_000_000


def test_times_of_layers_without_the_flag_say_how_to_get_them(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    run(library, handle)
    answer = answered(library, handle, Q.RKNN_QUERY_PERF_DETAIL, fill=0xAA)
    text = ffi.string(answer.perf_data)
    assert b"RKNN_FLAG_COLLECT_PERF_MASK" in text
    assert len(text) == answer.data_len


@pytest.mark.parametrize("chip", ["rk3588", "rk3566", "rk3576"])
def test_times_of_layers(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model, Flag.RKNN_FLAG_COLLECT_PERF_MASK)
    run(library, handle)
    answer = answered(library, handle, Q.RKNN_QUERY_PERF_DETAIL, fill=0xAA)
    text = ffi.string(answer.perf_data)
    assert len(text) == answer.data_len
    lines = text.decode().splitlines()
    total = re.search(r"^Total Operator Elapsed Per Frame Time\(us\):\s*([\d.]+)", text.decode(), re.MULTILINE)
    assert total is not None
    assert float(total[1]) == answered(library, handle, Q.RKNN_QUERY_PERF_RUN).run_duration
    assert any("Network Layer Information Table" in line for line in lines)
    rows = [line.split() for line in lines if re.match(r"\d+ ", line)]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert (rows[0][1], rows[-1][1]) == ("InputOperator", "OutputOperator")
    assert {row[3] for row in rows} <= {"CPU", "NPU"}
    assert len(rows) == len(model.programs[0].layers) + 3
    assert any("WorkLoad" in line for line in lines) == (chip != "rk3566")


@pytest.mark.parametrize("chip", MINI)
def test_times_of_layers_are_empty_on_small_chips(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    answer = answered(library, opened(library, picture_model(chip)), Q.RKNN_QUERY_PERF_DETAIL, fill=0xAA)
    assert (ffi.string(answer.perf_data), answer.data_len) == (b"", 0)


@pytest.mark.parametrize(("asked", "stated"), [("1.6.0", "1.6.0 ("), ("2.0.0b0", "2.0.0b0 ("), ("newest", "2.3.2 (")])
def test_the_stated_version_is_a_setting(
    library: SoftwareLibrary, monkeypatch: pytest.MonkeyPatch, asked: str, stated: str
) -> None:
    monkeypatch.setenv("ANYNPU_API_VERSION", asked)
    answer = answered(library, opened(library, picture_model()), Q.RKNN_QUERY_SDK_VERSION)
    assert ffi.string(answer.api_version).decode().startswith(stated)
