"""The timing model: which bound rules what, and what changes it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import anynpu
from anynpu import chips
from anynpu.chips.timing import Bound, fps, predict, predict_matmul
from anynpu.chips.timing.parameters import TimingParameters, TimingProfile, timing_profile
from anynpu.errors import DeviceError
from anynpu.program import Placement

from .nets import Chain, one_conv

RK3588 = chips.get("rk3588")


def test_a_large_convolution_is_bound_by_the_mac_array() -> None:
    prediction = one_conv(128, 128, 80).predict()
    (layer,) = prediction.layers
    assert layer.bound is Bound.COMPUTE
    assert layer.mac_share == pytest.approx(0.86, abs=0.03)
    assert prediction.latency_us == layer.time_us


def test_cycles_are_those_of_the_vendors_tables() -> None:
    """3x3 64->64 logs 1024 MACs a cycle; 32->32 at 480x480 logs the 8 bytes a cycle of its result."""
    (dense,) = one_conv(64, 64, 40).predict().layers
    assert dense.npu_cycles == 40 * 40 * 64 * 64 * 9 // 1024
    (wide,) = one_conv(32, 32, 480, 1, "Silu").predict().layers
    assert wide.npu_cycles == 921_600
    assert wide.time_us == pytest.approx(4204, rel=0.05)
    assert wide.total_cycles == max(wide.npu_cycles, wide.ddr_cycles)


def test_a_look_up_activation_costs_more_than_relu() -> None:
    relu, silu = (one_conv(32, 32, 160, 1, kind).predict() for kind in ("Relu", "Silu"))
    assert silu.layers[0].bound is Bound.LOOKUP
    assert relu.layers[0].bound is Bound.MEMORY
    assert silu.latency_us > 2 * relu.latency_us


def test_channels_are_padded_to_the_array() -> None:
    narrow, wide = (one_conv(128, count, 40).predict().layers[0] for count in (33, 64))
    assert narrow.npu_cycles == wide.npu_cycles
    assert narrow.mac_share < wide.mac_share


def test_a_depthwise_convolution_uses_a_sixteenth_of_the_macs() -> None:
    (layer,) = one_conv(64, 64, 40, 5, groups=64).predict().layers
    assert layer.npu_cycles == 40 * 40 * 64 * 25 // 64


def test_a_tiny_layer_takes_the_floor() -> None:
    (layer,) = one_conv(16, 16, 4).predict().layers
    assert layer.bound is Bound.FLOOR
    assert layer.time_us == pytest.approx(timing_profile(RK3588).parameters.floor_ns / 1000)


def test_weights_that_do_not_fit_the_buffer_are_read_with_the_input_again() -> None:
    small, large = (one_conv(channels, channels, 80, 1).predict().layers[0] for channels in (128, 1024))
    assert small.read_bytes == 80 * 80 * 128 + 128 * 128
    assert large.read_bytes > 80 * 80 * 1024 + 1024 * 1024


def test_a_split_between_channel_blocks_is_an_address() -> None:
    times = {}
    for half in (32, 24):
        chain = Chain(1, 64, 80, 80)
        chain.conv(2 * half, 1)
        chain.op("Split", chain.constant(np.array([half, half])), outputs=2, axis=1)
        program = chain.program("rk3588", "w8a8", "t1_0", "t1_1")
        times[half] = predict(program, RK3588).layers[1]
    assert times[32].bound is Bound.NONE
    assert times[32].time_us == 0
    assert times[24].bound is Bound.MEMORY


def test_softmax_is_slow_on_the_npu_and_slower_on_the_cpu() -> None:
    chain = Chain(1, 64, 40, 40)
    chain.conv(64, 1)
    chain.op("Softmax", axis=1)
    on_npu, on_cpu = chain.predict("rk3562"), chain.predict("rk3566")
    assert on_npu.cpu_share == 0
    (softmax,) = (layer for layer in on_npu.layers if layer.does == "Softmax")
    assert softmax.bound is Bound.OPERATOR
    assert on_cpu.cpu_share > 0.5
    assert on_cpu.confidence.level == "extrapolated"
    assert "Softmax on the CPU" in str(on_cpu.confidence)


def test_a_chain_of_functions_is_a_second_pass() -> None:
    plain, chained = Chain(1, 32, 120, 120), Chain(1, 32, 120, 120)
    plain.conv(32, 1, activation="Sigmoid")
    chained.conv(32, 1, activation="Sigmoid")
    chained.op("Mul", chained.constant(np.float32(0.7)))
    chained.op("Add", chained.constant(np.float32(0.2)))
    assert len(chained.program().layers) == len(plain.program().layers) == 1
    assert chained.predict().latency_us > plain.predict().latency_us


def test_a_written_out_layer_normalisation_counts_once() -> None:
    chain = Chain(1, 20, 512)
    mean = chain.op("ReduceMean", axes=[2])
    chain.last = "x"
    centred = chain.op("Sub", mean)
    chain.op("Pow", chain.constant(np.float32(2)))
    chain.op("ReduceMean", axes=[2])
    chain.op("Add", chain.constant(np.float32(1e-5)))
    deviation = chain.op("Sqrt")
    chain.last = centred
    chain.op("Div", deviation)
    prediction = chain.predict(dtype="fp16")
    assert len(prediction.layers) == 7
    assert [layer.time_us > 0 for layer in prediction.layers] == [True] + [False] * 6


def test_an_image_that_is_read_as_rows_changes_its_layout() -> None:
    plain, flat = (one_conv(32, 8, 40, 1) for _ in range(2))
    flat.op("Transpose", perm=[0, 2, 3, 1])
    flat.op("Reshape", flat.constant(np.array([1, 3200, 4])))
    flat.op("Sigmoid")
    plain.op("Sigmoid")
    assert flat.predict().layers[0].time_us > plain.predict().layers[0].time_us


def test_float16_is_slower_than_int8_and_less_sure() -> None:
    chain = one_conv(128, 128, 80)
    int8, float16 = chain.predict(), chain.predict(dtype="fp16")
    assert float16.dtype == "float16"
    assert float16.latency_us == pytest.approx(2 * int8.latency_us, rel=0.05)
    assert int8.confidence.level == float16.confidence.level == "calibrated"
    assert int8.confidence.error is not None
    assert float16.confidence.error is not None
    assert float16.confidence.error > int8.confidence.error
    assert float16.confidence.spread > int8.confidence.spread > 0


def test_depthwise_float_layers_are_recognised_by_their_macs() -> None:
    (layer,) = one_conv(64, 64, 40, 3, groups=64).predict(dtype="fp16").layers
    assert layer.npu_cycles == 40 * 40 * 64 * 9 * 16 // 512


def test_int16_reads_and_writes_twice_as_much() -> None:
    chain = one_conv(64, 64, 40, 1)
    int8, int16 = (chain.predict("rv1106", dtype).layers[0] for dtype in ("w8a8", "w16a16"))
    assert int16.written_bytes == 2 * int8.written_bytes


@pytest.mark.parametrize("chip", chips.names())
def test_every_chip_has_a_prediction(chip: str) -> None:
    prediction = one_conv(32, 64, 80, activation="Silu").predict(chip)
    assert prediction.latency_us > 0
    assert prediction.confidence.level == (
        "calibrated"
        if chip in ("rk3588", "rk3576", "rk3566", "rk3562")
        else "extrapolated"
        if chip == "rk3568"
        else "uncalibrated"
    )


def test_only_some_activations_share_a_layer_among_cores() -> None:
    relu, silu = one_conv(256, 256, 80, 3, "Relu"), one_conv(256, 256, 80, 3, "Silu")
    one, three = relu.predict(), relu.predict(cores=3)
    assert three.latency_us < 0.5 * one.latency_us
    assert three.layers[0].core_shares == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert three.confidence.level == "extrapolated"
    alone = silu.predict(cores=3)
    assert alone.layers[0].core_shares == (1.0, 0.0, 0.0)
    assert alone.latency_us == silu.predict().latency_us
    assert silu.predict("rk3576", cores=2).layers[0].core_shares == (0.5, 0.5)


def test_busy_cores_share_the_memory() -> None:
    compute, memory = one_conv(256, 256, 80).predict(), one_conv(32, 32, 320, 1).predict()
    assert fps(compute) == pytest.approx(3 * fps(compute, 1))
    assert fps(memory) == pytest.approx(2 * fps(memory, 1))
    assert fps(memory, 2) == pytest.approx(1.6 * fps(memory, 1))
    assert fps(memory, 1) == pytest.approx(1e6 / memory.latency_us)


def test_a_batch_is_shared_among_cores() -> None:
    prediction = one_conv(256, 256, 80).predict()
    assert prediction.batch_us(6, 3) == pytest.approx(prediction.latency_us / 3)
    assert prediction.batch_us(4, 3) == pytest.approx(prediction.latency_us / 2)
    assert prediction.batch_us(1, 3) == prediction.latency_us


def test_sram_takes_traffic_off_the_memory() -> None:
    chain = one_conv(32, 32, 80, 1)
    without, within = chain.predict(), chain.predict(sram_bytes=RK3588.sram_bytes)
    assert within.latency_us < without.latency_us
    assert within.confidence.level == "extrapolated"


@pytest.mark.parametrize("cores", [0, 4])
def test_wrong_cores_are_refused(cores: int) -> None:
    with pytest.raises(DeviceError, match="rk3588 has 3 cores"):
        one_conv(16, 16, 8).predict(cores=cores)


def test_a_board_stretches_and_shifts_the_chip() -> None:
    chain = one_conv(64, 64, 80)
    numbers = timing_profile(RK3588).parameters
    board = TimingProfile("rk3588", TimingParameters(**{**vars(numbers), "scale": 1.3, "offset_ns": 2e6}), True, "a desk")
    plain, there = chain.predict(), chain.predict(profile=board)
    assert there.latency_us == pytest.approx(1.3 * plain.latency_us + 2000)
    assert there.overhead_us == 2000
    hasty = TimingProfile("rk3588", TimingParameters(**{**vars(numbers), "offset_ns": -1e9}), True, "a desk")
    assert chain.predict(profile=hasty).latency_us == pytest.approx(0.5 * plain.latency_us)


def test_a_compiled_program_takes_as_long_as_its_outline() -> None:
    chain = Chain(1, 3, 64, 64)
    chain.conv(32, stride=2, activation="Silu")
    before = chain.last
    chain.conv(32, activation="Relu")
    chain.op("Add", before)
    chain.op("GlobalAveragePool")
    data = np.random.default_rng(0).random((2, 1, 3, 64, 64), np.float32)
    model = anynpu.compile(chain.proto(), "rk3588", dataset=list(data))
    compiled, outline = predict(model.programs[0], RK3588), chain.predict()
    assert [layer.kind for layer in compiled.layers] == [layer.kind for layer in outline.layers]
    assert compiled.latency_us == pytest.approx(outline.latency_us)
    assert compiled.memory_bytes == pytest.approx(outline.memory_bytes, rel=0.02)
    half = anynpu.compile(chain.proto(), "rk3588", dtype="fp16")
    assert predict(half.programs[0], RK3588).latency_us == pytest.approx(chain.predict(dtype="fp16").latency_us)


def test_stripped_weights_change_nothing() -> None:
    chain = Chain(1, 3, 64, 64)
    chain.conv(32, stride=2, activation="Silu")
    chain.conv(64, 1, activation="Relu")
    complete = predict(chain.program(), RK3588)
    stripped = predict(chain.program(stripped=True), RK3588)
    assert [layer.time_us for layer in complete.layers] == [layer.time_us for layer in stripped.layers]
    assert complete.memory_bytes == stripped.memory_bytes


def test_a_program_that_only_renames_takes_a_floor() -> None:
    chain = Chain(1, 4, 8, 8)
    chain.op("Reshape", chain.constant(np.array([1, 256])))
    prediction = chain.predict(dtype="fp16")
    assert prediction.latency_us == pytest.approx(timing_profile(RK3588).parameters.floor_ns / 1000)
    assert prediction.confidence.level == "extrapolated"
    assert fps(prediction) > 0


def test_totals_are_sums_of_layers() -> None:
    chain = Chain(1, 3, 128, 128)
    for channels in (16, 32, 64):
        chain.conv(channels, stride=2, activation="Silu")
    prediction = chain.predict()
    assert prediction.latency_us == pytest.approx(sum(layer.time_us for layer in prediction.layers))
    assert sum(prediction.by_bound().values()) == pytest.approx(prediction.latency_us)
    assert prediction.read_bytes == sum(layer.read_bytes for layer in prediction.layers)
    assert prediction.npu_cycles == sum(layer.npu_cycles for layer in prediction.layers)
    assert 0 < prediction.mac_share < 1


def test_matmul_calls() -> None:
    int8 = predict_matmul(RK3588, 512, 4096, 4096)
    half = predict_matmul(RK3588, 512, 4096, 4096, dtype="float16")
    assert half.npu_cycles == 2 * int8.npu_cycles
    assert half.time_us > int8.time_us
    vector = predict_matmul(RK3588, 1, 4096, 4096)
    assert vector.bound is Bound.MEMORY
    narrow = predict_matmul(RK3588, 1, 4096, 4096, dtype="float16", weight_type="int4")
    assert narrow.time_us < predict_matmul(RK3588, 1, 4096, 4096, dtype="float16").time_us / 3
    assert predict_matmul(RK3588, 512, 4096, 4096, cores=3).time_us < int8.time_us
    with pytest.raises(DeviceError, match="no matmul of bool"):
        predict_matmul(RK3588, 1, 1, 1, dtype="bool")


def test_cpu_layers_of_the_program_are_those_of_the_prediction() -> None:
    chain = Chain(1, 8, 40, 40)
    chain.conv(8, 1)
    chain.op("Softmax", axis=2)
    program = chain.program("rk3588")
    on_cpu = {layer.name for layer in program.layers_on(Placement.CPU)}
    predicted = {layer.name for layer in predict(program, RK3588).layers if layer.bound is Bound.CPU}
    assert on_cpu == predicted != set()


def test_what_tables_print_has_no_part_in_a_prediction() -> None:
    chain = Chain(1, 16, 20, 20)
    chain.conv(32, activation="Silu")
    chain.op("Softmax", axis=3)
    chain.conv(32, activation="Relu")
    for dtype in ("w8a8", "fp16"):
        program = chain.program(dtype=dtype)
        unlabelled = replace(program, layers=tuple(replace(layer, kind="?") for layer in program.layers))
        wanted, given = predict(program, RK3588, cores=2), predict(unlabelled, RK3588, cores=2)
        assert [replace(layer, kind="?") for layer in wanted.layers] == list(given.layers)


def test_a_tensor_that_is_repeated_on_the_cpu_costs_no_exponential() -> None:
    """Expand has Exp in its name, and nothing else of it."""
    chain = Chain(1, 8, 20, 1)
    chain.op("Expand", chain.constant(np.array([1, 8, 20, 20])))
    (expanded,) = chain.program(dtype="fp16").layers
    exponential = replace(expanded, operator="Exp")
    layers = [replace(layer, placement=Placement.CPU) for layer in (expanded, exponential)]
    program = chain.program(dtype="fp16")
    first, second = (predict(replace(program, layers=(layer,)), RK3588).latency_us for layer in layers)
    assert second > 2 * first


def test_the_sum_of_scores_is_a_reduction_however_it_is_compiled() -> None:
    """Detectors sum their scores and clip the sum; a convolution with ones computes it, but the chip reduces."""
    chain = Chain(1, 32, 80, 80)
    chain.conv(80, 1, activation="Sigmoid")
    before = chain.predict().latency_us
    chain.op("ReduceSum", chain.constant(np.array([1])), keepdims=1)
    chain.op("Clip", chain.constant(np.float32(0)), chain.constant(np.float32(1)))
    numbers = timing_profile(RK3588).parameters
    summed = chain.predict().latency_us - before
    assert summed == pytest.approx((80 * 6400 * numbers.slow_ns + 2 * numbers.floor_ns) / 1000, rel=0.05)
