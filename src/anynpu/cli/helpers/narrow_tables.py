"""A table that keeps its first columns where the terminal is narrow."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["FittingTable"]

_MIN_FOLDED = 18
"""Characters that a column of text is folded to at most."""

_GAP = 3


class FittingTable(Table):
    """Leaves out columns from the right where they do not fit, and says so.

    Numbers are never broken. The last column of text that is shown may take several lines.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", **options)
        self._texts: list[tuple[RenderableType | None, ...]] = []

    def add_row(self, *renderables: RenderableType | None, **options: Any) -> None:
        """As of every table."""
        self._texts.append(renderables)
        super().add_row(*renderables, **options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What fits *options*, and a line about what does not."""
        kept = self._kept(options.max_width)
        if kept == len(self.columns):
            yield from super().__rich_console__(console, options)
            return
        shown = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column in self.columns[:kept]:
            shown.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow="fold")
        for texts in self._texts:
            shown.add_row(*texts[:kept])
        yield from shown.__rich_console__(console, options)
        hidden = ", ".join(str(column.header) for column in self.columns[kept:] if str(column.header))
        yield Text(f"left out, the terminal is too narrow: {hidden}\n", style="dim")

    def _kept(self, room: int) -> int:
        """How many columns fit; two at least."""
        widths = [self._width(index) for index in range(len(self.columns))]
        for count in range(len(widths), 2, -1):
            wanted = widths[:count]
            folding = [index for index in range(1, count) if not self.columns[index].no_wrap and wanted[index] > _MIN_FOLDED]
            if folding:
                wanted[folding[-1]] = _MIN_FOLDED
            if sum(wanted) + _GAP * (count - 1) <= room:
                return count
        return min(2, len(widths))

    def _width(self, index: int) -> int:
        cells = [self.columns[index].header, *(row[index] for row in self._texts if index < len(row))]
        return max(cell_len(str(cell)) for cell in cells if cell is not None)
