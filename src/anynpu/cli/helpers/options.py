"""Options that several commands have, declared once, and how their values are read."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import chips
from ...compiler.importers import is_foreign
from ...devtools.faults import VARIABLE, read_plan
from ...errors import CompileError, OptionError, UnknownChipError
from . import onnxfile

ALL_CHIPS = "all"
DEFAULT_CHIP = "rk3588"
"""The chip of a command that was given an ONNX model and no chip."""


class ChannelOrder(str, enum.Enum):
    """The order of the channels of an image that the model is fed with."""

    RGB = "rgb"
    BGR = "bgr"


def use_faults(path: str | None, environment: MutableMapping[str, str]) -> None:
    """Put a fault plan into force for the processes that get *environment*; wrong usage if there is no such plan."""
    if path is not None:
        try:
            read_plan(path)
        except OptionError as error:
            raise typer.BadParameter(str(error), param_hint="'--faults'") from None
        environment[VARIABLE] = os.path.abspath(path)


def chip_name(value: str) -> str:
    """The catalogue's spelling of a chip; wrong usage if there is no such chip."""
    try:
        return chips.get(value).name
    except UnknownChipError as error:
        raise typer.BadParameter(str(error)) from None


def dtype_name(value: str) -> str:
    """A type that some chip has; wrong usage if there is none of that name."""
    from ...compiler.lower.formats import known_names, known_types

    if value not in known_names():
        raise typer.BadParameter(f"there is no type {value!r}; choose one of {', '.join(known_types())}")
    return value


def dtype_words(dtype: str, chip: str) -> str:
    """A type in the words of the chip's family; the text itself where the chip has no such type."""
    from ...compiler.lower.formats import format_of

    try:
        return format_of(dtype, chips.get(chip)).words
    except CompileError:
        return dtype


def optional_chip(value: str | None) -> str | None:
    """As :func:`chip_name`, for an option that may be left out."""
    return None if value is None else chip_name(value)


def chip_or_all(value: str) -> str:
    """The catalogue's spelling of a chip, or ``all``."""
    return ALL_CHIPS if value.lower() == ALL_CHIPS else chip_name(value)


OnnxArgument = Annotated[
    Path,
    typer.Argument(metavar="MODEL.onnx", help="The model: ONNX, TFLite or PyTorch.", exists=True, dir_okay=False, readable=True),
]


def _chips(incomplete: str) -> list[str]:
    return [name for name in (*chips.names(), ALL_CHIPS) if name.startswith(incomplete.lower())]


