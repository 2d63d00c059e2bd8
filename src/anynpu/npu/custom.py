"""Custom operators: layers that a function of the user computes, in the middle of a run.

A function is registered with a context under the operator's type. A run calls it once for each layer of that type, in the thread that
runs the job and with the context and its cores held: it must not use the context itself, which would wait for the run to end.

Who owns what: a :class:`CustomCall` and its arrays belong to the context, and are the same objects in every run until a buffer is bound
or another shape set is selected. The functions belong to the context too; its exclusion (see :mod:`anynpu.npu.context`) protects the
table of them, which a closed context empties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .._util.types import Array
from ..errors import CustomOperatorError
from ..program import AttributeValue
from ..tensor import TensorSpec
from .control import RunControl
from .memory import Buffer

__all__ = ["CustomCall", "CustomFunction", "CustomTensor", "require_registered"]


@dataclass(frozen=True, eq=False)
class CustomTensor:
    """An input or output of a custom operator.

    :ivar array: the tensor in device memory, row-major; that of an input cannot be written
    :ivar buffer: the memory that it lies in
    :ivar offset: byte of *buffer* at which it begins
    """

    spec: TensorSpec
    array: Array
    buffer: Buffer
    offset: int


@dataclass(frozen=True, eq=False)
class CustomCall:
    """What the function of a custom operator is called with: it reads the inputs and fills the arrays of the outputs.

    :ivar name: the layer
    :ivar attributes: of the ONNX node, as in :class:`anynpu.program.Custom`
    :ivar inputs: all inputs in the order of the node, constants too
    """

    name: str
    op_type: str
    attributes: Mapping[str, AttributeValue]
    inputs: tuple[CustomTensor, ...]
    outputs: tuple[CustomTensor, ...]


CustomFunction = Callable[[CustomCall], "int | None"]
"""Computes a custom operator. None or 0 is success, any other number a failure, and so is an exception."""


def custom_step(
    call: CustomCall, functions: Mapping[str, CustomFunction], held: Mapping[str, Array]
) -> Callable[[RunControl], None]:
    """What executes *call* with the function that is registered then.

    :param held: the tensors of the program as the engine has them; where that is not device memory, values are copied
    """
    before = [(entry.buffer.tensor(entry.spec, entry.offset), held[entry.spec.name]) for entry in _elsewhere(call.inputs, held)]
    after = [(held[entry.spec.name], entry.array) for entry in _elsewhere(call.outputs, held)]

    def step(_: RunControl) -> None:
        for target, source in before:
            np.copyto(target, source)
        require_registered([call], functions)
        _call(functions[call.op_type], call)
        for target, source in after:
            np.copyto(target, source)

    return step


def _elsewhere(tensors: Iterable[CustomTensor], held: Mapping[str, Array]) -> list[CustomTensor]:
    return [
        entry for entry in tensors if entry.spec.name in held and held[entry.spec.name].ctypes.data != entry.array.ctypes.data
    ]


def _call(function: CustomFunction, call: CustomCall) -> None:
    title = f"custom operator '{call.op_type}' in layer '{call.name}'"
    try:
        result = function(call)
    except CustomOperatorError:
        raise  # says already what failed
    except Exception as error:  # the user's own code: it may raise anything
        raise CustomOperatorError(
            f"{title} failed: {type(error).__name__}: {error}", hint="see the cause, in the function that was registered for it"
        ) from error
    if result is None or (isinstance(result, int) and not isinstance(result, bool) and result == 0):
        return
    if isinstance(result, int) and not isinstance(result, bool):
        raise CustomOperatorError(
            f"{title} reported failure {result}", code=result, hint="its function returns None or 0 where all is well"
        )
    raise CustomOperatorError(
        f"{title} returned a {type(result).__name__}",
        hint="fill call.outputs[i].array in place, and return None or 0; any other number means failure",
    )


def require_registered(calls: Iterable[CustomCall], functions: Mapping[str, CustomFunction]) -> None:
    """Refuse calls that there is no function for."""
    for call in calls:
        if call.op_type not in functions:
            raise CustomOperatorError(
                f"custom operator '{call.op_type}' of layer '{call.name}' is not registered with the context",
                hint=f"context.register_custom_operator('{call.op_type}', compute) before the run",
            )
