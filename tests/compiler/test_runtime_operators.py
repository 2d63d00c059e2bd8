"""Networks that onnxruntime optimized or packed: its own operators, written as ONNX's, give what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler.importers.contrib_operators import write_plainly
from anynpu.errors import CompileError, UnsupportedOperatorError

from .onnx_builders import Net, feeds
from .running import execute

Build = Callable[[Net], None]
MICROSOFT: dict[str, Any] = {"domain": "com.microsoft"}
WIDTH, HEADS, LENGTH = 16, 4, 6
RANDOM = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RANDOM.bit_generator.state = np.random.default_rng(11).bit_generator.state


def operators_of(op: Any) -> list[str]:
    return [entry.name for entry in op.operators]


def net_of(build: Build, opset: int) -> onnx.ModelProto:
    net = Net(opset)
    net.opsets["com.microsoft"] = 1
    build(net)
    return net.proto()


def words(net: Net, name: str = "x", width: int = WIDTH) -> str:
    return net.input(name, (2, LENGTH, width))


def some_keys_count(proto: onnx.ModelProto) -> list[dict[str, Any]]:
    """Random inputs; of a mask, the first keys of each row count, or that many are."""
    samples = feeds(proto, 2)
    for sample in samples:
        if "mask" in sample:
            counts = np.array([3, 5], np.int32)
            shape = sample["mask"].shape
            places = np.arange(LENGTH) < counts[:, None]
            rows = places if len(shape) == 2 else places[:, None, :]
            sample["mask"] = counts if len(shape) == 1 else np.broadcast_to(rows, shape).astype(np.int32)
    return samples


def skip(op: str, *, bias: bool, shown: bool = False) -> Build:
    def build(net: Net) -> None:
        inputs = [words(net), words(net, "residual"), net.weights(WIDTH, shift=1.0)]
        if op == "SkipLayerNormalization":
            inputs.append(net.weights(WIDTH))
        inputs += [net.weights(WIDTH)] if bias else []
        made = net.ops(op, *inputs, count=4 if shown else 1, epsilon=1e-5, **MICROSOFT)
        net.output(made[0])
        if shown:
            net.output(made[3])
            net.nodes[-1].output[1] = net.nodes[-1].output[2] = ""

    return build


def embedded(*, segments: bool, lengths: bool) -> Build:
    def build(net: Net) -> None:
        ids = net.input("ids", (2, LENGTH), np.int32)
        kinds = net.input("kinds", (2, LENGTH), np.int32) if segments else ""
        mask = net.input("mask", (2, LENGTH), np.int32) if lengths else ""
        tables = [net.weights(8, WIDTH), net.weights(LENGTH + 2, WIDTH), net.weights(4, WIDTH) if segments else ""]
        inputs = [ids, kinds, *tables, net.weights(WIDTH, shift=1.0), net.weights(WIDTH), mask]
        made = net.ops("EmbedLayerNormalization", *inputs, count=2, epsilon=1e-5, **MICROSOFT)
        y = made[0]
        if lengths:
            bias = net.weights(3 * WIDTH, scale=0.1)
            y = net.op("Attention", y, net.weights(WIDTH, 3 * WIDTH, scale=0.3), bias, made[1], num_heads=HEADS, **MICROSOFT)
        net.output(y)

    return build


def attending(**options: Any) -> Build:
    """Attention with a mask of as many axes as *mask* states, with weights of *sizes*."""

    def build(net: Net) -> None:
        sizes = options.get("sizes", (WIDTH,) * 3)
        given: dict[str, Any] = {"qkv_hidden_sizes": list(sizes)} if "sizes" in options else {}
        given |= {key: options[key] for key in ("unidirectional", "scale", "mask_filter_value") if key in options}
        mask = options.get("mask", 0)
        shapes = {1: (2,), 2: (2, LENGTH), 3: (2, LENGTH, LENGTH)}
        inputs = [words(net), net.weights(WIDTH, sum(sizes), scale=0.3), net.weights(sum(sizes), scale=0.1)]
        inputs += [net.input("mask", shapes[mask], np.int32)] if mask else []
        net.output(net.op("Attention", *inputs, num_heads=HEADS, **given, **MICROSOFT))

    return build


def heads_apart(*, bias: bool, mask: bool) -> Build:
    def build(net: Net) -> None:
        inputs = [words(net, "q"), words(net, "k"), words(net, "v"), net.weights(3 * WIDTH) if bias else ""]
        inputs.append(net.input("mask", (2, LENGTH), np.int32) if mask else "")
        net.output(net.op("MultiHeadAttention", *inputs, num_heads=HEADS, **MICROSOFT))

    return build


def function(op: str, *, bias: bool = False, **attributes: Any) -> Build:
    def build(net: Net) -> None:
        inputs = [words(net)] + ([net.weights(WIDTH)] if bias else [])
        net.output(net.op(op, *inputs, **attributes, **MICROSOFT))

    return build


def convolved(activation: str, *parameters: float, residual: bool = False) -> Build:
    def build(net: Net) -> None:
        inputs = [net.input("x", (1, 3, 8, 8)), net.weights(4, 3, 3, 3, scale=0.3), net.weights(4, scale=0.3)]
        inputs += [net.input("residual", (1, 4, 8, 8))] if residual else []
        given = {"activation_params": list(parameters)} if parameters else {}
        net.output(net.op("FusedConv", *inputs, pads=[1, 1, 1, 1], activation=activation, **given, **MICROSOFT))

    return build


def product(**attributes: Any) -> Build:
    def build(net: Net) -> None:
        a = net.input("a", (2, 5, 4) if attributes.get("transA") else (2, 4, 5))
        b = net.input("b", (2, 3, 5) if attributes.get("transB") else (2, 5, 3))
        net.output(net.op("FusedMatMul", a, b, **attributes, **MICROSOFT))

    return build


def product_with_constant(net: Net) -> None:
    net.output(net.op("FusedMatMul", words(net), net.weights(8, WIDTH), transB=1, alpha=0.5, **MICROSOFT))


def packed(bits: int, rows: int, block: int, *, zeros: str = "", order: bool = False) -> Build:
    """A product with weights of a few bits; zero points are packed, real or in the middle."""

    def build(net: Net) -> None:
        columns, blocks = 5, -(-rows // block)
        codes = RANDOM.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
        scales = RANDOM.uniform(0.01, 0.1, columns * blocks).astype(np.float32)
        inputs = [words(net, width=rows), net.constant(codes), net.constant(scales)]
        if zeros == "packed":
            row = -(-blocks * bits // 8)
            inputs.append(net.constant(RANDOM.integers(0, 256, columns * row).astype(np.uint8)))
        elif zeros == "real":
            inputs.append(net.constant(RANDOM.uniform(0, 8, columns * blocks).astype(np.float32)))
        if order:
            inputs += ["", net.constant(RANDOM.permutation(np.arange(rows) // block).astype(np.int32))]
        given = {"K": rows, "N": columns, "bits": bits, "block_size": block}
        net.output(net.op("MatMulNBits", *inputs, **given, **MICROSOFT))

    return build


def tabled(kind: int) -> Build:
    def build(net: Net) -> None:
        rows, columns, block = 32, 5, 16
        codes = net.constant(RANDOM.integers(0, 256, rows * columns // 2).astype(np.uint8))
        largest = net.constant(RANDOM.uniform(0.5, 2.0, rows * columns // block).astype(np.float32))
        given = {"K": rows, "N": columns, "block_size": block, "quant_type": kind}
        net.output(net.op("MatMulBnb4", words(net, width=rows), codes, largest, **given, **MICROSOFT))

    return build


def gathered(*, zeros: bool) -> Build:
    def build(net: Net) -> None:
        table = net.constant(RANDOM.integers(0, 256, (8, 16)).astype(np.uint8))
        inputs = [table, net.input("ids", (2, 3), np.int32), net.constant(RANDOM.uniform(0.1, 0.2, (8, 2)).astype(np.float32))]
        inputs += [net.constant(RANDOM.integers(0, 256, (8, 1)).astype(np.uint8))] if zeros else []
        made = net.op("GatherBlockQuantized", *inputs, block_size=16, bits=4, quantize_axis=1, gather_axis=0, **MICROSOFT)
        net.output(net.op("MatMul", made, net.weights(32, 4)))

    return build


def angles(net: Net, pairs: int) -> list[str]:
    """Cosines and sines of 16 positions."""
    turns = np.arange(16)[:, None] / 10.0 ** np.arange(pairs)
    return [net.constant(table(turns).astype(np.float32)) for table in (np.cos, np.sin)]


def rotary(*shape: int, pairs: int = 2, first: bool = False, **attributes: Any) -> Build:
    """RotaryEmbedding with a position for each row, or the *first* one."""

    def build(net: Net) -> None:
        length = shape[2] if len(shape) == 4 else shape[1]
        places = np.array([3]) if first else np.arange(3, 3 + length)[None] + np.arange(shape[0])[:, None]
        inputs = [net.input("x", shape), net.constant(places.astype(np.int64)), *angles(net, pairs)]
        net.output(net.op("RotaryEmbedding", *inputs, **attributes, **MICROSOFT))

    return build


def grouped(*, past: int = 0, packed: bool = False, rotate: bool = False, shown: bool = False, **attributes: Any) -> Build:
    """GroupQueryAttention with 4 heads of queries and 2 of keys, of 16 values each."""

    def build(net: Net) -> None:
        width, shared, each, batch = 4 * 16, 2 * 16, 16, 1 if past else 2
        inputs = [net.input("q", (batch, LENGTH, width + 2 * shared)), "", ""] if packed else [
            net.input("q", (batch, LENGTH, width)), net.input("k", (batch, LENGTH, shared)), net.input("v", (batch, LENGTH, shared))
        ]  # fmt: skip
        inputs += [net.input(name, (batch, 2, past, each)) for name in ("past_k", "past_v")] if past else ["", ""]
        inputs.append(net.constant(np.full(batch, past + LENGTH - 1, np.int32)))
        inputs.append(net.constant(np.array(past + LENGTH, np.int32)))
        inputs += angles(net, each // 2) if rotate else []
        made = net.ops(
            "GroupQueryAttention", *inputs, count=3, num_heads=4, kv_num_heads=2, do_rotary=int(rotate), **attributes, **MICROSOFT
        )
        for name in made if shown else made[:1]:
            net.output(name)

    return build


CASES: dict[str, Build] = {
    "RotaryEmbedding": rotary(2, LENGTH, 16),
    "RotaryEmbedding of heads": rotary(2, 4, LENGTH, 4),
    "RotaryEmbedding from a position": rotary(2, LENGTH, 16, first=True),
    "RotaryEmbedding of neighbors": rotary(2, 4, LENGTH, 4, interleaved=1),
    "RotaryEmbedding of some values": rotary(2, LENGTH, 32, num_heads=4, rotary_embedding_dim=4),
    "GroupQueryAttention": grouped(),
    "GroupQueryAttention that turns": grouped(rotate=True),
    "GroupQueryAttention of packed inputs": grouped(packed=True, rotate=True, scale=0.5),
    "GroupQueryAttention after earlier keys": grouped(past=3, rotate=True, shown=True),
    "GroupQueryAttention in a window": grouped(past=3, local_window_size=4),
    "GroupQueryAttention of turned neighbors": grouped(rotate=True, rotary_interleaved=1, shown=True),
    "SkipLayerNormalization": skip("SkipLayerNormalization", bias=False),
    "SkipLayerNormalization with a bias": skip("SkipLayerNormalization", bias=True),
    "SkipLayerNormalization whose sum is read": skip("SkipLayerNormalization", bias=True, shown=True),
    "SkipSimplifiedLayerNormalization": skip("SkipSimplifiedLayerNormalization", bias=False),
    "EmbedLayerNormalization": embedded(segments=True, lengths=False),
    "EmbedLayerNormalization with lengths": embedded(segments=False, lengths=True),
    "Attention": attending(),
    "Attention with lengths": attending(mask=1),
    "Attention with a mask": attending(mask=2),
    "Attention with a mask for each query": attending(mask=3),
    "Attention to what was before": attending(unidirectional=1),
    "Attention with narrow values": attending(sizes=(16, 16, 8), scale=0.7),
    "MultiHeadAttention": heads_apart(bias=False, mask=False),
    "MultiHeadAttention with bias and mask": heads_apart(bias=True, mask=True),
    "Gelu": function("Gelu"),
    "BiasGelu": function("BiasGelu", bias=True),
    "FastGelu": function("FastGelu"),
    "FastGelu with a bias": function("FastGelu", bias=True),
    "QuickGelu": function("QuickGelu", alpha=1.5),
    "FusedMatMul": product(transA=1, transB=1, alpha=0.25),
    "FusedMatMul of plain operands": product(alpha=1.0),
    "FusedMatMul with a constant": product_with_constant,
    "FusedConv": convolved("Relu"),
    "FusedConv with a residual": convolved("Relu", residual=True),
    "FusedConv with a leak": convolved("LeakyRelu", 0.2),
    "FusedConv with limits": convolved("Clip", -0.5, 0.5),
    "FusedConv with a gate": convolved("HardSigmoid", 0.2, 0.5),
    "MatMulNBits of 4 bits": packed(4, 32, 16),
    "MatMulNBits of 4 bits that do not fill the last block": packed(4, 40, 16, zeros="packed"),
    "MatMulNBits of 8 bits": packed(8, 32, 16, zeros="packed"),
    "MatMulNBits with real zero points": packed(4, 32, 16, zeros="real"),
    "MatMulBnb4 of NF4": tabled(1),
    "MatMulBnb4 of FP4": tabled(0),
    "GatherBlockQuantized": gathered(zeros=False),
    "GatherBlockQuantized with zero points": gathered(zeros=True),
}


@pytest.mark.parametrize("opset", [12, 17, 21])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_onnxruntime_is_what_it_computes(name: str, opset: int) -> None:
    proto = net_of(CASES[name], opset)
    run = execute(proto, dtype="fp16", samples=some_keys_count(proto))
    assert max(run.relative_errors()) < 0.01
    assert not any("com.microsoft" in name for layer in run.float_layers for name in operators_of(layer.op))


@pytest.mark.parametrize(
    "name", ["FusedConv", "FusedConv with a residual", "FusedMatMul with a constant", "MatMulNBits of 4 bits"]
)
def test_they_have_integer_forms(name: str) -> None:
    """As they stand they were float layers in a model that is called int8."""
    run = execute(net_of(CASES[name], 17))
    assert not run.float_layers, run.kinds
    assert max(run.relative_errors()) < 0.05


def test_normalisations_of_old_operator_sets() -> None:
    """onnxruntime writes LayerNormalization before ONNX had it, and one operator in ONNX's own name that ONNX never had."""

    def build(net: Net) -> None:
        y = net.op("LayerNormalization", words(net), net.weights(WIDTH, shift=1.0), net.weights(WIDTH), epsilon=1e-5)
        net.output(net.op("SimplifiedLayerNormalization", y, net.weights(WIDTH, shift=1.0), epsilon=1e-5))

    run = execute(net_of(build, 13), dtype="fp16")
    assert max(run.relative_errors()) < 0.01


