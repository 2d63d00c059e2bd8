"""VIPLite and libawnn, on Allwinner's own library or on the software NPU.

* :class:`Network`: the calls for Python programs, with numpy arrays and exceptions; :class:`Buffer` is their memory.
* :class:`Group`, :func:`power`, :func:`set_log_path` and :func:`query_hardware`: what concerns more than one network.
* :class:`Awnn` and the ``awnn_*`` functions: load, run, read.
* :func:`open_library`: all ``vip_*`` functions as a C program has them.
* :mod:`anynpu.vip.constants`: every constant under the vendor's name.

>>> from anynpu.vip import Network
>>> with Network("det.nb") as network:                         # doctest: +SKIP
...     (heat,) = network.run([page])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .awnn import (
        Awnn,
        awnn_create,
        awnn_destroy,
        awnn_dump_io,
        awnn_get_output_buffer,
        awnn_get_output_buffers,
        awnn_init,
        awnn_run,
        awnn_set_input_buffers,
        awnn_uninit,
    )
    from .backend import VipBackend, open_backend
    from .buffer import Buffer
    from .constants import vip_buffer_format_e, vip_buffer_quantize_format_e, vip_network_property_e, vip_status_e
    from .info import HardwareInfo, NetworkProfile, TensorInfo
    from .interface import VipLibrary
    from .library import VendorLibrary, check, open_library
    from .network import Group, Network, power, query_hardware, set_log_path
    from .software.library import SoftwareLibrary

__all__ = [
    "Awnn",
    "Buffer",
    "Group",
    "HardwareInfo",
    "VipLibrary",
    "Network",
    "NetworkProfile",
    "SoftwareLibrary",
    "TensorInfo",
    "VendorLibrary",
    "VipBackend",
    "awnn_create",
    "awnn_destroy",
    "awnn_dump_io",
    "awnn_get_output_buffer",
    "awnn_get_output_buffers",
    "awnn_init",
    "awnn_run",
    "awnn_set_input_buffers",
    "awnn_uninit",
    "check",
    "open_backend",
    "open_library",
    "power",
    "query_hardware",
    "set_log_path",
    "vip_buffer_format_e",
    "vip_buffer_quantize_format_e",
    "vip_network_property_e",
    "vip_status_e",
]

# Names are imported at first use: a drop-in library needs the software library and neither sessions nor what they bring.
_MODULES: dict[str, tuple[str, ...]] = {
    "awnn": (
        "Awnn",
        "awnn_create",
        "awnn_destroy",
        "awnn_dump_io",
        "awnn_get_output_buffer",
        "awnn_get_output_buffers",
        "awnn_init",
        "awnn_run",
        "awnn_set_input_buffers",
        "awnn_uninit",
    ),
    "backend": (
        "VipBackend",
        "open_backend",
    ),
    "buffer": ("Buffer",),
    "constants": (
        "vip_buffer_format_e",
        "vip_buffer_quantize_format_e",
        "vip_network_property_e",
        "vip_status_e",
    ),
    "info": (
        "HardwareInfo",
        "NetworkProfile",
        "TensorInfo",
    ),
    "library": (
        "VendorLibrary",
        "VipLibrary",
        "check",
        "open_library",
    ),
    "network": (
        "Group",
        "Network",
        "power",
        "query_hardware",
        "set_log_path",
    ),
    "software.library": ("SoftwareLibrary",),
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
