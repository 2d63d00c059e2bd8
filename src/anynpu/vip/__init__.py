"""VIPLite and libawnn, on Allwinner's own library or on the software NPU.

* :class:`Network`: the calls for Python programs, with numpy arrays and exceptions; :class:`Buffer` is their memory.
* :class:`Awnn` and the ``awnn_*`` functions: load, run, read.
* :func:`open_library`: all ``vip_*`` functions as a C program has them.
* :mod:`anynpu.vip.constants`: every constant under the vendor's name.

>>> from anynpu.vip import Network
>>> with Network("det.nb") as network:                         # doctest: +SKIP
...     (heat,) = network.run([page])
"""

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
from .info import HardwareInfo, Profile, TensorInfo
from .library import Library, check, open_library
from .network import Network, query_hardware
from .software.library import SoftwareLibrary
from .vendor import VendorLibrary

__all__ = [
    "Awnn",
    "Buffer",
    "HardwareInfo",
    "Library",
    "Network",
    "Profile",
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
    "query_hardware",
    "vip_buffer_format_e",
    "vip_buffer_quantize_format_e",
    "vip_network_property_e",
    "vip_status_e",
]