@pytest.mark.parametrize("opset", [12, 17])
def test_attention_on_codes(opset: int) -> None:
    """QAttention, as dynamic quantization of an optimized transformer writes it."""

    def build(net: Net) -> None:
        codes, scale, zero = net.ops("DynamicQuantizeLinear", words(net), count=3)
        weights = net.constant(RANDOM.integers(-100, 100, (WIDTH, 3 * WIDTH)).astype(np.int8))
        inputs = [codes, weights, net.weights(3 * WIDTH, scale=0.1), scale, net.constant(np.array(0.01, np.float32))]
        mask = net.input("mask", (2, LENGTH), np.int32)
        net.output(net.op("QAttention", *inputs, mask, zero, net.constant(np.array(0, np.int8)), num_heads=HEADS, **MICROSOFT))

    proto = net_of(build, opset)
    run = execute(proto, dtype="fp16", samples=some_keys_count(proto))
    assert max(run.relative_errors()) < 0.03  # onnxruntime rounds to quantized values, which is not repeated here


def test_all_layers_share_one_mask() -> None:
    def build(net: Net) -> None:
        x, mask = words(net), net.input("mask", (2, LENGTH), np.int32)
        for _ in range(3):
            weights, bias = net.weights(WIDTH, 3 * WIDTH, scale=0.3), net.weights(3 * WIDTH, scale=0.1)
            x = net.op("Attention", x, weights, bias, mask, num_heads=HEADS, **MICROSOFT)
        net.output(x)

    proto = net_of(build, 17)
    run = execute(proto, dtype="fp16", samples=some_keys_count(proto))
    assert max(run.relative_errors()) < 0.01
    assert run.kinds.count("Where") == 1


