"""Each call of the software library, in the order in which a program makes them."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu import chips
from anynpu._vip import ffi
from anynpu.npu import Device
from anynpu.vip import SoftwareLibrary
from anynpu.vip.interface import functions
from anynpu.vip.software.jobs import LOG_FILE

from .support import CHIPS, FILE, SHAPE, Calls, picture, small_file, small_model

FORMATS = ("w8a8", "i8", "i8dfp", "w16a16", "fp16", "bf16")


def test_every_function_of_the_interface_is_a_method() -> None:
    assert len(functions()) == 41
    assert [name for name in functions() if not callable(getattr(SoftwareLibrary, name, None))] == []


@pytest.mark.parametrize(
    ("chip", "version"), [("v853", 0x00010800), ("t527", 0x00010D00), ("a733", 0x00020003), (None, 0x00010D00)]
)
def test_versions(open_calls: Callable[..., Calls], chip: str | None, version: int) -> None:
    assert open_calls(chip, init=False).library.vip_get_version() == version


def test_init_is_counted(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls(init=False)
    library = calls.library
    assert library.vip_destroy() == -4
    calls.ok(library.vip_init(0))
    calls.ok(library.vip_init(0))
    network = calls.create(small_file())
    calls.ok(library.vip_destroy())
    calls.ok(library.vip_prepare_network(network))  # the first vip_init still counts
    calls.ok(library.vip_destroy())
    assert library.vip_prepare_network(network) == -4
    calls.ok(library.vip_init(0))
    assert library.vip_prepare_network(network) == -7  # of before the last vip_destroy


def test_hardware(calls: Calls) -> None:
    value = ffi.new("uint32_t[2]", [7, 7])
    calls.ok(calls.library.vip_query_hardware(0, 4, value))
    assert value[0] == chips.get("t527").vip.customer_id  # type: ignore[union-attr]
    calls.ok(calls.library.vip_query_hardware(1, 4, value))
    assert value[0] == 1
    calls.ok(calls.library.vip_query_hardware(2, 4, value))
    assert list(value) == [1, 7]
    assert calls.library.vip_query_hardware(3, 4, value) == -4
    assert calls.library.vip_query_hardware(0, 2, value) == -3
    assert calls.library.vip_query_hardware(0, 4, ffi.NULL) == -3


def test_queries_of_a_network(calls: Calls) -> None:
    network = calls.create(small_file())
    model = small_model()
    assert calls.number(network, 0) == len(model.programs[0].layers)
    assert (calls.number(network, 1), calls.number(network, 2)) == (1, 2)
    name = calls.query(calls.library.vip_query_network, network, 3, kind="char[64]")
    assert ffi.string(name).decode() == model.name[:63]
    assert calls.number(network, 6) == model.programs[0].memory.size
    assert calls.number(network, 8, "uint8_t *") == 1
    profile = calls.query(calls.library.vip_query_network, network, 7, kind="vip_inference_profile_t *")
    assert (profile.inference_time, profile.total_cycle) == (0, 0)  # it has not run
    for unknown in (4, 5, 9, 10, 67, -1):
        assert calls.library.vip_query_network(network, unknown, name) == -4
    assert calls.library.vip_query_network(network, 0, ffi.NULL) == -3


def test_what_the_caller_sees_of_inputs_and_outputs(calls: Calls) -> None:
    network = calls.create(small_file())
    program = small_model().programs[0]
    given, scores = program.input_specs[0].quantization, program.output_specs[0].quantization
    assert given is not None
    assert scores is not None
    params = calls.params(network, 0, is_input=True)
    assert list(params.sizes) == [12, 16, 3, 1, 0, 0]
    assert (params.data_format, params.quant_format) == (2, 2)
    assert params.quant_data.affine.scale == pytest.approx(given.scale)
    assert params.quant_data.affine.zeroPoint == given.zero_point + 128
    params = calls.params(network, 0, is_input=False)
    assert (params.num_of_dims, list(params.sizes)) == (2, [5, 1, 0, 0, 0, 0])
    assert params.quant_data.affine.zeroPoint == scores.zero_point + 128
    name = calls.query(calls.library.vip_query_output, network, 1, 7, kind="char[64]")
    assert ffi.string(name) == b"features"
    assert calls.library.vip_query_output(network, 0, 8, name) == -4
    assert calls.library.vip_query_output(network, 2, 0, name) == -3
    assert calls.library.vip_query_input(network, 1, 0, name) == -3


def test_dimensions_that_are_not_there_stay_as_they_are(calls: Calls) -> None:
    network = calls.create(small_file())
    sizes = ffi.new("uint32_t[6]", [9] * 6)
    calls.ok(calls.library.vip_query_output(network, 0, 2, sizes))
    assert list(sizes) == [5, 1, 9, 9, 9, 9]


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_run_gives_what_the_device_gives(calls: Calls, dtype: str) -> None:
    model = small_model("t527", dtype)
    network, (given,), results = calls.ready(small_file("t527", dtype))
    with Device("t527") as device, device.load(model).context() as context:
        context.write("x", picture())
        codes = context.input_buffer("x").tensor(context.inputs[0]).copy()
        context.execute()
        expected = [context.output_buffer(spec.name).tensor(spec).copy() for spec in context.outputs]
    if codes.ndim == 4 and context_is_nhwc(model):
        codes = codes.transpose(0, 3, 1, 2)
        expected[1] = expected[1].transpose(0, 3, 1, 2)
    flip = np.uint8(128) if dtype == "w8a8" else None

    def seen(array: Any) -> Any:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return flat if flip is None else flat ^ flip

    calls.bytes(given)[:] = seen(codes)
    calls.ok(calls.library.vip_run_network(network))
    for buffer, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(calls.bytes(buffer), seen(array))


def context_is_nhwc(model: anynpu.program.Model) -> bool:
    return model.inputs[0].layout.value == "nhwc"


def test_the_first_figure_of_the_reference(calls: Calls, tmp_path: Path) -> None:
    """Initialize, create, prepare, bind, run again and again, finish, destroy."""
    path = tmp_path / "model.nb"
    path.write_bytes(small_file())
    library = calls.library
    network = calls.create(os.fsencode(path), FILE)
    calls.ok(library.vip_prepare_network(network))
    calls.ok(library.vip_prepare_network(network))  # again is harmless
    (given,), (scores, _) = calls.bind_all(network)
    seen = set()
    for value in (0, 90, 200):
        calls.bytes(given)[:] = np.arange(576, dtype=np.uint8) // 3 + value // 2
        calls.ok(library.vip_flush_buffer(given, 1))
        calls.ok(library.vip_run_network(network))
        calls.ok(library.vip_flush_buffer(scores, 2))
        seen.add(calls.bytes(scores).tobytes())
    assert len(seen) == 3
    profile = calls.query(library.vip_query_network, network, 7, kind="vip_inference_profile_t *")
    clock = chips.get("t527").clock_hz / 1e6
    assert profile.inference_time > 0
    assert profile.total_cycle / profile.inference_time == pytest.approx(clock, rel=0.02)
    calls.ok(library.vip_unmap_buffer(given))
    calls.ok(library.vip_finish_network(network))
    calls.ok(library.vip_finish_network(network))
    assert library.vip_run_network(network) == -9
    calls.ok(library.vip_destroy_network(network))
    calls.ok(library.vip_destroy_buffer(given))
    calls.ok(library.vip_destroy())


def test_the_file_in_memory_is_copied(calls: Calls) -> None:
    data = bytearray(small_file())
    network = ffi.new("vip_network *")
    calls.ok(calls.library.vip_create_network(ffi.from_buffer(data), len(data), 2, network))
    data[:] = bytes(len(data))
    calls.ok(calls.library.vip_prepare_network(network[0]))
    (given,), (scores, _) = calls.bind_all(network[0])
    calls.bytes(given)[:] = 77
    calls.ok(calls.library.vip_run_network(network[0]))
    other, (second,), (expected, _) = calls.ready()
    calls.bytes(second)[:] = 77
    calls.ok(calls.library.vip_run_network(other))
    assert calls.bytes(scores).tobytes() == calls.bytes(expected).tobytes()


def test_trigger_and_wait(calls: Calls) -> None:
    network, (given,), (scores, _) = calls.ready()
    calls.bytes(given)[:] = 30
    calls.ok(calls.library.vip_run_network(network))
    expected = calls.bytes(scores).tobytes()
    calls.bytes(scores)[:] = 0
    calls.ok(calls.library.vip_trigger_network(network))
    calls.ok(calls.library.vip_wait_network(network))
    assert calls.bytes(scores).tobytes() == expected
    assert calls.library.vip_wait_network(network) == -11  # nothing is on its way


def test_triggering_twice_without_waiting_is_refused(calls: Calls) -> None:
    network, *_ = calls.ready()
    calls.ok(calls.library.vip_trigger_network(network))
    assert calls.library.vip_trigger_network(network) == -11
    calls.ok(calls.library.vip_wait_network(network))
    calls.ok(calls.library.vip_trigger_network(network))
    calls.ok(calls.library.vip_wait_network(network))


def test_a_duplicate_shares_the_weights(calls: Calls) -> None:
    library = calls.library
    network, (given,), (scores, _) = calls.ready()
    device = library.device_for(chips.get("t527"))
    before = device.memory_usage()
    twin = ffi.new("vip_network *")
    calls.ok(library.vip_dup_network(ffi.NULL, 0, 0x801, network, twin))
    calls.ok(library.vip_prepare_network(twin[0]))
    after = device.memory_usage()
    assert after.weights == before.weights > 0
    assert after.internal == 2 * before.internal > 0
    (second,), (other, _) = calls.bind_all(twin[0])
    calls.bytes(given)[:] = 11
    calls.bytes(second)[:] = 11
    calls.ok(library.vip_run_network(network))
    expected = calls.bytes(scores).tobytes()
    calls.ok(library.vip_destroy_network(network))
    calls.ok(library.vip_run_network(twin[0]))  # the weights stay as long as somebody uses them
    assert calls.bytes(other).tobytes() == expected
    assert device.memory_usage().weights == before.weights
    calls.ok(library.vip_finish_network(twin[0]))
    assert device.memory_usage().weights == 0


def test_a_weak_duplicate_shares_internal_memory_too(calls: Calls) -> None:
    network, *_ = calls.ready()
    usage = calls.library.device_for(chips.get("t527")).memory_usage()
    twin = ffi.new("vip_network *")
    calls.ok(calls.library.vip_weak_dup_network(network, twin))
    calls.ok(calls.library.vip_prepare_network(twin[0]))
    after = calls.library.device_for(chips.get("t527")).memory_usage()
    assert (after.weights, after.internal) == (usage.weights, usage.internal)
    calls.bind_all(twin[0])
    calls.ok(calls.library.vip_run_network(twin[0]))


def test_a_duplicate_by_its_file_must_be_the_same_network(calls: Calls, tmp_path: Path) -> None:
    network = calls.create(small_file())
    twin = ffi.new("vip_network *")
    path = tmp_path / "other.nb"
    path.write_bytes(small_file("t527", "w8a8", 7))
    same, other = ffi.from_buffer(small_file()), ffi.new("char[]", os.fsencode(path))
    calls.ok(calls.library.vip_dup_network(same, len(small_file()), 0x202, network, twin))
    assert calls.library.vip_dup_network(other, 0, 0x102, network, twin) == -7
    assert twin[0] == ffi.NULL
    assert calls.library.vip_dup_network(other, 0, 0x302, network, twin) == -3
    assert calls.library.vip_dup_network(ffi.NULL, 0, 0x1000, network, twin) == -3


def test_properties_that_come_before_prepare(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls("a733")
    library = calls.library
    network = calls.create(small_file("a733"))
    zero, minus, one = ffi.new("uint32_t *", 0), ffi.new("int32_t *", -1), ffi.new("int32_t *", 1)
    calls.ok(library.vip_set_network(network, 66, zero))
    calls.ok(library.vip_set_network(network, 70, minus))
    calls.ok(library.vip_set_network(network, 72, one))
    assert library.vip_set_network(network, 66, one) == -3
    assert library.vip_set_network(network, 70, one) == -3
    assert library.vip_set_network(network, 73, one) == -4
    assert library.vip_set_network(network, 64, one) == -4
    assert library.vip_set_network(network, 67, ffi.NULL) == -3
    calls.ok(library.vip_prepare_network(network))
    assert library.vip_set_network(network, 66, zero) == -3
    calls.ok(library.vip_set_network(network, 67, ffi.new("uint8_t *", 9)))  # when it runs next


@pytest.mark.parametrize("by_pointer", [False, True])
def test_memory_pool_and_coefficients_of_the_caller(calls: Calls, by_pointer: bool) -> None:
    library = calls.library
    network = calls.create(small_file())
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [calls.number(network, 6)], "data_format": 2})
    pool = calls.buffer(params)
    params.sizes[0] = 1 << 16
    weights = calls.buffer(params)
    for property, buffer in ((65, pool), (69, weights)):
        calls.ok(library.vip_set_network(network, property, ffi.new("vip_buffer *", buffer) if by_pointer else buffer))
    calls.ok(library.vip_prepare_network(network))
    usage = library.device_for(chips.get("t527")).memory_usage()
    assert (usage.weights, usage.internal) == (0, 0)
    (given,), (scores, _) = calls.bind_all(network)
    calls.bytes(given)[:] = 200
    calls.ok(library.vip_run_network(network))
    assert calls.bytes(pool).any()
    assert calls.bytes(weights).any()
    other, (second,), (expected, _) = calls.ready()
    calls.bytes(second)[:] = 200
    calls.ok(library.vip_run_network(other))
    assert calls.bytes(scores).tobytes() == calls.bytes(expected).tobytes()


def test_a_pool_that_is_too_small_or_gone_is_refused(calls: Calls) -> None:
    network = calls.create(small_file())
    small = calls.buffer(ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [16], "data_format": 2}))
    calls.ok(calls.library.vip_set_network(network, 65, small))
    assert calls.library.vip_prepare_network(network) == -3
    calls.ok(calls.library.vip_destroy_buffer(small))
    assert calls.library.vip_prepare_network(network) == -3
    assert calls.library.vip_set_network(network, 65, small) == -3  # a stale handle is not followed


def test_cancel_without_a_job_is_harmless(calls: Calls) -> None:
    network, *_ = calls.ready()
    calls.ok(calls.library.vip_cancel_network(network))
    calls.ok(calls.library.vip_run_network(network))


def test_parameters_of_the_shader_unit(calls: Calls) -> None:
    network, *_ = calls.ready()
    assert calls.library.vip_set_ppu_param(network, ffi.NULL, 0) == -3
    assert calls.library.vip_set_ppu_param(network, ffi.new("vip_ppu_param_t *"), 0) == -4


def test_the_log(calls: Calls, tmp_path: Path) -> None:
    library = calls.library
    calls.ok(library.vip_set_log_path(ffi.new("char[]", os.fsencode(tmp_path))))
    assert library.vip_prepare_network(ffi.NULL) == -7
    assert "vip_prepare_network: there is no network 0x0 (VIP_ERROR_INVALID_NETWORK, -7)" in (tmp_path / LOG_FILE).read_text()
    assert library.vip_set_log_path(ffi.NULL) == -3
    assert library.vip_set_log_path(ffi.new("char[]", b"/no/such/folder")) == -2


def test_a_library_without_a_chip_follows_its_models(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls(None)
    for chip in CHIPS.values():
        network, (given,), (scores, _) = calls.ready(small_file(chip))
        calls.bytes(given)[:] = 5
        calls.ok(calls.library.vip_run_network(network))
        assert calls.bytes(scores).any()


def test_chips_with_the_same_npu_take_the_same_files(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls("mr527")
    network, *_ = calls.ready(small_file("t527"))
    calls.ok(calls.library.vip_run_network(network))


@pytest.mark.parametrize(
    "call", ["vip_dup_network", "vip_weak_dup_network", "vip_cancel_network", "vip_create_buffer_cache", "vip_set_log_path"]
)
def test_v85x_lacks_calls(open_calls: Callable[..., Calls], call: str) -> None:
    calls = open_calls("v853")
    out = ffi.new("void **", ffi.cast("void *", 1))
    count = len(ffi.typeof(f"{call}_fn").args)
    assert getattr(calls.library, call)(*[out] * count) == -4
    assert f"does not have {call}" in calls.why(-4)


def test_v85x_has_a_heap(open_calls: Callable[..., Calls]) -> None:
    data = small_file("v853")
    small = open_calls("v853", memory=1024)
    network = small.create(data)
    assert small.library.vip_prepare_network(network) == -6
    assert "1024 bytes" in small.why(-6)
    large = open_calls("v853", memory=1 << 20)
    network, *_ = large.ready(data)
    large.ok(large.library.vip_run_network(network))
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [1 << 20], "data_format": 2})
    buffer = ffi.new("vip_buffer *")
    assert large.library.vip_create_buffer(params, 48, buffer) == -6
    assert buffer[0] == ffi.NULL


def test_later_generations_ignore_what_v85x_passes_to_init(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls("a733", memory=0xDEAD)
    network, *_ = calls.ready(small_file("a733"))
    calls.ok(calls.library.vip_run_network(network))


def test_power(calls: Calls) -> None:
    library = calls.library
    network, *_ = calls.ready()
    device = ffi.cast("void *", 0)
    for off, on, status in ((2, 4, -12), (8, 16, -13)):
        calls.ok(library.vip_power_management(device, off, ffi.NULL))
        assert library.vip_run_network(network) == status
        assert library.vip_trigger_network(network) == status
        calls.ok(library.vip_power_management(device, on, ffi.NULL))
        calls.ok(library.vip_run_network(network))
    assert library.vip_power_management(ffi.cast("void *", 1), 2, ffi.NULL) == -3
    assert library.vip_power_management(device, 3, ffi.NULL) == -4


def test_the_frequency_changes_the_time_and_not_the_cycles(calls: Calls) -> None:
    library = calls.library
    network, *_ = calls.ready()
    calls.ok(library.vip_run_network(network))
    full = calls.query(library.vip_query_network, network, 7, kind="vip_inference_profile_t *")
    calls.ok(library.vip_power_management(ffi.NULL, 1, ffi.new("vip_power_frequency_t *", {"fscale_percent": 50})))
    calls.ok(library.vip_run_network(network))
    half = calls.query(library.vip_query_network, network, 7, kind="vip_inference_profile_t *")
    assert half.inference_time == pytest.approx(2 * full.inference_time, abs=2)
    assert half.total_cycle == full.total_cycle
    assert library.vip_power_management(ffi.NULL, 1, ffi.NULL) == -3
    assert library.vip_power_management(ffi.NULL, 1, ffi.new("vip_power_frequency_t *", {"fscale_percent": 0})) == -3


def test_power_of_v85x_is_by_network(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls("v853")
    network, *_ = calls.ready(small_file("v853"))
    assert calls.library.vip_power_management(ffi.NULL, 2, ffi.NULL) == -7
    calls.ok(calls.library.vip_power_management(ffi.cast("void *", network), 2, ffi.NULL))
    assert calls.library.vip_run_network(network) == -12


def test_groups(calls: Calls) -> None:
    library = calls.library
    first, (one,), (scores_one, _) = calls.ready()
    second, (two,), (scores_two, _) = calls.ready(small_file("t527", "i8"))
    calls.bytes(one)[:] = 40
    calls.bytes(two)[:] = 90
    for network in (first, second):
        calls.ok(library.vip_run_network(network))
    expected = [calls.bytes(buffer).tobytes() for buffer in (scores_one, scores_two)]
    group = ffi.new("vip_group *")
    calls.ok(library.vip_create_group(2, group))
    for network in (first, second):
        calls.ok(library.vip_add_network(group[0], network))
    assert library.vip_add_network(group[0], second) == -3  # it is in already
    third = calls.create(small_file())
    assert library.vip_add_network(group[0], third) == -5
    for run in (
        lambda: library.vip_run_group(group[0], 2),
        lambda: library.vip_trigger_group(group[0], 2) or library.vip_wait_group(group[0]),
    ):
        for buffer in (scores_one, scores_two):
            calls.bytes(buffer)[:] = 0
        calls.ok(run())
        assert [calls.bytes(buffer).tobytes() for buffer in (scores_one, scores_two)] == expected
    whole = calls.query(library.vip_query_group, group[0], 0, kind="vip_inference_profile_t *")
    parts = [calls.query(library.vip_query_network, entry, 7, kind="vip_inference_profile_t *") for entry in (first, second)]
    assert whole.total_cycle == sum(part.total_cycle for part in parts)
    calls.bytes(scores_two)[:] = 1
    calls.ok(library.vip_run_group(group[0], 1))
    assert (calls.bytes(scores_two) == 1).all()
    assert library.vip_run_group(group[0], 0) == library.vip_run_group(group[0], 3) == -3
    calls.ok(library.vip_set_group(group[0], 64, ffi.new("uint32_t *", 0)))
    calls.ok(library.vip_set_group(group[0], 68, ffi.new("uint32_t *", 5000)))
    assert library.vip_set_group(group[0], 65, ffi.new("int32_t *", 0)) == -4  # from 2.0 on
    assert library.vip_query_group(group[0], 1, ffi.new("uint32_t *")) == -4
    calls.ok(library.vip_destroy_group(group[0]))
    assert library.vip_run_group(group[0], 1) == -3
    calls.ok(library.vip_run_network(first))
    assert library.vip_create_group(0, group) == -3


def test_a_group_with_a_network_that_is_gone_is_refused(calls: Calls) -> None:
    network, *_ = calls.ready()
    group = ffi.new("vip_group *")
    calls.ok(calls.library.vip_create_group(1, group))
    calls.ok(calls.library.vip_add_network(group[0], network))
    calls.ok(calls.library.vip_destroy_network(network))
    assert calls.library.vip_run_group(group[0], 1) == -7


def test_buffers_from_everywhere_give_the_same_bytes(calls: Calls) -> None:
    library = calls.library
    network, (given,), (scores, _) = calls.ready()
    pattern = np.random.default_rng(1).integers(0, 256, 576, np.uint8)
    calls.bytes(given)[:] = pattern
    calls.ok(library.vip_run_network(network))
    expected = calls.bytes(scores).tobytes()
    params = calls.params(network, 0, is_input=True)
    out = ffi.new("vip_buffer *")
    memory = np.zeros(576 + 64, np.uint8)
    aligned = memory[-memory.ctypes.data % 64 :][:576]
    fd = os.memfd_create("picture")
    os.ftruncate(fd, 576)
    mapped = mmap.mmap(fd, 576)
    found = library.handles.find(int(ffi.cast("uintptr_t", given)), object)
    physical = found.physical_address  # type: ignore[attr-defined]
    makers: dict[str, Callable[[], int]] = {
        "cached": lambda: library.vip_create_buffer_cache(params, 0, out),
        "handle": lambda: library.vip_create_buffer_from_handle(params, ffi.cast("void *", aligned.ctypes.data), 576, out),
        "fd": lambda: library.vip_create_buffer_from_fd(params, fd, 576, out),
        "physical": lambda: library.vip_create_buffer_from_physical(
            params, ffi.new("vip_address_t[]", [physical]), ffi.new("uint32_t[]", [576]), 1, out
        ),
        "pieces": lambda: library.vip_create_buffer_from_physical(
            params, ffi.new("vip_address_t[]", [physical + 320, physical]), ffi.new("uint32_t[]", [256, 320]), 2, out
        ),
    }
    for name, make in makers.items():
        calls.ok(make())
        assert library.vip_get_buffer_size(out[0]) == 576
        if name == "handle":
            aligned[:] = pattern
        elif name == "fd":
            mapped[:] = pattern.tobytes()
        elif name == "pieces":
            calls.bytes(given)[320:] = pattern[:256]
            calls.bytes(given)[:320] = pattern[256:]
            calls.ok(library.vip_flush_buffer(out[0], 2))
        elif name == "cached":
            calls.bytes(out[0])[:] = pattern
        calls.ok(library.vip_set_input(network, 0, out[0]))
        calls.bytes(scores)[:] = 0
        calls.ok(library.vip_run_network(network))
        assert calls.bytes(scores).tobytes() == expected, name
        if name != "physical":
            assert calls.bytes(out[0]).tobytes() == pattern.tobytes(), name
        calls.ok(library.vip_destroy_buffer(out[0]))
    os.close(fd)


def test_an_output_in_pieces_is_taken_apart(calls: Calls) -> None:
    network, (given,), (_, features) = calls.ready()
    library = calls.library
    calls.bytes(given)[:] = np.arange(576) % 251
    calls.ok(library.vip_run_network(network))
    expected = calls.bytes(features).copy()
    found = library.handles.find(int(ffi.cast("uintptr_t", features)), object)
    physical = found.physical_address  # type: ignore[attr-defined]
    out = ffi.new("vip_buffer *")
    tables = ffi.new("vip_address_t[]", [physical + 256, physical]), ffi.new("uint32_t[]", [128, 256])
    calls.ok(library.vip_create_buffer_from_physical(calls.params(network, 1, is_input=False), *tables, 2, out))
    calls.ok(library.vip_set_output(network, 1, out[0]))
    calls.ok(library.vip_run_network(network))
    np.testing.assert_array_equal(calls.bytes(features), np.concatenate([expected[128:], expected[:128]]))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"num_of_dims": 0}, -3),
        ({"num_of_dims": 7}, -3),
        ({"sizes": [4, 0]}, -3),
        ({"data_format": 17}, -3),
        ({"data_format": 16}, -3),  # BOOL8 is of 2.0
        ({"data_format": -1}, -3),
        ({"quant_format": 3}, -3),
        ({"memory_type": 4}, -3),
        ({"memory_type": 2}, -4),
        ({"sizes": [1 << 31, 4]}, -6),
    ],
)
def test_buffers_that_cannot_be(calls: Calls, changes: dict[str, Any], status: int) -> None:
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 2, "sizes": [4, 4], "data_format": 2, **changes})
    out = ffi.new("vip_buffer *", ffi.cast("vip_buffer", 1))
    assert calls.library.vip_create_buffer(params, 48, out) == status
    assert out[0] == ffi.NULL


def test_other_ways_to_ask_for_a_buffer_in_vain(calls: Calls) -> None:
    library = calls.library
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [100], "data_format": 2})
    out = ffi.new("vip_buffer *")
    aligned = ffi.cast("void *", 0x10000)
    assert library.vip_create_buffer(ffi.NULL, 48, out) == -3
    assert library.vip_create_buffer(params, 47, out) == -3
    assert library.vip_create_buffer(params, 48, ffi.NULL) == -3
    assert library.vip_create_buffer_from_handle(params, ffi.cast("void *", 0x10008), 128, out) == -3
    assert library.vip_create_buffer_from_handle(params, aligned, 100, out) == -3
    assert library.vip_create_buffer_from_handle(params, aligned, 64, out) == -3
    assert library.vip_create_buffer_from_handle(params, ffi.NULL, 128, out) == -3
    assert library.vip_create_buffer_from_fd(params, 9999, 128, out) == -2
    assert library.vip_create_buffer_from_fd(params, 0, 100, out) == -3
    addresses, sizes = ffi.new("vip_address_t[]", [0x40]), ffi.new("uint32_t[]", [128])
    assert library.vip_create_buffer_from_physical(params, addresses, sizes, 1, out) == -3
    assert "no memory of this library" in calls.why(-3)
    assert library.vip_create_buffer_from_physical(params, addresses, sizes, 0, out) == -3
    addresses[0] = 0x48
    assert library.vip_create_buffer_from_physical(params, addresses, sizes, 1, out) == -3
    assert library.vip_create_buffer_from_physical(params, ffi.NULL, sizes, 1, out) == -3


def test_rows_of_four_bits_begin_with_a_byte(calls: Calls) -> None:
    params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 2, "sizes": [5, 3], "data_format": 13})
    assert calls.library.vip_get_buffer_size(calls.buffer(params)) == 9


def test_null_and_stale_handles_of_buffers(calls: Calls) -> None:
    library = calls.library
    assert library.vip_map_buffer(ffi.NULL) == ffi.NULL
    assert library.vip_get_buffer_size(ffi.NULL) == 0
    assert library.vip_unmap_buffer(ffi.NULL) == 0
    assert library.vip_flush_buffer(ffi.NULL, 1) == -11
    network, (given,), _ = calls.ready()
    assert library.vip_flush_buffer(given, 0) == library.vip_flush_buffer(given, 3) == -11
    calls.ok(library.vip_destroy_buffer(given))
    assert library.vip_destroy_buffer(given) == -3
    assert library.vip_map_buffer(given) == ffi.NULL
    assert library.vip_flush_buffer(given, 1) == -11
    assert library.vip_run_network(network) == -8
    assert "was destroyed" in calls.why(-8)
    assert library.vip_set_input(network, 0, given) == -3
    assert library.vip_set_input(network, 0, ffi.cast("vip_buffer", network)) == -3
    assert library.vip_prepare_network(ffi.cast("vip_network", given)) == -7


def test_a_buffer_that_is_too_small_is_refused(calls: Calls) -> None:
    network, *_ = calls.ready()
    small = calls.buffer(ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [575], "data_format": 2}))
    assert calls.library.vip_set_input(network, 0, small) == -3
    assert "575" in calls.why(-3)
    assert calls.library.vip_set_input(network, 1, small) == -3


def test_destroying_a_network_in_another_thread_stops_its_run(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls(realtime=1e-6)  # a run of ten microseconds takes ten seconds
    network, *_ = calls.ready()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(calls.library.vip_run_network(network)))
    thread.start()
    device = calls.library.device_for(chips.get("t527"))
    while not device.scheduler.busy and thread.is_alive():
        pass
    calls.ok(calls.library.vip_destroy_network(network))
    thread.join(120)
    assert statuses == [-15]


def test_shapes_are_as_the_model_has_them() -> None:
    assert small_model().inputs[0].shape == SHAPE
