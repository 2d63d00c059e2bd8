"""What a file of ACME's compiler states about itself: its magic, a version, and the length and text of its name."""

from __future__ import annotations

from anynpu.errors import ModelFormatError
from anynpu.modelfile.recognize import FileKind
from anynpu.modelfile.vendorfile import DAMAGED, VendorModelInfo

__all__ = ["read"]


def read(data: memoryview) -> VendorModelInfo:
    """Magic (8 bytes), version (4), length of the name (4), name."""
    if len(data) < 16:
        raise ModelFormatError("the file of ACME is cut off", hint=DAMAGED)
    version, length = (int.from_bytes(data[at : at + 4], "little") for at in (8, 12))
    name = bytes(data[16 : 16 + length]).decode("utf-8", "replace")
    return VendorModelInfo(FileKind("acmenet"), version, target="acme100", chip="acme100", name=name)
