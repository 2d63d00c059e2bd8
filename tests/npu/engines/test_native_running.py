"""How the native engine runs a program: stopping between layers, time limits, memory of the caller."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from waiting import wait_until

from anynpu._native import ffi, lib
from anynpu.errors import DeviceMemoryError, DeviceTimeout, JobCancelled
from anynpu.npu import Buffer, Device, NativeEngine, RunControl
from anynpu.npu.engines import native_arrays, native_memory
from anynpu.npu.engines.base import BoundProgram, ReferenceEngine
from anynpu.npu.engines.choice import choose_engine
from anynpu.npu.engines.native import NativeExecutable
from anynpu.npu.engines.preparation import ROOM, Preparation
from anynpu.npu.engines.reference import execute
from anynpu.program import Conv, Epilogue, Layer, MatMul, MemoryPlan, Pool, Program
from anynpu.tensor import Affine, DType, TensorSpec

from ..builders import Thread, dense_chain, dense_values, float_model
from .ingredients import Array, nhwc

UNTOUCHED = 77


def chain(layers: int, size: int, channels: int = 32) -> Program:
    """Convolutions one after the other, each into a tensor of its own."""
    rng = np.random.default_rng(0)
    names = [f"t{index}" for index in range(layers + 1)]
    quantization = Affine.per_tensor(1.0, 0)
    tensors = {name: replace(nhwc(name, (1, size, size, channels), DType.INT8), quantization=quantization) for name in names}
    op = Conv(
        rng.integers(-128, 128, (channels, 3, 3, channels)).astype(np.int8),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        Epilogue(np.array([1e-3], np.float32), np.zeros(1, np.int32)),
        pads=(1, 1, 1, 1),
    )
    steps = tuple(Layer(f"conv{index}", "Conv", op, (names[index],), (names[index + 1],)) for index in range(layers))
    return Program((names[0],), (names[-1],), tensors, steps, MemoryPlan({}, 0))


def memory(program: Program) -> dict[str, Array]:
    arrays = {}
    for name, spec in program.tensors.items():
        room = np.full(spec.nbytes + native_memory.SLACK, UNTOUCHED, np.int8)
        arrays[name] = room[: spec.nbytes].reshape(spec.memory_shape)
    arrays[program.inputs[0]][...] = np.random.default_rng(1).integers(-128, 128, arrays[program.inputs[0]].shape)
    return arrays


def bound(program: Program, arrays: dict[str, Array]) -> BoundProgram:
    return NativeEngine(isa="generic").prepare(program).bind(arrays)


def untouched(array: Array) -> bool:
    return bool(np.all(array == UNTOUCHED))


@pytest.fixture(scope="module")
def slow() -> Program:
    """Takes at least half a second, in layers of a few milliseconds."""
    return chain(200, 96)


def cancel_inside(arrays: Mapping[str, Array], last: str, run: Callable[[RunControl], None]) -> bool:
    """Cancel runs in another thread as soon as they have begun, until one is cancelled before its end.

    A busy machine may let a run finish before the thread that cancels it has its turn: then the next one is tried.
    """
    for _ in range(100):
        for name in arrays.keys() - {"t0"}:
            arrays[name][...] = UNTOUCHED
        control = RunControl()
        runner = Thread(lambda control=control: run(control))  # type: ignore[misc]
        wait_until(lambda: not runner.is_alive() or not untouched(arrays["t1"]), "the first layer")  # noqa: B023
        control.cancel()
        try:
            runner.finish()
        except JobCancelled:
            assert untouched(arrays[last]), "all layers ran although the job was cancelled"
            return True
        assert not untouched(arrays[last])
    return False


def test_a_run_can_be_cancelled_inside_a_stretch(slow: Program) -> None:
    arrays = memory(slow)
    program = bound(slow, arrays)
    assert cancel_inside(arrays, "t200", lambda control: program.run(control))
    program.run(RunControl())  # the next job is not stopped by the flag of the last one
    assert not untouched(arrays["t200"])


def test_a_run_stops_at_its_deadline_inside_a_stretch(slow: Program) -> None:
    arrays = memory(slow)
    program = bound(slow, arrays)
    for _ in range(100):  # a busy machine may let the time pass before the first layer
        with pytest.raises(DeviceTimeout, match=r"within 0\.05 s"):
            program.run(RunControl(timeout=0.05))
        assert untouched(arrays["t200"])
        if not untouched(arrays["t1"]):
            break
    assert not untouched(arrays["t1"])


def test_a_cancelled_control_runs_nothing() -> None:
    program = chain(2, 4)
    arrays = memory(program)
    control = RunControl()
    control.cancel()
    with pytest.raises(JobCancelled):
        bound(program, arrays).run(control)
    assert untouched(arrays["t1"])


def test_between_may_cancel_before_a_layer() -> None:
    program = chain(4, 4)
    arrays = memory(program)
    control = RunControl()
    seen: list[int] = []

    def between(index: int) -> None:
        seen.append(index)
        if index == 2:
            control.cancel()

    with pytest.raises(JobCancelled):
        bound(program, arrays).run(control, between=between)
    assert seen == [0, 1, 2]
    assert not untouched(arrays["t2"])
    assert untouched(arrays["t3"])


def test_why_and_where_it_ended() -> None:
    """The call itself: it states how many layers were run, and it looks at flag and deadline before each."""
    program = chain(3, 4)
    executable = NativeEngine().prepare(program)
    arrays = memory(program)
    held = executable.bind(arrays)
    layers, tensors, scratch = executable._layers, held._tensors, held._scratch  # type: ignore[attr-defined]
    stop, reached, clock = ffi.new("int32_t *"), ffi.new("size_t *"), ffi.new("int64_t[3]", [-1, -1, -1])
    assert lib.anynpu_execute(layers, 3, tensors, scratch, stop, -1, clock, reached) == lib.ANYNPU_FINISHED
    assert reached[0] == 3
    assert all(ns >= 0 for ns in clock)  # a system's clock may be coarser than a layer of four products
    arrays["t1"][...] = UNTOUCHED
    assert lib.anynpu_execute(layers, 3, tensors, scratch, stop, time.monotonic_ns(), ffi.NULL, reached) == lib.ANYNPU_EXPIRED
    assert reached[0] == 0
    later = time.monotonic_ns() + 10**11
    assert lib.anynpu_execute(layers, 3, tensors, scratch, stop, later, ffi.NULL, reached) == lib.ANYNPU_FINISHED
    arrays["t1"][...] = UNTOUCHED
    stop[0] = 1
    assert lib.anynpu_execute(layers, 3, tensors, scratch, stop, -1, ffi.NULL, reached) == lib.ANYNPU_STOPPED
    assert reached[0] == 0
    assert untouched(arrays["t1"])


def test_float_and_integer_layers_in_turn() -> None:
    """Float layers run between segments of integer ones."""
    rng = np.random.default_rng(4)
    weights = rng.normal(size=(6, 5)).astype(np.float32)
    model = float_model(weights)
    x = rng.normal(size=(1, 6)).astype(np.float32)
    results = []
    for engine in ("reference", "native"):
        with Device("rk3588", engine=engine) as device, device.load(model).context() as context:
            results.append(context.run({"x": x})[0])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


# ---- memory of the caller ----


def page_end(size: int) -> tuple[int, mmap.mmap]:
    """*size* bytes before the end of a page after which nothing may be touched, and what keeps them alive."""
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, whole + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + whole), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return address + whole - size, pages


@pytest.mark.parametrize("width", [64, 63])
def test_buffers_that_end_at_the_end_of_memory(width: int) -> None:
    """A kernel that read past such an input would crash: the engine then reads a copy."""
    model = dense_chain(3, width)
    codes = np.random.default_rng(2).integers(-128, 128, (1, width)).astype(np.int8)
    places = [page_end(width) for _ in range(2)]
    with Device("rk3588") as device, device.load(model).context() as context:
        source, target = (Buffer.from_address(address, width, keep_alive=pages) for address, pages in places)
        context.bind_input("x", source)
        context.bind_output("y", target)
        for _ in range(2):
            source.array(np.int8)[:] = codes[0]
            context.execute()
            assert np.array_equal(target.array(np.int8), dense_values(model, codes)["y"][0])
            codes = np.roll(codes, 1, axis=1)


def test_an_output_that_is_read_again_may_end_there_too() -> None:
    """x -> y -> z where both y and z are outputs."""
    chained = dense_chain(2, 64)
    (program,) = chained.programs
    program = replace(program, outputs=("t0", "y"), memory=MemoryPlan({}, 0))
    model = replace(chained, programs=(program,))
    codes = np.random.default_rng(2).integers(-128, 128, (1, 64)).astype(np.int8)
    wanted = dense_values(chained, codes)
    address, pages = page_end(64)
    with Device("rk3588") as device, device.load(model).context() as context:
        middle = Buffer.from_address(address, 64, keep_alive=pages)
        context.bind_output("t0", middle)
        context.write("x", codes, raw=True)
        context.execute()
        assert np.array_equal(middle.array(np.int8), wanted["t0"][0])
        assert np.array_equal(context.read("y", dequantize=False), wanted["y"])


def test_memory_with_room_is_used_in_place() -> None:
    spec = TensorSpec("x", (1, 64), DType.INT8)
    program = Program(("x",), ("x",), {"x": spec}, (), MemoryPlan({}, 0))
    room = np.zeros(4096, np.int8)
    inside = room[100:164].reshape(1, 64)
    held, before, after = native_memory.with_room(program, {"x": inside}, {"x"})
    assert held["x"] is inside
    assert before == after == []


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYNPU_ENGINE", raising=False)
    assert choose_engine().name == "native"
    monkeypatch.setenv("ANYNPU_ENGINE", "reference")
    assert choose_engine().name == "reference"
    assert choose_engine("native").name == "native"
    own = NativeEngine()
    assert choose_engine(own) is own
    with Device("rk3588") as device:
        assert device.engine.name == "reference"
    monkeypatch.setenv("ANYNPU_ENGINE", "steam")
    with pytest.raises(Exception, match="steam"):
        Device("rk3588")


def product_program(m: int, k: int, n: int, batch: int = 2) -> Program:
    """One product of two activations."""
    quantization = Affine.per_tensor(1.0, 0)
    shapes = {"a": (batch, m, k), "b": (batch, k, n), "y": (batch, m, n)}
    tensors = {name: TensorSpec(name, shape, DType.INT8, quantization=quantization) for name, shape in shapes.items()}
    op = MatMul(Epilogue(np.array([1e-2], np.float32), np.zeros(1, np.int32)))
    return Program(("a", "b"), ("y",), tensors, (Layer("product", "MatMul", op, ("a", "b"), ("y",)),), MemoryPlan({}, 0))


def long_pool(side: int) -> Program:
    """One layer that would take very long: a window of nearly the whole image around every pixel."""
    tensors = {name: nhwc(name, (1, side, side, 4), DType.INT8) for name in ("t0", "t1")}
    reach = side // 2 - 1
    op = Pool("max", (2 * reach + 1,) * 2, (1, 1), (reach,) * 4)
    return Program(("t0",), ("t1",), tensors, (Layer("pool", "MaxPool", op, ("t0",), ("t1",)),), MemoryPlan({}, 0))


def test_a_long_product_in_pieces_gives_the_same() -> None:
    """Products of more than some billions of steps are cut into rows, over the ends of matrices too."""
    program = product_program(m=300, k=1000, n=1000)
    rng = np.random.default_rng(5)
    arrays = memory(program)
    for name in ("a", "b"):
        arrays[name][...] = rng.integers(-3, 4, arrays[name].shape)
    wanted = {name: array.copy() for name, array in arrays.items()}
    bound(program, arrays).run(RunControl())
    ReferenceEngine().prepare(program).bind(wanted).run(RunControl())
    assert np.array_equal(arrays["y"], wanted["y"])


def test_a_run_stops_inside_a_long_layer() -> None:
    """A small file can ask for a layer of minutes; its last rows are never reached."""
    program = long_pool(384)
    arrays = memory(program)
    control = RunControl()
    running = Thread(lambda: bound(program, arrays).run(control))
    wait_until(lambda: not untouched(arrays["t1"][0, 0, 0]), "the layer has begun")
    control.cancel()
    with pytest.raises(JobCancelled):
        running.finish()
    assert untouched(arrays["t1"][0, -1])


def widened(dilation: int) -> Program:
    """One convolution of 2 x 2 whose kernel reaches over *dilation* pixels of padding."""
    program = chain(1, 1)
    op = program.layers[0].op
    assert isinstance(op, Conv)
    wide = replace(op, weights=op.weights[:, :2, :2], dilations=(dilation, dilation), pads=(0, 0, dilation, dilation))
    return replace(program, layers=(replace(program.layers[0], op=wide),))


@pytest.mark.parametrize("dilation", [5, 700, 1 << 20])
def test_scratch_memory_is_counted_and_bounded(dilation: int) -> None:
    """A ring of 2^20 rows of 2^20 pixels would take 32 TiB; then no fast kernel is used, whose bytes are the same."""
    preparation = Preparation(stored=0)
    program = widened(dilation)
    executable = NativeEngine().prepare(program, preparation)
    assert isinstance(executable, NativeExecutable)
    assert executable.scratch_size <= min(64 << 20, preparation.taken)
    values = {name: np.full(spec.memory_shape, 3, np.int8) for name, spec in program.tensors.items()}
    expected = {name: array.copy() for name, array in values.items()}
    executable.bind(values).run(RunControl())
    ReferenceEngine().prepare(program).bind(expected).run(RunControl())
    assert np.array_equal(values["t1"], expected["t1"])


def test_scratch_memory_beyond_the_limit_is_rejected() -> None:
    preparation = Preparation(stored=0)
    preparation.taken = ROOM - (1 << 16)
    with pytest.raises(DeviceMemoryError):
        NativeEngine().prepare(widened(700), preparation)


@pytest.mark.parametrize("size", [1 << 62, (1 << 64) - 1])
def test_memory_that_the_system_does_not_have_is_a_typed_error(size: int) -> None:
    with pytest.raises(DeviceMemoryError, match="working memory"):
        native_arrays.aligned_bytes(size)


def test_the_reference_engine_visits_only_elements_inside_the_input() -> None:
    """The deadline is checked between them."""
    step = 1 << 20
    op = Pool(
        "average",
        (step, step),
        (step, step),
        (step - 1,) * 4,
        (1, 1),
        True,
        Epilogue(np.ones(1, np.float32), np.zeros(1, np.int32)),
    )
    spec = replace(nhwc("x", (1, 1, 1, 4), DType.INT8), quantization=Affine.per_tensor(1.0, 0))
    x, y = np.full((1, 1, 1, 4), 100, np.int8), np.zeros((1, 1, 1, 4), np.int8)
    checks: list[None] = []
    execute(op, [x], [spec], [spec.renamed("y")], [y], lambda: checks.append(None))
    assert len(checks) == 2
    with pytest.raises(DeviceTimeout):
        execute(op, [x], [spec], [spec.renamed("y")], [y], RunControl(timeout=0).check)