def test_half_precision_of_an_optimized_network() -> None:
    def build(net: Net) -> None:
        x = net.op("Cast", words(net), to=TensorProto.FLOAT16)
        scale, shift = (net.constant(np.ones(WIDTH, np.float16)) for _ in range(2))
        y = net.op("SkipLayerNormalization", x, x, scale, shift, **MICROSOFT)
        net.output(net.op("Cast", net.op("BiasGelu", y, scale, **MICROSOFT), to=TensorProto.FLOAT))

    run = execute(net_of(build, 17), dtype="fp16")
    assert max(run.relative_errors()) < 0.01


def test_names_that_are_taken_are_not_taken_again() -> None:
    """Two nodes without a name, and a tensor that is called as a part would be."""

    def build(net: Net) -> None:
        first = net.op("BiasGelu", words(net), net.weights(WIDTH), **MICROSOFT)
        second = net.op("BiasGelu", first, net.weights(WIDTH), **MICROSOFT)
        net.output(net.op("Add", second, net.op("Relu", first)))
        for node in net.nodes:
            node.name = ""
        net.nodes[2].output[0] = net.nodes[3].input[1] = f"{first}.Add0"

    run = execute(net_of(build, 17), dtype="fp16")
    assert max(run.relative_errors()) < 0.01


