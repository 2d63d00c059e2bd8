"""Writes the reference of the Python interfaces from their docstrings. MkDocs calls it when it builds the pages:

    python tools/api_page.py            # prints the page

No file of the reference is kept, so it cannot fall behind the code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from types import ModuleType
from typing import Any

MODULES = (
    "anynpu",
    "anynpu.session",
    "anynpu.onnxruntime",
    "anynpu.tasks",
    "anynpu.compiler",
    "anynpu.npu",
    "anynpu.serve",
    "anynpu.rknn",
    "anynpu.rknnlite",
    "anynpu.rknn_toolkit",
    "anynpu.vip",
    "anynpu.decision",
    "anynpu.profiling",
    "anynpu.comparison",
    "anynpu.timing",
    "anynpu.chips",
    "anynpu.convert",
    "anynpu.modelfile",
    "anynpu.errors",
)
"""The modules of the reference, in the order of the page. One that is not there is left out."""

_FIELD = re.compile(r"^:(?:param|ivar|var|raises|returns?)\s*([^:]*):\s*", re.MULTILINE)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def page() -> str:
    """The reference, as Markdown."""
    parts = [
        "# Python reference",
        "",
        "Every public name, from its docstring. Names that begin with an underscore are not part of it.",
        "",
    ]
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        parts += _module(name, module)
    return "\n".join(parts) + "\n"


def _module(public: str, module: ModuleType) -> list[str]:
    parts = [f"## {public}", "", _text(inspect.getdoc(module) or ""), ""]
    for name in getattr(module, "__all__", ()):
        value = getattr(module, name)
        if inspect.ismodule(value):
            continue
        parts += _entry(f"{public}.{name}", value)
    return parts


def _entry(name: str, value: Any) -> list[str]:
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return [f"### `{name}`", "", f"A value: `{_shortened(repr(value))}`", ""]
    parts = [f"### `{name}`", "", f"    {name.rpartition('.')[2]}{_signature(value)}", "", _text(inspect.getdoc(value) or ""), ""]
    if inspect.isclass(value) and not issubclass(value, (enum.Enum, BaseException)):
        parts += _members(value)
    return parts


def _members(kind: type) -> list[str]:
    rows = []
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            rows.append(f"- `{name}`: {_first(value.fget)}")
        elif inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)):
            rows.append(f"- `{name}{_signature(getattr(kind, name))}`: {_first(value)}")
    return [*rows, ""] if rows else []


def _signature(value: Any) -> str:
    try:
        return _shortened(str(inspect.signature(value)).replace("'", ""), 400)
    except (TypeError, ValueError):
        return ""


def _first(value: Any) -> str:
    text = inspect.getdoc(value) or "as the method that it stands for"
    return _inline(" ".join(text.split("\n\n")[0].split()))


def _text(docstring: str) -> str:
    """A docstring as Markdown: fields become a list, examples a block, roles plain code."""
    blocks = []
    for block in re.sub(r"(?<!\n)\n(?=:param |:ivar )", "\n\n", docstring).split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].lstrip().startswith(">>>"):
            blocks.append("\n".join(["```text", *(line.replace("# doctest: +SKIP", "").rstrip() for line in lines), "```"]))
        elif _FIELD.match(block):
            text = _FIELD.sub(lambda found: f"- `{found[1].strip()}`: " if found[1] else "- returns: ", " ".join(block.split()))
            blocks.append(_inline(text))
        elif lines and all(line.startswith("    ") or not line for line in lines):
            blocks.append("\n".join(["```text", *lines, "```"]))
        else:
            blocks.append(_inline(block))
    return "\n\n".join(blocks)


def _inline(text: str) -> str:
    text = re.sub(r"::$", ":", _ROLE.sub(r"`\1`", text)).replace("``", "`")
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", text)


def _shortened(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."


def on_files(files: Any, config: Any) -> Any:
    """What MkDocs calls before it builds: adds the page."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=page()))
    return files


if __name__ == "__main__":
    sys.stdout.write(page())
