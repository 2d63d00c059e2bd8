"""``anynpu inspect``: what is in a model file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import anynpu

from ... import chips
from ..._util.printable import printable
from ...chips import Chip
from ...compiler.lower.formats import format_words
from ...errors import ModelError
from ...modelfile import FileKind, identify, read, vendorfile
from ...modelfile.stand_ins import VENDOR_HASH, find_twin, vendor_hash
from ...modelfile.vendorfile import VendorModelInfo, VendorTensor
from ...npu import rocket
from ...program import Float, Model
from ...program.report import report
from ...tensor import Affine, DynamicFixedPoint, Quantization, TensorSpec
from ...vendors import registry
from ..helpers.console import plain_table, print_json, results, size_text
from ..helpers.models import no_model
from ..helpers.onnxfile import OnnxInfo, describe, reaction_line, trained_orders
from ..helpers.options import JsonOption, LayersOption, ShapeOption, one_shape_set, optional_chip
from ..helpers.summary import cpu_table, layer_table, shape_text, summary_line

_ZIP = b"PK\x03\x04"

MAX_SHOWN = 60
"""Characters of an entry of the metadata that are shown."""


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A model: ours, .rknn, .nb, .onnx or .tflite.", exists=True, dir_okay=False, readable=True
        ),
    ],
    layers: LayersOption = False,
    as_json: JsonOption = False,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="CHIP", help="Fail if the file is not for this chip.", callback=optional_chip),
    ] = None,
    dataset: Annotated[
        Path | None,
        typer.Option(
            "--dataset",
            metavar="PATH",
            help="Images: try the usual mean, std and channel orders on an ONNX model.",
            exists=True,
        ),
    ] = None,
    shape: ShapeOption = None,
) -> None:
    """Show what is in a model file.

    Inputs, outputs, types, quantization, layers and memory. Opens the files of anynpu, the vendors' own .rknn and .nb, and ONNX. A command
    stream of the RK3588 NPU (64-bit words) or a recorded job (.npz) is disassembled; --layers also prints the registers that are 0.

    \b
    Example:
      anynpu inspect yolo.rknn --layers
      anynpu inspect yolo.onnx --json
      anynpu inspect yolo.onnx --dataset street/
      anynpu inspect lenet.nb --target t527
    """
    kind = identify(file)
    if kind is FileKind.ANYNPU:
        model = anynpu.load(file)
        print_json(_model_json(model)) if as_json else _print_model(results(), file, model, layers)
    elif kind is FileKind.ONNX or (kind is FileKind.UNKNOWN and file.suffix.lower() in (".onnx", ".tflite")):
        onnx = describe(file)
        line, facts = ("", {}) if dataset is None else reaction_line(file, dataset, one_shape_set(shape, "inspect"))
        if as_json:
            print_json({**onnx.to_json(), **({"preprocessing": facts} if facts else {})})
        else:
            _print_onnx(results(), file, onnx)
            if line:
                results().print(f"preprocessing  {line}")
    elif kind is FileKind.UNKNOWN and _has_commands(file):
        _print_commands(rocket.read_tasks(file), layers, as_json)
        return
    elif kind is FileKind.UNKNOWN:
        raise no_model(file, "inspect opens .rknn, .nb, .onnx and .tflite files, command streams and jobs")
    else:
        vendor = vendorfile.read(file)
        print_json(_vendor_json(vendor)) if as_json else _print_vendor(results(), file, vendor, layers)
    if target is not None and kind is not FileKind.ONNX:
        _check_target(file, kind, chips.get(target))


def _has_commands(file: Path) -> bool:
    """Whether a file is a command stream, or a recorded job."""
    with file.open("rb") as opened:
        head = opened.read(64)
    return (file.suffix.lower() == ".npz" and head.startswith(_ZIP)) or rocket.is_stream(head)


def _print_commands(tasks: tuple[rocket.StreamTask, ...], zeros: bool, as_json: bool) -> None:
    if as_json:
        print_json([{"offset": task.offset, "commands": [command._asdict() for command in task.commands]} for task in tasks])
        return
    for line in rocket.disassemble(tasks, zeros=zeros):
        results().print(line, markup=False, highlight=False, soft_wrap=True)


def _check_target(file: Path, kind: FileKind, chip: Chip) -> None:
    """Raise if a compiled file is for another chip, naming both."""
    check = registry.of_chip(chip).check_target
    if check is not None and check(file, chip):
        return
    own = anynpu.load(file).chip if kind is FileKind.ANYNPU else vendorfile.read(file).target
    if chip.name not in own.replace(",", " ").lower().split():
        raise ModelError(
            f"{file.name} is for {own or 'a chip that it does not name'}, not for {chip.name}", hint="compile it again"
        )


_ARITHMETICS = {
    "chip": "chip: integer layers round as the NPU does",
    "simulator": "simulator: integer layers round once, after a float32 multiplication",
}
_IN_FLOAT32 = "simulator: layers compute in float32, from codes to codes, as the toolkit's simulator does"


def _arithmetic(model: Model) -> str:
    """By which rule the layers of a model round, as a sentence."""
    for program in model.programs:
        for layer in program.layers:
            if isinstance(layer.op, Float) and any(program.tensors[name].quantization is not None for name in layer.outputs):
                return _IN_FLOAT32
    return _ARITHMETICS.get(model.arithmetic, printable(model.arithmetic))


def _has_codes(model: Model) -> bool:
    return any(spec.quantization is not None for program in model.programs for spec in program.tensors.values())


def _model_json(model: Model) -> dict[str, Any]:
    return {
        "format": FileKind.ANYNPU.value,
        "name": model.name,
        "chip": model.chip,
        "dtype": model.dtype,
        "arithmetic": model.arithmetic if _has_codes(model) else None,
        "custom_string": model.custom_string,
        "metadata": None if model.metadata is None else asdict(model.metadata),
        "weightless": model.weightless,
        "custom_operators": model.custom_operators,
        "inputs": [_spec_json(_as_seen(model, spec)) for spec in model.inputs],
        "outputs": [_spec_json(_as_seen(model, spec)) for spec in model.outputs],
        "channel_order": trained_orders(model),
        "preprocess": {name: asdict(preprocess) for name, preprocess in model.preprocess.items()},
        "provenance": dict(model.provenance),
        "programs": [
            {"input_shapes": {spec.name: spec.shape for spec in program.input_specs}, **report(model, index).to_json()}
            for index, program in enumerate(model.programs)
        ],
    }


def _as_seen(model: Model, spec: TensorSpec) -> TensorSpec:
    """An input or output as programs see it."""
    seen: TensorSpec = registry.of_chip(chips.get(model.chip)).port(model, spec)
    return seen


def _spec_json(spec: TensorSpec) -> dict[str, Any]:
    quantization: dict[str, Any] | None = None
    if isinstance(spec.quantization, DynamicFixedPoint):
        quantization = {"kind": "fixed point", "fraction_bits": spec.quantization.fraction_bits}
    elif isinstance(spec.quantization, Affine):
        quantization = {"kind": "affine", **asdict(spec.quantization)}
    return {
        "name": spec.name,
        "shape": spec.shape,
        "dtype": spec.dtype.value,
        "layout": spec.layout.value,
        "bytes": spec.nbytes,
        "quantization": quantization,
    }


def _vendor_json(info: VendorModelInfo) -> dict[str, Any]:
    data = asdict(info)
    return {"format": data.pop("kind").value, **data}


def _print_metadata(console: Console, properties: Mapping[str, str]) -> None:
    """One line per entry of the ONNX model's metadata; long ones are cut, and --json has them whole."""
    for key, value in properties.items():
        text = printable(value)
        more = f" ... ({len(value)} characters)" if len(text) > MAX_SHOWN else ""
        console.print(f"  metadata     {printable(key)[:MAX_SHOWN]} = {text[:MAX_SHOWN]}{more}")