def test_an_operator_of_the_callers_own_is_left_alone() -> None:
    """Whoever states custom_ops=['Attention'] computes it, whatever onnxruntime means by it."""
    proto = net_of(attending(), 17)
    with pytest.raises(CompileError, match="shape of an output of a custom operator"):
        anynpu.compile(proto, "rk3588", dtype="fp16", custom_ops=["Attention"])


def changed(build: Build, change: Callable[[onnx.NodeProto], None]) -> onnx.ModelProto:
    proto = net_of(build, 17)
    change(proto.graph.node[-1])
    return proto


def longer(node: onnx.NodeProto, *names: str) -> None:
    node.input.extend(names)


@pytest.mark.parametrize(
    ("build", "change", "message"),
    [
        (attending(mask=2), lambda node: longer(node, "mask"), "earlier runs"),
        (attending(), lambda node: node.attribute.append(helper.make_attribute("do_rotary", 1)), "turns queries"),
        (heads_apart(bias=False, mask=False), lambda node: node.input.__delitem__(slice(1, None)), "packed"),
        (convolved("Mish"), lambda node: None, "'Mish' is not known"),
        (packed(4, 32, 16), lambda node: node.input.__setitem__(1, "x"), "weights are computed"),
        (rotary(2, LENGTH, 16), lambda node: node.input.__setitem__(2, "x"), "angles are computed"),
        (rotary(2, LENGTH, 16), lambda node: node.attribute.append(helper.make_attribute("scale", 2.0)), "scaled"),
        (grouped(), lambda node: node.attribute.append(helper.make_attribute("softcap", 2.0)), "limits its scores"),
        (grouped(), lambda node: node.input.__delitem__(slice(5, None)), "how many keys count"),
    ],
)
def test_forms_without_a_plain_one_are_named(build: Build, change: Callable[[onnx.NodeProto], None], message: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=message) as caught:
        anynpu.compile(changed(build, change), "rk3588", dtype="fp16")
    assert "before onnxruntime optimized it" in caught.value.hint


