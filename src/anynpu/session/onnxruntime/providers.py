"""Execution providers: our own, and onnxruntime's, which are accepted and not used."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from ...vendors import registry

__all__ = ["FOREIGN", "ForeignProviderWarning", "get_all_providers", "get_available_providers", "own_providers"]

OWN = "AnynpuExecutionProvider"

FOREIGN = [
    f"{name}ExecutionProvider"
    for name in (
        *("NvTensorRTRTX", "Tensorrt", "CUDA", "MIGraphX", "ROCM", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js"),
        *("CoreML", "ACL", "ArmNN", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure", "Tvm", "Snpe", "CPU"),
    )
]
"""onnxruntime's own providers."""


class ForeignProviderWarning(UserWarning):
    """A list of providers names some that are not used here."""


def get_available_providers() -> list[str]:
    """The providers that a session here may use."""
    return [*(name for vendor in registry.all_vendors() for name in vendor.providers), OWN]


def get_all_providers() -> list[str]:
    """Ours and onnxruntime's."""
    return [*get_available_providers(), *FOREIGN]


def own_providers(providers: object, provider_options: object) -> tuple[object, object]:
    """What a session gets of the two arguments: what is ours. Of several of ours the model decides; onnxruntime's are warned of once."""
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        providers = [providers] if providers is not None else []
    entries: list[Any] = list(providers)
    names = [entry[0] if isinstance(entry, (tuple, list)) and entry else entry for entry in entries]
    foreign = [name for name in names if name in FOREIGN]
    if not foreign:
        ours = get_available_providers()
        if len(names) > 1 and all(name in ours for name in names):
            return None, None
        return entries or None, provider_options
    warnings.warn(
        f"{', '.join(foreign)}: not used here, the model runs on the NPU. Leave providers out, or name one of "
        f"{', '.join(get_available_providers())}",
        ForeignProviderWarning,
        stacklevel=3,
    )
    kept = [index for index, name in enumerate(names) if name not in foreign]
    if isinstance(provider_options, Sequence) and not isinstance(provider_options, str) and len(provider_options) == len(entries):
        provider_options = [provider_options[index] for index in kept]
    elif kept == []:
        provider_options = None
    return [entries[index] for index in kept][:1] or None, provider_options or None
