"""The configuration of a model, as the extension of the protocol tells it: what a load generator asks before it begins."""

from __future__ import annotations

from typing import Any

from ..session.protocol.messages import messages
from .interfaces import Model
from .model import TensorDescription
from .options import ServeOptions

__all__ = ["configuration", "configuration_message"]

_TYPES = {
    name: number
    for number, name in enumerate(
        ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"), 1
    )
}
"""The numbers of the datatypes in messages."""

_DECIDED_BY_THE_MODEL = 3
"""The number of the kind of instances whose device is the model's own affair."""


def configuration(model: Model, options: ServeOptions) -> dict[str, Any]:
    """As JSON has it. Dimensions are those of one sample if the server takes batches of the model, else those of the tensors."""
    batched = model.batch > 0

    def described(tensors: tuple[TensorDescription, ...]) -> list[dict[str, Any]]:
        return [
            {"name": one.name, "data_type": f"TYPE_{one.datatype}", "dims": list(one.shape[1:] if batched else one.shape)}
            for one in tensors
        ]

    found: dict[str, Any] = {
        "name": model.name,
        "platform": model.platform,
        "backend": "anynpu",
        "max_batch_size": options.max_batch if batched else 0,
        "input": described(model.inputs),
        "output": described(model.outputs),
        "instance_group": [{"name": model.name, "kind": "KIND_MODEL", "count": max(1, model.details.cores)}],
        "default_model_filename": model.file_name,
    }
    if model.batch > 1:
        delay = round(options.batch_window_ms * 1000)
        found["dynamic_batching"] = {"preferred_batch_size": [model.batch], "max_queue_delay_microseconds": delay}
    return found


def configuration_message(model: Model, options: ServeOptions) -> Any:
    """As a message, in which datatypes and kinds are numbers."""
    found = configuration(model, options)
    for tensor in (*found["input"], *found["output"]):
        tensor["data_type"] = _TYPES[tensor["data_type"].removeprefix("TYPE_")]
    for group in found["instance_group"]:
        group["kind"] = _DECIDED_BY_THE_MODEL
    return messages().ModelConfig(**found)
