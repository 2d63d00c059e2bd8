"""Model files: write, read and map our own, check what they claim, and report what the vendors' own files hold.

The space, from the outside in:

``file``            write and read a model; weights in memory of the caller
``container``       the prefix, the table and the sections
``codec``           dataclasses to JSON and back, by their annotations
``validate``        whether a program is sound; ``operator_rules`` and ``float_rules`` have those of each operator
``recognise``       what kind of file this is
``twins``           what stands in for a vendor's file
``vendorfile``      what a vendor-compiled ``.rknn`` or ``.nb`` states about itself
"""

from .file import (
    VERSION,
    CompiledModel,
    Encoded,
    FileKind,
    WeightlessModel,
    aligned_memory,
    attach_weights,
    decode,
    encode,
    identify,
    place_weights,
    read,
    read_or_twin,
    to_bytes,
    weight_size,
    write,
)

__all__ = [
    "CompiledModel",
    "Encoded",
    "FileKind",
    "VERSION",
    "WeightlessModel",
    "aligned_memory",
    "attach_weights",
    "decode",
    "encode",
    "identify",
    "place_weights",
    "read",
    "read_or_twin",
    "to_bytes",
    "weight_size",
    "write",
]