@pytest.mark.parametrize("read", [False, True])
def test_results_that_are_not_made_are_refused_where_they_are_read(read: bool) -> None:
    proto = changed(attending(), lambda node: node.output.append("present"))
    if not read:
        assert anynpu.compile(proto, "rk3588", dtype="fp16").outputs
        return
    proto.graph.output.append(helper.make_tensor_value_info("present", TensorProto.FLOAT, [2, 2, HEADS, LENGTH, 4]))
    with pytest.raises(UnsupportedOperatorError, match="'present' is read"):
        anynpu.compile(proto, "rk3588", dtype="fp16")


@pytest.mark.parametrize(
    ("build", "attributes"),
    [
        (packed(4, 32, 16), {"K": 1 << 40}),
        (packed(4, 32, 16), {"N": 7}),
        (packed(4, 32, 16), {"bits": 3}),
        (packed(4, 32, 16), {"block_size": 0}),
        (tabled(1), {"N": 1 << 40}),
        (tabled(1), {"quant_type": 5}),
        (attending(), {"num_heads": 0}),
        (attending(), {"num_heads": -1}),
        (attending(), {"num_heads": 7}),
        (grouped(), {"num_heads": 1 << 40, "kv_num_heads": 1 << 40}),
        (grouped(), {"kv_num_heads": 3}),
        (rotary(2, LENGTH, 16), {"rotary_embedding_dim": 1 << 40}),
    ],
)
def test_numbers_that_fit_nothing_end_in_one_error(build: Build, attributes: dict[str, int]) -> None:
    """Nothing of that size is made on the way."""
    proto = net_of(build, 17)
    node = proto.graph.node[-1]
    kept = [entry for entry in node.attribute if entry.name not in attributes]
    del node.attribute[:]
    node.attribute.extend([*kept, *(helper.make_attribute(*entry) for entry in attributes.items())])
    with pytest.raises(CompileError):
        anynpu.compile(proto, "rk3588", dtype="fp16")


def test_a_network_that_was_saved_for_one_processor_is_refused() -> None:
    net = Net(17)
    net.opsets["com.microsoft.nchwc"] = 1
    net.output(net.op("Conv", net.input("x", (1, 8, 8, 8)), net.weights(8, 8, 3, 3), domain="com.microsoft.nchwc"))
    with pytest.raises(UnsupportedOperatorError, match="optimized for the processor") as caught:
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert "ORT_ENABLE_EXTENDED" in caught.value.hint


def test_weights_of_a_few_bits_leave_no_codes_behind() -> None:
    """The packed table is as large as the rest of such a model."""
    proto = net_of(packed(4, 32, 16, zeros="packed"), 17)
    write_plainly(proto)
    assert [numpy_helper.to_array(entry).shape for entry in proto.graph.initializer] == [(32, 5)]
