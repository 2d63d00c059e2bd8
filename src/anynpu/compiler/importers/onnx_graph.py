"""From an ONNX model to a :class:`Graph`: fixed shapes, folded constants, one clear error for everything that is wrong with it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.optional import MAX_TENSOR_VARIABLE, max_tensor_bytes, onnx, onnxruntime, ort_session
from ...errors import CompileError, ShapeError, TensorNameError, UnsupportedOperatorError
from ...modelfile.post_processing import infer_shapes
from ..custom_operators import DOMAIN as CUSTOM_DOMAIN
from ..custom_operators import CustomTable, Declarations, custom_node, infer_custom
from ..graph import Graph, Node, to_onnx
from ..passes.fused_matmul import plain_products
from .constant_inputs import give_constants, refuse_open_parameters, refuse_training
from .control_flow import write_out_control_flow
from .dequantize import dequantize
from .dynamic_dimensions import suggested_extent
from .external_weights import HandedConstants
from .float_types import has_other_reals, keep_bits, widen, without_castlike
from .onnx_model import first_line, input_names
from .quantized_operators import between_pairs
from .sequences import open_sequences
from .split_post_processing import SHAPE_FROM_DATA
from .stages import Stage, stages

_log = logging.getLogger("anynpu.compiler")

__all__ = ["Shapes", "constant_array", "import_onnx"]

Shapes = Mapping[str, Sequence[int]]

MAX_GRAPH = 1 << 32
"""Elements of all tensors together: the model is run once, and onnxruntime keeps them until it is done."""

MAX_AXES = 8

MAX_MODEL = (1 << 31) - (1 << 20)
"""Bytes of a serialised model: protobuf ends at 2 GiB."""

_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


def import_onnx(
    proto: Any,
    shapes: Shapes | None = None,
    batch: int | None = None,
    custom: CustomTable | None = None,
    *,
    weights: Mapping[str, npt.NDArray[Any]] | None = None,
    detached: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Graph:
    """The graph of a checked model with the input shapes of *shapes*.

    With *weights*, which the model declares as inputs, the model is not executed where its shapes can be inferred.

    :param detached: values of constants that the model has without values (:func:`anynpu.compiler.importers.external_weights.detach`)
    """
    source_nodes = sum(node.op_type != "Constant" for node in proto.graph.node)
    known = {*(tensor.name for tensor in proto.graph.initializer), *(weights or {})}
    open_sequences(proto, shapes or {})
    declared = Declarations(proto)
    fixed = _fix_inputs(proto, known, dict(shapes or {}), batch)
    declared.fix(fixed)
    write_out_control_flow(proto)
    between_pairs(proto)
    values = detached or {}
    constants = {
        tensor.name: values[tensor.name] if tensor.name in values else constant_array(tensor)
        for tensor in proto.graph.initializer
    }
    constants.update(weights or {})
    inferred = _refuse_huge(proto, fixed)
    nodes = [_node(node) for node in proto.graph.node]
    for node in nodes:
        if node.op == "Constant":
            constants[node.outputs[0]] = _constant_value(node)
    nodes = _sorted([node for node in nodes if node.op != "Constant"], {*constants, *fixed})
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import if entry.domain != CUSTOM_DOMAIN}
    input_types = {value.name: _input_type(value) for value in proto.graph.input if value.name not in constants}
    graph = Graph(
        nodes=nodes,
        inputs=[name for name in input_names(proto) if name not in constants],
        outputs=[value.name for value in proto.graph.output],
        constants=constants,
        shapes={**{name: tuple(value.shape) for name, value in constants.items()}, **fixed},
        dtypes={**{name: value.dtype for name, value in constants.items()}, **input_types},
        opsets=opsets,
        ir_version=min(int(proto.ir_version), 10),
        source_nodes=source_nodes,
    )
    _check_outputs(graph)
    if not graph.outputs:
        raise CompileError("the model has no outputs", hint="there is nothing to run: export the model again")
    graph.remove_unused()
    # also inputs that only give shapes, which programs feed; one that only gives a type is of no use
    read = {name for node in graph.nodes for name in (node.inputs[:1] if node.op == "CastLike" else node.inputs)}
    dequantize(graph)
    widen(graph, {"bfloat16"})  # onnxruntime computes next to nothing in it
    refuse_training(graph)
    static = _static_nodes(graph)
    _refuse_shapes_from_data(graph, static)
    refuse_open_parameters(graph, static)
    if weights is None or not _infer(graph, inferred):
        try:
            _trace(graph, custom or {}, declared)
        except CompileError:
            if not has_other_reals(graph):
                raise
            widen(graph)  # onnxruntime has many operators for float32 alone, and weights that were codes are float32
            _trace(graph, custom or {}, declared)
    without_castlike(graph)
    widen(graph)
    keep_bits(graph)
    plain_products(graph)
    _without_empty_parts(graph)
    graph.remove_unused()
    while _fold_empty(graph):
        _trace(graph, custom or {}, declared)
    _copy_constant_outputs(graph)
    used = {*read, *graph.outputs, *graph.consumers()}
    graph.inputs = [name for name in graph.inputs if name in used]
    _warn_of_nothing(graph)
    return graph


def _warn_of_nothing(graph: Graph) -> None:
    """A model may be asked for that computes nothing; more often something went wrong on the way."""
    if not graph.inputs:
        _log.warning("the model's outputs do not depend on any input: they are constants")
    for name in graph.outputs:
        if 0 in graph.shapes[name]:
            _log.warning("the output '%s' has no elements: choose larger input shapes, if that is not meant", name)


def _input_type(value: Any) -> np.dtype[Any]:
    kind = value.type.tensor_type.elem_type
    try:
        known: np.dtype[Any] = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(kind))
        return known
    except KeyError:
        raise CompileError(f"an input has the unknown type {kind}", tensor=value.name, hint="export the model again") from None


def constant_array(tensor: Any) -> npt.NDArray[Any]:
    """The values of a constant."""
    try:
        return np.asarray(onnx().numpy_helper.to_array(tensor))
    except Exception as error:  # a damaged tensor ends in whatever numpy or protobuf raises
        raise CompileError(
            f"the constant cannot be read: {first_line(error)}", tensor=tensor.name, hint="export the model again"
        ) from error


def _node(proto: Any) -> Node:
    if proto.domain == CUSTOM_DOMAIN:
        return custom_node(proto, constant_array)
    helper = onnx().helper
    try:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}
    except ValueError as error:
        raise CompileError(
            f"an attribute cannot be read: {first_line(error)}",
            node=proto.name,
            operator=proto.op_type,
            hint="export the model again",
        ) from error
    outputs = list(proto.output)
    if (
        outputs and not outputs[0] and any(outputs)
    ):  # a recurrent layer of which only the last state is read; what follows wants a name
        outputs[0] = f"{next(filter(None, outputs))}.all"
    return Node(
        proto.op_type,
        list(proto.input),
        outputs,
        attributes,
        proto.name,
        _domain(proto.domain),
    )


def _domain(name: str) -> str:
    """ONNX's own domain has two names."""
    return "" if name == "ai.onnx" else name


