"""``anynpu exec``: run a program for a board on the software NPU."""

from __future__ import annotations

import enum
import os
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from ..._util.output_files import check_output
from ...devtools.recording import HASHES_VARIABLE, RECORD_VARIABLE
from ...devtools.sanitizer import Suppressions
from ...dropin.environment import ALWAYS, Observation, Sanitizing, board_machine, program_environment, with_provider
from ...errors import OutputFileError
from ..helpers.console import fail
from ..helpers.options import FaultsOption, optional_chip, use_faults

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit status that a shell gives in these cases."""
USAGE = 2


class ExecDevice(str, enum.Enum):
    """Which driver the board's kernel has."""

    SIM = "sim"
    ROCKET = "rocket"


class LogFormat(str, enum.Enum):
    """How calls are written."""

    HUMAN = "human"
    JSON = "json"


def _version(text: str | None) -> str | None:
    if text is not None and re.fullmatch(r"\d+\.\d+\.\d+\w*", text) is None:
        raise typer.BadParameter(f"'{text}' is not a version such as 2.3.2")
    return text


def command(
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENTS]...", help="What to run, after two dashes.")],
    chip: Annotated[
        str | None,
        typer.Option(
            "--chip", "-c", metavar="CHIP", help="The board's chip. Without it, that of each model.", callback=optional_chip
        ),
    ] = None,
    device: Annotated[
        ExecDevice,
        typer.Option("--device", help="The vendor's driver and libraries, or the mainline driver's /dev/accel/accel0 (rk3588)."),
    ] = ExecDevice.SIM,
    log: Annotated[str | None, typer.Option("--log", metavar="FILE|-", help="Write every call; - is stderr.")] = None,
    log_format: Annotated[
        LogFormat, typer.Option("--log-format", help="For readers, or a JSON object on each line.")
    ] = LogFormat.HUMAN,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="Write the calls for ui.perfetto.dev or chrome://tracing.")
    ] = None,
    board: Annotated[
        str | None, typer.Option("--board", metavar="NAME", help="Share the cores with all programs on this board.")
    ] = None,
    realtime: Annotated[bool, typer.Option("--realtime", help="Let every job take as long as on the chip.")] = False,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="NAME",
            help="Machine type that uname and platform.machine() report: by default the board's with --chip; host turns it off.",
        ),
    ] = None,
    stand_ins: Annotated[
        bool,
        typer.Option(
            "--stand-ins/--no-stand-ins",
            help="Whether Python finds our rknnlite, rknn and EZ RKNN Async before installed packages.",
        ),
    ] = True,
    api_version: Annotated[
        str | None,
        typer.Option(
            "--api-version",
            metavar="X.Y.Z",
            help="The version that the RKNN library states; by default the newest whose calls it answers.",
            callback=_version,
        ),
    ] = None,
    faults: FaultsOption = None,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE", help="Write calls and data for anynpu replay.")
    ] = None,
    record_hashes: Annotated[bool, typer.Option("--record-hashes", help="With --record: hashes in the place of data.")] = False,
    sanitize: Annotated[
        bool, typer.Option("--sanitize", help="Find what the program does wrong; it ends with status 23 if there is anything.")
    ] = False,
    sanitize_report: Annotated[
        str | None,
        typer.Option("--sanitize-report", metavar="FILE", help="Write the findings as JSON, or as SARIF (.sarif)."),
    ] = None,
    suppressions: Annotated[
        str | None,
        typer.Option("--suppressions", metavar="FILE", help="What the sanitizer must not report: KIND:PATTERN on each line."),
    ] = None,
    sanitize_exit_code: Annotated[
        int | None,
        typer.Option(
            "--sanitize-exit-code", metavar="N", help="Another status than 23; 0 for the program's own.", min=0, max=255
        ),
    ] = None,
    onnxruntime: Annotated[
        bool, typer.Option("--onnxruntime", help="Run the program's onnxruntime models on the NPU: Python, Node.js, C and C++.")
    ] = False,
    float16: Annotated[bool, typer.Option("--float16", help="With --onnxruntime: compile ONNX models as float16.")] = False,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            "--dataset",
            metavar="[MODEL=]FOLDER",
            help="With --onnxruntime: calibration data, for ONNX models as int8; repeatable.",
        ),
    ] = None,
) -> None:
    """Run a program for a board on the software NPU.

    The program finds librknnrt.so and librknnmrt.so, or libVIPlite.so, libNBGlinker.so and libawnn.so, and the device tree, memory
    heaps and NPU files of a board. Python programs find rknnlite.api, rknn.api and ztu_somemodelruntime_ez_rknn_async, and with
    --onnxruntime our sessions under that name: an .onnx file means its compiled model then, which is made at first use. Programs that link
    libonnxruntime.so get the execution provider. The exit status and signals are the program's own.

    \b
    Example:
      anynpu exec --chip rk3588 -- ./detector yolo.rknn street.jpg
      anynpu exec --chip rv1106 --log - -- ./detector yolo.rknn street.jpg
      anynpu exec --chip t527 -- ./classify lenet.nb digit.dat
      anynpu exec --chip rk3588 -- python detect.py yolo.rknn
      anynpu exec --chip rk3588 --onnxruntime --float16 -- python ocr.py page.png
      anynpu exec --chip rk3588 --onnxruntime -- node app.js
      anynpu exec --device rocket --sanitize -- ./classify_tflite mobilenet.tflite
      anynpu exec --chip rk3588 --sanitize --sanitize-report found.sarif -- ./detector yolo.rknn street.jpg
    """
    path = shutil.which(program[0])
    if path is None:
        exists = os.path.exists(program[0])
        advice = "check its path" if "/" in program[0] else f"give its path, such as ./{program[0]}"
        advice = "it needs the permission to be executed: chmod +x" if exists else advice
        fail(f"{program[0]} {'cannot be executed' if exists else 'was not found'}\n  hint: {advice}")
        raise typer.Exit(NOT_EXECUTABLE if exists else NOT_FOUND)
    mainline = device is ExecDevice.ROCKET
    if mainline and chip not in (None, "rk3588"):
        fail(f"the mainline driver rocket drives the NPU of rk3588, not of {chip}\n  hint: leave --chip out")
        raise typer.Exit(USAGE)
    chip = "rk3588" if mainline else chip
    if (float16 or dataset) and not onnxruntime:
        fail("--float16 and --dataset are for --onnxruntime\n  hint: add it, or compile the model first")
        raise typer.Exit(USAGE)
    if not sanitize and (sanitize_report or suppressions or sanitize_exit_code is not None):
        fail("--sanitize-report, --suppressions and --sanitize-exit-code are for --sanitize\n  hint: add it")
        raise typer.Exit(USAGE)
    if suppressions is not None:
        Suppressions.read(suppressions)  # reject now what the program could only complain about
    for name, written in (("--log", log), ("--trace", trace), ("--record", record), ("--sanitize-report", sanitize_report)):
        if written is not None and (name != "--log" or Path(written).is_file()):  # a log may go to a device
            try:
                check_output(written, [suppressions or "", faults or "", *program])
            except OutputFileError as error:
                raise typer.BadParameter(f"{error.message}; {error.hint}", param_hint=f"'{name}'") from None
    environment = program_environment(
        os.environ,
        chip=chip,
        board=board,
        realtime=realtime,
        observation=Observation(log, log_format.value, trace),
        machine=machine if machine is not None or chip is None else board_machine(chip),
        stand_ins=(*(ALWAYS if stand_ins else ()), *(("onnxruntime",) if onnxruntime else ())),
        api_version=api_version,
        sanitizing=Sanitizing(sanitize_report, suppressions, sanitize_exit_code) if sanitize else None,
        mainline=mainline,
    )
    use_faults(faults, environment)
    if record is not None:
        Path(record).write_bytes(b"")  # all processes of the program append to it
        environment[RECORD_VARIABLE] = os.path.abspath(record)
        environment[HASHES_VARIABLE] = "1" if record_hashes else "0"
    if onnxruntime:
        from ...session.onnxruntime.ports import program_variables  # here: it loads the sessions

        environment = program_variables(environment, float16=float16, datasets=dataset or ())
        environment = with_provider(environment, _provider_options(float16, dataset or []))
    try:
        os.execve(path, program, environment)
    except OSError as error:
        fail(f"{path} cannot be executed: {error.strerror}\n  hint: it must be a program for this machine")
        raise typer.Exit(NOT_EXECUTABLE) from None


def _provider_options(float16: bool, datasets: list[str]) -> dict[str, str]:
    """Options of the execution provider. Data for models by name are for Python's sessions alone."""
    folders = [os.path.abspath(entry) for entry in datasets if "=" not in entry]
    return {**({"dtype": "fp16"} if float16 else {}), **({"dataset": folders[0]} if folders else {})}
