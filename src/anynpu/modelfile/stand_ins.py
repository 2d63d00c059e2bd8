"""Anynpu models: models of ours that stand in for files that only a vendor's runtime executes.

An anynpu model lies beside the vendor's file, as ``NAME.anynpu``, or in a folder under the hash of the vendor's file. The second
way also serves programs that read a file into memory and pass the bytes, as most do. Two folders are searched: the one that
``ANYNPU_TWINS`` names, then ``anynpu/twins`` in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from .recognize import Source, open_source

TWIN_SUFFIX = ".anynpu"
"""What the software NPU runs in place of a vendor's file ends in this."""

VENDOR_HASH = "vendor_file_sha256"
"""Key in the provenance of an anynpu model: the SHA-256 of the vendor's file that it was built with."""

FOLDER_VARIABLE = "ANYNPU_TWINS"


def twin_folders() -> list[Path]:
    """Where anynpu models are looked for by hash; the first one is where new ones are put."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if cache.startswith("/") else Path(os.path.expanduser("~")) / ".cache"
    return [*([Path(named)] if named else []), home / "anynpu" / "twins"]


def vendor_hash(source: Source) -> str:
    """The SHA-256 of a vendor's file."""
    return hashlib.sha256(open_source(source).data).hexdigest()


def twin_name(source: Source) -> str:
    """Under which name the anynpu model of a vendor's file lies in a folder of anynpu models."""
    return f"{vendor_hash(source)}{TWIN_SUFFIX}"


def find_twin(source: Source) -> Path | None:
    """The anynpu model of a vendor's file, given as its path or as its bytes; None where there is none."""
    if isinstance(source, (str, os.PathLike)):
        beside = Path(source).with_suffix(TWIN_SUFFIX)
        if beside.is_file():
            return beside
    name = twin_name(source)
    return next((folder / name for folder in twin_folders() if (folder / name).is_file()), None)
