"""onnxruntime's values and bindings: ours, with its numbers for element types and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._util.types import Array
from ...errors import FeedNameError
from ...tensor import DType
from .. import IOBinding as SessionBinding
from .. import OrtValue as SessionValue

if TYPE_CHECKING:
    from .session import InferenceSession

__all__ = ["ELEMENT_TYPES", "HostBinding", "IOBinding", "OrtDevice", "OrtValue"]


ELEMENT_TYPES = {
    DType.FLOAT32: 1,
    DType.UINT8: 2,
    DType.INT8: 3,
    DType.UINT16: 4,
    DType.INT16: 5,
    DType.INT32: 6,
    DType.INT64: 7,
    DType.BOOL: 9,
    DType.FLOAT16: 10,
    DType.UINT32: 12,
    DType.UINT64: 13,
    DType.BFLOAT16: 16,
    DType.UINT4: 21,
    DType.INT4: 22,
}
"""ONNX's number of each type."""


class OrtDevice:
    """Where a value lies. ``device_type()`` is 0 for this process and 3 for an NPU.

    >>> OrtDevice.make("cpu", 0).device_type()
    0
    """

    CPU, NPU = 0, 3

    def __init__(self, name: str, device_id: int = 0) -> None:
        self.name = name
        self._id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """A device by its name."""
        return OrtDevice(ort_device_name.lower(), device_id)

    def device_id(self) -> int:
        return self._id

    def device_type(self) -> int:
        return self.CPU if self.name == "cpu" else self.NPU

    def device_mem_type(self) -> int:
        return 0

    def device_vendor_id(self) -> int:
        return 0


class OrtValue(SessionValue):
    """A tensor in memory, as onnxruntime's class of the same name: see :class:`anynpu.session.OrtValue`.

    >>> OrtValue.ortvalue_from_numpy(np.zeros((1, 3), np.float32)).element_type()
    1
    """

    def element_type(self) -> int:  # type: ignore[override]
        """ONNX's number of the type: 1 for float32. :meth:`data_type` gives it as text."""
        return ELEMENT_TYPES[self._spec.dtype]

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: Array, onnx_element_type: int) -> OrtValue:
        """A value on ``cpu`` whose type is given by ONNX's number; the array holds it already."""
        kinds = [kind for kind, number in ELEMENT_TYPES.items() if number == onnx_element_type]
        value = cls.ortvalue_from_numpy(data.view(kinds[0].storage) if kinds else data)
        assert isinstance(value, OrtValue)
        return value


class IOBinding(SessionBinding):
    """Ties values to inputs and outputs: see :class:`anynpu.session.IOBinding`. What it makes are values of this module."""

    _value = OrtValue

    def get_outputs_as_ortvaluevector(self) -> list[SessionValue]:
        """The same as :meth:`get_outputs`."""
        return self.get_outputs()


class HostBinding(IOBinding):
    """The binding of a model with dynamic shapes: its values are in the memory of this process, and each run converts them."""

    def __init__(self, session: InferenceSession) -> None:
        super().__init__(session)
        self._unbound = dict.fromkeys(session.output_names, True)

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Read an input from an array."""
        self._known(name, self._session.input_names, "input")
        self._bind(self._inputs, name, OrtValue.ortvalue_from_numpy(np.asarray(arr_on_cpu)))

    def bind_ortvalue_input(self, name: str, ortvalue: SessionValue) -> None:
        """Read an input from a value."""
        self.bind_cpu_input(name, ortvalue.numpy())

    def bind_output(self, name: str, *arguments: Any, **options: Any) -> None:
        """Have an output put into new memory of this process, whatever device was asked for: its shape is known after the run."""
        self._known(name, self._session.output_names, "output")
        self._unbound[name] = True

    def bind_ortvalue_output(self, name: str, ortvalue: SessionValue) -> None:
        """Have an output put into a value."""
        self._known(name, self._session.output_names, "output")
        self._unbound[name] = False
        self._bind(self._outputs, name, ortvalue)

    def clear_binding_outputs(self) -> None:
        """Let go of all outputs."""
        super().clear_binding_outputs()
        self._unbound = dict.fromkeys(self._unbound, True)

    def run(self) -> None:
        """Run the session on what is bound."""
        missing = [name for name in self._session.input_names if name not in self._inputs]
        if missing:
            raise FeedNameError(
                f"All model inputs must be bound before run_with_iobinding; '{missing[0]}' is not", hint="bind_cpu_input"
            )
        results = self._session.run(None, {name: value.numpy() for name, value in self._inputs.items()})
        for name, result in zip(self._session.output_names, results, strict=True):
            if self._unbound[name]:
                self._outputs[name] = OrtValue.ortvalue_from_numpy(result)
            else:
                self._outputs[name].update_inplace(result)

    def _known(self, name: str, names: Sequence[str], kind: str) -> None:
        if name not in names:
            raise FeedNameError(f"there is no {kind} '{name}'", hint=f"the model has: {', '.join(names)}")
