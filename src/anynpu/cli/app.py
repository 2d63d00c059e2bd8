"""The application: its commands, and how a failure leaves it.

A command's module is imported when the command is used. ``anynpu --help``, ``--version`` and the completion of names need none of them, and
so neither numpy nor a model library.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from .._util import optional as _optional
from ..errors import AnynpuError, PreprocessingWarning, ToolkitError
from .helpers import verbosity
from .helpers.verbosity import CheckedCommand

COMMANDS = {
    "compile": "Compile an ONNX model into an anynpu model for one chip.",
    "build": "Build the vendor model for a board, and the anynpu model that agrees with it.",
    "toolkit": "Install Rockchip's own toolkit, which 'anynpu build' uses, or show which one there is.",
    "check": "Show what runs on the NPU of a chip.",
    "lint": "Find int8 accuracy risks.",
    "optimize": "Rewrite a model for any int8 quantizer.",
    "export": "Write a quantized ONNX model with the scales of the config, for other tools.",
    "models": "List well-known networks, and print the config of one for 'anynpu compile -c'.",
    "inspect": "Show what is in a model file.",
    "run": "Run a compiled model on the software NPU, or an ONNX model in float32, and show what it sees.",
    "compare": "Compare two forms of one network, layer by layer.",
    "predict": "Predict how long a model takes on a chip.",
    "profile": "Show where the time goes, layer by layer, as predicted for the chip.",
    "report": "Report on a model for a decision: all chips side by side, with time, memory and accuracy.",
    "bench": "Measure latency and throughput, one request after the other and on all cores.",
    "calibrate": "Fit the timing model to measured models.",
    "serve": "Serve models over HTTP and gRPC to clients of the Open Inference Protocol (KServe, Triton).",
    "cluster": "Serve models on many boards as one, with Ray; Ctrl-C ends what was started.",
    "exec": "Run a program for a board on the software NPU.",
    "replay": "Make the calls of a recording again, and name the first that answers differently.",
    "lib": "Show where the drop-in libraries and their headers are.",
    "ort": "Write compiled models for programs that use onnxruntime.",
    "twin": "Make the anynpu model of a vendor's file, which programs then find by the file's hash.",
    "selftest": "Run networks whose bytes are known from a real RV1103, and compare byte by byte.",
    "doctor": "Look at device, driver, library, Python and environment, and state what to do.",
    "top": "Show the cores of this machine's virtual and real boards, live: load, jobs and queues.",
    "demo": "Text detection from model to image.",
    "samples": "Write small models and images to try the examples of the documentation with.",
    "completion": "Print the completion script of a shell.",
}
"""The commands in the order of the help, and what each does: the first sentence of its own help."""

GROUPS = {
    "Start": ("demo", "samples", "models", "doctor"),
    "Models": ("check", "compile", "inspect", "run"),
    "Boards": ("build", "toolkit", "exec", "replay", "selftest", "vpm-run"),
    "Accuracy": ("lint", "compare", "optimize"),
    "Speed": ("predict", "report", "bench", "profile", "calibrate", "top"),
    "Servers": ("serve", "cluster"),
    "Rarely needed": ("twin", "lib", "ort", "export", "completion"),
}
"""The groups of the help; a command that is in none belongs to the last one."""

_MODULES = {"run": "run_model"}
"""Modules that are not called as their command."""

_OF_VENDORS = {"vpm-run": "Run the networks of a sample.txt on files, as vpm_run of the boards does."}
"""What the vendors of this package add, so that the help need not load them; the tables of the vendors state who runs it."""


class _Commands(TyperGroup):
    """Commands that are imported at first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return [*COMMANDS, *_OF_VENDORS, *_others()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, imported; None if there is none."""
        function = _function(cmd_name)
        return None if function is None else _command(cmd_name, function)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The groups in the help."""
        texts = {**COMMANDS, **_OF_VENDORS, **{name: _first_sentence(_function(name)) for name in _others()}}
        widest = max(map(len, texts))
        limit = formatter.width - 6 - widest
        grouped = {name for names in GROUPS.values() for name in names}
        rest = [name for name in texts if name not in grouped]
        for title, names in GROUPS.items():
            shown = [*names, *(rest if title == [*GROUPS][-1] else ())]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), _shortened(texts[name], limit)) for name in shown])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; a near one is suggested."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            guess = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(self.list_commands(ctx))}"
            ctx.fail(f"there is no command {args[0]!r}{guess}")
        return super().resolve_command(ctx, args)


@functools.cache
def _command(name: str, function: Callable[..., None]) -> Any:
    single = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    single.command(name, cls=CheckedCommand)(verbosity.with_verbosity(function))
    return typer.main.get_command(single)


def _function(name: str) -> Callable[..., None] | None:
    if name in COMMANDS:
        module = importlib.import_module(f".commands.{_MODULES.get(name, name)}", __package__)
        found: Callable[..., None] = module.command
        return found
    from ..vendors import registry, resolve

    for vendor in registry.all_vendors():
        if name in vendor.commands:
            of_vendor: Callable[..., None] = resolve(vendor.commands[name])
            return of_vendor
    return None


def _others() -> list[str]:
    """Commands of vendors that other distributions bring."""
    if not _optional.entry_points("anynpu.vendors"):
        return []
    from ..vendors import registry

    return [name for vendor in registry.installed() for name in vendor.commands]


def _first_sentence(function: Callable[..., None] | None) -> str:
    return " ".join((getattr(function, "__doc__", "") or "").strip().split("\n\n")[0].split())


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: max(limit - 3, 1)].rsplit(' ', 1)[0]}..."


app = typer.Typer(
    name="anynpu",
    cls=_Commands,
    help="Develop, test and benchmark models for Rockchip and Allwinner NPUs without the board.",
    epilog="Every command has its own help: anynpu compile --help",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"anynpu {installed_version()}\n")
        raise typer.Exit


def installed_version() -> str:
    """The version of the installed distribution."""
    from importlib import metadata

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
    verbosity.reset()
    _complete()
    try:
        with _warnings_on_stderr():
            app(args=None if arguments is None else list(arguments), prog_name="anynpu")
    except ToolkitError as error:
        _fail(str(error), error)
        for line in error.lines:
            typer.echo(f"  | {line}", err=True)
    except AnynpuError as error:
        _fail(str(error), error)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), error)
    sys.exit(1)


@contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Print warnings of the compiler as those of a command, at once and with its options."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", PreprocessingWarning)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not isinstance(message, PreprocessingWarning):
                usual(message, category, filename, lineno, file, line)
            elif not verbosity.is_quiet():
                from .helpers.console import warn

                warn(message.flags_text)

        warnings.showwarning = show
        yield


def _complete() -> None:
    """Let the shell ask what may come next: typer answers where the shell's script has set its variable."""
    if "_ANYNPU_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def _fail(message: str, error: Exception) -> None:
    from .helpers.console import fail
    from .helpers.option_names import as_options

    fail(as_options(message))
    verbosity.explain(error)
