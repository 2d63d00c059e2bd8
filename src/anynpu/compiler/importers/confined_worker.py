"""The process that reads one file of another framework for :mod:`anynpu.compiler.importers.confined`.

The libraries are imported first; then the process gives up its rights, and only then a library gets the file.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import pickle
import platform
import resource
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import AnynpuError

# Takes a process its rights: it cannot write files, start programs, use the network or act on other processes. Linux, without
# privileges.
#
# A seccomp filter lists the system calls that reading files, computing and threads need; all others fail with EPERM. It holds
# for all threads and cannot be removed. Open descriptors stay usable: they are the way in and out.


_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""What the kernel calls an architecture, and the column of its numbers below."""

_ALLOWED = """
read 0 63 write 1 64 close 3 57 stat 4 - fstat 5 80 lstat 6 - poll 7 - lseek 8 62 mmap 9 222 mprotect 10 226 munmap 11 215 brk 12 214
rt_sigaction 13 134 rt_sigprocmask 14 135 rt_sigreturn 15 139 pread64 17 67 readv 19 65 writev 20 66 access 21 - pipe 22 - select 23 -
sched_yield 24 124 mremap 25 216 msync 26 227 mincore 27 232 madvise 28 233 dup 32 23 dup2 33 - nanosleep 35 101 getpid 39 172 exit 60 93
uname 63 160 flock 73 32 getcwd 79 17 readlink 89 - gettimeofday 96 169 getrlimit 97 163 getrusage 98 165 sysinfo 99 179 times 100 153
getuid 102 174 getgid 104 176 geteuid 107 175 getegid 108 177 getppid 110 173 getpgrp 111 - getgroups 115 158 getresuid 118 148
getresgid 120 150 sigaltstack 131 132 statfs 137 43 fstatfs 138 44 arch_prctl 158 - gettid 186 178 futex 202 98 sched_getaffinity 204 123
getdents64 217 61 set_tid_address 218 96 restart_syscall 219 128 clock_gettime 228 113 clock_getres 229 114 clock_nanosleep 230 115
exit_group 231 94 epoll_wait 232 - epoll_ctl 233 21 newfstatat 262 79 readlinkat 267 78 faccessat 269 48 pselect6 270 72 ppoll 271 73
set_robust_list 273 99 epoll_pwait 281 22 eventfd2 290 19 epoll_create1 291 20 dup3 292 24 pipe2 293 59 preadv 295 69 getcpu 309 168
getrandom 318 278 membarrier 324 283 statx 332 291 rseq 334 293 faccessat2 439 439
"""
"""Name, number for x86-64, number for AArch64."""

_SECCOMP = (317, 277)
_SET_FILTER, _ALL_THREADS = 1, 1
_NO_NEW_PRIVILEGES, _END_WITH_PARENT, _SET_NAME, _NAME_MEMORY = 38, 1, 15, 0x53564D41
_SIGKILL = 9
_WRITING = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC | 0o20000000  # the last is the bit of O_TMPFILE alone
_CLONE_THREAD = 0x10000
_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate, and read or set flags; none that lets the kernel send signals
_IOCTL = (0x5401, 0x5451)  # whether it is a terminal, close on exec

_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06

Instruction = tuple[int, int, int, int]


class Confinement(OSError):
    """This system does not restrict a process; the text is the reason."""


def confine() -> None:
    """Restrict this process and all its threads, now and for good.

    :raises Confinement: the kernel does not do it, or it has no effect
    """
    known = _ARCHITECTURES.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
    if known is None:
        raise Confinement(f"there is no list of system calls for {sys.platform} on {platform.machine()}")
    audit, column = known
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    program = b"".join(struct.pack("<HBBI", *each) for each in _program(audit, column))
    code = ctypes.create_string_buffer(program)
    filter_ = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(code)))
    done = libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and libc.prctl(_END_WITH_PARENT, _SIGKILL, 0, 0, 0) == 0
    done = done and libc.syscall(_SECCOMP[column], _SET_FILTER, _ALL_THREADS, filter_) == 0
    if not done:
        raise Confinement(f"the kernel does not take a filter of system calls: {os.strerror(ctypes.get_errno())}")
    _check()


def _check() -> None:
    """Raise where the filter has no effect, as in an emulator of system calls."""
    try:
        socket.socketpair()[0].close()
    except PermissionError:
        return
    raise Confinement("the filter of system calls has no effect")


