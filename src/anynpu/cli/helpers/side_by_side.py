"""The profile of a model on several chips: one column per chip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from ..._util.output_files import write_output
from ...analysis.report import Decision, decision_data, decision_of, decision_page
from ...chips import Chip
from ...compiler import ModelOutline
from .console import plain_table, print_json, results
from .predict_output import time_text

__all__ = ["side_by_side"]


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
