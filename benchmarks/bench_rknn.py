"""What the RKNN calls cost besides the work: the same model through the calls and as the bare program of the engine.

One thread. The candidates take turns; ratios are of CPU time. ``soak()`` repeats whole inferences and looks at what grows.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import anynpu
from anynpu import Model, modelfile
from anynpu._rknn import ffi
from anynpu.cli.demo.detection import MEAN, STD, find_detector
from anynpu.cli.demo.pages import page
from anynpu.npu import Device, RunControl
from anynpu.rknn.constants import rknn_query_cmd, rknn_tensor_format, rknn_tensor_type
from anynpu.rknn.software.library import SoftwareLibrary

from . import print_table
from .engine_timing import cpu_times, verdict

DETECTION_GOAL = 1.06
TINY_GOAL_US = 60.0
DETECTION_SECONDS = 15.0
BLOCK = 200
ROUNDS = 60
SOAK_RUNS = 100_000
SOAK_GROWTH = 2**20
CALIBRATION_PAGES = 4
_UINT8, _NHWC = int(rknn_tensor_type.RKNN_TENSOR_UINT8), int(rknn_tensor_format.RKNN_TENSOR_NHWC)

Picture = npt.NDArray[np.uint8]


class Client:
    """A program that uses the calls as the vendor's examples do; its structs are made once."""

    def __init__(self, library: SoftwareLibrary, model: bytes, picture: Picture) -> None:
        self.library = library
        self._picture = picture
        handle = ffi.new("rknn_context *")
        _check(library.rknn_init(handle, ffi.from_buffer(model), len(model), 0, ffi.NULL))
        self.handle = int(handle[0])
        self._number = ffi.new("rknn_input_output_num *")
        _check(self.count())
        self._inputs = ffi.new("rknn_input[1]")
        self._inputs[0].buf, self._inputs[0].size = ffi.cast("void *", picture.ctypes.data), picture.nbytes
        self._inputs[0].type, self._inputs[0].fmt = _UINT8, _NHWC
        self._outputs = ffi.new("rknn_output[]", self._number.n_output)
        self._floats = []
        for index in range(self._number.n_output):
            attr = self._attr(rknn_query_cmd.RKNN_QUERY_OUTPUT_ATTR, index)
            self._floats.append(ffi.new("float[]", attr.n_elems))
            output = self._outputs[index]
            output.index, output.want_float, output.is_prealloc = index, 1, 1
            output.buf, output.size = self._floats[index], 4 * attr.n_elems

    def _attr(self, command: int, index: int) -> Any:
        attr = ffi.new("rknn_tensor_attr *")
        attr.index = index
        _check(self.library.rknn_query(self.handle, command, attr, ffi.sizeof("rknn_tensor_attr")))
        return attr

    def count(self) -> int:
        """A query."""
        return int(self.library.rknn_query(self.handle, 0, self._number, 8))

    def infer(self) -> None:
        """Inputs, run, outputs as float32."""
        library, handle = self.library, self.handle
        library.rknn_inputs_set(handle, 1, self._inputs)
        library.rknn_run(handle, ffi.NULL)
        library.rknn_outputs_get(handle, len(self._outputs), self._outputs, ffi.NULL)

    def bind(self) -> None:
        """From now on, the model reads and writes memory of the caller, as the NPU has it."""
        inputs = self._attr(rknn_query_cmd.RKNN_QUERY_NATIVE_INPUT_ATTR, 0)
        inputs.type, inputs.fmt = _UINT8, _NHWC
        attrs = [inputs]
        attrs += [self._attr(rknn_query_cmd.RKNN_QUERY_NATIVE_OUTPUT_ATTR, index) for index in range(len(self._outputs))]
        for attr in attrs:
            memory = self.library.rknn_create_mem(self.handle, attr.size_with_stride)
            _check(self.library.rknn_set_io_mem(self.handle, memory, attr))

    def run(self) -> None:
        """A run on memory that is bound."""
        self.library.rknn_run(self.handle, ffi.NULL)


def main() -> None:
    """Print the tables."""
    detection = _detection()
    _print_detection(detection)
    _print_small_calls(_tiny())


