"""The RKNN API, on Rockchip's own library or on the software NPU.

* :class:`Context` and :class:`Matmul`: the calls for Python programs, with numpy arrays and exceptions.
* :class:`RknnModel`: load, run, read.
* :class:`CustomOperator` and :func:`load_plugin`: operators of your own, in Python or in C.
* :func:`open_library`: all ``rknn_*`` functions as a C program has them.
* :mod:`anynpu.rknn.constants`: every constant under the vendor's name.

>>> from anynpu.rknn import Context
>>> with Context("det.rknn") as context:                       # doctest: +SKIP
...     (heat,) = context.run([page])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .backend import RknnBackend, open_backend
    from .constants import (
        Code,
        Flag,
        rknn_core_mask,
        rknn_matmul_layout,
        rknn_matmul_quant_type,
        rknn_matmul_type,
        rknn_mem_alloc_flags,
        rknn_mem_sync_mode,
        rknn_query_cmd,
        rknn_tensor_format,
        rknn_tensor_qnt_type,
        rknn_tensor_type,
    )
    from .context import Context
    from .custom_operators import CustomOperator, OperatorCall, PluginOperator, load_plugin
    from .info import MemorySizes, ShapeRange, TensorInfo, Version
    from .interface import RknnLibrary
    from .library import VendorLibrary, check, open_library
    from .matmul import Matmul
    from .model import RknnModel
    from .nc1hwc2 import Nc1hwc2Layout, dequantize_affine, nc1hwc2_to_flat
    from .software.library import SoftwareLibrary
    from .tensormemory import TensorMemory

__all__ = [
    "Code",
    "Context",
    "CustomOperator",
    "Flag",
    "RknnLibrary",
    "Matmul",
    "MemorySizes",
    "Nc1hwc2Layout",
    "OperatorCall",
    "PluginOperator",
    "RknnBackend",
    "RknnModel",
    "ShapeRange",
    "SoftwareLibrary",
    "TensorInfo",
    "TensorMemory",
    "VendorLibrary",
    "Version",
    "check",
    "dequantize_affine",
    "load_plugin",
    "nc1hwc2_to_flat",
    "open_backend",
    "open_library",
    "rknn_core_mask",
    "rknn_matmul_layout",
    "rknn_matmul_quant_type",
    "rknn_matmul_type",
    "rknn_mem_alloc_flags",
    "rknn_mem_sync_mode",
    "rknn_query_cmd",
    "rknn_tensor_format",
    "rknn_tensor_qnt_type",
    "rknn_tensor_type",
]

# Names are imported at first use: a drop-in library needs the software library and neither sessions nor what they bring.
_MODULES: dict[str, tuple[str, ...]] = {
    "backend": (
        "RknnBackend",
        "open_backend",
    ),
    "constants": (
        "Code",
        "Flag",
        "rknn_core_mask",
        "rknn_matmul_layout",
        "rknn_matmul_quant_type",
        "rknn_matmul_type",
        "rknn_mem_alloc_flags",
        "rknn_mem_sync_mode",
        "rknn_query_cmd",
        "rknn_tensor_format",
        "rknn_tensor_qnt_type",
        "rknn_tensor_type",
    ),
    "context": ("Context",),
    "custom_operators": (
        "CustomOperator",
        "OperatorCall",
        "PluginOperator",
        "load_plugin",
    ),
    "info": (
        "MemorySizes",
        "ShapeRange",
        "TensorInfo",
        "Version",
    ),
    "library": (
        "RknnLibrary",
        "VendorLibrary",
        "check",
        "open_library",
    ),
    "matmul": ("Matmul",),
    "model": ("RknnModel",),
    "nc1hwc2": (
        "Nc1hwc2Layout",
        "dequantize_affine",
        "nc1hwc2_to_flat",
    ),
    "software.library": ("SoftwareLibrary",),
    "tensormemory": ("TensorMemory",),
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
