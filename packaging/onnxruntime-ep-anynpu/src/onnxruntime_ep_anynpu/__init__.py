"""The plug-in execution provider of anynpu, for ``onnxruntime.register_execution_provider_library``.

>>> import onnxruntime as ort                                                               # doctest: +SKIP
>>> ort.register_execution_provider_library("anynpu", get_library_path())                   # doctest: +SKIP
>>> [device.ep_name for device in ort.get_ep_devices()]                                     # doctest: +SKIP
['CPUExecutionProvider', 'AnynpuExecutionProvider']
"""

from __future__ import annotations

__all__ = ["get_ep_name", "get_ep_names", "get_library_path"]

_NAME = "AnynpuExecutionProvider"


def get_library_path() -> str:
    """The absolute path of the library to register.

    :raises anynpu.errors.DeviceUnavailable: anynpu is installed without its libraries, as on Windows and macOS
    """
    from anynpu.dropin.environment import execution_provider

    return str(execution_provider())


def get_ep_name() -> str:
    """The name of the provider, which ``OrtEpDevice.ep_name`` has.

    >>> get_ep_name()
    'AnynpuExecutionProvider'
    """
    return _NAME


def get_ep_names() -> list[str]:
    """The names of all providers of the library."""
    return [_NAME]
