"""Text, classes, maps and labels."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from anynpu.errors import ParameterError, ShapeError
from anynpu.tasks import (
    COCO,
    Detections,
    SemanticMap,
    TextLine,
    TextRegions,
    alphabet_of,
    classify,
    crop_text,
    find_text,
    labels_from_file,
    labels_from_metadata,
    read_text,
    segment,
    split_line,
)
from anynpu.tasks.draw import draw


def test_regions_of_text_are_found_in_reading_order() -> None:
    probability = np.full((100, 200), 0.1, np.float32)
    probability[20:30, 120:180] = 0.9
    probability[22:32, 10:60] = 0.8
    probability[70:80, 10:100] = 0.95
    probability[50:60, 10:60] = 0.4  # uncertain
    probability[5:6, 5:6] = 1.0  # too small
    found = find_text(probability[None, None])
    np.testing.assert_allclose(found.scores, [0.8, 0.9, 0.95], atol=1e-6)
    left_top, right_bottom = found.corners[2, 0], found.corners[2, 2]
    grown = 89 * 9 * 1.6 / (2 * (89 + 9))  # contours run through the middles of pixels
    np.testing.assert_allclose(left_top, [10 - grown, 70 - grown], atol=0.1)
    np.testing.assert_allclose(right_bottom, [99 + grown, 79 + grown], atol=0.1)
    assert len(find_text(np.zeros((8, 8)))) == 0


def test_a_turned_region_is_cut_out_upright() -> None:
    picture = np.zeros((120, 160, 3), np.uint8)
    corners = cv2.boxPoints(((80, 60), (80, 20), 30)).astype(np.float32)
    cv2.fillPoly(picture, [np.rint(corners).astype(np.int32)], (200, 100, 50))
    middle = corners.mean(axis=0)
    order = np.argsort(np.arctan2(*(corners - middle).T[::-1]))
    strip = crop_text(picture, corners[order], 16)
    assert strip.shape == (16, 64, 3)
    np.testing.assert_allclose(strip[4:12, 6:58].mean(axis=(0, 1)), [200, 100, 50], atol=3)


def test_a_line_that_runs_down_is_turned() -> None:
    picture = np.zeros((100, 40, 3), np.uint8)
    picture[:50] = 255
    strip = crop_text(picture, np.array([[10, 10], [30, 10], [30, 90], [10, 90]], np.float32), 20)
    assert strip.shape == (20, 80, 3)
    columns = strip[:, :, 0].mean(axis=0)
    assert {columns[5] > 200, columns[70] > 200} == {True, False}


def test_a_long_line_is_cut_between_words() -> None:
    strip = np.full((40, 300, 3), 230, np.uint8)
    for start, end in ((5, 60), (75, 130), (133, 190), (210, 290)):  # between the second and third there is no space
        strip[10:30, start:end:2] = 20
    pieces = split_line(strip, 140)
    assert [piece.shape for piece, _ in pieces] == [(40, 140, 3)] * 3
    assert [between for _, between in pieces] == ["", " ", " "]
    joined = np.concatenate([piece[:, : int((piece != 127).all(axis=(0, 2)).sum())] for piece, _ in pieces], axis=1)
    np.testing.assert_array_equal(joined, strip)
    ((whole, between),) = split_line(strip, 320)
    assert between == ""
    assert (whole[:, 300:] == 127).all()
    strip[10:30, ::2] = 20
    assert [between for _, between in split_line(strip, 140)] == ["", "", ""]
    assert len(split_line(np.zeros((8, 100, 3), np.uint8), 10)) == 10


def test_characters_are_read_as_plain_loops_do() -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((50, 6)) * 3
    alphabet = alphabet_of("abcd", 6)
    text, scores, last = "", [], 0
    for row in logits:
        powers = np.exp(row - row.max())
        best = int(np.argmax(row))
        if best not in (0, last):
            text += alphabet[best]
            scores.append(float(powers[best] / powers.sum()))
        last = best
    line = read_text(logits[None], alphabet)
    assert line.text == text
    assert line.score == pytest.approx(float(np.mean(scores)), abs=1e-5)
    assert read_text(np.eye(6)[[0, 0]], alphabet) == TextLine("", 0.0)
    with pytest.raises(ShapeError, match="9 characters apart, the list has 4"):
        alphabet_of("abcd", 9)
    with pytest.raises(ShapeError, match="the alphabet has 6"):
        read_text(np.zeros((4, 5)), alphabet)


def test_logits_and_probabilities_give_the_same_classes() -> None:
    logits = np.array([[1.0, 3.0, -2.0, 2.5]])
    powers = np.exp(logits - 3.0)
    for given in (logits, powers / powers.sum()):
        found = classify(given, 3)
        assert found.classes.tolist() == [1, 3, 0]
        np.testing.assert_allclose(found.scores, (powers / powers.sum())[0, [1, 3, 0]], rtol=1e-5)
    assert next(found.rows(("a", "b")))["label"] == "b"
    with pytest.raises(ShapeError, match="NaN"):
        classify(np.array([np.nan, 1.0]))


def test_maps_of_classes() -> None:
    scores = np.zeros((1, 3, 4, 5), np.float32)
    scores[0, 2, :, 3:] = 1.0
    scores[0, 1, 0, 0] = 1.0
    found = segment(scores)
    assert found.classes.shape == (4, 5)
    assert [row["class"] for row in found.rows()] == [0, 2, 1]
    np.testing.assert_array_equal(segment(found.classes[None]).classes, found.classes)
    np.testing.assert_array_equal(segment(scores[:, 2:]).classes, scores[0, 2] > 0.5)
    np.testing.assert_array_equal(segment(scores[:, 2:] * 8 - 4).classes, scores[0, 2] > 0.5)
    with pytest.raises(ShapeError, match="one image"):
        segment(np.zeros((2, 3, 4, 5)))


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        ({"names": "{0: 'cat', 1: 'dog'}"}, ("cat", "dog")),
        ({"names": '{"0": "cat", "2": "dog"}'}, ("cat", "1", "dog")),
        ({"names": "['cat', 'dog']"}, ("cat", "dog")),
        ({"labels": "cat, dog"}, ("cat", "dog")),
        ({"classes": "cat\ndog"}, ("cat", "dog")),
        ({"character": "a\nb\n'"}, ("a", "b", "'")),
        ({"names": "{0: 'cat'"}, ()),
        ({"names": "{'x': 'cat'}"}, ()),
        ({"names": "{999999999: 'cat'}"}, ()),
        ({"stride": "32"}, ()),
    ],
)
def test_labels_of_a_model(metadata: dict[str, str], labels: tuple[str, ...]) -> None:
    assert labels_from_metadata(metadata) == labels


def test_labels_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("cat\r\n dog\r\n\n", encoding="utf-8")
    assert labels_from_file(path) == ("cat", " dog")
    path.write_text('["cat", "dog"]', encoding="utf-8")
    assert labels_from_file(path) == ("cat", "dog")
    assert labels_from_file("coco") is COCO
    assert len(COCO) == 80
    assert COCO[79] == "toothbrush"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParameterError, match="not a text file"):
        labels_from_file(path)
    with pytest.raises(ParameterError, match="no file of labels 'absent'"):
        labels_from_file("absent")


def test_every_result_is_drawn_and_the_picture_is_left_alone() -> None:
    picture = np.full((120, 160, 3), 90, np.uint8)
    box, one = np.array([[20, 30, 100, 90]], np.float32), np.ones(1, np.float32)
    masks = np.zeros((1, 120, 160), bool)
    masks[0, 40:60, 40:60] = True
    corners = np.array([[[20, 30], [100, 40], [95, 90], [15, 80]]], np.float32)
    points = np.concatenate([np.linspace(20, 100, 34).reshape(1, 17, 2), np.ones((1, 17, 1))], axis=2).astype(np.float32)
    number = np.zeros(1, np.int64)
    results = [
        Detections(box, one, number),
        Detections(box, one, number, masks=masks),
        Detections(box, one, number, corners=corners),
        Detections(box, one, number, keypoints=points),
        classify(np.array([0.2, 0.8])),
        SemanticMap(masks[0].astype(np.int64)),
        TextLine("water", 0.9),
        TextRegions(corners, one, (TextLine("水", 0.9),)),
    ]
    drawn = [draw(picture, result, ("cat", "dog")) for result in results]
    assert (picture == 90).all()
    for entry in drawn:
        assert entry.shape == picture.shape
        assert (entry != picture).any()
    assert not (drawn[0][30, 40:100] == 90).all(axis=1).any()  # the upper side of the box
    assert (drawn[0][40:85, 30:90] == 90).all()  # and nothing inside it
    assert (drawn[1][45:55, 45:55] != 90).any(axis=2).all()
