"""Compiles malformed models one after the other under a limit of memory, and states how each ended. Run as a process of its own.

Arguments: models with damaged bytes, rounds of structural mutations, bytes of address space, seconds for one model. The last line of
the output is a JSON report; each model's name is printed before it is compiled, so that a crash reports where it happened.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import anynpu
from anynpu import modelfile
from anynpu.errors import AnynpuError
from anynpu.modelfile.validate import validate_model

from .malformed import malformed

CHIPS = ("rk3588", "rv1106", "t527")


def samples(data: bytes) -> list[dict[str, Any]]:
    """One calibration sample in the shapes that the model declares, if it declares sensible ones."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # not even protobuf: the compiler must report it
        return [{}]
    sample = {}
    for value in proto.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if 0 < float(np.prod([float(extent) for extent in shape])) < 1e6 and min(shape, default=1) > 0:
            try:
                dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
                sample[value.name] = np.ones(shape, dtype)
            except (KeyError, ValueError, TypeError):
                continue
    return [sample]


def outcome(index: int, data: bytes) -> str:
    """How compiling ended: ``compiled``, the class of a typed error, or ``BAD`` and what should not have happened."""
    chip = CHIPS[index % len(CHIPS)]
    half = index % 2 == 1 and chip != "rv1106"
    try:
        model = anynpu.compile(data, chip, dtype="fp16") if half else anynpu.compile(data, chip, dataset=samples(data))
    except AnynpuError as error:
        return type(error).__name__ if error.hint else f"BAD no hint: {error}"
    except BaseException as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"BAD {type(error).__name__}: {str(error)[:200]} at {where.filename}:{where.lineno}"
    try:
        validate_model(model)
        modelfile.read(modelfile.to_bytes(model))
    except AnynpuError as error:
        return f"BAD program: {error}"
    return "compiled"


def main() -> None:
    bytes_cases, rounds, memory, seconds = map(int, sys.argv[1:5])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    counts: Counter[str] = Counter()
    bad: list[str] = []
    slowest = (0.0, "")
    for index, (name, data) in enumerate(malformed(bytes_cases, rounds)):
        print(f"{index} {name}", flush=True)
        faulthandler.dump_traceback_later(seconds, exit=True)
        started = time.perf_counter()
        result = outcome(index, data)
        faulthandler.cancel_dump_traceback_later()
        slowest = max(slowest, (time.perf_counter() - started, name))
        counts["bad" if result.startswith("BAD") else result] += 1
        if result.startswith("BAD"):
            bad.append(f"{index} {name}: {result}")
    # not ru_maxrss, which begins with that of the process that started this one
    peak = 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    print(json.dumps({"counts": counts, "bad": bad, "slowest": slowest, "peak": peak}))


if __name__ == "__main__":
    main()
