"""How long one call of the matmul API takes.

The form follows a public benchmark of some two thousand products on one core of RK3588::

    busy   = max(MACs / rate, (B * passes + A) / bandwidth + C / result bandwidth)
    native = call + busy + min(busy, warm-up)
    normal = native + elements of C * cost of their type            (more than one row)

A pass reads B once; there is one for each part of A that fits into the buffer. int4 in the normal layout goes row by row instead: B is read
once per row of A. The layout of B makes no difference once it was set. Other chips have the same form with their own bandwidth, and state
that they are extrapolated.

>>> from anynpu import chips
>>> product = predict_matmul(chips.get("rk3588"), 1, 2048, 2048)
>>> product.bound.value, 550 < product.time_us < 750
('memory', True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ...errors import DeviceError
from .. import Chip
from .layers import MacArray
from .model import CONTENTION, Bound, Confidence, LayerPrediction
from .parameters import TimingProfile, timing_profile

Layout = Literal["native", "normal"]

_BITS = {"int4": 4, "int8": 8, "int16": 16, "float16": 16, "bfloat16": 16, "float32": 32, "int32": 32}
_RESULTS = {"int4": "int16", "int8": "int32", "int16": "int32", "float16": "float32"}
_SHORT = {"fp16": "float16", "fp32": "float32", "bf16": "bfloat16", "i4": "int4", "i8": "int8", "i16": "int16", "i32": "int32"}

_CALL_NS = 30_900.0
_WARM_UP_NS = 62_800.0
_BANDWIDTH = 7.81
_RESULT_BANDWIDTH = 5.44
_BUFFER_SHARE = 0.42
"""The part of the on-chip buffer that holds A."""

_EFFICIENCY = 0.9
_NORMAL_NS = {"float16": 4.81, "int8": 5.98, "int4": 3.66, "int16": 5.98}
"""What an element of C costs more in the normal layout, by the type of A; the CPU changes the layout."""

_ROW_NS = 1475.0
"""What a row of an int4 product costs more in the normal layout."""

_SPREAD = 0.15
_SMALL_SPREAD = 0.4
_EXTRAPOLATED_SPREAD = 0.35
_SMALL_US = 200.0


@dataclass(frozen=True)
class MatmulTypes:
    """The types of A, B and C."""

    a: str
    b: str
    c: str

    def __str__(self) -> str:
        return f"{self.a}*{self.b}->{self.c}"


@dataclass(frozen=True)
class MatmulPrediction(LayerPrediction):
    """A matmul call on a chip.

    :ivar confidence: how far to trust it, and the range that holds four of five like products
    """

    confidence: Confidence = field(default_factory=lambda: Confidence("extrapolated"))


def parse_types(text: str) -> MatmulTypes:
    """Types as ``int8*int8->int32``, or the type of A alone.

    >>> str(parse_types("fp16*int4->fp32")), str(parse_types("int8"))
    ('float16*int4->float32', 'int8*int8->int32')
    """
    factors, _, result = text.replace(" ", "").replace("x", "*").lower().partition("->")
    left, _, right = factors.partition("*")
    names = [_SHORT.get(part, part) for part in (left, right or left, result)]
    names[2] = names[2] or _RESULTS.get(names[0], "")
    if names[0] not in _RESULTS or any(name not in _BITS for name in names):
        raise DeviceError(
            f"there is no matmul of {text}",
            hint="write the types of A, B and C, such as int8*int8->int32 or float16*int4->float32",
        )
    return MatmulTypes(*names)


def predict_matmul(
    chip: Chip,
    m: int,
    k: int,
    n: int,
    *,
    dtype: str = "int8",
    weight_type: str | None = None,
    result_type: str | None = None,
    layout: Layout = "native",
    cores: int = 1,
    profile: TimingProfile | None = None,
) -> MatmulPrediction:
    """How long one matmul call [m, k] x [k, n] takes.

    :param dtype: of the left factor: ``int4``, ``int8``, ``int16`` or ``float16``
    :param weight_type: of the right factor, where it is another
    :param result_type: of the product, where it is not the usual one
    :param layout: of A and C
    :param cores: cores that share the columns of B
    """
    if dtype not in _RESULTS:
        raise DeviceError(f"there is no matmul of {dtype}", hint="there is int4, int8, int16 and float16")
    if min(m, k, n) < 1:
        raise DeviceError(f"{m} x {k} x {n} is no matmul", hint="all sizes are 1 or more")
    if not 1 <= cores <= chip.cores:
        raise DeviceError(f"{chip.name} has {chip.cores} cores, not {cores}", hint=f"use 1 to {chip.cores}")
    profile = profile or timing_profile(chip)
    scale = profile.parameters.scale
    reference = timing_profile(_reference())
    memory = profile.floats.weight_bytes_per_ns / reference.floats.weight_bytes_per_ns
    floors = profile.parameters.floor_ns / reference.parameters.floor_ns
    slower = reference.floats.cpu_macs_per_ns / profile.floats.cpu_macs_per_ns
    array = MacArray(chip, dtype)
    a = m * k * _BITS[dtype] / 8
    b = k * n * _BITS[weight_type or dtype] / 8
    c = m * n * _BITS[result_type or _RESULTS[dtype]] / 8
    by_rows = layout == "normal" and dtype == "int4" and m > 1
    passes = m if by_rows else math.ceil(a / (_BUFFER_SHARE * chip.buffer_bytes))
    contention = (1.0 + CONTENTION * (cores - 1)) / cores
    compute = m * k * n / (array.per_cycle * chip.clock_hz / 1e9 * _EFFICIENCY) / cores
    traffic = ((b * passes + a) / (_BANDWIDTH * memory) + c / (_RESULT_BANDWIDTH * memory)) * contention
    busy = max(compute, traffic)
    spent = _CALL_NS * floors + busy + min(busy, _WARM_UP_NS * floors)
    changed = 0.0
    if layout == "normal" and m > 1:
        changed = (m * n * _NORMAL_NS[dtype] + (m * _ROW_NS if by_rows else 0.0)) * slower
    bound = Bound.COMPUTE if compute >= traffic else Bound.MEMORY
    if changed > busy:
        bound = Bound.CPU
    elif spent > 2.0 * busy:
        bound = Bound.FLOOR
    time_us = max(scale * (spent + changed) / 1000.0, 0.001)
    peak = array.per_cycle * chip.clock_hz / 1e9
    gigahertz = chip.clock_hz / 1e9
    return MatmulPrediction(
        name="matmul",
        kind="MatMul",
        time_us=time_us,
        bound=bound,
        npu_cycles=round(m * k * n / array.per_cycle),
        ddr_cycles=round((a + b * passes + c) / profile.parameters.bytes_per_ns * gigahertz),
        read_bytes=round(a + b * passes),
        written_bytes=round(c),
        mac_share=min(m * k * n / (time_us * 1000.0 * peak * cores), 1.0),
        core_shares=(1.0 / cores,) * cores,
        does="MatMul",
        confidence=_confidence(chip, time_us, cores),
    )


def _reference() -> Chip:
    from .. import get

    return get("rk3588")


def _confidence(chip: Chip, time_us: float, cores: int) -> Confidence:
    spread = _SPREAD if time_us > _SMALL_US else _SMALL_SPREAD
    if chip.name != _reference().name:
        return Confidence("extrapolated", "products were measured on rk3588 only", None, math.hypot(spread, _EXTRAPOLATED_SPREAD))
    if cores > 1:
        return Confidence("extrapolated", "products were measured on one core", None, math.hypot(spread, _EXTRAPOLATED_SPREAD))
    return Confidence("calibrated", "", 0.05, spread)
