"""rknn_set_io_mem: the same bytes as rknn_inputs_set and rknn_outputs_get give, in every type and layout that the runtimes take."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.npu import Device
from anynpu.program import Model
from anynpu.rknn import Flag, RknnLibrary, rknn_query_cmd
from anynpu.rknn.constants import rknn_tensor_type

from .conftest import Open
from .support import (
    CHANNELS,
    FP16,
    FP32,
    HEIGHT,
    INT8,
    MINI,
    NC1HWC2,
    NCHW,
    NHWC,
    NULL,
    UINT8,
    UNDEFINED,
    WIDTH,
    Array,
    attr,
    dynamic_model,
    features_model,
    get_outputs,
    input_struct,
    memory_array,
    opened,
    picture_model,
    pixels,
    set_picture,
)

Q = rknn_query_cmd
NUMPY = {FP32: np.float32, FP16: np.float16, INT8: np.int8, UINT8: np.uint8}
NATIVE_IN, NATIVE_OUT = Q.RKNN_QUERY_NATIVE_INPUT_ATTR, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR

full_chips = pytest.mark.parametrize("chip", ["rk3588", "rk3566", "rk3562"])


def bind(library: RknnLibrary, handle: int, about: Any, size: int | None = None) -> Any:
    """Memory for the attributes, bound."""
    memory = library.rknn_create_mem(handle, about.size_with_stride if size is None else size)
    assert memory != NULL, library.last_error()
    assert library.rknn_set_io_mem(handle, memory, about) == 0, library.last_error()
    return memory


def write_rows(memory: Any, picture: Array, w_stride: int, h_stride: int = 0) -> None:
    """An image of NHWC into memory whose rows and images are padded, with rubbish in the padding."""
    n, h, w, c = picture.shape
    rows = max(h, h_stride)
    bytes_needed = n * rows * w_stride * c * picture.itemsize
    raw = memory_array(memory)
    raw[:] = 0x5A
    raw[:bytes_needed].view(picture.dtype).reshape(n, rows, w_stride, c)[:, :h, :w] = picture


def expected(library: RknnLibrary, model: Model, array: Array, **fields: Any) -> tuple[list[bytes], list[bytes]]:
    """Outputs of the general interface: codes, and float32."""
    handle = opened(library, model)
    assert set_picture(library, handle, array, **fields) == 0, library.last_error()
    assert library.rknn_run(handle, NULL) == 0
    return get_outputs(library, handle, 2, want_float=False), get_outputs(library, handle, 2)


def run_bound(library: RknnLibrary, handle: int) -> None:
    assert library.rknn_run(handle, NULL) == 0, library.last_error()


def nchw_of(memory: Any, about: Any) -> Array:
    """What bound memory of an output holds, in the model's order of axes and without padding."""
    kind = NUMPY[rknn_tensor_type(about.type)]
    dims = tuple(about.dims)[: about.n_dims]
    data = memory_array(memory).view(kind)[: int(np.prod(dims))].reshape(dims)
    if about.fmt == NHWC:
        return data.transpose(0, 3, 1, 2)
    if about.fmt == NC1HWC2:
        n, c1, h, w, c2 = dims
        return data.transpose(0, 1, 4, 2, 3).reshape(n, c1 * c2, h, w)[:, :CHANNELS]
    return data


# inputs