def _print_model(console: Console, file: Path, model: Model, layers: bool) -> None:
    words = format_words(model.dtype, chips.get(model.chip))
    kind = model.dtype if words == model.dtype else f"{model.dtype} ({words})"
    console.print(f"{file.name}: compiled by {model.provenance.get('compiler', 'anynpu')} for {model.chip}, {kind}")
    console.print("  runs on      the software NPU; no vendor runtime loads it ('anynpu build' makes the file for a board)")
    if model.weightless:
        console.print("  weights      left out; a context of the complete model supplies them")
    for label, text in (("name", model.name), ("text", model.custom_string)):
        if text:
            console.print(f"  {label:12} {text}")
    if model.custom_operators:
        console.print(f"  custom       {', '.join(model.custom_operators)}: the program registers functions for these operators")
    if _has_codes(model):
        console.print(f"  arithmetic   {_arithmetic(model)}")
    for label in ("source", "calibration", "accuracy", "warnings"):
        if label in model.provenance:
            console.print(f"  {label:12} {model.provenance[label]}")
    _print_metadata(console, {} if model.metadata is None else model.metadata.properties)
    for name, preprocess in model.preprocess.items():
        node = f"node for {preprocess.picture.upper()} images, " if preprocess.picture else ""
        console.print(f"  preprocess   {name}: {node}mean {_numbers(preprocess.mean)}, std {_numbers(preprocess.std)}")
    for name, order in trained_orders(model).items():
        takes = (model.preprocess[name].picture if name in model.preprocess else "") or "rgb"
        console.print(f"  channels     {name}: trained on {order.upper()}, takes {takes.upper()}")
    for index, program in enumerate(model.programs):
        console.print()
        if len(model.programs) > 1:
            console.print(f"shape set {index}")
        table = plain_table("", "name", "shape", "type", "layout", "quantisation")
        for label, specs in (("input", program.input_specs), ("output", program.output_specs)):
            for spec in (_as_seen(model, spec) for spec in specs):
                table.add_row(
                    label,
                    spec.name,
                    shape_text(spec.shape),
                    spec.dtype.value,
                    spec.layout.value,
                    _quantization_text(spec.quantization),
                )
        console.print(table)
        row = report(model, index)
        console.print(summary_line(row))
        if layers or row.on_cpu:
            console.print()
            console.print(layer_table(row) if layers else cpu_table(row))


