"""How option values are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from anynpu.cli.helpers.options import parse_channel_values, parse_named_files, parse_shapes


def test_one_shape_set() -> None:
    assert parse_shapes(["x=1,3,8,8", "mask=4"]) == {"x": (1, 3, 8, 8), "mask": (4,)}
    assert parse_shapes([]) is None


def test_a_name_given_twice_makes_shape_sets_and_others_are_repeated() -> None:
    assert parse_shapes(["x=1,8", "mask=4", "x=2,8"]) == [{"x": (1, 8), "mask": (4,)}, {"x": (2, 8), "mask": (4,)}]


def test_a_name_may_hold_an_equals_sign() -> None:
    assert parse_shapes(["a=b=1,2"]) == {"a=b": (1, 2)}


@pytest.mark.parametrize("text", ["x", "x=", "=1,2", "x=1,b", "x=1,,2", "x=0,3", "x=1,-1", "1,3,8,8"])
def test_a_wrong_shape_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="NAME=1,3,480,480"):
        parse_shapes([text])


def test_unequal_numbers_of_shapes_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match="2 shapes where another has 3"):
        parse_shapes(["x=1", "x=2", "x=3", "y=1", "y=2"])


def test_channel_values_by_position_and_by_name() -> None:
    assert parse_channel_values(["1,2,3", "4"], "--mean", ["a", "b"]) == {"a": (1.0, 2.0, 3.0), "b": (4.0,)}
    assert parse_channel_values(["b=0.5"], "--mean", ["a", "b"]) == {"b": (0.5,)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["1;2"], "not a list of numbers"),
        (["c=1"], "no input 'c'; its inputs: a, b"),
        (["1", "2", "3"], "given 3 times, but the model has 2 inputs"),
        (["1", "a=2"], "given twice for input 'a'"),
    ],
)
def test_wrong_channel_values_are_refused(values: list[str], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        parse_channel_values(values, "--mean", ["a", "b"])


def test_files_by_position_and_by_name(tmp_path: Path) -> None:
    first, second = tmp_path / "one.npy", tmp_path / "x=y.npy"
    first.touch()
    second.touch()
    assert parse_named_files([str(first), f"b={second}"], ["a", "b"]) == {"a": first, "b": second}
    assert parse_named_files([str(second)], ["a"]) == {"a": second}


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    present = tmp_path / "one.npy"
    present.touch()
    with pytest.raises(typer.BadParameter, match="does not exist"):
        parse_named_files(["absent.npy"], ["a"])
    with pytest.raises(typer.BadParameter, match="no input 'c'; its inputs: a"):
        parse_named_files([f"c={present}"], ["a"])
    with pytest.raises(typer.BadParameter, match="2 files for a model with 1 input"):
        parse_named_files([str(present), str(present)], ["a"])
    with pytest.raises(typer.BadParameter, match="given twice for input 'a'"):
        parse_named_files([str(present), f"a={present}"], ["a"])
