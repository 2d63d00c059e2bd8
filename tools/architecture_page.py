"""Write the picture of docs/architecture.md from the imports of the package: python tools/architecture_page.py.

A room is a folder or a module directly in the package. An arrow is an import: at the top of a file, inside a function, or for type
checkers.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anynpu"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- written by tools/architecture_page.py -->\n", "<!-- end of the picture -->\n"

EXTENSIONS = {"_native": "native", "_rknn": "rknn", "_vip": "vip", "_accel": "dropin"}
"""Modules in C, and the room of their sources."""

PARTS = (
    *("rknn.lite", "rknn.toolkit", "session.onnxruntime", "session.protocol", "serve.cluster", "serve.playground"),
    *("compiler.board", "analysis.pages", "chips.timing", "program.arithmetic", "program.convert"),
    *("devtools.faults", "devtools.recording", "devtools.sanitizer", "cli.demo", "cli.networks"),
)
"""Sub-packages whose imports have a row of their own in the table of allowed imports."""

ALIASES = {
    "arithmetic": "program.arithmetic",
    "networks": "cli.networks",
    "comparison": "analysis.compare",
    "convert": "program.convert",
    "decision": "analysis.report",
    "faults": "devtools.faults",
    "onnxruntime": "session.onnxruntime",
    "profiling": "analysis.profile",
    "protocol": "session.protocol",
    "rknn_toolkit": "rknn.toolkit",
    "rknnlite": "rknn.lite",
    "timing": "chips.timing",
}
"""Public names of sub-packages: modules of a few lines, which no module of the package imports."""

NOT_IMPORTED = ("native", "generate")
"""Folders of scripts that build the package and are no part of it."""

_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop, ast.arg, ast.boolop, ast.unaryop)
"""Parts of a file in which no import can be; they are most of it."""

Graph = Mapping[str, Collection[str]]


@dataclass(frozen=True)
class Import:
    """One import statement; *lazy* if it stands inside a function, *typing* if only type checkers execute it."""

    target: str
    line: int
    lazy: bool
    typing: bool


def module_name(path: Path, package: Path) -> str:
    """The module of a file."""
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """The package below ``anynpu`` that a module belongs to; ``anynpu`` itself is one too."""
    name = module.split(".")[1] if "." in module else module
    return EXTENSIONS.get(name, name)


def part_of(module: str) -> str:
    """The sub-package of :data:`PARTS` that a module belongs to, else its package."""
    inner = module.partition(".")[2]
    return next((part for part in PARTS if f"{inner}.".startswith(f"{part}.")), room_of(module))


def _last_name(node: ast.expr) -> str:
    """``name`` of both ``name`` and ``module.name``; empty for other expressions."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"


@functools.cache
def _statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom | ast.Constant, bool, bool]]:
    """The import statements of a file, and names that ``import_module`` is given: each with whether it is lazy, and for type checkers."""
    found: list[tuple[ast.Import | ast.ImportFrom | ast.Constant, bool, bool]] = []
    waiting: list[tuple[ast.AST, bool, bool]] = [(ast.parse(path.read_text(encoding="utf-8"), str(path)), False, False)]
    while waiting:
        node, lazy, typing = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, lazy, typing))
        elif isinstance(node, ast.Call) and _last_name(node.func) == "import_module" and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.append((name, lazy, typing))
        lazy = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typing = typing or _is_type_checking(node)
        waiting += reversed([(child, lazy, typing) for child in ast.iter_child_nodes(node) if not isinstance(child, _LEAVES)])
    return found


def imports_of(path: Path, package: Path, modules: Collection[str]) -> Iterator[Import]:
    """All imports of a file, with relative ones resolved; ``from room import name`` is the module *name* where there is one."""
    module = module_name(path, package)
    base = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node, lazy, typing in _statements(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy, typing)
        elif isinstance(node, ast.ImportFrom):
            start = base[: len(base) - node.level + 1] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield Import(inner if inner in modules else origin, node.lineno, lazy, typing)
        else:
            name = str(node.value)
            yield Import(".".join(base) + name if name.startswith(".") else name, node.lineno, lazy, typing)


