"""Models for Allwinner's chips on the VIPLite calls, equal to our sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dropin.conftest import network

import anynpu
from anynpu.session.onnxruntime.context_model import wrap_model

from .conftest import SIDE, Provider
from .test_parts import convolutions, feed, saved, sessions

Array = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module")
def compile_for(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("vip")

    def compiled(chip: str, dtype: str, **options: Any) -> Path:
        source = folder / "n.onnx"
        onnx.save(network(20), source)
        if dtype not in ("fp16", "bf16"):
            rng = np.random.default_rng(9)
            options["dataset"] = [{"images": rng.random((1, 3, SIDE, SIDE), np.float32) * 255} for _ in range(2)]
        return anynpu.compile(source, chip, dtype=dtype, **options).save(folder / f"{chip}-{dtype}-{len(options)}.nb")

    return compiled


@pytest.mark.parametrize(
    ("chip", "dtype"),
    [
        ("v853", "w8a8"),
        ("t527", "w8a8"),
        ("t527", "i8"),
        ("t527", "w16a16"),
        ("t527", "fp16"),
        ("t527", "bf16"),
        ("a733", "w8a8"),
    ],
)
@pytest.mark.parametrize("embed", [False, True], ids=["path", "embedded"])
def test_results_are_those_of_our_session(
    provider: Provider, compile_for: Any, tmp_path: Path, chip: str, dtype: str, embed: bool
) -> None:
    """With mean and standard deviation, which the provider computes because VIPLite does not."""
    model = compile_for(chip, dtype, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
    (tmp_path / "m.nb").write_bytes(model.read_bytes())
    session = provider.session(wrap_model(tmp_path / "m.nb", tmp_path / "m.onnx", embed=embed))
    values = np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32) * 255
    with anynpu.InferenceSession(str(model)) as own:
        (expected,) = own.run(None, {"images": values})
    (got,) = session.run(None, {"images": values})
    np.testing.assert_array_equal(got, expected)
    assert got.any()


@pytest.mark.parametrize("dtype", ["w8a8", "i8", "w16a16"])
def test_pixels_and_quantized_values(provider: Provider, compile_for: Any, tmp_path: Path, dtype: str) -> None:
    model = compile_for("t527", dtype, std=(255.0, 255.0, 255.0))
    pixels = np.random.default_rng(2).integers(0, 255, (1, SIDE, SIDE, 3), np.uint8)
    with anynpu.InferenceSession(str(model)) as own:
        (expected,) = own.run(None, {"images": pixels.transpose(0, 3, 1, 2).astype(np.float32)})
    wrapped = wrap_model(model, tmp_path / "u8.onnx", embed=True, inputs="uint8")
    np.testing.assert_array_equal(provider.session(wrapped).run(None, {"images": pixels})[0], expected)
    session = provider.session(wrap_model(model, tmp_path / "native.onnx", embed=True, inputs="native", outputs="native"))
    with anynpu.vip.Network(model, device="sim:t527") as network:
        (given,), (read,) = network.inputs, network.outputs
        assert [each.type for each in (*session.get_inputs(), *session.get_outputs())] == [
            f"tensor({given.dtype})",
            f"tensor({read.dtype})",
        ]
        values = np.random.default_rng(3).integers(-100 if given.dtype.kind == "i" else 0, 100, given.shape).astype(given.dtype)
        (codes,) = network.run([values], decode=False)
    np.testing.assert_array_equal(session.run(None, {"images": values})[0], codes)


def test_an_image_that_the_network_normalizes(provider: Provider, compile_for: Any, tmp_path: Path) -> None:
    model = compile_for("t527", "w8a8", std=(255.0, 255.0, 255.0), preprocess="rgb")
    pixels = np.random.default_rng(2).integers(0, 255, (1, 3, SIDE, SIDE), np.uint8)
    session = provider.session(wrap_model(model, tmp_path / "m.onnx", embed=True))
    assert session.get_inputs()[0].type == "tensor(uint8)"
    with anynpu.InferenceSession(str(model)) as own:
        np.testing.assert_array_equal(session.run(None, {"images": pixels})[0], own.run(None, {"images": pixels})[0])


def test_several_contexts_and_options(provider: Provider, compile_for: Any, tmp_path: Path) -> None:
    wrapped = wrap_model(compile_for("t527", "w8a8"), tmp_path / "m.onnx", embed=True)
    values = {"images": np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)}
    session = provider.session(wrapped, contexts="3", priority="low", core_mask="0")
    np.testing.assert_array_equal(session.run(None, values)[0], provider.session(wrapped).run(None, values)[0])
    with pytest.raises(Exception, match="cores that this chip does not have"):
        provider.session(wrapped, core_mask="2").run(None, values)
    assert "the vendor's libVIPlite.so cannot be loaded" in provider.error(wrapped, device="npu")
    assert "libm.so.6 has no vip_init" in provider.error(wrapped, library="libm.so.6")


@pytest.mark.parametrize("size", [1, 15, 200, 2000])
def test_a_damaged_model_is_an_error(provider: Provider, compile_for: Any, tmp_path: Path, size: int) -> None:
    from .conftest import edited

    model = compile_for("t527", "w8a8")
    wrapped = wrap_model(model, tmp_path / "m.onnx", embed=True)
    text = provider.error(edited(wrapped, tmp_path / "cut.onnx", ep_cache_context=model.read_bytes()[:size]))
    assert "vip_create_network returned VIP_ERROR_" in text


@pytest.mark.full  # child processes
def test_plain_models_are_compiled_for_the_chip(provider: Provider, tmp_path: Path) -> None:
    model = saved(convolutions("BiasGelu"), tmp_path / "m.onnx")
    session, cpu = sessions(provider, model, tmp_path / "cache", target="t527")
    np.testing.assert_allclose(session.run(None, feed())[0], cpu.run(None, feed())[0], atol=2e-3)
