"""Where in the program a call came from: the Python frames outside of anynpu, or the C frames outside of the drop-in library.

A C stack is a list of addresses when it is taken; names and lines are looked up when it is read (``addr2line``, where there is one).
"""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_OWNED = tuple(
    os.path.join(_PACKAGE, *part.split("/"))
    for part in (
        *("session/", "serve/", "onnxruntime/", "tasks/"),
        *("rknn/context.py", "rknn/matmul.py", "rknn/model.py", "rknn/tensormemory.py"),
        *("vip/network.py", "vip/buffer.py", "vip/awnn.py", "vip/network.py"),
    )
)
"""Objects of Python that close what they opened when the last reference is gone."""
_EXPLICIT = os.path.join(_PACKAGE, os.path.normpath("rknn/lite"), "")
"""The vendor's class, which has to be released."""
_BOARD = "libanynpu_board.so"
"""The library that lies beside the drop-in libraries."""
_MAX_FRAMES = 24
_MAX_KNOWN = 4096
_OUR_CODE, _OWNED_CODE, _EXPLICIT_CODE = 1, 2, 3
_SECONDS = 10.0


@dataclass(frozen=True)
class StackFrame:
    """One place of a program.

    :ivar function: its name; without debug information the nearest symbol, or where the binary has none, the offset in the binary
    :ivar file: the source, or the binary where no source is known
    :ivar line: 0 where it is not known
    :ivar command: what prints the source and line of a binary's address, once the program has debug information
    """

    function: str
    file: str
    line: int
    command: str = ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.function} {self.file}:{self.line}"
        return f"{self.function} ({self.file}{f'; {self.command}' if self.command else ''})"


@dataclass(frozen=True)
class Stack:
    """A stack as it was taken, innermost frame first.

    :ivar python: frames of Python, outside of anynpu
    :ivar addresses: return addresses of C, where there are no frames of Python
    :ivar owned: taken below an object of Python that closes what it opens: a session, a context
    """

    python: tuple[StackFrame, ...] = ()
    addresses: tuple[int, ...] = ()
    owned: bool = False

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same place."""
        return self.python[:3] or self.addresses

    def frames(self) -> tuple[StackFrame, ...]:
        """With names and lines, where they are known."""
        return self.python or _symbolised(self.addresses)


def take() -> Stack:
    """The stack of the calling thread.

    Programs come to the same few places again and again: a stack is made of names and lines once, and found by its code objects later.
    """
    frame: Any = sys._getframe(1)
    owned = False
    while frame is not None and (whose := _whose(frame.f_code)):
        owned = (owned or whose == _OWNED_CODE) and whose != _EXPLICIT_CODE
        frame = frame.f_back
    places: list[Any] = [owned]
    while frame is not None and len(places) <= 2 * _MAX_FRAMES:
        places += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    if len(places) == 1:
        return _of_addresses(_addresses(), owned)
    key = tuple(places)
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        known = _known[key] = _of_places(key)
    return known


_known: dict[tuple[Any, ...], Stack] = {}
"""Stacks that were taken, by whether they are owned, and code and instruction of each frame. A lost entry is made again."""


def _of_places(key: tuple[Any, ...]) -> Stack:
    frames = []
    for code, instruction in zip(key[1::2], key[2::2], strict=True):
        if _whose(code):
            continue
        line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
        frames.append(StackFrame(code.co_name, code.co_filename, line or code.co_firstlineno))
    return Stack(tuple(frames), owned=bool(key[0]))


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _whose(code: CodeType) -> int:
    """0 for code of the program, else what kind of ours it is."""
    name = code.co_filename
    if not name.startswith(_PACKAGE):
        return 0
    return _EXPLICIT_CODE if name.startswith(_EXPLICIT) else _OWNED_CODE if name.startswith(_OWNED) else _OUR_CODE


class _Place(ctypes.Structure):
    """``Dl_info``."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


@functools.cache
def _libc() -> Any:
    """The C library's functions for stacks, or None."""
    try:
        library = ctypes.CDLL(None)
        library.backtrace.argtypes = (ctypes.POINTER(ctypes.c_size_t), ctypes.c_int)
        library.dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Place))
    except (AttributeError, OSError):  # not every C library has them
        return None
    return library


def _addresses() -> tuple[int, ...]:
    """All return addresses of the calling thread."""
    libc = _libc()
    if libc is None:
        return ()
    room = (ctypes.c_size_t * 96)()
    return tuple(room[: libc.backtrace(room, len(room))])


@functools.lru_cache(maxsize=_MAX_KNOWN)
def _of_addresses(taken: tuple[int, ...], owned: bool) -> Stack:
    """Those of the program: behind the drop-in library."""
    last = -1
    for index, address in enumerate(taken):
        if _is_drop_in(_place(address)[0]):
            last = index
    return Stack((), taken[last + 1 : last + 1 + _MAX_FRAMES] if last >= 0 else (), owned)


def _place(address: int) -> tuple[str, int, str]:
    """The binary, where it begins, and the symbol of an address."""
    libc, place = _libc(), _Place()
    if libc is None or not libc.dladdr(address, ctypes.byref(place)):
        return "", 0, ""
    name = os.fsdecode(place.file or b"")
    return name, int(place.base or 0), (place.name or b"").decode(errors="replace")


@functools.lru_cache(maxsize=256)
def _is_drop_in(binary: str) -> bool:
    return bool(binary) and os.path.exists(os.path.join(os.path.dirname(binary), _BOARD))


@functools.lru_cache(maxsize=256)
def _symbolised(addresses: tuple[int, ...]) -> tuple[StackFrame, ...]:
    frames: list[StackFrame] = []
    for address in addresses:
        binary, base, symbol = _place(address - 1)
        path = _real(binary)
        offset = address - 1 - (0 if _is_fixed(path) else base)
        found, nearest = _sources(path, offset) if path else ([], "")
        if not found and binary:
            command = shlex.join(("addr2line", "-i", "-f", "-C", "-e", path, hex(offset)))
            found = [StackFrame(nearest or symbol or f"+{address - base:#x}", path, 0, command)]
        if any(frame.function.startswith(("__libc_start", "start_thread")) for frame in found):
            break  # from here on it is the C library
        frames += found
        if any(frame.function == "main" for frame in found):
            break
    return tuple(frames)


def _real(binary: str) -> str:
    """The dynamic linker names a program as it was called."""
    if os.path.isabs(binary) and os.path.exists(binary):
        return binary
    try:
        program = os.readlink("/proc/self/exe")
    except OSError:
        return binary
    return program if os.path.basename(program) == os.path.basename(binary) else binary


@functools.lru_cache(maxsize=64)
def _is_fixed(binary: str) -> bool:
    """Whether a program was linked for a fixed address."""
    try:
        with open(binary, "rb") as file:
            return file.read(18)[16:18] == b"\x02\x00"
    except OSError:
        return False


def _sources(binary: str, offset: int) -> tuple[list[StackFrame], str]:
    """What the debug information states: one place, and those that it was inlined into; and the nearest symbol of the binary."""
    tool = shutil.which("addr2line")
    if tool is None:
        return [], ""
    plain = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}  # not with what exec preloads
    command = [tool, "-i", "-f", "-C", "-e", binary, hex(offset)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=plain, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return [], ""
    lines = done.stdout.splitlines()
    frames = []
    for function, place in zip(lines[::2], lines[1::2], strict=False):
        file, _, line = place.partition(" ")[0].rpartition(":")
        if function != "??" and file != "??" and line.isdigit():
            frames.append(StackFrame(function, file, int(line)))
    return frames, lines[0] if lines and lines[0] != "??" else ""