def _constant_value(node: Node) -> npt.NDArray[Any]:
    if "value" in node.attributes:
        return constant_array(node.attributes["value"])
    for key, kind in (
        ("value_float", np.float32),
        ("value_int", np.int64),
        ("value_floats", np.float32),
        ("value_ints", np.int64),
    ):
        if key in node.attributes:
            return np.asarray(node.attributes[key], kind)
    raise UnsupportedOperatorError(
        "only dense numeric constants are understood",
        node=node.label,
        operator="Constant",
        hint="export the model without sparse or string constants",
    )


def _sorted(nodes: list[Node], known: set[str]) -> list[Node]:
    """Topological order; exporters are not always careful with it."""
    waiting = nodes
    ready: list[Node] = []
    known = set(known)
    while waiting:
        later = []
        for node in waiting:
            if all(not name or name in known for name in node.inputs):
                ready.append(node)
                known.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            node = later[0]
            missing = next(name for name in node.inputs if name and name not in known)
            raise CompileError(
                "a tensor is read that nothing produces",
                node=node.label,
                operator=node.op,
                tensor=missing,
                hint="export the model again",
            )
        waiting = later
    return ready


def _check_outputs(graph: Graph) -> None:
    known = {*graph.producers(), *graph.constants, *graph.inputs}
    for name in graph.outputs:
        if name not in known:
            raise CompileError("an output of the model is never produced", tensor=name, hint="export the model again")
        if graph.outputs.count(name) > 1:
            raise CompileError("a tensor is an output of the model twice", tensor=name, hint="remove one of them")
    for name in known:
        stem, mark, _ = name.rpartition("@")
        if mark and stem in known:
            raise CompileError(
                f"the compiler needs names such as '{stem}@int8' itself", tensor=name, hint="rename the tensor, without an @"
            )


