"""Families of calls around memory: making it in every way, binding it, destroying what is in use."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING, Any

from anynpu import modelfile
from anynpu._rknn import ffi

from .misuse_state import CONTEXT, INTERNAL_OUTSIDE, MALLOC, MAX_MEMORIES, MODEL, OK, OUTSIDE, PARAM, Memory

if TYPE_CHECKING:
    from .misuse_machine import Machine


class MemoryCalls:
    """The part of a machine that has to do with memory."""

    def create(self: Machine, random: Random) -> None:
        """Make memory, in every way."""
        while len(self.memories) >= MAX_MEMORIES:
            self.destroy_memory(random)
        handle, context = self._context(random)
        sizes = [1, 64, 100, 4096, 5000]
        if context is not None:
            sizes += [context.internal_size, modelfile.weight_size(context.sample.model)]
            sizes += [spec.nbytes * 16 for spec in (*context.inputs, *context.outputs)]
        size = random.choice([*sizes, 0]) if random.random() < 0.97 else 2**32 - 1
        known = context is not None
        way = random.randrange(8)
        parent, keep = None, None
        if way < 3:
            address = self.make("rknn_create_mem", (handle, size), known and size > 0)
        elif way == 3:
            flags = random.choice((0, 1, 2, 4, 5, 6, 0x20000, 0x20004, 3, 7, 8, 2**63))
            possible = flags & ~0x20000 <= 7 and flags & 3 != 3
            size = random.choice((size, size, size, 2**32, 2**64 - 1))
            fits = 0 < size < 2**32
            address = self.make("rknn_create_mem2", (handle, size, flags), possible and fits and (known or bool(flags & 0x20000)))
        elif way == 4:
            size = min(size, 5000)
            address, keep = self._create_from_fd(random, handle, known, size)
        elif way == 5:
            address, parent, keep, size = self._create_from_physical(random, handle, known, size)
        elif way == 6:
            self.make("rknn_create_mem_from_mb_blk", (handle, ffi.NULL, 0), False)
            return
        else:
            self.make("rknn_create_mem", (random.choice((0, 5)), 64), False)
            return
        if address:
            struct = ffi.cast("rknn_tensor_mem *", address)
            assert struct.size == size
            assert struct.virt_addr != ffi.NULL
            assert all(entry.address != address for entry in self.memories if entry.alive)
            self.memories.append(Memory(address, size, handle, parent, keep))

    def _create_from_fd(self: Machine, random: Random, handle: int, known: bool, size: int) -> tuple[int, Any]:
        way = random.randrange(5)
        if way == 0:
            bad = random.choice((-1, 2**31 - 1, 987_654))
            return self.make("rknn_create_mem_from_fd", (handle, bad, ffi.NULL, size, 0), False), None
        if way == 1:
            memory = ffi.new("char[]", size + 64)
            arguments = (handle, -1, ffi.cast("void *", memory), size, random.choice((0, 7, 64)))
            return self.make("rknn_create_mem_from_fd", arguments, known and size > 0), memory
        fd = os.memfd_create("caller")
        try:
            os.ftruncate(fd, size + 100)
            if way == 2:
                offset = random.choice((-1, 101 + 4096, 2**31 - 1))
                return self.make("rknn_create_mem_from_fd", (handle, fd, ffi.NULL, max(size, 1), offset), False), None
            offset = random.choice((0, 1, 100))
            return self.make("rknn_create_mem_from_fd", (handle, fd, ffi.NULL, size, offset), known and size > 0), None
        finally:
            os.close(fd)

    def _create_from_physical(
        self: Machine, random: Random, handle: int, known: bool, size: int
    ) -> tuple[int, Memory | None, Any, int]:
        if random.random() < 0.3:
            size = min(size, 5000)
            memory = ffi.new("char[]", size + 1)
            arguments = (handle, random.getrandbits(40), ffi.cast("void *", memory), size)
            return self.make("rknn_create_mem_from_phys", arguments, known and size > 0), None, memory, size
        whole = [memory for memory in self.memories if memory.usable and memory.parent is None and memory.keep is None]
        if not whole or random.random() < 0.2:
            return self.make("rknn_create_mem_from_phys", (handle, 4096, ffi.NULL, 1), False), None, None, size
        parent = random.choice(whole)
        physical = ffi.cast("rknn_tensor_mem *", parent.address).phys_addr
        offset = random.choice((0, 1, parent.size - 1))
        size = random.choice((1, parent.size - offset, parent.size + 1))
        arguments = (handle, physical + offset, ffi.NULL, size)
        if offset + size <= parent.size:
            return self.make("rknn_create_mem_from_phys", arguments, known and size > 0), parent, None, size
        return self.make("rknn_create_mem_from_phys", arguments, False), None, None, size

    def destroy_memory(self: Machine, random: Random) -> None:
        """Destroy memory, also what is bound; with the right context, or not."""
        pointer, memory = self._memory(random)
        handle, context = self._context(random)
        if memory is not None and random.random() < 0.3:
            handle = memory.owner
        problems = set() if memory is not None else {PARAM}
        if memory is not None and context is None and handle != memory.owner and not self._is_known(handle):
            problems = {CONTEXT}
        for entry in self.contexts:
            if entry.pending:
                self.settle(entry)
        if self.call("rknn_destroy_mem", (handle, pointer), problems) == OK:
            assert memory is not None
            self._forget(memory)

    def _is_known(self: Machine, handle: int) -> bool:
        return any(context.handle == handle & 0xFFFF_FFFF for context in self.contexts)

    def _forget(self: Machine, memory: Memory) -> None:
        memory.alive = False
        self.memories.remove(memory)
        self.stale_memories = [*self.stale_memories[-12:], memory.address]

    def sync(self: Machine, random: Random) -> None:
        """Synchronize memory."""
        handle, context = self._context(random)
        pointer, memory = self._memory(random)
        mode = random.choice((1, 2, 3, 3, 4, -1, 2**31 - 1))
        problems = set() if context is not None else {CONTEXT}
        if memory is None or not memory.usable or mode not in (1, 2, 3):
            problems.add(PARAM)
        self.call("rknn_mem_sync", (handle, pointer, mode), problems)

    def weights(self: Machine, random: Random) -> None:
        """Give memory for weights."""
        handle, context = self._context(random)
        outside = [entry for entry in self.contexts if entry.flags & OUTSIDE]
        if outside and random.random() < 0.7:
            context = random.choice(outside)
            handle = context.handle
        self.settle(context)
        wanted = modelfile.weight_size(context.sample.model) if context is not None else 0
        pointer, memory = self._memory(random, context, wanted)
        problems = set() if context is not None else {CONTEXT}
        usable = memory is not None and memory.usable
        if not usable:
            problems.add(PARAM)
        allowed: set[int] = set()
        if context is not None and memory is not None:
            if context.info_only:
                problems.add(CONTEXT)
            elif not context.flags & OUTSIDE:
                problems.add(PARAM)
            if not problems:
                if wanted and (memory.size < wanted or not memory.aligned):
                    problems |= {MALLOC, MODEL} if context.sample.weightless else {MALLOC}
                elif context.sample.weightless:
                    allowed = {OK, MODEL} if memory.weights_of != context.sample.network else {OK}
        code = self.call("rknn_set_weight_mem", (handle, pointer), problems or allowed)
        if code == OK and context is not None and memory is not None:
            context.has_weights = True
            context.forget_data()
            if not context.sample.weightless:
                memory.weights_of = context.sample.network

    def internal(self: Machine, random: Random) -> None:
        """Give internal memory."""
        handle, context = self._context(random)
        outside = [entry for entry in self.contexts if entry.flags & (OUTSIDE | INTERNAL_OUTSIDE)]
        if outside and random.random() < 0.7:
            context = random.choice(outside)
            handle = context.handle
        self.settle(context)
        pointer, memory = self._memory(random, context, context.internal_size if context is not None else 0)
        problems = set() if context is not None else {CONTEXT}
        if memory is None or not memory.usable:
            problems.add(PARAM)
        if context is not None:
            if context.info_only:
                problems.add(CONTEXT)
            elif not context.flags & (OUTSIDE | INTERNAL_OUTSIDE) or (memory and memory.size < context.internal_size):
                problems.add(PARAM)
        code = self.call("rknn_set_internal_mem", (handle, pointer), problems)
        if code == OK and context is not None and memory is not None:
            context.internal = memory
            context.forget_data()
            memory.weights_of = ""

    def bind(self: Machine, random: Random) -> None:
        """Bind memory to an input or output."""
        handle, context = self._context(random)
        self.settle(context)
        pointer, memory = self._memory(random, context, 16 * 4 * 12 * 8 * 3)
        attr = ffi.new("rknn_tensor_attr *")
        problems = set() if context is not None else {CONTEXT}
        if memory is None or not memory.usable:
            problems.add(PARAM)
        name = ""
        exact = True
        if context is not None:
            problems |= context.engine_problems()
            is_input = random.random() < 0.5
            specs = context.inputs if is_input else context.outputs
            attr.index = random.randrange(len(specs))
            name = specs[attr.index].name
            command = random.choice((1, 8)) if is_input else random.choice((2, 9))
            self.call("rknn_query", (context.handle, command, attr, ffi.sizeof("rknn_tensor_attr")), set())
            small = memory is not None and memory.size < attr.size
            # of what is asked for beyond size, some need not be there
            exact = memory is None or small or memory.size >= attr.size_with_stride
            if random.random() < 0.35:
                exact = False
                self._damage(random, attr)
            elif small:
                problems.add(PARAM)
        if random.random() < 0.03:
            attr = ffi.NULL
            problems.add(PARAM)
        elif not exact:
            problems |= {PARAM} if problems else {OK, PARAM}
        code = self.call("rknn_set_io_mem", (handle, pointer, attr), problems)
        if code == OK and context is not None and memory is not None:
            name = ffi.string(attr.name).decode()
            context.bound[name] = memory
            if name in context.given:
                context.given.discard(name)
            memory.weights_of = ""

    @staticmethod
    def _damage(random: Random, attr: Any) -> None:
        for _ in range(random.choice((1, 1, 2, 4))):
            number = random.choice((0, 1, 2, 3, 4, 5, 8, 17, 99, 2**31 - 1))
            what = random.randrange(9)
            if what == 0:
                attr.fmt = number
            elif what == 1:
                attr.type = number
            elif what == 2:
                attr.n_dims = number
            elif what == 3:
                attr.dims[random.randrange(5)] = number
            elif what == 4:
                attr.w_stride = number
            elif what == 5:
                attr.h_stride = number
            elif what == 6:
                attr.pass_through = number & 255
            elif what == 7:
                attr.size, attr.n_elems, attr.size_with_stride, attr.zp = number, number, number, number
            else:
                ffi.memmove(attr.name, random.randbytes(4), 4)
