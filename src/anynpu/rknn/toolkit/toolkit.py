"""RKNN: the vendor's class for conversion, simulation and analysis, call by call.

Calls on a model return 0 or -1, and the log says why; nothing of ours is raised through them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from ... import chips, modelfile
from ..._util.output_files import write_output
from ...compiler import compile as compile_model
from ...compiler import optimize
from ...errors import AnynpuError, CompileError, ModelError, ParameterError
from ...modelfile import CompiledModel
from ...vendors.devices import SOFTWARE
from .. import Flag
from ..lite.lite import VERSION, CoreMasks, RKNNLog, choose, describe, open_model, under_exec
from ..lite.runtime import Runtime
from . import analysis, codegen, customop, hybrid, performance
from .config import DEFAULTS, Config, bgr_dataset, config_of
from .sources import ModelSource, from_onnx, from_pytorch, from_tflite

__all__ = ["RKNN"]

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
    """Compiles models for Rockchip's chips, runs them on the software NPU, and tells how well they do.

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
        """How models are compiled; the page on migration says what each keyword does, and one without effect says so once."""
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
        """Refused with a sentence."""
        return self._refuse("load_tensorflow")

    def load_caffe(self, model: str, blobs: str | None = None, input_name: Any = None) -> int:
        """Refused with a sentence."""
        return self._refuse("load_caffe")

    def load_darknet(self, model: str, weight: str | None = None) -> int:
        """Refused with a sentence."""
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
        """Compile the model: int8 with a dataset file, float16 without quantisation."""
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
        """Refused with a sentence."""
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
        """Rewrite an ONNX model so that quantisation keeps more of it; see ``anynpu optimize``.

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

    # hybrid quantisation

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
        """Compile what step 1 wrote, as the ``.quantization.cfg`` says."""
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
        text = performance.performance_text(runtime.npu, self._perf_debug)
        if is_print:
            sys.stdout.write(text)
        return text

    @_answering(None)
    def eval_memory(self, is_print: bool = True) -> performance.MemoryFigures | None:
        """What the model needs, in bytes."""
        figures = performance.memory_figures(self._running().npu)
        if is_print:
            sys.stdout.write(performance.memory_text(figures))
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
        result = analysis.analyse(source.proto, model, taken, shapes, on_target)
        analysis.write(result, Path(output_dir or "./snapshot"))
        return 0

    @_answering(-1)
    def codegen(self, output_path: str, inputs: Any = None, overwrite: bool = False) -> int:
        """Write a C program that runs the model, with the model and its inputs."""
        model = self._built()
        library = (chips.get(model.chip).library or "librknnrt").removeprefix("lib")
        taken = inputs if inputs is None or isinstance(inputs, (list, tuple)) else [inputs]
        codegen.generate(model, Path(output_path), taken, library, overwrite=overwrite)
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
            raise CompileError("quantisation needs a dataset", hint="build(dataset='dataset.txt'), or do_quantization=False")
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
        """One inference on zeros, so that there is a time to tell."""
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
