"""Findings as they are reported: once each, as text, JSON or SARIF, without those that a file suppresses.

Concurrency: one lock protects the list, the keys that were seen and the file; it is never held while the program runs.
"""

from __future__ import annotations

import fnmatch
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..._util.output_files import write_output
from ...errors import OptionError, OutputFileError
from .stacks import Stack, StackFrame, take

# The kinds of findings: what each means, what a board does, and how to fix it.
#
# The table of docs/messages.md is written from them.


@dataclass(frozen=True)
class Kind:
    """One kind of finding.

    :ivar id: its name, which suppressions and reports use
    :ivar title: in a few words
    :ivar board: what a board does with such a program
    :ivar mend: what to change
    """

    id: str
    title: str
    board: str
    mend: str


KINDS: dict[str, Kind] = {}


def kind(id: str) -> Kind:
    """The kind with this name.

    >>> kind("double-destroy").title
    'Destroyed twice'
    """
    return KINDS[id]


def _add(id: str, title: str, board: str, mend: str) -> None:
    KINDS[id] = Kind(id, title, board, mend)


# caches

_add(
    "input-not-flushed",
    "The NPU does not see what the CPU wrote",
    "The bytes are still in the CPU's cache. The NPU reads what main memory held before: an older image, or a mixture of both.",
    "After writing, call rknn_mem_sync(ctx, mem, RKNN_MEMORY_SYNC_TO_DEVICE) or vip_flush_buffer(buffer, VIP_BUFFER_OPER_TYPE_FLUSH); "
    "or leave RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE out, and rknn_run does it.",
)
_add(
    "output-not-invalidated",
    "The CPU does not see what the NPU wrote",
    "The CPU reads lines of its cache that are older than the run: results of an earlier image, or a mixture of both.",
    "Before reading, call rknn_mem_sync(ctx, mem, RKNN_MEMORY_SYNC_FROM_DEVICE) or "
    "vip_flush_buffer(buffer, VIP_BUFFER_OPER_TYPE_INVALIDATE); or leave RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE out.",
)

# lifetimes

_add(
    "use-after-destroy",
    "Used after it was destroyed",
    "The handle is an address inside the vendor's library: the call reads freed memory and crashes, or uses another caller's object.",
    "Destroy it after its last use; set the variable to 0 or NULL there.",
)
_add(
    "double-destroy",
    "Destroyed twice",
    "The vendor's library frees the same memory twice: the heap is damaged, and the program crashes there or later.",
    "Let one place own it, and set the variable to 0 or NULL after destroying it.",
)
_add(
    "unknown-handle",
    "A handle that was never given",
    "The vendor's library takes the number for an address and crashes.",
    "Check the result of the call that should have given it; initialize variables to 0 or NULL.",
)
_add(
    "destroyed-during-run",
    "Destroyed while a run uses it",
    "The NPU goes on reading and writing memory that belongs to another caller by then.",
    "Wait for the run (vip_wait_network, or the return of rknn_run in the other thread) before destroying what it uses.",
)
_add(
    "double-release",
    "Outputs released twice",
    "The vendor's library may free the same memory twice.",
    "Call rknn_outputs_release once for each rknn_outputs_get.",
)
_add(
    "outputs-not-released",
    "Outputs never released",
    "Each rknn_outputs_get without is_prealloc allocates; without rknn_outputs_release the program grows with every frame.",
    "Call rknn_outputs_release when the results were used, also on the paths that return early; or use is_prealloc.",
)
_add(
    "context-leak",
    "A context or network that is never destroyed",
    "Weights and internal memory of the model stay allocated, on boards with little memory until a reboot if the driver keeps them.",
    "Call rknn_destroy, rknn_matmul_destroy, vip_destroy_network or vip_destroy_group, also on the paths that return early.",
)
_add(
    "memory-leak",
    "Device memory that is never destroyed",
    "Contiguous memory is scarce on a board; another program, or the next start of this one, may find none.",
    "Call rknn_destroy_mem before rknn_destroy, or vip_destroy_buffer before vip_destroy.",
)
_add(
    "driver-leak",
    "vip_init without vip_destroy",
    "The driver keeps the session of the process, with its memory and the NPU's power, until it notices that the process is gone.",
    "Call vip_destroy as often as vip_init.",
)

