"""What each layer makes the NPU do, in numbers that do not depend on how fast the chip is.

A layer is one or more *tasks*: most are one; a table that is more than one activation needs a second pass over the result, and a tensor
that leaves the NPU's channel blocks needs a change of layout. :mod:`anynpu.chips.timing.model` turns tasks into time.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LayerWork", "ProgramWork", "Task"]


@dataclass(frozen=True)
class Task:
    """One pass of the NPU (or of the CPU).

    :ivar macs: multiply-accumulates, padded to the MAC array
    :ivar atoms: groups of 32 bytes of results that go through a look-up table
    :ivar read: bytes of activations that are read
    :ivar weights: bytes of weights that are read
    :ivar again: bytes that are read more than once because the buffer is small
    :ivar written: bytes that are written
    :ivar slow: elements that a slow operator of an int8 program handles
    :ivar cpu: elements that the CPU handles
    :ivar calls: hand-overs to the CPU and back
    :ivar cpu_macs: multiply-accumulates of a convolution on the CPU
    :ivar normalised: elements of a normalisation
    :ivar moved: elements that a transpose or a reduction touches
    :ivar scattered: elements whose channels a Reshape tears out of their blocks
    :ivar heads: products of queries and keys of an attention layer
    :ivar scores: elements of its score matrices; more where a matrix does not fit into the buffer
    """

    macs: float = 0.0
    atoms: float = 0.0
    read: float = 0.0
    weights: float = 0.0
    written: float = 0.0
    slow: float = 0.0
    cpu: float = 0.0
    again: float = 0.0
    calls: float = 0.0
    cpu_macs: float = 0.0
    normalised: float = 0.0
    moved: float = 0.0
    scattered: float = 0.0
    heads: float = 0.0
    scores: float = 0.0


@dataclass(frozen=True)
class LayerWork:
    """A layer's tasks; none where the layer costs nothing (it is fused, or only an address).

    :ivar kind: what perf tables print
    :ivar macs: multiply-accumulates without padding
    :ivar splits: one job shares this layer among several cores
    :ivar does: what it mainly does, by the name of an operator
    """

    name: str
    kind: str
    tasks: tuple[Task, ...]
    macs: int = 0
    splits: bool = False
    does: str = ""


@dataclass(frozen=True)
class ProgramWork:
    """The work of all layers, in their order.

    :ivar dtype: what the NPU computes in: ``int8``, ``int16`` or ``float16``
    :ivar own_weights: its weights have a bandwidth of their own
    """

    chip: str
    dtype: str
    layers: tuple[LayerWork, ...]
    weight_bytes: int = 0
    memory_bytes: int = 0
    own_weights: bool = False
