"""Parts of an ONNX model: which of its nodes the compiler takes, and the compiled models of these parts.

The plug-in execution provider writes the graph that onnxruntime gives it to a file and starts ``anynpu ort parts``. Nodes are identified by
their number in the file. What the compiler rejects stays on onnxruntime's CPU provider, with the reason.

A part must be convex: no path may leave it and return. Nodes get a level, which rises behind each node that is left, and the nodes of one
level are one part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._util import optional as _optional
from ..._util.types import Array
from ...compiler import CompileOptions, compile
from ...compiler.importers.split_post_processing import SHAPE_FROM_DATA
from ...compiler.quantize.dataset import InputInfo, open_dataset
from ...errors import CalibrationError, CompileError, CompileOptionError, UnsupportedOperatorError
from ...modelfile import CompiledModel
from ...program import Preprocess

__all__ = ["Part", "PartPlan", "compile_parts", "default_dtype", "write_parts"]

STANDARD = ("", "ai.onnx")
SUBGRAPH = "anynpu.subgraph"
"""An attribute with which the provider marks nodes that hold graphs, which it does not write."""

_HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"})
_QUANTIZED = frozenset({"QuantizeLinear", "QLinearConv", "QLinearMatMul"})

_FLOATS = ("fp16", "bf16")

_FEW = 3
"""A part of fewer nodes is only worth its conversions if one of them is heavy, or if it is the whole model."""

_ATTEMPTS = 64
"""Nodes that the compiler may reject one by one; then the rest of the part is left."""

_TYPES = frozenset({"FLOAT", "FLOAT16", "INT8", "UINT8", "INT16", "INT32", "INT64", "BOOL"})
"""Element types of inputs and outputs that the RKNN calls transfer."""


@dataclass(frozen=True)
class Part:
    """One compiled part.

    :ivar nodes: numbers of its nodes
    :ivar outputs: names of the values that it gives
    """

    nodes: tuple[int, ...]
    outputs: tuple[str, ...]
    model: CompiledModel


@dataclass
class PartPlan:
    """What was compiled, and why the rest was not.

    :ivar left: reasons by number of node
    """

    count: int
    parts: list[Part] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)

    def reasons(self) -> list[str]:
        """A line for each reason: the numbers of the nodes, and why they are left."""
        by_reason: dict[str, list[int]] = {}
        for node, reason in sorted(self.left.items()):
            by_reason.setdefault(" ".join(reason.split()), []).append(node)
        return [f"node{'s' if len(nodes) > 1 else ''} {_ranges(nodes)}: {reason}" for reason, nodes in by_reason.items()]


def _ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers in few words.

    >>> _ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    ends: list[list[int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ", ".join(f"{first}-{last}" if first != last else str(first) for first, last in ends)


def compile_parts(model: str | Path, target: str, options: CompileOptions) -> PartPlan:
    """Compile the nodes of *model* that the compiler takes.

    :param model: an ONNX file whose values have types and shapes
    :param options: of the compiler; ``dataset``, ``mean`` and ``std`` describe the inputs of the whole model
    :returns: the compiled parts, and a reason for each node that is in none

    >>> plan = compile_parts("det.onnx", "rk3588", CompileOptions(dtype="fp16"))        # doctest: +SKIP
    >>> [len(part.nodes) for part in plan.parts]                                        # doctest: +SKIP
    [327]
    """
    onnx = _optional.onnx()
    graph = _Graph(onnx, onnx.load(str(model)), options)
    if options.dataset is None and options.dtype not in _FLOATS and not graph.is_quantized:
        raise CalibrationError(
            f"a {options.dtype} model needs calibration data",
            hint="set the option dataset to a folder of images, leave dtype out for float16, or use a model with QuantizeLinear",
        )
    return _Planner(graph, target, options).plan()


def default_dtype(model: str | Path, dataset: object) -> str:
    """The type of the compiled parts where none is given: int8 with calibration data or a model that carries its scales, else float16."""
    if dataset is not None:
        return "w8a8"
    proto = _optional.onnx().load(str(model), load_external_data=False)
    return "w8a8" if _is_quantized(proto) else "fp16"


def _is_quantized(proto: Any) -> bool:
    """Whether a model carries its scales."""
    return any(node.op_type in _QUANTIZED for node in proto.graph.node)


def write_parts(plan: PartPlan, folder: Path) -> None:
    """Write the compiled parts and the plan, which the provider reads: a line for each fact, names as hexadecimal UTF-8."""
    lines = [f"nodes {plan.count}"]
    for number, part in enumerate(plan.parts):
        part.model.save(folder / f"part{number}.anynpu")
        lines.append(f"part part{number}.anynpu")
        if len(part.model.programs) > 1:
            lines.append("shapes several")
        lines.append(f"members {' '.join(map(str, part.nodes))}")
        lines.extend(f"output {name.encode().hex()}" for name in part.outputs)
    lines.extend(f"left {text}" for text in plan.reasons())
    (folder / "plan").write_text("\n".join([*lines, "end", ""]), encoding="utf-8")


class _Graph:
    """An ONNX graph with node numbers, and what is known of its values."""

    def __init__(self, onnx: Any, proto: Any, options: CompileOptions) -> None:
        self.onnx = onnx
        self.proto = proto
        self.is_quantized = _is_quantized(proto)
        self.nodes = list(proto.graph.node)
        self.initializers = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.inputs = [value for value in proto.graph.input if value.name not in self.initializers]
        self.shape_sets = _shape_sets(options)
        self.shapes = self.shape_sets[0] if self.shape_sets else {}
        self._fix_inputs()
        graph = self.proto.graph
        self.infos = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        self.numbers: dict[str, int] = {}
        for number, node in enumerate(self.nodes):
            name = node.name or f"{node.op_type}_{number}"
            node.name = name if name not in self.numbers else f"{name}_{number}"
            self.numbers[node.name] = number
        self.producers = {name: number for number, node in enumerate(self.nodes) for name in node.output if name}

    def _fix_inputs(self) -> None:
        """Give inputs the shapes of the options, and infer those that are not known."""
        known = {value.name for value in (*self.proto.graph.value_info, *self.proto.graph.output)}
        if not self.shapes and all(name in known for node in self.nodes for name in node.output if name):
            return
        for value in self.inputs:
            dims = value.type.tensor_type.shape.dim
            sizes = list(zip(*(each[value.name] for each in self.shape_sets if value.name in each), strict=False))
            for axis, (dim, several) in enumerate(zip(dims, sizes, strict=False) if len(dims) == len(sizes) else ()):
                if len(set(several)) == 1:
                    dim.dim_value = several[0]
                else:
                    dim.dim_param = f"{value.name}_{axis}"
        for value in self.proto.graph.value_info if self.shapes else ():
            value.type.tensor_type.ClearField("shape")
        self.proto = self.onnx.shape_inference.infer_shapes(self.proto)
        self.nodes = list(self.proto.graph.node)
        self.inputs = [value for value in self.proto.graph.input if value.name not in self.initializers]

    def reads(self, number: int) -> list[int]:
        """The nodes whose results a node reads."""
        return [self.producers[name] for name in self.nodes[number].input if name in self.producers]

    def boundary(self, members: Sequence[int]) -> tuple[list[str], list[str]]:
        """Names of the values that a part reads and gives."""
        inside = set(members)
        made = {name for number in members for name in self.nodes[number].output if name}
        read = dict.fromkeys(name for number in members for name in self.nodes[number].input if name)
        inputs = [name for name in read if name not in made and name not in self.initializers]
        wanted = {value.name for value in self.proto.graph.output}
        wanted |= {name for number, node in enumerate(self.nodes) if number not in inside for name in node.input}
        outputs = [name for number in members for name in self.nodes[number].output if name in made and name in wanted]
        return inputs, outputs

    def part(self, members: Sequence[int]) -> Any:
        """The part as a model of its own.

        :raises CompileError: the type or shape of an input or output is not known
        """
        helper = self.onnx.helper
        inputs, outputs = self.boundary(members)
        used = {name for number in members for name in self.nodes[number].input}
        graph = helper.make_graph(
            [self.nodes[number] for number in members],
            self.proto.graph.name or "part",
            [self._info(name, static=name not in self.shapes) for name in inputs],
            [self._info(name, static=False) for name in outputs],
            [tensor for name, tensor in self.initializers.items() if name in used],
        )
        opsets = [entry for entry in self.proto.opset_import if entry.domain in STANDARD]
        return helper.make_model(graph, opset_imports=opsets, ir_version=min(self.proto.ir_version, 10))

    def _info(self, name: str, *, static: bool) -> Any:
        info = self.infos.get(name)
        tensor = None if info is None else info.type.tensor_type
        types = self.onnx.TensorProto.DataType
        if tensor is None or not tensor.elem_type:
            raise CompileError(f"the type of {name} is not known", tensor=name)
        if types.Name(tensor.elem_type) not in _TYPES:
            raise CompileError(f"{name} is of type {types.Name(tensor.elem_type).lower()}", tensor=name)
        if static and not _is_static(tensor):
            raise CompileError(_dynamic(name), tensor=name)
        if any(dim.HasField("dim_value") and not dim.dim_value for dim in tensor.shape.dim):
            raise CompileError(f"{name} has no elements", tensor=name)
        return info

    def dynamic_values(self) -> dict[str, str]:
        """Values that depend on an input of the model whose shape is not fixed, with the name of that input."""
        found = {}
        for value in self.inputs:
            if value.name not in self.shapes and not _is_static(value.type.tensor_type):
                found[value.name] = value.name
        for node in self.nodes:
            origin = next((found[name] for name in node.input if name in found), None)
            if origin is not None:
                found.update((name, origin) for name in node.output if name)
        return found


def _is_static(tensor: Any) -> bool:
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _dynamic(name: str) -> str:
    return f"the shape of {name} is dynamic; set the option shape, such as {name}=1,3,320,320"


def _shape_sets(options: CompileOptions) -> list[Mapping[str, Sequence[int]]]:
    """The shapes of the options; several sets make a model that takes each of them."""
    given = options.shapes
    return [given] if isinstance(given, Mapping) else list(given or ())


class _Planner:
    """Finds parts and compiles them; a node that the compiler rejects is left, and the parts are found again."""

    def __init__(self, graph: _Graph, target: str, options: CompileOptions) -> None:
        self.graph = graph
        self.target = target
        self.options = options
        self.found = PartPlan(len(graph.nodes))
        self._samples: list[dict[str, Array]] | None = None
        self._compiled: dict[tuple[int, ...], Part] = {}

    def plan(self) -> PartPlan:
        """The plan."""
        left = self.found.left
        left.update(self._foreign())
        for _ in range(_ATTEMPTS):
            groups = self._groups()
            if all(self._try(members) for members in groups):
                break
        else:
            left.update({number: "too many nodes of the model are rejected" for members in groups for number in members})
            groups = []
        self.found.parts = [self._compiled[members] for members in groups if members in self._compiled]
        return self.found

    def _foreign(self) -> dict[int, str]:
        """Nodes that the compiler cannot have."""
        reasons = {}
        dynamic = self.graph.dynamic_values()
        for number, node in enumerate(self.graph.nodes):
            origin = next((dynamic[name] for name in node.input if name in dynamic), None)
            if origin is not None:
                reasons[number] = _dynamic(origin)
            elif node.domain not in STANDARD:
                reasons[number] = f"{node.domain}.{node.op_type} is not a standard operator"
            elif any(attribute.name == SUBGRAPH for attribute in node.attribute):
                reasons[number] = f"{node.op_type} holds graphs"
            elif node.op_type in SHAPE_FROM_DATA:
                reasons[number] = f"the shape of the result of {node.op_type} depends on data"
        return reasons

    def _groups(self) -> list[tuple[int, ...]]:
        """The parts: nodes of one level, without those that are left."""
        left = self.found.left
        levels: dict[int, int] = {}
        for number in range(len(self.graph.nodes)):
            before = [levels[other] + (other in left and number not in left) for other in self.graph.reads(number)]
            levels[number] = max(before, default=0)
        by_level: dict[int, list[int]] = {}
        for number, level in levels.items():
            if number not in left:
                by_level.setdefault(level, []).append(number)
        groups = []
        for members in by_level.values():
            heavy = any(self.graph.nodes[number].op_type in _HEAVY for number in members)
            if len(members) == len(self.graph.nodes) or len(members) >= _FEW or heavy:
                groups.append(tuple(members))
            else:
                reason = "a part of so few nodes takes longer to transfer than to compute"
                left.update(dict.fromkeys(members, reason))
        return groups

    def _try(self, members: tuple[int, ...]) -> bool:
        """Compile a part; False if nodes of it were left."""
        if members in self._compiled:
            return True
        try:
            part = self.graph.part(members)
            outputs = tuple(value.name for value in part.graph.output)
            options = replace(self.options, mean=None, std=None, shapes=self._shapes(part), dataset=self._dataset(part))
            model = compile(part, self.target, options)
            if set(model.programs[0].outputs) != set(outputs):
                raise UnsupportedOperatorError("the compiler moves the end of this part to the host")
            self._compiled[members] = Part(members, outputs, model)
        except (CalibrationError, CompileOptionError):
            raise  # about the options, not about a node
        except CompileError as error:
            rejected = self._rejected(members, error)
            self.found.left.update(dict.fromkeys(rejected, error.message))
            return False
        return True

    def _rejected(self, members: tuple[int, ...], error: CompileError) -> Iterable[int]:
        """The nodes that an error is about; all of the part where it names none."""
        nodes = self.graph.nodes
        number = self.graph.numbers.get(error.node, self.graph.producers.get(error.tensor, -1))
        if number in members:
            return [number]
        readers = [each for each in members if error.tensor and error.tensor in nodes[each].input]
        return readers or [each for each in members if nodes[each].op_type == error.operator] or members

    def _shapes(self, part: Any) -> Any:
        """The shapes of the options that belong to inputs of a part."""
        names = {value.name for value in part.graph.input}
        kept = [{name: shape for name, shape in each.items() if name in names} for each in self.graph.shape_sets]
        return None if not kept or not kept[0] else kept if len(kept) > 1 else kept[0]

    # -- calibration

    def _dataset(self, part: Any) -> Any:
        """Samples for the inputs of a part."""
        if self.options.dataset is None:
            return None
        names = [value.name for value in part.graph.input]
        whole = {value.name for value in self.graph.inputs}
        samples = self._inputs_of_model()
        if set(names) <= whole:
            return [{name: sample[name] for name in names} for sample in samples]
        return self._intermediate(names, samples)

    def _inputs_of_model(self) -> list[dict[str, Array]]:
        if self._samples is None:
            infos = [self._input_info(value) for value in self.graph.inputs]
            self._samples = [dict(sample) for sample in open_dataset(self.options.dataset, infos, limit=100)]
        return self._samples

    def _input_info(self, value: Any) -> InputInfo:
        dims = value.type.tensor_type.shape.dim
        shape = tuple(self.graph.shapes.get(value.name, [dim.dim_value for dim in dims]))
        dtype = np.dtype(self.graph.onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        channels = shape[1] if len(shape) > 1 else 1
        mean, std = _numbers(self.options.mean, value.name, 0.0, channels), _numbers(self.options.std, value.name, 1.0, channels)
        return InputInfo(value.name, shape, dtype, Preprocess(mean, std))

    def _intermediate(self, names: Sequence[str], samples: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """Values between nodes, from the float model."""
        proto = self.graph.onnx.ModelProto()
        proto.CopyFrom(self.graph.proto)
        del proto.graph.output[:]
        proto.graph.output.extend(self.graph.infos[name] for name in names)
        settings = _optional.onnxruntime().SessionOptions()
        settings.log_severity_level = 3
        session = _optional.ort_session(proto.SerializeToString(), settings)
        return [dict(zip(names, session.run(names, sample), strict=True)) for sample in samples]


def _numbers(given: Any, name: str, otherwise: float, channels: int) -> tuple[float, ...]:
    """The numbers of ``mean`` or ``std`` for an input, one for each channel."""
    value = given.get(name, otherwise) if isinstance(given, Mapping) else otherwise if given is None else given
    numbers = tuple(float(each) for each in value) if isinstance(value, Sequence) else (float(value),)
    return numbers * channels if len(numbers) == 1 else numbers
