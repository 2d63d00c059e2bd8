"""A caller that does everything it should and much that it should not, and knows what each call must answer.

:class:`Machine` keeps its own account of the library's state: contexts, memory, what is bound to what. Each family of calls draws what to
do from a generator of random numbers, works out which quantized values are right, calls, and compares. Where only one thing is
wrong the code is known exactly; where several are, any of theirs will do. What cannot be determined beforehand (attributes of
random bytes) may be answered with any documented code, and is followed.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.rknn.constants import rknn_query_cmd, rknn_tensor_type
from anynpu.rknn.info import DTYPE_OF
from anynpu.rknn.software.library import SoftwareLibrary

from .misuse_memory import MemoryCalls
from .misuse_products import Products
from .misuse_state import (
    CONTEXT,
    DOCUMENTED,
    FAIL,
    INFO_ONLY,
    INPUT,
    INTERNAL_OUTSIDE,
    MALLOC,
    MAX_CONTEXTS,
    MAX_MEMORIES,
    MODEL,
    OK,
    OTHER_FLAGS,
    OUTPUT,
    OUTSIDE,
    PARAM,
    PERF,
    PLATFORM,
    SHARE_SRAM,
    SHARE_WEIGHTS,
    SRAM,
    TIMEOUT,
    Context,
    Memory,
)
from .robustness import Footprint, Sample, Surprises, assert_empty, init, samples

ANSWERS = {int(command): f"RKNN_QUERY_{command.name.removeprefix('RKNN_QUERY_')}" for command in rknn_query_cmd}
MAX_ANSWER = ffi.sizeof("rknn_input_range") + 64


class Machine(MemoryCalls):
    """One library, used and misused.

    :param chip: of the library; None for one that follows its models
    """

    def __init__(self, chip: str | None) -> None:
        self.samples = samples()
        self.footprint = Footprint.now()
        self.surprises = Surprises().__enter__()
        self.folder = tempfile.TemporaryDirectory()
        self.paths: dict[str, Path] = {}
        for name, sample in self.samples.items():
            self.paths[name] = Path(self.folder.name) / f"{name}.rknn"
            self.paths[name].write_bytes(sample.data)
        self.packed = Path(self.folder.name) / "packed.bin"
        self.packed.write_bytes(b"\1" * 100 + self.samples["int8"].data + b"\2" * 50)
        self.library = SoftwareLibrary(chip)
        self.foreign = SoftwareLibrary()
        self.foreign_handle = init(self.foreign, "int8")
        self.foreign_memory = self.foreign.rknn_create_mem(self.foreign_handle, 64)
        self.contexts: list[Context] = []
        self.memories: list[Memory] = []
        self.stale_handles: list[int] = [0, 1, 0xFFFF_FFFF]
        self.stale_memories: list[int] = [0, 8, int(ffi.cast("uintptr_t", self.foreign_memory))]
        self.answer = ffi.new("char[]", MAX_ANSWER)
        self.trace: deque[str] = deque(maxlen=60)
        self.steps = 0
        self.products = Products(self)

    # calling

    def call(self, name: str, arguments: tuple[Any, ...], allowed: Iterable[int]) -> int:
        """Call a function that returns a code, which must be one of *allowed* (none: success)."""
        codes = frozenset(allowed) or frozenset({OK})
        code = getattr(self.library, name)(*arguments)
        self._note(name, arguments, code)
        assert code in DOCUMENTED, self._story(name, code)
        assert code in codes, self._story(f"{name}: {sorted(codes)} expected", code)
        return int(code)

    def make(self, name: str, arguments: tuple[Any, ...], succeeds: bool | None) -> int:
        """Call a function that returns memory: its address, 0 for none."""
        pointer = getattr(self.library, name)(*arguments)
        address = int(ffi.cast("uintptr_t", pointer))
        self._note(name, arguments, address)
        if succeeds is not None:
            assert bool(address) == succeeds, self._story(f"{name}: {'memory' if succeeds else 'none'} expected", address)
        return address

    def _note(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        self.steps += 1
        self.trace.append(f"{name}({', '.join(map(str, arguments))}) -> {result}")
        assert not self.surprises.records, self._story(self.surprises.records[0], result)

    def _story(self, what: str, result: Any) -> str:
        return f"{what}, got {result} ({self.library.last_error()})\n  " + "\n  ".join(self.trace)

    # choosing

    def _context(self, random: Random) -> tuple[int, Context | None]:
        """A handle, and the context behind it if there is one."""
        while len(self.contexts) < 2:
            self._decent_init(random)
        alive = self.contexts
        if alive and random.random() < 0.85:
            context = random.choice(alive)
            upper = random.choice((0, 0, 0, 0xDEAD_BEEF << 32))  # callers with handles of four bytes leave these unset
            return context.handle | upper, context
        handle = random.choice([*self.stale_handles, self.foreign_handle, random.getrandbits(64)])
        return handle, next((context for context in alive if context.handle == handle & 0xFFFF_FFFF), None)

    def _memory(self, random: Random, context: Context | None = None, wanted: int = 0) -> tuple[Any, Memory | None]:
        """A pointer, and the memory behind it if there is some; often of *wanted* bytes, made with *context*."""
        alive = self.memories
        if context is not None and len(alive) < MAX_MEMORIES and random.random() < 0.4:
            address = self.make("rknn_create_mem", (context.handle, max(wanted, 1)), True)
            alive.append(Memory(address, max(wanted, 1), context.handle))
            return ffi.cast("rknn_tensor_mem *", address), alive[-1]
        if alive and random.random() < 0.88:
            memory = random.choice(alive)
            return ffi.cast("rknn_tensor_mem *", memory.address), memory
        address = random.choice([*self.stale_memories, random.getrandbits(47)])
        known = next((memory for memory in alive if memory.address == address), None)
        return ffi.cast("rknn_tensor_mem *", address), known

    def _decent_init(self, random: Random) -> None:
        fitting = [sample for sample in self.samples.values() if self._fits(sample) and not sample.weightless]
        sample = random.choice(fitting)
        flags = random.choice((0, 0, PERF, PERF | SRAM, OUTSIDE, INTERNAL_OUTSIDE))
        handle = ffi.new("rknn_context *")
        self.call("rknn_init", (handle, ffi.from_buffer(sample.data), len(sample.data), flags, ffi.NULL), set())
        self._add(int(handle[0]), sample, flags, has_weights=not flags & OUTSIDE)

    def _fits(self, sample: Sample) -> bool:
        return self.library.chip is None or self.library.chip.name == sample.model.chip

    def _lacking(self, name: str, context: Context | None) -> set[int]:
        """The code of a call that the chip does not have."""
        chip = self.library.chip or (context.chip if context is not None else None)
        return set() if chip is None or chip.calls.get(name, True) else {PLATFORM}

    def _runnable(self, name: str, context: Context | None) -> set[int]:
        problems = self._lacking(name, context)
        if problems and (self.library.chip is not None or context is not None):
            return problems
        return {CONTEXT} if context is None or context.info_only else set()

    def settle(self, context: Context | None) -> None:
        """Wait for the frames of a context, whose fate is known from here on."""
        if context is None or not context.pending:
            return
        for frame, codes in dict(context.pending).items():
            extend = ffi.new("rknn_run_extend *", {"frame_id": frame})
            code = self.call("rknn_wait", (context.handle, extend), codes)
            context.ran = context.ran or code == OK
        context.ran = context.ran or any(codes == {OK} for _, codes in context.pending)
        last = context.pending[-1][0]
        context.last_code = self.call("rknn_wait", (context.handle, ffi.NULL), dict(context.pending)[last])
        context.pending.clear()

    # families of calls

    def init(self, random: Random) -> None:
        """Make a context, in every way."""
        while len(self.contexts) >= MAX_CONTEXTS:
            self.destroy(random)
        sample = random.choice([entry for entry in self.samples.values() if self._fits(entry) or random.random() < 0.1])
        problems: set[int] = set()
        flags = sum(random.sample(OTHER_FLAGS, random.choice((0, 0, 1, 3))))
        for flag, chance in (
            (OUTSIDE, 0.15),
            (INTERNAL_OUTSIDE, 0.15),
            (INFO_ONLY, 0.1),
            (PERF, 0.4),
            (SRAM, 0.3),
            (SHARE_SRAM, 0.1),
            (SHARE_WEIGHTS, 0.7 if sample.weightless else 0.15),
        ):
            if random.random() < chance:
                flags |= flag
        if random.random() < 0.04:
            flags |= 1 << random.randrange(18, 32)
            problems.add(PARAM)
        if flags & SHARE_SRAM and not flags & SRAM:
            problems.add(PARAM)
        extend, other_handle, other = ffi.NULL, 0, None
        if flags & (SHARE_SRAM | SHARE_WEIGHTS) or random.random() < 0.3:
            other_handle, other = self._context(random)
            extend = ffi.new("rknn_init_extend *", {"ctx": other_handle})
            if random.random() < 0.05:
                extend, other = ffi.NULL, None
        if flags & (SHARE_SRAM | SHARE_WEIGHTS):
            if extend == ffi.NULL:
                problems.add(PARAM)
            elif other is None or other.info_only:
                problems.add(CONTEXT)
        share = other if flags & SHARE_WEIGHTS else None
        chip = sample.model.chip
        if self.library.chip is not None and self.library.chip.name != chip:
            problems.add(PLATFORM)
        if flags & SHARE_WEIGHTS and len(sample.model.programs) > 1:
            problems.add(MODEL)
        if not flags & INFO_ONLY:
            if share is not None and not problems:
                if not share.has_weights:
                    problems.add(MALLOC)
                elif share.chip.name != sample.model.chip:
                    problems.add(MODEL)
                elif share.sample.network != sample.network and modelfile.weight_size(sample.model):
                    problems |= {MODEL, MALLOC}  # other weights, or too few of them
            elif share is None and sample.weightless and not flags & OUTSIDE:
                problems.add(MODEL)
        handle = ffi.new("rknn_context *")
        model, size, keep, broken = self._source(random, sample, extend)
        problems |= broken
        place: Any = handle
        if random.random() < 0.03:
            place = ffi.NULL
            problems.add(PARAM)
        weights_lost = share is not None and share.flags & OUTSIDE and not problems  # its memory may hold anything by now
        allowed = {OK, MODEL, MALLOC} if weights_lost else problems
        code = self.call("rknn_init", (place, model, size, flags, extend), allowed)
        del keep
        if code == OK:
            self._add(int(handle[0]), sample, flags, has_weights=share is not None or not flags & OUTSIDE)

    def _source(self, random: Random, sample: Sample, extend: Any) -> tuple[Any, int, Any, set[int]]:
        """The model as *rknn_init* takes it: pointer, size, what must live on, and the codes of what is wrong with it."""
        way = random.random()
        if way < 0.5:
            return ffi.cast("void *", ffi.from_buffer(sample.data)), len(sample.data), sample.data, set()
        if way < 0.7:
            path = ffi.new("char[]", str(self.paths[sample.name]).encode())
            return ffi.cast("void *", path), 0, path, set()
        if way < 0.75 and extend != ffi.NULL and sample.name == "int8":
            path = ffi.new("char[]", str(self.packed).encode())
            extend.real_model_offset, extend.real_model_size = 100, random.choice((0, len(sample.data)))
            if not extend.real_model_size:
                extend.real_model_size = len(sample.data)
            return ffi.cast("void *", path), 0, path, set()
        if way < 0.8 and extend != ffi.NULL:
            path = ffi.new("char[]", str(self.packed).encode())
            extend.real_model_offset = random.choice((-1, 1, 99, 2**31 - 1))
            extend.real_model_size = random.choice((1, 64, 2**32 - 1))
            return ffi.cast("void *", path), 0, path, {PARAM, MODEL}
        if way < 0.84:
            return ffi.NULL, random.choice((0, 100)), None, {PARAM}
        if way < 0.88:
            path = ffi.new("char[]", random.choice((b"", b"/", b"nothing.rknn", self.folder.name.encode(), b"\xff\xfe")))
            return ffi.cast("void *", path), 0, path, {MODEL}
        if way < 0.94:
            size = random.choice((1, 4, 63, 64, 100, len(sample.data) // 2, len(sample.data) - 1))
            return ffi.cast("void *", ffi.from_buffer(sample.data)), size, sample.data, {MODEL}
        data = bytearray(random.randbytes(random.choice((1, 64, 500))))
        if random.random() < 0.5:
            data[:4] = b"RKNN"
        return ffi.cast("void *", ffi.from_buffer(data)), len(data), data, {MODEL}

    def _add(self, handle: int, sample: Sample, flags: int, *, has_weights: bool) -> Context:
        own = not flags & (OUTSIDE | INTERNAL_OUTSIDE)
        dynamic = len(sample.model.programs) > 1
        context = Context(handle, sample, flags, has_weights and not flags & INFO_ONLY, own, shapes=None if dynamic else 0)
        assert all(entry.handle != handle for entry in self.contexts if entry.alive)
        self.contexts.append(context)
        return context

    def dup(self, random: Random) -> None:
        """Duplicate a context."""
        while len(self.contexts) >= MAX_CONTEXTS:
            self.destroy(random)
        handle, context = self._context(random)
        source, target = ffi.new("rknn_context *", handle), ffi.new("rknn_context *")
        problems = self._lacking("rknn_dup_context", context)
        if not problems:
            if context is None:
                problems = {CONTEXT}
            elif context.dynamic:
                problems = {MODEL}
            elif context.info_only:
                problems = {CONTEXT}
            elif not context.has_weights:
                problems = {MALLOC}
        arguments = [source, target]
        if random.random() < 0.06:
            arguments[random.randrange(2)] = ffi.NULL
            problems = problems | {PARAM} if self.library.chip is not None and PLATFORM in problems else {PARAM}
        if self.call("rknn_dup_context", tuple(arguments), problems) == OK:
            assert context is not None
            self._add(int(target[0]), context.sample, context.flags & ~(SHARE_WEIGHTS | SHARE_SRAM), has_weights=True)

    def destroy(self, random: Random) -> None:
        """Destroy a context, or none."""
        handle, context = self._context(random)
        self._destroy(handle, context)

    def _destroy(self, handle: int, context: Context | None) -> None:
        self.call("rknn_destroy", (handle,), set() if context is not None else {CONTEXT})
        if context is not None:
            context.alive = False
            context.pending.clear()
            context.held.clear()
            self.contexts.remove(context)
            self.stale_handles = [*self.stale_handles[-12:], context.handle]

    def query(self, random: Random) -> None:
        """Ask anything."""
        handle, context = self._context(random)
        self.settle(context)
        command = random.randrange(18) if random.random() < 0.95 else random.choice((18, 19, -1, 2**31 - 1))
        ffi.memmove(self.answer, bytes(4), 4)
        index = random.choice((0, 0, 0, 1, 2, 2**32 - 1))
        ffi.cast("uint32_t *", self.answer)[0] = index
        needed = _answer_size(command)
        size, info = random.choice((needed, needed, needed, needed + 32, 2**32 - 1)), ffi.cast("void *", self.answer)
        problems = self._query_problems(context, command, index)
        if random.random() < 0.05:
            size = random.choice((0, 1, 7))
            problems.add(PARAM)
        if random.random() < 0.05:
            info = ffi.NULL
            problems.add(PARAM)
        self.call("rknn_query", (handle, command, info, size), problems)

    def _query_problems(self, context: Context | None, command: int, index: int) -> set[int]:
        if context is None:
            return {CONTEXT}
        if command not in ANSWERS or command == rknn_query_cmd.RKNN_QUERY_CMD_MAX:
            return {PARAM}
        name = ANSWERS[command]
        perf = name in ("RKNN_QUERY_PERF_DETAIL", "RKNN_QUERY_PERF_RUN")
        if not context.chip.queries.get(name, True) and name != "RKNN_QUERY_PERF_DETAIL":
            return {PARAM}
        if name == "RKNN_QUERY_DEVICE_MEM_INFO":
            if not context.mini:
                return {PARAM}
            if context.info_only or not (context.has_weights and context.internal):
                return {MALLOC}
            # the engine is made at first use, and memory that was destroyed has no address
            return {OK, MALLOC, CONTEXT} if isinstance(context.internal, Memory) else set()
        if name == "RKNN_QUERY_PERF_DETAIL" and context.mini:
            return set()
        if perf:
            return set() if context.ran else {FAIL}
        problems = set()
        if "CURRENT" in name or "DYNAMIC" in name:
            if not context.dynamic:
                problems.add(MODEL)
            elif "CURRENT" in name and context.shapes is None:
                problems.add(FAIL)
        if "ATTR" in name or "DYNAMIC" in name:
            ports = context.outputs if "OUTPUT" in name else context.inputs
            flat = "NHWC_OUTPUT" in name and not context.mini  # librknnmrt answers for any number of axes
            if index >= len(ports) or (flat and len(ports[index].shape) != 4):
                problems.add(PARAM)
        return problems

    def shapes(self, random: Random) -> None:
        """Choose shapes."""
        handle, context = self._context(random)
        dynamic = [entry for entry in self.contexts if entry.dynamic]
        if dynamic and random.random() < 0.7:
            context = random.choice(dynamic)
            handle = context.handle
        self.settle(context)
        older = random.random() < 0.3
        problems = self._lacking("rknn_set_input_shapes", context) or self._runnable("rknn_set_input_shapes", context)
        if older and context is None and problems == {PLATFORM}:
            problems.add(CONTEXT)  # the older name is in no table of calls, so the handle is looked at first
        attrs = ffi.new("rknn_tensor_attr[2]")
        count = 1 if older else len(context.inputs) if context is not None else 1
        wanted = 0
        if not problems and context is not None:
            if not context.dynamic:
                problems.add(MODEL)
            else:
                wanted = random.randrange(len(context.sample.model.programs))
                n, c, h, w = context.sample.model.programs[wanted].input_specs[0].shape
                attrs[0].n_dims, attrs[0].fmt = 4, 1
                attrs[0].dims = random.choice(([n, h, w, c], [n, c, h, w]))
                for damage in random.sample(range(7), 1) if random.random() < 0.3 else ():
                    problems.add(PARAM)
                    if damage == 0:
                        attrs[0].index = random.choice((1, 2**32 - 1))
                    elif damage == 1:
                        attrs[0].n_dims = random.choice((0, 3, 17, 2**32 - 1))
                    elif damage == 2:
                        attrs[0].dims[random.randrange(4)] = random.choice((0, 5, 2**32 - 1))
                    elif damage == 3:
                        attrs[0].fmt = random.choice((0, 2, 9))
                    elif damage == 4 and not older:
                        count = random.choice((0, 2, 2**32 - 1))
                    else:
                        attrs = ffi.NULL
        if older:
            code = self.call("rknn_set_input_shape", (handle, attrs), problems)
        else:
            code = self.call("rknn_set_input_shapes", (handle, count, attrs), problems)
        if code == OK and context is not None and wanted != context.shapes:
            context.shapes = wanted
            context.bound.clear()
            context.forget_data()

    def cores(self, random: Random) -> None:
        """Set the cores."""
        handle, context = self._context(random)
        if random.random() < 0.6:
            mask = random.choice((0, 1, 2, 3, 4, 5, 7, 8, 0xFFFF, 0x10000, -1))
            problems = self._runnable("rknn_set_core_mask", context)
            if not problems and context is not None and mask not in context.chip.core_masks:
                problems = {PARAM}
            self.call("rknn_set_core_mask", (handle, mask), problems)
        else:
            count = random.choice((-1, 0, 1, 2, 3, 4, 2**31 - 1))
            problems = self._runnable("rknn_set_batch_core_num", context)
            if not problems and context is not None and not 1 <= count <= context.chip.cores:
                problems = {PARAM}
            self.call("rknn_set_batch_core_num", (handle, count), problems)

    def inputs(self, random: Random) -> None:
        """Set the inputs."""
        handle, context = self._context(random)
        self.settle(context)
        problems = self._runnable("rknn_inputs_set", context)
        specs = context.inputs if context is not None else ()
        if not problems and context is not None:
            if context.shapes is None:
                problems.add(INPUT)
            problems |= context.engine_problems()
            if any(spec.name in context.bound for spec in specs):
                problems.add(PARAM)
        count = len(specs) or 1
        inputs = ffi.new("rknn_input[]", max(count, 4))
        keep = []
        unknown = False
        order = random.sample(range(count), count)
        for position, index in enumerate(order):
            one = inputs[position]
            one.index = index
            one.type = random.choice((0, 0, 1, 2, 3, 3))
            one.fmt = random.choice((0, 1, 3))
            if random.random() < 0.2:
                one.pass_through = random.choice((1, 255))
            if random.random() < 0.08:
                one.type = random.choice((4, 5, 6, 7, 8, 9, 10, 11, 12, 2**32 - 1, 99))
                unknown = True
            shape = specs[index].shape if specs else (1, 3, 8, 8)
            elements = 1
            for extent in shape:
                elements *= extent
            # what is passed through has whole blocks of channels
            room = 4 * elements * 16 if one.pass_through or unknown else elements * _type_bytes(one.type)
            memory = ffi.new("char[]", random.randbytes(room) if room < 4096 else room)
            keep.append(memory)
            one.buf, one.size = memory, room
        damage = random.choice((None,) * 12 + ("count", "null", "index", "buffer", "size", "format"))
        if damage in ("size", "format") and inputs[0].pass_through:
            damage = None
        arguments: list[Any] = [handle, count, inputs]
        if damage == "count":
            arguments[1] = random.choice([number for number in (0, 1, 2, 3, 2**32 - 1) if number != count])
            problems.add(PARAM)
        elif damage == "null":
            arguments[2] = ffi.NULL
            problems.add(PARAM)
        elif damage == "index":
            inputs[0].index = random.choice((count, 2**32 - 1))
            problems.add(INPUT)
        elif damage == "buffer":
            inputs[0].buf = ffi.NULL
            problems.add(INPUT)
        elif damage == "size":
            inputs[0].size = random.choice((0, 1, inputs[0].size - 1)) if not unknown else 0
            problems |= {PARAM, INPUT} if unknown else {PARAM}
        elif damage == "format":
            inputs[0].fmt = random.choice((2, 4, 2**32 - 1, 99))
            problems.add(INPUT)  # every input of these models has four axes
        if unknown:
            problems |= {OK, INPUT, PARAM} if problems <= {INPUT, PARAM} and damage is None else {INPUT}
            if any(code in problems for code in (MALLOC, CONTEXT, PLATFORM)):
                problems.discard(OK)
        code = self.call("rknn_inputs_set", tuple(arguments), problems)
        if code == OK and context is not None:
            context.given.update(spec.name for spec in specs)

    def run(self, random: Random) -> None:
        """Run, waiting or not."""
        handle, context = self._context(random)
        blocks = random.random() < 0.75
        if blocks:
            self.settle(context)
        problems = {CONTEXT} if context is None else context.run_problems()
        extend: Any = ffi.NULL
        if not blocks or random.random() < 0.4:
            extend = ffi.new("rknn_run_extend *")
            extend.timeout_ms = random.choice((0, 0, -1, 10_000, 1))
            if extend.timeout_ms == 1:
                problems = problems | {TIMEOUT, OK} if not problems else problems | {TIMEOUT}
            extend.fence_fd = random.choice((0, -1, 2**31 - 1))
        if blocks:
            code = self.call("rknn_run", (handle, extend), problems)
            if context is not None:
                context.outputs_of_frame = context.outputs_of_frame and context.info_only
                context.ran = context.ran or code == OK
            return
        extend.non_block = random.choice((1, -1))
        if extend.timeout_ms != 1:  # of two frames with one number, the fate of the first would not be known
            extend.frame_id = random.choice((0, 0, 0, 5, 2**64 - 1))
        refused = context is None or context.info_only
        allowed = {CONTEXT} if refused else {OK, PARAM} if extend.frame_id else {OK}
        code = self.call("rknn_run", (handle, extend), allowed)
        if code == OK and context is not None:
            context.frames = context.outputs_of_frame = True
            assert extend.frame_id
            context.pending.append((int(extend.frame_id), frozenset(problems or {OK})))

    def wait(self, random: Random) -> None:
        """Wait for a frame."""
        handle, context = self._context(random)
        if context is not None and context.pending and random.random() < 0.8:
            self.settle(context)
            return
        self.settle(context)
        problems = {CONTEXT} if context is None or context.info_only else set()
        if not problems and context is not None and not context.frames:
            problems = {PARAM}
        extend: Any = ffi.NULL
        if random.random() < 0.7:
            extend = ffi.new(
                "rknn_run_extend *", {"frame_id": random.choice((0, 77_777)), "timeout_ms": random.choice((0, 1000))}
            )
            if extend.frame_id and not problems:
                problems = {PARAM}
        if not problems:
            assert context is not None
            problems = {context.last_code}
        self.call("rknn_wait", (handle, extend), problems)

    def outputs(self, random: Random) -> None:
        """Get outputs; release them, or not."""
        handle, context = self._context(random)
        self.settle(context)
        problems = self._runnable("rknn_outputs_get", context)
        specs = context.outputs if context is not None else ()
        count = len(specs) or 1
        outputs = ffi.new("rknn_output[]", max(count, 4))
        keep = []
        own = False
        for position, index in enumerate(random.sample(range(count), count)):
            one = outputs[position]
            one.index, one.want_float = index, random.choice((0, 1, 255))
            if random.random() < 0.3:
                one.is_prealloc, one.size = 1, 64 * 64
                memory = ffi.new("char[]", 64 * 64)
                keep.append(memory)
                one.buf = memory
            else:
                own = True
        if not problems and context is not None:
            if context.outputs_of_frame and context.last_code != OK:
                problems.add(context.last_code)
            if not context.ran:
                problems.add(OUTPUT)
            if any(spec.name in context.bound and not context.bound[spec.name].usable for spec in specs):
                problems.add(OUTPUT)
        arguments: list[Any] = [handle, count, outputs, ffi.NULL]
        damage = random.choice((None,) * 12 + ("count", "null", "index", "buffer", "size"))
        if damage == "count":
            arguments[1] = random.choice([number for number in (0, 1, 2, 3, 2**32 - 1) if number != count])
            problems.add(PARAM)
        elif damage == "null":
            arguments[2] = ffi.NULL
            problems.add(PARAM)
        elif damage == "index":
            outputs[0].index = random.choice((count, 2**32 - 1))
            problems.add(OUTPUT)
        elif damage == "buffer":
            outputs[0].is_prealloc, outputs[0].buf = 1, ffi.NULL
            problems.add(OUTPUT)
        elif damage == "size":
            outputs[0].is_prealloc, outputs[0].buf, outputs[0].size = 1, ffi.cast("void *", self.answer), 1
            problems.add(PARAM)
        code = self.call("rknn_outputs_get", tuple(arguments), problems)
        if code == OK and context is not None and own:
            context.held.append((outputs, count, keep))
        if context is not None and (len(context.held) > 3 or random.random() < 0.7):
            while context.held:
                outputs, count, _ = context.held.pop()
                self.call("rknn_outputs_release", (context.handle, count, outputs), set())

    def release(self, random: Random) -> None:
        """Release what is not there."""
        handle, context = self._context(random)
        outputs = ffi.new("rknn_output[4]")
        outputs[0].buf = ffi.cast("void *", random.choice((0, 8, random.getrandbits(47))))
        count = random.choice((0, 1, 2, 4, 2**32 - 1))
        problems = {CONTEXT} if context is None else {PARAM} if count > len(context.outputs) else set()
        arguments: list[Any] = [handle, count, outputs]
        if random.random() < 0.1:
            arguments[2] = ffi.NULL
            problems.add(PARAM)
        self.call("rknn_outputs_release", tuple(arguments), problems)

    # the end

    def finish(self, random: Random) -> None:
        """End everything, in some order, or all at once; nothing may be left."""
        try:
            if random.random() < 0.25:
                self.library.close()
                for context in self.contexts:
                    self.call("rknn_run", (context.handle, ffi.NULL), {CONTEXT})
                    self.call("rknn_destroy", (context.handle,), {CONTEXT})
                for memory in self.memories:
                    pointer = ffi.cast("rknn_tensor_mem *", memory.address)
                    self.call("rknn_destroy_mem", (memory.owner, pointer), {PARAM})
            else:
                self.products.finish()
                everything: list[Context | Memory] = [*self.contexts, *self.memories]
                random.shuffle(everything)
                for entry in everything:
                    if isinstance(entry, Context):
                        self._destroy(entry.handle, entry)
                    else:
                        pointer = ffi.cast("rknn_tensor_mem *", entry.address)
                        self.call("rknn_destroy_mem", (entry.owner, pointer), set())
                        self._forget(entry)
                assert_empty(self.library)
                self.library.close()
            self.foreign.close()
            self.contexts.clear()
            self.memories.clear()
            self.footprint.assert_unchanged()
        finally:
            self.surprises.__exit__()
            self.folder.cleanup()


def _answer_size(command: int) -> int:
    structs = {
        0: "rknn_input_output_num",
        3: "rknn_perf_detail",
        4: "rknn_perf_run",
        5: "rknn_sdk_version",
        6: "rknn_mem_size",
        7: "rknn_custom_string",
        12: "rknn_tensor_mem",
        13: "rknn_input_range",
    }
    return ffi.sizeof(structs.get(command, "rknn_tensor_attr"))


def _type_bytes(kind: int) -> int:
    return max(1, DTYPE_OF[rknn_tensor_type(kind)].bits // 8)
