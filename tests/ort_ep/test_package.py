"""The distribution onnxruntime-ep-anynpu."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import anynpu
from anynpu.dropin.environment import execution_provider

from .conftest import Provider

PACKAGE = Path(__file__).parents[2] / "packaging" / "onnxruntime-ep-anynpu"


def test_its_functions_name_library_and_provider(provider: Provider) -> None:
    spec = importlib.util.spec_from_file_location(
        "onnxruntime_ep_anynpu", PACKAGE / "src" / "onnxruntime_ep_anynpu" / "__init__.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.get_library_path() == str(execution_provider())
    assert Path(module.get_library_path()).is_absolute()
    assert module.get_ep_names() == [module.get_ep_name()] == [provider.device.ep_name]


def test_it_depends_on_anynpu_of_the_same_version_and_not_on_onnxruntime() -> None:
    text = (PACKAGE / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.search(r"^dependencies = (\[.*?\])", text, re.MULTILINE)
    assert dependencies is not None
    assert dependencies[1] == '["anynpu>=0.1"]'
    version = re.search(r'^version = "(.*)"', text, re.MULTILINE)
    assert version is not None
    assert version[1] == anynpu.__version__
