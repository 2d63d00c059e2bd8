"""Images, videos and archives of strangers: small files that would take minutes or gigabytes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu._util import optional as _optional
from anynpu.cli.helpers import image_models as frames
from anynpu.compiler import images
from anynpu.compiler.images import MAX_SCANS, load_image
from anynpu.compiler.quantize.dataset import InputInfo, open_dataset
from anynpu.errors import CalibrationError, ImageError


def progressive(scans: int) -> bytes:
    """A JPEG image whose last scan comes several times."""
    cv2 = _optional.cv2()
    data = bytes(cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1])
    start = data.rfind(b"\xff\xda")
    return data[:start] + data[start:-2] * (scans - data.count(b"\xff\xda") + 1) + b"\xff\xd9"


def test_a_jpeg_that_goes_over_itself_again_and_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    path.write_bytes(progressive(20))
    assert load_image(path, 8, 8).shape == (8, 8, 3)
    path.write_bytes(progressive(MAX_SCANS + 1))
    with pytest.raises(ImageError, match="scans"):
        load_image(path, 8, 8)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    with path.open("wb") as file:
        file.truncate(images.MAX_BYTES + 1)  # takes no place on the disk
    with pytest.raises(ImageError, match="more than 512 MB"):
        load_image(path, 8, 8)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
def test_how_opaque_a_picture_is(kind: type, tmp_path: Path) -> None:
    stored: npt.NDArray[Any] = np.zeros((4, 4, 4), kind)
    stored[:, :2, 3] = np.iinfo(kind).max
    _optional.cv2().imwrite(str(tmp_path / "picture.png"), stored)
    assert load_image(tmp_path / "picture.png", 4, 4, 4)[:, :, 3].tolist() == [[255, 255, 0, 0]] * 4
    _optional.cv2().imwrite(str(tmp_path / "colours.png"), stored[:, :, :3].astype(np.uint8))
    assert (load_image(tmp_path / "colours.png", 4, 4, 4)[:, :, 3] == 255).all()


def test_a_video_of_huge_pictures_is_refused_before_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2 = _optional.cv2()
    path = tmp_path / "video.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25, (64, 48))
    writer.write(np.zeros((48, 64, 3), np.uint8))
    writer.release()
    assert [frame.picture.shape for frame in frames.open_source(str(path)).frames] == [(48, 64, 3)]
    monkeypatch.setattr(_optional, "MAX_PIXELS", 64 * 48 - 1)
    with pytest.raises(ImageError, match="64 x 48 pixels"):
        frames.open_source(str(path))


def test_an_archive_with_a_password_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, x=np.zeros((1, 3, 4, 4), np.float32))
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        head = archive.start_dir
    data[6] |= 1  # the flag for a password, in both of its places
    data[head + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(CalibrationError, match="encrypted"):
        open_dataset(path, [InputInfo("x", (1, 3, 4, 4), np.dtype("float32"))])
