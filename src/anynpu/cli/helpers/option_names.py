"""Messages of the library in the words of the command line: ``dtype='fp16'`` is ``--dtype fp16`` there."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

_VALUE = r"(\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|'[^']*'|\"[^\"]*\"|\.\.\.|[^\s,;)]+)"


def as_options(message: str) -> str:
    """A message with arguments of Python functions as options, where the command line has them.

    >>> as_options("keep it in float16: hybrid=['conv_3']")
    'keep it in float16: --hybrid conv_3'
    >>> as_options("for example shapes={'x': (1, 3, 480, 480)}")
    'for example --shape x=1,3,480,480'
    >>> as_options("pass a folder of images (dataset=..., --dataset FOLDER)")
    'pass a folder of images (--dataset FOLDER)'
    """
    flags = _flags()
    names = "|".join(sorted(map(re.escape, flags), key=len, reverse=True))
    text = re.sub(rf"(?<![\w-])({names})={_VALUE}", lambda found: _option(flags[found[1]], found[2]), message)
    # what named both states it twice now
    text = re.sub(r"(--[\w-]+) \.\.\.(?:, or|, |: or| or)\s*(?=\1 )", "", text)
    return re.sub(r"((--[\w-]+) [^;()]+?), or \1(?=$|[\s,;)])", r"\1", text)


def _option(flag: str, value: str) -> str:
    if value == "...":
        return f"{flag} ..."
    try:
        read = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        read = value
    return " ".join(f"{flag} {text}" for text in _texts(read)) or flag


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{name}={_text(entry)}" for name, entry in value.items()]
    if isinstance(value, list):
        return [_text(entry) for entry in value]
    return [_text(value)]


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _flags() -> dict[str, str]:
    """The flags of the commands' tables by the names of their arguments."""
    from ...compiler import CompileOptions

    found = {name: entry.flag for name, entry in CompileOptions.options().items() if entry.flag is not None}
    return {name: flag.partition("/")[0] for name, flag in found.items()}
