"""onnxruntime's session: ours, with an ``.onnx`` file meaning its compiled model, and the calls that only onnxruntime has."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from .. import DeviceFactory, NodeArg, SessionIOBinding
from .. import InferenceSession as AnynpuSession
from .options import SessionOptions
from .ports import OnnxPort, is_onnx
from .providers import own_providers
from .values import ELEMENT_TYPES, HostBinding, IOBinding, OrtValue

if TYPE_CHECKING:
    from .source import OnnxSource

__all__ = ["InferenceSession"]

_NAMES = {number: kind.value for kind, number in ELEMENT_TYPES.items()} | {1: "float", 8: "string", 11: "double"}


class InferenceSession(AnynpuSession):
    """Runs a model, as onnxruntime's class of the same name does. All that :class:`anynpu.session.InferenceSession` has is here as well.

    :param path_or_bytes: a compiled model; or an ONNX model, if it is said how to compile it (:mod:`anynpu.session.onnxruntime.source`)
    :param providers: None, or names; those of onnxruntime are accepted with one warning

    >>> options = SessionOptions()
    >>> options.add_session_config_entry("anynpu.dtype", "fp16")
    >>> session = InferenceSession("det.onnx", options, providers=["CPUExecutionProvider"])          # doctest: +SKIP
    """

    _source: OnnxSource | None = None

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes,
        sess_options: Any = None,
        providers: object = None,
        provider_options: object = None,
        *,
        use_weight_from: AnynpuSession | None = None,
        device: str | DeviceFactory | None = None,
        **kwargs: object,
    ) -> None:
        self._session_options = SessionOptions() if sess_options is None else sess_options
        self._began_ns = time.time_ns()
        providers, provider_options = own_providers(providers, provider_options)
        if is_onnx(path_or_bytes):
            from .dynamic_shapes import OpenShapes  # here: they load the compiler
            from .source import OnnxSource

            entries = getattr(getattr(self._session_options, "_entries", None), "values", {})
            free = getattr(self._session_options, "free_dimensions", {})
            source = self._source = OnnxSource.of(path_or_bytes, entries, free, device)
            if source.is_open:
                device = OpenShapes(source)
            else:
                path_or_bytes = source.compiled()
                device = device or f"sim:{source.chip}"
        super().__init__(
            path_or_bytes,
            sess_options,
            providers,
            provider_options,
            use_weight_from=use_weight_from,
            device=device,
            **kwargs,
        )

    # -- what the model is

    def get_inputs(self) -> list[NodeArg]:
        """The inputs; ``type`` is what a program feeds, as the ONNX model declares it."""
        nodes = super().get_inputs()
        if self._source is None:
            return [_fed(node) for node in nodes]
        return [_declared(node, port, self._layout_last) for node, port in zip(nodes, self._source.inputs, strict=True)]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs; ``type`` is what ``run`` gives."""
        nodes = super().get_outputs()
        ports: Sequence[OnnxPort | None] = self._source.outputs if self._source is not None else [None] * len(nodes)
        found = []
        for node, port, kind in zip(nodes, ports, self._types, strict=True):
            shape = node.shape if port is None else list(port.shape)
            text = "float" if kind == "float32" else kind.name
            found.append(NodeArg(node.name, shape, f"tensor({text})", node.layout, node.quantization, node.strides))
        return found

    def get_session_options(self) -> Any:
        """The options that the session was given."""
        return self._session_options

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: the weights of a compiled model are fixed."""
        return []

    # -- runs

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: object = None
    ) -> list[OrtValue]:
        """As :meth:`run`, with values in and out."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        results = [OrtValue.ortvalue_from_numpy(result) for result in self.run(output_names, feed, run_options)]
        return [value for value in results if isinstance(value, OrtValue)]

    def io_binding(self) -> IOBinding:
        """A binding for this session, which it keeps alive."""
        return HostBinding(self) if self._source is not None and self._source.is_open else IOBinding(self)

    def run_with_iobinding(
        self, io_binding: SessionIOBinding, run_options: object = None, *, core: int | None = None, timeout: float | None = None
    ) -> None:
        """Run on what is bound, and wait."""
        if isinstance(io_binding, HostBinding):
            io_binding.run()
        else:
            super().run_with_iobinding(io_binding, run_options, core=core, timeout=timeout)

    # -- profiles

    def get_profiling_start_time_ns(self) -> int:
        """When the session was opened, in nanoseconds since 1970."""
        return self._began_ns

    def end_profiling(self) -> str:
        """Write the last requests as a trace, if the options state ``enable_profiling``, and give the file's name; else an empty one."""
        options = self._session_options
        if not getattr(options, "enable_profiling", False):
            return ""
        prefix = getattr(options, "profile_file_prefix", SessionOptions().profile_file_prefix)
        path = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json"
        self.write_trace(path)
        return path

    # -- providers

    def set_providers(self, providers: object = None, provider_options: object = None) -> None:
        """Checked, and without effect: a session stays on its device."""
        own_providers(providers, provider_options)

    def disable_fallback(self) -> None:
        """Without effect: a session never falls back to another provider."""

    def enable_fallback(self) -> None:
        """Without effect: a session never falls back to another provider."""


def _fed(node: NodeArg) -> NodeArg:
    """An input of a compiled model as a program sees it: numbers, where the model has quantized values or float16."""
    values = node.quantization is not None or node.type in ("tensor(float16)", "tensor(bfloat16)")
    return NodeArg(node.name, node.shape, "tensor(float)" if values else node.type, node.layout, node.quantization, node.strides)


def _declared(node: NodeArg, port: OnnxPort, last: bool) -> NodeArg:
    shape = list(port.shape)
    if last and len(shape) == 4:
        shape = [shape[0], *shape[2:], shape[1]]
    return NodeArg(node.name, shape, f"tensor({_NAMES.get(port.kind, 'float')})", node.layout, node.quantization, node.strides)
