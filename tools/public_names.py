"""Write tests/public_names.txt, the names that the documentation shows to users: python tools/public_names.py.

The list has import names with their parameters, commands with their options and defaults, environment variables and exit codes. A test
checks that everything in it exists, so that a removal or a new default is a change of that file. Running this adds new names and keeps the
names that still exist, even if no page shows them any more.

Names come from the Python reference (tools/api_page.py), from the Python code of README, docs and examples, and from dotted names in their
text. Pages about the inside of the package are not read.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import json
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "public_names.txt"
PACKAGE = ROOT / "src" / "anynpu"

INTERNAL = ("architecture.md",)
"""Pages that name modules for those who change the package."""

_DOTTED = re.compile(r"\banynpu(?:\.[A-Za-z]\w*)+")
_VARIABLE = re.compile(r"\bANYNPU_[A-Z][A-Z0-9_]*[A-Z0-9]\b")
_EXIT_CODE = re.compile(r"exit (?:code|status)\w* (?:is (?:then )?|of )?(\d+)|\bends? with (?:exit code )?(\d{1,3})\b")
_EXIT_TABLE = re.compile(r"^\| exit (?:code|status) \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)


def texts() -> list[str]:
    """README, the pages for users, and what the examples state."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "examples").glob("**/*.md"))]
    return [page.read_text(encoding="utf-8") for page in pages if page.name not in INTERNAL]


def programs() -> Iterator[str]:
    """Python code that users read."""
    for text in texts():
        yield from re.findall(r"^```python[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for path in sorted((ROOT / "examples").glob("**/*.py")):
        yield path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "examples").glob("**/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def names_in(code: str) -> set[str]:
    """The names below anynpu that a program uses, through the names that it imports them by."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a block with a command of a notebook, or a part of a program
        return set()
    known: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "anynpu":
                    found.add(each.name)
                    known[each.asname or "anynpu"] = each.name if each.asname else "anynpu"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "anynpu":
            for each in node.names:
                found.add(f"{node.module}.{each.name}")
                known[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                parts.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in known:
                found.add(".".join([known[inner.id], *reversed(parts)]))
    return found


def resolve(name: str) -> Any:
    """What a dotted name stands for.

    :raises LookupError: there is no such name
    :raises ModuleNotFoundError: it needs a package that is not installed
    """
    parts = name.split(".")
    value: Any = importlib.import_module(parts[0])
    for index, part in enumerate(parts[1:], 2):
        if hasattr(value, part):
            value = getattr(value, part)
        elif inspect.ismodule(value):
            try:
                value = importlib.import_module(".".join(parts[:index]))
            except ModuleNotFoundError as error:
                if not (error.name or "").startswith("anynpu"):
                    raise  # a package that this part of anynpu needs
                raise LookupError(f"there is no {'.'.join(parts[:index])}") from error
        else:
            raise LookupError(f"{'.'.join(parts[: index - 1])} has no {part}")
    return value


def parameters(value: Any) -> list[str] | None:
    """The names of the parameters of a function or of a class of the package, None for anything else."""
    if inspect.isclass(value):
        if issubclass(value, (enum.Enum, BaseException)) or not inspect.isfunction(value.__init__):
            return None
        value = value.__init__
    try:
        found = inspect.signature(value).parameters.values() if inspect.isroutine(value) else None
    except (TypeError, ValueError):
        return None
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return found and [marks.get(each.kind, "") + each.name for each in found if each.name not in ("self", "cls")]


def members(kind: type) -> Iterator[str]:
    """The public members of a class and of its bases in the package."""
    names = {name for base in kind.__mro__ if base.__module__.startswith("anynpu") for name in vars(base)}
    if issubclass(kind, enum.Enum):
        names |= set(kind.__members__)
    names |= set(getattr(kind, "__dataclass_fields__", ()))
    yield from sorted(name for name in names if not name.startswith("_") and hasattr(kind, name))


def described(name: str) -> str:
    """The line of a name."""
    given = parameters(resolve(name))
    return name if given is None else f"{name}({', '.join(given)})"


def python_names() -> list[str]:
    """The lines of all names that can be imported, and of the public members of their classes."""
    names: set[str] = set()
    for module in runpy.run_path(str(ROOT / "tools" / "api_page.py"))["MODULES"]:
        names.add(module)
        names |= {f"{module}.{name}" for name in getattr(resolve(module), "__all__", ())}
    shown = {name for code in programs() for name in names_in(code)} | {
        name for text in texts() for name in _DOTTED.findall(text)
    }
    for name in shown:
        if "._" in name:
            continue
        try:
            resolve(name)
        except (LookupError, ImportError):  # a file such as anynpu.toml, or a part that needs a package that is not installed
            continue
        names.add(name)
    for name in sorted(names):
        value = resolve(name)
        if inspect.isclass(value) and value.__module__.startswith("anynpu"):
            names |= {f"{name}.{member}" for member in members(value)}
    return sorted(map(described, names))


def options() -> list[str]:
    """A line for each command, argument and option of the command line, with its default."""
    from typer.main import get_command

    from anynpu.cli.app import app

    root: Any = get_command(app)
    lines = [*_parameters_of(root, "anynpu")]
    for name in root.list_commands(None):
        lines += _of_command(root.get_command(None, name), f"anynpu {name}")
    return lines


def _of_command(command: Any, path: str) -> Iterator[str]:
    yield path
    yield from _parameters_of(command, path)
    for name, inner in getattr(command, "commands", {}).items():
        yield from _of_command(inner, f"{path} {name}")


def _parameters_of(command: Any, path: str) -> Iterator[str]:
    for each in command.params:
        names = [*each.opts, *each.secondary_opts] if each.param_type_name == "option" else [each.name.upper()]
        default = each.default() if callable(each.default) else each.default
        plain = isinstance(default, (bool, int, float, str)) or (isinstance(default, (list, tuple)) and default)
        shown = f" = {json.dumps(default)}" if plain and default not in ("", False) else ""
        kind = "" if getattr(each, "is_flag", False) else " VALUES" if each.multiple or each.nargs != 1 else " VALUE"
        yield f"{path} {'/'.join(names)}{'' if each.param_type_name == 'argument' else kind}{shown}"


def variables() -> list[str]:
    """The environment variables that the documentation names or the sources read."""
    found = {name for text in texts() for name in _VARIABLE.findall(text)}
    for path in PACKAGE.rglob("*.py"):
        if not {"native", "generate"} & set(path.relative_to(PACKAGE).parts):
            found |= set(re.findall(r"""["'](ANYNPU_[A-Z][A-Z0-9_]*[A-Z0-9])["']""", path.read_text(encoding="utf-8")))
    for path in PACKAGE.rglob("*.c"):
        found |= set(re.findall(r'getenv\("(ANYNPU_\w+)"\)', path.read_text(encoding="utf-8")))
    return sorted(found)


def exit_codes() -> list[str]:
    """The exit codes that the documentation explains."""
    codes: set[int] = set()
    for text in texts():
        codes |= {int(one or other) for one, other in _EXIT_CODE.findall(text)}
        for rows in _EXIT_TABLE.findall(text):
            codes |= set(map(int, re.findall(r"^\| `?(\d+)", rows, re.MULTILINE)))
    return [str(code) for code in sorted(codes) if code < 256]  # larger ones are of HTTP


SECTIONS = {"names": python_names, "commands": options, "environment variables": variables, "exit codes": exit_codes}


def contents(text: str = "") -> str:
    """The list as it should be: what is extracted, and the names of the present list that still exist, shown or not."""
    parts = ["# Public names: written by tools/public_names.py"]
    kept = sections(text).get("names", [])
    for title, extract in SECTIONS.items():
        lines = extract()
        if title == "names":
            names = {line.partition("(")[0] for line in (*lines, *kept)}
            lines = sorted(described(name) for name in names if not _problem(name))
        parts += ["", f"[{title}]", *lines]
    return "\n".join(parts) + "\n"


def sections(text: str) -> dict[str, list[str]]:
    """The lines of a list by section."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            found[line[1:-1]] = []
        elif line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


def missing(title: str, lines: Sequence[str]) -> list[str]:
    """What a section of a list has and the package has not; for a name, also parameters that are gone or in another order."""
    if title == "names":
        return [problem for line in lines if (problem := _problem(line))]
    now = set(SECTIONS[title]())
    return [line for line in lines if line not in now]


def _problem(line: str) -> str:
    name, called, rest = line.partition("(")
    try:
        value = resolve(name)
    except LookupError as error:
        return f"{name}: {error}"
    except ModuleNotFoundError:
        return ""
    if called:
        now = iter(parameters(value) or ())
        lost = [each for each in filter(None, rest[:-1].split(", ")) if each not in now]  # in this order
        if lost:
            return f"{name}: no parameter {', '.join(lost)}, or at another place"
    return ""


if __name__ == "__main__":
    text = contents(LIST.read_text(encoding="utf-8"))
    LIST.write_text(text, encoding="utf-8")
    counts = ", ".join(f"{len(lines)} {title}" for title, lines in sections(text).items())
    sys.stdout.write(f"{LIST.relative_to(ROOT)}: {counts}\n")
