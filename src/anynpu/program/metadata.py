"""What an ONNX model says about itself, kept for programs that ask a session for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

__all__ = ["OnnxMetadata"]

_PREFIX = "anynpu.onnx."


@dataclass(frozen=True)
class OnnxMetadata:
    """The description that an ONNX model carries.

    :ivar properties: ``metadata_props``: class names, strides, character lists
    :ivar version: ``model_version``
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0

    def entries(self) -> dict[str, str]:
        """All of it as text by key: the properties as they are, the rest under keys of its own.

        >>> OnnxMetadata({"stride": "32"}, graph_name="det", version=2).entries()
        {'stride': '32', 'anynpu.onnx.graph_name': 'det', 'anynpu.onnx.version': '2'}
        """
        own = {f"{_PREFIX}{name}": str(getattr(self, name)) for name in _SINGLE if getattr(self, name)}
        return {**self.properties, **own}

    @classmethod
    def of_entries(cls, entries: Mapping[str, str]) -> OnnxMetadata:
        """The same, back from text by key."""
        single = {name: entries[key] for name in _SINGLE if (key := f"{_PREFIX}{name}") in entries}
        version = single.pop("version", "0")
        properties = {key: value for key, value in entries.items() if not key.startswith(_PREFIX)}
        return cls(properties, **single, version=int(version) if version.lstrip("-").isdecimal() else 0)


_SINGLE = tuple(entry.name for entry in fields(OnnxMetadata) if entry.name != "properties")
