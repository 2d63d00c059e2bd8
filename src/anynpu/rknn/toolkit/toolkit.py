"""RKNN: the vendor's class for conversion, simulation and analysis, call by call.

Calls on a model return 0 or -1, and the log states why; nothing of ours is raised through them.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ... import chips, modelfile
from ..._util.output_files import write_output
from ..._util.types import Array
from ...analysis.compare import CompiledSubject, OnnxSubject
from ...compiler import compile as compile_model
from ...compiler import optimize
from ...compiler.quantize.dataset import InputInfo, open_dataset
from ...errors import AnynpuError, CompileError, ModelError, ParameterError
from ...modelfile import CompiledModel
from ...program import Model
from ...vendors.devices import SOFTWARE
from .. import Context, Flag
from ..lite.lite import VERSION, CoreMasks, RKNNLog, choose, describe, open_model, under_exec
from ..lite.runtime import Runtime
from . import customop, hybrid
from .config import DEFAULTS, Config, ModelSource, bgr_dataset, config_of, from_onnx, from_pytorch, from_tflite

# ``eval_perf`` and ``eval_memory``: the vendor's tables, from the timing model and the memory plan, or from a board.


_RULE = "=" * 115
_NARROW = "=" * 54
MemoryFigures = dict[str, int]


def performance_text(context: Context, detailed: bool) -> str:
    """How long an inference takes; layer by layer for a context that collects it."""
    if detailed:
        return context.perf_detail
    time = max(context.run_microseconds, 1)
    heading = "Performance".center(len(_RULE)).rstrip()
    return f"{_RULE}\n{heading}\n{_RULE}\nTotal Time(us): {time}\nFPS: {1e6 / time:.2f}\n{_RULE}\n"


def memory_figures(context: Context) -> MemoryFigures:
    """Bytes that a model needs: weights, intermediate tensors, the rest (inputs and outputs), and all of it."""
    sizes = context.memory_sizes
    other = sum(math.prod(info.shape) * info.dtype.itemsize for info in (*context.inputs, *context.outputs))
    return {
        "weight_memory": sizes.weights,
        "internal_memory": sizes.internal,
        "other_memory": other,
        "total_memory": sizes.weights + sizes.internal + other,
    }


def memory_text(figures: MemoryFigures) -> str:
    """The same as a table."""
    rows = (
        ("Weight Memory", "weight_memory"),
        ("Internal Tensor Memory", "internal_memory"),
        ("Other Memory", "other_memory"),
        ("Total Memory", "total_memory"),
    )
    lines = [f"    {title}: {figures[key] / 2**20:.2f} MiB" for title, key in rows]
    heading = "Memory Profile Info Dump".center(len(_NARROW)).rstrip()
    return "\n".join([_NARROW, heading, _NARROW, "NPU model memory detail:", *lines, _NARROW, ""])


# ``codegen``: a C program that runs a model on its inputs, with all that is needed to build it.


_PROGRAM = """\
/* Runs model.rknn on the files in inputs/ and writes what it gives to outputs/. Written by RKNN.codegen. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rknn_api.h"

#define INPUTS @INPUTS@
#define OUTPUTS @OUTPUTS@

static const struct {
    const char *path;
    uint32_t size;
    rknn_tensor_type type;
    rknn_tensor_format format;
} given[INPUTS] = {
@TABLE@};

static void *read_file(const char *path, uint32_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s cannot be opened\\n", path);
        return NULL;
    }
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    char *data = malloc(length > 0 ? (size_t)length : 1);
    if (data != NULL && fread(data, 1, (size_t)length, file) != (size_t)length) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *size = (uint32_t)length;
    return data;
}

static int write_output(uint32_t index, const rknn_output *output, const rknn_tensor_attr *attr)
{
    char path[64];
    snprintf(path, sizeof path, "outputs/output_%u.bin", index);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(output->buf, 1, output->size, file) != output->size || fclose(file) != 0) {
        fprintf(stderr, "%s cannot be written\\n", path);
        return -1;
    }
    printf("%s %s [", path, attr->name);
    for (uint32_t axis = 0; axis < attr->n_dims; axis++)
        printf("%s%u", axis ? "," : "", attr->dims[axis]);
    printf("] float32\\n");
    return 0;
}

int main(int argc, char **argv)
{
    rknn_context context = 0;
    rknn_input inputs[INPUTS];
    rknn_output outputs[OUTPUTS];
    uint32_t size = 0;
    void *model = read_file(argc > 1 ? argv[1] : "model.rknn", &size);
    if (model == NULL)
        return 1;
    int code = rknn_init(&context, model, size, 0, NULL);
    free(model);
    if (code < 0) {
        fprintf(stderr, "rknn_init: %d\\n", code);
        return 1;
    }
    memset(inputs, 0, sizeof inputs);
    memset(outputs, 0, sizeof outputs);
    for (uint32_t index = 0; index < INPUTS; index++) {
        inputs[index].index = index;
        inputs[index].buf = read_file(given[index].path, &inputs[index].size);
        inputs[index].type = given[index].type;
        inputs[index].fmt = given[index].format;
        if (inputs[index].buf == NULL || inputs[index].size != given[index].size) {
            fprintf(stderr, "%s does not have %u bytes\\n", given[index].path, given[index].size);
            return 1;
        }
    }
    for (uint32_t index = 0; index < OUTPUTS; index++) {
        outputs[index].index = index;
        outputs[index].want_float = 1;
    }
    code = rknn_inputs_set(context, INPUTS, inputs);
    if (code >= 0)
        code = rknn_run(context, NULL);
    if (code >= 0)
        code = rknn_outputs_get(context, OUTPUTS, outputs, NULL);
    if (code < 0) {
        fprintf(stderr, "the model cannot be run: %d\\n", code);
        return 1;
    }
    for (uint32_t index = 0; index < OUTPUTS; index++) {
        rknn_tensor_attr attr;
        memset(&attr, 0, sizeof attr);
        attr.index = index;
        if (rknn_query(context, RKNN_QUERY_OUTPUT_ATTR, &attr, sizeof attr) < 0 || write_output(index, &outputs[index], &attr) < 0)
            return 1;
    }
    rknn_outputs_release(context, OUTPUTS, outputs);
    for (uint32_t index = 0; index < INPUTS; index++)
        free(inputs[index].buf);
    return rknn_destroy(context) < 0;
}
"""

_MAKEFILE = """\
# On a board: make. Elsewhere, with anynpu: make INCLUDE=`anynpu lib --include` LIB=`anynpu lib --path`
CC ?= cc
INCLUDE ?= /usr/include
LIB ?= /usr/lib

run: main.c
\t$(CC) -O2 -Wall -o $@ main.c -I$(INCLUDE) -L$(LIB) -l@LIBRARY@
"""

_TYPES = {
    "uint8": "RKNN_TENSOR_UINT8",
    "float32": "RKNN_TENSOR_FLOAT32",
    "int64": "RKNN_TENSOR_INT64",
    "bool": "RKNN_TENSOR_BOOL",
}


def generate(model: CompiledModel, folder: Path, inputs: Sequence[object] | None, library: str, *, overwrite: bool) -> None:
    """Write the program, the model and its inputs.

    :param inputs: a file or an array for each input; zeros, if not given
    :param library: what the program is linked with, such as rknnrt
    """
    if folder.exists() and not overwrite:
        raise ParameterError(f"{folder} is there already", hint="pass overwrite=True, or another path")
    arrays = _arrays(model, inputs)
    for part in ("inputs", "outputs"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    rows = []
    for index, (array, spec) in enumerate(zip(arrays, model.inputs, strict=True)):
        (folder / "inputs" / f"input_{index}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
        layout = "RKNN_TENSOR_NHWC" if len(spec.shape) == 4 else "RKNN_TENSOR_UNDEFINED"
        rows.append(f'    {{"inputs/input_{index}.bin", {array.nbytes}u, {_TYPES[array.dtype.name]}, {layout}}},\n')
    program = _PROGRAM.replace("@INPUTS@", str(len(arrays))).replace("@OUTPUTS@", str(len(model.outputs)))
    (folder / "main.c").write_text(program.replace("@TABLE@", "".join(rows)), encoding="utf-8")
    (folder / "Makefile").write_text(_MAKEFILE.replace("@LIBRARY@", library), encoding="utf-8")
    modelfile.write(model, folder / "model.rknn")


def _arrays(model: Model, inputs: Sequence[object] | None) -> list[Array]:
    """The inputs as the program feeds them: images as N, H, W, C, bytes where they are bytes."""
    if inputs is None:
        return [np.zeros(math.prod(spec.shape), _kind(model, spec.name)) for spec in model.inputs]
    infos = [InputInfo(spec.name, spec.shape, np.dtype(_kind(model, spec.name))) for spec in model.inputs]
    infos = [InputInfo(info.name, info.shape, np.dtype(np.float32)) if info.dtype == np.uint8 else info for info in infos]
    (sample,) = open_dataset([tuple(inputs)], infos, limit=1)
    arrays = []
    for spec in model.inputs:
        value = sample[spec.name]
        if len(spec.shape) == 4:
            value = value.transpose(0, 2, 3, 1)
        kind = _kind(model, spec.name)
        if kind == "uint8" and not np.array_equal(value, np.clip(np.rint(value), 0, 255)):
            kind = "float32"
        arrays.append(np.ascontiguousarray(value).astype(kind))
    return arrays


def _kind(model: Model, name: str) -> str:
    """The type that an input is fed in."""
    spec = next(spec for spec in model.inputs if spec.name == name)
    if name in model.preprocess:
        return "uint8"
    storage = spec.dtype.storage.name
    return storage if storage in ("int64", "bool") else "float32"


# ``accuracy_analysis``: every layer beside the float model, as the files that the vendor's toolkit writes.
#
# ``golden`` holds the values of the float model, ``simulator`` those of the compiled one, ``runtime`` those of a target. Each has a
# tensor as NAME.txt, a number on each line, and as npy/NAME.npy in its shape; ``map_name_to_file.txt`` has the names.
# ``error_analysis.txt`` has a row for each layer: cosine and Euclidean distance to golden, in the network as it stands (entire) and
# fed with golden's values (single).


_NAME = 64
_PAIR = 20


@dataclass(frozen=True)
class Row:
    """One tensor of one layer; each pair is (cosine, Euclidean distance)."""

    kind: str
    tensor: str
    entire: tuple[float, float]
    single: tuple[float, float]
    runtime: tuple[float, float] | None = None
    single_sim: tuple[float, float] | None = None


@dataclass(frozen=True)
class Analysis:
    """The rows, and the values behind them by tensor."""

    rows: tuple[Row, ...]
    golden: Mapping[str, Array]
    simulator: Mapping[str, Array]
    runtime: Mapping[str, Array]


def analyse(
    proto: Any,
    model: Model,
    inputs: Sequence[Any],
    shapes: Mapping[str, tuple[int, ...]],
    runtime: Mapping[str, Array] | None = None,
) -> Analysis:
    """Compare a compiled model with the ONNX model that it was made of, on one sample.

    :param inputs: a file or an array for each input
    :param runtime: outputs of the target, by name; empty where its layers compute as the simulator's
    """
    golden = OnnxSubject(proto, "golden", shapes=shapes, preprocess=model.preprocess)
    subject = CompiledSubject(model, "simulator")
    infos = [InputInfo(entry.name, entry.shape, entry.dtype) for entry in golden.inputs]
    (sample,) = open_dataset([tuple(inputs)], infos, limit=1)
    common = golden.tensors & subject.tensors
    golden.watch(common)
    subject.watch(common)
    right = golden.run(sample)
    subject.run(sample)
    rows: list[Row] = []
    values: dict[str, dict[str, Array]] = {"golden": {}, "simulator": {}, "runtime": {}}
    for unit in subject.units():
        made, alone = subject.outcome(unit), subject.alone(unit, right)
        for name in unit.tensors:
            expected = right.get(name)
            if expected is None or expected.size != made.values[name].size:
                continue
            result = made.values[name].reshape(expected.shape)
            own = result if alone is None else alone.values[name].reshape(expected.shape)
            entire, single = _errors(expected, result), _errors(expected, own)
            on_target, of_target = None, None
            if runtime is not None:
                taken = runtime[name].reshape(expected.shape) if name in runtime else None if runtime else result
                if taken is not None:
                    on_target, of_target = _errors(expected, taken), _errors(result, taken)
                    values["runtime"][name] = taken
            values["golden"][name], values["simulator"][name] = expected, result
            rows.append(Row(unit.kind, name, entire, single, on_target, of_target))
    return Analysis(tuple(rows), values["golden"], values["simulator"], values["runtime"])


def table(rows: Sequence[Row]) -> str:
    """The text of ``error_analysis.txt``."""
    with_target = any(row.runtime is not None for row in rows)
    pair = "cos | euc".center(_PAIR)
    groups = ["simulator_error".center(2 * _PAIR), *(["runtime_error".center(2 * _PAIR)] if with_target else [])]
    columns = ["entire", "single", *(["entire", "single_sim"] if with_target else [])]
    rule = "-" * (_NAME + _PAIR * len(columns))
    lines = [
        "# simulator_error: the compiled model beside the float model ('golden'), layer by layer",
        "#     entire: with all that went wrong before the layer",
        "#     single: the layer alone, fed with the values of the float model",
        *(
            [
                "# runtime_error: the target beside the float model",
                "#     entire: with all that went wrong before the layer",
                "#     single_sim: the target beside the simulator",
            ]
            if with_target
            else []
        ),
        "",
        "layer_name".ljust(_NAME) + "".join(groups).rstrip(),
        " " * _NAME + "".join(column.center(_PAIR) for column in columns).rstrip(),
        " " * _NAME + (pair * len(columns)).rstrip(),
        rule,
    ]
    for row in rows:
        cells = [row.entire, row.single, *([row.runtime, row.single_sim] if with_target else [])]
        texts = ["\\ | \\" if cell is None else f"{cell[0]:.5f} | {cell[1]:.4f}" for cell in cells]
        lines.append(f"[{row.kind}] {row.tensor} ".ljust(_NAME) + "".join(text.center(_PAIR) for text in texts).rstrip())
    return "\n".join([*lines, rule, ""])


def write(analysis: Analysis, folder: Path) -> None:
    """All files of an analysis."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error_analysis.txt").write_text(table(analysis.rows), encoding="utf-8")
    files: dict[str, str] = {}
    for row in analysis.rows:
        stem = re.sub(r"[^\w.-]+", "_", row.tensor) or "tensor"
        taken = set(files.values())
        name, number = stem, 1
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        files.setdefault(row.tensor, name)
    for part, values in (("golden", analysis.golden), ("simulator", analysis.simulator), ("runtime", analysis.runtime)):
        if part != "runtime" or values:
            (folder / part / "npy").mkdir(parents=True, exist_ok=True)
        for tensor, value in values.items():
            np.save(folder / part / "npy" / f"{files[tensor]}.npy", value)
            (folder / part / f"{files[tensor]}.txt").write_text(_numbers(value), encoding="utf-8")
    width = max(map(len, ("layer_name", *files))) + 4
    lines = [("layer_name", "file_name"), *((tensor, f"{name}.txt") for tensor, name in files.items())]
    text = "".join(f"{tensor.ljust(width)}{name}\n" for tensor, name in lines)
    (folder / "map_name_to_file.txt").write_text(text, encoding="utf-8")


def _numbers(values: Array) -> str:
    """One number on each line, with the digits that float32 needs."""
    return "".join(f"{value:.9g}\n" for value in np.asarray(values, np.float64).ravel().tolist())


def _errors(expected: Array, given: Array) -> tuple[float, float]:
    a, b = (np.asarray(values, np.float64).ravel() for values in (expected, given))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    distance = float(np.linalg.norm(a - b))
    cosine = float(a @ b) / lengths if lengths else float(distance == 0.0)
    return min(cosine, 1.0), distance


_Result = TypeVar("_Result")
_REFUSALS = {
    "load_tensorflow": "TensorFlow models are not read here; export the model as ONNX (tf2onnx) and use load_onnx",
    "load_caffe": "Caffe models are not read here; convert the model to ONNX and use load_onnx",
    "load_darknet": "Darknet models are not read here; convert the model to ONNX and use load_onnx",
    "export_encrypted_rknn_model": "models are not encrypted here; the vendor's toolkit does that",
}


def _answering(failure: Any) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Makes a method log what it raises, and return *failure* then."""

    def decorate(method: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(method)
        def call(self: RKNN, *arguments: Any, **keywords: Any) -> Any:
            try:
                return method(self, *arguments, **keywords)
            except (AnynpuError, OSError, ValueError, TypeError) as error:
                self.rknn_log.logger.error(f"{method.__name__}: {describe(error)}")
                return failure

        return call

    return decorate


class RKNN(CoreMasks):
    """Compiles models for Rockchip's chips, runs them on the software NPU, and reports how well they do.

    :param verbose: also log what is only worth knowing
    :param verbose_file: a file that gets the log, too
    """

    def __init__(self, verbose: bool = False, verbose_file: str | None = None) -> None:
        self.verbose = verbose
        self.rknn_log = RKNNLog("rknn", verbose, verbose_file)
        self.rknn_runtime: Runtime | None = None
        self._config: Config | None = None
        self._source: ModelSource | None = None
        self._model: CompiledModel | None = None
        self._file: Path | None = None
        self._operators: dict[str, Any] = {}
        self._perf_debug = False
        self.rknn_log.logger.info(f"rknn-toolkit2 version: {VERSION}")

    @property
    def rknn_base(self) -> RKNN:
        """The object itself: programs take :attr:`inputs_meta` and ``rknn_runtime`` from it."""
        return self

    @property
    def inputs_meta(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The inputs and outputs by name, below ``attrs``: ``idx`` (inputs and outputs are counted apart), ``shape``, ``dtype``,
        ``layout`` (``nchw`` for four dimensions, else None) and ``is_output``."""
        attrs: dict[str, dict[str, Any]] = {}

        def add(index: int, name: str, shape: Sequence[int], dtype: str, is_output: bool) -> None:
            layout = "nchw" if len(shape) == 4 else None
            attrs[name] = {"idx": index, "shape": list(shape), "dtype": dtype, "layout": layout, "is_output": is_output}

        if self._model is not None:
            for specs, is_output in ((self._model.inputs, False), (self._model.outputs, True)):
                for index, spec in enumerate(specs):
                    add(index, spec.name, spec.shape, spec.dtype.value, is_output)
        elif self._source is not None:
            for index, (name, shape) in enumerate(self._source.shapes.items()):
                add(index, name, shape, "float32", False)
        return {"attrs": attrs}

    # what is compiled

    @_answering(-1)
    def config(
        self,
        mean_values: Any = None,
        std_values: Any = None,
        quantized_dtype: str = "w8a8",
        quantized_algorithm: str = "normal",
        quantized_method: str = "channel",
        quantized_hybrid_level: int = 0,
        target_platform: Any = None,
        quant_img_RGB2BGR: Any = False,  # noqa: N803
        float_dtype: str = "float16",
        optimization_level: int = 3,
        custom_string: str | None = None,
        remove_weight: bool = False,
        compress_weight: bool = False,
        inputs_yuv_fmt: Any = None,
        single_core_mode: bool = False,
        dynamic_input: Any = None,
        model_pruning: bool = False,
        op_target: Any = None,
        quantize_weight: bool = False,
        remove_reshape: bool = False,
        sparse_infer: bool = False,
        mini_rknn: bool = False,
        enable_flash_attention: bool = False,
        auto_hybrid_cos_thresh: float = 0.98,
        auto_hybrid_euc_thresh: float | None = None,
        memory_plan_strategy: str = "BestFit",
        compute_order: str = "WidthFirst",
        compiler_control_file: str | None = None,
        **kwargs: Any,
    ) -> int:
        """How models are compiled; the page on migration states what each keyword does, and one without effect reports it once."""
        given = {name: value for name, value in locals().items() if name in DEFAULTS}
        config = config_of({**given, **kwargs}, self.rknn_log.once)
        if self._source is not None:
            config.check_dynamic(self._source.inputs)
        self._config = config
        return 0

    @_answering(-1)
    def load_onnx(
        self, model: str, inputs: Any = None, input_size_list: Any = None, input_initial_val: Any = None, outputs: Any = None
    ) -> int:
        """An ONNX model, or the part of it between *inputs* and *outputs*."""
        return self._take(from_onnx(model, inputs, input_size_list, input_initial_val, outputs, tuple(self._operators)))

    @_answering(-1)
    def load_pytorch(self, model: str, input_size_list: Any) -> int:
        """A TorchScript model, where torch is installed."""
        return self._take(from_pytorch(model, input_size_list))

    @_answering(-1)
    def load_tflite(self, model: str, input_is_nchw: bool = False) -> int:
        """A TFLite model, where tf2onnx is installed."""
        return self._take(from_tflite(model, input_is_nchw))

    def load_tensorflow(
        self, tf_pb: str, inputs: Any = None, input_size_list: Any = None, outputs: Any = None, input_is_nchw: bool = False
    ) -> int:
        """Rejected with a message."""
        return self._refuse("load_tensorflow")

    def load_caffe(self, model: str, blobs: str | None = None, input_name: Any = None) -> int:
        """Rejected with a message."""
        return self._refuse("load_caffe")

    def load_darknet(self, model: str, weight: str | None = None) -> int:
        """Rejected with a message."""
        return self._refuse("load_darknet")

    @_answering(-1)
    def load_rknn(self, path: str) -> int:
        """A compiled model, to run it."""
        file = Path(path)
        if not file.is_file():
            raise ModelError(f"Invalid RKNN model path: {path}", hint="check the path")
        kind = modelfile.identify(file)
        if not kind.of_a_vendor:
            self._model = modelfile.read(file)
        self._file, self._source = file, None
        return 0

    @_answering(-1)
    def build(
        self,
        do_quantization: bool = True,
        dataset: str | None = None,
        rknn_batch_size: int | None = None,
        auto_hybrid: bool = False,
    ) -> int:
        """Compile the model: int8 with a dataset file, float16 without quantization."""
        options: dict[str, Any] = {"batch": rknn_batch_size}
        if do_quantization:
            options.update(self._calibration(dataset), accuracy="best" if auto_hybrid else "default")
        else:
            options["dtype"] = "fp16"
        self._model = self._compile(options)
        self._file = None
        return 0

    @_answering(-1)
    def export_rknn(self, export_path: str, **kwargs: Any) -> int:
        """Write the compiled model."""
        if kwargs:
            self.rknn_log.once(f"export_rknn: {', '.join(kwargs)} has no effect here")
        model = self._built()
        modelfile.write(model, Path(export_path), remove_weight=self._config is not None and self._config.remove_weight)
        return 0

    def export_encrypted_rknn_model(self, input_model: str, output_model: str | None = None, crypt_level: int = 1) -> int:
        """Rejected with a message."""
        return self._refuse("export_encrypted_rknn_model")

    @_answering(-1)
    def reg_custom_op(self, custom_op: Any) -> int:
        """An operator of one's own: an object with ``op_type``, ``shape_infer`` and ``compute``. Before ``load_onnx``."""
        self._operators[customop.require_custom_op(custom_op)] = custom_op
        return 0

    @_answering(-1)
    def optimize_onnx(
        self, model: str, optimized_path: str | None = None, passes_enable: Any = None, inputs_for_dump: Any = None
    ) -> int:
        """Rewrite an ONNX model so that quantization keeps more of it; see ``anynpu optimize``.

        :param inputs_for_dump: a dataset: the file with the list of samples
        """
        path = Path(model)
        if inputs_for_dump is None:
            raise ParameterError("optimize_onnx needs samples", hint="inputs_for_dump='dataset.txt'")
        config = self._config
        result = optimize(model, config.target if config is not None else "rk3588", dataset=inputs_for_dump)
        target = Path(optimized_path) if optimized_path else path.with_name(f"{path.stem}_optimized.onnx")
        write_output(target, result.model.SerializeToString(), inputs=[path])
        return 0

    # hybrid quantization

    @_answering(-1)
    def hybrid_quantization_step1(
        self,
        dataset: str = "dataset.txt",
        rknn_batch_size: int | None = None,
        proposal: bool = False,
        proposal_dataset_size: int = 1,
        custom_hybrid: Any = None,
    ) -> int:
        """Write ``NAME.model``, ``NAME.data`` and ``NAME.quantization.cfg`` into the current folder.

        :param proposal: let the compiler find layers that should stay in float16
        :param custom_hybrid: pairs of tensors, ``[[input, output], ...]``: the layers between them stay in float16
        """
        source, config = self._loaded()
        names = hybrid.onnx_names(source.proto)
        hybrid.between(source.proto, custom_hybrid or [], names)  # rejects wrong names before the work
        options = {"batch": rknn_batch_size, **self._calibration(dataset)}
        model = self._compile({**options, "channel_groups": 1, "accuracy": "fast"})
        proposed = hybrid.between(source.proto, custom_hybrid or [], model.programs[0].tensors)
        if proposal:
            best = self._compile({**options, "accuracy": "best", "calibration_limit": max(int(proposal_dataset_size), 1)})
            known = model.programs[0].tensors
            halves = (layer for layer in best.programs[0].layers if layer.placement.name == "NPU")
            proposed += [
                name
                for layer in halves
                for name in layer.outputs
                if best.programs[0].tensors[name].dtype.is_float
                and name in names
                and name in known
                and not known[name].dtype.is_float
            ]
        Path(f"{source.name}.model").write_bytes(source.proto.SerializeToString())
        prepared = hybrid.Prepared(config, str(Path(dataset).resolve()), source.name, rknn_batch_size, source.sizes)
        hybrid.write_prepared(Path(f"{source.name}.data"), prepared)
        hybrid.write_config(Path(f"{source.name}.quantization.cfg"), model, names, proposed)
        return 0

    @_answering(-1)
    def hybrid_quantization_step2(self, model_input: str, data_input: str, model_quantization_cfg: str) -> int:
        """Compile what step 1 wrote, as the ``.quantization.cfg`` states."""
        prepared = hybrid.read_prepared(Path(data_input))
        wanted = hybrid.parse_config(Path(model_quantization_cfg))
        source = from_onnx(model_input, custom=tuple(self._operators))
        floats = hybrid.resolve(wanted, source.proto, self.rknn_log.logger.warning)
        self._source = ModelSource(source.proto, prepared.name, source.inputs, dict(prepared.sizes))
        self._config = prepared.config
        options: dict[str, Any] = {"batch": prepared.batch, **self._calibration(prepared.dataset)}
        if wanted.ranges:
            options.update(ranges=dict(wanted.ranges), channel_groups=1)
        self._model = self._compile({**options, "hybrid": floats})
        self._file = None
        return 0

    # running

    @_answering(-1)
    def init_runtime(
        self,
        target: str | None = None,
        device_id: str | None = None,
        perf_debug: bool = False,
        eval_mem: bool = False,
        async_mode: bool = False,
        core_mask: int = CoreMasks.NPU_CORE_AUTO,
        fallback_prior_device: str = "cpu",
    ) -> int:
        """Put the model on a device: None is the software NPU; with a target, the board that this runs on, where it is one."""
        log = self.rknn_log.logger
        self._end_runtime()
        if self._model is None and self._file is None:
            raise ModelError("no model is loaded or built", hint="call build or load_rknn first")
        device: str | None = SOFTWARE
        if target is not None:
            device = choose(target)
            if device == f"{SOFTWARE}:{target.lower()}" and not under_exec():
                log.warning(f"no board is connected: the software NPU stands in for {target}")
        flags = Flag.RKNN_FLAG_COLLECT_PERF_MASK if perf_debug else Flag.RKNN_FLAG_PRIOR_HIGH
        flags |= Flag.RKNN_FLAG_ASYNC_MASK if async_mode else Flag.RKNN_FLAG_PRIOR_HIGH
        model = self._model if self._model is not None else open_model(self._file or Path(), device, log.warning)
        runtime = Runtime(model, device=device, core_mask=core_mask, flags=flags)
        try:
            if self._operators:
                runtime.npu.register_operators(*(customop.for_runtime(one) for one in self._operators.values()))
        except AnynpuError:
            runtime.close()
            raise
        self.rknn_runtime, self._perf_debug = runtime, perf_debug
        return 0

    @_answering(None)
    def inference(self, inputs: Any, data_format: Any = None, inputs_pass_through: Any = None, get_frame_id: bool = False) -> Any:
        """Run the model: a list of float32 arrays; None on any failure. An array that lacks its batch axis gets one, with a warning."""
        outputs, frame = self._running().infer(inputs, None, data_format, inputs_pass_through, expand=self.rknn_log.once)
        return (outputs, frame) if get_frame_id else outputs

    @_answering(None)
    def eval_perf(self, is_print: bool = True, fix_freq: bool = True) -> str | None:
        """How long an inference takes: with ``perf_debug`` layer by layer."""
        runtime = self._running()
        self._warm_up(runtime)
        text = performance_text(runtime.npu, self._perf_debug)
        if is_print:
            sys.stdout.write(text)
        return text

    @_answering(None)
    def eval_memory(self, is_print: bool = True) -> MemoryFigures | None:
        """What the model needs, in bytes."""
        figures = memory_figures(self._running().npu)
        if is_print:
            sys.stdout.write(memory_text(figures))
        return figures

    @_answering(-1)
    def accuracy_analysis(
        self, inputs: Any, output_dir: str | None = "./snapshot", target: str | None = None, device_id: str | None = None
    ) -> int:
        """Every layer beside the float model, on one sample, as files in *output_dir*.

        :param inputs: a file or an array for each input
        :param output_dir: None is ./snapshot
        :param target: also run it on the target
        """
        source, _ = self._loaded()
        model = self._built()
        taken = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        on_target: dict[str, Any] | None = None
        if target is not None:
            on_target = {}
            if self.init_runtime(target=target, device_id=device_id) != 0:
                raise ModelError(f"the model does not start on {target}", hint="see the line before")
        shapes = {spec.name: spec.shape for spec in model.inputs}
        result = analyse(source.proto, model, taken, shapes, on_target)
        write(result, Path(output_dir or "./snapshot"))
        return 0

    @_answering(-1)
    def codegen(self, output_path: str, inputs: Any = None, overwrite: bool = False) -> int:
        """Write a C program that runs the model, with the model and its inputs."""
        model = self._built()
        library = (chips.get(model.chip).library or "librknnrt").removeprefix("lib")
        taken = inputs if inputs is None or isinstance(inputs, (list, tuple)) else [inputs]
        generate(model, Path(output_path), taken, library, overwrite=overwrite)
        return 0

    @_answering(None)
    def get_sdk_version(self) -> str | None:
        """The versions of library and driver; None before ``init_runtime``."""
        return self._running().get_sdk_version()

    def list_devices(self) -> tuple[list[str], list[str]]:
        """The boards that are connected by adb and by ntb: none, this toolkit runs on the board or without one."""
        self.rknn_log.logger.info("no devices connected")
        return [], []

    def clear_op_cache(self) -> int:
        """There is no such cache."""
        return 0

    def release(self) -> None:
        """Give everything back; again is harmless."""
        self._end_runtime()
        self._source = self._model = self._file = self._config = None
        self.rknn_log.close()

    # inside

    def _take(self, source: ModelSource) -> int:
        if self._config is not None:
            self._config.check_dynamic(source.inputs)
        self._source, self._model, self._file = source, None, None
        return 0

    def _refuse(self, call: str) -> int:
        self.rknn_log.logger.error(f"{call}: {_REFUSALS[call]}")
        return -1

    def _loaded(self) -> tuple[ModelSource, Config]:
        if self._config is None:
            raise CompileError("config was not called, or failed", hint="config(target_platform='rk3588')")
        if self._source is None:
            raise CompileError("no model is loaded", hint="call load_onnx first")
        return self._source, self._config

    def _built(self) -> CompiledModel:
        if self._model is None:
            raise ModelError("no model is built", hint="call build first")
        return self._model

    def _running(self) -> Runtime:
        if self.rknn_runtime is None:
            raise ModelError("Runtime environment is not inited", hint="call init_runtime first")
        return self.rknn_runtime

    def _calibration(self, dataset: str | None) -> dict[str, Any]:
        source, config = self._loaded()
        if dataset is None:
            raise CompileError("quantization needs a dataset", hint="build(dataset='dataset.txt'), or do_quantization=False")
        path = Path(dataset)
        if not path.is_file():
            raise CompileError(f"there is no dataset {dataset}", hint="it is a text file with one sample on each line")
        taken: Any = bgr_dataset(path, source.shapes) if config.bgr else path
        return {"dataset": taken, "dtype": config.dtype, "algorithm": config.algorithm, "per_channel": config.per_channel}

    def _compile(self, options: dict[str, Any]) -> CompiledModel:
        source, config = self._loaded()
        for name, shape in source.inputs.items():
            if 0 in shape[1:] and name not in source.sizes and not config.dynamic:
                raise CompileError(
                    f"input '{name}' has the shape {[extent or '?' for extent in shape]}, and a chip needs fixed numbers",
                    hint=f"load_onnx(model, inputs=['{name}'], input_size_list=[[1, 3, 640, 640]]), or config(dynamic_input=...)",
                )
        chosen = {"shapes": source.sizes or None, **config.options(source.inputs), "name": source.name, **options}
        chosen["custom_ops"] = {name: customop.for_compiler(one) for name, one in self._operators.items()}
        return compile_model(source.proto, config.target, **chosen)

    def _warm_up(self, runtime: Runtime) -> None:
        """One inference on zeros, so that there is a time to report."""
        arrays = [np.zeros(info.shape, np.float32) for info in runtime.npu.inputs]
        runtime.infer(arrays)

    def _end_runtime(self) -> None:
        runtime, self.rknn_runtime = self.rknn_runtime, None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> RKNN:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
