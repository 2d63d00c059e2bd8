"""Small layer programs, built by hand, with known results."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from waiting import PATIENCE, wait_until

from anynpu.npu.control import RunControl
from anynpu.npu.engines.base import BoundProgram, CustomSteps, Step, no_custom_steps
from anynpu.npu.engines.preparation import Preparation
from anynpu.program import (
    Conv,
    Dense,
    Epilogue,
    Float,
    FloatOp,
    Layer,
    MemoryPlan,
    Model,
    Preprocess,
    Program,
    Weights,
)
from anynpu.tensor import Affine, DType, Layout, TensorSpec

Array = npt.NDArray[Any]

SCALE = 0.5


def plan(specs: Sequence[TensorSpec]) -> MemoryPlan:
    """Every tensor at a place of its own, 64 bytes apart at least."""
    offsets, offset = {}, 0
    for spec in specs:
        offsets[spec.name] = offset
        offset += -(-spec.nbytes // 64) * 64
    return MemoryPlan(offsets, offset)


def epilogue(channels: int) -> Epilogue:
    """Keeps the quantized values of a chain away from their limits, which would hide errors."""
    multiplier = 40 / (5476 * channels**0.5)
    return Epilogue(np.full(channels, multiplier, np.float32), np.zeros(channels, np.int32))


def dense_chain(layers: int = 3, width: int = 8, seed: int = 0) -> Model:
    """x -> t0 -> t1 ... -> y: int8 rows of *width* through *layers* fully connected layers; the quantization is SCALE, zero point 0."""
    random = np.random.default_rng(seed)
    names = ["x", *(f"t{index}" for index in range(layers - 1)), "y"]
    quantization = Affine.per_tensor(SCALE, 0)
    tensors = {name: TensorSpec(name, (1, width), DType.INT8, Layout.PLAIN, quantization) for name in names}
    steps = []
    for index, (source, target) in enumerate(itertools.pairwise(names)):
        op = Dense(
            random.integers(-128, 128, (width, width), np.int8),
            random.integers(-5, 6, width).astype(np.int32),
            random.integers(-500, 500, width).astype(np.int32),
            epilogue(width),
        )
        steps.append(Layer(f"dense{index}", "Dense", op, (source,), (target,)))
    program = Program(("x",), ("y",), tensors, tuple(steps), plan([tensors[name] for name in names[1:-1]]))
    return Model("rk3588", "w8a8", (program,), name="chain")


def dense_values(model: Model, codes: Array) -> dict[str, Array]:
    """The quantized values of every tensor of a chain, computed in the plainest way."""
    values = {"x": codes}
    for layer in model.programs[0].layers:
        op = layer.op
        assert isinstance(op, Dense)
        source = values[layer.inputs[0]].astype(np.int64)
        accumulator = source @ (op.weights.astype(np.int64) - op.weight_zero[:, None]).T + op.bias
        scaled = np.rint(accumulator.astype(np.float32) * op.epilogue.multiplier)
        values[layer.outputs[0]] = np.clip(scaled, -128, 127).astype(np.int8)
    return values


def image_model(size: tuple[int, int] = (4, 6), *, mean: float = 0.0, std: float = 1.0, name: str = "images") -> Model:
    """An image through two 1x1 convolutions that each swap channels 0 and 2; int8 of scale 1, zero point -128."""
    return shape_sets(size, mean=mean, std=std, name=name)


def shape_sets(*sizes: tuple[int, int], mean: float = 0.0, std: float = 1.0, name: str = "images") -> Model:
    """The same for several sizes."""
    zero = -128
    swap = np.zeros((3, 1, 1, 3), np.int8)
    swap[0, 0, 0, 2] = swap[1, 0, 0, 1] = swap[2, 0, 0, 0] = 1
    one = Epilogue(np.ones(3, np.float32), np.full(3, zero, np.int32))
    op = Conv(swap, np.zeros(3, np.int32), np.zeros(3, np.int32), one)
    programs = []
    for height, width in sizes:
        specs = [
            TensorSpec(tensor, (1, 3, height, width), DType.INT8, Layout.NHWC, Affine.per_tensor(1.0, zero))
            for tensor in (name, "swapped", "y")
        ]
        layers = (
            Layer("swap", "Conv", op, (name,), ("swapped",)),
            Layer("back", "Conv", op, ("swapped",), ("y",)),
        )
        programs.append(Program((name,), ("y",), {spec.name: spec for spec in specs}, layers, plan(specs[1:2])))
    preprocess = {name: Preprocess((mean,) * 3, (std,) * 3)} if (mean, std) != (0.0, 1.0) else {}
    return Model("rk3588", "w8a8", tuple(programs), name="image", preprocess=preprocess)


def float_model(weights: Array, *, held: DType = DType.FLOAT32) -> Model:
    """x [1, K] float32 -> MatMul with *weights* [K, N] (held as *held*) -> y [1, N] float32, as one float layer."""
    op = Float((FloatOp("MatMul", ("x", "w"), ("y",)),), {"w": Weights(weights.astype(held.storage))})
    tensors = {name: TensorSpec(name, (1, extent), DType.FLOAT32) for name, extent in zip("xy", weights.shape, strict=True)}
    return Model("rk3588", "fp16", (float_program(op, tensors),), name="float")


def float_program(
    op: Float, tensors: Mapping[str, TensorSpec], inputs: Sequence[str] = "x", outputs: Sequence[str] = "y"
) -> Program:
    """A program of one float layer."""
    layer = Layer("layer", op.names[0], op, tuple(inputs), tuple(outputs))
    return Program(tuple(inputs), tuple(outputs), dict(tensors), (layer,), MemoryPlan({}, 0))


class GatedEngine:
    """An engine whose layers do nothing but wait: each layer announces itself and goes on when the gate is open."""

    name = "gated"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.begun: list[tuple[int, int]] = []  # (address of the context's input, layer)
        self.controls: list[RunControl] = []  # of the jobs whose layers began
        self.prepared = 0

    def prepare(self, program: Program, preparation: Preparation | None = None) -> GatedExecutable:
        self.prepared += 1
        return GatedExecutable(self, program)

    def wait_entered(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE)

    def wait_cancelled(self) -> None:
        """Wait until the job whose layer began last is cancelled."""
        wait_until(lambda: self.controls[-1].cancelled, "the job is cancelled")


class GatedExecutable:
    def __init__(self, engine: GatedEngine, program: Program) -> None:
        self._engine = engine
        self._program = program

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        return BoundProgram([(index, self._step(index, arrays["x"].ctypes.data)) for index in range(len(self._program.layers))])

    def _step(self, index: int, key: int) -> Step:
        def step(control: RunControl) -> None:
            self._engine.begun.append((key, index))
            self._engine.controls.append(control)
            self._engine.entered.release()
            assert self._engine.gate.wait(PATIENCE)

        return step


class Thread(threading.Thread):
    """A thread that keeps what its function returned or raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.value: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:
            self.error = error

    def finish(self) -> Any:
        """Wait for the end and give the result, or raise what was raised."""
        self.join(PATIENCE)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.value