def _fix_inputs(
    proto: Any, constants: Set[str], shapes: dict[str, Sequence[int]], batch: int | None
) -> dict[str, tuple[int, ...]]:
    fixed: dict[str, tuple[int, ...]] = {}
    names = input_names(proto)
    for name in shapes:
        if name not in names:
            raise TensorNameError(f"the model has no input '{name}'", hint=f"its inputs are: {', '.join(names)}")
    if batch is not None and batch < 1:
        raise CompileError(f"a batch size of {batch} makes no sense", hint="pass a number from 1 on")
    for value in proto.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise CompileError(
                "an input has no tensor shape", tensor=value.name, hint="export the model with plain tensor inputs"
            )
        declared = [entry.dim_value if entry.HasField("dim_value") and entry.dim_value > 0 else None for entry in kind.shape.dim]
        given = [int(extent) for extent in shapes[value.name]] if value.name in shapes else None
        names = [entry.dim_param for entry in kind.shape.dim]
        guess = [suggested_extent(name, index, len(names), kind.elem_type) for index, name in enumerate(names)]
        shape = _fixed_shape(value.name, declared, given, batch, guess)
        fixed[value.name] = shape
        del kind.shape.dim[:]
        for extent in shape:
            kind.shape.dim.add().dim_value = extent
    give_constants(proto, {name: np.empty(shape, np.int8) for name, shape in fixed.items() if 0 in shape})
    return {name: shape for name, shape in fixed.items() if 0 not in shape}


def _fixed_shape(
    name: str, declared: list[int | None], given: list[int] | None, batch: int | None, guess: Sequence[int]
) -> tuple[int, ...]:
    text = "[" + ", ".join("?" if extent is None else str(extent) for extent in declared) + "]"
    if given is not None:
        if len(given) != len(declared) or any(extent < 0 for extent in given):
            raise ShapeError(f"input '{name}' takes {text}, got {given}", hint="give one positive number for each axis")
        # A declared batch may be changed, as exporters often leave a 1 there; other axes are part of the architecture.
        if any(want is not None and want != have for want, have in list(zip(declared, given, strict=True))[1:]):
            raise ShapeError(
                f"input '{name}' takes {text}, got {given}", hint="only the axes marked ? (and the batch) can be chosen"
            )
        shape: list[int | None] = list(given)
    else:
        shape = list(declared)
        if shape and shape[0] is None:
            shape[0] = batch or 1
    if batch is not None and shape:
        shape[0] = batch
    if any(extent is None for extent in shape):
        example = ",".join(str(extent or other) for extent, other in zip(shape, guess, strict=True))
        raise ShapeError(
            f"input '{name}' has the shape {text}, and a chip needs fixed numbers",
            hint=f"say which: --shape {name}={example}, or shapes={{'{name}': ({example})}}",
        )
    return tuple(int(extent) for extent in shape if extent is not None)


