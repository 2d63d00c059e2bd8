"""Every decoder gives what plain loops give, on generated heads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from anynpu._util.types import Array
from anynpu.errors import ShapeError
from anynpu.tasks import (
    ANCHORS,
    Thresholds,
    decode_anchors,
    decode_cells,
    decode_columns,
    decode_distances,
    decode_faces,
    decode_final,
    decode_rows,
    face_priors,
    rotated_overlap,
    suppress,
)

from . import slow

SIZE = (64, 96)
LIMITS = Thresholds(score=0.4, overlap=0.5, count=20)
GRID = slow.grid_of(SIZE)


def scores_of(rng: np.random.Generator, classes: int, count: int) -> Array:
    """Mostly small, some large."""
    values = rng.uniform(0.0, 0.3, (classes, count))
    for place in rng.choice(count, count // 6, replace=False):
        values[rng.integers(classes), place] = rng.uniform(0.35, 0.99)
    return values.astype(np.float32)


def pixel_boxes(rng: np.random.Generator, count: int) -> Array:
    return np.stack(
        [rng.uniform(0, SIZE[1], count), rng.uniform(0, SIZE[0], count), rng.uniform(4, 60, count), rng.uniform(4, 40, count)]
    ).astype(np.float32)


@pytest.mark.parametrize("classes", [1, 3, 80])
def test_boxes_in_columns(classes: int) -> None:
    rng = np.random.default_rng(classes)
    output = np.concatenate([pixel_boxes(rng, len(GRID)), scores_of(rng, classes, len(GRID))])
    expected = slow.nms(slow.columns(output, LIMITS, classes), LIMITS)
    slow.assert_same(decode_columns(output[None], SIZE, LIMITS), expected)


def test_boxes_in_shares_of_the_input() -> None:
    rng = np.random.default_rng(4)
    output = np.concatenate([pixel_boxes(rng, len(GRID)), scores_of(rng, 3, len(GRID))])
    expected = slow.nms(slow.columns(output, LIMITS, 3), LIMITS)
    output[:4] /= np.array([[SIZE[1]], [SIZE[0]], [SIZE[1]], [SIZE[0]]])
    slow.assert_same(decode_columns(output, SIZE, LIMITS), expected)


def test_keypoints_follow_their_boxes() -> None:
    rng = np.random.default_rng(5)
    points = rng.uniform(0, 90, (17 * 3, len(GRID))).astype(np.float32)
    output = np.concatenate([pixel_boxes(rng, len(GRID)), scores_of(rng, 1, len(GRID)), points])
    expected = slow.nms(slow.columns(output, LIMITS, 1), LIMITS)
    result = decode_columns(output, SIZE, LIMITS, keypoints=17)
    slow.assert_same(result, expected)
    assert result.keypoints is not None
    np.testing.assert_allclose(result.keypoints.reshape(len(result), -1), [entry.more for entry in expected], atol=1e-3)


@pytest.mark.parametrize("in_rows", [False, True])
def test_masks_are_mixtures_of_prototypes(in_rows: bool) -> None:
    rng = np.random.default_rng(6)
    count = 3 * len(GRID) if in_rows else len(GRID)
    prototypes = rng.standard_normal((8, 5, 7)).astype(np.float32)
    coefficients = rng.standard_normal((8, count)).astype(np.float32)
    boxes, scores = pixel_boxes(rng, count), scores_of(rng, 2, count)
    if in_rows:
        output = np.concatenate([boxes, np.ones((1, count), np.float32), scores, coefficients]).T
        expected = slow.nms(slow.rows(output, LIMITS, 2), LIMITS)
        result = decode_rows(output, SIZE, LIMITS, prototypes=prototypes)
    else:
        output = np.concatenate([boxes, scores, coefficients])
        expected = slow.nms(slow.columns(output, LIMITS, 2), LIMITS)
        result = decode_columns(output, SIZE, LIMITS, prototypes=prototypes)
    slow.assert_same(result, expected)
    assert result.masks is not None
    for mask, entry in zip(result.masks, expected, strict=True):
        for y in range(5):
            for x in range(7):
                mixed = sum(entry.more[k] * float(prototypes[k, y, x]) for k in range(8))
                assert mask[y, x] == pytest.approx(slow.sigmoid(mixed), abs=1e-4)


def test_rotated_boxes() -> None:
    rng = np.random.default_rng(7)
    angles = rng.uniform(-math.pi / 4, 3 * math.pi / 4, (1, len(GRID))).astype(np.float32)
    output = np.concatenate([pixel_boxes(rng, len(GRID)), scores_of(rng, 2, len(GRID)), angles])
    found = sorted(slow.columns(output, LIMITS, 2), key=lambda entry: -entry.score)
    for entry in found:
        entry.angle = entry.more[0]
    assert_rotated(decode_columns(output, SIZE, LIMITS, rotated=True), found)


def assert_rotated(result: object, found: list[slow.SlowBox]) -> None:
    from anynpu.tasks import Detections

    assert isinstance(result, Detections)
    kept: list[slow.SlowBox] = []
    for candidate in sorted(found, key=lambda entry: -entry.score):
        a = (*candidate.middle, candidate.angle)
        if all(
            entry.number != candidate.number or slow.turned_overlap(a, (*entry.middle, entry.angle)) < LIMITS.overlap
            for entry in kept
        ):
            kept.append(candidate)
    kept = kept[: LIMITS.count]
    assert len(kept) > 2
    assert result.classes.tolist() == [entry.number for entry in kept]
    np.testing.assert_allclose(result.scores, [entry.score for entry in kept], atol=1e-5)
    assert result.corners is not None
    for corners, entry in zip(result.corners, kept, strict=True):
        x, y, width, height = entry.middle
        expected = []
        for across, down in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
            right, below = across * width / 2, down * height / 2
            turned = math.cos(entry.angle), math.sin(entry.angle)
            expected.append((x + right * turned[0] - below * turned[1], y + right * turned[1] + below * turned[0]))
        np.testing.assert_allclose(corners, expected, atol=1e-2)


def test_the_overlap_of_rotated_boxes_is_that_of_normal_distributions() -> None:
    box = np.array([10.0, 12.0, 8.0, 4.0, 0.3])
    same, turned, far = rotated_overlap(
        box, np.array([box, [10.0, 12.0, 4.0, 8.0, 0.3 + math.pi / 2], [90.0, 12.0, 8.0, 4.0, 0.3]])
    )
    assert same == pytest.approx(1.0, abs=1e-3)
    assert turned == pytest.approx(1.0, abs=1e-3)  # the same rectangle, described by its other side
    assert far < 1e-3
    rng = np.random.default_rng(3)
    boxes = np.stack([*rng.uniform(0, 30, (2, 50)), *rng.uniform(4, 40, (2, 50)), rng.uniform(-0.7, 2.3, 50)], axis=1)
    expected = [slow.turned_overlap(boxes[0], other) for other in boxes[1:]]
    np.testing.assert_allclose(rotated_overlap(boxes[0], boxes[1:]), expected, atol=1e-3)


def test_decoded_rows() -> None:
    rng = np.random.default_rng(8)
    count = 3 * len(GRID)
    output = np.concatenate(
        [pixel_boxes(rng, count), rng.uniform(0, 1, (1, count)).astype(np.float32), scores_of(rng, 5, count)]
    ).T
    slow.assert_same(decode_rows(output[None], SIZE, LIMITS), slow.nms(slow.rows(output, LIMITS, 5), LIMITS))


@pytest.mark.parametrize("decoded", [False, True])
def test_yolox_with_and_without_its_decoding(decoded: bool) -> None:
    rng = np.random.default_rng(9)
    places = np.stack([rng.uniform(0, 1, len(GRID)), rng.uniform(0, 1, len(GRID))])
    sizes = rng.uniform(-0.5, 1.5, (2, len(GRID)))
    certain = rng.uniform(0.5, 1.0, (1, len(GRID)))
    output = np.concatenate([places, sizes, certain, scores_of(rng, 4, len(GRID))]).T.astype(np.float32)
    expected = slow.nms(slow.rows(output, LIMITS, 4, GRID), LIMITS)
    if decoded:
        points, strides = np.array([entry[:2] for entry in GRID]), np.array([[entry[2]] for entry in GRID])
        output[:, :2] = (output[:, :2] + points) * strides
        output[:, 2:4] = np.exp(output[:, 2:4]) * strides
    slow.assert_same(decode_rows(output, SIZE, LIMITS), expected)


def by_grid(values: Array) -> list[Array]:
    """[C, N] over all grids as [C, H, W] for each."""
    parts, start = [], 0
    for stride in (8, 16, 32):
        rows, columns = SIZE[0] // stride, SIZE[1] // stride
        parts.append(values[:, start : start + rows * columns].reshape(-1, rows, columns))
        start += rows * columns
    return parts


@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize(("bins", "with_sum"), [(16, True), (16, False), (1, True), (17, False)])
def test_a_vendors_split_head(bins: int, with_sum: bool, logits: bool) -> None:
    rng = np.random.default_rng(bins + 10 * with_sum + 100 * logits)
    boxes = rng.uniform(0.2, 3.0, (4 * bins, len(GRID))) if bins == 1 else rng.standard_normal((4 * bins, len(GRID))) * 2
    scores = scores_of(rng, 3, len(GRID))
    sums = np.clip(scores.sum(axis=0, keepdims=True), 0, 1)
    given = np.log(scores / (1 - scores)) if logits else scores
    tensors = [boxes.astype(np.float32), given.astype(np.float32), *([sums] if with_sum else [])]
    grids = [list(entry) for entry in zip(*(by_grid(tensor) for tensor in tensors), strict=True)]
    expected = slow.nms(slow.distances(grids, SIZE, LIMITS, logits=logits), LIMITS)
    slow.assert_same(decode_distances(grids, SIZE, LIMITS), expected)


def test_a_split_head_with_keypoints() -> None:
    rng = np.random.default_rng(20)
    grids = _grids(rng, 1)
    points = rng.uniform(0, 1, (17, 3, len(GRID))).astype(np.float32)
    points[:, :2] *= 90
    expected = slow.nms(slow.distances(grids, SIZE, LIMITS, logits=False), LIMITS)
    result = decode_distances(grids, SIZE, LIMITS, keypoints=points)
    slow.assert_same(result, expected)
    assert result.keypoints is not None
    for found, entry in zip(result.keypoints, expected, strict=True):
        np.testing.assert_array_equal(found, points[:, :, int(entry.more[0])])


def test_a_split_head_with_masks() -> None:
    rng = np.random.default_rng(21)
    coefficients = rng.standard_normal((8, len(GRID))).astype(np.float32)
    prototypes = rng.standard_normal((8, 4, 6)).astype(np.float32)
    grids = [[*tensors, more] for tensors, more in zip(_grids(rng, 2), by_grid(coefficients), strict=True)]
    expected = slow.nms(slow.distances(grids, SIZE, LIMITS, logits=False), LIMITS)
    result = decode_distances(grids, SIZE, LIMITS, prototypes=prototypes)
    slow.assert_same(result, expected)
    assert result.masks is not None
    for mask, entry in zip(result.masks, expected, strict=True):
        mixed = sum(float(coefficients[k, int(entry.more[0])]) * float(prototypes[k, 2, 3]) for k in range(8))
        assert mask[2, 3] == pytest.approx(slow.sigmoid(mixed), abs=1e-4)


@pytest.mark.parametrize("activated", [False, True])
def test_a_split_head_of_rotated_boxes(activated: bool) -> None:
    rng = np.random.default_rng(22)
    grids = _grids(rng, 2)
    shares = rng.uniform(0.0, 1.0, len(GRID))
    angles = (shares - 0.25) * math.pi
    found = slow.distances(grids, SIZE, LIMITS, logits=False, angles=angles)
    given = (shares if activated else angles).astype(np.float32)
    assert_rotated(decode_distances(grids, SIZE, LIMITS, angles=given[None]), found)


def _grids(rng: np.random.Generator, classes: int) -> list[list[Array]]:
    boxes = (rng.standard_normal((64, len(GRID))) * 2).astype(np.float32)
    return [list(pair) for pair in zip(by_grid(boxes), by_grid(scores_of(rng, classes, len(GRID))), strict=True)]


@pytest.mark.parametrize("head", ["yolov5", "yolov7"])
@pytest.mark.parametrize("activated", [False, True])
def test_heads_with_anchors(head: str, activated: bool) -> None:
    rng = np.random.default_rng(30)
    depth = 5 + 3
    grids = [
        (rng.standard_normal((3 * depth, SIZE[0] // stride, SIZE[1] // stride)) * 2).astype(np.float32) for stride in (8, 16, 32)
    ]
    expected = slow.nms(slow.anchored(grids, SIZE, LIMITS, ANCHORS[head]), LIMITS)
    given: Sequence[Array] = [(1 / (1 + np.exp(-grid))).astype(np.float32) for grid in grids] if activated else grids
    slow.assert_same(decode_anchors(given, SIZE, LIMITS, anchors=ANCHORS[head]), expected)


def test_yolox_by_grid() -> None:
    rng = np.random.default_rng(31)
    values = np.concatenate(
        [rng.uniform(0, 1, (2, len(GRID))), rng.uniform(-0.5, 1.5, (2, len(GRID))), rng.uniform(0.5, 1, (1, len(GRID)))]
    )
    output = np.concatenate([values, scores_of(rng, 4, len(GRID))]).astype(np.float32)
    expected = slow.nms(slow.rows(output.T, LIMITS, 4, GRID), LIMITS)
    slow.assert_same(decode_cells(by_grid(output), SIZE, LIMITS), expected)
    logits = output.copy()
    logits[4:] = np.log(output[4:] / (1 - output[4:]))
    slow.assert_same(decode_cells(by_grid(logits), SIZE, LIMITS), expected)


@pytest.mark.parametrize("columns", [6, 7])
def test_final_boxes(columns: int) -> None:
    rng = np.random.default_rng(32)
    rows = np.concatenate([rng.uniform(0, 90, (12, 4)), rng.uniform(0.2, 1, (12, 1)), rng.integers(0, 5, (12, 1))], axis=1)
    given = rows if columns == 6 else np.concatenate([np.zeros((12, 1)), rows[:, :4], rows[:, 5:], rows[:, 4:5]], axis=1)
    result = decode_final(given.astype(np.float32), SIZE, LIMITS)
    expected = sorted((row for row in rows if row[4] >= LIMITS.score), key=lambda row: -row[4])
    np.testing.assert_allclose(result.boxes, [row[:4] for row in expected], atol=1e-4)
    np.testing.assert_allclose(result.scores, [row[4] for row in expected], atol=1e-6)
    assert result.classes.tolist() == [row[5] for row in expected]


@pytest.mark.parametrize("softmaxed", [False, True])
def test_faces(softmaxed: bool) -> None:
    rng = np.random.default_rng(33)
    priors = face_priors(SIZE)
    assert len(priors) == 2 * len(GRID)
    boxes, points = rng.standard_normal((len(priors), 4)), rng.standard_normal((len(priors), 10))
    logits = rng.standard_normal((len(priors), 2)) * 2
    certain = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    found = []
    place = 0
    for x, y, stride in GRID:
        for side in {8: (16, 32), 16: (64, 128), 32: (256, 512)}[stride]:
            score = float(certain[place, 1])
            if score >= LIMITS.score:
                middle = (x + 0.5) * stride + 0.1 * boxes[place, 0] * side, (y + 0.5) * stride + 0.1 * boxes[place, 1] * side
                extent = side * math.exp(0.2 * boxes[place, 2]), side * math.exp(0.2 * boxes[place, 3])
                marks = []
                for index in range(5):
                    marks += [(x + 0.5) * stride + 0.1 * points[place, 2 * index] * side]
                    marks += [(y + 0.5) * stride + 0.1 * points[place, 2 * index + 1] * side]
                found.append(slow.SlowBox(slow.around(*middle, *extent), score, 0, marks))
            place += 1
    expected = slow.nms(found, LIMITS)
    scores = certain if softmaxed else logits
    result = decode_faces(*(values.astype(np.float32)[None] for values in (boxes, scores, points)), SIZE, LIMITS)
    slow.assert_same(result, expected)
    assert result.keypoints is not None
    np.testing.assert_allclose(result.keypoints[..., :2].reshape(len(result), -1), [entry.more for entry in expected], atol=2e-2)


def test_suppression_is_that_of_plain_loops_on_crowded_boxes() -> None:
    rng = np.random.default_rng(34)
    corner = rng.uniform(0, 20, (300, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 15, (300, 2))], axis=1).astype(np.float32)
    scores, classes = rng.uniform(0, 1, 300).astype(np.float32), rng.integers(0, 3, 300)
    found = [
        slow.SlowBox(tuple(box.tolist()), float(score), int(number))
        for box, score, number in zip(boxes, scores, classes, strict=True)
    ]
    kept = suppress(boxes, scores, classes, LIMITS)
    assert [float(scores[index]) for index in kept] == [entry.score for entry in slow.nms(found, LIMITS)]
    assert len(kept) == LIMITS.count


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_suppression_goes_on_over_many_boxes(count: int) -> None:
    rng = np.random.default_rng(35)
    corner = rng.uniform(0, 200, (700, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 60, (700, 2))], axis=1).astype(np.float32)
    scores, classes = rng.uniform(0, 1, 700).astype(np.float32), rng.integers(0, 2, 700)
    limits = Thresholds(overlap=0.3, count=count)
    found = [
        slow.SlowBox(tuple(box.tolist()), float(score), int(number))
        for box, score, number in zip(boxes, scores, classes, strict=True)
    ]
    kept = suppress(boxes, scores, classes, limits)
    assert [float(scores[index]) for index in kept] == [entry.score for entry in slow.nms(found, limits)]
    assert len(kept) == count or 128 < len(kept) < 700, "more than one block of boxes stays, and some go"


def test_nothing_found_is_an_empty_result() -> None:
    assert len(decode_columns(np.zeros((84, len(GRID)), np.float32), SIZE)) == 0
    assert len(decode_rows(np.zeros((len(GRID), 85), np.float32), SIZE)) == 0
    assert len(decode_final(np.zeros((300, 6), np.float32), SIZE)) == 0
    assert len(decode_anchors([np.full((255, 2, 2), -9, np.float32)] * 3, SIZE)) == 0
    assert len(decode_cells([np.full((85, 2, 2), -9, np.float32)] * 3, SIZE)) == 0
    assert len(decode_distances([[np.zeros((64, 2, 2), np.float32), np.zeros((80, 2, 2), np.float32)]], SIZE)) == 0
    assert len(decode_distances([], SIZE)) == 0
    assert suppress(np.zeros((0, 4)), np.zeros(0), np.zeros(0)).tolist() == []


def test_suppression_of_boxes_that_say_nothing() -> None:
    """Without an area nothing overlaps; a score or place that is no number suppresses nobody; none are wanted."""
    point = np.array([[5.0, 5, 5, 5], [5, 5, 5, 5], [0, 0, 9, 9]])
    scores, classes = np.array([0.9, 0.8, 0.7], np.float32), np.zeros(3, np.int64)
    assert suppress(point, scores, classes).tolist() == [0, 1, 2]
    strange = np.array([[np.nan, 0, 9, 9], [0, 0, 9, 9], [0, 0, 9, 8]])
    assert suppress(strange, scores, classes).tolist() == [0, 1]
    assert suppress(point, np.array([np.nan, 0.5, 0.6], np.float32), classes).tolist() == [2, 1, 0]
    assert suppress(point, scores, classes, Thresholds(count=0)).tolist() == []


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types_are_decoded_too(dtype: type) -> None:
    rng = np.random.default_rng(36)
    grids = [[tensor.astype(dtype) for tensor in tensors] for tensors in _grids(rng, 3)]
    expected = slow.nms(slow.distances(grids, SIZE, LIMITS, logits=False), LIMITS)
    slow.assert_same(decode_distances(grids, SIZE, LIMITS), expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: decode_columns(np.zeros((4, 10)), SIZE), "no space for classes"),
        (lambda: decode_rows(np.zeros((10, 5)), SIZE), "no space for classes"),
        (lambda: decode_rows(np.zeros((2, 10, 85)), SIZE), "two axes besides the batch"),
        (lambda: decode_distances([[np.zeros((63, 2, 2)), np.zeros((80, 2, 2))]], SIZE), "four sides"),
        (lambda: decode_distances([[np.zeros((64, 2, 2)), np.zeros((80, 2, 3))]], SIZE), "not of one grid"),
        (lambda: suppress(np.zeros((3, 4)), np.zeros(3), np.zeros(2, np.int64)), "do not belong together"),
        (lambda: suppress(np.zeros((3, 5)), np.zeros(3), np.zeros(3, np.int64)), "do not belong together"),
        (lambda: decode_anchors([np.zeros((254, 2, 2))] * 3, SIZE), "for 3 anchors"),
        (lambda: decode_faces(np.zeros((9, 4)), np.zeros((9, 2)), np.zeros((9, 10)), SIZE), "9 boxes"),
    ],
)
def test_what_does_not_fit_is_said(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ShapeError, match=words):
        call()