def files_of(package: Path) -> list[Path]:
    """The files of the package itself."""
    return [
        path
        for path in sorted(package.rglob("*.py"))
        if not set(path.relative_to(package).parts[:-1]) & set(NOT_IMPORTED) and path.relative_to(package).stem not in ALIASES
    ]


@functools.cache
def module_imports(package: Path) -> dict[str, list[Import]]:
    """The imports of each module that stay inside the package, the target being a module."""
    files = files_of(package)
    modules = {module_name(path, package) for path in files} | {f"{package.name}.{name}" for name in EXTENSIONS}
    found: dict[str, list[Import]] = {}
    for path in files:
        module = module_name(path, package)
        found[module] = []
        for entry in imports_of(path, package, modules):
            target = entry.target
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != module:
                found[module].append(Import(target, entry.line, entry.lazy, entry.typing))
    return found


def module_graph(package: Path) -> dict[str, set[str]]:
    """Which modules each module imports when the program runs: at once or later, but not what only type checkers see."""
    return {module: {entry.target for entry in found if not entry.typing} for module, found in module_imports(package).items()}


def room_graph(package: Path, part: Callable[[str], str] = room_of) -> dict[str, set[str]]:
    """Which packages each package imports, in any way. ``anynpu`` itself, which loads public names on demand, is left out."""
    graph: dict[str, set[str]] = {}
    for module, found in module_imports(package).items():
        if module != package.name:
            own = graph.setdefault(part(module), set())
            own |= {part(entry.target) for entry in found} - {part(module), package.name}
    return graph


def cycle(graph: Graph) -> list[str]:
    """A cycle of the graph, its first node last again; empty if there is none.

    >>> cycle({"a": ["b"], "b": ["c"], "c": ["a"]}), cycle({"a": ["b"], "b": []})
    (['a', 'b', 'c', 'a'], [])
    """
    done: set[str] = set()
    for root in sorted(graph):
        path: list[str] = []
        waiting = [iter([root])]
        while waiting:
            node = next(waiting[-1], None)
            if node is None:
                waiting.pop()
                if path:
                    done.add(path.pop())
            elif node in path:
                return [*path[path.index(node) :], node]
            elif node not in done:
                path.append(node)
                waiting.append(iter(sorted(graph.get(node, ()))))
    return []


def levels(graph: Graph) -> dict[str, int]:
    """How many rooms stand below each: 0 for one that imports none, else one more than the highest that it imports."""
    found: dict[str, int] = {}

    def level(node: str) -> int:
        if node not in found:
            found[node] = 1 + max(map(level, graph.get(node, ())), default=-1)
        return found[node]

    for node in graph:
        level(node)
    return found


def _reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(graph.get(node, ()))
    return seen


def reduced(graph: Graph) -> dict[str, set[str]]:
    """The graph without arrows that follow from others."""
    below = {node: _reachable(graph, node) for node in graph}
    return {
        node: {target for target in targets if not any(target in below.get(other, ()) for other in targets)}
        for node, targets in graph.items()
    }


def picture(graph: Graph) -> str:
    """The rooms from top to bottom, each with the arrows that do not follow from others."""
    height = levels(graph)
    arrows = reduced(graph)
    lines = []
    for number in sorted(set(height.values()), reverse=True):
        for index, room in enumerate(sorted(room for room, level in height.items() if level == number)):
            targets = ", ".join(sorted(arrows.get(room, ()), key=lambda target: (-height[target], target)))
            label = "" if index else number
            lines.append(f"{label:>2}  {room:<12}{f' -> {targets}' if targets else ''}".rstrip())
    return "\n".join(lines) + "\n"


def updated(page: str, package: Path = PACKAGE) -> str:
    """The page with the picture of today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n```text\n{picture(room_graph(package))}```\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
