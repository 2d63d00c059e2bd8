"""What the compiler states with a warning: facts that affect programs or results and cannot be seen in the compiled file."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..chips import Chip
from ..program import Program
from ..vendors import Format
from .graph import Graph
from .importers.quantized_models import QdqWeights
from .quantize.lint import Finding, MixedOutput
from .quantize.search import Score

_log = logging.getLogger("anynpu.compiler")

_GOOD = 0.99
"""The cosine from which no single activation is worth a warning."""

_KEPT = 0.98
"""A metric below this, or the cosine of an output, is worth a warning."""

_KEPT_LEAD = 0.8
"""The lead of a class over the next one may shrink this far before answers change."""

_MOST_OUTPUTS = 4


def warn_of_unread_inputs(proto: Any, graph: Graph) -> None:
    """Name the inputs that the compiled model does not have: a program that feeds them fails."""
    known = {*graph.inputs, *(tensor.name for tensor in proto.graph.initializer)}
    unread = [value.name for value in proto.graph.input if value.name not in known]
    if unread:
        names = ", ".join(f"'{name}'" for name in unread)
        _log.warning(
            "no layer reads the values of input %s: the compiled model does not have it, and programs must not feed it", names
        )


def warn_of_wide_weights(weights: Mapping[str, QdqWeights]) -> None:
    """Name the weights of a quantized model that are wider than int8: they are rounded again, so that its quantized values are not kept."""
    wide = [
        f"'{name}' is {entry.codes.dtype.name}"
        for name, entry in weights.items()
        if entry.codes.ndim > 1 and entry.codes.itemsize > 1
    ]
    if wide:
        more = f" (and {len(wide) - 1} more)" if len(wide) > 1 else ""
        _log.warning("weights are int8 here: %s%s, which is rounded to int8 again and loses accuracy", wide[0], more)


def warn_of_later_sizes(programs: Sequence[Program]) -> None:
    """Programs size their buffers by the first set of shapes: report it where another one is larger."""
    sizes = [[math.prod(spec.shape) for spec in program.input_specs] for program in programs]
    if any(later > first for entry in sizes[1:] for later, first in zip(entry, sizes[0], strict=True)):
        _log.warning("the first of %d shape sets is not the largest, and programs size their buffers by the first", len(programs))


def float_ends(program: Program, kind: Format, reported: str = "") -> dict[str, str]:
    """Warn of inputs and outputs of a quantized model that are not quantized values, which programs may read as such.

    :param reported: what was logged before; outputs that it names are not logged again
    """
    ends = [("input", spec) for spec in program.input_specs] + [("output", spec) for spec in program.output_specs]
    floats = [
        f"{side} '{spec.name}' is {spec.dtype.value}" for side, spec in ends if spec.quantization is None and spec.dtype.is_float
    ]
    if not floats:
        return {}
    text = f"{', '.join(floats)}, not {kind.words}: programs that read every tensor by the type of the first will misread it"
    if not all(f"'{spec.name}'" in reported for _, spec in ends if spec.quantization is None and spec.dtype.is_float):
        _log.warning("%s", text)
    return {"float_ends": text}


def warn_of_mixed_outputs(mixed: Sequence[MixedOutput], chip: Chip, before_us: float, after_us: float) -> str:
    """Report outputs that are float because they join values of different scale, what that costs, and what programs notice."""
    first = mixed[0]
    others = "".join(f", '{joint.output}'" for joint in mixed[1:])
    kept = "stays float16" if chip.float16 else "is put together in float from parts with scales of their own"
    text = (
        f"output '{first.output}'{others} joins values of different scale ('{first.part}' has {first.low:.3g} to {first.high:.3g}, "
        f"one int8 step would be {first.step:.3g}) and {kept}: {(after_us - before_us) / 1000.0:+.2f} ms predicted "
        f"({100.0 * (after_us - before_us) / max(before_us, 1e-9):+.1f} %). Programs that read int8 values (want_float=0) get float16; "
        "--without mixed (without=['mixed']) gives one int8 output"
    )
    _log.warning("%s", text)
    return text


def warn_of_loss(score: Score | None, left: Sequence[Finding], metric: str, outputs: Sequence[str]) -> None:
    """Warn where int8 loses more than 2 % of the result, with the first tensor that is known to suffer.

    :param score: how the model does on the samples that calibration held out, where that was measured
    :param left: what the lint still finds
    :param metric: the name of the metric of *score*
    :param outputs: the names of the outputs
    """
    lost = [finding for finding in left if finding.rule == "coarse-table" and finding.severity == "error"]
    if lost and (score is None or score.cosine < _GOOD):  # elsewhere nothing depends on them
        _log.warning(
            "the results of %s too small for the chip's tables, and are lost in int8; the first is %s: %s",
            "one activation are" if len(lost) == 1 else f"{len(lost)} activations are",
            lost[0].tensor,
            lost[0].text,
        )
    if score is None:
        return
    poor = [
        f"cosine {value:.2f} in output '{name}'" for name, value in zip(outputs, score.outputs, strict=False) if value < _KEPT
    ]
    if score.metric >= (_KEPT_LEAD if metric == "margin" else _KEPT) and not poor:
        return
    others = [f"worst cosine {score.worst:.2f}", *(poor if len(outputs) > 1 else [])]
    _log.warning(
        "int8 keeps %s %.2f of the float model's result on held-out samples, %s%s; "
        "compile with accuracy='best', with more samples, or with dtype='fp16'",
        metric,
        score.metric,
        ", ".join(others[:_MOST_OUTPUTS]),
        f" (first of {len(left)} findings: {left[0].tensor}: {left[0].text})" if left else "",
    )
