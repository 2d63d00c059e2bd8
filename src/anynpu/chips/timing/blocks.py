"""Layers of a program that the chip does as one: attention, normalisations, and what follows a product.

Exporters write a LayerNormalization as seven operators, GELU as five, and attention as two products with transposes, a scale, a mask and a
Softmax between them. They are found by what reads what, not by names or by their order. A block has the indices of its layers; the first of
them in the program gets all of its work, the others cost nothing.

Everything here is a pure function of a program.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ...program import Layer, Program
from .array import splits_blocks

__all__ = ["Block", "BlockKind", "Flow", "find_blocks"]

_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Identity", "Dropout", "Quantize", "Dequantize")
_BETWEEN = (*_VIEWS, "Add", "Mul", "Div", "Sub", "Where", "Clip", "Min", "Max", "Lut")
"""What stands between the scores and the Softmax: a scale, a mask, a bound."""

_AROUND = (*_VIEWS, "Transpose", "Mul", "Div", "Expand", "Tile")
"""What brings queries, keys and values to their heads, and the result back."""

_ACTIVATIONS = (
    "Gelu",
    "Lut",
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSwish",
    "HardSigmoid",
    "Silu",
    "Swish",
    "Mish",
)
_PRODUCTS = ("Gemm", "Conv", "ConvTranspose", "MatMul")
_MAX_STEPS = 12
_HALF_BLOCK = 8
"""Channels of a block in float16."""


class BlockKind(enum.Enum):
    """What a block is."""

    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    ACTIVATION = "activation"
    PRODUCT = "product"


@dataclass(frozen=True)
class Block:
    """Layers that are one.

    :ivar members: indices of its layers, all of them
    :ivar first: the layer that gets its work
    :ivar heads: attention: products of queries and keys
    :ivar rows: attention: queries of a head
    :ivar columns: attention: keys of a head
    :ivar depth: attention: elements of a query
    :ivar moved: attention: elements that its transposes move
    :ivar elements: of its input
    :ivar added: product: the tensor that is added to its result
    :ivar activation: product: what its result goes through
    :ivar result: the tensor that it makes
    """

    kind: BlockKind
    members: tuple[int, ...]
    first: int
    heads: int = 0
    rows: int = 0
    columns: int = 0
    depth: int = 0
    moved: int = 0
    elements: int = 0
    added: str = ""
    activation: str = ""
    result: str = ""


@dataclass(frozen=True)
class Flow:
    """Who makes and who reads each tensor; views count as the tensor that they show."""

    program: Program
    makers: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Flow:
        """The flow of a program."""
        makers: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for index, layer in enumerate(program.layers):
            for name in layer.outputs:
                makers.setdefault(_owner(program, name), index)
            for name in layer.inputs:
                readers.setdefault(_owner(program, name), []).append(index)
        return cls(program, makers, {name: tuple(found) for name, found in readers.items()})

    def layer(self, index: int) -> Layer:
        return self.program.layers[index]

    def above(self, index: int) -> list[int]:
        """The layers that make what a layer reads."""
        names = (_owner(self.program, name) for name in self.layer(index).inputs)
        return [self.makers[name] for name in names if name in self.makers and self.makers[name] < index]

    def below(self, index: int) -> list[int]:
        """The layers that read what a layer makes."""
        found: list[int] = []
        for name in self.layer(index).outputs:
            found += [reader for reader in self.readers.get(_owner(self.program, name), ()) if reader > index]
        return sorted(set(found))

    def only_below(self, index: int) -> int | None:
        """The one layer that reads what a layer makes; None if there are several, or if it leaves the program."""
        outputs = {_owner(self.program, name) for name in self.program.outputs}
        if any(_owner(self.program, name) in outputs for name in self.layer(index).outputs):
            return None
        found = self.below(index)
        return found[0] if len(found) == 1 else None

    def elements(self, names: Iterable[str]) -> int:
        return sum(self.program.tensors[name].elements for name in names)


def find_blocks(program: Program, *, attention: bool = True) -> dict[int, Block]:
    """The blocks of a program by the indices of all their layers; no layer is in two.

    :param attention: whether attention is looked for
    """
    flow = Flow.of(program)
    found: dict[int, Block] = {}

    def keep(block: Block | None) -> None:
        if block is not None and not any(index in found for index in block.members):
            found.update(dict.fromkeys(block.members, block))

    for index, layer in enumerate(program.layers):
        if layer.does == "Softmax" and attention:
            keep(_attention(flow, index))
        elif layer.does == "Attention" and attention:
            keep(_attention_operator(flow, index))
        elif layer.does == "Sqrt":
            keep(_normalisation(flow, index))
        elif layer.does == "Erf":
            keep(_gelu(flow, index))
    for index, layer in enumerate(program.layers):
        if layer.does in _PRODUCTS and layer.macs and index not in found:
            keep(_product(flow, index, found))
    return found


def _owner(program: Program, name: str) -> str:
    return program.views.get(name, name)


def _is_activation_product(flow: Flow, index: int) -> bool:
    """Whether a layer multiplies two activations."""
    layer = flow.layer(index)
    return layer.does == "MatMul" and layer.macs > 0 and len(layer.inputs) > 1


def _attention(flow: Flow, softmax: int) -> Block | None:
    """The attention around a Softmax: scores above it, the product with the values below."""
    members = {softmax}
    scores = _walk_up(flow, softmax, _BETWEEN, members)
    if scores is None:
        return None
    values, index = None, softmax
    for _ in range(_MAX_STEPS):
        below = flow.only_below(index)
        if below is None:
            return None
        members.add(below)
        if _is_activation_product(flow, below):
            values = below
            break
        if flow.layer(below).does not in _BETWEEN:
            return None
        index = below
    if values is None:
        return None
    tensors = flow.program.tensors
    shape = tensors[flow.layer(scores).outputs[0]].shape
    if len(shape) < 2:
        return None
    heads = max(tensors[flow.layer(scores).outputs[0]].elements // max(shape[-1] * shape[-2], 1), 1)
    depth = max(flow.layer(scores).macs // max(heads * shape[-1] * shape[-2], 1), 1)
    moves = _moves(flow, (scores, values), members)
    return Block(
        BlockKind.ATTENTION,
        tuple(sorted(members)),
        scores,
        heads,
        shape[-2],
        shape[-1],
        depth,
        moves,
        flow.elements(flow.layer(scores).inputs),
        result=flow.layer(values).outputs[0],
    )


def _attention_operator(flow: Flow, index: int) -> Block | None:
    """The operator of that name: queries, keys and values with the heads as an axis, or beside each other."""
    layer = flow.layer(index)
    queries, keys = (flow.program.tensors[name].shape for name in layer.inputs[:2])
    if len(queries) < 3 or len(keys) < 3 or not layer.macs:
        return None
    rows, columns = queries[-2], keys[-2]
    heads = queries[0] * queries[1] if len(queries) == 4 else queries[0]
    depth = queries[-1]
    elements = flow.elements(layer.inputs[:3])
    return Block(BlockKind.ATTENTION, (index,), index, heads, rows, columns, depth, 0, elements, result=layer.outputs[0])


def _walk_up(flow: Flow, index: int, through: Collection[str], members: set[int]) -> int | None:
    """The product of activations above a layer, reached through layers that nobody else reads."""
    for _ in range(_MAX_STEPS):
        candidates = [maker for maker in flow.above(index) if flow.only_below(maker) == index]
        product = next((maker for maker in candidates if _is_activation_product(flow, maker)), None)
        if product is not None:
            members.add(product)
            return product
        step = next((maker for maker in candidates if flow.layer(maker).does in through), None)
        if step is None:
            return None
        members.add(step)
        index = step
    return None


def _moves(flow: Flow, products: tuple[int, int], members: set[int]) -> int:
    """Takes the transposes before and after attention into *members*; the elements that they move."""
    moved = 0
    for product in products:
        for maker in flow.above(product):
            index: int | None = maker
            for _ in range(_MAX_STEPS):
                if index is None or index in members or flow.layer(index).does not in _AROUND:
                    break
                if not set(flow.below(index)) <= members:
                    break
                members.add(index)
                if flow.layer(index).does == "Transpose":
                    moved += flow.elements(flow.layer(index).outputs)
                above = flow.above(index)
                index = above[0] if len(above) == 1 else None
    index = flow.only_below(products[1])
    while index is not None and flow.layer(index).does in (*_VIEWS, "Transpose"):
        members.add(index)
        if flow.layer(index).does == "Transpose":
            moved += flow.elements(flow.layer(index).outputs)
        index = flow.only_below(index)
    return moved


def _normalisation(flow: Flow, root: int) -> Block | None:
    """The normalisation around a square root: mean of squares above it, a division below."""
    members = {root}
    index = root
    reduced = False
    for _ in range(_MAX_STEPS):
        above = [maker for maker in flow.above(index) if maker not in members]
        if not above:
            break
        name = flow.layer(above[0]).does
        if name == "ReduceMean" and not reduced:
            reduced = True
        elif not (name == "Add" and not reduced) and not (name in ("Pow", "Mul") and reduced):
            break
        index = above[0]
        members.add(index)
    if not reduced:
        return None
    for maker in list(flow.above(index)):
        if flow.layer(maker).does == "Sub":
            members.add(maker)
            members.update(mean for mean in flow.above(maker) if flow.layer(mean).does == "ReduceMean")
    members |= _steps_below(flow, root, ("Div", "Reciprocal", "Mul", "Add"), members)
    first = min(members)
    widest = max(flow.elements(flow.layer(member).inputs[:1]) for member in members)
    return Block(
        BlockKind.NORMALISATION, tuple(sorted(members)), first, elements=widest, result=flow.layer(max(members)).outputs[0]
    )


def _steps_below(flow: Flow, index: int, names: Collection[str], inside: set[int]) -> set[int]:
    """Layers below one that are of these kinds and read nothing but constants and the block's own tensors; at most four."""
    found: set[int] = set()
    own = set(inside)
    for _ in range(4):
        below = flow.only_below(index)
        if below is None or flow.layer(below).does not in names:
            break
        if found and any(maker not in own | found for maker in flow.above(below)):
            break
        found.add(below)
        index = below
    return found


