"""Ranges of activations from calibration samples: the fp32 model runs once over the data set, with everything of interest as output."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.optional import MISTAKEN_OPTIMIZERS, onnxruntime, ort_session
from ..._util.progress import Progress, tell
from ...errors import CalibrationError
from ..custom_operators import CustomOperator, CustomTable, compute_custom
from ..graph import Graph, Node, to_onnx
from ..importers.onnx_graph import Stage, needed_nodes, stages
from ..importers.onnx_model import HandedConstants, first_line
from .ranges import RangeObserver
from .threads import in_order, thread_count

Floats = npt.NDArray[np.float32]

_log = logging.getLogger("anynpu.compiler")
_FAILED = "the float model failed in onnxruntime: "

_PACKED_BYTES = 1 << 27
"""Weights up to this size are also held as onnxruntime packs them, which makes runs a little quicker."""


class CalibratedRanges:
    """Ranges as an observer saw them; it has seen all samples by now, so that each is worked out once."""

    def __init__(self, observer: RangeObserver, algorithm: str, percentile: float) -> None:
        self._observer = observer
        self._algorithm = algorithm
        self._percentile = percentile
        self._known: dict[tuple[str, str], tuple[float, float]] = {}

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        algorithm = "minmax" if exact else self._algorithm
        if (name, algorithm) not in self._known:
            self._known[name, algorithm] = self._observer.range(name, algorithm, percentile=self._percentile)
        return self._known[name, algorithm]


class UnknownRanges:
    """Stands in where only the structure matters (check)."""

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        return -1.0, 1.0


class Watcher(Protocol):
    """Looks at each sample as it passes."""

    @property
    def names(self) -> Sequence[str]:
        """The tensors that it looks at."""

    def see(self, sample: Mapping[str, npt.NDArray[Any]], values: Mapping[str, npt.NDArray[Any]]) -> None:
        """The next sample, and the values of at least those tensors."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the fp32 model was seen to do.

    :ivar channels: smallest and largest value per channel, for the tensors that were asked for
    :ivar watched: who has looked at each sample as it passed, for what comes after
    :ivar infinite: tensors that held infinity, which no code stands for; they have no range
    """

    observer: RangeObserver
    channels: Mapping[str, tuple[Floats, Floats]]
    watched: Watcher | None = None
    infinite: frozenset[str] = frozenset()


def calibrate(
    graph: Graph,
    names: Iterable[str],
    by_channel: Iterable[str],
    samples: Iterable[Mapping[str, npt.NDArray[Any]]],
    total: int | None,
    progress: Progress | None,
    custom: CustomTable | None = None,
    watcher: Watcher | None = None,
    may_be_infinite: Collection[str] = (),
) -> Calibration:
    """Statistics of the tensors *names* of a simplified graph over *samples*, which a *watcher* may look at.

    :raises CalibrationError: a tensor holds NaN, or infinity and is none of those that may
    """
    inputs = set(graph.inputs)
    channels = {name: _empty_range(graph, name) for name in by_channel}
    wanted = [name for name in dict.fromkeys((*names, *channels)) if name not in inputs and graph.is_float(name)]
    # a caller's own code for custom operators need not be safe in several threads
    alone = any(node.custom for node in graph.nodes) or total == 1
    threads = 1 if alone else thread_count(sum(4 * math.prod(graph.shapes[name]) for name in wanted))
    also = [name for name in (watcher.names if watcher else ()) if name not in inputs]
    model = FloatModel(graph, list(dict.fromkeys((*wanted, *also))), custom or {}, threads=threads)
    observer = RangeObserver()
    infinite: set[str] = set()

    def observe(name: str, value: npt.NDArray[Any], ends: tuple[float, float] | None = None) -> bool:
        try:
            observer.observe(name, value, ends)
        except CalibrationError:
            if name not in may_be_infinite or np.isnan(value).any():
                raise
            infinite.add(name)
        return name not in infinite

    seen = 0
    for sample, results in in_order(lambda given: (given, _run(model, given)), samples, threads):
        if isinstance(results, CalibrationError):
            text = results.message.removeprefix(_FAILED)
            raise CalibrationError(
                f"the model failed on calibration sample {seen + 1}: {text}", hint="check that sample"
            ) from results
        for name in wanted:
            value = results[name]
            if name not in channels:
                observe(name, value)
                continue
            low, high = channel_ranges(value)
            if observe(name, value, (float(low.min()), float(high.max()))):
                np.minimum(channels[name][0], low, out=channels[name][0])
                np.maximum(channels[name][1], high, out=channels[name][1])
        for name in inputs:
            if graph.is_float(name):
                observe(name, np.asarray(sample[name], np.float32))
        if watcher:
            watcher.see(sample, results)
        seen += 1
        tell(progress, "calibrating", seen, total)
        del sample, results  # or they would stay in memory while the next sample begins
    if not seen:
        raise CalibrationError("the calibration data set is empty", hint="give at least one sample; 10 to 20 are usual")
    _warn_of_constants(observer, [name for name in graph.inputs if graph.is_float(name)], wanted)
    return Calibration(observer, channels, watcher, frozenset(infinite))


def _run(model: FloatModel, sample: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]] | CalibrationError:
    """What the float model gives for a sample, or why onnxruntime failed with it."""
    try:
        return model.run(sample)
    except CalibrationError as error:
        if not error.message.startswith(_FAILED):
            raise
        return error


def _warn_of_constants(observer: RangeObserver, inputs: Sequence[str], inner: Sequence[str]) -> None:
    """Report it where data cannot show any range: an input that is one number, or a network that hardly moves."""

    def still(names: Sequence[str]) -> list[str]:
        seen = [name for name in names if name in observer.names]
        return [name for name in seen if len(np.unique(np.asarray(observer.sample_ranges(name)))) == 1]

    for name in still(inputs):
        value = float(np.asarray(observer.sample_ranges(name)).reshape(-1)[0])
        _log.warning(
            "the calibration data of input '%s' is %g everywhere: ranges that follow from it mean nothing; pass typical data",
            name,
            value,
        )
    constant = still(inner)
    if len(constant) > len(inner) / 2 and len(inner) > 1:
        _log.warning(
            "%d of %d tensors are constant over the calibration data (%s, ...): their ranges mean nothing; "
            "look at the data of the input%s %s",
            len(constant),
            len(inner),
            constant[0],
            "s" if len(inputs) > 1 else "",
            ", ".join(f"'{name}'" for name in inputs),
        )


def _empty_range(graph: Graph, name: str) -> tuple[Floats, Floats]:
    extent = graph.shapes[name][1]
    return np.full(extent, np.inf, np.float32), np.full(extent, -np.inf, np.float32)


def channel_ranges(values: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Smallest and largest value per channel of an NCHW array."""
    values = np.ascontiguousarray(values, np.float32)
    batch, extent = values.shape[:2]
    low, high = np.empty(extent, np.float32), np.empty(extent, np.float32)
    pixels = values.size // (batch * extent)
    pointer = ffi.cast("float *", values.ctypes.data)
    lib.anynpu_minmax_channels_f32(
        pointer, batch, extent, pixels, ffi.cast("float *", low.ctypes.data), ffi.cast("float *", high.ctypes.data)
    )
    return low, high


