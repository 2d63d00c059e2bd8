"""Text from files, made safe to print."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """*text* with everything escaped that a terminal or a log would act upon instead of showing it.

    That is whatever Unicode calls not printable: control characters (a terminal obeys them), line ends (they fake lines), marks that change
    the direction of writing, invisible characters, halves of surrogate pairs. Escapes are those of JSON, so JSON stays what it was.

    >>> printable("conv\\x1b[2J"), printable("a\\nb"), printable("größer 大")
    ('conv\\\\u001b[2J', 'a\\\\nb', 'größer 大')
    """
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else json.dumps(mark)[1:-1] for mark in text)
