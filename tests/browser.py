"""Pages in a real browser, where there is one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tools import need

__all__ = ["open_page"]


def open_page(page: Path | str, *, screenshot: Path | None = None) -> tuple[str, list[str]]:
    """The page's document after its scripts have run, and what it wrote to the console."""
    address = page if isinstance(page, str) else page.resolve().as_uri()
    with tempfile.TemporaryDirectory() as profile:
        command = [
            need("browser"),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
        ]
        command += [f"--screenshot={screenshot}", "--window-size=1120,1600"] if screenshot else ["--dump-dom"]
        result = subprocess.run([*command, "--virtual-time-budget=3000", address], capture_output=True, text=True, timeout=120)
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]