def _program(audit: int, column: int) -> list[Instruction]:
    """The filter as instructions of the kernel's BPF machine: operation, jump if true, jump if false, operand."""
    numbers = _ALLOWED.split()
    plain = [int(numbers[place + 1 + column]) for place in range(0, len(numbers), 3) if numbers[place + 1 + column] != "-"]
    own = os.getpid()
    special = [
        *([_rule(2, 1, any_bit=_WRITING, then=_deny())] if column == 0 else []),  # open
        _rule((257, 56)[column], 2, any_bit=_WRITING, then=_deny()),  # openat
        _rule((56, 220)[column], 0, any_bit=_CLONE_THREAD, then=_allow()),  # clone
        _rule((72, 25)[column], 1, values=_FCNTL),
        _rule((16, 29)[column], 1, values=_IOCTL),
        _rule((157, 167)[column], 0, values=(_SET_NAME, _NAME_MEMORY)),  # prctl
        _rule((302, 261)[column], 0, values=(0, own)),  # prlimit64
        _rule((234, 131)[column], 0, values=(own,)),  # tgkill
    ]
    missing = [(_EQUAL, 0, 1, number) for number in (435, 437)]  # clone3 and openat2 have their flags in memory, out of sight
    return [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, audit),
        _deny(),
        (_LOAD, 0, 0, 0),
        *(one for number in plain for one in ((_EQUAL, 0, 1, number), _allow())),
        *(one for each in missing for one in (each, (_RETURN, 0, 0, _FAIL | errno.ENOSYS))),
        *(one for rule in special for one in rule),
        _deny(),
    ]


def _allow() -> Instruction:
    return _RETURN, 0, 0, _ALLOW


def _deny() -> Instruction:
    return _RETURN, 0, 0, _FAIL | errno.EPERM


def _rule(
    number: int, argument: int, *, any_bit: int = 0, values: tuple[int, ...] = (), then: Instruction | None = None
) -> list[Instruction]:
    """Evaluates one system call by the lower half of an argument: allowed for *values*, or *then* for any of some bits."""
    yes = then or _allow()
    no = _deny() if yes == _allow() else _allow()
    tests = (
        [(_ANY_BIT, 1, 0, any_bit)]
        if any_bit
        else [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    )
    body = [(_LOAD, 0, 0, 16 + 8 * argument), *tests, no, yes]
    return [(_EQUAL, 0, len(body), number), *body]


def _exported(path: Path) -> Any:
    from .frameworks import load_exported, torch_to_onnx
    from .program_files import written_again_exported

    file = written_again_exported(path)
    _import("torch", "torch.export", "torch.onnx", "onnxscript")
    confine()
    return torch_to_onnx(load_exported(file, path))


def _script(path: Path, shapes: Any = None, example_inputs: Any = None) -> Any:
    from .frameworks import load_script, torch_to_onnx
    from .program_files import written_again_script

    file = written_again_script(path)
    _import("torch", "torch.onnx", "torchvision")
    confine()
    return torch_to_onnx(load_script(file, path), shapes, example_inputs)


def _keras(path: Path) -> Any:
    from .frameworks import read_keras_file
    from .program_files import check_keras_file

    check_keras_file(path)
    return read_keras_file(path, confine)


def _saved_model(path: Path) -> Any:
    from .frameworks import read_saved_model
    from .program_files import check_saved_model

    check_saved_model(path)
    return read_saved_model(path, confine)


CONVERSIONS: dict[str, Callable[..., Any]] = {
    "exported": _exported,
    "script": _script,
    "keras": _keras,
    "saved_model": _saved_model,
}


def _import(*names: str) -> None:
    """Import what a library would import later: some look for programs then, which a restricted process cannot start."""
    tempfile.tempdir = "/tmp"  # or the module looks for a folder that it can write to
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # the conversion names what is missing


def main() -> None:
    """Convert the file that standard input names; the result goes to standard output."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    kind, path, arguments = pickle.load(sys.stdin.buffer)
    try:
        answer = b"+" + CONVERSIONS[kind](Path(path), **arguments).SerializeToString()
    except (AnynpuError, Confinement) as error:
        text, hint = str(error).partition("\n  hint: ")[0], getattr(error, "hint", None) or ""
        answer = b"-" + json.dumps({"kind": type(error).__name__, "error": text, "hint": hint}).encode()
    except MemoryError:
        answer = (
            b"-" + json.dumps({"kind": "CompileError", "error": f"{path} needs more memory than there is", "hint": ""}).encode()
        )
    results.write(answer)
    results.flush()
    os._exit(0)
