"""Models of networks: where they come from, whether they fit the NPU, and their weights.

Who owns what: :class:`Weights` is shared by a network and its duplicates. The weights are in device memory for as long as one of
them is prepared. Its lock is held while they are put there, so that two networks never do it twice.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import chips, modelfile
from ..._vip import ffi
from ...chips import Chip
from ...modelfile import vendorfile
from ...modelfile.recognize import FileKind, identify
from ...npu import Buffer, Device, LoadedModel
from ...program import Model
from ..constants import vip_create_network_type_e
from ..generations import Generation
from ..preflight import target_words
from .refusal import Refusal, Status

__all__ = ["Weights", "read_model", "same_network"]

_FILE = vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE
_MODES = vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_NORMAL | vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_SECURE
_ORIGINS = {
    _FILE,
    vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY,
    vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FLASH,
}


class Weights:
    """A model for a device, and its weights once they are needed."""

    def __init__(self, model: Model, device: Device) -> None:
        self.model = model
        self.device = device
        self._lock = threading.Lock()
        self._loaded: weakref.ref[LoadedModel] | None = None

    def load(self, memory: Buffer | None = None) -> LoadedModel:
        """The model in device memory; *memory* is where to put the weights, unless they are there already."""
        with self._lock:
            loaded = None if self._loaded is None else self._loaded()
            if loaded is None:
                loaded = self.device.load(self.model, weights=memory)
                self._loaded = weakref.ref(loaded)
            return loaded


def read_model(data: Any, size: int, kind: int, chip: Chip | None, generation: Generation) -> Model:
    """The model that ``vip_create_network`` is given, for *chip* (None: the one it was compiled for)."""
    if data == ffi.NULL:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the model is a null pointer")
    origin = kind & ~int(_MODES)
    if origin not in _ORIGINS:
        raise Refusal(
            Status.VIP_ERROR_INVALID_NETWORK,
            f"there is no network type {kind:#x}",
            "use VIP_CREATE_NETWORK_FROM_FILE or VIP_CREATE_NETWORK_FROM_MEMORY",
        )
    if kind & vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_SECURE:
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, "secure networks are not available", "leave out the mode")
    source: Path | bytes
    if origin == _FILE:
        source = Path(os.fsdecode(ffi.string(ffi.cast("char *", data))))
    else:
        if not size:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the model in memory has no bytes", "pass the size of the file")
        source = bytes(ffi.buffer(ffi.cast("char *", data), size))
    if chip is not None:
        _check_vendor_file(source, chip, generation)
    model = modelfile.read_or_twin(source)
    own = chips.get(model.chip)
    if own.vip is None:
        raise Refusal(
            generation.wrong_target,
            f"'{model.name}' was compiled for {own.name}, which has no VIPLite NPU",
            f"compile it for {'t527' if chip is None else chip.name}",
        )
    if chip is not None and chip.vip is not None and own.vip.customer_id != chip.vip.customer_id:
        raise _wrong_target(own.vip.customer_id, chip, generation)
    if len(model.programs) > 1 or model.custom_operators:
        what = "custom operators" if model.custom_operators else f"{len(model.programs)} sets of shapes"
        raise Refusal(
            Status.VIP_ERROR_INVALID_NETWORK,
            f"'{model.name}' has {what}, which VIPLite does not know",
            "compile it for one set of shapes, with operators of the compiler's own",
        )
    return model if chip is None else replace(model, chip=chip.name)


def _check_vendor_file(source: Path | bytes, chip: Chip, generation: Generation) -> None:
    """Refuse a file of the vendor's compiler that is for another NPU, naming both, before its twin is looked for."""
    if identify(source) is not FileKind.NB:
        return
    target = vendorfile.read_nb(source).target_id
    if chip.vip is not None and target != chip.vip.customer_id:
        raise _wrong_target(target, chip, generation)


def _wrong_target(target: int, chip: Chip, generation: Generation) -> Refusal[Status]:
    assert chip.vip is not None
    return Refusal(
        generation.wrong_target,
        f"binary target={target_words(target)}, actual target={target_words(chip.vip.customer_id)}",
        f"compile the model for {chip.name}",
    )


def same_network(first: Model, second: Model) -> bool:
    """Whether two models have the same tensors at their ends and the same weights."""
    if (first.dtype, first.inputs, first.outputs) != (second.dtype, second.inputs, second.outputs):
        return False
    return modelfile.encode(first).weight_digest == modelfile.encode(second).weight_digest
