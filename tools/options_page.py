"""Write the tables of options and findings in docs/ from the sources: python tools/options_page.py."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from pathlib import Path

from anynpu._util.options import Option, OptionTable
from anynpu.compiler import CompileOptions
from anynpu.devtools.sanitizer import KINDS
from anynpu.serve import ServeOptions
from anynpu.session import SessionOptions

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- {name}: written by tools/options_page.py -->\n", "<!-- end of {name} -->\n"


def flag_text(entry: Option) -> str:
    """A flag as it is written: with what stands for its value, or with its choices."""
    names = (entry.flag or "").split("/")
    kind = entry.kind
    plain = next((each for each in kind.__args__ if each is not type(None)), kind) if isinstance(kind, types.UnionType) else kind
    value = "\\|".join(entry.choices) or entry.metavar or ("N" if plain in (int, float) else "")
    flags = ", ".join(f"`{name}`" for name in names)
    return flags if plain is bool or not value else f"`{names[0]} {value}`"


def option_rows(table: type[OptionTable]) -> str:
    """One row per option: its name in Python, its flag, its default and what it means."""
    lines = ["| option | flag | default | meaning |", "|---|---|---|---|"]
    defaults = table.written()
    for name, entry in table.options().items():
        names = ", ".join(f"`{each}`" for each in (name, *entry.aliases))
        flag = flag_text(entry) if entry.flag else ""
        default = "" if defaults[name] in (None, ()) else f"`{defaults[name]!r}`"
        text = "; ".join(filter(None, (entry.doc, entry.command, entry.python)))
        lines.append(f"| {names} | {flag} | {default} | {text}{f'. {entry.see}' if entry.see else ''} |")
    return "\n".join(lines) + "\n"


def finding_rows() -> str:
    """One row per kind of finding of the sanitizer."""
    lines = ["| finding | meaning | on a board | fix |", "|---|---|---|---|"]
    for kind in KINDS.values():
        cells = (f"`{kind.id}`", kind.title, kind.board, kind.mend)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("docs/options.md", "CompileOptions"): lambda: option_rows(CompileOptions),
    ("docs/options.md", "ServeOptions"): lambda: option_rows(ServeOptions),
    ("docs/options.md", "SessionOptions"): lambda: option_rows(SessionOptions),
    ("docs/messages.md", "Findings"): finding_rows,
}
"""Page and name of each table, and how its rows are written."""


def updated(page: str, name: str, rows: str) -> str:
    """The page with the table of today."""
    begin, end = (mark.format(name=name) for mark in (BEGIN, END))
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no place for {name}")
    return f"{before}{begin}\n{rows}\n{end}{after}"


if __name__ == "__main__":
    for (page, name), rows in TABLES.items():
        path = ROOT / page
        path.write_text(updated(path.read_text(encoding="utf-8"), name, rows()), encoding="utf-8")
