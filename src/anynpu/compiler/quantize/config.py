"""Quantization configs: which steps the quantizer takes to keep a network's answers, and what became of each.

The steps, in order, each of which can be left out by name:

* ``mixed``: an output that joins values of different scale, such as boxes and scores, is float, so that each part has a scale of its own;
* ``heads``: what lies between the last convolution and an output keeps its whole range, whatever the algorithm;
* ``clip``: the range before a table is drawn in where the table is flat;
* ``groups``: channels of like range share a scale, where one scale for all would drown the small ones;
* ``float16``: a tensor is in float16 instead of groups, where that is better and takes less time, or where the chip's table has too few
  values for it;
* ``asymmetric``: weights have a zero point for each output channel, where the format has such;
* ``curves``: activations after convolutions work on the unrounded sum, where the chip has tables for them;
* ``refit``: weights and biases answer what the layers before them have lost, if samples that were held out agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

STEPS = ("mixed", "heads", "clip", "groups", "float16", "asymmetric", "curves", "refit")
"""The names of the steps that can be left out."""

ACCURACIES = ("fast", "default", "best")
"""Effort: ``fast`` leaves weight reconstruction out, ``best`` tries quantization configs and float16 layers against each other."""


@dataclass(frozen=True)
class Recipe:
    """What the quantizer does.

    :ivar groups: most groups of channels of one tensor; 1 for none
    :ivar heads: keep the whole range between the last convolution and an output
    :ivar clip: draw in ranges before tables where the table is flat
    :ivar float16: tensors may be in float16 instead of groups, or of a table that loses them
    :ivar asymmetric: weights with zero points
    :ivar refit: weight reconstruction weights to rounded inputs
    """

    algorithm: str = "percentile"
    percentile: float = 99.99
    groups: int = 2
    heads: bool = True
    clip: bool = True
    float16: bool = True
    asymmetric: bool = True
    refit: bool = True

    def __str__(self) -> str:
        ranges = f"{self.algorithm} {self.percentile:g}" if self.algorithm == "percentile" else self.algorithm
        parts = [ranges, f"{self.groups} groups" if self.groups > 1 else "no groups"]
        missing = [name for name in ("heads", "clip", "float16", "asymmetric", "refit") if not getattr(self, name)]
        return ", ".join([*parts, *(f"no {name}" for name in missing)])


def recipe_of(accuracy: str, algorithm: str, percentile: float, groups: int, without: Sequence[str]) -> Recipe:
    """The quantization config that a caller asks for; that of ``best`` is where its search begins.

    >>> str(recipe_of("default", "percentile", 99.99, 2, ["refit"]))
    'percentile 99.99, 2 groups, no refit'
    """
    recipe = Recipe(
        algorithm=algorithm,
        percentile=percentile,
        groups=1 if "groups" in without else max(groups, 1),
        heads="heads" not in without,
        clip="clip" not in without,
        float16="float16" not in without,
        asymmetric="asymmetric" not in without,
        refit="refit" not in without,
    )
    return replace(recipe, refit=False) if accuracy == "fast" else recipe
