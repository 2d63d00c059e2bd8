"""What a case of an operator is, and the register of them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from .onnx_builders import Net

Build = Callable[[Net], None]


@dataclass(frozen=True)
class Case:
    """A small model and how closely integers must follow it.

    :ivar steps: largest error of the int8 model, in steps of its output
    :ivar integer: whether all of it is computed in integers (True), or its last operator in float (False)
    :ivar kinds: the layers that it becomes, as perf tables print them
    :ivar low: smallest input value
    """

    build: Build
    opset: int = 13
    steps: float = 1.1
    integer: bool = True
    kinds: tuple[str, ...] | None = None
    low: float = -1.0
    high: float = 1.0

    def proto(self) -> onnx.ModelProto:
        net = Net(self.opset)
        self.build(net)
        return net.proto()


class Cases(dict[str, Case]):
    """Cases by name."""

    def add(
        self,
        name: str,
        build: Build,
        *,
        opset: int = 13,
        steps: float = 1.1,
        integer: bool = True,
        kinds: tuple[str, ...] | None = None,
        low: float = -1.0,
        high: float = 1.0,
    ) -> None:
        """Enter a case under a name that is still free."""
        assert name not in self, name
        self[name] = Case(build, opset, steps, integer, kinds, low, high)
