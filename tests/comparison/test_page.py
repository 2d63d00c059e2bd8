"""The page of a comparison, in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from browser import open_page

from anynpu.analysis.compare import (
    Comparison,
    CompiledSubject,
    OnnxSubject,
    OutputsSubject,
    compare,
    comparison_data,
    comparison_page,
)
from anynpu.program import Model

from .networks import samples, scaled_layers, with_wrong_scale


@pytest.fixture(scope="module")
def comparison(proto: onnx.ModelProto, model: Model) -> Comparison:
    wrong = with_wrong_scale(model, scaled_layers(model)[3], 1.02)
    return compare(OnnxSubject(proto, "net & <fp32>"), CompiledSubject(wrong, "int8"), samples(2, seed=3))


@pytest.mark.full
def test_the_page_shows_its_pictures_in_a_browser(comparison: Comparison, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    page.write_text(comparison_page(comparison, pictures=5), encoding="utf-8")
    document, console = open_page(page)
    assert not console
    assert document.count("<svg") == 1 + 2 * 5
    rows = len(comparison.layers) + 10  # the worst ten have a table of their own
    assert document.count("<tr>") == 2 + rows
    cells, heads = (len(re.findall(rf"<{tag}[ >]", document)) for tag in ("td", "th"))
    assert cells == heads // 2 * rows
    assert "net &amp; &lt;fp32&gt;" in document
    assert comparison.first_diverging is not None
    assert f"First diverging layer: {comparison.first_diverging.layer.layer}" in document
    picture = tmp_path / "compare.png"
    open_page(page, screenshot=picture)
    import cv2

    pixels = cv2.imread(str(picture))
    assert pixels is not None
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_the_page_needs_nothing_from_elsewhere(comparison: Comparison) -> None:
    text = comparison_page(comparison)
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "http" not in text
    assert "nan" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_values_that_are_not_finite_have_a_page_and_data_too(model: Model) -> None:
    a = CompiledSubject(model, "int8")
    broken = OutputsSubject(
        "broken", a.inputs, a.outputs, lambda arrays: [np.full(shape, np.nan) for shape in a.outputs.values()]
    )
    comparison = compare(a, broken, samples(1, seed=3))
    assert comparison.first_diverging is not None
    assert "not all values are finite" in comparison_page(comparison)
    assert json.loads(json.dumps(comparison_data(comparison), allow_nan=False))["layers"][0]["so_far"]["error"] is None


def test_the_data_is_plain_json(comparison: Comparison) -> None:
    data = json.loads(json.dumps(comparison_data(comparison), allow_nan=False))
    assert comparison.first_diverging is not None
    assert data["first_diverging"]["layer"] == comparison.first_diverging.layer.layer
    assert len(data["layers"]) == len(comparison.layers)
    assert set(data["outputs"]) == set(comparison.outputs)
    assert data["layers"][1]["so_far"]["cosine"] > 0.99
