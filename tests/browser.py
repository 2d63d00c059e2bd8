"""Pages in a real browser, where there is one."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["open_page"]

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@functools.lru_cache(maxsize=1)
def browser() -> str:
    """The browser's program; skips the test where there is none."""
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip(f"needs a browser: none of {', '.join(_NAMES)} is installed")


def open_page(page: Path | str, *, screenshot: Path | None = None) -> tuple[str, list[str]]:
    """The page's document after its scripts have run, and what it wrote to the console."""
    address = page if isinstance(page, str) else page.resolve().as_uri()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
        ]
        command += [f"--screenshot={screenshot}", "--window-size=1120,1600"] if screenshot else ["--dump-dom"]
        result = subprocess.run([*command, "--virtual-time-budget=3000", address], capture_output=True, text=True, timeout=120)
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]
