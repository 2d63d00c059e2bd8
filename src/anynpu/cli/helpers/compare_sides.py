"""The two sides of ``anynpu compare``: files and devices, opened so that both take the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ... import modelfile
from ..._util.types import Array
from ...analysis.compare import ARITHMETICS, CompiledSubject, LayersSubject, OnnxSubject, OutputsSubject, Subject, by_arithmetic
from ...compiler.board import find_toolkit
from ...compiler.board.simulator import VendorSimulation, read_job, simulator_twin
from ...errors import DeviceUnavailable, ModelFormatError, ParameterError, ShapeError, ToolkitError
from ...modelfile import FileKind, identify
from ...program import Model, Preprocess
from ...session import InferenceSession
from ...vendors.devices import choose_device
from .models import no_model
from .preprocess import reversed_orders

__all__ = ["SideOptions", "open_rules", "open_sides", "open_simulation"]


@dataclass(frozen=True)
class SideOptions:
    """What the command line says about the sides.

    :ivar shapes: of an ONNX model's inputs; those of the compiled model if not given
    :ivar shape_set: of a compiled model
    :ivar mean: by input, for an ONNX model that is not compared with a compiled one
    :ivar model: what a device runs, if not the other side's file
    """

    shapes: Mapping[str, tuple[int, ...]] | None = None
    shape_set: int = 0
    mean: Mapping[str, tuple[float, ...]] | None = None
    std: Mapping[str, tuple[float, ...]] | None = None
    channel_order: str | None = None
    model: Path | None = None


@dataclass(frozen=True)
class _Side:
    """An argument, recognised. One of *path* and *device* is set; *model* is set where the path is a compiled model."""

    title: str
    path: Path | None = None
    device: str = ""
    model: Model | None = None


@contextmanager
def open_sides(a: str, b: str, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """Both sides, ready to run; a device is closed at the end."""
    first, second = _recognise(a), _recognise(b)
    if first.device and second.device:
        raise ParameterError(
            f"{a} and {b} are both devices", hint="compare a file with a device: anynpu compare yolo.onnx rknn --model yolo.rknn"
        )
    compiled = first.model or second.model
    if options.model is not None and not (first.device or second.device):
        raise ParameterError("--model says what a device runs, but no side is a device", hint="leave it out")
    if compiled is None and options.model is not None and identify(options.model) is FileKind.ANYNPU:
        compiled = modelfile.read(options.model)
    if not (first.device or second.device):
        yield _open_file(first, compiled, options), _open_file(second, compiled, options)
        return
    file = second if first.device else first
    subject = _open_file(file, compiled, options)
    with _session(first.device or second.device, file, options) as session:
        device = _device_subject(session, subject)
        yield (device, subject) if first.device else (subject, device)


@contextmanager
def open_rules(a: str, arithmetic: str, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """One compiled model by two rules of rounding, such as ``chip,simulator``."""
    side = _recognise(a)
    rules = [entry.strip() for entry in arithmetic.split(",")]
    if side.model is None:
        raise ParameterError(
            f"{a} is not a compiled model", hint="compile it first; --arithmetic compares a compiled model with itself"
        )
    if len(rules) != 2:
        raise ParameterError(f"--arithmetic takes two rules, got '{arithmetic}'", hint=f"give: {','.join(ARITHMETICS)}")
    first, second = (
        CompiledSubject(by_arithmetic(side.model, rule), f"{side.title} ({rule})", shape_set=options.shape_set) for rule in rules
    )
    yield first, second


@contextmanager
def open_simulation(job: Path, b: str | None, toolkit: Path | None, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """The vendor's simulator in a folder of ``anynpu build``, and a compiled model: *b*, or the twin by the simulator's rule."""
    read_job(job)  # rejects other folders
    found = find_toolkit(toolkit)
    if found is None:
        raise ToolkitError(
            "the vendor's simulator is part of rknn-toolkit2, which is not here",
            hint="install it with 'anynpu toolkit install', or name its environment: --toolkit FOLDER",
        )
    simulation = VendorSimulation(job, found)
    title, model = f"{simulation.document['name']} (simulator)", None
    if b is not None:
        side = _recognise(b)
        title, model = side.title, side.model
        if model is None:
            raise ParameterError(f"{b} is not a compiled model", hint="give the twin that 'anynpu build' wrote, or leave B out")
    subject = CompiledSubject(model or simulator_twin(job), title, shape_set=options.shape_set)
    names = simulation.tensors
    yield LayersSubject(simulation.title, subject.inputs, subject.outputs, names, simulation.values), subject


def _recognise(text: str) -> _Side:
    path = Path(text)
    if path.is_file():
        kind = identify(path)
        if kind is FileKind.ANYNPU or kind.of_a_vendor:
            return _Side(path.name, path, model=modelfile.read_or_twin(path))
        if kind is FileKind.ONNX or path.suffix.lower() == ".onnx":
            return _Side(path.name, path)
        raise no_model(path, "give an .onnx, .rknn, .nb or .anynpu file")
    try:
        choose_device(text)
    except DeviceUnavailable:
        raise ModelFormatError(
            f"'{text}' is neither a file nor a device", hint="give a model file, or a device: sim, sim:rk3588, rknn, vip"
        ) from None
    return _Side(text, device=text)


def _open_file(side: _Side, compiled: Model | None, options: SideOptions) -> Subject:
    assert side.path is not None
    if side.model is not None:
        return CompiledSubject(side.model, side.title, shape_set=options.shape_set)
    shapes, preprocess = options.shapes, _given_preprocess(options)
    order: str | Mapping[str, str] | None = options.channel_order
    if compiled is not None:
        order = order or reversed_orders(compiled) or None
        if not 0 <= options.shape_set < len(compiled.programs):
            raise ShapeError(f"there is no shape set {options.shape_set}", hint=f"the model has {len(compiled.programs)}")
        shapes = shapes or {spec.name: spec.shape for spec in compiled.programs[options.shape_set].input_specs}
        if preprocess and compiled.preprocess:
            raise ParameterError("the compiled model has its own mean and std", hint="leave --mean and --std out")
        preprocess = preprocess or compiled.preprocess
    return OnnxSubject(side.path, side.title, shapes=shapes, preprocess=preprocess, channel_order=order)


def _given_preprocess(options: SideOptions) -> Mapping[str, Preprocess]:
    means, deviations = options.mean or {}, options.std or {}
    result = {}
    for name in {*means, *deviations}:
        mean, std = means.get(name, (0.0,)), deviations.get(name, (1.0,))
        length = max(len(mean), len(std))
        if len(mean) not in (1, length) or len(std) not in (1, length) or 0.0 in std:
            raise ParameterError(
                f"mean {list(mean)} and std {list(std)} of input '{name}' do not fit", hint="one for each channel"
            )
        result[name] = Preprocess(mean * (length // len(mean)), std * (length // len(std)))
    return result


def _session(device: str, file: _Side, options: SideOptions) -> InferenceSession:
    model = options.model or (file.path if file.model is not None else None)
    if model is None:
        raise ParameterError(
            f"{file.title} is an ONNX model, which no device runs", hint=f"say what {device} runs: --model FILE.rknn"
        )
    try:
        return InferenceSession(model, device=device)
    except DeviceUnavailable as error:
        raise DeviceUnavailable(
            f"the device '{device}' is not here: {error.message}",
            hint="run this on the board, or compare with the software NPU: sim",
        ) from error


def _device_subject(session: InferenceSession, other: Subject) -> OutputsSubject:
    names = session.input_names
    inputs, outputs = other.inputs, other.outputs
    if len(names) != len(inputs):
        raise ShapeError(
            f"the device's model has {len(names)} inputs, {other.title} has {len(inputs)}",
            hint="let the device run a model of the same network",
        )

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return OutputsSubject(session.device, inputs, outputs, run)
