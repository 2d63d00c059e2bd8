"""The rules of float operators: the names, operands, attributes and types of a float layer, and the shapes that follow from them.

After these checks an engine may take the shape of every tensor from its TensorSpec. A shape that cannot be told from a file (an operand
that is computed, an operator of the rule ``declared``) is what the TensorSpec says; engines that are handed another one stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..program import FLOAT_OPERATORS, Constant, Float, FloatOp, Immediate, Weights
from ..program.float_operators import IMMEDIATE_TYPES, AttributeRule
from ..tensor import DType, Layout, TensorSpec
from .float_shapes import MAX_LIST, MAX_STEP, SHAPES, Call, Value
from .operator_rules import MAX_DIMENSIONS, RuleBroken, require

__all__ = ["check_float"]

MAX_OPERATORS = 4096
MAX_ATTRIBUTE_TEXT = 256

_REAL = "real"
_COMPUTED_IN = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_PACKED = (DType.INT4, DType.UINT4)
_POSITIVE = {"kernel_shape", "strides", "dilations", "group", "blocksize", "num_groups", "size", "num_outputs", "sample_size"}
_POSITIVE |= {"output_height", "output_width", "pooled_shape", "hidden_size", "offset_group", "output_shape", "shape"}
_NATURAL = {"pads", "output_padding", "block_size", "batch_dims", "p"}
_PYTHON: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
_ONNX_TYPES = {1: _REAL, 10: _REAL, 11: _REAL, 16: _REAL, 9: "bool"} | dict(
    zip((2, 3, 4, 5, 6, 7, 12, 13), ("uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64"), strict=True)
)
"""The element types that Cast and its kind may name, by ONNX's number."""


def _kind(dtype: str) -> str:
    """What a type is to an operator: all real numbers are one kind."""
    return _REAL if "float" in dtype else dtype


def check_float(
    op: Float, inputs: Mapping[str, TensorSpec], tensors: Mapping[str, TensorSpec], outputs: Sequence[str], contents: bool
) -> None:
    """Check a float layer; raises :class:`RuleBroken`.

    :param inputs: what the layer reads
    :param tensors: all tensors of the program
    :param outputs: what the layer makes
    :param contents: look at the values of weights too
    """
    require(op.compute in _COMPUTED_IN, f"no chip computes in {op.compute.value}")
    require(0 < len(op.operators) <= MAX_OPERATORS, f"{len(op.operators)} operators")
    known = {name: _tensor(spec) for name, spec in inputs.items()}
    for name, constant in op.constants.items():
        require(name and name not in known, f"the constant '{name[:64]}' is an input as well, or has no name")
        known[name] = _constant(name, constant, contents)
    for entry in op.operators:
        try:
            _check_operator(entry, known, tensors)
        except RuleBroken as refusal:
            raise RuleBroken(f"{entry.name[:64]} {refusal}") from None
    made = {name for entry in op.operators for name in entry.outputs}
    for name in outputs:
        require(name in made, f"none of its operators makes '{name[:64]}'")


def _tensor(spec: TensorSpec) -> Value:
    plain = spec.layout in (Layout.NCHW, Layout.PLAIN) and math.prod(spec.memory_shape) == spec.elements
    require(plain, f"tensor '{spec.name[:64]}' is not row-major")
    codes = spec.quantization is not None
    require(not codes or spec.dtype is DType.INT8, f"tensor '{spec.name[:64]}' is quantised, and not int8")
    require(spec.dtype not in _PACKED, f"tensor '{spec.name[:64]}' is {spec.dtype.value}")
    return Value(spec.shape, _kind(spec.dtype.value))


def _constant(name: str, constant: Constant, contents: bool) -> Value:
    value = constant.value
    if isinstance(constant, Weights):
        fits = value.dtype == np.uint16 if constant.bfloat16 else value.dtype.name in IMMEDIATE_TYPES
        require(fits, f"the constant '{name[:64]}' is {value.dtype}")
        require(value.ndim <= MAX_DIMENSIONS, f"the constant '{name[:64]}' has {value.ndim} axes")
    seen = contents or isinstance(constant, Immediate)
    return Value(value.shape, _kind(constant.dtype), value if seen else None, fixed=True)