# bounds

_add(
    "write-outside-buffer",
    "Written outside of a buffer",
    "The bytes are written to what follows in main memory: another tensor, the commands of the NPU, or another process.",
    "Compare the size that was asked for with what is written: size_with_stride of the attributes, or n_elems times the size of a type.",
)
_add(
    "stride-padding-written",
    "Rows written without their padding",
    "Each row begins w_stride pixels after the one before. Rows that follow each other without the padding shear the image.",
    "Copy row by row with w_stride where it is larger than the width.",
)
_add(
    "buffer-too-small",
    "A buffer that is too small for the tensor",
    "The call is rejected; where a version of the library does not look, it reads or writes beyond the end.",
    "Allocate size_with_stride of the attributes, or n_elems times the size of the type that is bound.",
)

# threads

_add(
    "written-during-run",
    "An input changed while the NPU was reading it",
    "The network sees parts of two images.",
    "Write the next image into a second buffer, and change over after the run.",
)
_add(
    "context-in-two-threads",
    "One context in two threads at the same time",
    "Contexts have no lock: inputs of one thread meet outputs of the other, or the library crashes.",
    "Give each thread a context of its own (rknn_dup_context shares the weights), or hold a lock from setting inputs to reading outputs.",
)

# order of calls

_add(
    "api-mixed",
    "General and zero-copy calls mixed on one context",
    "The vendor does not support it: inputs or outputs of the other way are stale or zero.",
    "Use rknn_inputs_set and rknn_outputs_get, or rknn_set_io_mem for all inputs and outputs.",
)
_add(
    "flush-disabled-general",
    "Flushing is disabled, and the general calls are used",
    "rknn_inputs_set and rknn_outputs_get go through the CPU's cache; with these flags it is not flushed, and data is stale.",
    "Leave RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE and ..._OUTPUT_MEM_CACHE out, or use zero copy with rknn_mem_sync.",
)
_add(
    "input-never-set",
    "An input that was never set",
    "The run is rejected, or the network computes on whatever the memory held.",
    "Set every input before the first run: rknn_inputs_set; or write to the memory that is bound.",
)
_add(
    "output-never-bound",
    "An output without memory",
    "The run is rejected: here every output needs memory of the program.",
    "Bind memory to each output: rknn_set_io_mem, vip_set_output.",
)
_add(
    "call-order",
    "Calls in the wrong order",
    "The call is rejected, or answers from a state that is not there yet.",
    "Make the call that has to come first; the text of the finding names it.",
)
_add(
    "deprecated-call",
    "A call that is going away",
    "Works today; a later version of the library may not have it.",
    "Use the call that the text of the finding names.",
)
_add(
    "not-on-board",
    "Works here and not on the board",
    "The chip or its library does not offer this: the call is rejected or does nothing.",
    "Look the call up in the table of calls by chip (docs/rknn.md), or leave it out.",
)
_add(
    "core-mask",
    "Cores that the chip does not have",
    "The call is rejected with an error and the run goes to the default core; programs that ignore the error are slower than they think.",
    "Ask for cores that the chip has, and look at the result; on chips with one core leave the call out.",
)
_add(
    "bad-argument",
    "An argument that cannot be right",
    "The call is rejected, or reads beyond an array.",
    "The text of the finding names what does not fit.",
)
_add(
    "repeated-index",
    "The same index in several rknn_input or rknn_output structs",
    "The vendor's runtime uses the position in the array; a program that relies on it breaks when the order of the array changes.",
    "Set index of each struct: for (i = 0; i < n; i++) outputs[i].index = i;",
)

# values

