"""From nodes to steps.

Whole chains of element-wise nodes on one tensor become one function; a function that follows a convolution becomes its activation; a
residual Add becomes part of the convolution before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...chips import Chip
from ...program.arithmetic.lookup_tables import CURVES, Shape, hard_sigmoid
from ..graph import Graph, Node
from ..quantize.channel_groups import is_depthwise_layer
from .forms import Form
from .functions import Function, binary_function, clip_bounds, scalar_operand, unary_function
from .steps import Activation, Step

# What may be fused, that is, between which nodes no int8 code stands: by our own quantization config, and as Rockchip's toolkit does it.
#
# The toolkit's rules were measured on its simulator with layers alone (docs/validation.md has them row by row).


@dataclass(frozen=True)
class FusionRules:
    """Where quantized values may be left out.

    :ivar chains: activations and arithmetic with constants on one tensor are one function, with one rounding at its end. Otherwise an
        activation that has a name is a function on its own
    :ivar sum_before_table: an Add goes into the convolution before it although a table follows, which then takes the rounded sum
    :ivar depthwise_sum: an Add goes into a depthwise convolution too
    :ivar depthwise_leak: so does a LeakyRelu
    :ivar earlier_summand: of two convolutions that are added, the one that comes first in the model is fused with the Add, and the other
        one's result has quantized values. Otherwise the later one is fused
    :ivar dense_codes: activations that take an int8 value after a fully connected layer; others work on the unrounded sum
    :ivar curves: an activation after a convolution works on the unrounded sum, where the chip has a table for it. Otherwise on the value
        that is rounded to 8 bits, as the open driver of the RK3588 allows
    :ivar codes: tensors that are quantized values in any case, since a model that is quantized already has them so
    """

    chains: bool = True
    sum_before_table: bool = False
    depthwise_sum: bool = True
    depthwise_leak: bool = True
    earlier_summand: bool = False
    dense_codes: tuple[str, ...] = ()
    curves: bool = True
    codes: frozenset[str] = frozenset()


OWN_RULES = FusionRules()

_DEPTHWISE_SUM_APART = ("rk3588", "rk3566", "rk3568")
"""Seen on RK3588 and RK3566; RK3568 has the NPU of the latter. RK3576, RK3562 and RV1106 were seen to fuse it."""


def toolkit_rules(chip: Chip) -> FusionRules:
    """The rules of Rockchip's toolkit for one chip."""
    return FusionRules(
        chains=False,
        sum_before_table=True,
        depthwise_sum=chip.name not in _DEPTHWISE_SUM_APART,
        depthwise_leak=False,
        earlier_summand=True,
        dense_codes=("HardSwish",),
    )


@dataclass(frozen=True, eq=False)
class _Symbol:
    """A tensor as a function of another one."""

    base: str
    activation: Activation | None = None
    nodes: tuple[Node, ...] = field(default=())


_MAX_CHAIN_LENGTH = 64
"""Nodes that one function is made of; each is a nested call."""

_FUSABLE = {Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE, Form.BINARY, Form.MATMUL}


_ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Pow"}
"""With constants: functions that are no activation."""

_CLAMPS = {"Relu", "Clip", "Max", "Min"}


def build_steps(graph: Graph, forms: dict[int, Form], rules: FusionRules = OWN_RULES) -> list[Step]:
    """The steps of a simplified graph, in an order in which they can run."""
    symbols, real = _symbols(graph, forms, rules)
    steps = _raw_steps(graph, forms, symbols, real)
    _fuse_activations(graph, steps, rules)
    return _fuse_residuals(graph, steps, rules)


def _symbols(graph: Graph, forms: dict[int, Form], rules: FusionRules) -> tuple[dict[str, _Symbol], set[str]]:
    """Tensors as functions of others, and the set of tensors that must really exist."""
    readers = graph.consumers()
    real: set[str] = {*graph.outputs, *rules.codes, *(name for node in graph.nodes if node.apart for name in node.outputs)}
    while True:
        symbols: dict[str, _Symbol] = {}
        merged: set[int] = set()
        for node in graph.nodes:
            symbol = _compose(graph, node, forms, symbols, real)
            if symbol is not None:
                merged.add(id(node))
                symbols[node.outputs[0]] = symbol
        needed = {
            name
            for name, users in readers.items()
            if name in symbols and name not in real and (_is_full(symbols[name]) or any(id(user) not in merged for user in users))
        }
        if not rules.chains:
            needed |= _links(graph, symbols, real | needed)
        if not needed:
            return symbols, real
        real |= needed


