"""What observers of all vendors keep about the objects of a program: who made them, who is inside, and what became of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from ...tensor import Layout, TensorSpec
from .stacks import Stack
from .values import Described

__all__ = ["VALUE_CHECKS", "Graveyard", "Made", "described"]

VALUE_CHECKS = 3
"""How often the values of one input are judged: a program does the same with each picture."""

MAX_REMEMBERED = 4096
"""Objects that are gone and still known by their handle."""


@dataclass(eq=False)
class Made:
    """A context, a network or a group.

    :ivar noun: what the vendor calls it
    :ivar inside: which thread is in which call with it
    """

    noun: str
    handle: int
    origin: Stack
    inside: dict[int, str] = field(default_factory=dict)
    judged: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.noun} {self.handle:#x}"

    def enter(self, call: str) -> str | None:
        """The calling thread enters; which call another thread is in with it, if any is."""
        me = threading.get_ident()
        self.inside[me] = call
        if len(self.inside) == 1:
            return None
        return next((name for thread, name in list(self.inside.items()) if thread != me), None)

    def leave(self) -> None:
        """The calling thread leaves."""
        self.inside.pop(threading.get_ident(), None)

    def may_judge(self, index: int) -> bool:
        """Whether the values of an input shall be looked at again."""
        count = self.judged.get(index, 0)
        self.judged[index] = count + 1
        return count < VALUE_CHECKS


class Graveyard:
    """Objects that were destroyed, by handle; the oldest are forgotten."""

    def __init__(self) -> None:
        self._gone: OrderedDict[int, tuple[str, Stack]] = OrderedDict()

    def bury(self, handle: int, noun: str, origin: Stack) -> None:
        """Something was destroyed."""
        self._gone[handle] = (noun, origin)
        while len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)

    def raise_again(self, handle: int) -> None:
        """The handle was given again."""
        self._gone.pop(handle, None)

    def find(self, handle: int) -> tuple[str, Stack] | None:
        """What the handle stood for, if it did."""
        return self._gone.get(handle)


def described(
    source: TensorSpec,
    target: TensorSpec,
    *,
    codes: bool,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> Described:
    """What data as *source* for the engine's *target* is said to be."""
    low = high = None
    step = 0.0
    quantization = target.quantization
    if quantization is not None and quantization.is_per_tensor:
        first, last = target.dtype.limits
        step = quantization.scale
        low, high = ((code - quantization.zero_point) * step for code in (first, last))
    return Described(
        source.name,
        source.dtype.value,
        source.shape,
        source.layout is Layout.NHWC,
        codes,
        mean,
        std,
        low,
        high,
        step,
    )
