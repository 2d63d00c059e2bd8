"""``anynpu profile``: where the time goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from ... import chips
from ..._util.output_files import write_output
from ...analysis.profile import Profile, chrome_trace, profile_events, profile_page, profile_program
from ...analysis.report import Decision, decision_data, decision_of, decision_page
from ...chips import Chip
from ...chips.timing.board import read_board
from ...compiler import ModelOutline
from ...errors import UnsupportedCall
from ...modelfile.recognize import open_source, vendor_of
from ...npu import Device, LoadedModel
from ...program import Model
from ...vendors import registry
from ...vendors.devices import SOFTWARE, choose_device
from ..helpers.console import plain_table, print_json, results
from ..helpers.models import TimedModel
from ..helpers.options import DEFAULT_CHIP, BatchOption, BoardOption, JsonOption, ShapeOption, parse_shapes
from ..helpers.predict_output import chips_of, several_chips, time_text
from ..helpers.summary import shape_text

# The profile of a model on several chips: one column per chip.


def side_by_side(
    model: Path, outline: ModelOutline, chips: Sequence[Chip], *, top: int, html: Path | None, as_json: bool
) -> None:
    """Print the layers that take longest, with their time on each chip; write the page if it is asked for."""
    made = decision_of(model.name, outline, chips)
    if html is not None:
        write_output(html, decision_page(made))
    if as_json:
        print_json(decision_data(made))
        return
    console = results()
    console.print(_layer_table(made, top))
    for entry in made.chips:
        if not entry.takes:
            console.print(f"{entry.chip.name}: {entry.refusal or 'the model does not fit into its memory'}")
        elif entry.profile is not None:
            console.print(f"{entry.chip.name}: {' '.join(entry.profile.advice())}")
    if html is not None:
        console.print(f"wrote {html}")


def _layer_table(decision: Decision, top: int) -> Table:
    names = [entry.chip.name for entry in decision.taking]
    times = {
        entry.chip.name: {layer.name: layer.time_us for layer in entry.profile.layers}
        for entry in decision.taking
        if entry.profile is not None
    }
    kinds = {layer.name: layer.kind for entry in decision.taking if entry.profile for layer in entry.profile.layers}
    slowest = sorted(kinds, key=lambda name: -max(times[chip].get(name, 0.0) for chip in names))
    table = plain_table("layer", "operator", *names, right=tuple(names))
    table.add_row("all layers", "", *(time_text(sum(times[chip].values())) for chip in names))
    for name in slowest[:top]:
        cells = (time_text(times[chip][name]) if name in times[chip] else "-" for chip in names)
        table.add_row(name, kinds[name], *cells)
    return table


_RUNS = 3


def command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="A compiled model, or an ONNX model.", exists=True, dir_okay=False, readable=True),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="CHIP,...|all",
            help="The chip, for an ONNX model; several with commas are shown side by side.",
            callback=several_chips,
        ),
    ] = None,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores that one run may use.")] = 1,
    board: BoardOption = None,
    shape: ShapeOption = None,
    batch: BatchOption = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Layers to list.")] = 15,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with charts.", dir_okay=False)] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace for Perfetto.", dir_okay=False)
    ] = None,
    host: Annotated[bool, typer.Option("--host", help="Also run it and measure each layer on this machine.")] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="DEVICE", help="Run it there and print the device's own table: rknn, rknn:PATH, sim ..."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the time goes, layer by layer, as predicted for the chip.

    \b
    Example:
      anynpu profile yolo.rknn --html profile.html
      anynpu profile yolo.onnx --target rk3566 --top 30
      anynpu profile yolo.onnx --target rk3588,rk3566 --html profile.html
      anynpu profile yolo.rknn --trace run.json      (open it in Perfetto)
      anynpu profile yolo.rknn --device rknn         (on a board: what its runtime measures)
    """
    if device is not None:
        _print_device_table(model, device)
        return
    shapes = parse_shapes(shape)
    if isinstance(shapes, list):
        raise typer.BadParameter("a profile has one shape for each input", param_hint="'--shape'")
    subject = TimedModel(model, shapes=shapes, batch=batch)
    compiled = subject.compiled
    if host and compiled is None:
        raise typer.BadParameter("only a compiled model can be run", param_hint="'--host'")
    asked = () if target is None else chips_of(target)
    if len(asked) > 1:
        if compiled is not None or board is not None or trace is not None:
            raise typer.BadParameter("several chips need an ONNX model, and neither --board nor --trace", param_hint="'--target'")
        side_by_side(model, ModelOutline(model, shapes=shapes, batch=batch), asked, top=top, html=html, as_json=as_json)
        return
    if compiled is not None and target is not None and chips.get(target).name != compiled.chip:
        raise typer.BadParameter(f"{model.name} was compiled for {compiled.chip}", param_hint="'--target'")
    timing = read_board(board) if board is not None else None
    chip = chips.get(timing.chip if timing is not None else compiled.chip if compiled is not None else target or DEFAULT_CHIP)
    program = subject.program(chip, subject.dtype(None))
    measured = _host_times(compiled) if host and compiled is not None else None
    made = profile_program(program, chip, cores=cores, board=timing, host_us=measured)
    if html is not None:
        write_output(html, profile_page(made, model.name))
    if trace is not None:
        write_output(trace, chrome_trace(profile_events(made), process=f"{model.name} on {chip.name}"))
    if as_json:
        print_json(_json(made, model.name))
        return
    _print(made, top)
    for path in filter(None, (html, trace)):
        results().print(f"wrote {path}")