def _links(graph: Graph, symbols: dict[str, _Symbol], real: set[str]) -> set[str]:
    """Where to cut the functions of *real* tensors that have no name: after the last activation in them, or before it.

    A row of constants, such as a scale and a shift, is cut between each two of them.
    """
    found: set[str] = set()
    for name in real:
        activation = symbols[name].activation if name in symbols else None
        if activation is None or activation.label != "Lut":
            continue
        inner = [node.outputs[0] for node in activation.nodes if node.outputs[0] in symbols and node.outputs[0] not in real]
        whole = [link for link in inner if _is_activation(symbols[link])]
        if whole:
            found.add(whole[-1])
        elif inner and (
            activation.nodes[-1].op not in (*_ARITHMETIC, *_CLAMPS)
            or all(_has_constant(graph, node) for node in activation.nodes)
        ):
            found.add(inner[-1])
    return found


def _has_constant(graph: Graph, node: Node) -> bool:
    """Whether a node is arithmetic of one tensor and a constant."""
    return node.op in _ARITHMETIC and sum(name not in graph.constants for name in node.inputs) == 1


def _is_activation(symbol: _Symbol) -> bool:
    return symbol.activation is not None and symbol.activation.label not in (*_ARITHMETIC, "Lut")


def _symbol(name: str, symbols: dict[str, _Symbol], real: set[str]) -> _Symbol:
    return _Symbol(name) if name in real or name not in symbols or _is_full(symbols[name]) else symbols[name]


def _is_full(symbol: _Symbol) -> bool:
    return len(_nodes(symbol)) >= _MAX_CHAIN_LENGTH


def _compose(graph: Graph, node: Node, forms: dict[int, Form], symbols: dict[str, _Symbol], real: set[str]) -> _Symbol | None:
    form = forms.get(id(node))
    if form is Form.FUNCTION:
        function = unary_function(graph, node)
        data = node.inputs[0]
        if function is None:
            operand = scalar_operand(graph, node)
            assert operand is not None  # forms_of has looked
            data, function = operand
        source = _symbol(data, symbols, real)
        return _Symbol(source.base, _after(graph, source, node, function))
    if form is not Form.BINARY:
        return None
    left, right = (_symbol(name, symbols, real) for name in node.inputs)
    shape = graph.shapes[node.outputs[0]]
    if left.base != right.base or any(graph.shapes[name] != shape for name in node.inputs):
        return None
    combine = binary_function(node)
    assert combine is not None
    first, second = _function(left), _function(right)
    nodes = _unique((*_nodes(left), *_nodes(right), node))
    return _Symbol(left.base, _labelled(Activation(_once(lambda x: combine(first(x), second(x))), "Lut", nodes)))


