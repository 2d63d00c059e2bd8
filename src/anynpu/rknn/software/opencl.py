"""OpenCL for custom operators on the GPU: pyopencl, with whatever device this machine has. PoCL makes one of the CPU.

Who owns what: one :class:`OpenCl` (a ``cl_context`` and a queue) serves one context of the interface, is made with its first operator on
the GPU and goes with the last reference to it. A kernel belongs to one layer, since a ``cl_kernel`` holds the arguments of its call.
Concurrency: used by calls that hold the lock of their context.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from typing import Any

from ..._util.optional import pyopencl
from ...errors import MissingDependencyError
from ..constants import Code
from .refusal import Refusal

__all__ = ["Kernels", "OpenCl"]

log = logging.getLogger("anynpu.rknn")

_INSTALL = (
    "in a clone of anynpu: pip install '.[opencl]'; if PyPI has no PoCL for the machine, install the system's (pocl-opencl-icd)"
)


_AT_SECURE = 23


def has_more_rights() -> bool:
    """Whether this process runs with rights that its caller does not have: set-user-ID, set-group-ID, or file capabilities."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, (ctypes.c_ulong,)
    return bool(getauxval(_AT_SECURE))


class Kernels:
    """A program that was built, and the name of the kernel in it.

    :ivar opencl: what it was built for
    """

    def __init__(self, opencl: OpenCl, program: Any, name: str) -> None:
        self.opencl = opencl
        self._program = program
        self._name = name

    def kernel(self) -> Any:
        """A new ``pyopencl.Kernel``."""
        return self.opencl.cl.Kernel(self._program, self._name)


class OpenCl:
    """The OpenCL device of this machine.

    A device that is a CPU is preferred: it works in the memory of the tensors, where a graphics card needs copies.

    :ivar cl: the package pyopencl
    """

    def __init__(self) -> None:
        if has_more_rights():
            raise Refusal(
                Code.RKNN_ERR_DEVICE_UNAVAILABLE,
                "custom operators on the GPU: the environment chooses the OpenCL driver, which a set-user-ID program must not trust",
                "run the operator on the CPU",
            )
        try:
            self.cl = pyopencl()
        except MissingDependencyError as error:
            raise Refusal(
                Code.RKNN_ERR_DEVICE_UNAVAILABLE, f"custom operators on the GPU: {error.message}", error.hint
            ) from error
        self.context = self.cl.Context([self._device()])
        self.queue = self.cl.CommandQueue(self.context)

    def build(self, operator: str, source: str, options: str, kernel: str) -> Kernels:
        """Compile *source* and look *kernel* up in it.

        :param operator: whose it is, for messages
        """
        title = f"the OpenCL kernel '{kernel}' of custom operator '{operator}'"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self.cl.CompilerWarning)  # that there is compiler output; it is logged below
                program = self.cl.Program(self.context, source).build(options=options)
        except self.cl.Error as error:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"{title} does not compile: {error}", "see the compiler's messages above"
            ) from error
        for device in self.context.devices:
            output = program.get_build_info(device, self.cl.program_build_info.LOG)
            if output and output.strip():
                log.warning("%s: %s", title, output.strip())
        kernels = Kernels(self, program, kernel)
        try:
            kernels.kernel()
        except self.cl.Error as error:
            names = ", ".join(entry.function_name for entry in program.all_kernels()) or "none"
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"{title} is not in its source", f"cl_kernel_name must be one of: {names}"
            ) from error
        return kernels

    def finish(self) -> None:
        """Wait until everything in the queue is done."""
        self.queue.finish()

    def _device(self) -> Any:
        try:
            devices = [device for platform in self.cl.get_platforms() for device in platform.get_devices()]
        except self.cl.Error as error:
            raise self._none() from error
        failures = []
        for device in sorted(devices, key=lambda device: not device.type & self.cl.device_type.CPU):
            try:
                self.cl.Program(self.cl.Context([device]), "__kernel void probe(void) {}").build()
            except self.cl.Error as error:  # a PoCL that is older than the CPU cannot compile for it
                failures.append(f"{device.name} of {device.platform.version}: {error}")
            else:
                return device
        raise self._none("; ".join(failures))

    @staticmethod
    def _none(failures: str = "") -> Refusal[Code]:
        reason = (
            f"no OpenCL device of this machine compiles a kernel ({failures})"
            if failures
            else "this machine has no OpenCL device"
        )
        return Refusal(Code.RKNN_ERR_DEVICE_UNAVAILABLE, f"custom operators on the GPU: {reason}", _INSTALL)
