"""Command streams: words to data and back, and the words of recorded streams."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.errors import CommandStreamError, ParameterError
from anynpu.npu import rocket
from anynpu.npu.rocket.emitter import Compatible
from anynpu.npu.rocket.plan import Convolution, banks_of, slices_of
from anynpu.npu.rocket.registers import ORDER, REGISTERS, describe

from .cases import DATA, has_packing_error, recorded_streams

CORRECTIONS = {0x4084, 0x4088, 0x1044, 0x1184}
"""OUT_CVT_SCALE and OUT_CVT_SHIFT (rounded to nearest), DATA_ENTRIES (three planes take four), PAD_CON1 (both bytes of the pair)."""


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    return recorded_streams()


def sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


def test_a_convolution_writes_126_registers() -> None:
    assert len(ORDER) == 126
    assert len(set(ORDER)) == 122
    assert set(ORDER) <= set(REGISTERS)


def test_fields_of_a_register_do_not_overlap() -> None:
    for register in REGISTERS.values():
        seen = 0
        for field in register.fields:
            assert not seen & field.mask, register.label
            assert field.read(field.write(-1)) == (-1 if field.signed else field.mask >> field.low)
            seen |= field.mask


def test_every_recorded_stream_is_emitted_word_for_word(cases: list[dict[str, Any]]) -> None:
    for index, case in enumerate(cases):
        emitted = rocket.emit(case, compatible="mesa")
        assert emitted.tasks == case["tasks"], index
        assert sha256(emitted.commands) == case["commands_sha256"], index


def test_packed_weights_and_biases_equal_mesas(cases: list[dict[str, Any]]) -> None:
    """All but those that Mesa packs wrongly."""
    compared = 0
    for case in cases:
        if "weights" not in case:
            continue
        emitted = rocket.emit(case, compatible="mesa")
        assert emitted.weights is not None
        assert sha256(emitted.bias) == case["packed_bias_sha256"]
        same = sha256(emitted.weights) == case["packed_weights_sha256"]
        assert same != has_packing_error(emitted.convolution), case
        compared += same
    assert compared > 50


def test_decoding_and_encoding_keep_every_word(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        commands = rocket.emit(case, compatible="mesa").commands
        tasks = rocket.decode(commands)
        assert len(tasks) == case["tasks"]
        np.testing.assert_array_equal(rocket.encode(tasks), commands)


def test_any_words_are_decoded_and_encoded_back() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 64, 1000, np.uint64)
    tasks = rocket.decode(words)
    np.testing.assert_array_equal(rocket.encode(tasks), words)
    assert list(rocket.disassemble(tasks))


def test_the_default_form_differs_in_corrected_registers_only(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        ours, mesas = (rocket.decode(rocket.emit(case, compatible=form).commands) for form in ("default", "mesa"))
        for one, other in zip(ours, mesas, strict=True):
            registers, theirs = one.registers(), other.registers()
            differing = {number for number in registers if registers[number] != theirs[number]}
            assert differing <= CORRECTIONS, [REGISTERS[number].label for number in differing]


def test_scales_are_rounded_to_nearest(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        conv = rocket.emit(case).convolution
        source, target = ("add", "sum") if case["add"] else ("in", "conv")
        factor = case[f"{source}_scale"] * case["weight_scale"] / case[f"{target}_scale"]
        assert 1 << 14 <= conv.multiplier < 1 << 15
        assert abs(conv.multiplier * 2.0**-conv.shift / factor - 1) < 2.0**-14


def test_a_lost_carry_is_written_as_mesa_writes_it(cases: list[dict[str, Any]]) -> None:
    """Where all 14 bits of the mantissa are ones, the multiplier becomes 2**14 or 0x8000, by the parity of the exponent."""
    case = next(case for case in cases if not case["add"])
    multipliers = []
    for exponent in (126, 127):
        factor = np.uint32(exponent << 23 | 0x7FFFFF).view(np.float32)
        scales = {"in_scale": factor, "weight_scale": 1.0, "conv_scale": 1.0}
        multipliers.append(rocket.emit({**case, **scales}, compatible="mesa").convolution.multiplier)
        assert (
            rocket.emit({**case, **scales}).convolution.multiplier * 2.0 ** -rocket.emit({**case, **scales}).convolution.shift
            > 0.4
        )
    assert multipliers == [1 << 14, 1 << 15]


def test_missing_and_impossible_parameters_are_named(cases: list[dict[str, Any]]) -> None:
    case = dict(cases[0])
    with pytest.raises(ParameterError, match="no 'stride'"):
        rocket.emit({key: value for key, value in case.items() if key != "stride"})
    with pytest.raises(ParameterError, match="has no output"):
        rocket.emit({**case, "kernel": 99})
    with pytest.raises(ParameterError, match="compatible is 'vendor'"):
        rocket.emit(case, compatible="vendor")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="3 weights"):
        rocket.emit({**case, "weights": [1, 2, 3], "bias": [0]})
    with pytest.raises(CommandStreamError, match="2000 columns"):
        rocket.emit({**case, "size": 2000, "kernel": 1, "pad_before": 0, "pad_after": 0})


@pytest.mark.parametrize("compatible", ["default", "mesa"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("size", "kernel", "in_channels", "pad_after")
            for value in (-1, 1 << 31, 1.5, "3", None, [])
        ),
        *((name, value) for name in ("sum_scale", "weight_scale") for value in (0, -0.5, float("nan"), float("inf"), 1e300, "x")),
        *((name, value) for name in ("add_zero", "weight_zero", "sum_zero") for value in (-1, 256, 0.5)),
        ("weights", ["x"]),
        ("weights", [[1], [1, 2]]),
        ("bias", [1 << 40]),
        ("depthwise", 2),
        ("addresses", None),
        ("addresses", {"input": 1 << 32}),
    ],
)
def test_a_wrong_parameter_is_an_error_that_names_it(
    cases: list[dict[str, Any]], name: str, value: Any, compatible: Compatible
) -> None:
    case = next(case for case in cases if case["add"] and "weights" in case)
    with pytest.raises(ParameterError, match=r"\d columns or rows|'\w+'|weights and"):
        rocket.emit({**case, name: value}, compatible=compatible)


def test_sizes_and_scales_beyond_the_registers_are_rejected(cases: list[dict[str, Any]]) -> None:
    plain = {**next(case for case in cases if not case["add"]), "weights": None}
    for changes in (
        {"size": 5000},
        {"kernel": 40, "size": 60},
        {"stride": 9},
        {"in_scale": 1e20},
        {"out_channels": 9000, "depthwise": 0},
    ):
        with pytest.raises(CommandStreamError):
            rocket.emit({**plain, **changes}, compatible="mesa")


def test_slices_cover_every_output_row_once() -> None:
    random = np.random.default_rng(1)
    cut = 0
    for _ in range(300):
        kernel, stride = int(random.choice([1, 3, 5])), int(random.choice([1, 2]))
        size, pad = int(random.integers(8, 160)), int(random.integers(0, kernel // 2 + 1))
        channels = int(random.integers(1, 200))
        geometry = ((kernel, kernel), (stride, stride), (pad, pad, pad, pad))
        conv = Convolution(size, size, channels, 32, *geometry, False, 0, 0, 0, 1, 0)
        _, rows = banks_of(conv)
        slices = slices_of(conv, rows)
        cut += len(slices) > 1
        assert sum(part.out_rows for part in slices) == conv.out_height
        for part in slices:
            last = part.out_first + part.out_rows - 1
            assert part.first == max(0, part.out_first * stride - pad) or part.first == 0
            assert last * stride - pad + kernel <= part.first + part.rows + (pad if part.first + part.rows == size else 0)
    assert cut > 30


def test_a_disassembly_names_registers_and_fields(cases: list[dict[str, Any]]) -> None:
    lines = list(rocket.disassemble(rocket.decode(rocket.emit(cases[0]).commands)))
    assert lines[0] == "task 0 at 0x0, 136 words"
    assert any("WEIGHT_SIZE2" in line and "KERNELS=128" in line for line in lines)
    assert describe(REGISTERS[0x4030], 0x1_0000) == "other bits 0x10000"


def test_files_of_streams_and_jobs(tmp_path: Path, cases: list[dict[str, Any]]) -> None:
    commands = rocket.emit(cases[0]).commands
    commands.astype("<u8").tofile(tmp_path / "stream.bin")
    np.testing.assert_array_equal(rocket.encode(rocket.read_tasks(tmp_path / "stream.bin")), commands)
    tasks = rocket.read_tasks(DATA / "add_14_64_k1.npz")
    assert [len(task.commands) for task in tasks] == [130, 130]
    (tmp_path / "other.bin").write_bytes(b"anything else")
    with pytest.raises(CommandStreamError, match="not a command stream"):
        rocket.read_tasks(tmp_path / "other.bin")
    np.savez(tmp_path / "other.npz", memory=np.zeros(8, np.uint8))
    with pytest.raises(CommandStreamError, match="not a recorded job"):
        rocket.read_tasks(tmp_path / "other.npz")
    np.savez(tmp_path / "far.npz", memory=np.zeros(8, np.uint8), base=0, tasks=[[64, 130]])
    with pytest.raises(CommandStreamError, match="outside the memory"):
        rocket.read_tasks(tmp_path / "far.npz")
    with pytest.raises(CommandStreamError, match="not whole words"):
        rocket.decode(np.zeros(9, np.uint8))
