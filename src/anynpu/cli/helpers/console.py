"""Where text goes: results to stdout, progress and errors to stderr.

Names in a model file are whatever its author liked, escape sequences of terminals included. So this is the one place where text reaches a
terminal, and :func:`~anynpu._util.printable.printable` stands in it: a string is one line of harmless text. What has several lines is a
:class:`~rich.text.Text`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ..._util.printable import printable
from .verbosity import is_quiet

# A table that keeps its first columns where the terminal is narrow.


_MIN_FOLDED = 18
"""Characters that a column of text is folded to at most."""

_GAP = 3


class FittingTable(Table):
    """Leaves out columns from the right where they do not fit, and reports it.

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


ProgressFunction = Callable[[str, int, int | None], None]

_HINT = "\n  hint: "  # before the second line of an error
_STAGE_WIDTH = len("trying configs, 125 s left")
_LEAST_BAR, _ELAPSED = 8, " 0:00:00"
_OTHER_COLUMNS = len(f" {_LEAST_BAR * '━'} 100 %{_ELAPSED} ")
_PIPE_WIDTH = 240  # a table in a file or a pipe is not folded to the width of a terminal


class _SafeConsole(Console):
    """Shows text, and obeys none of it."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A string, also in the cell of a table: one line."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Everything else; rich marks its own control codes as such."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)


def results() -> Console:
    """The console for results (stdout). Text is printed as it is: brackets in names are not markup."""
    return _console(stderr=False)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return _SafeConsole(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True, width=width)


def fail(message: str) -> None:
    """Print an error to stderr; its hint, if any, is on the second line."""
    first, mark, hint = message.rpartition(_HINT)
    text = Text.assemble(("error: ", "bold red"), printable(first if mark else hint))
    if mark:
        text.append(f"{_HINT}{printable(hint)}", style="yellow")
    _console(stderr=True).print(text)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    _console(stderr=True).print(Text.assemble(("warning: ", "bold yellow"), printable(message)))


def print_json(data: Any) -> None:
    """JSON on stdout, indented, and nothing else."""
    results().print(Text(json.dumps(data, indent=2, ensure_ascii=False)))


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines, headers in bold; the columns named in *right* are aligned to the right.

    Where the terminal is too narrow, the columns at the right are left out.
    """
    table = FittingTable()
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=column in right, overflow="fold")
    return table


def bar_layout(width: int, description: int) -> tuple[int, bool, int]:
    """How long a bar is, whether a clock is beside it, and the space for the stage, in a terminal of some *width*.

    In a narrow one the clock would be cut off: it goes first, for the time that is left is worth more.
    """
    spare = width - description - _OTHER_COLUMNS - _STAGE_WIDTH
    if spare < 0:
        return _LEAST_BAR, False, max(min(_STAGE_WIDTH, _STAGE_WIDTH + spare + len(_ELAPSED)), 0)
    return min(_LEAST_BAR + spare, 24), True, _STAGE_WIDTH


@contextmanager
def progress_bar(description: str) -> Iterator[ProgressFunction]:
    """A bar on stderr. The block gets a function (stage, done, total) to report with.

    The bar is full, and stays on the screen, when the block ends well.
    """
    if is_quiet():
        yield _ignore
        return
    console = _console(stderr=True)
    bar, clock, room = bar_layout(console.width, len(description))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=bar),
        TaskProgressColumn("{task.percentage:>3.0f} %"),
        *([TimeElapsedColumn()] if clock else []),
        TextColumn("{task.fields[stage]}", style="dim"),
    )
    if not console.is_interactive:  # a log gets one line, when the work is done
        progress = Progress(*columns, console=console)
        progress.add_task(description, total=1, stage="")
        yield _ignore
        progress.update(progress.task_ids[0], completed=1)
        console.print(progress)
        return
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=None, stage="")
        left = TimeLeft()

        def report(stage: str, done: int, total: int | None) -> None:
            text = f"{stage}{left.text(stage, done, total)}"
            # of one width where there is space, or the bar would become longer and shorter with it
            progress.update(task, stage=text.ljust(room), completed=done, total=total)

        try:
            yield report
        except BaseException:
            progress.update(task, visible=False)  # an error message is enough
            raise
        progress.update(task, stage="", completed=1, total=1)


class TimeLeft:
    """How long a stage of some work will still take, by how long its parts took so far.

    :param clock: seconds; only differences matter
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, int, int]] = {}  # when a stage began, how much was done then, and how much last

    def text(self, stage: str, done: int, total: int | None) -> str:
        """What to state after the name of the stage; nothing where it cannot be determined yet, or where it is a second or less.

        >>> times = iter([0.0, 10.0])
        >>> left = TimeLeft(lambda: next(times))
        >>> left.text("fitting", 0, 6), left.text("fitting", 2, 6)
        ('', ', 20 s left')
        """
        now = self._clock()
        began, first, last = self._known.get(stage, (now, done, done))
        if stage in self._known and done <= last:  # it runs once more: one that ended early may have got just as far
            began, first = now, done
        self._known[stage] = began, first, done
        if total is None or done <= first:
            return ""
        seconds = (now - began) / (done - first) * max(total - done, 0)
        return f", {seconds:.0f} s left" if seconds > 1.0 else ""


def _ignore(stage: str, done: int, total: int | None) -> None:
    pass


def size_text(count: int) -> str:
    """Bytes for reading.

    >>> size_text(1_572_864), size_text(2048), size_text(12)
    ('1.5 MB', '2.0 kB', '12 B')
    """
    if count < 1024:
        return f"{count} B"
    if count < 1024 * 1024:
        return f"{count / 1024:.1f} kB"
    return f"{count / 1024 / 1024:.1f} MB"


def numbers(count: float) -> str:
    """A large count for reading.

    >>> numbers(1_740_000_000), numbers(25_000_000), numbers(512)
    ('1.74 G', '25.0 M', '512')
    """
    for limit, unit, digits in ((1e9, "G", 2), (1e6, "M", 1), (1e3, "k", 1)):
        if count >= limit:
            return f"{count / limit:.{digits}f} {unit}"
    return f"{count:.0f}"