@full_chips
@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
@pytest.mark.parametrize("kind", [UINT8, FP32, None], ids=["uint8", "float32", "own"])
@pytest.mark.parametrize("command", [NATIVE_IN, Q.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR], ids=["native", "nhwc"])
def test_pictures(open_software: Open, chip: str, dtype: str, kind: int | None, command: rknn_query_cmd) -> None:
    library, model = open_software(chip), picture_model(chip, dtype)
    handle = opened(library, model)
    about = attr(library, handle, command)
    alignment = (8 if chip == "rk3566" else 16) // (2 if dtype == "fp16" else 1)  # in bytes, of a row of 20
    assert (about.w_stride, about.fmt) == (-(-WIDTH // alignment) * alignment, NHWC)
    own = rknn_tensor_type(about.type)
    if kind is not None:
        about.type = int(kind)
    dtype_of = NUMPY[own if kind is None else rknn_tensor_type(kind)]
    picture = pixels().astype(dtype_of)
    memory = bind(library, handle, about, HEIGHT * about.w_stride * 3 * picture.itemsize)
    write_rows(memory, picture, about.w_stride)
    run_bound(library, handle)
    codes, values = expected(library, model, picture)
    assert get_outputs(library, handle, 2, want_float=False) == codes
    assert get_outputs(library, handle, 2) == values


@full_chips
@pytest.mark.parametrize("stride", [0, WIDTH, WIDTH + 1, 40])
def test_row_strides_of_the_caller(open_software: Open, chip: str, stride: int) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    about = attr(library, handle, NATIVE_IN)
    about.type, about.w_stride = int(UINT8), stride
    memory = bind(library, handle, about, HEIGHT * max(stride, WIDTH) * 3)
    write_rows(memory, pixels(), max(stride, WIDTH))
    run_bound(library, handle)
    assert get_outputs(library, handle, 2) == expected(library, model, pixels())[1]


@full_chips
@pytest.mark.parametrize("h_stride", [0, HEIGHT, HEIGHT + 3])
def test_height_strides_of_batches(open_software: Open, chip: str, h_stride: int) -> None:
    library, model = open_software(chip), picture_model(chip, batch=2)
    handle = opened(library, model)
    about = attr(library, handle, NATIVE_IN)
    about.type, about.h_stride = int(UINT8), h_stride
    memory = bind(library, handle, about, 2 * max(h_stride, HEIGHT) * about.w_stride * 3)
    write_rows(memory, pixels(2), about.w_stride, h_stride)
    run_bound(library, handle)
    assert get_outputs(library, handle, 2) == expected(library, model, pixels(2))[1]


@full_chips
def test_codes_with_pass_through(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    about = attr(library, handle, NATIVE_IN)
    about.pass_through = 1
    codes = np.random.default_rng(3).integers(-128, 128, (1, HEIGHT, WIDTH, 3), np.int8)
    write_rows(bind(library, handle, about), codes, about.w_stride)
    run_bound(library, handle)
    assert get_outputs(library, handle, 2, want_float=False) == expected(library, model, codes, pass_through=1)[0]


def blocks(codes: Array, about: Any) -> Array:
    """NHWC as the NC1HWC2 that attributes describe."""
    n, c1, h, w, c2 = tuple(about.dims)[:5]
    padded = np.zeros((n, h, w, c1 * c2), codes.dtype)
    padded[..., : codes.shape[3]] = codes
    return np.ascontiguousarray(padded.reshape(n, h, w, c1, c2).transpose(0, 3, 1, 2, 4))


@full_chips
@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
@pytest.mark.parametrize("pass_through", [0, 1])
def test_channels_in_blocks(open_software: Open, chip: str, dtype: str, pass_through: int) -> None:
    """20 channels: NC1HWC2 with pass_through, and NHWC that the CPU rearranges without it."""
    library, model = open_software(chip), features_model(chip, dtype)
    random = np.random.default_rng(4)
    if dtype == "w8a8":
        maps, vector = random.integers(-128, 128, (1, 4, 6, 20), np.int8), random.integers(-128, 128, (1, 24), np.int8)
    else:
        maps, vector = (random.uniform(-1, 1, shape).astype(np.float16) for shape in ((1, 4, 6, 20), (1, 24)))
    general = opened(library, model)
    inputs = ffi.new("rknn_input[2]")
    inputs[0], inputs[1] = input_struct(maps)[0], input_struct(vector, index=1, fmt=UNDEFINED)[0]
    assert library.rknn_inputs_set(general, 2, inputs) == 0
    run_bound(library, general)
    handle = opened(library, model)
    for index, array in enumerate((maps, vector)):
        about = attr(library, handle, NATIVE_IN, index)
        assert about.fmt == (UNDEFINED if index else NC1HWC2)
        about.pass_through = pass_through
        memory = bind(library, handle, about)
        given = blocks(array, about) if pass_through and not index else array
        memory_array(memory)[: given.nbytes] = given.reshape(-1).view(np.uint8)
    run_bound(library, handle)
    assert get_outputs(library, handle, 2, want_float=False) == get_outputs(library, general, 2, want_float=False)


# outputs


@full_chips
@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
@pytest.mark.parametrize(
    "command",
    [NATIVE_OUT, Q.RKNN_QUERY_OUTPUT_ATTR, Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR],
    ids=["native", "logical", "nhwc"],
)
@pytest.mark.parametrize("kind", [None, FP32, FP16], ids=["own", "float32", "float16"])
def test_outputs(open_software: Open, chip: str, dtype: str, command: rknn_query_cmd, kind: int | None) -> None:
    library, model = open_software(chip), picture_model(chip, dtype)
    handle = opened(library, model)
    abouts, memories = [], []
    for index in (0, 1):
        about = attr(library, handle, NATIVE_OUT if index else command, index)
        if kind is not None:
            about.type = int(kind)
        item = np.dtype(NUMPY[rknn_tensor_type(about.type)]).itemsize
        abouts.append(about)
        memories.append(bind(library, handle, about, about.n_elems * item))
    assert set_picture(library, handle, pixels()) == 0
    run_bound(library, handle)
    codes, values = expected(library, model, pixels())
    for index, (about, memory) in enumerate(zip(abouts, memories, strict=True)):
        got = np.ascontiguousarray(nchw_of(memory, about)).reshape(-1)
        if kind is None:
            assert got.tobytes() == codes[index]
        else:
            wanted = np.frombuffer(values[index], np.float32).astype(got.dtype)
            np.testing.assert_array_equal(got, wanted)


@full_chips
def test_the_padding_of_blocks_is_what_the_attributes_say(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    handle = opened(library, picture_model(chip))
    about = attr(library, handle, NATIVE_OUT)
    block = chips.get(chip).channel_block["int8"]
    assert about.fmt == NC1HWC2
    assert about.dims[4] == block
    assert about.dims[1] * block >= CHANNELS
    assert about.n_elems == about.size == about.size_with_stride == about.dims[1] * HEIGHT * WIDTH * block


def test_channels_first_without_a_change_of_type(open_software: Open) -> None:
    library = open_software("rk3588")
    handle = opened(library, picture_model())
    about = attr(library, handle, NATIVE_OUT)
    about.fmt = int(NCHW)  # the dims of the blocks are left as they are, as clients do
    memory = bind(library, handle, about)
    assert set_picture(library, handle, pixels()) == 0
    run_bound(library, handle)
    assert memory_array(memory)[: CHANNELS * HEIGHT * WIDTH].tobytes() == expected(library, picture_model(), pixels())[0][0]


# memory from elsewhere


def bound_with(library: RknnLibrary, handle: int, source: Any, target: Any) -> tuple[Any, Any]:
    """Bind *source* and *target*, run, and give the output with its attributes."""
    about_in, about_out = attr(library, handle, NATIVE_IN), attr(library, handle, NATIVE_OUT)
    about_in.type = int(UINT8)
    assert library.rknn_set_io_mem(handle, source, about_in) == 0, library.last_error()
    assert library.rknn_set_io_mem(handle, target, about_out) == 0, library.last_error()
    write_rows(source, pixels(), about_in.w_stride)
    run_bound(library, handle)
    return nchw_of(target, about_out), about_out


@full_chips
@pytest.mark.parametrize("mapped", [True, False], ids=["address", "descriptor"])
def test_memory_from_a_descriptor(open_software: Open, chip: str, mapped: bool) -> None:
    """One memfd holds input and output, each at an offset."""
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    sizes = [attr(library, handle, command).size_with_stride for command in (NATIVE_IN, NATIVE_OUT)]
    offset = 192
    fd = os.memfd_create("both")
    try:
        os.ftruncate(fd, offset + sum(sizes) + 4096)
        with mmap.mmap(fd, offset + sum(sizes) + 4096) as mapping:
            view = np.frombuffer(mapping, np.uint8)
            address = ffi.cast("void *", view.ctypes.data if mapped else 0)
            source = library.rknn_create_mem_from_fd(handle, fd, address, sizes[0], offset)
            target = library.rknn_create_mem_from_fd(handle, fd, address, sizes[1], offset + sizes[0] + 64)
            got, _ = bound_with(library, handle, source, target)
            assert np.ascontiguousarray(got).tobytes() == expected(library, model, pixels())[0][0]
            assert view[offset : offset + WIDTH * 3].tobytes() == pixels()[0, 0].tobytes()  # it is that memory
            assert not view[:offset].any()
            assert not view[offset + sum(sizes) + 64 :].any()
            for memory in (source, target):
                assert library.rknn_destroy_mem(handle, memory) == 0
            assert library.rknn_destroy(handle) == 0
            del view
    finally:
        os.close(fd)


@full_chips
def test_memory_from_physical_addresses(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    arrays = [np.zeros(attr(library, handle, command).size_with_stride, np.uint8) for command in (NATIVE_IN, NATIVE_OUT)]
    source, target = (
        library.rknn_create_mem_from_phys(handle, 0x1000_0000 * place, ffi.from_buffer(array), array.nbytes)
        for place, array in enumerate(arrays, 1)
    )
    got, _ = bound_with(library, handle, source, target)
    assert np.ascontiguousarray(got).tobytes() == expected(library, model, pixels())[0][0]
    assert arrays[1].any()


@pytest.mark.parametrize("chip", ["rk3588", "rk3566", "rk3562", *MINI])
def test_everything_from_outside(open_software: Open, chip: str) -> None:
    """Weights, intermediate tensors, inputs and outputs in memory of the caller; small chips have no other way to share memory."""
    library, model = open_software(chip), picture_model(chip)
    for flag in (Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE):
        handle = opened(library, model, flag)
        sizes = ffi.new("rknn_mem_size *")
        assert library.rknn_query(handle, Q.RKNN_QUERY_MEM_SIZE, sizes, 64) == 0
        internal = library.rknn_create_mem(handle, sizes.total_internal_size)
        if flag == Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE:
            assert library.rknn_set_weight_mem(handle, library.rknn_create_mem(handle, sizes.total_weight_size)) == 0
        assert library.rknn_set_internal_mem(handle, internal) == 0
        results = zero_copy_codes(library, handle, pixels())
        for got, wanted in zip(results, device_codes(model, pixels()), strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert memory_array(internal).any()


# small chips, which have no rknn_inputs_set to compare with


def zero_copy_codes(library: RknnLibrary, handle: int, picture: Array) -> list[Array]:
    """The outputs of an image by bound memory."""
    about = attr(library, handle, NATIVE_IN)
    if picture.dtype == np.uint8:
        about.type = int(UINT8)
    else:
        about.pass_through = 1
    write_rows(bind(library, handle, about), picture, about.w_stride)
    abouts = [attr(library, handle, NATIVE_OUT, index) for index in (0, 1)]
    memories = [bind(library, handle, one) for one in abouts]
    run_bound(library, handle)
    return [nchw_of(memory, one) for memory, one in zip(memories, abouts, strict=True)]


def device_codes(model: Model, picture: Array) -> list[Array]:
    """What the device computes without these calls."""
    with Device(model.chip) as device:
        context = device.load(model).context()
        context.write("image", picture, layout="nhwc", raw=picture.dtype == np.int8)
        context.execute()
        return [context.read(spec.name, dequantize=False) for spec in model.outputs]


@pytest.mark.parametrize("chip", MINI)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_small_chips(open_software: Open, chip: str, kind: type[np.generic]) -> None:
    library, model = open_software(chip), picture_model(chip)
    picture = pixels() if kind is np.uint8 else np.random.default_rng(5).integers(-128, 128, (1, HEIGHT, WIDTH, 3), np.int8)
    handle = opened(library, model)
    for got, wanted in zip(zero_copy_codes(library, handle, picture), device_codes(model, picture), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("chip", MINI)
def test_blocks_on_small_chips(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), features_model(chip)
    handle = opened(library, model)
    random = np.random.default_rng(6)
    maps, vector = random.integers(-128, 128, (1, 4, 6, 20), np.int8), random.integers(-128, 128, (1, 24), np.int8)
    for index, array in enumerate((maps, vector)):
        about = attr(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)  # which is the native one here
        about.pass_through = 1
        given = array if index else blocks(array, about)
        memory_array(bind(library, handle, about))[: given.nbytes] = given.reshape(-1).view(np.uint8)
    memories = [bind(library, handle, attr(library, handle, NATIVE_OUT, index)) for index in (0, 1)]
    run_bound(library, handle)
    with Device(chip) as device:
        context = device.load(model).context()
        context.write("features", maps, layout="nhwc", raw=True)
        context.write("vector", vector, raw=True)
        context.execute()
        wanted = [context.read(spec.name, dequantize=False) for spec in model.outputs]
    about = attr(library, handle, NATIVE_OUT)
    n, c1, h, w, c2 = tuple(about.dims)[:5]
    got = memory_array(memories[0]).view(np.int8).reshape(n, c1, h, w, c2).transpose(0, 1, 4, 2, 3).reshape(n, c1 * c2, h, w)
    np.testing.assert_array_equal(got[:, :12], wanted[0])
    np.testing.assert_array_equal(memory_array(memories[1]).view(np.int8)[:12], wanted[1].reshape(-1))


@pytest.mark.parametrize("chip", ["rv1103", "rv1106"])
def test_nhwc_outputs_of_small_chips(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), picture_model(chip)
    handle = opened(library, model)
    source = attr(library, handle, NATIVE_IN)
    source.type = int(UINT8)
    write_rows(bind(library, handle, source), pixels(), source.w_stride)
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR)
    memory = bind(library, handle, about)
    bind(library, handle, attr(library, handle, NATIVE_OUT, 1))
    run_bound(library, handle)
    np.testing.assert_array_equal(nchw_of(memory, about), device_codes(model, pixels())[0])


# more than one run


def test_changed_memory_is_seen_by_the_next_run(open_software: Open) -> None:
    library, model = open_software("rk3588"), picture_model()
    handle = opened(library, model)
    about = attr(library, handle, NATIVE_IN)
    about.type = int(UINT8)
    memory = bind(library, handle, about)
    for seed in range(3):
        write_rows(memory, pixels(seed=seed), about.w_stride)
        run_bound(library, handle)
        assert get_outputs(library, handle, 2) == expected(library, model, pixels(seed=seed))[1]


def test_rebinding_between_runs(open_software: Open) -> None:
    """From memory that the NPU reads itself to memory that is converted, and back."""
    library, model = open_software("rk3588"), picture_model()
    handle = opened(library, model)
    codes = np.random.default_rng(9).integers(-128, 128, (1, HEIGHT, WIDTH, 3), np.int8)
    direct, converted = attr(library, handle, NATIVE_IN), attr(library, handle, NATIVE_IN)
    direct.pass_through, direct.w_stride = 1, 0
    converted.type = int(UINT8)
    wanted = {"direct": expected(library, model, codes, pass_through=1), "converted": expected(library, model, pixels())}
    for turn in ("direct", "converted", "direct", "direct", "converted", "converted"):
        about, data = (direct, codes) if turn == "direct" else (converted, pixels())
        write_rows(bind(library, handle, about), data, about.w_stride or WIDTH)
        run_bound(library, handle)
        assert get_outputs(library, handle, 2) == wanted[turn][1], turn


def test_dynamic_shapes(open_software: Open) -> None:
    library, model = open_software("rk3588"), dynamic_model()
    handle = opened(library, model)
    random = np.random.default_rng(10)
    for sizes in (((1, 8, 8, 3), (1, 4)), ((1, 12, 16, 3), (1, 6)), ((1, 8, 8, 3), (1, 4))):
        shapes = ffi.new("rknn_tensor_attr[2]")
        for index, size in enumerate(sizes):
            shapes[index] = attr(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)[0]
            for axis, extent in enumerate(size):
                shapes[index].dims[axis] = extent
        assert library.rknn_set_input_shapes(handle, 2, shapes) == 0
        arrays = [random.integers(-128, 128, size, np.int8) for size in sizes]
        for index, array in enumerate(arrays):
            about = attr(library, handle, Q.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR, index)
            about.pass_through = 1
            memory = bind(library, handle, about)
            if index:
                memory_array(memory).view(np.int8)[: array.size] = array.reshape(-1)
            else:
                write_rows(memory, array, about.w_stride)
        about = attr(library, handle, Q.RKNN_QUERY_CURRENT_OUTPUT_ATTR)
        memory = bind(library, handle, about)
        run_bound(library, handle)
        with Device("rk3588") as device:
            context = device.load(model).context(shapes={"image": (1, 3, *sizes[0][1:3]), "vector": sizes[1]})
            context.write("image", arrays[0], layout="nhwc", raw=True)
            context.write("vector", arrays[1], raw=True)
            context.execute()
            wanted = context.read(model.outputs[0].name, dequantize=False)
        np.testing.assert_array_equal(nchw_of(memory, about), wanted)
