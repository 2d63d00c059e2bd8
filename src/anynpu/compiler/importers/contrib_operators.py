"""Operators that onnxruntime's optimizers write (SkipLayerNormalization, Attention, FusedConv, MatMulNBits), as ONNX's own.

A network that was optimized or packed for onnxruntime is the same network: written plainly it is fused and quantised like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..._util.optional import onnx
from ...errors import AnynpuError, CompileError, UnsupportedOperatorError
from .contrib_attention import attention, multi_head_attention, quantized_attention
from .contrib_blocks import gather_blocks, matmul_blocks, matmul_tables
from .contrib_writer import RuntimeNode, Writer

__all__ = ["write_plainly"]

_MICROSOFT, _BLOCKED = "com.microsoft", "com.microsoft.nchwc"
_OWN = ("", "ai.onnx")
_USUAL = 17
"""The operator set of what is written, where a model uses none of ONNX's."""
_ACTIVATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("Relu", ()),
    "Tanh": ("Tanh", ()),
    "Sigmoid": ("Sigmoid", ()),
    "LeakyRelu": ("LeakyRelu", ("alpha",)),
    "HardSigmoid": ("HardSigmoid", ("alpha", "beta")),
}
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _normalized(write: Writer, source: str, scale: str, shift: str, epsilon: float, result: str) -> None:
    """A normalisation over the last axis, as the operator set of the model can say it."""
    if write.opset >= 17:
        write.node("LayerNormalization", [source, scale, *([shift] if shift else [])], result, axis=-1, epsilon=epsilon)
        return
    centred = write.node("Sub", [source, write.mean(source)])
    spread = write.node("Sqrt", [write.node("Add", [write.mean(write.node("Mul", [centred, centred])), write.number(epsilon)])])
    scaled = write.node("Mul", [write.node("Div", [centred, spread]), scale], "" if shift else result)
    if shift:
        write.node("Add", [scaled, shift], result)


def _root_mean_square(write: Writer, source: str, scale: str, epsilon: float, result: str) -> None:
    squares = write.node("Add", [write.mean(write.node("Mul", [source, source])), write.number(epsilon)])
    write.node("Mul", [write.node("Div", [source, write.node("Sqrt", [squares])]), scale], result)


def _summed(write: Writer, node: RuntimeNode, bias: int) -> str:
    """The input of a normalisation with a residual; the model may read the sum as well."""
    write.only_outputs(node, 0, 3)
    shown = node.output(3)
    if not node.input(bias):
        return write.node("Add", [node.input(0), node.input(1)], shown)
    return write.node("Add", [write.node("Add", [node.input(0), node.input(1)]), node.input(bias)], shown)


def _skip_layer_normalization(write: Writer, node: RuntimeNode) -> None:
    _normalized(write, _summed(write, node, 4), node.input(2), node.input(3), node.number("epsilon", 1e-12), node.output(0))


def _skip_simplified(write: Writer, node: RuntimeNode) -> None:
    _root_mean_square(write, _summed(write, node, 3), node.input(2), node.number("epsilon", 1e-12), node.output(0))


def _simplified(write: Writer, node: RuntimeNode) -> None:
    write.only_outputs(node, 0)
    if node.whole("axis", -1) != -1:
        raise node.refused("it normalises another axis than the last")
    _root_mean_square(write, node.input(0), node.input(1), node.number("epsilon", 1e-5), node.output(0))


def _layer_normalization(write: Writer, node: RuntimeNode) -> None:
    """onnxruntime has it for older operator sets than ONNX."""
    write.only_outputs(node, 0)
    if node.whole("axis", -1) != -1:
        raise node.refused("it normalises another axis than the last")
    _normalized(write, node.input(0), node.input(1), node.input(2), node.number("epsilon", 1e-5), node.output(0))


def _embed_layer_normalization(write: Writer, node: RuntimeNode) -> None:
    words = write.node("Gather", [node.input(2), node.input(0)])
    if node.input(8):
        places = write.node("Gather", [node.input(3), node.input(8)])
    else:
        count = write.length(node.input(0), 1)
        places = write.node("Slice", [node.input(3), write.whole([0]), count, write.whole([0])])
    total = write.node("Add", [words, places])
    if node.input(4):
        total = write.node("Add", [total, write.node("Gather", [node.input(4), node.input(1)])])
    if write.is_read(node.output(2)):
        write.node("Identity", [total], node.output(2))
    _normalized(write, total, node.input(5), node.input(6), node.number("epsilon", 1e-12), node.output(0))
    if write.is_read(node.output(1)):
        if not node.input(7):
            raise node.refused("its lengths are read, and it has no mask")
        write.node("Cast", [write.total(node.input(7))], node.output(1), to=onnx().TensorProto.INT32)
        write.lengths.add(node.output(1))


def _gelu(write: Writer, node: RuntimeNode) -> None:
    _error_function_gelu(write, node.input(0), node.output(0))


def _bias_gelu(write: Writer, node: RuntimeNode) -> None:
    _error_function_gelu(write, write.node("Add", [node.input(0), node.input(1)]), node.output(0))


def _error_function_gelu(write: Writer, source: str, result: str) -> None:
    if write.opset >= 20:
        write.node("Gelu", [source], result)
        return
    share = write.node("Erf", [write.node("Div", [source, write.number(math.sqrt(2.0))])])
    write.node("Mul", [write.node("Mul", [source, write.node("Add", [share, write.number(1.0)])]), write.number(0.5)], result)


