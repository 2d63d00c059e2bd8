"""The Python examples of the README, of the quickstart and of the page about int8 run as they stand; links between pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/session.md",
    "docs/serving.md",
    "docs/migrate-onnxruntime.md",
    "docs/migrate-rknnlite.md",
    "docs/migrate-rknn-toolkit.md",
    "docs/migrate-ez-rknn-async.md",
    "docs/vip.md",
    "docs/int8-accuracy.md",
]
GUIDES = ["docs/compare.md"]


def python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name: a detector of 640 x 640 pictures, and some pictures."""
    rng = np.random.default_rng(11)
    weights = numpy_helper.from_array(rng.standard_normal((6, 3, 3, 3)).astype(np.float32), "weights")
    nodes = [
        helper.make_node("Conv", ["images", "weights"], ["features"], "conv", strides=[32, 32], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["features"], ["boxes"], "relu"),
    ]
    graph = helper.make_graph(
        nodes,
        "yolo",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 640, 640])],
        [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 6, 20, 20])],
        [weights],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "yolo.onnx")
    (tmp_path / "street").mkdir()
    for index in range(1, 4):
        cv2.imwrite(str(tmp_path / "street" / f"{index:03d}.jpg"), rng.integers(0, 256, (48, 64, 3), np.uint8))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_run(page: str, workplace: Path) -> None:
    blocks = python_blocks(page)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert (workplace / ("yolo.nb" if page == "docs/vip.md" else "yolo.rknn")).is_file()


@pytest.mark.parametrize("page", GUIDES)
def test_python_examples_of_guides_run(page: str, workplace: Path) -> None:
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), {})
    assert (workplace / "compare.html").is_file()


def test_links_to_files_lead_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    pages += (ROOT / "examples").glob("*/README.md")
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in navigation, page.name


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    """Each heading quotes a message; the parts between ``...`` must be in the sources, where f-strings hold the rest."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/anynpu").rglob("*.py")))
    headings = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) > 15
    for heading in headings:
        for part in heading.split("..."):
            assert part.strip(" '") in source, heading
