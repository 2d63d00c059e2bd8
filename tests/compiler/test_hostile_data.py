"""Images and arrays from strangers: small files that become large, claim what they do not have, or hold code."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.compiler.quantize import dataset
from anynpu.compiler.quantize.dataset import InputInfo
from anynpu.errors import AnynpuError, CalibrationError


def png(width: int, height: int) -> bytes:
    """A black image, as small as a file of it can be."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join(packer.compress(row * 1000) for _ in range(height // 1000)) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", data)
        + chunk(b"IEND", b"")
    )


def npy_header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def test_a_picture_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """In a process of its own: what it takes at most is known then, and OpenCV is loaded as users load it."""
    (tmp_path / "bomb.png").write_bytes(png(30_000, 30_000))
    assert (tmp_path / "bomb.png").stat().st_size < 200_000
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from anynpu.compiler.images import load_image\n"
        "from anynpu.errors import ImageError\n"
        "try:\n"
        "    load_image(sys.argv[1], 8, 8)\n"
        "except ImageError as error:\n"
        # not ru_maxrss, which begins with that of the process that started this one
        "    print('refused', int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]) // 1024)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENCV_IO_MAX_IMAGE_PIXELS"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "bomb.png")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("refused"), done.stderr
    assert int(done.stdout.split()[1]) < 500


def test_an_archive_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MAX_ARCHIVE", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(1 << 20, np.float32))
    assert (tmp_path / "bomb.npz").stat().st_size < 10_000
    with pytest.raises(CalibrationError, match="when it is unpacked"):
        dataset._load_npz(tmp_path / "bomb.npz")


@pytest.mark.parametrize("shape", ["(1 << 40,)", f"({1 << 50},)", f"({1 << 62}, 4)", "(-1, -1)", "(1.5,)", "('x',)"])
def test_an_archive_with_an_absurd_shape_is_refused(tmp_path: Path, shape: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", npy_header(shape))
    with pytest.raises(CalibrationError, match="cannot read"):
        dataset._load_npz(tmp_path / "x.npz")


class Pickled:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("taken",)


def test_pickles_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = io.BytesIO()
    np.save(data, np.array([Pickled()], object), allow_pickle=True)
    (tmp_path / "x.npy").write_bytes(data.getvalue())
    inputs = [InputInfo("x", (1, 3, 8, 8), np.dtype(np.float32))]
    with pytest.raises(AnynpuError):
        list(dataset.open_dataset(tmp_path, inputs))
    assert not (tmp_path / "taken").exists()
