"""Focus stems: slices of an image, joined for a convolution, are one convolution."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.compiler import export as handover
from anynpu.compiler import optimize
from anynpu.compiler.board import build
from anynpu.compiler.compile_options import CompileOptions
from anynpu.compiler.graph import to_onnx
from anynpu.compiler.passes.optimize import fold_focus
from anynpu.compiler.pipeline import prepare
from anynpu.compiler.quantize.model_samples import open_study
from anynpu.compiler.quantize.search import Score

from .onnx_builders import feeds
from .running import run_fp32

CORNERS = ((0, 0), (1, 0), (0, 1), (1, 1))
"""Top, left of the slices, in the order of YOLOX."""


def focus(
    corners: tuple[tuple[int, int], ...] = CORNERS,
    *,
    size: tuple[int, int] = (8, 12),
    step: int = 2,
    window: int = 3,
    stride: int = 1,
    pads: tuple[int, int, int, int] = (1, 1, 1, 1),
    two: bool = True,
    end: int = 2**31 - 1,
) -> onnx.ModelProto:
    """Slices of x, joined per channel, and a convolution; each slice as two nodes, as PyTorch exports it, or as one."""
    rng = np.random.default_rng(5)
    constants: dict[str, npt.NDArray[Any]] = {
        "w": rng.standard_normal((8, 3 * len(corners), window, window)).astype(np.float32),
        "b": rng.standard_normal(8).astype(np.float32),
        "end": np.array([end]),
        "ends": np.array([end, end]),
        "rows": np.array([2]),
        "columns": np.array([3]),
        "both": np.array([2, 3]),
        "step": np.array([step]),
        "steps": np.array([step, step]),
    }
    nodes = []
    for number, (top, left) in enumerate(corners):
        constants[f"top{number}"], constants[f"left{number}"] = np.array([top]), np.array([left])
        constants[f"corner{number}"] = np.array([top, left])
        if two:
            nodes.append(helper.make_node("Slice", ["x", f"top{number}", "end", "rows", "step"], [f"half{number}"]))
            nodes.append(
                helper.make_node("Slice", [f"half{number}", f"left{number}", "end", "columns", "step"], [f"part{number}"])
            )
        else:
            nodes.append(helper.make_node("Slice", ["x", f"corner{number}", "ends", "both", "steps"], [f"part{number}"]))
    nodes.append(helper.make_node("Concat", [f"part{number}" for number in range(len(corners))], ["joined"], axis=1))
    nodes.append(helper.make_node("Conv", ["joined", "w", "b"], ["c"], "stem", pads=list(pads), strides=[stride, stride]))
    nodes.append(helper.make_node("Relu", ["c"], ["y"]))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "focus",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, *size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def folded(network: onnx.ModelProto) -> tuple[list[str], onnx.ModelProto]:
    graph = prepare(network, {}, CompileOptions(), {}).graph
    names = fold_focus(graph)
    return names, to_onnx(graph, graph.nodes, graph.inputs, graph.outputs)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"two": False},
        {"window": 1, "pads": (0, 0, 0, 0)},
        {"stride": 2, "pads": (0, 1, 1, 0)},
        {"corners": ((1, 1), (0, 0))},
        {"corners": ((0, 0), (0, 0), (2, 1)), "step": 3, "size": (9, 12)},
    ],
)
def test_a_stem_is_one_convolution(changes: dict[str, Any]) -> None:
    network = focus(**changes)
    names, rewritten = folded(network)
    assert names == ["c"]
    assert [node.op_type for node in rewritten.graph.node] == ["Conv", "Relu"]
    samples = feeds(network, 2)
    for (expected,), (given,) in zip(run_fp32(network, samples), run_fp32(rewritten, samples), strict=True):
        assert given.shape == expected.shape
        np.testing.assert_allclose(given, expected, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": (9, 12), "corners": ((0, 0), (0, 1))},  # the stride leaves a line over
        {"end": 6},  # not the whole image
        {"corners": ((2, 0), (2, 0))},  # a slice that begins further down than its stride
        {"step": 1, "corners": ((0, 0), (0, 0))},
    ],
)
def test_what_is_no_stem_stays(changes: dict[str, Any]) -> None:
    names, rewritten = folded(focus(**changes))
    assert names == []
    assert "Concat" in [node.op_type for node in rewritten.graph.node]


def test_optimize_folds_stems_without_a_judge() -> None:
    network = focus(size=(16, 16))
    better = optimize(network, dataset=feeds(network, 2), judged=False)
    assert better.stems == ("c",)
    assert "Slice" not in [node.op_type for node in better.model.graph.node]
    assert better.relative_error < 1e-5


GOOD, BAD = (Score(value, value, value, (value,), True) for value in (0.99, 0.8))


@pytest.mark.parametrize("scores", [(BAD, GOOD), (GOOD, BAD)], ids=["better", "worse"])
def test_a_stem_is_kept_where_the_judges_agree(scores: tuple[Score, Score], monkeypatch: pytest.MonkeyPatch) -> None:
    """The original is evaluated first."""
    said = iter(scores)
    monkeypatch.setitem(optimize.__globals__, "plain_score", lambda *_, **__: next(said))
    network = focus(size=(16, 16))
    judged = optimize(network, dataset=feeds(network, 2))
    assert judged.stems == (("c",) if scores[1] is GOOD else ())
    assert judged.note.startswith("not kept") == (scores[1] is BAD)


def test_the_judge_sees_the_vendors_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolkit splits the Concat of a stem that was not folded: there are more convolutions to round between."""
    network = focus(size=(16, 16))
    counts = []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        study = open_study(*arguments, **keywords)
        counts.append([node.op for node in study.bench.graph.nodes].count("Conv"))
        return study

    monkeypatch.setattr(handover, "open_study", counted)
    optimize(network, dataset=feeds(network, 3))
    assert counts == [4, 1]


@pytest.mark.parametrize("scores", [(BAD, GOOD), (GOOD, BAD)], ids=["better", "worse"])
def test_build_keeps_a_stem_that_is_better_in_the_toolkits_graph(
    scores: tuple[Score, Score], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """optimize has found it better with plain min/max; what the toolkit is given has other ranges and weights."""
    judged, said = iter((BAD, GOOD)), iter(scores)
    monkeypatch.setitem(optimize.__globals__, "plain_score", lambda *_, **__: next(judged))
    monkeypatch.setitem(build.__globals__, "toolkit_score", lambda *_, **__: next(said))
    network = focus()
    built = build(network, tmp_path, "rk3588", CompileOptions(dataset=feeds(network, 2)), None, name="stem")
    made = onnx.load(tmp_path / "stem.toolkit" / "stem.onnx")
    kept = scores[1] is GOOD
    assert ("Slice" not in [node.op_type for node in made.graph.node]) == kept
    assert built.notes[-1].startswith("optimize: the stem c" if kept else "optimize: not kept, the stem c")


def test_what_is_handed_over_is_judged_in_the_toolkits_graph() -> None:
    network = focus()
    samples = feeds(network, 2)
    score = handover.toolkit_score(handover.handover(network, "rk3588", dataset=samples), "rk3588", dataset=samples)
    assert score is not None
    assert 0.9 < score.worst < 1.0
