"""Builds a .rknn with the vendor's toolkit and the quantization that anynpu has chosen.

This file needs Python 3.8 or later and rknn-toolkit2, nothing else: ``python build_rknn.py`` in the folder that holds ``job.json``.
It calls the toolkit's documented functions: hybrid_quantization_step1 writes a .quantization.cfg, whose ``min`` and ``max`` are changed as
text, and hybrid_quantization_step2 builds with them. Other numbers of that file must stay as they are: the toolkit rejects them.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

MADE = ("_tp_rs", "_tp-rs", "_mm", "-rs", "_rs")
"""What the toolkit appends to the name of a tensor that it makes in another shape."""

FAILED = 4
"""The exit code where a function of the toolkit states that it failed."""


def entry_name(line: str) -> str | None:
    """The name of an entry of ``quantize_parameters``, or None: a line with four spaces, a name and a colon."""
    match = re.match(r"^ {4}(?! )(.*):\s*$", line)
    if match is None:
        return None
    text = match.group(1)
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return str(json.loads(text))
    return text


def without_aliases(text: str) -> str:
    """The same text with every ``*id001`` replaced by the list that ``&id001`` stands before: an edit must not change two places."""
    lists: dict[str, list[str]] = {}
    lines: list[str] = []
    waiting = ""
    for line in text.split("\n"):
        if waiting and re.match(r"^\s*-\s", line):
            lists[waiting].append(line)
            lines.append(line)
            continue
        waiting = ""
        anchor = re.match(r"^(\s*[^\s].*:) &(\w+)\s*$", line)
        alias = re.match(r"^(\s*[^\s].*:) \*(\w+)\s*$", line)
        if anchor is not None:
            waiting = anchor.group(2)
            lists[waiting] = []
            lines.append(anchor.group(1))
        elif alias is not None and alias.group(2) in lists:
            lines += [alias.group(1), *lists[alias.group(2)]]
        else:
            lines.append(line)
    return "\n".join(lines)


def edited(text: str, ranges: dict[str, Any]) -> tuple[str, list[str]]:
    """A .quantization.cfg with other ranges, and the names of the entries that were changed.

    Only the numbers after ``min:`` and ``max:`` of int8 entries change. An input or output has a second entry whose name ends in ``_int8``:
    that is the one that counts.
    """
    shared = re.search(r"^ {8}(min|max): [&*]", text, re.M) is not None
    lines = (without_aliases(text) if shared else text).split("\n")
    inside = False
    name = key = ""
    int8 = False
    changed: list[str] = []
    names = {entry_name(line) for line in lines}
    for number, line in enumerate(lines):
        if line and not line.startswith(" "):
            inside = line.startswith("quantize_parameters:")
            continue
        if not inside:
            continue
        found = entry_name(line)
        if found is not None:
            name, key, int8 = found, "", False
            continue
        field = re.match(r"^ {8}(\w+):\s*(.*)$", line)
        if field is not None:
            key = field.group(1)
            if key == "dtype":
                int8 = field.group(2).strip() == "int8"
            continue
        value = re.match(r"^(\s*-\s+)\S+\s*$", line)
        if value is None or not int8 or key not in ("min", "max"):
            continue
        wanted = name
        if name.endswith("_int8") and name not in ranges:
            wanted = name[: -len("_int8")]
        elif name + "_int8" in names:
            continue
        wanted = next((wanted[: -len(end)] for end in MADE if wanted.endswith(end) and wanted not in ranges), wanted)
        if wanted in ranges:
            lines[number] = f"{value.group(1)}{float(ranges[wanted][key == 'max'])!r}"
            if key == "max":
                changed.append(name)
            key = ""  # one number per key: ranges are per tensor
    return "\n".join(lines), changed


def with_floats(text: str, tensors: list[str]) -> str:
    """A .quantization.cfg in which what makes these tensors computes in float16."""
    if not tensors:
        return text
    entries = "".join(f"\n    {json.dumps(name)}: float16" for name in tensors)
    return re.sub(r"^custom_quantize_layers:.*$", lambda match: "custom_quantize_layers:" + entries, text, count=1, flags=re.M)


def check(what: str, result: Any) -> None:
    """End with a message where a function of the toolkit returned something but 0."""
    sys.stdout.write(f"anynpu: {what} returned {result!r}\n")
    sys.stdout.flush()
    if result not in (0, None):
        sys.stdout.write(f"anynpu: {what} failed\n")
        sys.stdout.flush()
        sys.exit(FAILED)


def main(path: str) -> None:
    """Build what the job file states."""
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    RKNN = importlib.import_module("rknn.api").RKNN  # noqa: N806
    name = job["name"]
    first = RKNN(verbose=False)
    check("config", first.config(**job["config"]))
    check("load_onnx", first.load_onnx(model=job["model"]))
    if not job["quantize"]:
        check("build", first.build(do_quantization=False))
        check("export_rknn", first.export_rknn(job["output"]))
        first.release()
        return
    check("hybrid_quantization_step1", first.hybrid_quantization_step1(dataset=job["dataset"], proposal=False))
    first.release()
    cfg = name + ".quantization.cfg"
    with open(cfg, encoding="utf-8") as file:
        text = file.read()
    text, changed = edited(text, job["ranges"])
    with open(cfg, "w", encoding="utf-8") as file:
        file.write(with_floats(text, job["floats"]))
    sys.stdout.write(f"anynpu: {len(changed)} of {len(job['ranges'])} ranges are in the configuration\n")
    sys.stdout.flush()
    second = RKNN(verbose=False)
    check(
        "hybrid_quantization_step2",
        second.hybrid_quantization_step2(model_input=name + ".model", data_input=name + ".data", model_quantization_cfg=cfg),
    )
    check("export_rknn", second.export_rknn(job["output"]))
    second.release()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "job.json")
