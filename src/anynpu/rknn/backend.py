"""A session's backend on the RKNN calls: the vendor's library or the software NPU.

Who owns what: the backend owns its first context, which its first lane uses, which the others are duplicated from, and which is destroyed
last; it stays while a backend that shares its weights is open (see :mod:`anynpu.vendors.libraries`). A lane owns its other contexts.
``_lock`` protects the list of lanes too; it is never held during a call.

Threads: see :mod:`anynpu.session.backend`. A context that runs may be duplicated on the software NPU; the vendor does not say whether
that holds for his library, so there all lanes are opened before the first run.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike

from .. import chips, modelfile
from ..errors import OptionError, UnsupportedCall
from ..modelfile.recognize import FileKind, identify
from ..npu.memory import Buffer
from ..session import SessionOptions
from ..tensor import Layout, TensorSpec
from ..vendors.devices import board_chip
from ..vendors.libraries import Lender, session_errors
from .attributes import DTYPE_OF
from .bound_worker import BoundLane
from .constants import Flag, rknn_query_cmd, rknn_tensor_format
from .context import Context
from .info import TensorInfo
from .library import RknnLibrary, open_library
from .plugins import Plugins
from .table import VENDOR
from .worker import LAYOUTS, RknnLane, RknnMemory, optional, quantization, set_mask

__all__ = ["RknnBackend", "open_backend"]


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | RknnLibrary | None = None,
    weights_from: object = None,
) -> RknnBackend:
    """The backend of a session for *model*."""
    if options.family not in ("", VENDOR.name):
        raise OptionError(
            f"Provider/model mismatch: requested {options.provider}, which is for models of another family than RKNN",
            hint="leave providers out, or name RKNPU2ExecutionProvider",
        )
    if weights_from is not None and not isinstance(weights_from, RknnBackend):
        raise OptionError("weights can be shared between RKNN sessions only", hint="leave use_weight_from out")
    with session_errors():
        return RknnBackend(model, options, device, weights_from)


class RknnBackend(Lender[Context]):
    """One model on one RKNN device."""

    provider = VENDOR.providers[0]
    library: RknnLibrary

    def __init__(
        self,
        model: str | PathLike[str] | bytes,
        options: SessionOptions,
        device: str | RknnLibrary | None,
        weights_from: RknnBackend | None,
    ) -> None:
        if device is None and weights_from is not None:
            device = weights_from.library
        super().__init__(weights_from)
        self.library = open_library(device)
        self._model = model
        self._options = options
        self._lanes: weakref.WeakSet[RknnLane] = weakref.WeakSet()
        self._plugins = Plugins(options) if options.custom_ops else None
        self._open_root(self._new_context, self._describe)

    @property
    def device_ms(self) -> float | None:
        """The predicted time of a run; None on a board, whose time is real."""
        if self._root.closed:
            return None
        microseconds = self.library.predicted_us(self._root.handle)
        return None if microseconds is None else microseconds / 1000

    def _describe(self) -> None:
        context = self._root
        chip = self._chip()
        self.chip = chip.name
        self.cores = chip.cores
        self.core_masks = chip.core_masks
        self._general = chip.calls.get("rknn_inputs_set", True)
        self.lanes_on_demand = self.library.lanes_on_demand
        self.description = self.library.words(chip, f"driver {context.version.driver}")
        self.input_infos = tuple(_named(info, "input") for info in context.inputs)
        self.output_infos = tuple(_named(info, "output") for info in context.outputs)
        self.inputs = tuple(_spec(info) for info in self.input_infos)
        self.outputs = tuple(_spec(info) for info in self.output_infos)
        nhwc = self._options.zero_copy_layout == "nhwc"
        self.bound_inputs = tuple(self._bound_info(info, True, nhwc) for info in self.input_infos)
        self.bound_outputs = tuple(self._bound_info(info, False, nhwc) for info in self.output_infos)
        self.native_inputs = tuple(_memory_spec(info, spec) for info, spec in zip(self.bound_inputs, self.inputs, strict=True))
        self.native_outputs = tuple(_memory_spec(info, spec) for info, spec in zip(self.bound_outputs, self.outputs, strict=True))
        self.shape_sets = self._shape_sets()
        text = optional(lambda: context.custom_string) or ""
        more = self.library.metadata_of(context.handle)
        self.metadata: Mapping[str, str] = {**more, **({"rknn_custom_string": text} if text else {})}

    def _chip(self) -> chips.Chip:
        known = self.library.chip_of(self._root.handle)
        if known is not None:
            return known
        name = board_chip()
        if name is None and identify(self._model) is FileKind.ANYNPU:
            name = modelfile.read(self._model).chip
        return chips.get(name or VENDOR.chips[0].name)  # an unknown board: the largest, whose masks the library checks itself

    def _bound_info(self, info: TensorInfo, is_input: bool, nhwc: bool) -> TensorInfo:
        """How an input or output lies in memory that is bound; the logical attributes where a chip has no others."""
        query = rknn_query_cmd
        commands = [query.RKNN_QUERY_NATIVE_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_OUTPUT_ATTR]
        if (
            nhwc and len(info.shape) == 4 and (not is_input or self._general)
        ):  # librknnmrt shows a picture's bytes there, not codes
            commands.insert(0, query.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR)
        for command in commands:
            found = optional(functools.partial(self._root.info, command, info.index))
            if found is not None:
                return replace(found, name=info.name)
        return info

    def _shape_sets(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        ranges = optional(lambda: self._root.shape_ranges)
        if not ranges or any(not one.shapes for one in ranges):
            return ()
        count = min(len(one.shapes) for one in ranges)
        return tuple(tuple(_model_order(one.shapes[number], one.fmt) for one in ranges) for number in range(count))

    # -- for the session

    def open_lane(self, mask: int) -> RknnLane:
        """A new context on the cores of *mask*."""
        context = self._root if self._take_root() else self._another_context()
        lane = RknnLane(self, context, mask) if self._general else BoundLane(self, context, mask)
        try:
            set_mask(self.library, context, mask)
            if self._plugins is not None:
                self._plugins.register(context)
        except BaseException:
            lane.close()
            raise
        with self._lock:
            self._lanes.add(lane)
        return lane

    def another_context(self, mask: int) -> Context:
        """A context besides that of a lane, with the same cores."""
        context = self._another_context()
        if self._plugins is not None:
            self._plugins.register(context)
        set_mask(self.library, context, mask)
        return context

    def _another_context(self) -> Context:
        if self._plugins is not None or self._options.disable_dup_context or self.shape_sets:
            return self._new_context()
        source = self._root
        with self._lock:
            lanes = list(self._lanes)
        if any(lane.context is source and lane.abandoned for lane in lanes):
            alive = [lane.context for lane in lanes if not lane.abandoned]
            if not alive:
                return self._new_context()
            source = alive[0]
        try:
            return source.duplicate()
        except UnsupportedCall:  # small chips cannot
            return self._new_context()

    def _new_context(self) -> Context:
        lender = self._lender
        return Context(
            self._model,
            device=self.library,
            flags=Flag.RKNN_FLAG_PRIOR_HIGH,
            weights_from=None if lender is None else lender._root,
        )

    def allocate(self, nbytes: int) -> RknnMemory:
        """Memory of the device."""
        return RknnMemory(self._root.memory(max(1, nbytes)))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> RknnMemory:
        """Somebody else's memory."""
        own = Buffer.from_fd(fd, nbytes, offset)
        base = address or own.address - offset
        return RknnMemory(self._root.memory_from_fd(own.fd, nbytes, address=base, offset=offset), keep=own)


