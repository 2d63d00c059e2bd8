"""``onnx_edit``: give inputs and outputs of an ONNX model other shapes by formulas such as ``a,b,c,d->a,d,b,c``.

The left side names the dimensions of the tensor in the given model, the right side those in the new one. Each letter is a factor of a
dimension; letters that stand together are multiplied. ``1`` is a dimension of one. ``ab,c[a=2]->b,ac`` splits the first dimension: sizes
that follow from the others need not be given. The new model computes the same values: Reshape and Transpose nodes are added.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...compiler.quantize.dataset import InputInfo, open_dataset
from ...errors import ModelError, ParameterError

__all__ = ["onnx_edit"]

_FORMULA = re.compile(r"([a-z1,]+)(?:\[([^\]]*)\])?->([a-z1,]+)")
_EXAMPLE = "for example 'a,b,c,d->a,d,b,c', or 'ab,c[a=2]->b,ac'"
_FIRST_OPSET = 5
"""Of ONNX: Reshape takes its shape as an input from here on."""

Shape = tuple[int, ...]


def onnx_edit(
    model: str,
    export_path: str,
    inputs_transform: Mapping[str, str] | None = None,
    outputs_transform: Mapping[str, str] | None = None,
    dataset: str | None = None,
) -> int:
    """Write a copy of an ONNX model whose inputs and outputs have other shapes.

    With a dataset, the samples for the new model are written next to it: ``NAME_for_MODEL.txt`` and .npy files in a folder of that name.

    :param inputs_transform: the formula of each input to change, by name
    :param outputs_transform: the formula of each output to change, by name
    :param dataset: the dataset file of the given model
    :return: 0
    :raises AnynpuError: a formula or a name does not fit the model
    """
    package = onnx()
    source, target = Path(model), Path(export_path)
    if not source.is_file():
        raise ModelError(f"there is no ONNX model {model}", hint="check the path")
    if target.exists() and os.path.samefile(source, target):
        raise ParameterError(f"export_path is the model itself: {export_path}", hint="give another file name")
    proto = package.load(str(source))
    opset = max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    if opset < _FIRST_OPSET:
        raise ModelError(
            f"{source.name} has operator set {opset}", hint="convert it with onnx.version_converter, or export it again"
        )
    inferred = package.shape_inference.infer_shapes(proto).graph
    inputs, outputs = (_shapes(proto, entries) for entries in (inferred.input, inferred.output))
    changes = {name: _Change.of(name, text, inputs, "input") for name, text in (inputs_transform or {}).items()}
    results = {name: _Change.of(name, text, outputs, "output") for name, text in (outputs_transform or {}).items()}
    for name, change in changes.items():
        inner = _fresh(proto, name)
        _rename(proto.graph, name, inner)
        nodes = _nodes(proto, name, inner, change.new, change.to_old)
        for index, node in enumerate(nodes):
            proto.graph.node.insert(index, node)
        _reshape(proto.graph.input, name, change.new)
    for name, change in results.items():
        inner = _fresh(proto, name)
        _rename(proto.graph, name, inner)
        proto.graph.node.extend(_nodes(proto, inner, name, change.old, change.to_new))
        _reshape(proto.graph.output, name, change.new)
    package.checker.check_model(proto)
    package.save(proto, str(target))
    if dataset is not None:
        _write_dataset(Path(dataset), target, inputs, changes)
    return 0


@dataclass(frozen=True)
class _Change:
    """A formula for a tensor of known shape.

    :ivar sizes: the size of each letter, in the order of the left side
    :ivar order: the letters in the order of the right side
    """

    old: Shape
    new: Shape
    sizes: dict[str, int]
    order: str

    @classmethod
    def of(cls, name: str, text: str, shapes: Mapping[str, Shape], kind: str) -> _Change:
        """Read a formula for the input or output *name*."""
        if name not in shapes:
            raise ParameterError(f"the model has no {kind} '{name}'", hint=f"it has: {', '.join(shapes)}")
        old = shapes[name]
        if not all(old):
            raise ParameterError(
                f"{kind} '{name}' has a dynamic shape: {[extent or '?' for extent in old]}",
                hint="export the model with fixed shapes",
            )

        def wrong(why: str) -> ParameterError:
            return ParameterError(f"formula '{text}' of {kind} '{name}' (shape {list(old)}): {why}", hint=_EXAMPLE)

        match = _FORMULA.fullmatch("".join(str(text).split()))
        if match is None:
            raise wrong("it is not two lists of letters and 1, with -> between them")
        left, right = (side.strip(",").split(",") for side in (match[1], match[3]))
        letters, order = ("".join(side).replace("1", "") for side in (left, right))
        if len(set(letters)) != len(letters) or sorted(letters) != sorted(order):
            raise wrong("each letter must appear once on the left and once on the right")
        if len(left) != len(old):
            raise wrong(f"the left side has {len(left)} dimensions")
        given: dict[str, int] = {}
        for entry in filter(None, (match[2] or "").split(",")):
            letter, _, size = entry.partition("=")
            if letter not in letters or not (size.isascii() and size.isdigit() and int(size)):
                raise wrong(f"'{entry}' does not give a letter of the left side a size")
            given[letter] = int(size)
        for part, extent in zip(left, old, strict=True):
            factors = part.replace("1", "")
            known = math.prod(given.get(letter, 1) for letter in factors)
            unknown = [letter for letter in factors if letter not in given]
            if len(unknown) > 1:
                raise wrong(f"the sizes of {', '.join(unknown)} do not follow from {part} = {extent}; give one in [ ]")
            if extent % known or (not unknown and known != extent):
                raise wrong(
                    f"{part} is {extent} in the model, which is not a multiple of {known}" if unknown else f"{part} is {known}"
                )
            if unknown:
                given[unknown[0]] = extent // known
        new = tuple(math.prod(given[letter] for letter in part.replace("1", "")) for part in right)
        return cls(old, new, {letter: given[letter] for letter in letters}, order)

    @property
    def to_new(self) -> tuple[Shape, tuple[int, ...], Shape]:
        """From old to new: the shape of the factors, their permutation, the result."""
        letters = "".join(self.sizes)
        return tuple(self.sizes.values()), tuple(letters.index(letter) for letter in self.order), self.new

    @property
    def to_old(self) -> tuple[Shape, tuple[int, ...], Shape]:
        """From new to old."""
        return (
            tuple(self.sizes[letter] for letter in self.order),
            tuple(self.order.index(letter) for letter in self.sizes),
            self.old,
        )

    def applied(self, array: Array) -> Array:
        """An array of the old shape in the new one."""
        factors, permutation, new = self.to_new
        return np.ascontiguousarray(array.reshape(factors).transpose(permutation).reshape(new))


def _shapes(proto: Any, entries: Any) -> dict[str, Shape]:
    """The shapes of inputs or outputs by name; 0 where a dimension is dynamic."""
    constants = {initializer.name for initializer in proto.graph.initializer}
    return {
        entry.name: tuple(int(axis.dim_value) for axis in entry.type.tensor_type.shape.dim)
        for entry in entries
        if entry.name not in constants
    }


def _nodes(proto: Any, source: str, result: str, shape: Shape, steps: tuple[Shape, tuple[int, ...], Shape]) -> list[Any]:
    """The nodes that turn *source* of this shape into *result*."""
    package = onnx()
    factors, permutation, last = steps
    todo: list[tuple[str, tuple[int, ...]]] = []
    if permutation != tuple(range(len(permutation))):
        if factors != shape:
            todo.append(("Reshape", factors))
        todo.append(("Transpose", permutation))
        shape = tuple(factors[axis] for axis in permutation)
    if shape != last or not todo:
        todo.append(("Reshape", last))
    nodes, name = [], source
    for number, (kind, value) in enumerate(todo):
        made = result if number == len(todo) - 1 else _fresh(proto, f"{result}_{kind.lower()}")
        if kind == "Reshape":
            constant = _fresh(proto, f"{made}_shape")
            proto.graph.initializer.append(package.numpy_helper.from_array(np.array(value, np.int64), constant))
            nodes.append(package.helper.make_node(kind, [name, constant], [made], name=made))
        else:
            nodes.append(package.helper.make_node(kind, [name], [made], name=made, perm=value))
        name = made
    return nodes


def _fresh(proto: Any, name: str) -> str:
    """A name that no tensor of the model has."""
    taken = {one for node in proto.graph.node for one in (*node.input, *node.output)}
    taken.update(entry.name for part in (proto.graph.input, proto.graph.output, proto.graph.initializer) for entry in part)
    number = 0
    while (made := f"{name}_edit{number}") in taken:
        number += 1
    return made


def _rename(graph: Any, old: str, new: str) -> None:
    """Call a tensor otherwise in all nodes, those of subgraphs included."""
    for node in graph.node:
        for part in (node.input, node.output):
            for index, name in enumerate(part):
                if name == old:
                    part[index] = new
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, old, new)
    for entry in graph.value_info:
        if entry.name == old:
            entry.name = new


def _reshape(entries: Any, name: str, shape: Shape) -> None:
    package = onnx()
    for index, entry in enumerate(entries):
        if entry.name == name:
            entries[index].CopyFrom(package.helper.make_tensor_value_info(name, entry.type.tensor_type.elem_type, shape))


def _write_dataset(path: Path, target: Path, inputs: Mapping[str, Shape], changes: Mapping[str, _Change]) -> None:
    """The samples of a dataset file for the edited model."""
    if not path.is_file():
        raise ModelError(f"there is no dataset {path}", hint="it is a text file with one sample on each line")
    infos = [InputInfo(name, shape, np.dtype(np.float32)) for name, shape in inputs.items()]
    folder = target.with_name(f"{path.stem}_for_{target.stem}")
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    for line in filter(str.strip, path.read_text(encoding="utf-8-sig").splitlines()):
        parts = [line.strip()] if len(infos) == 1 else line.split()
        files = [path.parent / part if (path.parent / part).is_file() else Path(part) for part in parts]
        (sample,) = open_dataset([tuple(files)], infos, limit=1)
        for index, name in enumerate(inputs):
            if name in changes:
                files[index] = folder / f"{len(lines)}_{index}.npy"
                np.save(files[index], changes[name].applied(sample[name]))
        lines.append(" ".join(str(file.resolve()) for file in files))
    target.with_name(f"{folder.name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
