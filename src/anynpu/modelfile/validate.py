"""Whether a program is sound: a file may claim anything, and engines trust what passes here.

Checked are the tensors, the order of the layers, every operator against its tensors, and the plan of the internal memory: nothing lies
outside it, and no two tensors that are needed at the same time share a byte (a layer never works in place). Whatever is wrong raises
:class:`~anynpu.errors.ModelFormatError`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping

from ..errors import ModelFormatError
from ..program import Float, Layer, Model, OnnxMetadata, Program
from ..tensor import DType, DynamicFixedPoint, Layout, TensorSpec
from .float_rules import check_float
from .operator_rules import MAX_DIMENSIONS, Operands, RuleBroken, Seen, check_operator, require

MAX_TENSOR = 1 << 32
"""Bytes of a tensor, and of the internal memory of a program."""
MAX_NAME_LENGTH = 4096
MAX_PROGRAMS = 1024
MAX_LAYERS = 20_000
MAX_TENSORS = 100_000
MAX_PORTS = 4096
"""Inputs or outputs of a layer or a program."""
MAX_PROPERTIES = 1024
"""Entries of what the ONNX model states about itself."""
MAX_METADATA_LENGTH = 1 << 18
"""Characters of all of it: sessions and servers pass it on whole."""

_HINT = "the model is damaged or was not written by anynpu; compile it again"


def validate_model(model: Model, *, contents: bool = True) -> None:
    """Check all programs of a model and what they share.

    :param contents: look at the values of arrays too; False for a model whose weights were left out
    """
    try:
        require(0 < len(model.programs) <= MAX_PROGRAMS, f"a model of {len(model.programs)} programs")
        require(0 < len(model.chip) <= 64, "a model without a chip")
        require(len(model.dtype) <= 64, "a type of more than 64 characters")
        complaint = "" if model.metadata is None else metadata_complaint(model.metadata)
        require(not complaint, complaint)
    except RuleBroken as refusal:
        raise ModelFormatError(f"{refusal}", hint=_HINT) from None
    seen: Seen = set()
    for program in model.programs:
        _validate(program, contents, seen)
    try:
        _same_ports(model)
        _preprocess(model)
    except RuleBroken as refusal:
        raise ModelFormatError(f"{refusal}", hint=_HINT) from None


def metadata_complaint(metadata: OnnxMetadata) -> str:
    """Why a model file cannot hold *metadata*; empty if it can."""
    texts = (metadata.producer_name, metadata.graph_name, metadata.domain, metadata.description, metadata.graph_description)
    # protobuf gives a text that is not UTF-8 as bytes
    if not all(isinstance(text, str) for text in (*texts, *metadata.properties, *metadata.properties.values())):
        return "metadata that is not valid Unicode"
    if len(metadata.properties) > MAX_PROPERTIES:
        return f"metadata of {len(metadata.properties)} entries; at most {MAX_PROPERTIES} are possible"
    if any(len(key) > MAX_NAME_LENGTH for key in metadata.properties):
        return f"metadata with a key of more than {MAX_NAME_LENGTH} characters"
    entries = metadata.entries()
    try:
        "".join((*entries, *entries.values())).encode()
    except UnicodeEncodeError:
        return "metadata that is not valid Unicode"
    length = sum(len(key) + len(value) for key, value in entries.items())
    if length > MAX_METADATA_LENGTH:
        return f"metadata of {length} characters; at most {MAX_METADATA_LENGTH} are possible"
    return "" if -(1 << 63) <= metadata.version < 1 << 63 else "a version of the model that has more than 64 bits"


def validate_program(program: Program, *, contents: bool = True) -> None:
    """Check one program; returns silently or raises :class:`~anynpu.errors.ModelFormatError`."""
    _validate(program, contents, set())


def _validate(program: Program, contents: bool, seen: Seen) -> None:
    try:
        _sizes(program)
        ends = _constant_ends(program)
        for name, spec in program.tensors.items():
            require(name == spec.name, f"tensor '{spec.name}' is listed as '{name}'")
            _tensor(spec, least=0 if name in ends and spec.quantization is None else 1)
        _views(program)
        for layer in program.layers:
            _layer(layer, program, contents, seen)
        lives = _lives(program)
        _memory(program, lives)
    except RuleBroken as refusal:
        raise ModelFormatError(f"{refusal}", hint=_HINT) from None


def _sizes(program: Program) -> None:
    for what, count, most in (
        ("layers", len(program.layers), MAX_LAYERS),
        ("tensors", len(program.tensors), MAX_TENSORS),
        ("inputs", len(program.inputs), MAX_PORTS),
        ("outputs", len(program.outputs), MAX_PORTS),
    ):
        require(count <= most, f"a program of {count} {what}; at most {most} are possible")
    require(program.outputs, "a program without outputs")
    ports = (*program.inputs, *program.outputs)
    require(len(set(ports)) == len(ports), "a tensor is input or output of the program twice")
    for name in ports:
        require(name in program.tensors, f"the program's input or output '{name}' is not among its tensors")


def _constant_ends(program: Program) -> set[str]:
    """Outputs that are copies of constants and that no layer reads: they alone may be without elements."""
    read = {name for layer in program.layers for name in layer.inputs}
    copies = (
        layer
        for layer in program.layers
        if isinstance(layer.op, Float) and layer.op.names == ("Identity",) and not layer.inputs and len(layer.outputs) == 1
    )
    return {layer.outputs[0] for layer in copies} & set(program.outputs) - read - {*program.views, *program.views.values()}


def _tensor(spec: TensorSpec, *, least: int) -> None:
    name = f"tensor '{spec.name[:64]}'"
    require(0 < len(spec.name) <= MAX_NAME_LENGTH, f"{name} has a name of {len(spec.name)} characters")
    rank = len(spec.shape)
    require(rank <= MAX_DIMENSIONS, f"{name} has {rank} axes; at most {MAX_DIMENSIONS} are possible")
    require(all(extent >= least for extent in spec.shape), f"{name} has the shape {list(spec.shape)}")
    paddings = (spec.c1, spec.c2, spec.w_stride, spec.h_stride)
    require(all(0 <= value <= MAX_TENSOR for value in paddings), f"{name} has a negative or absurd block or stride")
    if spec.layout in (Layout.NHWC, Layout.NC1HWC2):
        require(rank >= 2, f"{name} of rank {rank} cannot be in layout {spec.layout.value}")
    if spec.layout is Layout.NC1HWC2:
        enough = spec.c2 >= 1 and (spec.c1 == 0 or spec.c1 * spec.c2 >= spec.shape[1])
        require(enough, f"{name} has {spec.shape[1]} channels in {spec.c1} blocks of {spec.c2}")
    require(spec.nbytes <= MAX_TENSOR, f"{name} takes {spec.nbytes} bytes; at most {MAX_TENSOR} are possible")
    _quantization(spec, name)


def _quantization(spec: TensorSpec, name: str) -> None:
    quantization = spec.quantization
    if quantization is None:
        return
    if isinstance(quantization, DynamicFixedPoint):
        require(-126 <= quantization.fraction_bits <= 126, f"{name} has {quantization.fraction_bits} fraction bits")
        return
    sizes = quantization.group_sizes
    require(not sizes or sum(sizes) == spec.channels, f"{name} is quantized for {sum(sizes)} channels and has {spec.channels}")
    integer = not spec.dtype.is_float and spec.dtype is not DType.BOOL
    low, high = spec.dtype.limits if integer and spec.dtype.bits <= 16 else (-(1 << 31), (1 << 31) - 1)
    require(all(low <= zero <= high for zero in quantization.zero_points), f"{name} has a zero point outside its type")
    require(all(scale < 1e30 for scale in quantization.scales), f"{name} has an absurd scale")


def _views(program: Program) -> None:
    ports = {*program.inputs, *program.outputs}
    for name, owner in program.views.items():
        for tensor in (name, owner):
            require(tensor in program.tensors, f"a view refers to the unknown tensor '{tensor[:64]}'")
        require(owner not in program.views, f"'{owner}' owns the memory of '{name}', but is a view itself")
        require(name not in ports, f"'{name}' is input or output of the program and cannot be a view: it has a buffer of its own")
        view, memory = program.tensors[name], program.tensors[owner]
        same = view.dtype is memory.dtype and view.nbytes == memory.nbytes
        require(same, f"'{name}' is a view of '{owner}', but of another type or size")


def _layer(layer: Layer, program: Program, contents: bool, seen: Seen) -> None:
    title = f"layer '{layer.name[:64]}' ({type(layer.op).__name__})"
    require(max(len(layer.inputs), len(layer.outputs)) <= MAX_PORTS, f"{title}: too many inputs or outputs")
    require(layer.macs >= 0 and layer.weight_bytes >= 0, f"{title}: negative costs")
    for name in (*layer.inputs, *layer.outputs):
        require(name in program.tensors, f"{title}: the tensor '{name[:64]}' is unknown")
    inputs = {name: program.tensors[name] for name in layer.inputs}
    outputs = tuple(program.tensors[name] for name in layer.outputs)
    try:
        if isinstance(layer.op, Float):
            check_float(layer.op, inputs, program.tensors, layer.outputs, contents=contents)
        else:
            check_operator(layer.op, Operands(tuple(program.tensors[name] for name in layer.inputs), outputs, contents, seen))
    except RuleBroken as refusal:
        raise RuleBroken(f"{title}: {refusal}") from None


def _lives(program: Program) -> dict[str, tuple[int, int]]:
    """From which layer to which layer the memory of each owner is needed; checks that everything is made once and before it is read.

    What goes in and out of a segment of float layers is needed from its first layer on, because they are executed as one. What only they
    themselves read needs no memory.
    """
    owner = program.views
    lives = dict.fromkeys(program.inputs, (-1, -1))
    stretches = {stretch.first: stretch for stretch in program.float_stretches()}
    within: set[str] = set()

    def read(name: str, step: int, reader: str) -> None:
        key = owner.get(name, name)
        require(key in lives, f"{reader} reads '{name[:64]}' before anything has made it")
        lives[key] = (lives[key][0], step)

    def write(name: str, step: int, writer: str) -> None:
        key = owner.get(name, name)
        require(key not in lives, f"{writer} makes '{name[:64]}', which exists already")
        lives[key] = (step, step)

    made: set[str] = set()
    for step, layer in enumerate(program.layers):
        title = f"layer '{layer.name[:64]}'"
        stretch = stretches.get(step)
        if stretch is not None:
            for name in stretch.inputs:
                read(name, stretch.last - 1, title)
            for name in stretch.outputs:
                write(name, step, title)
            within = {name for other in program.layers[stretch.first : stretch.last] for name in other.outputs}
        if not isinstance(layer.op, Float):
            for name in layer.inputs:
                read(name, step, title)
            for name in layer.outputs:
                write(name, step, title)
            made.update(layer.outputs)
            continue
        for name in layer.inputs:
            require(name in made or name not in within, f"{title} reads '{name[:64]}' before anything has made it")
        for name in layer.outputs:
            exists = name in made or (name in lives and name not in within) or name in program.inputs
            require(not exists, f"{title} makes '{name[:64]}', which exists already")
            made.add(name)
    for name in program.outputs:
        require(name in lives, f"nothing makes the program's output '{name[:64]}'")
    return lives


def _memory(program: Program, lives: Mapping[str, tuple[int, int]]) -> None:
    plan = program.memory
    require(0 <= plan.size <= MAX_TENSOR, f"{plan.size} bytes of internal memory; at most {MAX_TENSOR} are possible")
    ports = {*program.inputs, *program.outputs}
    for name, offset in plan.offsets.items():
        require(name in program.tensors, f"the memory plan has the unknown tensor '{name[:64]}'")
        require(name not in ports, f"'{name}' is input or output of the program and has no place in internal memory")
        require(name not in program.views, f"'{name}' is a view and has no memory of its own")
        spec = program.tensors[name]
        inside = offset >= 0 and offset + spec.nbytes <= plan.size
        require(inside, f"'{name}' at {offset} with {spec.nbytes} bytes leaves the internal memory of {plan.size}")
        require(offset % spec.dtype.storage.itemsize == 0, f"'{name}' at {offset} is not aligned to its type")
    for name in lives:
        require(name in ports or name in plan.offsets, f"'{name}' has no place in memory")
    _overlaps(program, {name: life for name, life in lives.items() if name in plan.offsets})


def _overlaps(program: Program, lives: Mapping[str, tuple[int, int]]) -> None:
    """Walk through the layers with a list of what is in memory, sorted by address: only neighbors can collide."""
    offsets, tensors = program.memory.offsets, program.tensors
    placed: list[tuple[int, str]] = []
    born: dict[int, list[str]] = {}
    dying: dict[int, list[str]] = {}
    for name, (first, last) in lives.items():
        born.setdefault(first, []).append(name)
        dying.setdefault(last, []).append(name)
    for step in range(len(program.layers)):
        for name in born.get(step, ()):
            entry = (offsets[name], name)
            index = bisect.bisect(placed, entry)
            end = offsets[name] + tensors[name].nbytes
            for _, other in placed[max(0, index - 1) : index + 1]:
                apart = offsets[other] + tensors[other].nbytes <= offsets[name] or end <= offsets[other]
                require(apart, f"'{name[:64]}' overwrites '{other[:64]}' in internal memory while it is needed")
            placed.insert(index, entry)
        for name in dying.get(step, ()):
            placed.pop(bisect.bisect_left(placed, (offsets[name], name)))


def _same_ports(model: Model) -> None:
    first = model.programs[0]
    for program in model.programs[1:]:
        same = program.inputs == first.inputs and program.outputs == first.outputs
        require(same, "programs of one model differ in the names of their inputs or outputs")


def _preprocess(model: Model) -> None:
    for name, preprocess in model.preprocess.items():
        require(name in model.programs[0].inputs, f"there is a preprocessing for '{name[:64]}', which is not an input")
        channels = model.programs[0].tensors[name].channels
        for what, values in (("mean", preprocess.mean), ("std", preprocess.std)):
            require(len(values) in (1, channels), f"{what} of '{name[:64]}' has {len(values)} values for {channels} channels")
            require(all(map(math.isfinite, values)), f"{what} of '{name[:64]}' is not finite")
        require(all(preprocess.std), f"std of '{name[:64]}' is zero")
        shape = model.programs[0].tensors[name].shape
        is_picture = len(shape) == 4 and shape[1] == 3
        require(is_picture or not preprocess.picture, f"'{name[:64]}' has a pre-process node, but is no image")
