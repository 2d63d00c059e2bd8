"""``anynpu models``: the list of well-known networks, and configs that compile takes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from anynpu.cli.app import _command, _function
from anynpu.cli.networks import NETWORKS, find, get, recipe_text
from anynpu.compiler.compile_options import CompileOptions
from anynpu.errors import ParameterError
from anynpu.tasks import TASKS


def test_every_recipe_is_one_that_compile_takes(tmp_path: Path) -> None:
    """Each goes through the reader of ``compile -c``, and its values through the command line's own conversion."""
    function = _function("compile")
    assert function is not None
    command = _command("compile", function)
    model = tmp_path / "net.onnx"
    model.write_bytes(b"only its name counts here")
    for network in NETWORKS:
        recipe = tmp_path / f"{network.name}.json"
        recipe.write_text(recipe_text(network, as_json=True))
        arguments = [str(model), "-o", str(tmp_path / "net.rknn"), "--target", "rk3588", "-c", str(recipe)]
        context: typer.Context = command.make_context("compile", arguments)
        given = {name.replace("-", "_"): value for name, value in network.flags.items()}
        flags = {entry.flag: name for name, entry in CompileOptions.options().items() if entry.flag}
        for name, value in given.items():
            seen = context.params[flags[f"--{name.replace('_', '-')}"]]
            seen = list(seen) if isinstance(seen, tuple) else seen  # as older versions of typer have several
            assert str(getattr(seen, "value", seen)) in (value, str([value])), (network.name, name)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="TOML needs Python 3.11")
def test_the_form_in_toml_says_the_same() -> None:
    import tomllib

    for network in NETWORKS:
        assert tomllib.loads(recipe_text(network)) == dict(network.flags)
        assert network.source in recipe_text(network)


def test_numbers_fit_the_channels_and_the_order_is_that_of_the_pictures() -> None:
    for network in NETWORKS:
        for name in ("mean", "std"):
            if name in network.flags:
                assert len([float(value) for value in network.flags[name].split(",")]) == 3, network.name
    # ImageNet's red is the first of its numbers; a network in BGR that has them in its own order has them reversed for RGB
    assert get("resnet50").flags["mean"].startswith("123.675")
    assert get("ppocr-v4-det").flags["mean"].startswith("103.53")


def test_every_entry_is_whole() -> None:
    names = [network.name for network in NETWORKS]
    assert len(set(names)) == len(names)
    for network in NETWORKS:
        assert network.task in TASKS
        assert re.fullmatch(r"[a-z0-9-]+", network.name)
        assert network.source
        assert network.to_onnx
        assert network.inputs
        assert network.outputs
        assert "://" not in str(network.to_json())
    for wanted in ("yolox", "yolov5", "yolov6", "yolov7", "yolov8", "yolov9", "yolov10", "yolov11", "ppocr", "retinaface"):
        assert find(wanted), wanted


def test_a_name_is_found_as_people_write_it() -> None:
    assert get("YOLOX_Nano").name == "yolox-nano"
    with pytest.raises(ParameterError, match="no config for 'yolox-nanu'") as caught:
        get("yolox-nanu")
    assert "yolox-nano" in caught.value.hint


def test_the_command(invoke: Any) -> None:
    listed = invoke("models")
    assert listed.code == 0
    assert "yolox-nano" in listed.out
    assert "resnet50" in listed.out
    only = invoke("models", "list", "pose", "--json")
    assert [one["name"] for one in json.loads(only.out)] == ["yolov8n-pose", "yolov11n-pose"]
    shown = invoke("models", "show", "retinaface-mobilenet")
    assert "not measured" in shown.out
    assert "BGR, mean 123,117,104" in shown.out
    assert json.loads(invoke("models", "show", "resnet50", "--json").out)["recipe"]["std"] == "58.395,57.12,57.375"
    recipe = invoke("models", "recipe", "yolov8n")
    assert recipe.out.splitlines()[-1] == 'std = "255,255,255"'
    assert json.loads(invoke("models", "recipe", "yolov8n", "--json").out) == {"std": "255,255,255"}


def test_wrong_usage_of_models(invoke: Any) -> None:
    assert invoke("models", "show").code == 2
    assert invoke("models", "list", "no-such-thing").code == 2
    outcome = invoke("models", "recipe", "yolo99")
    assert outcome.code == 1
    assert "there is no config for 'yolo99'" in outcome.err