def _print_detection(model: Model) -> None:
    library = SoftwareLibrary()
    data = modelfile.to_bytes(model)
    client, bound = (Client(library, data, page(10_000)) for _ in range(2))
    client.infer()
    bound.bind()
    with Device(model.chip) as device:
        bare = _bare(device, model)
        times = cpu_times({"bare engine run": bare, "set, run, get": client.infer, "zero copy": bound.run}, DETECTION_SECONDS)
    base = times["bare engine run"]
    rows = []
    for name, taken in times.items():
        ratio = taken.median / base.median
        goal = verdict(ratio, DETECTION_GOAL) if name == "set, run, get" else ""
        rows.append([name, taken.milliseconds, f"{ratio:.3f}", goal])
    print_table("PP-OCRv4 detection 480x480, CPU time, best (median)", ["", "ms", "ratio of medians", "goal"], rows)
    library.close()


def _print_small_calls(model: Model) -> None:
    library = SoftwareLibrary()
    data = modelfile.to_bytes(model)
    picture = np.zeros(model.programs[0].input_specs[0].shape, np.uint8)
    client, bound = (Client(library, data, picture) for _ in range(2))
    client.infer()
    bound.bind()
    with Device(model.chip) as device:
        candidates: dict[str, Callable[[], object]] = {
            "bare engine run": _bare(device, model),
            "set, run, get": client.infer,
            "zero copy": bound.run,
            "a call that is rejected at once": lambda: library.rknn_run(0, ffi.NULL),
            "a query": client.count,
        }
        taken = _microseconds(candidates)
    base = taken["bare engine run"]
    rows = []
    for name, value in taken.items():
        added = f"{value - base:.1f}" if name in ("set, run, get", "zero copy") else ""
        goal = verdict(value - base, TINY_GOAL_US) if name == "set, run, get" else ""
        rows.append([name, f"{value:.1f}", added, goal])
    print_table("a tiny model, CPU time, median", ["", "us", "added", "goal"], rows)
    library.close()


def _microseconds(candidates: dict[str, Callable[[], object]]) -> dict[str, float]:
    """CPU time of one call: blocks of calls take turns, and the median block counts."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, candidate in candidates.items():
            begin = time.process_time()
            for _ in range(BLOCK):
                candidate()
            taken[name].append((time.process_time() - begin) / BLOCK * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


def _bare(device: Device, model: Model) -> Callable[[], object]:
    """The program bound to memory, without anything around it."""
    context = device.load(model).context()
    context.run([np.zeros(spec.shape, np.uint8) for spec in context.inputs])
    bound = context._bound
    assert bound is not None
    return lambda: (context, bound.run(RunControl()))


def soak() -> None:
    """A hundred thousand inferences of a small model: resident memory and open files must not grow."""
    library = SoftwareLibrary()
    model = _tiny()
    client = Client(library, modelfile.to_bytes(model), np.zeros(model.programs[0].input_specs[0].shape, np.uint8))
    marks = []
    for number in range(SOAK_RUNS + 1):
        if number % (SOAK_RUNS // 10) == 0:
            gc.collect()
            marks.append((_resident(), len(os.listdir("/proc/self/fd"))))
        client.infer()
    rows = [
        [str(index * SOAK_RUNS // 10), f"{resident / 2**20:.2f}", str(files)] for index, (resident, files) in enumerate(marks)
    ]
    print_table("a tiny model through the RKNN calls", ["runs", "resident MiB", "open files"], rows)
    library.close()
    warm = marks[1]  # the first runs make what is kept
    if marks[-1][1] > warm[1] or marks[-1][0] - warm[0] > SOAK_GROWTH:
        raise RuntimeError("inferences through the RKNN calls leave something behind")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"a call failed with {code}")


def _detection() -> Model:
    pages = [page(seed) for seed in range(CALIBRATION_PAGES)]
    return anynpu.compile(find_detector(), "rk3588", dataset=pages, mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)})


def _tiny() -> Model:
    """One convolution of an image of 8x8, as small as a model can be."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 1, 1)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return anynpu.compile(model, "rk3588", dataset=[rng.random((1, 3, 8, 8), np.float32)], mean=0, std=255)
