"""Reads ``abi.h``: the types as cffi takes them, and every function with its parameters.

The build uses it to write the bindings and the shims, so it imports nothing but the standard library and is run as a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Declarations", "Function", "Parameter", "read_declarations"]

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_CPLUSPLUS = re.compile(r"^#ifdef __cplusplus$.*?^#endif$", re.DOTALL | re.MULTILINE)
_DIRECTIVE = re.compile(r"^#(?!define \w+ \S).*$", re.MULTILINE)
_FUNCTION = re.compile(r"^(?P<result>[\w ]+?[ *]+)(?P<name>\w+)\((?P<parameters>[^()]*)\);$", re.MULTILINE)
_PARAMETER = re.compile(r"^(?P<type>.*?[ *])(?P<name>\w+)(?P<array>\[\])?$")


@dataclass(frozen=True)
class Parameter:
    """One parameter; *type* is what stands before its name (an array is a pointer)."""

    type: str
    name: str


@dataclass(frozen=True)
class Function:
    """A function of the interface."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]

    @property
    def signature(self) -> str:
        """The parameters as C declares them."""
        return ", ".join(f"{entry.type} {entry.name}" for entry in self.parameters) or "void"

    @property
    def arguments(self) -> str:
        """The names of the parameters, as a call passes them on."""
        return ", ".join(entry.name for entry in self.parameters)


@dataclass(frozen=True)
class Declarations:
    """What a header declares: *types* is C for cffi (defines included), without the functions."""

    types: str
    functions: tuple[Function, ...]


def read_declarations(header: Path) -> Declarations:
    """Take a header apart."""
    text = _COMMENT.sub("", header.read_text(encoding="utf-8"))
    text = _DIRECTIVE.sub("", _CPLUSPLUS.sub("", text))
    functions = tuple(
        Function(match["name"], match["result"].strip(), _parameters(match["parameters"])) for match in _FUNCTION.finditer(text)
    )
    return Declarations(re.sub(r"\n{3,}", "\n\n", _FUNCTION.sub("", text)), functions)


def _parameters(text: str) -> tuple[Parameter, ...]:
    if text.strip() in ("", "void"):
        return ()
    found = []
    for part in text.split(","):
        match = _PARAMETER.match(part.strip())
        if match is None:
            raise ValueError(f"not a parameter with a name: {part.strip()!r}")
        found.append(Parameter(match["type"].strip() + (" *" if match["array"] else ""), match["name"]))
    return tuple(found)
