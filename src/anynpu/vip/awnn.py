"""libawnn: a network in eight calls, as Allwinner's examples use it.

The vendor ships this as source that each program compiles in. Here it is a class, :class:`Awnn`, the functions under the vendor's
names, and ``libawnn.so`` for programs in C. Inputs are the network's own bytes, not converted in any way; outputs are converted
to float32.

Where the vendor's source leaves memory as it finds it, the result is defined here: a tensor without quantization gives its
elements as numbers, and bfloat16, integers, booleans and four-bit quantized values are converted as well.

>>> awnn_init()                                                                  # doctest: +SKIP
>>> context = awnn_create("lenet.nb")                                            # doctest: +SKIP
>>> awnn_set_input_buffers(context, [digit])                                     # doctest: +SKIP
>>> awnn_run(context)                                                            # doctest: +SKIP
>>> (scores,) = awnn_get_output_buffers(context)                                 # doctest: +SKIP
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .._util.lifetime import Closeable
from .._util.types import Array
from ..errors import DeviceClosed, ParameterError, ShapeError
from ..program.convert import convert
from ..tensor import DType, TensorSpec
from ..vendors.devices import DeviceChoice
from .buffer import Buffer
from .info import TensorInfo
from .interface import VipLibrary
from .library import check, open_library
from .network import Network

Bytes = bytes | bytearray | memoryview | Array

_lock = threading.Lock()
_libraries: list[VipLibrary] = []
"""What each :func:`awnn_init` opened, for the :func:`awnn_uninit` that belongs to it; under the lock."""


class Awnn(Closeable):
    """A network with its buffers: what ``awnn_create`` gives.

    :param model: a file
    :param device: see :mod:`anynpu.vendors.devices`; or a library object

    Threads: runs of one context take turns, as in the vendor's source; everything else is for one thread at a time.
    """

    def __init__(self, model: str | os.PathLike[str], *, device: str | DeviceChoice | VipLibrary | None = None) -> None:
        self.network = Network(model, device=device)
        self._run_lock = threading.Lock()
        self._given: list[Array] = []
        self._inputs: list[tuple[TensorInfo, Buffer]] = []
        self._outputs: list[tuple[TensorInfo, Buffer]] = []
        try:
            self._inputs = [(info, self.network.bind_input(info.index)) for info in self.network.inputs]
            self._outputs = [(info, self.network.bind_output(info.index)) for info in self.network.outputs]
        except BaseException:
            self.network.close()
            raise
        self._floats = [np.zeros(info.elements, np.float32) for info, _ in self._outputs]

    def set_input_buffers(self, buffers: Sequence[Bytes]) -> None:
        """Copy the inputs: for each as many bytes as its buffer has, already in the network's own format.

        Arrays of the network's type are bytes, too. They are kept for :meth:`dump_io`.
        """
        if len(buffers) != len(self._inputs):
            raise ParameterError(
                f"{len(buffers)} inputs for a network with {len(self._inputs)}", hint="pass a list with one entry for each input"
            )
        given = []
        for data, (info, buffer) in zip(buffers, self._inputs, strict=True):
            flat = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
            flat = flat.reshape(-1).view(np.uint8)
            if flat.size < buffer.size:
                raise ShapeError(
                    f"input '{info.name}' takes {buffer.size} bytes, got {flat.size}",
                    hint=f"pass {info.data_format.name} in the order {list(info.shape)}",
                )
            buffer.bytes()[:] = flat[: buffer.size]
            buffer.flush()
            given.append(flat[: buffer.size])
        self._given = given

    def run(self) -> None:
        """Execute, and convert the outputs to float32. If it fails, the outputs of the run before stay."""
        with self._run_lock:
            self.network.execute()
            for (info, buffer), floats in zip(self._outputs, self._floats, strict=True):
                buffer.invalidate()
                floats[:] = to_float(buffer.array(), info)

    def get_output_buffers(self) -> list[npt.NDArray[np.float32]]:
        """The outputs as numbers: flat arrays that belong to the context and that the next run writes again."""
        return list(self._floats)

    def get_output_buffer(self, index: int) -> npt.NDArray[np.uint8]:
        """The bytes of one output as the network wrote them: a view, valid until the context is closed."""
        if not 0 <= index < len(self._outputs):
            raise ParameterError(f"there is no output {index}", hint=f"the network has {len(self._outputs)}, counted from 0")
        return self._outputs[index][1].bytes()

    def dump_io(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write inputs and outputs as text, one element a line: ``PATH.input_0.txt``, ``PATH.output_0.txt`` and so on.

        Inputs are written as elements of their own type. (The vendor's source writes their bytes, whatever the type is.)
        """
        written = []
        for index, ((info, _), given) in enumerate(zip(self._inputs, self._given, strict=False)):
            target = Path(f"{os.fspath(path)}.input_{index}.txt")
            target.write_text(_lines(_elements(given, info)), encoding="ascii")
            written.append(target)
        for index, floats in enumerate(self._floats):
            target = Path(f"{os.fspath(path)}.output_{index}.txt")
            target.write_text(_lines(floats), encoding="ascii")
            written.append(target)
        return written

    def close(self) -> None:
        """Destroy the network and its buffers; again is harmless."""
        self.network.close()

    def __repr__(self) -> str:
        return f"<Awnn, {self.network!r}>"


