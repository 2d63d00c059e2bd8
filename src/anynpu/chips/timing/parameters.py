"""How fast the chips are: the parameters of the timing model, and where they come from. Data only.

Six numbers per chip for int8 networks, three more for float16 and the CPU. They were fitted by ``tools/timing_fit.py`` to the frames per
second that the vendor publishes for one NPU core; the numbers themselves are not part of the project. Chips without published numbers are
derived from what their hardware is said to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..chip import Chip


@dataclass(frozen=True)
class TimingParameters:
    """The numbers of the timing model for one NPU core.

    :ivar macs_per_ns: padded int8 multiply-accumulates in a nanosecond
    :ivar bytes_per_ns: bytes that go to and from memory in a nanosecond
    :ivar lookup_ns: time for 32 bytes of results that go through a look-up table
    :ivar floor_ns: the shortest time that a task of the NPU takes
    :ivar slow_ns: time for an element of a slow operator (Softmax, Transpose, reductions)
    :ivar cpu_ns: time for an element of a layer on the chip's CPU
    :ivar scale: a board's latency is ``scale * model + offset``; 1 and 0 for a chip
    :ivar offset_ns: see *scale*
    """

    macs_per_ns: float
    bytes_per_ns: float
    lookup_ns: float
    floor_ns: float
    slow_ns: float
    cpu_ns: float
    scale: float = 1.0
    offset_ns: float = 0.0


@dataclass(frozen=True)
class FloatParameters:
    """The numbers of float16 layers, of attention, and of layers on the board's CPU.

    :ivar weight_bytes_per_ns: bytes of weights that are read in a nanosecond
    :ivar norm_ns: time for an element of a normalization
    :ivar move_ns: time for an element of a transpose or a reduction
    :ivar score_ns: time for a score of attention
    :ivar head_ns: time that each head of attention takes besides
    :ivar cpu_ns: time for an element on the CPU
    :ivar cpu_macs_per_ns: multiply-accumulates of a convolution on the CPU in a nanosecond
    :ivar handover_ns: time that the change to the CPU and back takes
    """

    weight_bytes_per_ns: float
    norm_ns: float
    move_ns: float
    score_ns: float
    head_ns: float
    cpu_ns: float
    cpu_macs_per_ns: float
    handover_ns: float


_MOVE_PER_NORM = 0.921
_SCORE_PER_NORM = 1.743
_HEAD_FLOORS = 0.339
_HANDOVER_FLOORS = 1.73
_CPU_ELEMENT_NS = 1.95
_NORM_PER_FLOOR = 0.083 / 1000
"""A normalized element in relation to the floor, on RK3588; chips without measurements are taken to be alike."""

_CPU_MACS_PER_NS = 0.45
"""In-order cores, which the chips without numbers have."""


def float_parameters(
    numbers: TimingParameters,
    weight_bytes_per_ns: float,
    norm_ns: float,
    cpu_macs_per_ns: float,
) -> FloatParameters:
    """All numbers of float16 layers from the few that differ from chip to chip; the ratios between the others are the same on all."""
    return FloatParameters(
        weight_bytes_per_ns=weight_bytes_per_ns,
        norm_ns=norm_ns,
        move_ns=_MOVE_PER_NORM * norm_ns,
        score_ns=_SCORE_PER_NORM * norm_ns,
        head_ns=_HEAD_FLOORS * numbers.floor_ns,
        cpu_ns=_CPU_ELEMENT_NS,
        cpu_macs_per_ns=cpu_macs_per_ns,
        handover_ns=_HANDOVER_FLOORS * numbers.floor_ns,
    )


@dataclass(frozen=True)
class TimingProfile:
    """Parameters with their provenance.

    :ivar chip: the catalogue's name
    :ivar calibrated: fitted to measurements of this chip; otherwise derived from hardware numbers or from a relative
    :ivar source: what the numbers rest on
    :ivar sdk: version of the vendor's software that was measured
    :ivar models: number of measured models
    :ivar median_error: median of the relative errors in leave-one-out cross-validation
    :ivar worst_error: largest of them
    :ivar outliers: models that the model form does not explain, with their relative error
    :ivar relative: the calibrated chip that these numbers were taken from, if any
    :ivar float_numbers: those of float16 layers and of the CPU; None: derived from the others
    :ivar float_error: median of the relative errors of float16 models that were left out; None where none were fitted
    """

    chip: str
    parameters: TimingParameters
    calibrated: bool
    source: str
    sdk: str = ""
    models: int = 0
    median_error: float | None = None
    worst_error: float | None = None
    outliers: Mapping[str, float] = field(default_factory=dict)
    relative: str = ""
    float_numbers: FloatParameters | None = None
    float_error: float | None = None

    @property
    def floats(self) -> FloatParameters:
        """The numbers of float16 layers and of the CPU, derived where they were not fitted."""
        if self.float_numbers is not None:
            return self.float_numbers
        numbers = self.parameters
        return float_parameters(numbers, numbers.bytes_per_ns, _NORM_PER_FLOOR * numbers.floor_ns, _CPU_MACS_PER_NS)


_SDK = "2.3.2"
_PUBLISHED = "frames per second of one core that the vendor's model zoo publishes"


def _published(
    chip: str,
    parameters: TimingParameters,
    floats: tuple[float, float, float],
    float_error: float,
    median_error: float,
    worst_error: float,
    outliers: Mapping[str, float],
) -> TimingProfile:
    """A fitted profile; *floats* are bandwidth of weights, time for a normalized element, and MACs of the CPU in a nanosecond."""
    numbers = float_parameters(parameters, *floats)
    return TimingProfile(
        chip, parameters, True, _PUBLISHED, _SDK, 18, median_error, worst_error, outliers, "", numbers, float_error
    )


_PROFILES: Mapping[str, TimingProfile] = {
    profile.chip: profile
    for profile in (
        _published(
            "rk3588",
            TimingParameters(891.8, 8.895, 18.67, 23140.0, 0.8857, 0.6753),
            (8.71, 1.888, 0.972),
            0.085,
            0.030,
            0.51,
            {"MobileNetV2": 0.51, "RetinaFace mobile 320": -0.48},
        ),
        _published(
            "rk3576", TimingParameters(828.9, 8.896, 12.26, 20010.0, 0.502, 1.0), (5.45, 1.250, 1.067), 0.118, 0.016, 0.14, {}
        ),
        _published(
            "rk3566",
            TimingParameters(438.1, 2.892, 46.03, 60280.0, 0.379, 1.956),
            (3.57, 14.16, 0.420),
            0.082,
            0.017,
            0.24,
            {"MobileNetV2": 0.17, "RetinaFace mobile 320": -0.24},
        ),
        _published(
            "rk3562", TimingParameters(449.0, 4.541, 40.08, 24960.0, 0.9981, 1.47), (5.58, 2.726, 0.492), 0.222, 0.032, 0.15, {}
        ),
    )
}

_SAME_NPU = {"rk3568": "rk3566"}

_NO_ATTENTION = ("rk3566", "rk3568", "rv1103", "rv1106")
"""Chips for which the vendor's list of operators names no attention, and whose Softmax runs on the CPU."""


