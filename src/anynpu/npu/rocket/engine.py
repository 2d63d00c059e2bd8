"""The rocket engine: convolutions as command streams on the kernel's driver, all other layers on the native engine.

A model runs with the bytes of the software NPU, or not at all: when it is opened each layer with a stream runs once on random features and
is compared with the native engine, and in each run one layer in turn is. Experimental until a board has run it.

Each context has an open file of its own, which the driver serves with one core; three contexts use the three cores.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from ..._util.types import Array
from ...errors import DeviceResultError, OptionError
from ...program import MemoryPlan, Program
from ..control import RunControl
from ..engines.base import BoundProgram, CustomSteps, Executable, LayerTime, Step, no_custom_steps
from ..engines.native import NativeEngine
from ..engines.preparation import Preparation
from .kernel import DeviceFile, opener
from .lower import FEATURES
from .runner import Runner
from .segments import Part, Streams, plan

__all__ = ["VERIFY_VARIABLE", "WITHOUT_VARIABLE", "RocketEngine", "RocketExecutable", "expected_output"]

log = logging.getLogger("anynpu.npu.rocket")

VERIFY_VARIABLE = "ANYNPU_ROCKET_VERIFY"
WITHOUT_VARIABLE = "ANYNPU_ROCKET_WITHOUT"
_VERIFICATIONS = ("turn", "all", "off")


class RocketEngine:
    """Convolutions on the NPU of an RK3588 through the kernel's driver, everything else in C on the CPU.

    :param device: path of the device node, ``emulated``, or empty for the node that this machine has
    :param threads: host threads that a run uses for layers on the CPU
    :param without: ``("lookups",)`` runs layers with an activation in lookup tables on the CPU; by default the environment variable
        ``ANYNPU_ROCKET_WITHOUT`` decides
    :param verify: what is compared with the native engine in each run: one layer in ``turn`` (the default), ``all`` layers, or nothing
        (``off``); by default the environment variable ``ANYNPU_ROCKET_VERIFY`` decides
    :raises DeviceUnavailable: there is no such device, or it may not be opened

    >>> RocketEngine("emulated").name
    'rocket'
    """

    name = "rocket"
    eager = True
    """Programs are prepared when a model is opened."""

    def __init__(
        self, device: str = "", *, threads: int | None = None, verify: str | None = None, without: Iterable[str] | None = None
    ) -> None:
        named = os.environ.get(WITHOUT_VARIABLE, "").split(",") if without is None else without
        self.without = frozenset(name.strip() for name in named if name.strip())
        if not self.without <= set(FEATURES):
            raise OptionError(
                f"{WITHOUT_VARIABLE} is '{','.join(sorted(self.without))}'", hint=f"use one of {', '.join(FEATURES)}"
            )
        self._native = NativeEngine(threads=threads)
        self._open = opener(device)
        self.verify = verify or os.environ.get(VERIFY_VARIABLE) or "turn"
        if self.verify not in _VERIFICATIONS:
            raise OptionError(f"{VERIFY_VARIABLE} is '{self.verify}'", hint=f"use one of {', '.join(_VERIFICATIONS)}")

    def prepare(self, program: Program, preparation: Preparation | None = None) -> RocketExecutable:
        """Write the streams of a program, and compare each layer with the native engine.

        :raises DeviceResultError: the NPU gives other bytes; the message names the layer
        """
        preparation = preparation or Preparation()
        streams = plan(program, self.without)
        executable = RocketExecutable(streams, self._native, preparation, self._open, self.verify)
        log.info(
            "%d of %d layers run as command streams (%.1f %% of the multiplications), with %d changes of layout",
            len(streams.lowered),
            len(program.layers),
            100 * streams.share,
            streams.conversions,
        )
        return executable


def expected_output(
    native: NativeEngine, program: Program, index: int, inputs: Mapping[str, Array], preparation: Preparation | None = None
) -> Array:
    """The output of a layer by the native engine."""
    layer = program.layers[index]
    alone = Program(layer.inputs, layer.outputs, program.tensors, (layer,), MemoryPlan({}, 0))
    output = np.empty(program.tensors[layer.outputs[0]].memory_shape, np.int8)
    bound = native.prepare(alone, preparation or Preparation()).bind({**inputs, layer.outputs[0]: output})
    bound.run(RunControl())
    bound.close()
    return output


class RocketExecutable:
    """A program as streams and layers on the CPU.

    :ivar streams: which layers are what, and why
    """

    def __init__(
        self,
        streams: Streams,
        native: NativeEngine,
        preparation: Preparation,
        open_file: Callable[[], DeviceFile],
        verify: str,
    ) -> None:
        self.streams = streams
        self._native = native
        self._preparation = preparation
        self._open = open_file
        self.verify = verify
        self._lock = threading.Lock()
        self._spare: list[Runner] = []
        self._cpu: dict[int, Executable] = {
            part.first: native.prepare(streams.on_cpu(part), preparation) for part in streams.parts if not part.streams
        }
        if streams.lowered:
            runner = Runner(streams, open_file())
            try:
                for index in streams.lowered:
                    self._verify_new(runner, index)
            except BaseException:
                runner.close()
                raise
            self._spare.append(runner)

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        """Tie the program to the memory of one context, with an open file of its own."""
        with self._lock:
            runner = self._spare.pop() if self._spare else None
        if runner is None and self.streams.lowered:
            runner = Runner(self.streams, self._open())
        bound: dict[int, BoundProgram] = {}
        for part in self.streams.parts:
            if not part.streams:
                bound[part.first] = self._cpu[part.first].bind(arrays, _shifted_custom(custom, part.first))
        return _RocketBound(self, runner, bound, arrays)

    def _verify_new(self, runner: Runner, index: int) -> None:
        """Run a layer on random features."""
        layer = self.streams.program.layers[index]
        for name in layer.inputs:
            runner.fill(name)
        runner.run_layer(index, RunControl())
        self.verify_layer(runner, index, RunControl())

    def verify_layer(self, runner: Runner, index: int, control: RunControl) -> None:
        """Compare the output of a layer, as it is in the device's memory, with what the native engine makes of its input there.

        :raises DeviceResultError: they differ
        """
        program = self.streams.program
        layer = program.layers[index]
        output = runner.read(layer.outputs[0], control)
        held = {name: runner.read(name, control) for name in layer.inputs}
        different = int(np.count_nonzero(output != expected_output(self._native, program, index, held, self._preparation)))
        if different:
            hint = (
                "use another device; run `anynpu selftest --device rocket` and send its report, so that the rule can be corrected"
            )
            if any(part.convolution.curve is not None for part in self.streams.lowered[index]):
                hint = f"{WITHOUT_VARIABLE}=lookups runs layers with lookup tables on the CPU; {hint}"
            raise DeviceResultError(
                f"the NPU gives other bytes than the CPU for layer '{layer.name}': {different} of {output.size} differ", hint=hint
            )


class _RocketBound(BoundProgram):
    """A program with the memory of one context, and an open file. Runs one job at a time."""

    def __init__(
        self,
        executable: RocketExecutable,
        runner: Runner | None,
        cpu: Mapping[int, BoundProgram],
        arrays: Mapping[str, Array],
    ) -> None:
        super().__init__(())
        self._executable = executable
        self._runner = runner
        self._cpu = cpu
        self._arrays = arrays
        self._order = tuple(executable.streams.lowered)
        self._turn = 0
        self._closer = None if runner is None else weakref.finalize(self, runner.close)

    def run(
        self,
        control: RunControl,
        *,
        between: Callable[[int], None] | None = None,
        clock: list[LayerTime] | None = None,
        threads: int = 1,
    ) -> None:
        """Execute all parts; see :meth:`BoundProgram.run`. A segment of streams counts as one layer."""
        for part in self._executable.streams.parts:
            if part.streams:
                self._steps = ((part.first, self._segment(part)),)
                super().run(control, between=between, clock=clock)
                continue
            first = part.first
            seen = None if between is None else _shifted(between, first)
            times: list[LayerTime] | None = None if clock is None else []
            self._cpu[first].run(control, between=seen, clock=times, threads=threads)
            if clock is not None and times is not None:
                clock += [LayerTime(entry.layer + first, entry.ns) for entry in times]
        self._verify(control)

    def _segment(self, part: Part) -> Step:
        def step(control: RunControl) -> None:
            assert self._runner is not None
            self._runner.run(part, self._arrays, control)

        return step

    def _verify(self, control: RunControl) -> None:
        """Compare one layer in turn, or all."""
        if self._runner is None or self._executable.verify == "off":
            return
        if self._executable.verify == "all":
            chosen = self._order
        else:
            chosen = (self._order[self._turn % len(self._order)],)
            self._turn += 1
        for index in chosen:
            control.check()
            self._executable.verify_layer(self._runner, index, control)

    def close(self) -> None:
        """Close the file, and end the threads of layers on the CPU."""
        for bound in self._cpu.values():
            bound.close()
        if self._closer is not None:
            self._closer()


def _shifted(between: Callable[[int], None], first: int) -> Callable[[int], None]:
    return lambda index: between(index + first)


def _shifted_custom(custom: CustomSteps, first: int) -> CustomSteps:
    return lambda index, arrays: custom(index + first, arrays)