def _print(profile: Profile, top: int) -> None:
    console = results()
    for sentence in profile.advice():
        console.print(sentence)
    console.print(f"{profile.chip.name}: {profile.prediction.confidence}")
    console.print()
    with_host = profile.host_us is not None
    heads = ["#", "layer", "operator", "output", "time", "share", "bound", "MACs", *(["host"] if with_host else [])]
    table = plain_table(*heads, right=("#", "time", "share", "MACs", "host"))
    total = sum(layer.time_us for layer in profile.layers) or 1.0
    for layer in profile.slowest(top):
        cells = [
            str(layer.index),
            layer.name,
            layer.kind,
            shape_text(layer.output_shape),
            f"{layer.time_us:.0f} us",
            f"{100 * layer.time_us / total:.1f} %",
            layer.bound.value,
            f"{100 * layer.mac_share:.0f} %" if layer.operations else "-",
        ]
        if with_host:
            cells.append("-" if layer.host_us is None else f"{layer.host_us:.0f} us")
        table.add_row(*cells)
    console.print(table)
    if len(profile.layers) > top:
        console.print(f"... and {len(profile.layers) - top} more")


def _print_device_table(model: Path, device: str) -> None:
    """What the device's runtime states about its last run: measured on a board, predicted by the software NPU."""
    choice = choose_device(device)
    found = vendor_of(open_source(model).data)
    vendor = registry.get(choice.kind) if choice.kind != SOFTWARE else registry.default() if found is None else found[0]
    if vendor.layer_table is None:
        raise UnsupportedCall(
            f"the runtime of {vendor.title} has no table of layers", hint="leave --device out: times are predicted"
        )
    results().print(Text(vendor.layer_table(model, device, _RUNS)))  # of several lines


def _host_times(model: Model) -> dict[int, float]:
    """Microseconds of each layer on this machine; the better of a few runs."""
    with Device(model.chip, realtime=False) as device:
        loaded: LoadedModel = device.load(model)
        with loaded.context() as context:
            for spec in context.inputs:
                context.input_buffer(spec.name).array(np.uint8)[:] = 0
            context.execute()
            best: dict[int, float] = {}
            until = time.monotonic() + 2.0
            for _ in range(5):
                for entry in context.execute(profile=True):
                    best[entry.layer] = min(best.get(entry.layer, float("inf")), entry.ns / 1000)
                if time.monotonic() > until:
                    break
            return best


def _json(profile: Profile, name: str) -> dict[str, Any]:
    layers = []
    for layer in profile.layers:
        entry = asdict(layer)
        entry["bound"] = layer.bound.value
        layers.append(entry)
    return {
        "model": name,
        "chip": profile.chip.name,
        "latency_ms": round(profile.latency_us / 1000, 4),
        "confidence": str(profile.prediction.confidence),
        "advice": profile.advice(),
        "layers": layers,
    }