class FloatModel:
    """The part of a graph that *wanted* tensors depend on: sessions of onnxruntime, and custom operators in between.

    :param threads: how many threads run it at a time; with one, onnxruntime uses threads of its own
    """

    def __init__(self, graph: Graph, wanted: list[str], custom: CustomTable, *, threads: int = 1) -> None:
        self._graph = graph
        self._custom = custom
        nodes = needed_nodes(graph, set(wanted))
        for node in nodes:
            if node.custom and custom.get(node.custom, CustomOperator()).compute is None:
                raise _not_computed(node)
        self._parts: list[tuple[Stage, list[str], list[str], Any]] = []
        for stage in stages(nodes):
            inputs, outputs = stage.entering(graph), stage.leaving(nodes, set(wanted))
            session = float_session(graph, stage.nodes, inputs, outputs, threads=threads) if outputs else None
            self._parts.append((stage, inputs, outputs, session))

    def run(self, sample: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, npt.NDArray[Any]]:
        """The values of the wanted tensors, and of some others."""
        values = {**self._graph.constants, **sample}
        for stage, inputs, outputs, session in self._parts:
            if session is not None:
                values.update(zip(outputs, session.run(outputs, {name: values[name] for name in inputs}), strict=True))
            for node in stage.customs:
                results = compute_custom(self._graph, node, self._custom, [values[name] for name in node.inputs])
                values.update(zip(node.outputs, results, strict=True))
        return values


def _not_computed(node: Node) -> CalibrationError:
    return CalibrationError(
        "integer layers come after a custom operator, and calibration cannot compute it",
        node=node.label,
        operator=node.custom,
        hint=f"give custom_ops={{'{node.custom}': anynpu.compiler.CustomOperator(compute=...)}}; or keep what follows in float: "
        "hybrid=[...] with its tensors, or dtype='fp16'",
    )


def float_session(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    rounding: bool = False,
    threads: int = 1,
) -> Any:
    """An onnxruntime session of some nodes of *graph*.

    :param rounding: nodes that quantize and dequantize stay where they are
    :param threads: how many threads run it at a time; with more than one, each does all of its own work
    """
    runtime = onnxruntime()
    constants = HandedConstants()
    model = to_onnx(graph, nodes, inputs, outputs, initializer=constants.initializer)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    if threads > 1:
        options.intra_op_num_threads = 1
    else:  # threads that wait by spinning would take CPU time from everything else
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if rounding:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    constants.give(options, runtime)
    if constants.nbytes > _PACKED_BYTES:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return _FloatSession(_session(runtime, model.SerializeToString(), options))


class _FloatSession:
    """A session of onnxruntime whose failures are typed."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def run(self, outputs: Sequence[str], feeds: Mapping[str, npt.NDArray[Any]]) -> list[Any]:
        """The *outputs* for one sample."""
        try:
            return list(self._session.run(list(outputs), dict(feeds)))
        except Exception as error:  # onnxruntime's exception classes are private
            raise CalibrationError(
                f"{_FAILED}{first_line(error)}", hint="check the calibration data, or compile with dtype='fp16', which needs none"
            ) from error


def _session(runtime: Any, data: bytes, options: Any) -> Any:
    """A session with onnxruntime's optimizers; without, where one of them fails: some lose tensors that are watched."""
    try:
        return ort_session(data, options, disabled_optimizers=MISTAKEN_OPTIMIZERS)
    except Exception as error:  # onnxruntime's exception classes are private
        _log.debug("onnxruntime's optimizers fail, and are left out: %s", first_line(error))
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort_session(data, options)
    except Exception as error:
        raise CalibrationError(
            f"onnxruntime cannot run the model for calibration: {first_line(error)}",
            hint="compile with dtype='fp16', which needs no calibration, or try another version of onnxruntime",
        ) from error
