"""The report for a decision: all chips side by side, the network colored by time and by error, as data and as a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from browser import open_page
from onnx import TensorProto, helper, numpy_helper

from anynpu import chips
from anynpu.analysis.pages import GraphNode, layer_graph
from anynpu.analysis.report import Decision, decide, decision_data, decision_of, decision_page
from anynpu.chips.timing import predict
from anynpu.cli.app import run
from anynpu.compiler import ModelOutline
from anynpu.errors import CompileError

Invoke = Callable[..., Any]

CHIPS = ("rk3588", "rv1106", "t527")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two convolutions whose results are added, and a Softmax that some chips leave to the CPU."""
    rng = np.random.default_rng(3)
    weights = {name: rng.normal(0, 0.3, (8, channels, 3, 3)) for name, channels in (("w1", 3), ("w2", 8))}
    nodes = [
        helper.make_node("Conv", ["images", "w1"], ["a"], "first<&>", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"], "sum"),
        helper.make_node("Softmax", ["d"], ["y"], "softmax", axis=2),
    ]
    shape = [1, 8, 16, 16]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    path = tmp_path_factory.mktemp("decision") / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def samples(model_path: Path) -> Path:
    path = model_path.with_name("samples.npy")
    np.save(path, np.random.default_rng(4).normal(size=(4, 3, 16, 16)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def decision(model_path: Path, samples: Path) -> Decision:
    return decide(model_path, [chips.get(name) for name in CHIPS], dataset=samples, samples=2)


def test_every_chip_has_the_figures_of_its_prediction(decision: Decision, model_path: Path) -> None:
    outline = ModelOutline(model_path)
    assert [entry.chip.name for entry in decision.chips] == list(CHIPS)
    for entry in decision.chips:
        made = predict(outline.program(entry.chip), entry.chip)
        assert entry.profile is not None
        assert entry.profile.latency_us == pytest.approx(made.latency_us)
        assert entry.memory_bytes == made.memory_bytes
    assert decision.taking == sorted(decision.taking, key=lambda entry: entry.profile.latency_us if entry.profile else 0.0)


def test_the_price_of_float16(decision: Decision) -> None:
    prices = {entry.chip.name: entry.float16_us for entry in decision.chips}
    assert prices["rv1106"] is None  # it has none
    assert prices["rk3588"] is not None


def test_accuracy_is_measured_once_per_vendor(decision: Decision) -> None:
    assert len(decision.accuracy) == 2
    for entry in decision.accuracy.values():
        assert 0.5 < entry.cosine <= 1.0
        assert entry.comparison.samples == 2
    assert decision.accuracy_of(chips.get("rk3588")) is decision.accuracy_of(chips.get("rv1106"))


def test_without_a_data_set_nothing_is_compiled(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anynpu.analysis.report.compile", pytest.fail)
    made = decide(model_path, [chips.get("rk3588")])
    assert made.accuracy == {}
    assert "accuracy is not measured" in decision_page(made)


def test_a_chip_that_refuses_has_its_reason_and_one_that_all_refuse_fails(model_path: Path) -> None:
    asked = [chips.get(name) for name in ("rk3588", "rv1106")]
    made = decide(model_path, asked, dtype="fp16")
    assert [entry.takes for entry in made.chips] == [True, False]
    assert made.chips[1].refusal
    assert made.chips[1].refusal in decision_page(made).replace("&#x27;", "'")
    with pytest.raises(CompileError):
        decide(model_path, asked[1:], dtype="fp16")


def test_a_chip_whose_memory_is_too_small(decision: Decision) -> None:
    import dataclasses

    entry = decision.chips[1]
    assert entry.fits
    small = dataclasses.replace(entry, chip=dataclasses.replace(entry.chip, dram_bytes=1000))
    assert not small.fits
    assert not small.takes


def test_the_data_is_json_without_infinities(decision: Decision) -> None:
    data = json.loads(json.dumps(decision_data(decision), allow_nan=False))
    assert [row["chip"] for row in data["chips"]] == list(CHIPS)
    (layer,) = [layer for layer in data["chips"][0]["layers"] if layer["name"] == "softmax"]
    assert (layer["bound"], bool(layer["reason"])) == ("cpu", True)
    assert set(data["accuracy"]) == {"rknn", "vip"}


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(decision: Decision) -> None:
    text = decision_page(decision)
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "first<&>" not in text.replace("\\u003c", "")
    assert text.count('class="node"') == len(decision.fastest.profile.layers if decision.fastest.profile else ())
    assert '<abbr title="Predicted time of one run on one core' in text


def test_the_graph_keeps_readers_below_what_they_read() -> None:
    picture = layer_graph([GraphNode(name, name, name) for name in "abcd"], [(0, 1), (0, 2), (1, 3), (2, 3)], "time", "#000")
    tops = {name: int(y) for name, y in re.findall(r'data-name="(\w)".*?<rect class="frame" x="\d+" y="(\d+)"', picture)}
    assert tops["a"] < tops["b"] == tops["c"] < tops["d"]
    corners = re.findall(r'<rect class="frame" x="(\d+)" y="(\d+)"', picture)
    assert len(set(corners)) == 4


def _invoke(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        run([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return ended.value.code or 0, shown.out, shown.err  # type: ignore[return-value]


def test_the_command(capsys: pytest.CaptureFixture[str], model_path: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, err = _invoke(capsys, "report", model_path, "--target", "rk3588,t527", "--html", page)
    assert (code, out.splitlines()[-1]) == (0, f"wrote {page}"), err
    assert {line.split()[0] for line in out.splitlines()[1:-1]} == {"rk3588", "t527"}
    data = json.loads(_invoke(capsys, "report", model_path, "--target", "rk3588", "--json")[1])
    assert [row["chip"] for row in data["chips"]] == ["rk3588"]
    assert _invoke(capsys, "report", model_path, "--target", "rk3588,rk9")[0] == 2


def test_profile_of_several_chips(capsys: pytest.CaptureFixture[str], model_path: Path, tmp_path: Path) -> None:
    page = tmp_path / "profile.html"
    code, out, err = _invoke(capsys, "profile", model_path, "--target", "rk3588,rk3566", "--html", page)
    assert code == 0, err
    assert set(out.splitlines()[0].split()) == {"layer", "operator", "rk3588", "rk3566"}
    assert out.splitlines()[1].startswith("all layers")
    assert page.is_file()
    assert _invoke(capsys, "profile", model_path, "--target", "rk3588,rk3566", "--trace", tmp_path / "t.json")[0] == 2


def test_a_decision_of_an_outline(model_path: Path) -> None:
    made = decision_of("net", ModelOutline(model_path), [chips.get("rk3588")])
    edges = made.edges["rk3588"]
    assert all(first < second for first, second in edges)
    assert len(edges) >= len(made.fastest.profile.layers) - 1 if made.fastest.profile else False


@pytest.mark.full
def test_the_page_in_a_browser(decision: Decision, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    script = """<script>
    const pick = (name, value) => { const box = document.getElementById(name); box.value = value; box.dispatchEvent(new Event('change')); };
    pick('view', 'error'); pick('chip', 't527');
    find.value = 'second'; find.dispatchEvent(new Event('input'));
    document.getElementById('larger').click();
    </script>"""
    page.write_text(decision_page(decision).replace("</body>", f"{script}</body>"), encoding="utf-8")
    document, console = open_page(page)
    assert not console
    assert 'class="of-chip">t527<' in document
    rows = re.findall(r'<tr(?: class="(\w*)")?><td class="number" data-value="\d+">', document)
    assert rows.count("") == 1  # one layer is called second
    assert rows.count("away") == len(rows) - 1
