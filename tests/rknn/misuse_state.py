"""What the caller of the misuse tests knows: codes, flags, and its own account of contexts and memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.chips import Chip
from anynpu.rknn.constants import Code, Flag
from anynpu.tensor import TensorSpec

from .robustness import Sample

OK = int(Code.RKNN_SUCC)
FAIL, TIMEOUT = int(Code.RKNN_ERR_FAIL), int(Code.RKNN_ERR_TIMEOUT)
MALLOC, PARAM, MODEL = int(Code.RKNN_ERR_MALLOC_FAIL), int(Code.RKNN_ERR_PARAM_INVALID), int(Code.RKNN_ERR_MODEL_INVALID)
CONTEXT, INPUT, OUTPUT = int(Code.RKNN_ERR_CTX_INVALID), int(Code.RKNN_ERR_INPUT_INVALID), int(Code.RKNN_ERR_OUTPUT_INVALID)
PLATFORM = int(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH)
DOCUMENTED = frozenset(int(code) for code in Code)

MAX_CONTEXTS = 8
MAX_MEMORIES = 24
ALL_FLAGS = 0x3FFFF
OUTSIDE, INTERNAL_OUTSIDE = int(Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE), int(Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE)
INFO_ONLY, PERF = int(Flag.RKNN_FLAG_COLLECT_MODEL_INFO_ONLY), int(Flag.RKNN_FLAG_COLLECT_PERF_MASK)
SHARE_WEIGHTS, SRAM, SHARE_SRAM = (
    int(Flag.RKNN_FLAG_SHARE_WEIGHT_MEM),
    int(Flag.RKNN_FLAG_ENABLE_SRAM),
    int(Flag.RKNN_FLAG_SHARE_SRAM),
)
OTHER_FLAGS = [1 << bit for bit in (0, 1, 2, 6, 7, 10, 13, 14, 15, 16)]


@dataclass(eq=False)
class Memory:
    """Memory as the caller knows it: by its address alone, so that a stale one is really gone."""

    address: int
    size: int
    owner: int
    parent: Memory | None = None
    keep: Any = None
    alive: bool = True
    weights_of: str = ""  # what was placed in it, if nothing wrote to it since

    @property
    def usable(self) -> bool:
        return self.alive and (self.parent is None or self.parent.usable)

    @property
    def aligned(self) -> bool:
        struct = ffi.cast("rknn_tensor_mem *", self.address)
        return (int(ffi.cast("uintptr_t", struct.virt_addr)) + struct.offset) % 64 == 0


@dataclass(eq=False)
class Context:
    """A context as the caller knows it."""

    handle: int
    sample: Sample
    flags: int
    has_weights: bool
    internal: Memory | bool | None = False  # True: its own
    alive: bool = True
    shapes: int | None = 0
    given: set[str] = field(default_factory=set)
    bound: dict[str, Memory] = field(default_factory=dict)
    ran: bool = False
    frames: bool = False
    outputs_of_frame: bool = False
    pending: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    last_code: int = OK  # of the last frame
    held: list[Any] = field(default_factory=list)
    operators: str = ""  # "good" or "bad" where one is registered

    @property
    def chip(self) -> Chip:
        return chips.get(self.sample.model.chip)

    @property
    def info_only(self) -> bool:
        return bool(self.flags & INFO_ONLY)

    @property
    def dynamic(self) -> bool:
        return len(self.sample.model.programs) > 1

    @property
    def mini(self) -> bool:
        return self.chip.library == "librknnmrt"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.sample.model.programs[self.shapes or 0].input_specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.sample.model.programs[self.shapes or 0].output_specs

    @property
    def internal_size(self) -> int:
        return max(program.memory.size for program in self.sample.model.programs)

    def engine_problems(self) -> set[int]:
        """Why the context cannot have an engine."""
        if self.info_only:
            return {CONTEXT}
        if isinstance(self.internal, Memory) and not self.internal.usable:
            return {MALLOC}
        return set() if self.has_weights and self.internal else {MALLOC}

    def run_problems(self) -> set[int]:
        """Why a run is rejected: what is found first."""
        problems = self.engine_problems()
        if problems:
            return problems
        if self.shapes is None or any(spec.name not in self.given and spec.name not in self.bound for spec in self.inputs):
            return {INPUT}
        if self.mini and any(spec.name not in self.bound for spec in self.outputs):
            return {OUTPUT}
        stale = [name for name, memory in self.bound.items() if not memory.usable]
        if any(spec.name in stale for spec in self.inputs):
            return {INPUT}
        if stale:
            return {OUTPUT}
        return {FAIL} if self.sample.name == "custom" and self.operators != "good" else set()

    def uses_destroyed_memory(self) -> bool:
        memories = [*self.bound.values(), *([self.internal] if isinstance(self.internal, Memory) else [])]
        return not all(memory.usable for memory in memories)

    def forget_data(self) -> None:
        """The engine is a new one."""
        self.given.clear()
        self.ran = False
