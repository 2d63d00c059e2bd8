"""Float16: attention as one layer, normalizations, what follows a product, and layers on the CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anynpu import chips
from anynpu.chips.timing import Bound, predict
from anynpu.chips.timing.layers import BlockKind, find_blocks, splits_blocks
from anynpu.chips.timing.model import cpu_costs
from anynpu.chips.timing.parameters import timing_profile
from anynpu.program import Placement

from .nets import Chain, one_conv
from .transformers import attention, block, dense

RK3588 = chips.get("rk3588")


def kinds(chain: Chain, chip: str = "rk3588") -> list[str]:
    found = find_blocks(chain.program(chip, "fp16"))
    return sorted(entry.kind.value for entry in set(found.values()))


def attention_of(chain: Chain) -> str:
    """The layer that has the work of the only attention."""
    program = chain.program(dtype="fp16")
    (entry,) = {one for one in find_blocks(program).values() if one.kind is BlockKind.ATTENTION}
    return program.layers[entry.first].name


@pytest.mark.parametrize("mask", [False, True])
def test_a_transformer_block_is_a_handful_of_layers(mask: bool) -> None:
    chain = block(64, mask=mask)
    assert kinds(chain).count("attention") == 1
    assert kinds(chain).count("normalisation") == 2
    prediction = chain.predict(dtype="fp16")
    busy = [layer for layer in prediction.layers if layer.time_us]
    assert len(prediction.layers) > 30
    assert len(busy) < 14
    (attending,) = (layer for layer in busy if layer.name == attention_of(chain))
    assert attending.bound is Bound.OPERATOR


def test_attention_knows_its_heads_and_extents() -> None:
    found = find_blocks(block(24, 4, 16).program(dtype="fp16"))
    (entry,) = {one for one in found.values() if one.kind is BlockKind.ATTENTION}
    assert (entry.heads, entry.rows, entry.columns, entry.depth) == (4, 24, 24, 16)
    assert entry.moved == 4 * 24 * 64


def test_a_softmax_alone_is_no_attention() -> None:
    chain = one_conv(32, 32, 20)
    chain.op("Softmax", axis=1)
    assert "attention" not in kinds(chain)
    assert chain.predict(dtype="fp16").layers[-1].bound in (Bound.OPERATOR, Bound.FLOOR)


def test_attention_runs_on_the_cpu_where_the_npu_has_none() -> None:
    chain = Chain(1, 64, 64)
    attention(chain, 64, 4, 16)
    on_npu, on_cpu = chain.predict("rk3562", "fp16"), chain.predict("rk3566", "fp16")
    assert on_npu.cpu_share == 0
    assert on_cpu.cpu_share > 0.5


def test_long_sequences_leave_the_buffer() -> None:
    def per_score(tokens: int) -> float:
        chain = Chain(1, tokens, 64)
        attention(chain, tokens, 1, 64)
        (layer,) = (layer for layer in chain.predict(dtype="fp16").layers if layer.name == attention_of(chain))
        return layer.time_us / tokens**2

    assert per_score(1024) > 2 * per_score(400)


def test_a_residual_and_an_activation_belong_to_their_product() -> None:
    plain, followed = Chain(1, 50, 256), Chain(1, 50, 256)
    dense(plain, 256)
    dense(followed, 256)
    followed.op("Add", "x")
    assert kinds(followed) == ["product"]
    busy = [layer for layer in followed.predict(dtype="fp16").layers if layer.time_us]
    assert len(busy) == 1
    assert busy[0].read_bytes > sum(layer.read_bytes for layer in plain.predict(dtype="fp16").layers)


def test_a_result_that_two_layers_read_is_fused_to_none() -> None:
    chain = Chain(1, 50, 256)
    made = dense(chain, 256)
    gate = chain.op("Sigmoid")
    chain.last = made
    chain.op("Add", "x")
    chain.op("Mul", gate)
    assert "product" not in kinds(chain)


def test_a_convolution_on_the_cpu_costs_its_multiplications() -> None:
    """The patch embedding of CLIP: a kernel of 32 is one too large for the NPU."""
    patches = Chain(1, 3, 224, 224)
    weights = patches.constant(np.zeros((768, 3, 32, 32), np.float32))
    patches.op("Conv", weights, strides=[32, 32])
    for dtype in ("fp16", "w8a8"):
        program = patches.program(dtype=dtype)
        prediction = predict(program, RK3588)
        (layer,) = (one for one in prediction.layers if one.bound is Bound.CPU)
        rate = timing_profile(RK3588).floats.cpu_macs_per_ns
        assert layer.time_us == pytest.approx(115.6e6 / rate / 1000, rel=0.05)
    (line,) = cpu_costs(program, prediction)
    assert "this convolution on the CPU takes" in line
    assert "a kernel of 31 or two convolutions would keep it on the NPU" in line


def test_a_long_kernel_in_one_dimension_stays_on_the_npu() -> None:
    chain = Chain(1, 64, 200)
    chain.op("Conv", chain.constant(np.zeros((64, 4, 128), np.float32)), group=16, pads=[64, 64])
    program = chain.program(dtype="fp16")
    assert program.layers[0].placement is Placement.CPU
    assert predict(program, RK3588).cpu_share == 0


def test_layers_on_the_npu_need_no_advice() -> None:
    chain = one_conv(32, 32, 40)
    program = chain.program()
    assert cpu_costs(program, predict(program, RK3588)) == []


def test_weights_have_a_bandwidth_of_their_own() -> None:
    chain = Chain(1, 1, 4096)
    dense(chain, 4096)
    program = chain.program(dtype="fp16")
    profile = timing_profile(RK3588)
    slower = replace(profile, float_numbers=replace(profile.floats, weight_bytes_per_ns=profile.floats.weight_bytes_per_ns / 2))
    assert predict(program, RK3588, profile=slower).latency_us > 1.8 * predict(program, RK3588).latency_us


def test_channels_that_are_split_inside_their_blocks_move() -> None:
    """The key points of a pose network: 51 channels become 17 of 3."""
    split, whole = Chain(1, 16, 40, 40), Chain(1, 16, 40, 40)
    for chain, channels, shape in ((split, 51, [1, 17, 3, 1600]), (whole, 64, [1, 2, 32, 1600])):
        chain.conv(channels, 1)
        chain.op("Reshape", chain.constant(np.array(shape)))
        chain.op("Sigmoid")
    floor = timing_profile(RK3588).parameters.floor_ns
    for dtype in ("w8a8", "fp16"):
        moved = 51 * 1600 * 0.28e-3 * floor / 1000
        assert split.predict(dtype=dtype).latency_us > moved
        assert whole.predict(dtype=dtype).latency_us < moved


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((1, 51, 80, 80), (1, 17, 3, 6400), True),
        ((1, 64, 400), (1, 4, 16, 400), False),
        ((1, 51, 6400), (1, 51, 80, 80), False),
        ((1, 50, 768), (1, 50, 12, 64), False),
        ((1, 51), (1, 17, 3), False),
    ],
)
def test_what_splits_blocks(before: tuple[int, ...], after: tuple[int, ...], expected: bool) -> None:
    assert splits_blocks(before, after, 16) is expected


def test_allwinner_prices_attention_in_every_type() -> None:
    chip = chips.get("a733")
    short, long = Chain(1, 32, 64), Chain(1, 256, 64)
    attention(short, 32, 4, 16)
    attention(long, 256, 4, 16)
    times = [chain.predict(chip.name, "w16a16").latency_us for chain in (short, long)]
    assert times[1] > 30 * times[0]
    assert timing_profile(chip).parameters.floor_ns == pytest.approx(1300, rel=0.02)
