"""Compiles the native sources, with replay.c and with products.c, into programs without Python.

The files and flags are those that CMakeLists.txt names.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CompilationError", "Programs", "build_programs", "compile_objects"]

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "src" / "anynpu" / "native"
PLAIN_LEVELS = {"x86_64": ("generic", "avx2"), "aarch64": ("generic",)}
FAST_SETS = {"x86_64": ("vnni", "avx2"), "aarch64": ("neon", "neon_dotprod")}
COMMON_FLAGS = ("-std=gnu11", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
"""What CMake makes of the properties of a target and of a release."""


class CompilationError(Exception):
    """The compiler's words."""


@dataclass(frozen=True)
class Programs:
    """What was built: *replay* runs recorded layers, *products* multiplies matrices."""

    replay: Path
    products: Path


@dataclass(frozen=True)
class _Unit:
    source: Path
    flags: tuple[str, ...]


def build_programs(
    folder: Path, compiler: str, processor: str, flags: Sequence[str] = (), link_flags: Sequence[str] = ()
) -> Programs:
    """Compile everything into *folder*.

    :param processor: ``x86_64`` or ``aarch64``; another one has plain C only
    :param flags: after those of CMakeLists.txt
    """
    *objects, replay, products = compile_objects(folder, compiler, processor, flags, mains=("replay.c", "products.c"))
    programs = Programs(folder / "replay", folder / "products")
    for program, main in ((programs.replay, replay), (programs.products, products)):
        _call([compiler, *flags, *link_flags, *map(str, objects), str(main), "-lm", "-pthread", "-o", str(program)])
    return programs


def compile_objects(
    folder: Path, compiler: str, processor: str, flags: Sequence[str] = (), *, mains: Sequence[str] = ()
) -> list[Path]:
    """Compile the native sources and the programs *mains* into object files in *folder*; those of the programs come last."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")

    def compiled(numbered: tuple[int, _Unit]) -> Path:
        number, unit = numbered
        target = folder / f"{number}_{unit.source.stem}.o"
        _call([compiler, *unit.flags, *flags, f"-I{NATIVE}", "-c", str(unit.source), "-o", str(target)])
        return target

    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(compiled, enumerate(_units(lists, processor, mains))))


def _units(lists: str, processor: str, mains: Sequence[str]) -> Iterator[_Unit]:
    common = (*COMMON_FLAGS, *_values(lists, "set", "KERNEL_FLAGS"))
    fast = FAST_SETS.get(processor, ())
    for name in fast:
        for source in _values(lists, "set", f"SOURCES_{name}"):
            yield _Unit(NATIVE / source, (*common, *_values(lists, "set", f"FLAGS_fast_{name}")))
    for level in PLAIN_LEVELS.get(processor, ("generic",)):
        for source in _values(lists, "set", "LEVELLED_SOURCES"):
            yield _Unit(NATIVE / source, (*common, f"-DANYNPU_LEVEL={level}", *_values(lists, "set", f"FLAGS_{level}")))
    for source in _values(lists, "add_library", "native_common OBJECT"):
        yield _Unit(NATIVE / source, (*common, *(["-DANYNPU_FAST_KERNELS"] if fast else [])))
    for main in mains:
        yield _Unit(Path(__file__).with_name(main), (*common, "-Werror"))


def _values(lists: str, command: str, name: str) -> list[str]:
    """The values of ``command(name value...)``, which is there once."""
    found = re.findall(rf"^ *{command}\({name}\s+([^)]*)\)", lists, re.MULTILINE)
    assert len(found) == 1, f"CMakeLists.txt has {command}({name} ...) {len(found)} times"
    return [value.replace("${NATIVE}/", "") for value in found[0].split() if value != '""']


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompilationError(f"{' '.join(command)}\n{done.stderr}")
