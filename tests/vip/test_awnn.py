"""libawnn in Python: bytes in, float32 out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anynpu import errors, vip
from anynpu.vip import Awnn, Network, TensorInfo, vip_buffer_format_e, vip_buffer_quantize_format_e
from anynpu.vip.awnn import to_float

from .support import picture, small_file

FORMATS = ("w8a8", "i8", "i8dfp", "w16a16", "fp16", "bf16")


@pytest.fixture(params=FORMATS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "model.nb"
    path.write_bytes(small_file("t527", request.param))
    return path


def test_the_calls_give_what_a_network_gives(model: Path, tmp_path: Path) -> None:
    with Network(model, device="sim:t527") as network:
        codes = network.inputs[0].encode(picture())
        expected = network.run([codes])
        raw = network.get_outputs(decode=False)
    vip.awnn_init(device="sim:t527")
    context = vip.awnn_create(model)
    vip.awnn_set_input_buffers(context, [codes])
    vip.awnn_run(context)
    found = vip.awnn_get_output_buffers(context)
    for index, (floats, due, own) in enumerate(zip(found, expected, raw, strict=True)):
        assert floats.dtype == np.float32
        np.testing.assert_array_equal(floats, due.reshape(-1))
        assert vip.awnn_get_output_buffer(context, index).tobytes() == own.tobytes()
    vip.awnn_dump_io(context, tmp_path / "dump")
    lines = (tmp_path / "dump.output_0.txt").read_text().splitlines()
    assert lines == [f"{number:f}" for number in found[0]]
    given = (tmp_path / "dump.input_0.txt").read_text().splitlines()
    assert len(given) == 576
    assert float(given[5]) == pytest.approx(float(codes.reshape(-1)[5]), abs=1e-6)
    vip.awnn_destroy(context)
    vip.awnn_uninit()
    with pytest.raises(errors.DeviceClosed):
        vip.awnn_uninit()
    with pytest.raises(errors.DeviceClosed):
        vip.awnn_create(model)


def test_outputs_belong_to_the_context(tmp_path: Path) -> None:
    path = tmp_path / "model.nb"
    path.write_bytes(small_file())
    with Awnn(path, device="sim:t527") as context:
        outputs = context.get_output_buffers()
        assert not outputs[0].any()  # defined before the first run, too
        context.set_input_buffers([bytes(576)])
        context.run()
        first = outputs[0].copy()
        context.set_input_buffers([bytearray(range(256)) * 3])
        context.run()
        assert outputs[0] is context.get_output_buffers()[0]
        assert not np.array_equal(outputs[0], first)
        with pytest.raises(errors.ShapeError, match="576 bytes, got 5"):
            context.set_input_buffers([b"12345"])
        with pytest.raises(errors.ParameterError):
            context.set_input_buffers([])
        with pytest.raises(errors.ParameterError):
            context.get_output_buffer(2)
        assert "Awnn" in repr(context)


def test_a_missing_model_is_an_error_and_leaves_nothing() -> None:
    with pytest.raises(errors.ModelError):
        Awnn("missing.nb", device="sim:t527")


NONE, DFP, AFFINE = (vip_buffer_quantize_format_e(number) for number in (0, 1, 2))


@pytest.mark.parametrize(
    ("kind", "quant", "codes", "expected"),
    [
        ("UINT8", AFFINE, np.array([0, 128, 255], np.uint8), [-64.0, 0.0, 63.5]),
        ("UINT8", NONE, np.array([0, 128, 255], np.uint8), [0.0, 128.0, 255.0]),
        ("INT8", AFFINE, np.array([-128, 0, 127], np.int8), [-128.0, -64.0, -0.5]),
        ("INT8", DFP, np.array([-128, 1, 127], np.int8), [-16.0, 0.125, 15.875]),
        ("INT8", NONE, np.array([-128, 0, 127], np.int8), [-128.0, 0.0, 127.0]),
        ("INT16", DFP, np.array([-32768, 3, 8], np.int16), [-4096.0, 0.375, 1.0]),
        ("INT16", NONE, np.array([-2, 0, 2], np.int16), [-2.0, 0.0, 2.0]),
        ("FP16", NONE, np.array([0x3C00, 0x0001, 0xFC00], np.uint16).view(np.float16), [1.0, 2.0**-24, -np.inf]),
        ("FP32", NONE, np.array([1.5, -2.25, 3e38], np.float32), [1.5, -2.25, np.float32(3e38)]),
        ("BFP16", NONE, np.array([0x3F80, 0xC000, 0x0000], np.uint16), [1.0, -2.0, 0.0]),
        ("INT32", NONE, np.array([-70000, 0, 5], np.int32), [-70000.0, 0.0, 5.0]),
        ("INT64", NONE, np.array([-7, 0, 5], np.int64), [-7.0, 0.0, 5.0]),
        ("UINT16", NONE, np.array([0, 1, 65535], np.uint16), [0.0, 1.0, 65535.0]),
        ("BOOL8", NONE, np.array([False, True, True]), [0.0, 1.0, 1.0]),
        ("INT4", NONE, np.array([0x17, 0x0F], np.uint8), [7.0, 1.0, -1.0]),
    ],
)
def test_conversions(kind: str, quant: vip_buffer_quantize_format_e, codes: np.ndarray, expected: list[float]) -> None:  # type: ignore[type-arg]
    info = TensorInfo(0, "y", (3, 1), vip_buffer_format_e[f"VIP_BUFFER_FORMAT_{kind}"], quant, 3, 0.5, 128)
    codes = codes if kind == "INT4" else codes.reshape(1, 3)
    np.testing.assert_array_equal(to_float(codes, info), np.array(expected, np.float32))
