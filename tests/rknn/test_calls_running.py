"""Calls that run: rknn_inputs_set, rknn_run, rknn_wait, rknn_outputs_get, rknn_outputs_release."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from npu.builders import GatedEngine, Thread, dense_chain

from anynpu import Device
from anynpu._rknn import ffi
from anynpu.program import Model
from anynpu.rknn import Code, RknnLibrary, SoftwareLibrary, rknn_query_cmd, rknn_tensor_type

from .conftest import Open
from .support import (
    CHANNELS,
    FP16,
    FP32,
    HEIGHT,
    INT8,
    NC1HWC2,
    NCHW,
    NHWC,
    NULL,
    UINT8,
    UNDEFINED,
    WIDTH,
    Array,
    attr,
    features_model,
    get_outputs,
    input_struct,
    opened,
    picture_model,
    pixels,
    set_picture,
)

Q = rknn_query_cmd


def failure(library: RknnLibrary) -> tuple[int, str]:
    """Code and text of the last failure."""
    last = library.last_error()
    assert last is not None
    return last.code, last.text


def device_result(model: Model, inputs: Any, *, layout: str | None = "nhwc", dequantize: bool = True) -> list[Array]:
    """What the device computes without these calls in between."""
    with Device(model.chip) as device:
        return device.load(model).context().run(inputs, layout=layout, dequantize=dequantize)


def floats(contents: list[bytes]) -> list[Array]:
    return [np.frombuffer(data, np.float32) for data in contents]


# rknn_inputs_set


@pytest.mark.parametrize("dtype", ["w8a8", "fp16"])
@pytest.mark.parametrize("kind", ["uint8", "float32", "float16"])
@pytest.mark.parametrize("fmt", [NHWC, NCHW], ids=["nhwc", "nchw"])
def test_types_and_layouts_of_a_picture(library: SoftwareLibrary, dtype: str, kind: str, fmt: int) -> None:
    model = picture_model(dtype=dtype)
    handle = opened(library, model)
    picture = pixels().astype(kind)
    given = picture.transpose(0, 3, 1, 2) if fmt == NCHW else picture
    assert set_picture(library, handle, given, fmt=fmt) == 0
    assert library.rknn_run(handle, NULL) == 0
    for got, expected in zip(floats(get_outputs(library, handle, 2)), device_result(model, [pixels()]), strict=True):
        np.testing.assert_array_equal(got, expected.reshape(-1))


def test_int8_is_codes(library: SoftwareLibrary) -> None:
    model = picture_model()
    handle = opened(library, model)
    codes = np.random.default_rng(2).integers(-128, 128, (1, HEIGHT, WIDTH, 3), np.int8)
    results = []
    for fields in ({"fmt": NHWC}, {"fmt": NHWC, "pass_through": 1}, {"fmt": UNDEFINED}, {"pass_through": 1, "kind": FP32}):
        assert set_picture(library, handle, codes, **fields) == 0
        assert library.rknn_run(handle, NULL) == 0
        results.append(get_outputs(library, handle, 2, want_float=False))
    assert results[0] == results[1] == results[2] == results[3]
    with Device("rk3588") as device:
        context = device.load(model).context()
        context.write("image", codes, layout="nhwc", raw=True)
        context.execute()
        expected = [context.read(spec.name, dequantize=False) for spec in model.outputs]
    assert results[0] == [np.ascontiguousarray(array).tobytes() for array in expected]


def features() -> tuple[Array, Array]:
    random = np.random.default_rng(7)
    return random.uniform(-1, 1, (1, 4, 6, 20)).astype(np.float32), random.uniform(-1, 1, (1, 24)).astype(np.float32)


@pytest.mark.parametrize("chip", ["rk3588", "rk3566"])
def test_several_inputs_in_any_order(open_software: Open, chip: str) -> None:
    library, model = open_software(chip), features_model(chip)
    handle = opened(library, model)
    maps, vector = features()
    inputs = ffi.new("rknn_input[2]")
    inputs[0], inputs[1] = input_struct(vector, index=1)[0], input_struct(maps, index=0)[0]
    assert library.rknn_inputs_set(handle, 2, inputs) == 0
    assert library.rknn_run(handle, NULL) == 0
    for got, expected in zip(floats(get_outputs(library, handle, 2)), device_result(model, [maps, vector]), strict=True):
        np.testing.assert_array_equal(got, expected.reshape(-1))


@pytest.mark.parametrize("chip", ["rk3588", "rk3566"])
def test_native_blocks_with_pass_through(open_software: Open, chip: str) -> None:
    """20 channels are read as NC1HWC2: with pass_through the caller arranges them, without it the runtime does."""
    library, model = open_software(chip), features_model(chip)
    handle = opened(library, model)
    native = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    assert (native.fmt, native.n_dims) == (NC1HWC2, 5)
    c1, block = native.dims[1], native.dims[4]
    random = np.random.default_rng(8)
    codes, vector = random.integers(-128, 128, (1, 4, 6, 20), np.int8), random.integers(-128, 128, (1, 24), np.int8)
    blocks = np.zeros((1, c1, 4, 6, block), np.int8)
    for channel in range(20):
        blocks[0, channel // block, :, :, channel % block] = codes[0, :, :, channel]
    results = []
    for array, pass_through in ((codes, 0), (blocks, 1)):
        inputs = ffi.new("rknn_input[2]")
        inputs[0] = input_struct(array, pass_through=pass_through)[0]
        inputs[1] = input_struct(vector, index=1, pass_through=pass_through, fmt=UNDEFINED)[0]
        assert library.rknn_inputs_set(handle, 2, inputs) == 0, failure(library)
        assert library.rknn_run(handle, NULL) == 0
        results.append(get_outputs(library, handle, 2, want_float=False))
    assert results[0] == results[1]


def test_a_larger_buffer_is_accepted_and_a_smaller_one_is_not(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    exact = pixels()
    larger = np.concatenate([exact.reshape(-1), np.full(100, 255, np.uint8)])
    results = []
    for array in (exact, larger):
        assert set_picture(library, handle, array) == 0
        assert library.rknn_run(handle, NULL) == 0
        results.append(get_outputs(library, handle, 2))
    assert results[0] == results[1]
    assert set_picture(library, handle, exact.reshape(-1)[:-1]) == Code.RKNN_ERR_PARAM_INVALID
    assert set_picture(library, handle, exact, kind=FP32) == Code.RKNN_ERR_PARAM_INVALID  # the type was left at its zero
    assert failure(library)[1] == f"input 'image' takes {exact.size * 4} bytes, got {exact.size}"


def test_numbers_of_inputs(library: SoftwareLibrary) -> None:
    handle = opened(library, features_model())
    inputs = ffi.new("rknn_input[3]")
    for count in (0, 1, 3):
        assert library.rknn_inputs_set(handle, count, inputs) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_inputs_set(handle, 2, NULL) == Code.RKNN_ERR_PARAM_INVALID


def test_inputs_that_are_not_valid(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    picture = pixels()
    for fields in (
        {"index": 1},
        {"fmt": NC1HWC2},
        {"fmt": 9},
        {"kind": 12},
        {"kind": 99},
        {"kind": rknn_tensor_type.RKNN_TENSOR_INT4},
    ):
        assert set_picture(library, handle, picture, **fields) == Code.RKNN_ERR_INPUT_INVALID, fields
    struct = input_struct(picture)
    struct[0].buf = NULL
    assert library.rknn_inputs_set(handle, 1, struct) == Code.RKNN_ERR_INPUT_INVALID
    two = ffi.new("rknn_input[2]")
    two[0] = two[1] = input_struct(features()[0], index=2)[0]
    assert library.rknn_inputs_set(opened(library, features_model()), 2, two) == Code.RKNN_ERR_INPUT_INVALID


def test_inputs_with_every_index_left_at_0_count_by_position(library: SoftwareLibrary) -> None:
    model = features_model()
    handle = opened(library, model)
    maps, vector = features()
    inputs = ffi.new("rknn_input[2]")
    inputs[0], inputs[1] = input_struct(maps)[0], input_struct(vector)[0]
    assert library.rknn_inputs_set(handle, 2, inputs) == 0, failure(library)
    assert library.rknn_run(handle, NULL) == 0
    for got, expected in zip(floats(get_outputs(library, handle, 2)), device_result(model, [maps, vector]), strict=True):
        np.testing.assert_array_equal(got, expected.reshape(-1))


def test_outputs_with_every_index_left_at_0_count_by_position(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    assert set_picture(library, handle, pixels()) == 0
    assert library.rknn_run(handle, NULL) == 0
    expected = get_outputs(library, handle, 2)
    assert expected[0] != expected[1]
    for given, order in (((0, 0), (0, 1)), ((1, 1), (0, 1)), ((1, 0), (1, 0)), ((0, 1), (0, 1))):
        outputs = ffi.new("rknn_output[2]")
        for one, index in zip(outputs, given, strict=True):
            one.index, one.want_float = index, 1
        assert library.rknn_outputs_get(handle, 2, outputs, NULL) == 0
        assert tuple(one.index for one in outputs) == order
        assert [bytes(ffi.buffer(one.buf, one.size)) for one in outputs] == [expected[index] for index in order]
        assert library.rknn_outputs_release(handle, 2, outputs) == 0
    outputs[0].index = outputs[1].index = 2
    assert library.rknn_outputs_get(handle, 2, outputs, NULL) == Code.RKNN_ERR_OUTPUT_INVALID


def test_inputs_are_converted_at_once(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    picture = pixels()
    assert set_picture(library, handle, picture) == 0
    assert library.rknn_run(handle, NULL) == 0
    expected = get_outputs(library, handle, 2)
    assert library.rknn_inputs_set(handle, 1, input_struct(picture)) == 0
    picture[:] = 0
    assert library.rknn_run(handle, NULL) == 0
    assert get_outputs(library, handle, 2) == expected


def test_general_and_zero_copy_inputs_exclude_each_other(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, about.size_with_stride), about) == 0
    assert set_picture(library, handle, pixels()) == Code.RKNN_ERR_PARAM_INVALID
    assert "bound to memory" in failure(library)[1]


# rknn_run


def test_a_run_without_inputs(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    assert library.rknn_run(handle, NULL) == Code.RKNN_ERR_INPUT_INVALID
    assert failure(library)[1] == "input 'image' has no data"


@pytest.mark.parametrize("chip", ["rv1106", "rv1103b"])
def test_small_chips_need_all_tensors_bound(open_software: Open, chip: str) -> None:
    library = open_software(chip)
    handle = opened(library, picture_model(chip))
    attrs = [attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)]
    attrs += [attr(library, handle, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, index) for index in (0, 1)]
    codes = []
    for about in attrs:
        codes.append(library.rknn_run(handle, NULL))
        assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, about.size_with_stride), about) == 0
    codes.append(library.rknn_run(handle, NULL))
    invalid = Code.RKNN_ERR_OUTPUT_INVALID
    assert codes == [Code.RKNN_ERR_INPUT_INVALID, invalid, invalid, 0]


def test_a_run_whose_memory_was_destroyed(library: SoftwareLibrary) -> None:
    for command, code in (
        (Q.RKNN_QUERY_NATIVE_INPUT_ATTR, Code.RKNN_ERR_INPUT_INVALID),
        (Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, Code.RKNN_ERR_OUTPUT_INVALID),
    ):
        handle = opened(library, picture_model())
        about = attr(library, handle, command)
        if command == Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR:
            assert set_picture(library, handle, pixels()) == 0
        memory = library.rknn_create_mem(handle, about.size_with_stride)
        assert library.rknn_set_io_mem(handle, memory, about) == 0
        assert library.rknn_destroy_mem(handle, memory) == 0
        assert library.rknn_run(handle, NULL) == code
        assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, about.size_with_stride), about) == 0
        assert library.rknn_run(handle, NULL) == 0


# frames


class Gated:
    """A context whose layers wait for a gate."""

    def __init__(self, open_software: Open) -> None:
        self.engine = GatedEngine()
        self.library = open_software("rk3588", engine=self.engine)
        self.handle = opened(self.library, dense_chain(layers=2))
        assert set_picture(self.library, self.handle, np.zeros((1, 8), np.int8), fmt=UNDEFINED) == 0

    def run(self, **fields: int) -> tuple[int, int]:
        extend = ffi.new("rknn_run_extend *", fields)
        return self.library.rknn_run(self.handle, extend), extend.frame_id

    def wait(self, **fields: int) -> tuple[int, int]:
        extend = ffi.new("rknn_run_extend *", fields)
        return self.library.rknn_wait(self.handle, extend), extend.frame_id

    def get(self, frame: int | None = None) -> int:
        extend = NULL if frame is None else ffi.new("rknn_output_extend *", {"frame_id": frame})
        code: int = self.library.rknn_outputs_get(self.handle, 1, ffi.new("rknn_output[1]"), extend)
        return code


@pytest.fixture
def gated(open_software: Open) -> Iterator[Gated]:
    entry = Gated(open_software)
    yield entry
    entry.engine.gate.set()


def test_a_run_that_does_not_block(gated: Gated) -> None:
    assert gated.run(non_block=1) == (0, 1)
    gated.engine.wait_entered()
    assert gated.wait(frame_id=1, timeout_ms=10)[0] == Code.RKNN_ERR_TIMEOUT
    assert gated.run(non_block=1, frame_id=1)[0] == Code.RKNN_ERR_PARAM_INVALID  # that number is on its way
    gated.engine.gate.set()
    assert gated.wait(frame_id=1) == (0, 1)
    assert gated.wait() == (0, 1)
    assert gated.get() == gated.get(0) == gated.get(1) == 0


def test_numbers_of_frames(gated: Gated) -> None:
    gated.engine.gate.set()
    assert [gated.run(non_block=1, frame_id=frame)[1] for frame in (0, 0, 40, 0)] == [1, 2, 40, 41]
    assert gated.wait(frame_id=2) == (0, 2)
    assert gated.wait() == (0, 41)
    assert gated.wait(frame_id=3)[0] == Code.RKNN_ERR_PARAM_INVALID
    assert gated.get(2) == Code.RKNN_ERR_OUTPUT_INVALID
    assert failure(gated.library)[1] == "the outputs of frame 2 are gone: frame 41 was run after it"
    assert gated.get(41) == 0


def test_outputs_wait_for_their_frame(gated: Gated) -> None:
    gated.run(non_block=1)
    getter = Thread(gated.get)
    gated.engine.wait_entered()
    assert getter.is_alive()
    gated.engine.gate.set()
    assert getter.finish() == 0


def test_new_inputs_wait_for_the_frames_before(gated: Gated) -> None:
    """Otherwise a frame that has not begun would compute with the inputs of the next."""
    gated.run(non_block=1)
    gated.engine.wait_entered()
    done: list[int] = []
    setter = Thread(lambda: done.append(set_picture(gated.library, gated.handle, np.ones((1, 8), np.int8), fmt=UNDEFINED)))
    time.sleep(0.02)
    assert not done
    gated.engine.gate.set()
    setter.finish()
    assert done == [0]


def test_frames_compute_with_the_inputs_that_were_set(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    results = []
    for seed in range(6):
        assert set_picture(library, handle, pixels(seed=seed)) == 0
        assert library.rknn_run(handle, NULL) == 0
        results.append(get_outputs(library, handle, 2))
    for seed in range(6):
        assert set_picture(library, handle, pixels(seed=seed)) == 0
        extend = ffi.new("rknn_run_extend *", {"non_block": 1})
        assert library.rknn_run(handle, extend) == 0
        if seed % 2:
            assert set_picture(library, handle, pixels(seed=99)) == 0
        assert get_outputs(library, handle, 2) == results[seed]


def test_waiting_without_a_run(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    assert library.rknn_wait(handle, NULL) == Code.RKNN_ERR_PARAM_INVALID


def test_a_frame_that_fails_says_so_when_it_is_waited_for(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    extend = ffi.new("rknn_run_extend *", {"non_block": 1})
    assert library.rknn_run(handle, extend) == 0  # its inputs are missing, which shows when it runs
    assert library.rknn_wait(handle, extend) == Code.RKNN_ERR_INPUT_INVALID
    assert library.rknn_outputs_get(handle, 2, ffi.new("rknn_output[2]", [{}, {"index": 1}]), NULL) == Code.RKNN_ERR_INPUT_INVALID


def expire(runner: Thread, engine: GatedEngine, seconds: float) -> None:
    """Let a run wait in its first layer until its limit has passed; on a busy machine it may pass before that layer."""
    while runner.is_alive() and not engine.entered.acquire(timeout=0.01):
        pass
    time.sleep(seconds)
    engine.gate.set()


@pytest.mark.parametrize("non_block", [0, 1])
def test_time_limits(gated: Gated, non_block: int) -> None:
    """A run ends at its limit, at the next layer."""
    runner = Thread(lambda: gated.run(timeout_ms=20, non_block=non_block))
    expire(runner, gated.engine, 0.03)
    code, frame = runner.finish()
    assert (code if not non_block else gated.wait(frame_id=frame)[0]) == Code.RKNN_ERR_TIMEOUT
    assert gated.run()[0] == 0  # the context is as good as before


def test_destroying_a_context_ends_its_run(gated: Gated) -> None:
    runner = Thread(lambda: gated.run())
    gated.engine.wait_entered()
    destroyer = Thread(lambda: gated.library.rknn_destroy(gated.handle))
    gated.engine.wait_cancelled()
    gated.engine.gate.set()
    assert destroyer.finish() == 0
    assert runner.finish()[0] == Code.RKNN_ERR_CTX_INVALID
    assert len(gated.engine.begun) == 1  # the second layer was not reached


def test_destroying_a_context_ends_its_frames(gated: Gated) -> None:
    for _ in range(3):
        gated.run(non_block=1)
    gated.engine.wait_entered()
    waiter = Thread(lambda: gated.wait(frame_id=3)[0])
    destroyer = Thread(lambda: gated.library.rknn_destroy(gated.handle))
    gated.engine.wait_cancelled()
    gated.engine.gate.set()
    assert destroyer.finish() == 0
    assert waiter.finish() == Code.RKNN_ERR_CTX_INVALID
    assert len(gated.engine.begun) == 1


# rknn_outputs_get, rknn_outputs_release


def ran(library: RknnLibrary, model: Model) -> int:
    handle = opened(library, model)
    assert set_picture(library, handle, pixels()) == 0
    assert library.rknn_run(handle, NULL) == 0
    return handle


@pytest.mark.parametrize(("dtype", "kind"), [("w8a8", np.int8), ("fp16", np.float16)])
def test_outputs_in_the_model_s_type(library: SoftwareLibrary, dtype: str, kind: type) -> None:
    model = picture_model(dtype=dtype)
    handle = ran(library, model)
    raw = [np.frombuffer(data, kind) for data in get_outputs(library, handle, 2, want_float=False)]
    for index, (codes, values) in enumerate(zip(raw, floats(get_outputs(library, handle, 2)), strict=True)):
        about = attr(library, handle, Q.RKNN_QUERY_OUTPUT_ATTR, index)
        assert about.size == codes.nbytes
        assert about.type == (INT8 if kind is np.int8 else FP16)
        expected = (codes.astype(np.float32) - about.zp) * np.float32(about.scale)
        np.testing.assert_array_equal(values, expected)
    for got, expected in zip(raw, device_result(model, [pixels()], dequantize=False), strict=True):
        np.testing.assert_array_equal(got, expected.astype(kind).reshape(-1))


def test_outputs_in_memory_of_the_caller(library: SoftwareLibrary) -> None:
    handle = ran(library, picture_model())
    expected = get_outputs(library, handle, 2)
    arrays = [np.zeros(len(data) + 8, np.uint8) for data in expected]
    outputs = ffi.new("rknn_output[2]")
    for position, array in enumerate(arrays[::-1]):
        one = outputs[position]
        one.index, one.is_prealloc, one.want_float = 1 - position, 1, 1
        one.buf, one.size = ffi.from_buffer(array), array.nbytes
    pointers = [outputs[position].buf for position in (0, 1)]
    assert library.rknn_outputs_get(handle, 2, outputs, NULL) == 0
    assert [bytes(array[:-8]) for array in arrays] == expected
    assert all(not array[-8:].any() for array in arrays)
    assert [outputs[position].size for position in (0, 1)] == [len(expected[1]), len(expected[0])]
    assert library.rknn_outputs_release(handle, 2, outputs) == 0
    assert [outputs[position].buf for position in (0, 1)] == pointers  # still the caller's


def test_stale_fields_of_an_output_are_ignored(library: SoftwareLibrary) -> None:
    handle = ran(library, picture_model())
    outputs = ffi.new("rknn_output[2]", [{"index": 0, "size": 3}, {"index": 1, "size": 10**6}])
    outputs[0].buf = outputs[1].buf = ffi.cast("void *", 8)
    assert library.rknn_outputs_get(handle, 2, outputs, NULL) == 0
    assert [outputs[index].size for index in (0, 1)] == [CHANNELS * HEIGHT * WIDTH, 10]
    assert library.rknn_outputs_release(handle, 2, outputs) == 0


def test_outputs_that_are_not_valid(library: SoftwareLibrary) -> None:
    handle = ran(library, picture_model())
    assert library.rknn_outputs_get(handle, 2, NULL, NULL) == Code.RKNN_ERR_PARAM_INVALID
    for count in (0, 1, 3):
        assert library.rknn_outputs_get(handle, count, ffi.new("rknn_output[3]"), NULL) == Code.RKNN_ERR_PARAM_INVALID
    two = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 2}])
    assert library.rknn_outputs_get(handle, 2, two, NULL) == Code.RKNN_ERR_OUTPUT_INVALID
    two = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1, "is_prealloc": 1}])
    assert library.rknn_outputs_get(handle, 2, two, NULL) == Code.RKNN_ERR_OUTPUT_INVALID  # no buffer
    small = np.zeros(9, np.uint8)
    two[1].buf, two[1].size = ffi.from_buffer(small), 9
    assert library.rknn_outputs_get(handle, 2, two, NULL) == Code.RKNN_ERR_PARAM_INVALID
    assert two[0].buf == NULL  # nothing was given out


def test_outputs_before_a_run(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    two = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1}])
    assert library.rknn_outputs_get(handle, 2, two, NULL) == Code.RKNN_ERR_OUTPUT_INVALID


def test_outputs_whose_memory_was_destroyed(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR)
    memory = library.rknn_create_mem(handle, about.size_with_stride)
    assert library.rknn_set_io_mem(handle, memory, about) == 0
    assert set_picture(library, handle, pixels()) == 0
    assert library.rknn_run(handle, NULL) == 0
    get_outputs(library, handle, 2)
    assert library.rknn_destroy_mem(handle, memory) == 0
    two = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1}])
    assert library.rknn_outputs_get(handle, 2, two, NULL) == Code.RKNN_ERR_OUTPUT_INVALID


def test_releasing(library: SoftwareLibrary) -> None:
    handle = ran(library, picture_model())
    outputs = ffi.new("rknn_output[2]", [{"index": 0}, {"index": 1}])
    assert library.rknn_outputs_release(handle, 2, outputs) == 0  # never got
    assert library.rknn_outputs_get(handle, 2, outputs, NULL) == 0
    kept = bytes(ffi.buffer(outputs[0].buf, outputs[0].size))
    assert library.rknn_run(handle, NULL) == 0
    assert bytes(ffi.buffer(outputs[0].buf, outputs[0].size)) == kept
    for _ in range(2):
        assert library.rknn_outputs_release(handle, 2, outputs) == 0
    assert outputs[0].buf == NULL
    assert library.rknn_outputs_release(handle, 0, outputs) == 0
    assert library.rknn_outputs_release(handle, 2, NULL) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_outputs_release(handle, 3, ffi.new("rknn_output[3]")) == Code.RKNN_ERR_PARAM_INVALID


def test_uint8_pictures_are_the_usual_case(library: SoftwareLibrary) -> None:
    """The type of the sample code; zero points and scales are the runtime's business."""
    assert input_struct(pixels())[0].type == UINT8