def _print_vendor(console: Console, file: Path, info: VendorModelInfo, layers: bool) -> None:
    tool = f", {info.toolkit}" if info.toolkit else ""
    target = f" for {info.target}" if info.target else ""
    console.print(f"{file.name}: a vendor's .{info.kind.value} file, version {_version_text(info)}{tool}{target}")
    if info.name:
        console.print(f"  name         {info.name}")
    if info.memory_bytes:
        console.print(f"  memory       {size_text(info.memory_bytes)}")
    if info.layers:
        console.print(f"  layers       {len(info.layers)}")
    for name, (mean, std) in info.preprocess.items():
        console.print(f"  preprocess   {name}: mean {_numbers(mean)}, std {_numbers(std)}")
    for note in info.notes:
        console.print(f"  note         {note}")
    if info.inputs or info.outputs:
        table = plain_table("", "name", "shape", "type", "layout", "quantisation")
        for label, tensors in (("input", info.inputs), ("output", info.outputs)):
            for tensor in tensors:
                table.add_row(
                    label, tensor.name, shape_text(tensor.shape), tensor.dtype, tensor.layout, _vendor_quantization_text(tensor)
                )
        console.print()
        console.print(table)
    if layers and info.layers:
        console.print()
        for index, layer in enumerate(info.layers):
            console.print(f"{index:4}  {layer}")
    console.print()
    twin = find_twin(file)
    if twin is None:
        console.print("It runs on the vendor's runtime only; compile the ONNX model to run it here.")
        return
    tied = read(twin).provenance.get(VENDOR_HASH, "")
    if tied and tied != vendor_hash(file):
        console.print(f"{twin} was built with another vendor file; build both again with 'anynpu build'.")
    else:
        console.print(f"It runs on the vendor's runtime only; here the anynpu model {twin} runs in its place.")


def _print_onnx(console: Console, file: Path, info: OnnxInfo) -> None:
    producer = f", written by {info.producer}" if info.producer else ""
    console.print(f"{file.name}: ONNX, opset {info.opset}{producer}, {info.nodes} nodes")
    _print_metadata(console, info.metadata)
    table = plain_table("", "name", "shape", "type")
    for label, tensors in (("input", info.inputs), ("output", info.outputs)):
        for tensor in tensors:
            table.add_row(label, tensor.name, shape_text(tensor.shape), tensor.dtype)
    console.print()
    console.print(table)
    console.print()
    console.print("operators  " + ", ".join(f"{name} {count}" for name, count in info.operators.items()))


def _version_text(info: VendorModelInfo) -> str:
    forms = (form for vendor in registry.all_vendors() for form in vendor.files)
    return next((form.version_text(info.version) for form in forms if form.name == info.kind), str(info.version))


def _quantization_text(quantization: Quantization | None) -> str:
    if quantization is None:
        return "none"
    if isinstance(quantization, DynamicFixedPoint):
        return f"fixed point, {quantization.fraction_bits} fraction bits"
    if quantization.is_per_tensor:
        return f"scale {quantization.scale:.6g}, zero point {quantization.zero_point}"
    return f"{len(quantization.scales)} groups of channels"


def _vendor_quantization_text(tensor: VendorTensor) -> str:
    if tensor.scale is not None:
        zero_point = "" if tensor.zero_point is None else f", zero point {tensor.zero_point}"
        return f"scale {tensor.scale:.6g}{zero_point}"
    if tensor.fraction_bits is not None:
        return f"fixed point, {tensor.fraction_bits} fraction bits"
    return tensor.quantization


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)