def to_float(codes: Array, info: TensorInfo) -> npt.NDArray[np.float32]:
    """What libawnn makes of an output: flat float32, by the tensor's quantization."""
    spec = info.spec
    if spec.dtype is DType.BOOL:
        return codes.reshape(-1).astype(np.float32)
    target = TensorSpec(spec.name, spec.shape, DType.FLOAT32, spec.layout)
    numbers: npt.NDArray[np.float32] = convert(codes, spec, target).reshape(-1)
    return numbers


def _elements(given: Array, info: TensorInfo) -> Array:
    spec = info.spec
    return given if spec.dtype.bits < 8 else given[: info.elements * spec.dtype.storage.itemsize].view(spec.dtype.storage)


def _lines(elements: Array) -> str:
    if elements.dtype.kind == "f":  # C prints the sign of what is no number, Python does not
        signs = np.isnan(elements) & np.signbit(elements)
        return "".join(
            f"{'-' if sign else ''}{number:f}\n" for number, sign in zip(elements.tolist(), signs.tolist(), strict=True)
        )
    return "".join(f"{int(number)}\n" for number in elements)


def awnn_init(mem_size: int = 0, *, device: str | DeviceChoice | VipLibrary | None = None) -> None:
    """Start the driver. Contexts are made on *device*.

    :param mem_size: on V85x, the bytes of memory that the driver may use for everything
    """
    library = open_library(device)
    check(library, "vip_init", library.vip_init(mem_size))
    _forget_in_children()
    with _lock:
        _libraries.append(library)


@functools.cache
def _forget_in_children() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """In a forked child: what was opened is the parent's."""
    global _lock, _libraries
    _lock, _libraries = threading.Lock(), []


def awnn_uninit() -> None:
    """The way back: end what the last :func:`awnn_init` began."""
    with _lock:
        library = _libraries.pop() if _libraries else None
    if library is None:
        raise DeviceClosed("awnn_uninit without awnn_init", hint="call awnn_init before")
    check(library, "vip_destroy", library.vip_destroy())


def awnn_create(nbg: str | os.PathLike[str]) -> Awnn:
    """A context for a model file, on the device of the last :func:`awnn_init`."""
    with _lock:
        library = _libraries[-1] if _libraries else None
    if library is None:
        raise DeviceClosed("awnn_create before awnn_init", hint="call awnn_init before")
    return Awnn(nbg, device=library)


def awnn_destroy(context: Awnn) -> None:
    """End a context."""
    context.close()


def awnn_set_input_buffers(context: Awnn, input_buffers: Sequence[Bytes]) -> None:
    """See :meth:`Awnn.set_input_buffers`."""
    context.set_input_buffers(input_buffers)


def awnn_get_output_buffers(context: Awnn) -> list[npt.NDArray[np.float32]]:
    """See :meth:`Awnn.get_output_buffers`."""
    return context.get_output_buffers()


def awnn_get_output_buffer(context: Awnn, index: int) -> npt.NDArray[np.uint8]:
    """See :meth:`Awnn.get_output_buffer`."""
    return context.get_output_buffer(index)


def awnn_run(context: Awnn) -> None:
    """See :meth:`Awnn.run`."""
    context.run()


def awnn_dump_io(context: Awnn, path: str | os.PathLike[str]) -> None:
    """See :meth:`Awnn.dump_io`."""
    context.dump_io(path)
