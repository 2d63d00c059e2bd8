"""The vendor's library behind the library object, with a small stand-in that is compiled here; and the choice of the device."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest
from tools import need

from anynpu._rknn import ffi
from anynpu.errors import DeviceError, DeviceUnavailable, ModelError, UnknownChipError, UnsupportedCall
from anynpu.rknn import Context, VendorLibrary, check, open_library
from anynpu.rknn import library as vendor
from anynpu.rknn.interface import functions
from anynpu.vendors.devices import DeviceChoice, board_chip, choose_device, find_npu

ABI = Path(__file__).parents[2] / "src" / "anynpu" / "rknn"
SOURCE = r"""
#include <string.h>
#include "abi.h"

const char *const anynpu_test_version = "STATED";

int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend)
{
    (void)model; (void)extend;
    if (flag & RKNN_FLAG_COLLECT_PERF_MASK)
        return RKNN_ERR_DEVICE_UNMATCH;
    if (size == 3)
        return RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION;
    *context = 0x1234567890 + size;
    return RKNN_SUCC;
}

static int destroyed;

int rknn_destroy(rknn_context context)
{
    destroyed++;
    return context == 0x1234567890 + 5 ? RKNN_SUCC : RKNN_ERR_CTX_INVALID;
}

int rknn_query(rknn_context context, rknn_query_cmd cmd, void *info, uint32_t size)
{
    (void)context;
    if (cmd == RKNN_QUERY_IN_OUT_NUM && size == sizeof(rknn_input_output_num)) {
        rknn_input_output_num *number = info;
        number->n_input = 1;
        number->n_output = destroyed;
        return RKNN_SUCC;
    }
    if (cmd == RKNN_QUERY_SDK_VERSION && size == sizeof(rknn_sdk_version)) {
        rknn_sdk_version *version = info;
        strcpy(version->api_version, "9.9.9 (test)");
        strcpy(version->drv_version, "1.2.3");
        return RKNN_SUCC;
    }
    return RKNN_ERR_PARAM_INVALID;
}

int rknn_run(rknn_context context, rknn_run_extend *extend)
{
    (void)context;
    return extend ? -77 : RKNN_ERR_TIMEOUT;
}