_add(
    "wrong-signedness",
    "Signed bytes read as unsigned, or the other way round",
    "The upper and the lower half of the values change places: the network sees another image and finds little or nothing.",
    "Give the type of the bytes that are there: RKNN_TENSOR_UINT8 for pixels, RKNN_TENSOR_INT8 for codes.",
)
_add(
    "wrong-element-size",
    "Wider elements read as bytes",
    "The network sees the bytes of float16 or float32 numbers as if each were a value: noise.",
    "Give the type of the elements that are there, and the size that belongs to it.",
)
_add(
    "wrong-layout",
    "Data in another order of axes than declared",
    "The network sees a third of the image three times, or colors as columns.",
    "State the layout of the data (RKNN_TENSOR_NHWC for images as decoders give them), or transpose it.",
)
_add(
    "values-out-of-range",
    "Values outside of what the model was calibrated for",
    "Codes saturate or collapse into a few levels: results are wrong without any error.",
    "Look at mean and std: they are applied once, by the compiled model or by the program, and pixels are 0 to 255 or 0 to 1.",
)

# command streams of the mainline driver

_add(
    "stream-incomplete",
    "Registers that a task does not write",
    "Two groups of registers alternate. A task that does not write all 126 words does not start, or starts with what "
    "the task before the last one wrote; the driver resets the core after 500 ms.",
    "Write every register of a convolution task and its four closing words; anynpu.npu.rocket.emit does.",
)
_add(
    "stream-rdma",
    "The reader of biases is not programmed",
    "The block DPU_RDMA waits for settings that never come: the task does not end.",
    "Write the registers of DPU_RDMA in every task, with MRDMA_DISABLE in FEATURE_MODE_CFG where nothing is added.",
)
_add(
    "stream-unknown",
    "A register or value whose effect is not known",
    "The task may hang, write elsewhere or compute something else; the kernel reports nothing.",
    "Use convolution tasks as anynpu.npu.rocket.emit writes them; the text of the finding names the register.",
)
_add(
    "stream-entries",
    "Too few entries for an input row",
    "Rows overlap in the convolution buffer: results are wrong where kernels are larger than 1x1.",
    "Set DATA_ENTRIES so that three planes of a pixel take four entries; 33 to 48 channels are such a case.",
)
_add(
    "stream-padding",
    "Odd channels of a depthwise convolution are padded with another value",
    "Odd channels below 32 of each 64 are padded with the second byte: the edges of these channels are wrong.",
    "Write the zero point to both low bytes of PAD_CON1: (zero & 0xFF) * 0x0101.",
)
_add(
    "stream-empty-slice",
    "A slice without output rows",
    "The height of -1 becomes 8,192 rows: the task writes far beyond its buffer, or hangs.",
    "Leave the last slice out where no window begins in it.",
)
_add(
    "stream-chained",
    "Several tasks in one start",
    "With one task per start the links are not followed; where they are, integer tasks after the first give garbage.",
    "Submit each task as a task of the job.",
)
_add(
    "stream-address",
    "An address outside of the buffers",
    "Nothing checks addresses: the NPU reads other buffers, or its access faults and the job hangs.",
    "Compare address and size of each operand with the buffers; addresses are those of CREATE_BO.",
)
_add(
    "stream-limit",
    "A limit of the chip is exceeded",
    "Fields overflow into their neighbors or features overwrite weights: garbage, or a task that does not end.",
    "Cut the convolution into slices of rows, or run it on the CPU.",
)
_add(
    "stream-weights",
    "Weights in the wrong order",
    "Channel slots without a channel add to the sums, or all weights after them are shifted.",
    "Pack the last block of channels as wide as whole planes, and fill its channel slots with minus the weight offset.",
)
_add(
    "job-same-buffer",
    "A buffer that a job both reads and writes",
    "The job waits for itself and does nothing; SUBMIT returns 0.",
    "Name each buffer in one of the two lists.",
)
_add(
    "job-unknown-buffer",
    "A job with a handle that does not exist",
    "The job is not queued; SUBMIT returns 0 and outputs keep their old bytes.",
    "Submit before GEM_CLOSE, and look at the result of CREATE_BO.",
)