def _named(info: TensorInfo, kind: str) -> TensorInfo:
    return info if info.name else replace(info, name=f"{kind}_{info.index}")


def _model_order(shape: Sequence[int], fmt: rknn_tensor_format) -> tuple[int, ...]:
    if fmt is rknn_tensor_format.RKNN_TENSOR_NHWC and len(shape) == 4:
        return (shape[0], shape[3], shape[1], shape[2])
    return tuple(shape)


def _spec(info: TensorInfo) -> TensorSpec:
    shape = _model_order(info.shape, info.fmt)
    return TensorSpec(info.name, shape, DTYPE_OF[info.type], Layout.row_major(len(shape)), quantization(info))


def _memory_spec(info: TensorInfo, logical: TensorSpec) -> TensorSpec:
    """What memory with native attributes holds."""
    layout = LAYOUTS[info.fmt] if len(logical.shape) == 4 else Layout.PLAIN
    scale = quantization(info)
    kind = DTYPE_OF[info.type]
    if layout is Layout.NC1HWC2:
        return TensorSpec(info.name, logical.shape, kind, layout, scale, c1=info.shape[1], c2=info.shape[4])
    stride = info.w_stride if layout is Layout.NHWC and info.w_stride > logical.shape[3] else 0
    return TensorSpec(info.name, logical.shape, kind, layout, scale, w_stride=stride)
