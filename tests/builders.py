"""Programs built by hand: small, but with every operator, so that tests need no compiler."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu.program import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Custom,
    CustomConstant,
    Dense,
    Epilogue,
    Float,
    FloatOp,
    Layer,
    MatMul,
    MemoryPlan,
    Model,
    Op,
    Pad,
    Placement,
    Pool,
    Preprocess,
    Program,
    Resize,
    Slice,
    Table,
    Transpose,
    Weights,
    immediate,
)
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec

Array = npt.NDArray[Any]

CLASSES = 10


def epilogue(channels: int, **fields: Any) -> Epilogue:
    """An epilogue with one entry for each channel."""
    values = {"multiplier": np.full(channels, 0.02, np.float32), "zero_point": np.full(channels, -3, np.int32)}
    return Epilogue(**{**values, **fields})


class ProgramBuilder:
    """Adds layers one after the other and gives every tensor in between a place of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.tensors: dict[str, TensorSpec] = {}
        self.layers: list[Layer] = []
        self.views: dict[str, str] = {}

    def tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType = DType.INT8,
        layout: Layout | None = None,
        quantization: Quantization | None = None,
    ) -> str:
        """A new tensor: int8 in NHWC with one scale, unless said otherwise."""
        if layout is None:
            layout = Layout.NHWC if len(shape) == 4 else Layout.PLAIN
        if quantization is None and not dtype.is_float:
            quantization = Affine.per_tensor(0.05, 4)
        self.tensors[name] = TensorSpec(name, shape, dtype, layout, quantization)
        return name

    def view(self, name: str, owner: str, shape: tuple[int, ...]) -> str:
        """The memory of *owner* under another shape."""
        self.tensor(name, shape, self.tensors[owner].dtype)
        self.views[name] = owner
        return name

    def layer(self, op: Op, inputs: Sequence[str], outputs: Sequence[str], **fields: Any) -> None:
        """A layer that is named after its first output."""
        kind = type(op).__name__
        self.layers.append(Layer(f"{kind}_{outputs[0]}", kind, op, tuple(inputs), tuple(outputs), **fields))

    def codes(self, *shape: int, dtype: str = "int8") -> Array:
        """Random codes over the whole range of a type."""
        info = np.iinfo(dtype)
        return self.random.integers(info.min, info.max, shape, dtype, endpoint=True)

    def conv(self, outputs: int, kernel: int, depth: int, **fields: Any) -> dict[str, Any]:
        """The arrays of a convolution."""
        return {
            "weights": self.codes(outputs, kernel, kernel, depth),
            "weight_zero": self.random.integers(-9, 9, outputs).astype(np.int32),
            "bias": self.random.integers(-999, 999, outputs).astype(np.int32),
            "epilogue": epilogue(outputs),
            **fields,
        }

    def program(self, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
        """The program, with a place in memory for all that is neither input, output nor view."""
        offsets, size = {}, 0
        for name, spec in self.tensors.items():
            if name not in inputs and name not in outputs and name not in self.views:
                offsets[name] = size
                size += -(-spec.nbytes // 64) * 64
        return Program(
            tuple(inputs),
            tuple(outputs),
            dict(self.tensors),
            tuple(self.layers),
            MemoryPlan(offsets, size),
            self.views,
        )


@functools.cache
def scoring() -> tuple[Float, Float]:
    """scores = logits x w and probabilities = softmax(scores / 2), as two float layers."""
    weights = np.random.default_rng(7).normal(size=(CLASSES, CLASSES)).astype(np.float16)
    scores = Float((FloatOp("MatMul", ("logits", "w"), ("scores",)),), {"w": Weights(weights)}, DType.FLOAT16)
    shares = (FloatOp("Mul", ("scores", "half"), ("halved",)), FloatOp("Softmax", ("halved",), ("probabilities",), {"axis": 1}))
    return scores, Float(shares, {"half": immediate(0.5, "float32")})


def nearest(target: int, source: int) -> Array:
    """The index array of a nearest resize."""
    first = np.minimum(np.arange(target) * source // target, source - 1)
    return np.stack([first, first, np.zeros(target, np.int64)], axis=1).astype(np.int32)


def every_operator(side: int = 8, seed: int = 0) -> Program:
    """A program in which each operator occurs; *side* is height and width of the input image and must be even."""
    b = ProgramBuilder(seed)
    half = side // 2
    groups = Affine((0.05, 0.1), (4, -7), (3, 5))
    x = b.tensor("image", (1, 3, side, side))

    table = b.codes(2, 256)
    first = epilogue(8, table=table, table_groups=(3, 5), clamp=np.array([[-100] * 8, [90] * 8], np.int32))
    c1 = b.tensor("c1", (1, 8, side, side), quantization=groups)
    b.layer(
        Conv(**b.conv(8, 3, 3, pads=(1, 1, 1, 1), epilogue=first)), [x], [c1], macs=8 * 27 * side * side, nodes=("conv", "silu")
    )
    t1 = b.tensor("t1", (1, 8, side, side))
    b.layer(Table(b.codes(2, 256), (3, 5)), [c1], [t1])
    added = b.tensor("added", (1, 8, side, side))
    multiplier = np.array([0.3], np.float32)
    none = epilogue(8, multiplier=np.zeros(0, np.float32), slope=np.full(8, 0.1, np.float32))
    b.layer(Binary("add", multiplier, multiplier, none), [c1, t1], [added])

    largest = b.tensor("largest", (1, 8, half, half))
    b.layer(Pool("max", (3, 3), (2, 2), (1, 1, 0, 0)), [added], [largest])
    mean = b.tensor("mean", (1, 8, half, half))
    b.layer(Pool("average", (2, 2), (2, 2), epilogue=epilogue(1)), [added], [mean])
    joined = b.tensor("joined", (1, 16, half, half))
    b.layer(Concat(3, (None, Table(b.codes(1, 256)))), [largest, mean], [joined])
    deep = b.tensor("deep", (1, 16, half, half))
    residual = epilogue(16, residual_multiplier=np.full(16, 0.5, np.float32))
    b.layer(Conv(**b.conv(16, 3, 1, pads=(2, 2, 2, 2), dilations=(2, 2), groups=16, epilogue=residual)), [joined, joined], [deep])
    wide = b.tensor("wide", (1, 16, side, side))
    b.layer(Resize("nearest", nearest(side, half), nearest(side, half)), [deep], [wide])
    left, right = b.tensor("left", (1, 8, side, side)), b.tensor("right", (1, 8, half, side))
    b.layer(Slice(((0, 0, 0, 0), (0, side - 1, 0, 8)), ((1, 1, 1, 1), (1, -2, 1, 1))), [wide], [left, right])
    framed = b.tensor("framed", (1, 8, half + 2, side + 3))
    b.layer(Pad((0, 1, 1, 0), (0, 1, 2, 0), "reflect"), [right], [framed])
    up = b.tensor("up", (1, 4, 2 * side, 2 * side))
    b.layer(ConvTranspose(**b.conv(4, 2, 8, strides=(2, 2))), [left], [up])

    rows = b.view("rows", deep, (1, half * half, 16))
    turned = b.tensor("turned", (1, 16, half * half))
    b.layer(Transpose((half * half, 16), (1, 0)), [rows], [turned])
    product = b.tensor("product", (1, 16, 16))
    b.layer(MatMul(epilogue(16)), [turned, rows], [product])

    pooled = b.tensor("pooled", (1, 16, 1, 1), quantization=DynamicFixedPoint(5))
    b.layer(Pool("average", (half, half), epilogue=epilogue(16)), [deep], [pooled])
    flat = b.view("flat", pooled, (1, 16))
    dense = {key: value for key, value in b.conv(CLASSES, 1, 16).items() if key != "weights"}
    logits8 = b.tensor("logits8", (1, CLASSES))
    b.layer(Dense(b.codes(CLASSES, 16), **dense), [flat], [logits8], weight_bytes=CLASSES * 16)
    values = b.tensor("values", (1, CLASSES), DType.FLOAT32)
    b.layer(Convert(), [logits8], [values])
    picked = b.tensor("picked", (1, CLASSES), DType.FLOAT32)
    place = b.tensor("place", (1, 1), DType.INT64)
    b.tensors[place] = replace(b.tensors[place], quantization=None)
    attributes = {
        "axis": np.array(-1, np.int64),
        "sizes": np.arange(3.0, dtype=np.float32),
        "mode": "schnell",
        "names": ("a", "ä"),
    }
    constants = (CustomConstant(0, "limits", np.array([[-1.0, 1.0]], np.float32)),)
    fields = {"placement": Placement.CPU, "reason": "custom operator 'Pick'"}
    b.layer(Custom("Pick", attributes, constants), [values], [picked, place], **fields)
    logits = b.tensor("logits", (1, CLASSES), DType.FLOAT32)
    b.layer(Convert(), [logits8], [logits])
    scores = b.tensor("scores", (1, CLASSES), DType.FLOAT32)
    result = b.tensor("probabilities", (1, CLASSES), DType.FLOAT32)
    first, second = scoring()
    b.layer(first, [logits], [scores])
    b.layer(second, [scores], [result], placement=Placement.CPU, reason="Softmax: axis 1 of rank 2")
    program = b.program([x], [result, up, product, framed])
    halved = TensorSpec("halved", (1, CLASSES), DType.FLOAT32)  # lies inside a layer and has no memory
    return replace(program, tensors={**program.tensors, "halved": halved})


def every_operator_model(chip: str = "rk3588", sides: Sequence[int] = (8, 12), **fields: Any) -> Model:
    """A model of one program for each size of the input image. They have the same weights, since these do not depend on the size."""
    values = {
        "name": "every operator",
        "custom_string": "für Tests",
        "preprocess": {"image": Preprocess((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))},
        "provenance": {"source": "builders.py"},
    }
    return Model(chip, "w8a8", tuple(every_operator(side) for side in sides), **{**values, **fields})


def wide_model(chip: str = "rk3588") -> Model:
    """One convolution of 16 bits: int16 weights, int64 bias, and a table of 65536 entries."""
    b = ProgramBuilder(3)
    x = b.tensor("x", (1, 4, 5, 5), DType.INT16)
    y = b.tensor("y", (1, 6, 5, 5), DType.INT16)
    fields = {"weights": b.codes(6, 1, 1, 4, dtype="int16"), "bias": np.arange(6, dtype=np.int64)}
    look_up = epilogue(6, table=b.codes(1, 65536, dtype="int16"))
    b.layer(Conv(**b.conv(6, 1, 4, **fields, epilogue=look_up)), [x], [y])
    return Model(chip, "w16a16", (b.program([x], [y]),))