def _refuse_large(name: str, shape: Sequence[int], most: int) -> None:
    if math.prod(shape) > most:
        raise CompileError(
            f"a tensor has the shape {list(shape)}, more than {most} elements",
            tensor=name,
            hint=f"choose smaller input shapes; if you trust the model and have the memory, set {MAX_TENSOR_VARIABLE}",
        )


def _refuse_huge(proto: Any, fixed: Mapping[str, tuple[int, ...]]) -> Any:
    """The model with inferred shapes. Tensors that no machine should try to allocate are refused before anything is executed."""
    most = max_tensor_bytes() // 4
    for name, shape in fixed.items():
        _refuse_large(name, shape, most)

    def check(inferred: Any) -> None:
        total = sum(map(math.prod, fixed.values()))
        for value in inferred.graph.value_info:
            extents = [entry.dim_value for entry in value.type.tensor_type.shape.dim if entry.dim_value > 0]
            _refuse_large(value.name, extents, most)
            total += math.prod(extents)
        if total > MAX_GRAPH:
            raise CompileError(
                f"the tensors of the model have {total} elements, more than {MAX_GRAPH}", hint="choose smaller input shapes"
            )

    try:
        return infer_shapes(proto, check)
    except CompileError:
        raise
    except Exception as error:  # raised from C++ with several types
        raise CompileError(
            f"the shapes of the model contradict each other: {first_line(error)}", hint="export the model again"
        ) from error


def _infer(graph: Graph, inferred: Any) -> bool:
    """Learn shapes and types from the inferred model and compute what does not depend on the inputs; False where that is not enough."""
    helper = onnx().helper
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        extents = tuple(entry.dim_value for entry in kind.shape.dim)
        if kind.HasField("shape") and kind.elem_type and min(extents, default=1) > 0:
            shapes[value.name] = extents
            dtypes[value.name] = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    produced = [output for node in graph.nodes for output in node.outputs if output]
    custom = any(node.custom for node in graph.nodes)
    if custom or any(name not in shapes or len(shapes[name]) > MAX_AXES for name in produced):
        return False
    static = _static_nodes(graph)
    frontier = _frontier(graph, Stage(graph.nodes), static)
    graph.shapes.update({name: shapes[name] for name in produced})
    graph.dtypes.update({name: dtypes[name] for name in produced})
    rest: list[Node] = []
    for node in graph.nodes:
        if id(node) not in static:
            continue
        if node.op in ("Shape", "Size"):
            extents = graph.shapes[node.inputs[0]]
            last = node.attribute("end", len(extents))
            part = extents[node.attribute("start", 0) : last]
            graph.constants[node.outputs[0]] = np.array(part if node.op == "Shape" else math.prod(extents), np.int64)
        else:
            rest.append(node)
    asked = [name for name in frontier if name not in graph.constants]
    if asked:
        session = _session(to_onnx(graph, rest, (), asked), onnxruntime(), graph)
        try:
            values = session.run(asked, {})
        except Exception as error:  # onnxruntime's exception classes are private
            raise _explain(error, graph) from error
        graph.constants.update({name: np.asarray(value) for name, value in zip(asked, values, strict=True)})
    graph.nodes = [node for node in graph.nodes if id(node) not in static]
    return True


def _trace(graph: Graph, custom: CustomTable, declared: Declarations) -> None:
    """Run the model once on zeros to learn every shape and type, and the value of all that does not depend on the inputs."""
    static = _static_nodes(graph)
    for stage in stages(graph.nodes):
        if stage.nodes:
            _trace_stage(graph, stage, static)
        for node in stage.customs:
            infer_custom(graph, node, custom, declared)
    graph.nodes = [node for node in graph.nodes if id(node) not in static]
    for name, extents in graph.shapes.items():
        if len(extents) > MAX_AXES:
            raise CompileError(
                f"a tensor has {len(extents)} axes, more than {MAX_AXES}", tensor=name, hint="reshape it to fewer axes"
            )


