"""``anynpu calibrate``: fit the timing model to measured models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ... import chips
from ...chips.timing.board import write_board
from ...chips.timing.calibration import Fit, Measurement, fit
from ...chips.timing.layers import ProgramWork, work_of
from ...chips.timing.parameters import TimingProfile, derived_parameters, timing_profile
from ...errors import CalibrationError
from ..helpers.console import ProgressFunction, plain_table, print_json, progress_bar, results
from ..helpers.measured import Row, read_logs, read_rows
from ..helpers.models import TimedModel
from ..helpers.options import JsonOption, TargetOption

__all__ = ["command"]

_OUTLIER = 0.15


def command(
    target: TargetOption,
    measured: Annotated[
        Path | None,
        typer.Argument(
            metavar="MEASURED.csv",
            help="One line per model: model,ms or model,fps or model,log; also dtype, cores, chip.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log", metavar="MODEL=TEXT", help="A model, and a file with what the board printed about its run; repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The profile to write (JSON).", dir_okay=False)
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="FOLDER", help="Where the models are.", exists=True, file_okay=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start from the hardware's figures, not from what is known of the chip.")
    ] = False,
    sdk: Annotated[str, typer.Option("--sdk", metavar="VERSION", help="The vendor's software that was measured.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Fit the timing model to measured models.

    Times come from a CSV file, or straight from what a board printed: the vendor's table of layers (PERF_DETAIL, eval_perf), its
    benchmark program, the VIPLite runner. Two to nine models give a board's scale and offset against its chip; ten and more int8
    models give all six parameters. The errors of models that were left out of the fit are printed. Other commands use the profile
    with --board FILE.

    \b
    Example:
      anynpu calibrate measured.csv --target rk3588 -o desk.json
      anynpu calibrate --log yolo.onnx=perf.txt --log resnet.onnx=perf2.txt --target rk3588 -o desk.json
      anynpu predict yolo.onnx --board desk.json
    """
    chip = chips.get(target)
    if measured is None and not log:
        raise typer.BadParameter("give a CSV file, or --log MODEL=TEXT", param_hint="'MEASURED.csv'")
    given = [*(read_rows(measured, models) if measured is not None else ()), *read_logs(log or ())]
    rows = [row for row in given if row.chip in ("", chip.name)]
    origin = measured.name if measured is not None else "texts of the board"
    if not rows:
        raise CalibrationError(f"{origin} has no measurements of {chip.name}", hint="name the chip that was measured")
    known = timing_profile(chip)
    start = derived_parameters(chip) if fresh else known.parameters
    with progress_bar(f"reading {len(rows)} models") as progress:
        entries = _measurements(rows, chip, progress)
    fitted = fit(entries, chip, start)
    profile = TimingProfile(
        chip.name,
        fitted.parameters,
        True,
        f"{len(fitted.left_out)} models of {origin}, {fitted.form}",
        sdk,
        len(fitted.left_out),
        fitted.median_error,
        fitted.worst_error,
        {name: round(error, 3) for name, error in fitted.left_out.items() if abs(error) > _OUTLIER},
        float_numbers=known.float_numbers,
        float_error=known.float_error,
    )
    if output is not None:
        write_board(profile, output)
    if as_json:
        print_json(_as_json(profile, fitted, entries))
    else:
        _print(profile, fitted, entries, output)


def _measurements(rows: list[Row], chip: chips.Chip, progress: ProgressFunction) -> list[Measurement]:
    known: dict[Path, TimedModel] = {}
    entries: list[Measurement] = []
    names: set[str] = set()
    for index, row in enumerate(rows):
        progress(row.model.name, index, len(rows))
        if row.cores > chip.cores:
            raise CalibrationError(
                f"{row.model.name}: {chip.name} has {chip.cores} cores, not {row.cores}", hint="check the file"
            )
        if row.model not in known:
            known[row.model] = TimedModel(row.model)
        work: ProgramWork = work_of(known[row.model].program(chip, row.dtype), chip)
        name = row.model.stem if row.model.stem not in names else f"{row.model.stem} ({len(names) + 1})"
        names.add(name)
        entries.append(Measurement(name, work, row.milliseconds, row.cores))
    return entries


def _as_json(profile: TimingProfile, fitted: Fit, entries: list[Measurement]) -> dict[str, object]:
    from dataclasses import asdict

    return {
        **asdict(profile),
        "form": fitted.form,
        "measured": [
            {
                "model": entry.name,
                "dtype": entry.work.dtype,
                "measured_ms": entry.milliseconds,
                "error": fitted.errors[entry.name],
                "error_left_out": fitted.left_out.get(entry.name),
            }
            for entry in entries
        ],
    }


def _print(profile: TimingProfile, fitted: Fit, entries: list[Measurement], output: Path | None) -> None:
    console = results()
    table = plain_table("model", "type", "measured", "fitted", "left out", right=("measured", "fitted", "left out"))
    for entry in entries:
        table.add_row(
            entry.name,
            entry.work.dtype,
            f"{entry.milliseconds:.2f} ms",
            _percent(fitted.errors[entry.name]),
            _percent(fitted.left_out.get(entry.name)),
        )
    console.print(table)
    console.print()
    numbers = profile.parameters
    if fitted.form == "full":
        console.print(
            f"{profile.chip}: {numbers.macs_per_ns:.1f} MAC/ns   {numbers.bytes_per_ns:.2f} GB/s   "
            f"look-up {numbers.lookup_ns:.2f} ns   floor {numbers.floor_ns / 1000:.1f} us   "
            f"slow {numbers.slow_ns:.3f} ns   CPU {numbers.cpu_ns:.3f} ns"
        )
    else:
        console.print(f"{profile.chip}: {numbers.scale:.3f} * predicted {numbers.offset_ns / 1e6:+.2f} ms")
    console.print(f"left out one by one: median error {fitted.median_error:.1%}, largest {fitted.worst_error:.1%}")
    if output is not None:
        console.print(f"wrote {output}")


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"
