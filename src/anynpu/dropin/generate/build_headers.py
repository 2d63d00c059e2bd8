"""Writes the headers that C and C++ programs include: ``python build_headers.py FOLDER ABI``.

``rknn_api.h``, ``rknn_matmul_api.h`` and ``rknn_custom_op.h`` declare what the one ABI file declares, divided as programs expect it, with
the small functions that name constants, and with handles of four bytes on 32-bit ARM.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
STATEMENT = re.compile(r"^#define \w+ \S+$|^typedef [^{};]*(?:\{[^}]*\}[^;]*)?;|^[a-z][\w *]*\([^;]*\);", re.MULTILINE)
MATMUL = re.compile(r"matmul|rknn_quant_params|rknn_B_normal")
CUSTOM_OP = re.compile(r"custom_op|CUSTOM_OP|gpu_op|target_type")
HANDLE = re.compile(r"^typedef uint64_t (\w+);$")

TYPE_WORDS = {"FLOAT32": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16"}
QUANT_WORDS = {"QNT_AFFINE_ASYMMETRIC": "AFFINE", "QNT_NONE": "NONE", "QNT_DFP": "DFP"}


def main(folder: str, abi: str) -> None:
    """Write the three files into *folder*."""
    text = COMMENT.sub("", Path(abi).read_text(encoding="utf-8"))
    parts: dict[str, list[str]] = {"general": [], "matmul": [], "custom": []}
    for match in STATEMENT.finditer(text):
        statement = match[0]
        kind = "custom" if CUSTOM_OP.search(statement) else "matmul" if MATMUL.search(statement) else "general"
        parts[kind].append(with_narrow_handle(statement))
    constants = re.findall(r"^  (RKNN_\w+) = (\w+),?$", text, re.MULTILINE)
    general = [*parts["general"], *general_helpers([name for name, _ in constants])]
    matmul = [*parts["matmul"], matmul_helper([name for name, _ in constants])]
    export = '#define RKNN_CUSTOM_OP_EXPORT __attribute__((visibility("default")))'
    write(Path(folder) / "rknn_api.h", ["<stdint.h>"], general)
    write(Path(folder) / "rknn_matmul_api.h", ['"rknn_api.h"'], matmul)
    write(Path(folder) / "rknn_custom_op.h", ['"rknn_api.h"'], [export, *parts["custom"]])


def with_narrow_handle(statement: str) -> str:
    """A handle's type with its form on 32-bit ARM."""
    match = HANDLE.match(statement)
    if match is None:
        return statement
    return f"#ifdef __arm__\ntypedef uint32_t {match[1]};\n#else\n{statement}\n#endif"


def general_helpers(constants: Iterable[str]) -> list[str]:
    """Functions that name types, quantizations and formats."""
    names = [name.removeprefix("RKNN_TENSOR_") for name in constants if name.startswith("RKNN_TENSOR_")]
    names = [name for name in names if not name.endswith("_MAX") and not name.startswith("MEMORY_")]
    formats = [name for name in names if name in ("NCHW", "NHWC", "NC1HWC2", "UNDEFINED")]
    quantisations = [name for name in names if name.startswith("QNT_")]
    types = [name for name in names if name not in formats and name not in quantisations]
    prefix = "RKNN_TENSOR_"
    return [
        naming("get_type_string", "rknn_tensor_type", {prefix + name: TYPE_WORDS.get(name, name) for name in types}),
        naming("get_qnt_type_string", "rknn_tensor_qnt_type", {prefix + name: QUANT_WORDS[name] for name in quantisations}),
        naming("get_format_string", "rknn_tensor_format", {prefix + name: name for name in formats}),
    ]


def matmul_helper(constants: Iterable[str]) -> str:
    """The function that names kinds of products."""
    words = {name: name.removeprefix("RKNN_") for name in constants if "_MM_" in name and "_TO_" in name}
    return naming("get_matmul_type_string", "rknn_matmul_type", words)


def naming(name: str, kind: str, words: dict[str, str]) -> str:
    """A C function from constants to words."""
    cases = "".join(f'    case {constant}: return "{word}";\n' for constant, word in words.items())
    return (
        f'static inline const char *{name}({kind} value)\n{{\n  switch (value) {{\n{cases}    default: return "UNKNOW";\n  }}\n}}'
    )


def write(path: Path, includes: list[str], statements: list[str], interface: str = "RKNN") -> None:
    """One header."""
    guard = f"ANYNPU_{path.stem.upper()}_H"
    lines = [
        f"/* Written by anynpu's build from its declarations of the {interface} interface. */\n#ifndef {guard}\n#define {guard}\n\n"
    ]
    lines += [f"#include {name}\n" for name in includes]
    lines += ['\n#ifdef __cplusplus\nextern "C" {\n#endif\n\n']
    for statement, following in zip(statements, [*statements[1:], ""], strict=True):
        short = "\n" not in statement and "\n" not in following
        lines.append(statement + ("\n" if short else "\n\n"))
    lines += ["\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