MAX_FINDINGS = 100
"""Of one process; a program that is wrong in a loop should not fill a disk."""
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Finding:
    """One fault of a program.

    :ivar call: the call in which it was noticed
    :ivar text: what happened, with the names and numbers involved
    :ivar stack: where that call came from
    :ivar origin: where the object was made, if one is concerned
    """

    kind: Kind
    call: str
    text: str
    stack: Stack
    origin: Stack | None
    thread: int
    process: int

    @property
    def id(self) -> str:
        return self.kind.id

    def __str__(self) -> str:
        lines = [
            f"anynpu sanitizer: {self.id} in {self.call}: {self.kind.title}",
            f"  {self.text}",
            f"  on a board: {self.kind.board}",
            f"  to fix it: {self.kind.mend}",
            *(f"    #{index} {frame}" for index, frame in enumerate(self.stack.frames())),
        ]
        if self.origin is not None and self.origin is not self.stack and self.origin.frames():
            lines += ["  made here:", *(f"    #{index} {frame}" for index, frame in enumerate(self.origin.frames()))]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "id": self.id,
            "title": self.kind.title,
            "call": self.call,
            "text": self.text,
            "board": self.kind.board,
            "mend": self.kind.mend,
            "stack": [_frame(frame) for frame in self.stack.frames()],
            "origin": [] if self.origin is None else [_frame(frame) for frame in self.origin.frames()],
            "thread": self.thread,
            "process": self.process,
        }


def _frame(frame: StackFrame) -> dict[str, Any]:
    return {"function": frame.function, "file": frame.file, "line": frame.line}


class Suppressions:
    """What not to report. Each line of the file is ``KIND:PATTERN``; both may have ``*`` and ``?``, ``#`` begins a comment.

    The pattern is compared with the function, the file and the file's name of every frame, and with the call.

    >>> rules = Suppressions(["memory-leak:*/third_party/*  # not ours", "*:rknn_query"])
    >>> rules.cover("bad-argument", ["rknn_query"]), rules.cover("memory-leak", ["rknn_query", "/src/third_party/x.c"])
    (True, True)
    >>> rules.cover("memory-leak", ["main.c"])
    False
    """

    def __init__(self, lines: Iterable[str] = (), *, source: str = "suppressions") -> None:
        self._rules: list[tuple[str, str]] = []
        for number, line in enumerate(lines, 1):
            text = line.split("#", 1)[0].strip()
            id, colon, pattern = (part.strip() for part in text.partition(":"))
            if text and (not colon or not pattern or not fnmatch.filter(KINDS, id)):
                raise OptionError(
                    f"{source}, line {number}: '{text}' is not KIND:PATTERN", hint=f"the kinds are {', '.join(KINDS)}, or *"
                )
            if text:
                self._rules.append((id, pattern))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Suppressions:
        """Those of a file."""
        try:
            return cls(Path(path).read_text(encoding="utf-8").splitlines(), source=os.fspath(path))
        except OSError as error:
            raise OptionError(f"{os.fspath(path)} cannot be read: {error.strerror}", hint="check the path") from error
        except UnicodeDecodeError as error:
            raise OptionError(f"{os.fspath(path)} is not text in UTF-8", hint="write one KIND:PATTERN per line") from error

    def cover(self, id: str, names: Iterable[str]) -> bool:
        """Whether a finding of this kind with these names is suppressed."""
        rules = [pattern for wanted, pattern in self._rules if fnmatch.fnmatchcase(id, wanted)]
        return bool(rules) and any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in rules)


