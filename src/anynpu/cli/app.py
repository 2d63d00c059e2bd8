"""The application: its commands, and how a failure leaves it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from ..errors import AnynpuError
from ..vendors import registry, resolve
from .commands import (
    bench,
    calibrate,
    check,
    cluster,
    compare,
    compile,
    demo,
    doctor,
    inspect,
    lib,
    lint,
    optimize,
    predict,
    profile,
    run_model,
    samples,
    selftest,
    serve,
    top,
    twin,
)
from .commands import exec as exec_program
from .helpers.console import fail

__all__ = ["app", "run"]

app = typer.Typer(
    name="anynpu",
    help="Compile ONNX models for Rockchip and Allwinner NPUs and run them without the board.",
    epilog="Every command has its own help: anynpu compile --help",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile.command)
app.command("check")(check.command)
app.command("lint")(lint.command)
app.command("optimize")(optimize.command)
app.command("inspect")(inspect.command)
app.command("run")(run_model.command)
app.command("exec")(exec_program.command)
app.command("selftest")(selftest.command)
app.command("twin")(twin.command)
app.command("lib")(lib.command)
app.command("predict")(predict.command)
app.command("calibrate")(calibrate.command)
app.command("bench")(bench.command)
app.command("profile")(profile.command)
app.command("top")(top.command)
app.command("serve")(serve.command)
app.command("cluster")(cluster.command)
app.command("compare")(compare.command)
app.command("doctor")(doctor.command)
for vendor in registry.all_vendors():
    for name, function in vendor.commands.items():
        app.command(name)(resolve(function))
app.command("demo")(demo.command)
app.command("samples")(samples.command)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"anynpu {_installed_version()}\n")
        raise typer.Exit


def _installed_version() -> str:
    try:
        return metadata.version("anynpu")
    except metadata.PackageNotFoundError:
        return "(not installed)"


@app.callback()
def _application(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with *arguments* (the process's own by default) and exit."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="anynpu")
    except AnynpuError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    sys.exit(1)