rknn_tensor_mem *rknn_create_mem(rknn_context context, uint32_t size)
{
    (void)context; (void)size;
    return 0;
}
"""


@functools.cache
def compiled(folder: Path, version: str, name: str) -> Path:
    source, target = folder / f"{name}.c", folder / name
    source.write_text(SOURCE.replace("STATED", version))
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ABI}"]
    subprocess.run([need("cc"), *flags, str(source), "-o", str(target)], check=True, timeout=600)
    return target


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vendor")


@pytest.fixture
def library_path(folder: Path) -> Path:
    return compiled(folder, "librknnrt version: 2.3.2 (429f97ae6b@2025-04-09T09:09:27)", "librknnrt.so")


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANYNPU_DEVICE", "ANYNPU_RKNN_LIBRARY", "ANYNPU_VIP_LIBRARY", "ANYNPU_CHIP"):
        monkeypatch.delenv(variable, raising=False)


# the library


def test_what_a_library_says(library_path: Path) -> None:
    library = VendorLibrary(library_path)
    assert library.version == (2, 3, 2)
    assert library.description == "librknnrt 2.3.2"
    assert library.last_error() is None
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, ffi.new("char[]", b"model"), 5, 0, ffi.NULL) == 0
    assert handle[0] == 0x1234567890 + 5
    assert library.rknn_destroy(handle[0]) == 0
    assert library.rknn_destroy(1) == -7
    assert library.rknn_create_mem(handle[0], 10) == ffi.NULL


def test_functions_that_a_library_lacks(library_path: Path) -> None:
    library = VendorLibrary(library_path)
    for name in set(functions()) - {"rknn_init", "rknn_destroy", "rknn_query", "rknn_run", "rknn_create_mem"}:
        with pytest.raises(UnsupportedCall, match=f"librknnrt 2.3.2 does not have {name}") as caught:
            getattr(library, name)(1, 2, 3)
        assert caught.value.call == name
        assert caught.value.hint


@pytest.mark.parametrize("text", ["librknnmrt version: 1.5.2 (x)", "librknnmrt version: 2.0.0b0 (x)", "nothing"])
def test_versions(folder: Path, text: str) -> None:
    library = VendorLibrary(compiled(folder, text, f"librknnmrt-{len(text)}.so"))
    expected = {"1": (1, 5, 2), "2": (2, 0, 0)}.get(text.removeprefix("librknnmrt version: ")[:1])
    assert library.version == expected
    assert library.description.endswith("" if expected is None else ".".join(map(str, expected)))


def test_a_library_that_is_too_old(folder: Path) -> None:
    path = compiled(folder, "librknnrt version: 1.2.0 (x)", "librknnrt-old.so")
    with pytest.raises(DeviceUnavailable, match=r"is version 1\.2\.0, at least 1\.3\.0 is needed"):
        VendorLibrary(path)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    broken = tmp_path / "librknnrt.so"
    broken.write_bytes(b"\x7fELF and no more")
    for path in (broken, tmp_path / "missing.so"):
        with pytest.raises(DeviceUnavailable, match="cannot be loaded") as caught:
            VendorLibrary(path)
        assert "ANYNPU_RKNN_LIBRARY" in caught.value.hint


def test_searching(library_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("libsearched.so", "libsearched-too.so")  # the loader knows the usual ones where other tests have loaded them
    found = tmp_path / "there" / names[1]
    found.parent.mkdir()
    shutil.copy(library_path, found)
    monkeypatch.setattr(vendor, "FOLDERS", (str(tmp_path), str(found.parent)))
    monkeypatch.setattr(vendor, "NAMES", names)
    assert VendorLibrary.find().path == str(found)
    monkeypatch.setattr(vendor, "FOLDERS", (str(tmp_path),))
    with pytest.raises(DeviceUnavailable, match=r"there is an NPU \(a reason\), but no libsearched.so or libsearched-too.so"):
        VendorLibrary.find(reason="a reason")
    (tmp_path / names[0]).write_bytes(b"broken")
    with pytest.raises(DeviceUnavailable, match="cannot be loaded"):
        VendorLibrary.find()


# what is above it


def test_a_context_on_the_vendor_s_library(library_path: Path) -> None:
    library = open_library(f"rknn:{library_path}")
    assert library is open_library(DeviceChoice("rknn", str(library_path)))
    context = Context(b"model", device=library)
    assert context.version.api == "9.9.9 (test)"
    assert "librknnrt 2.3.2" in repr(context)
    with pytest.raises(TimeoutError) as timeout:
        context.execute()
    assert (timeout.value.code, timeout.value.call) == (-2, "rknn_run")  # type: ignore[attr-defined]
    with pytest.raises(DeviceError, match="a code without a meaning") as unknown:
        context.execute(timeout=1)
    assert (unknown.value.code, unknown.value.code_name) == (-77, "")
    with pytest.raises(UnsupportedCall, match="does not have rknn_set_core_mask"):
        context.set_core_mask(1)
    with pytest.raises(MemoryError, match="not available"):
        context.memory(10)
    context.close()


@pytest.mark.parametrize(
    ("model", "flags", "kind", "code"),
    [(b"model", 8, DeviceError, -10), (b"odd", 0, ModelError, -12)],
)
def test_codes_of_the_vendor_become_errors(
    library_path: Path, model: bytes, flags: int, kind: type[Exception], code: int
) -> None:
    with pytest.raises(kind) as caught:
        Context(model, device=VendorLibrary(library_path), flags=flags)
    assert caught.value.code == code  # type: ignore[attr-defined]
    assert caught.value.hint  # type: ignore[attr-defined]


def test_success_raises_nothing(library_path: Path) -> None:
    check(VendorLibrary(library_path), "rknn_run", 0)


# the choice of the device


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ("sim:rk3566", {"ANYNPU_DEVICE": "rknn"}, ("sim", "rk3566", "asked for")),
        ("rknn", {}, ("rknn", "", "asked for")),
        ("rknn:/a:b.so", {"ANYNPU_RKNN_LIBRARY": "/x.so"}, ("rknn", "/a:b.so", "asked for")),
        ("rknn", {"ANYNPU_RKNN_LIBRARY": "/x.so", "ANYNPU_VIP_LIBRARY": "/y.so"}, ("rknn", "/x.so", "asked for")),
        (None, {"ANYNPU_DEVICE": "vip", "ANYNPU_VIP_LIBRARY": "/y.so"}, ("vip", "/y.so", "ANYNPU_DEVICE")),
        ("vip:/x.so", {}, ("vip", "/x.so", "asked for")),
        (None, {"ANYNPU_DEVICE": "sim:RK3588"}, ("sim", "rk3588", "ANYNPU_DEVICE")),
        (None, {"ANYNPU_RKNN_LIBRARY": "/x.so"}, ("rknn", "/x.so", "ANYNPU_RKNN_LIBRARY")),
        (None, {"ANYNPU_DEVICE": "sim", "ANYNPU_RKNN_LIBRARY": "/x.so"}, ("sim", "", "ANYNPU_DEVICE")),
        (None, {"ANYNPU_VIP_LIBRARY": "/x.so"}, ("vip", "/x.so", "ANYNPU_VIP_LIBRARY")),
        (None, {"ANYNPU_CHIP": "rk3562"}, ("sim", "rk3562", "ANYNPU_CHIP")),
        (None, {}, ("sim", "", "this machine has no NPU")),
    ],
)
def test_choices(given: str | None, environment: dict[str, str], expected: tuple[str, str, str], tmp_path: Path) -> None:
    choice = choose_device(given, environment=environment, root=tmp_path)
    assert (choice.kind, choice.detail, choice.reason) == expected


def test_choices_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no device 'tpu'"):
        choose_device("tpu", root=tmp_path)
    with pytest.raises(UnknownChipError):
        choose_device("sim:rk9999", root=tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "kind", "why"),
    [
        ("dev/rknpu", b"", "rknn", "/dev/rknpu exists"),
        ("sys/module/rknpu", b"", "rknn", "/sys/module/rknpu exists"),
        ("dev/vipcore", b"", "vip", "/dev/vipcore exists"),
        ("proc/device-tree/compatible", b"acme,board\0rockchip,rk3588\0", "rknn", "the device tree names rk3588"),
        ("sys/firmware/devicetree/base/compatible", b"allwinner,t527\0", "vip", "the device tree names t527"),
    ],
)
def test_boards_are_found(tmp_path: Path, file: str, content: bytes, kind: str, why: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert find_npu(tmp_path) == (kind, why)
    choice = choose_device(environment={"ANYNPU_CHIP": "rk3566"}, root=tmp_path)
    assert (choice.kind, choice.reason) == (kind, why)  # a board never becomes a simulation on its own


def test_boards_without_an_npu(tmp_path: Path) -> None:
    tree = tmp_path / "proc/device-tree/compatible"
    tree.parent.mkdir(parents=True)
    tree.write_bytes(b"raspberrypi,4-model-b\0brcm,bcm2711\0\xff\xfe")
    assert board_chip(tmp_path) is None
    assert find_npu(tmp_path) is None


@pytest.mark.usefixtures("clean")
def test_the_variable_names_the_library(library_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_RKNN_LIBRARY", str(library_path))
    library = open_library()
    assert isinstance(library, VendorLibrary)
    assert library.path == str(library_path)


def test_a_device_of_the_other_family() -> None:
    with pytest.raises(DeviceUnavailable, match="has no RKNN NPU"):
        open_library("vip")
    with pytest.raises(UnsupportedCall, match="t527 has no RKNN NPU"):
        open_library("sim:t527")
