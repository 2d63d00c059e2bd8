"""The vendor's simulator as one side of a comparison: what ``anynpu compare`` holds against an anynpu model.

The toolkit's ``accuracy_analysis`` writes the result of every layer. It runs in a process of its own, once for each sample, in the folder
that ``anynpu build`` wrote.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import ToolkitError
from ...modelfile import CompiledModel
from .. import CompileOptions, compile
from ..importers.onnx_model import load_onnx
from ..toolkit.quantization_cfg import MADE_SUFFIXES, read_cfg
from ..toolkit.quantizer import VENDOR, WholeRanges
from . import analysis
from .build import final_cfg
from .environment import TIME_LIMIT, Toolkit, run_logged

_INT8 = "_int8"
_QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}


class VendorSimulation:
    """A model that the toolkit has built, on the toolkit's simulator.

    :param job: the folder that ``anynpu build`` wrote, in which the toolkit has worked
    :param time_limit: seconds for one sample
    """

    def __init__(self, job: Path, toolkit: Toolkit, *, time_limit: float = TIME_LIMIT) -> None:
        self.job = job.resolve()
        self.title = f"{job.name} (toolkit {toolkit.version})"
        self._toolkit = toolkit
        self._time_limit = time_limit
        self.document = read_job(self.job)
        model = load_onnx(self.job / self.document["model"])
        graph = model.graph
        self.input_shapes = {entry.name: _shape(entry) for entry in graph.input}
        self.output_shapes = {entry.name: _shape(entry) for entry in graph.output}
        inferred = onnx().shape_inference.infer_shapes(model).graph.value_info
        self._shapes = {entry.name: _shape(entry) for entry in inferred} | self.output_shapes | self.input_shapes
        made = {name for node in graph.node for name in node.output}
        self.tensors: AbstractSet[str] = {*self.input_shapes, *made, *read_cfg(self._cfg).entries}

    @property
    def _cfg(self) -> Path:
        return self.job / f"{self.document['name']}.quantization.cfg"

    def values(self, sample: Mapping[str, Array]) -> Mapping[str, Array]:
        """The result of every layer, by the names of the ONNX model, in real numbers."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = []
            for number, (key, shape) in enumerate(self.input_shapes.items()):
                files.append(str(folder / f"input{number}.npy"))
                np.save(files[-1], np.ascontiguousarray(sample[key], np.float32).reshape(shape))
            command = [str(self._toolkit.python), "-u", analysis.__file__, "job.json", str(folder / "layers"), *files]
            log = self.job / "simulator.log"
            run_logged(command, self.job, log, what="the vendor's simulator", time_limit=self._time_limit, environment=_QUIET)
            found = read_results(folder / "layers")
        values = {name: in_shape(value, self._shapes.get(name, value.shape)) for name, value in found.items()}
        return {name: value for name, value in values.items() if value is not None}


def read_job(job: Path) -> dict[str, Any]:
    """The job of a folder that ``anynpu build`` wrote and in which the toolkit has built an int8 model."""
    hint = "name the folder NAME.toolkit that 'anynpu build' wrote beside NAME.rknn"
    try:
        document = json.loads((job / "job.json").read_text(encoding="utf-8"))
        name = document["name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ToolkitError(f"{job} is no folder of 'anynpu build': {error}", hint=hint) from None
    missing = [
        f"{name}{end}" for end in (".onnx", ".model", ".data", ".quantization.cfg") if not (job / f"{name}{end}").is_file()
    ]
    if missing:
        raise ToolkitError(f"{job} lacks {', '.join(missing)}: no toolkit has built an int8 model in it", hint=hint)
    result: dict[str, Any] = document
    return result


def read_results(folder: Path) -> dict[str, Array]:
    """What ``accuracy_analysis`` wrote of the simulator, by the names of the ONNX model.

    An input or output is there as quantized values and as real numbers; what the quantized values stand for counts.
    """
    table = folder / "map_name_to_file.txt"
    if not table.is_file():
        raise ToolkitError(f"the vendor's simulator wrote no {table.name}", hint="see simulator.log in the folder of the build")
    values: dict[str, Array] = {}
    for line in table.read_text(encoding="utf-8", errors="replace").splitlines()[2:]:
        name, _, file = line.strip().rpartition(" ")
        path = folder / "simulator" / "npy" / f"{file.removesuffix('.txt')}.npy"
        if name and path.is_file():
            values[name.strip()] = np.load(path, allow_pickle=False)
    for name in list(values):
        if name.endswith(_INT8):
            values[name[: -len(_INT8)]] = values[name]
        for suffix in MADE_SUFFIXES:
            if name.endswith(suffix):
                values.setdefault(name[: -len(suffix)], values[name])
    return values


def in_shape(value: Array, shape: tuple[int, ...]) -> Array | None:
    """A result of the toolkit in the shape of the model: the toolkit moves a Transpose where it can. None where the order is not known.

    >>> in_shape(np.zeros((4, 16, 1, 64)), (1, 16, 4, 64)).shape
    (1, 16, 4, 64)
    """
    have, wanted = ([extent for extent in entry if extent != 1] for entry in (value.shape, shape))
    if have == wanted or sorted(have) != sorted(wanted):
        return value.reshape(shape) if value.size == math.prod(shape) else None
    if len(set(have)) < len(have):
        return None
    result: Array = value.reshape(have).transpose([have.index(extent) for extent in wanted]).reshape(shape)
    return result


def simulator_twin(job: Path, arithmetic: str = "simulator") -> CompiledModel:
    """The anynpu model of what the toolkit built in a folder, by default with the simulator's rounding."""
    return compile(*_compilation(job, arithmetic))


def _compilation(job: Path, arithmetic: str) -> tuple[Path, str, CompileOptions]:
    """Model, target and options of the anynpu model of what the toolkit built in a folder."""
    document = read_job(job)
    name, config = document["name"], document["config"]
    inputs = [entry.name for entry in load_onnx(job / document["model"]).graph.input]

    def by_input(key: str) -> dict[str, tuple[float, ...]]:
        found = config.get(key) or []
        return {own: tuple(values) for own, values in zip(inputs, found, strict=False) if values is not None}

    lines = (job / document["dataset"]).read_text(encoding="utf-8").splitlines()
    samples = [{own: np.load(job / file) for own, file in zip(inputs, line.split(), strict=True)} for line in lines]
    options = CompileOptions(
        dataset=samples,
        mean=by_input("mean_values") or None,
        std=by_input("std_values") or None,
        quantizer=VENDOR,
        arithmetic=arithmetic,
        accuracy="fast",
        hybrid=tuple(document["floats"]),
        ranges=WholeRanges(final_cfg(job / f"{name}.quantization.cfg").ranges()),
        name=name,
    )
    return job / document["model"], config["target_platform"], options


def _shape(entry: Any) -> tuple[int, ...]:
    return tuple(int(extent.dim_value) for extent in entry.type.tensor_type.shape.dim)
