"""Code blocks of all pages run as they stand, in one folder that ``anynpu samples`` writes; links between pages lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import urllib.request
from pathlib import Path

import pytest
from documentation import blocks, section

from anynpu.cli.app import run
from anynpu.cli.demo.samples import write_samples
from anynpu.serve import ServeOptions, Server

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "docs/rknn.md": ("Context", "Matmul", "Custom operators"),
    "docs/serving.md": ("nginx",),
}
"""Sections of pages whose blocks other tests run: tests/rknn and tests/deploy/test_proxies.py."""

LEFT_OUT = {
    "exec": "needs a program",
    "serve": "does not end on its own; test_the_server_of_the_page runs one",
    "cluster": "needs Ray, and does not end on its own",
    "calibrate": "needs what a board measured",
    "demo": "tests/cli/test_demo.py runs it",
    "doctor": "ends with 1 where something has to be done first; tests/cli/test_doctor.py runs it",
    "twin": "needs a vendor's file",
    "top": "does not end on its own",
    "vpm-run": "tests/vip runs it",
}
"""Commands of pages that cannot be run where the pages are."""

FILES_OF_THE_READER = (
    "--draw",
    "stereo.onnx",
    "vendor.nb",
    "lenet.nb",
    "frame.npy",
    "stranger.rknn",
    "desk.json",
    "old.rknn",
    "yesterday.rknn",
    "yolo11n.onnx",
    "rknn --model",
    "yolo.toolkit",
    "yolo.quantization.cfg",
    "x=1,3,640,640",
)
"""Files and devices that only the reader has; and models whose results can be drawn, which the samples are not."""


def python_blocks(page: str) -> list[str]:
    """The Python examples of a page that no other test runs."""
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    elsewhere = [block for heading in ELSEWHERE.get(page, ()) for block in blocks(section(Path(page).stem, heading))]
    return [block for block in found if block not in elsewhere]


def commands(page: str) -> list[list[str]]:
    """The commands of anynpu on a page that can be run here."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^\$ anynpu (.+?)(?: +#.*)?$", text, re.MULTILINE)
    return [
        shlex.split(line)
        for line in dict.fromkeys(lines)
        if line.split()[0] not in LEFT_OUT and not any(file in line for file in FILES_OF_THE_READER)
    ]


def pages() -> list[str]:
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


PAGES = [page for page in pages() if python_blocks(page)]
COMMAND_PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("choose-a-chip", "cli", "compare", "int8-accuracy", "profile", "quickstart")),
]
"""Pages whose commands need nothing but the samples."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages") / "samples"
    write_samples(folder, pictures=3)
    return folder


@pytest.fixture
def workplace(samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder that ``anynpu samples`` writes."""
    folder = tmp_path / "samples"
    shutil.copytree(samples, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_python_examples_run_in_order_as_written(page: str, workplace: Path) -> None:
    names: dict[str, object] = {}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)


@pytest.mark.full
@pytest.mark.parametrize("page", COMMAND_PAGES)
def test_commands_run_in_order_as_written(page: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in commands(page):
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        assert not ended.value.code, (arguments, capsys.readouterr().err)


@pytest.mark.full
def test_the_readme_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every line below a command is printed by it; numbers after the decimal point may differ between processors."""
    write_samples(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (block,) = [text for text in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "console") if "$ anynpu check" in text]
    for part in block.split("$ anynpu ")[2:]:
        command, *shown = part.splitlines()
        with pytest.raises(SystemExit):
            run(shlex.split(command))
        printed = [re.sub(r"\d+", "0", " ".join(line.split())) for line in capsys.readouterr().out.splitlines()]
        for line in shown:
            assert line == "..." or re.sub(r"\d+", "0", " ".join(line.split())) in printed, line


@pytest.mark.full
def test_the_server_of_the_page(workplace: Path) -> None:
    """The server that docs/serving.md starts answers the request that the page sends, at other ports."""
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    found = re.search(r"^\$ anynpu (serve .+)$", text, re.MULTILINE)
    request = re.search(r"^\$ curl -s localhost:8000(\S+) -d '(.+)'$", text, re.MULTILINE)
    assert found is not None
    assert request is not None
    models = [word for word in found[1].split()[1:] if word.endswith(".rknn")]
    assert found[1].split()[1 + len(models) :] == ["--device", "sim:rk3588"]
    with Server(models, ServeOptions(port=0, grpc_port=0, device="sim:rk3588")) as server:
        asked = urllib.request.Request(f"http://{server.http_address}{request[1]}", request[2].encode())
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["outputs"][0]["shape"] == [1, 3]


def test_links_to_files_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
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


def test_the_navigation_has_no_page_twice() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert len(pages) == len(set(pages)) <= 25
    assert all((ROOT / "docs" / page).is_file() for page in pages if page != "api.md")


def test_the_pages_stay_short() -> None:
    """All pages together: words of text and tables, without code and the reference that is generated."""
    words = 0
    for page in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        words += sum(re.fullmatch(r"[-|:]+", word) is None for word in text.split())
    assert words <= 45_000


def test_the_environment_variables_are_listed() -> None:
    listed = set(re.findall(r"`((?:ANYNPU|RKNN)_[A-Z_]+)`", section("options", "Environment variables")))
    read = set()
    for path in sorted((ROOT / "src/anynpu").rglob("*")):
        if path.suffix in (".py", ".c"):
            text = path.read_text(encoding="utf-8")
            read |= set(re.findall(r"[\"\'](ANYNPU_[A-Z_]*[A-Z])[\"\'=]", text))
    assert read <= listed


def test_the_reference_has_every_public_name_with_its_text() -> None:
    spec = importlib.util.spec_from_file_location("api_page", ROOT / "tools" / "api_page.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    text = tool.page()
    for name in (
        "anynpu.InferenceSession",
        "anynpu.compile",
        "anynpu.rknn.Context",
        "anynpu.serve.Server",
        "anynpu.decision.decide",
    ):
        assert f"### `{name}`" in text
    import anynpu

    for name in anynpu.__all__:
        assert f"### `anynpu.{name}`\n" in text
    assert ":param" not in text
    assert ":class:" not in text


def test_messages_in_troubleshooting_are_those_of_the_code() -> None:
    """Each heading quotes a message; the parts between ``...`` must be in the sources, where f-strings hold the rest."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/anynpu").rglob("*.py")))
    headings = re.findall(r"^### `(.+)`$", section("messages"), re.MULTILINE)
    assert len(headings) > 15
    for heading in headings:
        for part in heading.split("..."):
            assert part.strip(" '") in source, heading


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom(path: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "notebooks are kept without results"
            exec(compile("".join(cell["source"]), path.name, "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) >= 5


def test_there_are_notebooks_and_the_page_names_them() -> None:
    page = section("board-programs", "Example programs")
    assert len(NOTEBOOKS) >= 3
    assert all(f"examples/notebooks/{path.name}" in page for path in NOTEBOOKS)