def _refuse_shapes_from_data(graph: Graph, static: set[int]) -> None:
    for node in graph.nodes:
        if node.op in SHAPE_FROM_DATA and not node.domain and id(node) not in static:
            raise UnsupportedOperatorError(
                "the shape of its result depends on the data, which no NPU of the catalogue can run",
                node=node.label,
                operator=node.op,
                hint="cut the model before this node and do the rest in your program",
            )


def _without_empty_parts(graph: Graph) -> None:
    """A Concat does not notice inputs without elements, and so need not read them: torch.roll by 0 and rotary embeddings have such."""
    for node in graph.nodes:
        if node.op == "Concat" and not node.domain:
            filled = [name for name in node.inputs if 0 not in graph.shapes[name]]
            node.inputs = filled or node.inputs
    read = {*graph.outputs, *graph.consumers()}
    for node in graph.nodes:
        empty = [name for name in node.outputs if name and 0 in graph.shapes[name]]
        if node.op == "Split" and not node.domain and empty and read.isdisjoint(empty):
            node.outputs = [name for name in node.outputs if name not in empty]
            axis = int(node.attribute("axis", 0)) % len(graph.shapes[node.inputs[0]])
            sizes = [graph.shapes[name][axis] for name in node.outputs]
            node.attributes.pop("num_outputs", None)
            if graph.opset < 13:
                node.attributes["split"] = sizes
            elif sizes:
                node.inputs = [node.inputs[0], graph.add_constant(f"{node.outputs[0]}.sizes", np.array(sizes, np.int64))]


def _copy_constant_outputs(graph: Graph) -> None:
    """An output that depends on no input is a copy of its constant."""
    for name in graph.outputs:
        if name in graph.constants:
            value = graph.constants.pop(name)
            source = graph.free_name(f"{name}.constant")
            graph.constants[source], graph.shapes[source], graph.dtypes[source] = value, value.shape, value.dtype
            graph.rename_input(name, source)
            graph.nodes.append(Node("Identity", [source], [name]))
            graph.shapes[name], graph.dtypes[name] = value.shape, value.dtype


def _fold_empty(graph: Graph) -> bool:
    """A tensor without elements is the same for every input: let it be a constant. Whether there was one."""
    found = [node for node in graph.nodes if any(name and 0 in graph.shapes[name] for name in node.outputs)]
    for node in found:
        empty = [name for name in node.outputs if name and 0 in graph.shapes[name]]
        if len(empty) < len([name for name in node.outputs if name]):
            raise CompileError(
                "a tensor has no elements", node=node.label, operator=node.op, tensor=empty[0], hint="choose larger input shapes"
            )
        graph.constants.update({name: np.empty(graph.shapes[name], graph.dtypes[name]) for name in empty})
    graph.nodes = [node for node in graph.nodes if node not in found]
    graph.remove_unused()
    return bool(found)


def _trace_stage(graph: Graph, stage: Stage, static: set[int]) -> None:
    package, runtime = onnx(), onnxruntime()
    frontier = _frontier(graph, stage, static)
    produced = [output for node in stage.nodes for output in node.outputs if output]
    helper = package.helper
    inputs = stage.entering(graph)
    constants = HandedConstants()
    model = _whole(graph, stage.nodes, inputs, constants)
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, produced))
    session = _session(model, runtime, graph, constants)
    graph.dtypes.update({entry.name: _numpy_type(entry.type) for entry in session.get_outputs()})
    # shapes come from a run, as those that it infers are not always right; tensors that were outputs would stay in memory until its end,
    # and getting that memory takes longer than the run
    del session, model.graph.output[:]
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, frontier))
    probes = [f"anynpu.shape.{index}" for index in range(len(produced))]
    for name, probe in zip(produced, probes, strict=True):
        model.graph.node.append(helper.make_node("Shape", [name], [probe]))
        model.graph.output.append(helper.make_tensor_value_info(probe, package.TensorProto.INT64, None))
    session = _session(model, runtime, graph, constants)
    values = _run_on(session, [*probes, *frontier], {name: (graph.shapes[name], graph.dtypes[name]) for name in inputs}, graph)
    for name, shape in zip(produced, values[: len(produced)], strict=True):
        graph.shapes[name] = tuple(int(extent) for extent in shape)
    for name, value in zip(frontier, values[len(produced) :], strict=True):
        graph.constants[name] = np.asarray(value)


