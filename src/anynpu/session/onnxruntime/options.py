"""onnxruntime's option objects. A program may set whatever it likes; what has an effect here is said at each class."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import SessionError

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "OrtAllocatorType",
    "OrtMemType",
    "RunOptions",
    "SessionOptions",
]


class GraphOptimizationLevel(enum.IntEnum):
    """Without effect: the compiler optimizes."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Without effect: the NPU executes layer by layer."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Without effect: the compiler plans the order."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(enum.IntEnum):
    """Without effect: a device has one kind of memory."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """Without effect: a device has one kind of memory."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0


class _Entries:
    """Text by key, with onnxruntime's error for a key that is not there."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self.values: dict[str, str] = {}

    def add(self, key: str, value: str) -> None:
        self.values[str(key)] = str(value)

    def get(self, key: str) -> str:
        if key not in self.values:
            raise SessionError(f"{self._owner} does not have configuration with key: {key}", hint="add it first")
        return self.values[key]


class SessionOptions:
    """How a session is opened. Any attribute may be set.

    These have an effect: ``enable_profiling`` and ``profile_file_prefix`` (see ``InferenceSession.end_profiling``); free dimensions that
    are overridden, for a model with dynamic shapes; and the entries ``anynpu.chip``, ``anynpu.dtype`` and ``anynpu.dataset``,
    which state how an ``.onnx`` file is compiled.

    >>> options = SessionOptions()
    >>> options.intra_op_num_threads = 4
    >>> options.add_session_config_entry("anynpu.dtype", "fp16")
    >>> options.get_session_config_entry("anynpu.dtype")
    'fp16'
    """

    def __init__(self) -> None:
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self.free_dimensions: dict[str, int] = {}
        self._entries = _Entries("SessionOptions")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # states to type checkers that any attribute may be set

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry by name."""
        self._entries.add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was set; a RuntimeError for one that was not."""
        return self._entries.get(key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix an axis of the ONNX model that has a name instead of a size."""
        self.free_dimensions[name] = int(value)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Accepted; axes are found by their name, not by what they denote."""

    def add_provider(self, provider_name: str, options: Mapping[str, str] | None = None) -> None:
        """Accepted; the providers of a session are those of its constructor."""

    def add_provider_for_devices(self, devices: Sequence[object], options: Mapping[str, str] | None = None) -> None:
        """Accepted; a session finds its device itself (see ``device``)."""

    def set_provider_selection_policy(self, policy: object) -> None:
        """Accepted; a session finds its device itself (see ``device``)."""

    def has_providers(self) -> bool:
        """False: providers are given to the constructor of a session."""
        return False

    def add_initializer(self, name: str, value: object) -> None:
        """Rejected: the weights of a model are in its file."""
        raise SessionError("weights cannot be added to a compiled model", hint="put them into the ONNX model")

    def add_external_initializers(self, names: Sequence[str], values: Sequence[object]) -> None:
        """Rejected: the weights of a model are in its file."""
        raise SessionError("weights cannot be added to a compiled model", hint="put them into the ONNX model")

    def register_custom_ops_library(self, path: str) -> None:
        """Rejected: such a library is for the processor, not for an NPU."""
        raise SessionError(
            "a library of custom operators for onnxruntime cannot run on an NPU",
            hint="compile with custom_ops, and register a function or a plugin",
        )


class RunOptions:
    """How one run is made. Any attribute may be set; the entry ``ztu_modelrt_dispatch_batch`` has an effect, and ``terminate`` is seen
    before the run begins.

    >>> options = RunOptions()
    >>> options.add_run_config_entry("ztu_modelrt_dispatch_batch", "1")
    """

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False
        self._entries = _Entries("RunOptions")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # states to type checkers that any attribute may be set

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry by name."""
        self._entries.add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was set; a RuntimeError for one that was not."""
        return self._entries.get(key)

    def add_active_adapter(self, adapter: object) -> None:
        """Rejected: weights of a compiled model do not change."""
        raise SessionError("adapters cannot be added to a compiled model", hint="merge them into the ONNX model")
