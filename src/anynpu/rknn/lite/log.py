"""The messages of the vendor's classes: a letter for the level, then the text, on stderr and in a file if one is named."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

__all__ = ["RKNNLog", "describe"]

if TYPE_CHECKING:
    _TextHandler = logging.StreamHandler[TextIO]
else:
    _TextHandler = logging.StreamHandler  # has no parameters in Python 3.10


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname[0]} {record.getMessage()}"


class _Stderr(_TextHandler):
    """Writes to what stderr is at that moment, as programs and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Logger(logging.Logger):
    """A logger outside of the process's tree. That tree forgets which levels are enabled when one is set, and does not know this logger."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return self.manager.disable < level >= self.getEffectiveLevel()


class RKNNLog:
    """The log of one object. Programs reach for its ``logger`` to set the level.

    It is no logger of the process's tree: objects of this kind come and go, and those of the tree stay for ever.

    :param verbose: also say what is only worth knowing
    :param verbose_file: a file that gets the same lines
    """

    def __init__(self, name: str, verbose: bool = False, verbose_file: str | None = None) -> None:
        self.logger = _Logger(name, logging.DEBUG if verbose else logging.WARNING)
        handlers: list[logging.Handler] = [_Stderr()]
        if verbose_file:
            handlers.append(logging.FileHandler(verbose_file, delay=True))
        for handler in handlers:
            handler.setFormatter(_Formatter())
            self.logger.addHandler(handler)
        self._said: set[str] = set()

    def once(self, text: str) -> None:
        """Warn, but not again with the same words."""
        if text not in self._said:
            self._said.add(text)
            self.logger.warning(text)

    def close(self) -> None:
        """Close the file, if there is one; a later message opens it again."""
        for handler in self.logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()


def describe(error: BaseException) -> str:
    """What is wrong and what to do about it, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
