"""What the compiler did, what it costs and what to look at: its notes in the model file as sentences.

The notes name tensors. Exporters number those, so each is shown with the layer that makes it.
"""

from __future__ import annotations

import re

from ... import chips
from ...analysis.compare.metrics import verdict_of
from ...compiler.lower.formats import format_of
from ...program import Model

_GROUPS = re.compile(r"groups: (not )?(.+) in (\d+), noise 1/(\d+), ([-+][\d.]+) % time(.*)")
_REFIT = re.compile(r"refit: (\d+) convolutions, (.+)")
_METRIC = re.compile(r"(?:(?<!worst )cosine|detections|->) (?:cosine )?([01]\.\d+)")
_FINDINGS = re.compile(r"; (?=(?:error|warning): |and \d+ more$)")
"""Where one finding ends; a finding may have semicolons itself."""
_SCORED = ("chosen: ", "refit: ", "tried: ")
_LOOK = "  look at    "
_DETAILS = ("ranges ", "tried ", "weights ", "scales ", "cost ", "plain min/max ", "look at ")
_SHOWN = 3


def story(model: Model) -> list[str]:
    """One sentence per line, each after the word for what it is about."""
    steps = _entries(model, "accuracy")
    groups = [found for text in steps if (found := _GROUPS.fullmatch(text))]
    lines = [_line(model, text) for text in steps if not text.startswith("groups: ")]
    lines[1:1] = _split(model, [found for found in groups if not found[1]])
    refused = [found for found in groups if found[1]]
    if refused:
        names = _listed([_layer(model, found[2]) for found in refused])
        lines.append(f"  cost       {names}: scales per channel group would take too long on this chip, and were left out")
    return [*lines, *(f"{_LOOK}{_finding(model, text)}" for text in _entries(model, "warnings"))]


def story_json(model: Model) -> dict[str, list[str]]:
    """The notes themselves, as the model file has them."""
    return {"accuracy": _entries(model, "accuracy"), "warnings": _entries(model, "warnings")}


def verdict(model: Model) -> str:
    """How much of the float model's output the model keeps, in one sentence."""
    words = format_of(model.dtype, chips.get(model.chip)).words
    steps = _entries(model, "accuracy")
    # the last number of what was chosen, else of the fit that was kept, else the best of what was tried
    of_steps = ([float(value) for text in steps if text.startswith(word) for value in _METRIC.findall(text)] for word in _SCORED)
    kept = next(
        (max(values) if word == "tried: " else values[-1] for word, values in zip(_SCORED, of_steps, strict=True) if values), None
    )
    if kept is None:
        return f"{words}: accuracy not measured; 'anynpu compare' compares it with the float model"
    return f"{words} keeps {kept:.4f} of the float output: {verdict_of(kept)}"


def brief(lines: list[str]) -> list[str]:
    """The lines of a :func:`story` that are shown without ``-v``: what concerns the use of the model."""
    shown = [line for line in lines if not line.strip().startswith(_DETAILS)]
    findings = sum(line.startswith(_LOOK) for line in lines)
    if findings:
        shown.append(
            f"  {findings} finding{'' if findings == 1 else 's'} about int8 accuracy: -v prints them, 'anynpu lint' explains them"
        )
    return shown


def _entries(model: Model, key: str) -> list[str]:
    text = model.provenance.get(key, "")
    return [entry for entry in (_FINDINGS.split(text) if key == "warnings" else text.split("; ")) if entry]


def _line(model: Model, text: str) -> str:
    refit = _REFIT.fullmatch(text)
    if refit is not None:
        return f"  weights    {refit[1]} convolutions fitted to rounded inputs: {refit[2]}"
    word, colon, rest = text.partition(": ")
    if not colon:
        return f"  note       {text}"
    if word == "refit":
        return f"  weights    not fitted: {rest.removeprefix('left out, ').removeprefix('not kept, ')}"
    return f"  {word:<10} {rest}"


def _split(model: Model, groups: list[re.Match[str]]) -> list[str]:
    if not groups:
        return []
    time = sum(float(found[5]) for found in groups)
    best = [f"{_layer(model, found[2])} with {found[4]} times less noise" for found in groups]
    tensors = "tensor has" if len(groups) == 1 else "tensors have"
    lines = [f"  scales     {len(groups)} {tensors} a scale per channel group, {time:+.1f} % time: {_listed(best)}"]
    cheaper = [_layer(model, found[2]) for found in groups if "float16" in found[6]]
    if cheaper:
        lines.append(f"  cost       in float16 {_listed(cheaper)} would take less time than with groups (--hybrid)")
    return lines


def _finding(model: Model, text: str) -> str:
    """A finding without its severity: the model is made, so nothing failed."""
    rest = re.sub(r"^(error|warning): ", "", text)
    tensor, colon, words = rest.partition(": ")
    return f"{_layer(model, tensor)}: {words}" if colon else rest


def _layer(model: Model, tensor: str) -> str:
    for program in model.programs:
        for layer in program.layers:
            if tensor in layer.outputs:
                return layer.name if tensor == layer.name else f"{layer.name} (tensor {tensor})"
    return tensor


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
