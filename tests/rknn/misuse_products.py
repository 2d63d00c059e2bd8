"""Families of calls besides those of models: matmuls, custom operators, handles of the wrong kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from anynpu._rknn import ffi

from .misuse_state import CONTEXT, DOCUMENTED, INPUT, MALLOC, OK, OUTPUT, PARAM, PLATFORM, Memory

if TYPE_CHECKING:
    from .misuse_machine import Machine

MAX_PRODUCTS = 4
GOOD_TYPES = (1, 2, 4)
CALLBACK = "int(rknn_custom_op_context *, rknn_custom_op_tensor *, uint32_t, rknn_custom_op_tensor *, uint32_t)"


@ffi.callback(CALLBACK)
def _copy(_: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
    source, target = inputs[0].mem, outputs[0].mem
    begin, end = (ffi.cast("char *", mem.virt_addr) + mem.offset for mem in (source, target))
    ffi.memmove(end, begin, target.size)
    return 0


@ffi.callback(CALLBACK)
def _fail(_: Any, inputs: Any, n_inputs: int, outputs: Any, n_outputs: int) -> int:
    return -1


@dataclass(eq=False)
class Product:
    """A context of a matmul as the caller knows it."""

    handle: int
    sizes: list[tuple[int, int, int]]  # of A, B and C, for each shape
    shapes: list[tuple[int, int, int]]
    chosen: int | None
    bound: dict[str, Memory] = field(default_factory=dict)


class Products:
    """The products of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.entries: list[Product] = []
        self.stale = [0, 3]

    @property
    def _chip_lacks(self) -> bool:
        chip = self.machine.library.chip
        return chip is not None and not chip.calls["rknn_matmul_create"]

    def create(self, random: Random) -> None:
        """Make a context, of one shape or of several."""
        if len(self.entries) >= MAX_PRODUCTS:
            self._destroy(self.entries[0])
        info = ffi.new("rknn_matmul_info *")
        info.type = random.choice(GOOD_TYPES)
        info.B_layout, info.AC_layout = random.choice((0, 1)), random.choice((0, 1))
        shapes = random.sample([(1, 64, 64), (4, 64, 64), (4, 128, 64), (7, 64, 128)], random.choice((1, 3)))
        info.M, info.K, info.N = shapes[0]
        good = self.machine.library.chip_for_matmul().name == "rk3588"
        if random.random() < 0.3:
            good = False
            what = random.randrange(6)
            number = random.choice((-1, 0, 1, 33, 100, 2**31 - 1))
            if what == 0:
                info.type = random.choice((0, 3, 5, 7, 8, 9, 10, 11, 12, 13, 15, 99, 2**32 - 1))
            elif what == 1:
                info.M, info.K, info.N = (*shapes[0][:2], number)
            elif what == 2:
                info.M, info.K, info.N = (number, *shapes[0][1:])
            elif what == 3:
                info.K = number
            elif what == 4:
                info.B_layout, info.AC_layout = number & 0x7FFF, random.choice((2, -1))
            else:
                info.B_quant_type, info.AC_quant_type, info.group_size = random.randrange(8), random.randrange(3), number & 0x7FFF
            shapes = [(info.M, info.K, info.N), *shapes[1:]]
        handle = ffi.new("rknn_matmul_ctx *")
        attrs = ffi.new("rknn_matmul_io_attr[4]")
        arguments: list[Any]
        dynamic = random.random() < 0.4
        if dynamic:
            given = ffi.new("rknn_matmul_shape[]", [{"M": m, "K": k, "N": n} for m, k, n in shapes])
            arguments = [handle, info, len(shapes), given, attrs]
            name = random.choice(("rknn_matmul_create_dynamic_shape", "rknn_matmul_create_dyn_shape"))
            if random.random() < 0.05:
                arguments[2], good = random.choice((0, -1, 513)), False
        else:
            name, arguments = "rknn_matmul_create", [handle, info, attrs]
        allowed: set[int] | frozenset[int] = {OK} if good else DOCUMENTED
        if random.random() < 0.05:
            position = random.randrange(len(arguments))
            if not isinstance(arguments[position], int):
                arguments[position] = ffi.NULL
                allowed = {PARAM}
        if self._chip_lacks:
            allowed = DOCUMENTED - {OK}
        if self.machine.call(name, tuple(arguments), allowed) == OK:
            count = arguments[2] if dynamic else 1
            sizes = [(attrs[index].A.size, attrs[index].B.size, attrs[index].C.size) for index in range(count)]
            self.entries.append(Product(int(handle[0]), sizes, shapes[:count], None if dynamic else 0))

    def use(self, random: Random) -> None:
        """One call on a context, or on something else."""
        product = random.choice(self.entries) if self.entries and random.random() < 0.9 else None
        if product is None:
            handle = random.choice([*self.stale, *(context.handle for context in self.machine.contexts)])
            product = next((entry for entry in self.entries if entry.handle == handle), None)
        else:
            handle = product.handle
        lost: set[int] = set() if product is not None else DOCUMENTED - {OK} if self._chip_lacks else {CONTEXT}
        way = random.randrange(12)
        call = self.machine.call
        if way < 5:
            self._bind(random, handle, product, lost)
        elif way < 8:
            call("rknn_matmul_run", (handle,), lost or self._run_problems(product))
        elif way == 8:
            mask = random.choice((0, 1, 3, 7, 5, -1, 2**31))
            masks = self.machine.library.chip_for_matmul().core_masks
            call(
                "rknn_matmul_set_core_mask",
                (handle, mask),
                {PLATFORM} if not masks else lost or ({OK} if mask in masks else {PARAM}),
            )
        elif way == 9:
            number = random.choice((1, 64, 128, 0, -1))
            shape = random.choice([*(product.shapes if product else []), (4, 64, 64), (number, number, number)])
            problems = lost or (set() if product and shape in product.shapes else {PARAM})
            given = ffi.new("rknn_matmul_shape *", dict(zip("MKN", shape, strict=True)))
            if call("rknn_matmul_set_dynamic_shape", (handle, given), problems) == OK and product:
                product.chosen = product.shapes.index(shape)
        elif way == 10:
            self._parameters(random, handle, lost)
        elif product is not None:
            self._destroy(product)
        else:
            call("rknn_matmul_destroy", (handle,), lost)

    def confuse(self, random: Random) -> None:
        """Use a handle of one kind in calls of the other."""
        machine = self.machine
        for product in self.entries[:1]:
            name, arguments = random.choice(
                [
                    ("rknn_run", (product.handle, ffi.NULL)),
                    ("rknn_destroy", (product.handle,)),
                    ("rknn_query", (product.handle, 0, machine.answer, 8)),
                    ("rknn_outputs_release", (product.handle, 1, ffi.new("rknn_output *"))),
                    ("rknn_set_weight_mem", (product.handle, ffi.NULL)),
                    ("rknn_register_custom_ops", (product.handle, ffi.NULL, 1)),
                ]
            )
            machine.call(name, arguments, {CONTEXT} if name != "rknn_register_custom_ops" else {CONTEXT, PLATFORM})

    def operators(self, random: Random) -> None:
        """Register custom operators."""
        machine = self.machine
        handle, context = machine._context(random)
        wanting = [entry for entry in machine.contexts if entry.sample.name == "custom"]
        if wanting and random.random() < 0.7:
            context = random.choice(wanting)
            handle = context.handle
        machine.settle(context)
        problems = machine._runnable("rknn_register_custom_ops", context)
        if not problems and context is not None and context.uses_destroyed_memory():
            problems = {OK, INPUT, OUTPUT, MALLOC}  # whether it is used already depends on what was called before
        op = ffi.new("rknn_custom_op[2]")
        kind = random.choice(("good", "good", "bad"))
        op[0].op_type, op[0].target, op[0].compute = b"Twice", 1, _copy if kind == "good" else _fail
        op[1].op_type, op[1].target, op[1].compute = b"Unknown", 1, _copy
        arguments: list[Any] = [handle, op, random.choice((1, 2))]
        if random.random() < 0.25:
            problems = (problems - {OK}) | {PARAM}
            what = random.randrange(5)
            if what == 0:
                op[0].target = random.choice((0, 3, 99))
            elif what == 1:
                op[0].op_type = b""
            elif what == 2:
                op[0].compute = ffi.NULL
            elif what == 3:
                arguments[2] = random.choice((0, 1025, 2**32 - 1))
            else:
                arguments[1] = ffi.NULL
        if machine.call("rknn_register_custom_ops", tuple(arguments), problems) == OK and context is not None:
            context.operators = kind

    def finish(self) -> None:
        """Destroy all."""
        for product in list(self.entries):
            self._destroy(product)

    def _destroy(self, product: Product) -> None:
        self.machine.call("rknn_matmul_destroy", (product.handle,), set())
        self.entries.remove(product)
        self.stale = [*self.stale[-5:], product.handle]

    def _bind(self, random: Random, handle: int, product: Product | None, lost: set[int]) -> None:
        index = random.randrange(3)
        attr = ffi.new("rknn_matmul_tensor_attr *")
        attr.name = b"ABC"[index : index + 1]
        attr.size = random.choice(product.sizes)[index] if product else 64
        context = self.machine.contexts[0] if self.machine.contexts else None
        pointer, memory = self.machine._memory(random, context, min(attr.size, 2**20))
        problems = set(lost)
        if memory is None or not memory.usable or memory.size < attr.size:
            problems.add(PARAM)
        damage = random.random()
        if damage < 0.1:
            attr.size = random.choice((0, 1, 2**32 - 1))
            problems.add(PARAM)
        elif damage < 0.15:
            attr.name = random.choice((b"", b"D", b"AA"))
            problems.add(PARAM)
        elif damage < 0.2:
            attr = ffi.NULL
            problems.add(PARAM)
        if self.machine.call("rknn_matmul_set_io_mem", (handle, pointer, attr), problems) == OK and product and memory:
            product.bound["ABC"[index]] = memory
            memory.weights_of = ""

    @staticmethod
    def _run_problems(product: Product | None) -> set[int]:
        assert product is not None
        if product.chosen is None:
            return {PARAM}
        problems = set()
        for name, size in zip("ABC", product.sizes[product.chosen], strict=True):
            memory = product.bound.get(name)
            if memory is None or not memory.usable or memory.size < size:
                problems.add(OUTPUT if name == "C" else INPUT)
        return problems

    def _parameters(self, random: Random, handle: int, lost: set[int]) -> None:
        scales, zeros = ffi.new("float[200]", [0.5] * 200), ffi.new("int32_t[200]")
        params = ffi.new("rknn_quant_params *")
        params.name = random.choice((b"A", b"B", b"C", b"Q"))
        params.scale, params.zp = scales, zeros
        params.scale_len = params.zp_len = random.choice((0, 1, 64, 128, -1))
        if random.random() < 0.6:
            self.machine.call("rknn_matmul_set_quant_params", (handle, params), {CONTEXT} if lost else DOCUMENTED)
        else:
            scale = ffi.new("float *")
            self.machine.call("rknn_matmul_get_quant_params", (handle, params, scale), {CONTEXT} if lost else DOCUMENTED)