class Reporter:
    """Keeps what was found.

    :param stream: gets each finding at once
    :param path: a file for all of them: SARIF if its name ends so, else JSON; written after each one
    :param run: the same for all processes of one program, whose findings share the file
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        path: str | os.PathLike[str] | None = None,
        suppressions: Suppressions | None = None,
        run: str = "",
    ) -> None:
        self.run = run
        self.findings: list[Finding] = []
        self.suppressed = 0
        self._stream = stream
        self._path = None if path is None else Path(path)
        self._suppressions = suppressions or Suppressions()
        self._seen: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()
        self._write()

    def add(self, id: str, call: str, text: str, *, subject: object = None, origin: Stack | None = None) -> None:
        """Report one fault of the calling thread.

        :param subject: what it is about; the same fault of one subject is reported once, wherever it comes from
        """
        stack = take()
        if origin is not None and call == "exit":  # what is missing has no place; where the object was made has
            stack = origin
        made = None if origin is None else origin.key
        key = (id, call, stack.key, made) if subject is None else (id, subject, made)
        with self._lock:
            if key in self._seen or len(self._seen) >= MAX_FINDINGS:
                return
            self._seen.add(key)
        found = Finding(kind(id), call, text, stack, origin, threading.get_native_id(), os.getpid())
        if self._suppressions.cover(id, _names(found)):
            self.suppressed += 1
            return
        with self._lock:
            self.findings.append(found)
            if self._stream is not None:
                self._stream.write(f"{found}\n")
                self._stream.flush()
            self._write()

    def text(self) -> str:
        """All findings, for readers."""
        return "\n".join(str(found) for found in self.findings)

    def as_json(self) -> dict[str, Any]:
        """All findings as JSON."""
        return {
            "tool": "anynpu sanitizer",
            "version": 1,
            "run": self.run,
            "findings": [found.as_dict() for found in self.findings],
        }

    def as_sarif(self) -> dict[str, Any]:
        """All findings in the format that code hosts and editors read."""
        return {"$schema": _SARIF, "version": "2.1.0", "runs": [_sarif_run(self.findings, self.run)]}

    def _write(self) -> None:
        if self._path is None:
            return
        sarif = self._path.suffix.lower() == ".sarif"
        content = self.as_sarif() if sarif else self.as_json()
        try:
            write_output(self._path, json.dumps(_merged(self._path, content, sarif), indent=1))
        except OutputFileError as error:  # the program goes on
            if self._stream is not None:
                self._stream.write(f"anynpu sanitizer: {error.message}\n")
            self._path = None


def _merged(path: Path, content: dict[str, Any], sarif: bool) -> dict[str, Any]:
    """With what other processes of the program have written."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return content
    own = os.getpid()
    if sarif:
        mine = content["runs"][0]["properties"]
        marks = [(part, part.get("properties", {})) for part in before.get("runs", ())]
        kept = [part for part, mark in marks if mark.get("run") == mine["run"] and mark.get("process") != own]
        return {**content, "runs": [*kept, *content["runs"]]}
    if before.get("run") != content["run"]:
        return content
    kept = [found for found in before.get("findings", ()) if found.get("process") != own]
    return {**content, "findings": [*kept, *content["findings"]]}


def _names(found: Finding) -> list[str]:
    frames = (*found.stack.frames(), *(() if found.origin is None else found.origin.frames()))
    return [
        found.call,
        *(name for frame in frames for name in (frame.function, frame.file, os.path.basename(frame.file))),
    ]


def _sarif_run(findings: list[Finding], run: str) -> dict[str, Any]:
    used = sorted({found.id for found in findings})
    return {
        "tool": {"driver": {"name": "anynpu sanitizer", "rules": [_sarif_rule(KINDS[id]) for id in used]}},
        "results": [_sarif_result(found) for found in findings],
        "properties": {"process": os.getpid(), "run": run},
    }


def _sarif_rule(one: Kind) -> dict[str, Any]:
    return {
        "id": one.id,
        "shortDescription": {"text": one.title},
        "fullDescription": {"text": one.board},
        "help": {"text": one.mend},
    }


def _sarif_result(found: Finding) -> dict[str, Any]:
    frames = found.stack.frames()
    result: dict[str, Any] = {
        "ruleId": found.id,
        "level": "error",
        "message": {"text": f"{found.call}: {found.text} {found.kind.mend}"},
        "locations": [_sarif_location(frame) for frame in frames[:1]],
    }
    if frames:
        result["stacks"] = [{"frames": [{"location": _sarif_location(frame)} for frame in frames]}]
    return result


def _sarif_location(frame: StackFrame) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": Path(frame.file).as_uri() if frame.file.startswith("/") else frame.file}}
    if frame.line:
        place["region"] = {"startLine": frame.line}
    return {"physicalLocation": place, "message": {"text": frame.function}}
