"""The list of vendors is open at both ends: others may join, and none is needed by the rest."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import anynpu
from anynpu import chips
from anynpu._util import optional as _optional
from anynpu.errors import DeviceUnavailable, UnknownChipError
from anynpu.vendors import Vendor, registry
from anynpu.vendors.devices import choose_device

from .conftest import install

PACKAGE = Path(anynpu.__file__).parent
OF_A_VENDOR = (
    "compiler/board/",
    "compiler/toolkit/",
    "dropin/environment.py",
    "chips/rockchip.py",
    "chips/allwinner.py",
    "rknn",
    "onnxruntime.py",
)
"""A vendor's own Python packages, or its toolkit, are the subject of these, so they name it."""
VENDORS = {vendor.name: vendor for vendor in registry.built_in()}


def folder_of(vendor: Vendor) -> str:
    return registry.MODULES[vendor.name].split(".")[1]


def names_of(vendor: Vendor) -> set[str | bytes]:
    """Texts that give a vendor away where they stand alone in the code."""
    texts = {vendor.name, vendor.title, vendor.interface, vendor.device_tree, vendor.library_variable}
    texts |= {*vendor.suffixes, *vendor.providers, *vendor.library_names, *vendor.system_marks, *vendor.memory_names}
    return {*texts, vendor.mark, *(form.name for form in vendor.files)} - {""}


def constants(path: Path) -> Iterator[tuple[int, str | bytes]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            yield node.lineno, node.value


def test_nothing_outside_its_folder_names_a_vendor() -> None:
    named = {text for vendor in VENDORS.values() for text in names_of(vendor)}
    own = {folder_of(vendor) for vendor in VENDORS.values()}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if (
            place.parts[0] in own
            or str(place).startswith(OF_A_VENDOR)
            or place == Path("vendors/registry.py")
            or "generate" in place.parts
        ):
            continue
        found += [f"{place}:{line}: {value!r}" for line, value in constants(path) if value in named]
    assert found == []


@pytest.mark.parametrize("name", VENDORS)
def test_everything_else_works_where_a_vendors_folder_is_not_there(name: str, tmp_path: Path) -> None:
    """In a process whose imports find neither the folder nor its extension module."""
    missing = f"anynpu.{folder_of(VENDORS[name])}"
    other = next(vendor for vendor in VENDORS.values() if vendor.name != name)
    program = f"""
import dataclasses, importlib, pkgutil, sys
MISSING = ({missing!r}, {missing.replace("anynpu.", "anynpu._")!r})
class Gone:
    def find_spec(self, module, path=None, target=None):
        if module in MISSING or module.startswith({missing + "."!r}):
            raise ModuleNotFoundError(f"No module named {{module!r}}", name=module)
sys.meta_path.insert(0, Gone())
import numpy as np
import anynpu
for module in pkgutil.walk_packages(anynpu.__path__, "anynpu.", onerror=lambda name: None):
    skipped = module.name.startswith(MISSING) or ".native" in module.name or module.name.endswith("__main__")
    if not skipped and ".cluster" not in module.name:
        importlib.import_module(module.name)
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from typer.testing import CliRunner
from anynpu import chips, modelfile
from anynpu.cli.app import app
from anynpu.vendors import registry
from npu.builders import dense_chain
assert [vendor.name for vendor in registry.built_in()] == [{other.name!r}]
assert {other.chips[0].name!r} in chips.names()
model = modelfile.write(dataclasses.replace(dense_chain(), chip={other.chips[0].name!r}), {str(tmp_path / "model.bin")!r})
with anynpu.InferenceSession(model, device="sim") as session:
    shapes = {{entry.name: entry.shape for entry in session.get_inputs()}}
    session.run(None, {{name: np.zeros(shape, np.float32) for name, shape in shapes.items()}})
for arguments in (["doctor", str(model)], ["inspect", str(model)], ["--help"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (arguments, result.output)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_a_table_says_what_each_built_in_vendor_is() -> None:
    for vendor in VENDORS.values():
        assert all(chip.family == vendor.name for chip in vendor.chips)
        assert len(vendor.mark) == 4
        assert registry.of_file(vendor.mark + bytes(12)) == (vendor, None)
        assert {kind for chip in vendor.chips for kind in chip.quantized_types} >= set(vendor.formats)
        assert {alias.name for alias in vendor.aliases.values()} <= set(vendor.formats)


def test_an_unknown_vendor_or_chip_is_told_with_the_known_ones() -> None:
    with pytest.raises(DeviceUnavailable, match="no vendor 'nobody'") as caught:
        registry.get("nobody")
    assert all(name in caught.value.hint for name in VENDORS)
    with pytest.raises(UnknownChipError):
        chips.get("acme100")
    with pytest.raises(DeviceUnavailable, match="no device 'acme'"):
        choose_device("acme")


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("broken", "raise OSError('the disk is gone')", "the disk is gone"),
        ("nothing", "VENDOR = 7", "it is no anynpu.vendors.Vendor"),
        (
            "double",
            "from anynpu.rknn.table import VENDOR as V\nimport dataclasses\nVENDOR = dataclasses.replace(V)",
            "another of its name",
        ),
    ],
)
def test_a_distribution_that_does_not_work_is_left_out_with_a_warning(
    name: str, text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"vendor_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(install(tmp_path, name, f"vendor_{name}:VENDOR")))
    with pytest.warns(RuntimeWarning, match=f"'{name}'.*{reason}"):
        assert registry.installed() == ()
    assert chips.get("rk3588").cores == 3


def test_what_built_in_vendors_answer_looks_through_no_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(group: str) -> None:
        raise AssertionError("the installed distributions were looked through")

    monkeypatch.setattr(_optional, "entry_points", never)
    assert chips.get("rk3588").name == "rk3588"
    assert registry.of_file(VENDORS["vip"].mark + bytes(12)) is not None
    assert choose_device("sim:t527").detail == "t527"