def _check_operator(op: FloatOp, known: dict[str, Value], tensors: Mapping[str, TensorSpec]) -> None:
    signature = FLOAT_OPERATORS.get(op.name)
    require(signature is not None, "is not a float operator")
    assert signature is not None
    for what, count, (fewest, most) in (
        ("inputs", len(op.inputs), signature.inputs),
        ("outputs", len(op.outputs), signature.outputs),
    ):
        require(fewest <= count <= most, f"has {count} {what}, takes {fewest} to {most}")
    require(all(op.inputs[: signature.inputs[0]]), "lacks an input")
    require(any(op.outputs), "makes nothing")
    _attributes(op, signature.attributes)
    for name in op.inputs:
        require(not name or name in known, f"reads '{name[:64]}', which nothing makes")
    _codes(op, tensors)
    values = [known[name] if name else None for name in op.inputs]
    shapes = SHAPES[signature.shape](Call(op, values))
    for number, name in enumerate(op.outputs):
        if not name:
            continue
        require(name not in known, f"makes '{name[:64]}', which is there already")
        require(name in tensors, f"makes the unknown tensor '{name[:64]}'")
        made = _tensor(tensors[name])
        shape = shapes[number] if shapes is not None and number < len(shapes) else None
        require(shape is None or shape == made.shape, f"gives {list(shape or ())}, '{name[:64]}' is {list(made.shape)}")
        wanted = _result(op, signature.result, values) if number == 0 else ""
        require(wanted in ("", made.kind), f"gives {wanted} numbers, '{name[:64]}' is {tensors[name].dtype.value}")
        known[name] = made


def _codes(op: FloatOp, tensors: Mapping[str, TensorSpec]) -> None:
    """Only what makes numbers of codes reads a quantised tensor, and only what makes codes of numbers writes one."""
    for names, free in ((op.inputs, "DequantizeLinear"), (op.outputs, "QuantizeLinear")):
        for position, name in enumerate(names):
            coded = name in tensors and tensors[name].quantization is not None
            require(not coded or (op.name == free and position == 0), f"has '{name[:64]}', which is quantised")


def _attributes(op: FloatOp, rules: Mapping[str, AttributeRule]) -> None:
    for key, rule in rules.items():
        require(not rule.required or key in op.attributes, f"lacks the attribute '{key}'")
    for key, value in op.attributes.items():
        require(key in rules, f"has the unknown attribute '{key[:64]}'")
        rule = rules[key]
        listed = rule.kind.endswith("s")
        require(isinstance(value, tuple) is listed, f"has an attribute '{key}' that is not {rule.kind}")
        items = value if isinstance(value, tuple) else (value,)
        require(len(items) <= MAX_LIST, f"has an attribute '{key}' of {len(items)} entries")
        types = _PYTHON[rule.kind.removesuffix("s") if listed else rule.kind]
        for item in items:
            require(isinstance(item, types) and not isinstance(item, bool), f"has an attribute '{key}' that is not {rule.kind}")
            if isinstance(item, str):
                require(len(item) <= MAX_ATTRIBUTE_TEXT, f"has an attribute '{key}' of {len(item)} characters")
                require(not rule.choices or item in rule.choices, f"has {key} '{item[:64]}', not {' or '.join(rule.choices)}")
            require(not isinstance(item, float) or math.isfinite(item), f"has {key} {item}")
            if key in _POSITIVE or key in _NATURAL:
                require(int(key in _POSITIVE) <= int(item) <= MAX_STEP, f"has {key} {item}")


def _result(op: FloatOp, rule: str, values: Sequence[Value | None]) -> str:
    """The kind of the first result; empty where it is not told."""
    if op.name in ("Cast", "BitCast"):
        kind = _ONNX_TYPES.get(op.attribute("to"), "")
        require(kind, f"to the element type {op.attribute('to')}")
        return kind
    if rule == "same":
        return values[0].kind if values and values[0] is not None else ""
    return rule
