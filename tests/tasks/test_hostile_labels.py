"""Labels and keypoints that a stranger's model states it has."""

from __future__ import annotations

import ast

import pytest

from anynpu.tasks.labels import keypoint_count, labels_from_metadata


@pytest.mark.parametrize("text", ["{1e999: 'a'}", "[" * 100_000, "{-5: 'a'}", "{10000000: 'a'}"])
def test_labels_that_make_no_sense_are_none(text: str) -> None:
    assert labels_from_metadata({"names": text}) == ()


@pytest.mark.parametrize("text", ["[1e999, 3]", "[" * 100_000, "[-5, 3]", "[1000000000000, 3]", "[NaN, 3]", '["17", 3]', "17"])
def test_keypoints_that_make_no_sense_are_none(text: str) -> None:
    assert keypoint_count({"kpt_shape": text}) == 0


def test_keypoints() -> None:
    assert keypoint_count({"kpt_shape": "[17, 3]"}) == 17


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("{0: 'cat', 1: \"it's\"}", ("cat", "it's")),
        ("{0: 'a: b, c', 1: '[x]', 2: 'y\\'s'}", ("a: b, c", "[x]", "y's")),
        ('{"0": "a", "2": "\\u00e9\\/"}', ("a", "1", "é/")),
        ("[\n 'a',\n 'b',\n]", ("a", "b")),
        ("[1, 2]", ("1", "2")),
        ("['a' 'b']", ()),
        ("[['a']]", ()),
        ("{'a', 'b'}", ()),
        ("['a", ()),
        ("[]", ()),
    ],
)
def test_labels_as_exporters_write_them(text: str, labels: tuple[str, ...]) -> None:
    assert labels_from_metadata({"names": text}) == labels


def test_labels_are_read_by_our_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's reader took 1.9 GB and ten seconds for four megabytes of a list."""
    monkeypatch.setattr(ast, "literal_eval", None)
    assert labels_from_metadata({"names": f"[{'1,' * 1000}]"}) == ("1",) * 1000
    assert labels_from_metadata({"names": f"[0x{'f' * 10_000}]"}) == (f"0x{'f' * 10_000}",)
    same = ",".join(f"{number * (2**61 - 1)}: 'a'" for number in range(1, 1000))  # for a dict, all of these are alike
    assert labels_from_metadata({"names": f"{{{same}}}"}) == ()
