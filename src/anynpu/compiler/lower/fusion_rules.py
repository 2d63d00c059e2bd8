"""What may be fused, that is, between which nodes no int8 code stands: by our own recipe, and as Rockchip's toolkit does it.

The toolkit's rules were measured on its simulator with layers alone (docs/vendor-graph.md has them row by row).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...chips import Chip

__all__ = ["OWN_RULES", "FusionRules", "toolkit_rules"]


@dataclass(frozen=True)
class FusionRules:
    """Where codes may be left out.

    :ivar chains: activations and arithmetic with constants on one tensor are one function, with one rounding at its end. Otherwise an
        activation that has a name is a function by itself
    :ivar sum_before_table: an Add goes into the convolution before it although a table follows, which then takes the rounded sum
    :ivar depthwise_sum: an Add goes into a depthwise convolution too
    :ivar depthwise_leak: so does a LeakyRelu
    :ivar earlier_summand: of two convolutions that are added, the one that comes first in the model is fused with the Add, and the other
        one's result has codes. Otherwise the later one is fused
    :ivar curves: an activation after a convolution works on the unrounded sum, where the chip has a table for it. Otherwise on the value
        that is rounded to 8 bits, as the open driver of the RK3588 allows
    :ivar codes: tensors that are codes in any case, since a model that is quantised already has them so
    """

    chains: bool = True
    sum_before_table: bool = False
    depthwise_sum: bool = True
    depthwise_leak: bool = True
    earlier_summand: bool = False
    curves: bool = True
    codes: frozenset[str] = frozenset()


OWN_RULES = FusionRules()

_DEPTHWISE_SUM_APART = ("rk3588", "rk3566", "rk3568")
"""Seen on RK3588 and RK3566; RK3568 has the NPU of the latter. RK3576, RK3562 and RV1106 were seen to fuse it."""


def toolkit_rules(chip: Chip) -> FusionRules:
    """The rules of Rockchip's toolkit for one chip."""
    return FusionRules(
        chains=False,
        sum_before_table=True,
        depthwise_sum=chip.name not in _DEPTHWISE_SUM_APART,
        depthwise_leak=False,
        earlier_summand=True,
    )