def _gelu(flow: Flow, erf: int) -> Block | None:
    """GELU that was written out: x / sqrt(2), Erf, + 1, * x, / 2."""
    members = {erf}
    above = flow.above(erf)
    if len(above) == 1 and flow.layer(above[0]).does in ("Div", "Mul") and len(flow.layer(above[0]).inputs) == 1:
        members.add(above[0])
    index = erf
    for _ in range(3):
        below = flow.only_below(index)
        if below is None or flow.layer(below).does not in ("Add", "Mul"):
            break
        members.add(below)
        index = below
    if len(members) < 3:
        return None
    elements = flow.elements(flow.layer(erf).outputs)
    return Block(
        BlockKind.ACTIVATION, tuple(sorted(members)), min(members), elements=elements, result=flow.layer(index).outputs[0]
    )


def _product(flow: Flow, product: int, taken: Mapping[int, Block]) -> Block | None:
    """A product with weights, with the activation or the residual addition that follows it, perhaps behind a Reshape."""
    layer = flow.layer(product)
    if _is_activation_product(flow, product):
        return None
    members = {product}
    index, added, activation = product, "", ""
    result = layer.outputs[0]
    for _ in range(_MAX_STEPS):
        below = flow.only_below(index)
        if below is None or below in taken:
            break
        following = flow.layer(below)
        if following.does in _VIEWS:
            shapes = [flow.program.tensors[names[0]].shape for names in (following.inputs, following.outputs)]
            if splits_blocks(shapes[0], shapes[1], _HALF_BLOCK):
                break
            members.add(below)
            index = below
            continue
        if following.does == "Add" and not added and not activation and not layer.activation and len(following.inputs) == 2:
            counts = {flow.program.tensors[name].elements for name in (*following.inputs, *following.outputs)}
            if len(counts) != 1:
                break
            mine = {_owner(flow.program, name) for name in flow.layer(index).outputs}
            added = next((name for name in following.inputs if _owner(flow.program, name) not in mine), "")
            if not added:
                break
            activation = following.activation
        elif following.does in _ACTIVATIONS and not activation and not layer.activation and len(following.inputs) == 1:
            activation = following.does
        else:
            break
        members.add(below)
        result = following.outputs[0]
        index = below
    if not added and not activation:
        return None
    return Block(BlockKind.PRODUCT, tuple(sorted(members)), product, added=added, activation=activation, result=result)