def _once(function: Function) -> Function:
    """The function with its last result remembered: where two operands share a part, the work would double with every node."""
    last: list[npt.NDArray[np.float64]] = []

    def remembered(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if not last or last[0] is not x:
            last[:] = [x, function(x)]
        return last[1]

    return remembered


def _function(symbol: _Symbol) -> Function:
    return symbol.activation.function if symbol.activation else _identity


def _identity(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return x


def _nodes(symbol: _Symbol) -> tuple[Node, ...]:
    return symbol.activation.nodes if symbol.activation else ()


def _unique(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({id(node): node for node in nodes}.values())


def _after(graph: Graph, source: _Symbol, node: Node, function: Function) -> Activation:
    nodes = _unique((*_nodes(source), node))
    bounds = clip_bounds(graph, node)
    before = source.activation
    if before is None:
        leak = float(node.attribute("alpha", 0.01)) if node.op == "LeakyRelu" else math.nan
        slope = np.array([leak], np.float32) if math.isfinite(leak) else None
        activation = Activation(function, node.op, nodes, bounds, slope)
        return activation if bounds or slope is not None else _labelled(replace(activation, label=node.op))
    if before.bounds and bounds:
        low, high = max(before.bounds[0], bounds[0]), min(before.bounds[1], bounds[1])
        if low <= high:
            return Activation(lambda x: np.clip(x, low, high), "Clip", nodes, (low, high))
    earlier = before.function
    return _labelled(Activation(_once(lambda x: function(earlier(x))), "Lut", nodes))


_KNOWN: tuple[tuple[str, Function], ...] = (
    ("HardSwish", lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    ("Swish", lambda x: x / (1.0 + np.exp(-x))),
    ("HardSigmoid", lambda x: np.clip(x / 6.0 + 0.5, 0.0, 1.0)),
    ("Mish", lambda x: x * np.tanh(np.logaddexp(0.0, x))),
    ("Gelu", lambda x: 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))),
)
_PROBE = np.linspace(-7.0, 7.0, 57)


def _labelled(activation: Activation) -> Activation:
    """Give a composed function the name that it is known by, if it has one."""
    if activation.label != "Lut" or activation.is_table is False:
        return activation
    with np.errstate(all="ignore"):
        values = activation.function(_PROBE)
        for label, known in _KNOWN:
            if np.allclose(values, known(_PROBE), rtol=1e-5, atol=1e-6):
                return replace(activation, label=label)
    return activation


def _raw_steps(graph: Graph, forms: dict[int, Form], symbols: dict[str, _Symbol], real: set[str]) -> list[Step]:
    steps: list[Step] = []
    made_by: dict[str, Step] = {}
    for node in graph.nodes:
        form = forms.get(id(node))
        outputs = [name for name in node.outputs if name]
        data = [name for name in node.inputs if name and name not in graph.constants]
        symbol = symbols.get(outputs[0])
        if symbol is not None:
            if outputs[0] not in real:
                continue
            activation = symbol.activation
            assert activation is not None
            step = Step(Form.FUNCTION, node, list(activation.nodes), [symbol.base], outputs, activation, symbol.base)
        elif form is Form.BIAS:
            step = made_by[data[0]]
            step.nodes.append(node)
            step.outputs = outputs
            made_by[outputs[0]] = step
            continue
        elif form is Form.PRELU:
            step = made_by[data[0]]
            slope = graph.constants[node.inputs[1]].reshape(-1).astype(np.float32)
            step.activation = Activation(_identity, "PRelu", (node,), None, slope)
            step.before_activation = data[0]
            step.nodes.append(node)
            step.outputs = outputs
            made_by[outputs[0]] = step
            continue
        else:
            step = Step(form, node, [node], data, outputs, is_float=form is None)
        steps.append(step)
        made_by.update(dict.fromkeys(outputs, step))
    return steps


def _readers(steps: list[Step]) -> dict[str, list[Step]]:
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    return readers


def _fuse_activations(graph: Graph, steps: list[Step], rules: FusionRules) -> None:
    readers = _readers(steps)
    made_by = {name: step for step in steps for name in step.outputs}
    for step in list(steps):
        if step.form is not Form.FUNCTION:
            continue
        base = step.inputs[0]
        maker = made_by.get(base)
        averages = maker is not None and maker.form is Form.POOL and "Average" in maker.node.op
        if maker is None or maker.activation is not None or (maker.form not in _FUSABLE and not averages):
            continue
        if len(readers[base]) > 1 or base in graph.outputs or base in rules.codes:
            continue
        leaks = step.activation is not None and step.activation.slope is not None
        if leaks and not rules.depthwise_leak and maker.form is Form.CONV and is_depthwise_layer(graph, maker):
            continue
        maker.activation, maker.before_activation = step.activation, base
        maker.nodes += step.nodes
        maker.outputs = step.outputs
        made_by[step.outputs[0]] = maker
        steps.remove(step)


def _fuse_residuals(graph: Graph, steps: list[Step], rules: FusionRules) -> list[Step]:
    readers = _readers(steps)
    made_by = {name: step for step in steps for name in step.outputs}
    order = {id(step): index for index, step in enumerate(steps)}
    gone: set[int] = set()
    for add in list(steps):
        plain = add.activation is None or not add.activation.is_table or rules.sum_before_table
        if add.form is not Form.BINARY or add.node.op != "Add" or not plain or len(set(add.inputs)) != 2 or add.node.apart:
            continue
        shape = graph.shapes[add.node.outputs[0]]
        candidates = []
        for own, other in (add.inputs, add.inputs[::-1]):
            maker = made_by.get(own)
            if (
                maker is not None
                and maker.form is Form.CONV
                and maker.activation is None
                and not maker.residual
                and (rules.depthwise_sum or not is_depthwise_layer(graph, maker))
                and len(readers[own]) == 1
                and own not in graph.outputs
                and own not in rules.codes
                and graph.shapes[own] == graph.shapes[other] == shape
                and id(maker) not in gone
            ):
                candidates.append((order[id(maker)], maker, other))
        if not candidates:
            continue
        choose = min if rules.earlier_summand else max
        _, maker, other = choose(candidates, key=lambda entry: entry[0])
        # The convolution now runs where the Add stood: only there is the other operand sure to exist.
        fused = Step(
            maker.form,
            maker.node,
            [*maker.nodes, *add.nodes],
            maker.inputs,
            add.outputs,
            add.activation,
            add.before_activation,
            other,
        )
        gone.add(id(maker))
        place = next(index for index, step in enumerate(steps) if step is add)
        steps[place] = fused
        order[id(fused)] = order[id(add)]
        made_by.update(dict.fromkeys(fused.outputs, fused))
    return [step for step in steps if id(step) not in gone]


# Which activations work on the unrounded result of a layer: on a chip through its tables, in the vendor's simulator in float.
#
# The vendor's compiler does so after dense and grouped convolutions and after fully connected layers, and with Elu after a
# depthwise one; otherwise an int8 code stands in between, and so it does where something was added to the convolution. Bytes of
# a board show the first for Sigmoid, HardSigmoid, HardSwish, Swish, Softplus and Elu. The simulator has a code before a
# HardSigmoid.


_RELATIVE, _ABSOLUTE = 1e-5, 1e-6


def assign_curves(graph: Graph, steps: list[Step], rules: FusionRules = OWN_RULES) -> None:
    """Give each step that computes its activation by a curve the shape of that curve."""
    for step in steps:
        shape = _shape_after(graph, step, rules)
        if shape is not None:
            step.curve = shape


def leave_unrounded(graph: Graph, steps: list[Step], rules: FusionRules = OWN_RULES) -> None:
    """Mark each step whose activation the vendor's simulator takes on the unrounded result."""
    for step in steps:
        step.unrounded = _shape_after(graph, step, rules) in _OF_THE_SIMULATOR


_OF_THE_SIMULATOR = tuple(CURVES.values())


def _shape_after(graph: Graph, step: Step, rules: FusionRules) -> Shape | None:
    """The tabulated function that follows the step's unrounded result; None where there is none, or a code in between."""
    activation = step.activation
    if (
        step.is_float
        or step.residual
        or activation is None
        or not activation.is_table
        or step.form not in (Form.DENSE, Form.CONV)
    ):
        return None
    shape = shape_of(activation)
    if step.form is Form.DENSE:
        return shape if activation.label not in rules.dense_codes else None
    return shape if not is_depthwise_layer(graph, step) or shape is CURVES["Elu"] else None


def simulated_function(activation: Activation) -> Function:
    """An activation with the operations of the vendor's simulator in their order: in float32 every one of them rounds."""
    return _SIMULATED.get(id(shape_of(activation)), activation.function)


_SIMULATED: dict[int, Function] = {
    id(CURVES["HardSwish"]): lambda x: x * np.clip(x * (1.0 / 6.0) + 0.5, 0.0, 1.0),
    id(CURVES["Swish"]): lambda x: x * (1.0 / (1.0 + np.exp(-x))),
}


def shape_of(activation: Activation) -> Shape | None:
    """The tabulated function that an activation is; None if it is none of them."""
    with np.errstate(all="ignore"):
        values = activation.function(_PROBE)
        for shape, (known, tolerance) in zip(CURVES.values(), _known_values(), strict=True):
            if np.all(np.abs(values - known) <= tolerance):
                return shape
        through = _hard_sigmoid_through(activation)
        if through is not None and np.allclose(values, through.function(_PROBE), rtol=_RELATIVE, atol=_ABSOLUTE):
            return through
    return None


@cache
def _known_values() -> tuple[tuple[Array, Array], ...]:
    """The values of each tabulated function, and how far another one may be from them."""
    found = [shape.function(_PROBE) for shape in CURVES.values()]
    return tuple((values, _ABSOLUTE + _RELATIVE * np.abs(values)) for values in found)


def _hard_sigmoid_through(activation: Activation) -> Shape | None:
    """The hard sigmoid with the activation's value and slope at zero."""
    first, second = activation.function(np.array([0.0, 0.125]))
    slope = (second - first) / 0.125
    return hard_sigmoid(float(slope), float(first)) if 1e-3 < slope < 1e3 and 0.0 < first < 1.0 else None