def _fast_gelu(write: Writer, node: RuntimeNode) -> None:
    source = write.node("Add", [node.input(0), node.input(1)]) if node.input(1) else node.input(0)
    if write.opset >= 20:
        write.node("Gelu", [source], node.output(0), approximate="tanh")
        return
    cube = write.node("Mul", [write.node("Mul", [write.node("Mul", [source, source]), source]), write.number(0.044715)])
    inner = write.node("Mul", [write.node("Add", [source, cube]), write.number(math.sqrt(2.0 / math.pi))])
    share = write.node("Add", [write.node("Tanh", [inner]), write.number(1.0)])
    write.node("Mul", [write.node("Mul", [source, share]), write.number(0.5)], node.output(0))


def _quick_gelu(write: Writer, node: RuntimeNode) -> None:
    source = node.input(0)
    gate = write.node("Sigmoid", [write.node("Mul", [source, write.number(node.number("alpha", 1.702))])])
    write.node("Mul", [source, gate], node.output(0))


def _fused_conv(write: Writer, node: RuntimeNode) -> None:
    """A convolution with a residual and an activation: it would be float as it stands, whatever the model's type."""
    kind = node.text("activation", "")
    added, active = bool(node.input(3)), bool(kind)
    inputs = [node.input(index) for index in range(3 if node.input(2) else 2)]
    last = write.node("Conv", inputs, "" if added or active else node.output(0), **node.given(*_CONV))
    if added:
        last = write.node("Add", [last, node.input(3)], "" if active else node.output(0))
    if not active:
        return
    parameters = node.numbers("activation_params")
    if kind == "Clip" and len(parameters) == 2:
        write.node("Clip", [last, *(write.number(value) for value in parameters)], node.output(0))
    elif kind in _ACTIVATIONS and len(parameters) >= len(_ACTIVATIONS[kind][1]):
        op, names = _ACTIVATIONS[kind]
        write.node(op, [last], node.output(0), **dict(zip(names, parameters, strict=False)))
    else:
        raise node.refused(f"its activation '{kind}' is not known")


def _bias_add(write: Writer, node: RuntimeNode) -> None:
    write.node("Add", [write.node("Add", [node.input(0), node.input(1)]), node.input(2)], node.output(0))


_PLAIN: Mapping[tuple[str, str], Callable[[Writer, RuntimeNode], None]] = {
    ("", "SimplifiedLayerNormalization"): _simplified,
    (_MICROSOFT, "SkipLayerNormalization"): _skip_layer_normalization,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_simplified,
    (_MICROSOFT, "SimplifiedLayerNormalization"): _simplified,
    (_MICROSOFT, "EmbedLayerNormalization"): _embed_layer_normalization,
    (_MICROSOFT, "Gelu"): _gelu,
    (_MICROSOFT, "BiasGelu"): _bias_gelu,
    (_MICROSOFT, "FastGelu"): _fast_gelu,
    (_MICROSOFT, "QuickGelu"): _quick_gelu,
    (_MICROSOFT, "FusedConv"): _fused_conv,
    (_MICROSOFT, "BiasAdd"): _bias_add,
    (_MICROSOFT, "Attention"): attention,
    (_MICROSOFT, "MultiHeadAttention"): multi_head_attention,
    (_MICROSOFT, "QAttention"): quantized_attention,
    (_MICROSOFT, "MatMulNBits"): matmul_blocks,
    (_MICROSOFT, "MatMulBnb4"): matmul_tables,
    (_MICROSOFT, "GatherBlockQuantized"): gather_blocks,
}


def write_plainly(proto: Any, own: Collection[str] = ()) -> None:
    """Write onnxruntime's operators as ONNX's, in place; those whose names are in *own* are the caller's.

    :raises CompileError: one of them is written in a way that has no plain form
    """
    graph = proto.graph
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    opset = versions.get("", versions.get("ai.onnx", _USUAL))
    table = dict(_PLAIN)
    if opset < 17:
        table["", "LayerNormalization"] = _layer_normalization
    known = [(("" if node.domain in _OWN else node.domain), node.op_type) for node in graph.node]
    blocked = next((node for node in graph.node if node.domain == _BLOCKED), None)
    if blocked is not None:
        raise UnsupportedOperatorError(
            "the model was optimized for the processor of the machine that saved it",
            node=blocked.name,
            operator=f"{_BLOCKED}.{blocked.op_type}",
            hint="compile the model as it was before onnxruntime optimized it, or save it with the level ORT_ENABLE_EXTENDED",
        )
    if not any(key in table and key[1] not in own for key in known):
        return
    write = Writer(graph, opset)
    for key, node in zip(known, list(graph.node), strict=True):
        if key not in table or key[1] in own:
            write.keep(node)
            continue
        try:
            table[key](write, write.entered(node))
        except AnynpuError:
            raise
        except (IndexError, TypeError, ValueError, KeyError) as error:
            raise CompileError(
                f"an operator of onnxruntime makes no sense: {error}",
                node=node.name,
                operator=node.op_type,
                hint="export and optimize the model again",
            ) from error
    write.finish()
    if "" not in versions and "ai.onnx" not in versions:
        proto.opset_import.append(onnx().helper.make_opsetid("", _USUAL))