def fuses_attention(chip: Chip) -> bool:
    """Whether a chip does attention as one layer of its NPU."""
    return chip.name not in _NO_ATTENTION


# What the calibrated chips have in common, for those without measurements.
_MAC_EFFICIENCY = 0.87
_MACS_PER_BYTE = 100.0
_LOOKUP_CYCLES_AT_1024 = 18.5
_FLOOR_CYCLES = 25_000.0
_SLOW_CYCLES = 0.7
_CPU_NS = 1.0
_VIP_FLOOR_CYCLES = 1_300.0
"""A layer of a VIP; public cycle counts of tiny networks on A733."""

_VIP_SCORE_CYCLES = 42.0
_VIP_NORM_CYCLES = 1.9
_VIP_WEIGHT_BYTES_PER_CYCLE = 7.0
_VIP_WEIGHTS = {"a733": 7.0, "t527": 2.2}
"""Bytes of weights per nanosecond, from the single networks that were reported."""

_VIP_REPORTED = {"a733": 9, "t527": 5}
"""How many of these networks are explained to within 30 %."""


def derived_parameters(chip: Chip) -> TimingParameters:
    """Parameters from hardware numbers alone: MACs, clock, and what the calibrated chips have in common.

    >>> from anynpu import chips
    >>> round(derived_parameters(chips.get("rv1106")).macs_per_ns)
    223
    """
    gigahertz = chip.clock_hz / 1e9
    macs = chip.macs_per_cycle["int8"]
    rate = _MAC_EFFICIENCY * macs * gigahertz
    return TimingParameters(
        macs_per_ns=rate,
        bytes_per_ns=rate / _MACS_PER_BYTE,
        lookup_ns=_LOOKUP_CYCLES_AT_1024 * 1024 / macs / gigahertz,
        floor_ns=(_FLOOR_CYCLES if chip.vip is None else _VIP_FLOOR_CYCLES) / gigahertz,
        slow_ns=_SLOW_CYCLES / gigahertz,
        cpu_ns=_CPU_NS,
    )


def timing_profile(chip: Chip) -> TimingProfile:
    """The profile of a chip: fitted where numbers are published, else derived.

    >>> from anynpu import chips
    >>> timing_profile(chips.get("rk3588")).calibrated, timing_profile(chips.get("t527")).calibrated
    (True, False)
    """
    known = _PROFILES.get(chip.name)
    if known is not None:
        return known
    relative = _SAME_NPU.get(chip.name)
    if relative is not None:
        base = _PROFILES[relative]
        source = f"the numbers are those of {relative}, which has the same NPU"
        return replace(base, chip=chip.name, calibrated=False, source=source, outliers={}, relative=relative)
    numbers = derived_parameters(chip)
    if chip.vip is None:
        return TimingProfile(chip.name, numbers, False, "MACs and clock of the hardware; no latency is published")
    reported = _VIP_REPORTED.get(chip.name, 0)
    source = "single networks that users reported" if reported else "MACs and clock of the hardware; no latency is published"
    return TimingProfile(chip.name, numbers, False, source, models=reported, float_numbers=_vip_floats(chip, numbers))


def _vip_floats(chip: Chip, numbers: TimingParameters) -> FloatParameters:
    """Attention, normalizations and weights of a VIP, in cycles; they hold for all its types."""
    gigahertz = chip.clock_hz / 1e9
    return FloatParameters(
        weight_bytes_per_ns=_VIP_WEIGHTS.get(chip.name, _VIP_WEIGHT_BYTES_PER_CYCLE * gigahertz),
        norm_ns=_VIP_NORM_CYCLES / gigahertz,
        move_ns=_MOVE_PER_NORM * _VIP_NORM_CYCLES / gigahertz,
        score_ns=_VIP_SCORE_CYCLES / gigahertz,
        head_ns=0.0,
        cpu_ns=_CPU_ELEMENT_NS,
        cpu_macs_per_ns=_CPU_MACS_PER_NS,
        handover_ns=50.0 * numbers.floor_ns,
    )
