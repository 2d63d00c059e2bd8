"""``anynpu lib``: where the drop-in libraries and their headers are."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from ...dropin.environment import execution_provider, include_folder, library_folder, prefix, remember_python
from ..helpers.console import plain_table, print_json, results
from ..helpers.options import JsonOption


class LibraryName(str, enum.Enum):
    """A drop-in library, as the linker names it."""

    RKNNRT = "rknnrt"
    RKNNMRT = "rknnmrt"
    RGA = "rga"
    VIPLITE = "VIPlite"
    NBGLINKER = "NBGlinker"
    AWNN = "awnn"


def command(
    path: Annotated[bool, typer.Option("--path", help="Print the folder with the libraries.")] = False,
    include: Annotated[bool, typer.Option("--include", help="Print the folder with the headers.")] = False,
    cflags: Annotated[bool, typer.Option("--cflags", help="Print what to compile with.")] = False,
    libs: Annotated[bool, typer.Option("--libs", help="Print what to link with.")] = False,
    ep: Annotated[bool, typer.Option("--ep", help="Print the path of onnxruntime's execution provider.")] = False,
    library: Annotated[LibraryName, typer.Option("--library", "-l", help="Which library to link with.")] = LibraryName.RKNNRT,
    as_json: JsonOption = False,
) -> None:
    """Show where the drop-in libraries and their headers are.

    For builds: CMAKE_PREFIX_PATH=$(anynpu lib --path) finds the package anynpu, and so does
    PKG_CONFIG_PATH=$(anynpu lib --path)/pkgconfig.

    \b
    Example:
      anynpu lib
      cc detector.c $(anynpu lib --cflags --libs) -o detector
    """
    libraries, headers = library_folder(), include_folder()
    remember_python()
    if as_json:
        flags = {"cflags": f"-I{headers}", "libs": f"-L{libraries} -Wl,-rpath,{libraries} -l{library.value}"}
        print_json(
            {
                "libraries": str(libraries),
                "headers": str(headers),
                "prefix": str(prefix()),
                "ep": str(execution_provider()),
                **flags,
            }
        )
        return
    parts = [str(libraries)] if path else []
    parts += [str(headers)] if include else []
    parts += [f"-I{headers}"] if cflags else []
    parts += [f"-L{libraries} -Wl,-rpath,{libraries} -l{library.value}"] if libs else []
    parts += [str(execution_provider())] if ep else []
    if parts:
        results().print(" ".join(parts))
        return
    table = plain_table("what", "where")
    table.add_row("libraries", str(libraries))
    table.add_row("headers", str(headers))
    table.add_row("CMake", f"CMAKE_PREFIX_PATH={libraries}, find_package(anynpu), target anynpu::rknnrt and so on")
    table.add_row("pkg-config", f"PKG_CONFIG_PATH={libraries / 'pkgconfig'}, package rknnrt and so on")
    table.add_row("both in", str(prefix()))
    table.add_row("onnxruntime", f"{execution_provider()}, register_execution_provider_library")
    results().print(table)
