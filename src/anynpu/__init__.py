"""Run neural networks on Rockchip and Allwinner NPUs, and on a software NPU that stands in for the board.

>>> import anynpu
>>> model = anynpu.compile("det.onnx", target="rk3588", dataset="pages/", std=(255, 255, 255))    # doctest: +SKIP
>>> model.save("det.rknn")                                                                       # doctest: +SKIP
>>> with anynpu.Device("rk3588") as device:                                                      # doctest: +SKIP
...     (boxes,) = device.load("det.rknn").context().run({"x": image}, layout="nhwc")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._util.lifetime import finish_imports_before_forks

if TYPE_CHECKING:
    from .compiler import CompileOptions, check, compile
    from .devtools.sanitizer import sanitize
    from .modelfile import CompiledModel as Model
    from .modelfile import read as load
    from .npu import Device
    from .program.report import Report, report
    from .session import make_provider_options
    from .session.onnxruntime import (
        ExecutionMode,
        GraphOptimizationLevel,
        InferenceSession,
        IOBinding,
        ModelMetadata,
        NodeArg,
        OrtDevice,
        OrtValue,
        RunOptions,
        SessionOptions,
        get_all_providers,
        get_available_providers,
        get_device,
        set_default_logger_severity,
    )

__all__ = [
    "CompileOptions",
    "Device",
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "Model",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "Report",
    "RunOptions",
    "SessionOptions",
    "check",
    "compile",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "load",
    "make_provider_options",
    "report",
    "sanitize",
    "set_default_logger_severity",
]

_OF_ONNXRUNTIME = (
    *(
        "ExecutionMode",
        "GraphOptimizationLevel",
        "IOBinding",
        "InferenceSession",
        "ModelMetadata",
        "NodeArg",
        "OrtDevice",
        "OrtValue",
    ),
    *("RunOptions", "SessionOptions"),
    *("get_all_providers", "get_available_providers", "get_device", "set_default_logger_severity"),
)
"""What ``import anynpu as ort`` is expected to have."""

# Names are imported at first use: `import anynpu` costs numpy and nothing else.
_HOMES = {
    "CompileOptions": ("compiler", "CompileOptions"),
    "Device": ("npu", "Device"),
    "Model": ("modelfile", "CompiledModel"),
    "Report": ("program.report", "Report"),
    "check": ("compiler", "check"),
    "compile": ("compiler", "compile"),
    "load": ("modelfile", "read"),
    "make_provider_options": ("session", "make_provider_options"),
    "report": ("program.report", "report"),
    "sanitize": ("devtools.sanitizer", "sanitize"),
    **{name: ("session.onnxruntime", name) for name in _OF_ONNXRUNTIME},
}

# The one effect that importing this package has on the process: it must precede the imports at first use, which other threads may be in
# the middle of when a program forks.
finish_imports_before_forks()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("anynpu")
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'anynpu' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