TargetOption = Annotated[
    str,
    typer.Option("--target", "-t", metavar="CHIP", help="The chip, such as rk3588.", callback=chip_name, autocompletion=_chips),
]
TargetOrAllOption = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="CHIP|all",
        help="The chip, such as rk3588, or all of them.",
        callback=chip_or_all,
        autocompletion=_chips,
    ),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,480,480",
        help="Shape of an input. Repeat for other inputs; repeat for the same input to get several shape sets.",
    ),
]
BatchOption = Annotated[int | None, typer.Option("--batch", min=1, help="Batch size.")]
BoardOption = Annotated[
    Path | None,
    typer.Option(
        "--board",
        metavar="FILE",
        help="A profile of your board, from anynpu calibrate.",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
FaultsOption = Annotated[
    str | None, typer.Option("--faults", metavar="PLAN", help="Let the software NPU fail by this plan (TOML or JSON).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LayersOption = Annotated[bool, typer.Option("--layers", help="List all layers.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of the random inputs.")]

Shapes = dict[str, tuple[int, ...]]


def parse_shapes(values: Sequence[str] | None) -> Shapes | list[Shapes] | None:
    """``NAME=1,3,8,8`` texts as one shape set, or as several where a name comes more than once.

    >>> parse_shapes(["x=1,3,8,8"]), parse_shapes(["x=1x3x8x8"]) == parse_shapes(["x=1,3,8,8"])
    ({'x': (1, 3, 8, 8)}, True)
    >>> parse_shapes(["x=1,8", "x=2,8", "mask=4"])
    [{'x': (1, 8), 'mask': (4,)}, {'x': (2, 8), 'mask': (4,)}]
    """
    if not values:
        return None
    by_name: dict[str, list[tuple[int, ...]]] = {}
    for value in values:
        name, equals, numbers = value.rpartition("=")
        try:
            shape = tuple(int(number) for number in numbers.replace("x", ",").split(","))  # 1x3x8x8, as shapes are printed
        except ValueError:
            shape = ()
        if not equals or not name or not shape or min(shape) < 1:
            raise typer.BadParameter(f"{value!r} is not a shape; write it as NAME=1,3,480,480", param_hint="'--shape'")
        by_name.setdefault(name, []).append(shape)
    sets = max(len(shapes) for shapes in by_name.values())
    for name, shapes in by_name.items():
        if len(shapes) not in (1, sets):
            raise typer.BadParameter(
                f"input {name!r} has {len(shapes)} shapes where another has {sets}; give one, or one for each of the {sets} shape sets",
                param_hint="'--shape'",
            )
    expanded = [{name: shapes[index % len(shapes)] for name, shapes in by_name.items()} for index in range(sets)]
    return expanded[0] if sets == 1 else expanded


def parse_constants(values: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """``NAME=1,12,64`` texts as numbers by input name; ``NAME=`` is none of them.

    >>> parse_constants(["shape=1,-1", "threshold=0.5", "list="])
    {'shape': (1, -1), 'threshold': (0.5,), 'list': ()}
    """
    parsed: dict[str, tuple[float, ...]] = {}
    for value in values:
        name, equals, numbers = value.rpartition("=")
        parts = numbers.split(",") if numbers else []
        found: tuple[float, ...] | None
        try:
            found = tuple(float(number) if "." in number or "e" in number.lower() else int(number) for number in parts)
        except ValueError:
            found = None
        if not equals or not name or found is None:
            raise typer.BadParameter(f"{value!r} is not a constant; write it as NAME=1,12,64", param_hint="'--constant'")
        if name in parsed:
            raise typer.BadParameter(f"given twice for input {name!r}", param_hint="'--constant'")
        parsed[name] = found
    return parsed


def one_shape_set(values: Sequence[str] | None, what: str) -> Shapes | None:
    """As :func:`parse_shapes`, for commands that take one shape for each input."""
    shapes = parse_shapes(values)
    if isinstance(shapes, list):
        raise typer.BadParameter(f"{what} has one shape for each input; run it again for another", param_hint="'--shape'")
    return shapes


def parse_channel_values(
    values: Sequence[str] | None, option: str, input_names: Sequence[str]
) -> dict[str, tuple[float, ...]] | None:
    """``a,b,c`` or ``NAME=a,b,c`` texts by input name. Texts without a name belong to the inputs in their order.

    >>> parse_channel_values(["0,0,0", "depth=0.5"], "--mean", ["image", "depth"])
    {'image': (0.0, 0.0, 0.0), 'depth': (0.5,)}
    """
    if not values:
        return None
    parsed: dict[str, tuple[float, ...]] = {}
    position = 0
    for value in values:
        name, equals, numbers = value.rpartition("=")
        try:
            channels = tuple(float(number) for number in numbers.split(","))
        except ValueError:
            raise typer.BadParameter(
                f"{value!r} is not a list of numbers; write it in pixel units, as 127.5,127.5,127.5", param_hint=f"'{option}'"
            ) from None
        if not equals:
            if position >= len(input_names):
                raise typer.BadParameter(
                    f"given {position + 1} times, but the model has {len(input_names)} inputs", param_hint=f"'{option}'"
                )
            name = input_names[position]
            position += 1
        elif name not in input_names:
            raise typer.BadParameter(
                f"the model has no input {name!r}; its inputs: {', '.join(input_names)}", param_hint=f"'{option}'"
            )
        if name in parsed:
            raise typer.BadParameter(f"given twice for input {name!r}", param_hint=f"'{option}'")
        parsed[name] = channels
    return parsed


def read_inputs(model: Path, given: Mapping[str, Any], one_shape_set_for: str = "") -> dict[str, Any]:
    """The options of the compiler that a command was given, with those about the model's inputs read.

    :param one_shape_set_for: the command, where it takes one shape for each input only
    """
    if "custom_ops" in given:
        _need_names_of_custom_operators(model, given["custom_ops"])
    names = _input_names(model, given) if given.get("mean") or given.get("std") else []
    values: dict[str, Any] = {
        name: parse_channel_values(given[name], f"--{name}", names) for name in ("mean", "std") if name in given
    }
    shapes = given["shapes"]
    if given.get("constants"):
        values["constants"] = parse_constants(given["constants"])
    return {
        **given,
        **values,
        "shapes": one_shape_set(shapes, one_shape_set_for) if one_shape_set_for else parse_shapes(shapes),
    }


def _input_names(model: Path, given: Mapping[str, Any]) -> list[str]:
    """The inputs of a model; those of TorchScript have the names that come with their shapes."""
    if is_foreign(model) and given["shapes"]:
        return list(dict.fromkeys(text.partition("=")[0] for text in given["shapes"]))
    return onnxfile.input_names(model)


def _need_names_of_custom_operators(model: Path, named: Sequence[str]) -> None:
    """A model that needs functions of the user's program is made only where that was asked for: nothing else can run it."""
    missing = [name for name in onnxfile.foreign_operators(model) if name not in named]
    if missing:
        wanted = " ".join(f"--custom-op {name}" for name in missing)
        raise CompileError(
            f"{model.name} has operators that are not ONNX's own: {', '.join(missing)}",
            operator=missing[0],
            hint=f"if your program computes them: {wanted}; else export the model without them",
        )


def parse_named_files(values: Sequence[str] | None, input_names: Sequence[str]) -> Mapping[str, Path]:
    """``FILE`` or ``NAME=FILE`` texts by input name. Texts without a name belong to the inputs in their order."""
    files: dict[str, Path] = {}
    position = 0
    for value in values or ():
        name, equals, path = value.partition("=")
        if not equals or name not in input_names:
            if equals and not Path(value).exists():
                raise typer.BadParameter(
                    f"the model has no input {name!r}; its inputs: {', '.join(input_names)}", param_hint="'--input'"
                )
            if position >= len(input_names):
                raise typer.BadParameter(
                    f"{position + 1} files for a model with {len(input_names)} inputs", param_hint="'--input'"
                )
            name, path = input_names[position], value
            position += 1
        if not Path(path).is_file():
            raise typer.BadParameter(f"file {path!r} does not exist", param_hint="'--input'")
        if name in files:
            raise typer.BadParameter(f"given twice for input {name!r}", param_hint="'--input'")
        files[name] = Path(path)
    return files
