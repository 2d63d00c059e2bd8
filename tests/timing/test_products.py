"""Matrix products and language models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu import chips
from anynpu.compiler import ModelOutline
from anynpu.errors import DeviceError
from anynpu.timing import Bound, predict_matmul
from anynpu.timing.llm import LLM_TYPES, decoder_bytes, parse_size, predict_llm
from anynpu.timing.matmul import parse_types

RK3588 = chips.get("rk3588")


def test_a_call_costs_something_and_a_vector_its_weights() -> None:
    tiny = predict_matmul(RK3588, 1, 64, 64)
    assert 25 < tiny.time_us < 60
    assert tiny.bound is Bound.FLOOR
    vector = predict_matmul(RK3588, 1, 4096, 4096, dtype="float16")
    assert vector.bound is Bound.MEMORY
    assert vector.time_us == pytest.approx(4400, rel=0.1)


def test_rows_beyond_the_buffer_read_b_again() -> None:
    few, many = (predict_matmul(RK3588, m, 4096, 4096, dtype="float16") for m in (8, 64))
    assert many.read_bytes > 3 * few.read_bytes
    assert many.time_us > 3 * few.time_us


def test_int4_in_the_normal_layout_goes_row_by_row() -> None:
    one, many = (predict_matmul(RK3588, m, 4096, 4096, dtype="int4", layout="normal") for m in (1, 32))
    native = predict_matmul(RK3588, 32, 4096, 4096, dtype="int4")
    assert many.time_us == pytest.approx(32 * one.time_us, rel=0.1)
    assert native.time_us < 2 * one.time_us


def test_the_normal_layout_costs_nothing_for_one_row() -> None:
    native, normal = (predict_matmul(RK3588, 1, 1024, 4096, layout=layout) for layout in ("native", "normal"))
    assert normal.time_us == native.time_us
    several = predict_matmul(RK3588, 64, 1024, 4096, layout="normal")
    assert several.time_us > predict_matmul(RK3588, 64, 1024, 4096).time_us + 1000


def test_cores_share_a_product_but_not_the_memory() -> None:
    one, three = (predict_matmul(RK3588, 1, 4096, 4096, cores=cores) for cores in (1, 3))
    assert one.time_us > three.time_us > one.time_us / 3
    with pytest.raises(DeviceError, match="rk3588 has 3 cores"):
        predict_matmul(RK3588, 1, 64, 64, cores=4)


def test_other_chips_say_that_they_are_extrapolated() -> None:
    there, elsewhere = (predict_matmul(chips.get(name), 16, 2048, 2048) for name in ("rk3588", "rk3562"))
    assert there.confidence.level == "calibrated"
    assert "rk3588 only" in str(elsewhere.confidence)
    assert elsewhere.confidence.spread > there.confidence.spread


@pytest.mark.parametrize("text", ["", "int7", "int8*int8->float80", "float32"])
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="there is no matmul"):
        parse_types(text)
    with pytest.raises(DeviceError, match="no matrix product"):
        predict_matmul(RK3588, 0, 64, 64)


def test_a_language_model_reads_its_weights_once_a_token() -> None:
    small, large = (predict_llm(RK3588, size, "w8a8") for size in ("1B", "4B"))
    assert 3 < small.tokens_per_second / large.tokens_per_second < 4.2
    assert predict_llm(RK3588, "1B", "w4a16").tokens_per_second > 1.4 * small.tokens_per_second
    assert predict_llm(RK3588, "1B", "w8a8", prompt=512).first_token_ms == pytest.approx(4 * small.first_token_ms)
    few = predict_llm(RK3588, "3B-A570M", "w8a8")
    assert few.tokens_per_second > 3 * predict_llm(RK3588, "3B", "w8a8").tokens_per_second


def test_known_memory_is_surer_than_a_size() -> None:
    guessed, known = predict_llm(RK3588, "1.5B"), predict_llm(RK3588, "1.5B", memory_mb=1500)
    assert known.confidence.level == "calibrated"
    assert known.confidence.spread < guessed.confidence.spread
    assert known.confidence.error == pytest.approx(0.041)


@pytest.mark.parametrize("chip", chips.names())
@pytest.mark.parametrize("dtype", LLM_TYPES)
def test_every_chip_has_an_answer_for_language_models(chip: str, dtype: str) -> None:
    made = predict_llm(chips.get(chip), "0.5B", dtype)
    assert made.tokens_per_second > 0
    assert made.first_token_ms >= made.token_ms


@pytest.mark.parametrize("text", ["", "B", "1.5", "-1B", "1B-A2B", "9999B", "1T"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(DeviceError, match="no size"):
        parse_size(text)


def test_wrong_questions_about_language_models() -> None:
    with pytest.raises(DeviceError, match="no language model of int3"):
        predict_llm(RK3588, "1B", "int3")
    with pytest.raises(DeviceError, match="prompt of 0"):
        predict_llm(RK3588, "1B", prompt=0)


def decoder(*, cache: bool = True) -> object:
    """A layer that adds a token to its cache, and a product with the vocabulary."""
    width, length, words = 64, 16, 1000
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, width])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, words])]
    weights = [numpy_helper.from_array(np.zeros((width, words), np.float32), "w")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["logits"], "head")]
    for name in ("key", "value") if cache else ():
        inputs.append(helper.make_tensor_value_info(f"past_{name}", TensorProto.FLOAT, [1, length, width]))
        outputs.append(helper.make_tensor_value_info(f"present_{name}", TensorProto.FLOAT, [1, length + 1, width]))
        nodes.append(helper.make_node("Concat", [f"past_{name}", "x"], [f"present_{name}"], name, axis=1))
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_decoder_is_known_by_its_cache() -> None:
    program = ModelOutline(decoder()).program("rk3588", dtype="fp16")
    megabytes = decoder_bytes(program, RK3588)
    assert megabytes == pytest.approx(64 * 1000 * 2 / 1e6, rel=0.1)
    assert decoder_bytes(ModelOutline(decoder(cache=False)).program("rk3588", dtype="fp16"), RK3588) is None
