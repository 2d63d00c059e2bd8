"""Write the tables of options in docs/ from the tables in the sources: python tools/options_page.py."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anynpu._util.options import TABLE, Option, OptionTable
from anynpu.compiler import CompileOptions
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


def flag_rows(table: type[OptionTable]) -> str:
    """One row per option that the command line has."""
    defaults = {field.name: field.default for field in dataclasses.fields(table)}  # type: ignore[arg-type]
    lines = ["| option | meaning |", "|---|---|"]
    for name, entry in table.options().items():
        if entry.flag is None:
            continue
        default = defaults[name] if entry.flag_default is TABLE else entry.flag_default
        plain = isinstance(default, (int, float, str)) and not isinstance(default, bool) and default not in ("", "default")
        parts = [
            entry.doc,
            entry.command,
            f"`{default}` is the default" if plain else "",
            "repeat for more" if entry.kind == list[str] | None else "",
        ]
        text = "; ".join(filter(None, parts))
        lines.append(f"| {flag_text(entry)} | {text}{f'. {entry.see}' if entry.see else ''} |")
    return "\n".join(lines) + "\n"


def keyword_rows(table: type[OptionTable]) -> str:
    """One row per option, by its name in Python."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    defaults = table.written()
    for name, entry in table.options().items():
        names = ", ".join(f"`{each}`" for each in (name, *entry.aliases))
        default = "" if defaults[name] in (None, ()) else f"`{defaults[name]!r}`"
        text = "; ".join(filter(None, (entry.doc, entry.python)))
        lines.append(f"| {names} | {default} | {text}{f'. {entry.see}' if entry.see else ''} |")
    return "\n".join(lines) + "\n"


TABLES: Mapping[tuple[str, str], tuple[type[OptionTable], Any]] = {
    ("docs/cli.md", "CompileOptions"): (CompileOptions, flag_rows),
    ("docs/cli.md", "ServeOptions"): (ServeOptions, flag_rows),
    ("docs/serving.md", "ServeOptions"): (ServeOptions, keyword_rows),
    ("docs/session.md", "SessionOptions"): (SessionOptions, keyword_rows),
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
    for (page, name), (table, rows) in TABLES.items():
        path = ROOT / page
        path.write_text(updated(path.read_text(encoding="utf-8"), name, rows(table)), encoding="utf-8")