def _run_on(
    session: Any, wanted: Sequence[str], inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], graph: Graph
) -> list[Any]:
    """Results for inputs of zeros; of ones where a model cannot run on zeros, since integers are not divided by them."""
    first: Exception | None = None
    for fill in (np.zeros, np.ones):
        try:
            return list(session.run(wanted, {name: fill(shape, dtype) for name, (shape, dtype) in inputs.items()}))
        except MemoryError as error:
            raise CompileError("there is not enough memory to run the model", hint="choose smaller input shapes") from error
        except Exception as error:  # onnxruntime's exception classes are private
            first = first or error
    assert first is not None
    raise _explain(first, graph) from first


def _whole(graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], constants: HandedConstants) -> Any:
    """Nodes as an ONNX model, before the types of their results are known."""
    model = to_onnx(graph, nodes, inputs, (), initializer=constants.initializer)
    if model.ByteSize() + constants.nbytes > MAX_MODEL:
        raise CompileError("the model is larger than 2 GiB, which no chip of the catalogue can hold", hint="use a smaller model")
    return model


def _session(model: Any, runtime: Any, graph: Graph, constants: HandedConstants | None = None) -> Any:
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED  # asks for shapes as soon as it can
    options.add_session_config_entry("session.disable_prepacking", "1")  # it runs once, and packed weights are a copy
    if constants is not None:
        constants.give(options, runtime)
    try:
        return ort_session(model.SerializeToString(), options)
    except Exception as error:  # onnxruntime's exception classes are private
        raise _explain(error, graph) from error


def _explain(error: Exception, graph: Graph) -> CompileError:
    text = first_line(error)
    by_name = {node.name: node for node in graph.nodes if node.name}
    node = next(
        (node for name, node in by_name.items() if f"'{name}'" in text or f"({name})" in text or f" {name} " in text), None
    )
    missing = "NOT_IMPLEMENTED" in text or "not a registered function" in text or "No Op registered" in text
    kind = UnsupportedOperatorError if missing else CompileError
    hint = (
        "compile it as a custom operator: custom_ops=['NAME'], or --custom-op NAME"
        if missing
        else "run the model in onnxruntime with the same input shapes: it fails there too"
    )
    return kind(
        f"the model cannot be executed: {text}", node=node.label if node else "", operator=node.op if node else "", hint=hint
    )


def _static_nodes(graph: Graph) -> set[int]:
    """Nodes whose result is the same for every input: those fed by constants, and Shape, since shapes are fixed."""
    static = set(graph.constants)
    found: set[int] = set()
    for node in graph.nodes:
        if node.op in _RANDOM or node.custom:
            continue
        if node.op in ("Shape", "Size") or all(not name or name in static for name in node.inputs):
            found.add(id(node))
            static.update(node.outputs)
    return found


def _frontier(graph: Graph, stage: Stage, static: set[int]) -> list[str]:
    """Results of static nodes of a stage that the rest of the graph reads."""
    readers = graph.consumers()
    inside = static & {id(node) for node in stage.nodes}
    names = []
    for node in stage.nodes:
        if id(node) in static:
            for name in node.outputs:
                if name in graph.outputs or any(id(reader) not in inside for reader in readers.get(name, ())):
                    names.append(name)
    return names


def _numpy_type(text: str) -> np.dtype[Any]:
    """The numpy type of onnxruntime's ``tensor(float)``."""
    inner = text.removeprefix("tensor(").removesuffix(")")
    known = {"float": "float32", "double": "float64", "bfloat16": "uint16"}
    try:
        return np.dtype(known.get(inner, inner))
    except TypeError:
        raise UnsupportedOperatorError(f"a tensor has the type {text}", hint="only numeric tensors can run on an NPU") from None
