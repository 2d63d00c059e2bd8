"""What ``anynpu doctor`` finds out about Allwinner's library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import AnynpuError
from ..vendors import Finding
from ..vendors.devices import find_npu
from .library import VendorLibrary
from .table import VENDOR


def diagnose(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the libraries; states something only where there is something to state."""
    named = VENDOR.named_library(environment)
    libraries = [Path(named)] if named else VENDOR.installed_libraries(root)
    if not libraries and (find_npu(root) or ("",))[0] == VENDOR.name:
        yield Finding(
            "vendor",
            "problem",
            f"{' and '.join(VENDOR.library_names)} not found ({VENDOR.library_variable}, ld path, {VENDOR.library_folders[0]})",
            f"install the libraries of the board's SDK, or name one with {VENDOR.library_variable}",
        )
    for path in libraries:
        try:
            library = VendorLibrary(path)
        except AnynpuError as error:
            yield Finding("vendor", "problem", error.message, error.hint)
        else:
            yield Finding("vendor", "ok", f"{path}, VIPLite {library.description.split()[-1]}")
