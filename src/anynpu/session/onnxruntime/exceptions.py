"""onnxruntime's names for errors. Each is the class of ours that is raised where onnxruntime raises that one."""

from __future__ import annotations

from ...errors import (
    AnynpuError,
    CompileError,
    DeviceError,
    DeviceHungError,
    FeedError,
    ModelError,
    SessionModelError,
    UnsupportedOperatorError,
    VendorModelError,
)

__all__ = [
    "DeviceReset",
    "EPFail",
    "EngineError",
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "ModelLoadCanceled",
    "ModelLoaded",
    "ModelRequiresCompilation",
    "NoModel",
    "NoSuchFile",
    "NotFound",
    "NotImplemented",
    "RuntimeException",
]

Fail = AnynpuError
InvalidArgument = FeedError
NoSuchFile = SessionModelError
InvalidProtobuf = ModelError
InvalidGraph = CompileError
NotImplemented = UnsupportedOperatorError
RuntimeException = DeviceError
EngineError = DeviceError
EPFail = DeviceError
DeviceReset = DeviceHungError
ModelRequiresCompilation = CompileError
NotFound = SessionModelError
# nothing raises these: a model is never loaded twice, and loading is not cancelled
NoModel = ModelError
ModelLoaded = ModelError
ModelLoadCanceled = VendorModelError
