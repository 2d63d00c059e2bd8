"""Which decoder a network's outputs need, from their shapes and from what the model states about itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .._util.types import Array
from ..errors import ParameterError, ShapeError
from .boxes import (
    ANCHORS,
    STRIDES,
    decode_anchors,
    decode_cells,
    decode_columns,
    decode_distances,
    decode_faces,
    decode_final,
    decode_rows,
)
from .labels import classify, keypoint_count, segment
from .letterbox import Placement
from .results import Classification, Detections, SemanticMap, TextLine, TextRegions, Thresholds
from .suppress import cells
from .text import alphabet_of, find_text, read_text

TASKS = ("detect", "pose", "segment", "obb", "face", "classify", "ocr")
"""What can be read from a network's outputs."""

Result = Detections | Classification | SemanticMap | TextRegions | TextLine
Shape = tuple[int, ...]
Decode = Callable[[Sequence[Array], Thresholds], Result]

_POSE = 17
_MASKS = 32
_TEXT_HEIGHTS = (32, 48, 64)
_BINS = 64


@dataclass(frozen=True)
class OutputReader:
    """Reads a network's outputs.

    :ivar task: one of :data:`TASKS`
    :ivar head: the form of the outputs, such as ``yolov8``
    :ivar words: both in one line, and what they were taken from
    :ivar size: height and width of the network's input
    :ivar fit: how an image belongs into the input, one of :data:`~anynpu.tasks.FITS`
    :ivar classes: how many there are; 0 where the shapes do not report
    """

    task: str
    head: str
    words: str
    size: tuple[int, int]
    fit: str
    decode: Decode
    classes: int = 0

    def read(self, outputs: Sequence[Array], placement: Placement | None = None, thresholds: Thresholds | None = None) -> Result:
        """What the outputs state, in pixels of the image that *placement* put into the input; without it, in those of the input."""
        default = Thresholds(score=0.5, overlap=0.4) if self.task == "face" else Thresholds()
        result = self.decode(outputs, thresholds or default)
        if placement is None:
            return result
        if isinstance(result, SemanticMap):
            return SemanticMap(placement.nearest_to_picture(result.classes))
        if isinstance(result, (Detections, TextRegions)):
            return result.placed(placement)
        return result


def reader_for(
    size: tuple[int, int],
    shapes: Sequence[Sequence[int]],
    *,
    task: str | None = None,
    head: str | None = None,
    labels: Sequence[str] = (),
    metadata: Mapping[str, str] | None = None,
) -> OutputReader:
    """The reader for a network with an input of *size* (height, width) and outputs of these *shapes*.

    :param task: what the network is for; guessed where not given
    :param head: the form of its outputs, such as ``yolov7``, where shapes alone do not report
    :param labels: names of its classes: how many there are can settle what shapes leave open
    :param metadata: what the model states about itself; the entries of Ultralytics' exporter are understood

    >>> reader_for((640, 640), [(1, 84, 8400)]).words
    'detect: yolov8, 80 classes (one output 84 x 8400)'

    :raises ShapeError: the shapes are not those of a known head
    """
    if task is not None and task not in TASKS:
        raise ParameterError(f"there is no task '{task}'", hint=f"choose one of: {', '.join(TASKS)}")
    wanted = task or _said_task(metadata or {})
    case = _Case(size, [tuple(int(extent) for extent in shape) for shape in shapes], wanted, head, tuple(labels), metadata or {})
    for rule in (_one_list, _by_grid, _faces, _text_map, _text_line, _classes, _semantic):
        found = rule(case)
        if found is not None and task in (None, found.task):
            return found
    listed = ", ".join("x".join(map(str, shape)) for shape in case.shapes)
    purpose = f"for the task '{task}' " if task else ""
    raise ShapeError(
        f"outputs of {listed} are not those of a head that is known {purpose}here",
        hint="use --task raw to see the values, or decode them with your own function",
    )


def _said_task(metadata: Mapping[str, str]) -> str | None:
    said = metadata.get("task", "")
    return said if said in TASKS else None


@dataclass(frozen=True)
class _Case:
    """What is known of a network."""

    size: tuple[int, int]
    shapes: list[Shape]
    task: str | None
    head: str | None
    labels: tuple[str, ...]
    metadata: Mapping[str, str]

    @functools.cached_property
    def boxes(self) -> int:
        """Cells of the usual three grids."""
        return len(cells(self.size, STRIDES)[0])

    @functools.cached_property
    def counts(self) -> dict[int, int]:
        """Boxes of a head, and per cell how many of them there are; networks for large images have a fourth grid."""
        four = len(cells(self.size, (*STRIDES, 64))[0])
        return {self.boxes: 1, 3 * self.boxes: 3, four: 1, 3 * four: 3}

    @property
    def keypoints(self) -> int:
        return keypoint_count(self.metadata) or _POSE

    def reader(self, task: str, head: str, words: str, decode: Decode, fit: str = "letterbox", classes: int = 0) -> OutputReader:
        listed = _shapes_text(self.shapes)
        known = f"{classes} class{'' if classes == 1 else 'es'}" if classes else ""
        text = ", ".join(filter(None, (head, known, words)))
        return OutputReader(task, head, f"{task}: {text} ({listed})", self.size, fit, decode, classes)


def _shapes_text(shapes: Sequence[Shape]) -> str:
    if len(shapes) == 1:
        return f"one output {' x '.join(map(str, _inner(shapes[0])))}"
    return f"{len(shapes)} outputs"


def _inner(shape: Shape) -> Shape:
    """A shape without its batch axis."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


def _one_list(case: _Case) -> OutputReader | None:
    """One output of boxes, and for masks the prototypes beside it."""
    lists = [index for index, shape in enumerate(case.shapes) if len(_inner(shape)) == 2]
    maps = [index for index, shape in enumerate(case.shapes) if len(_inner(shape)) == 3]
    if len(lists) != 1 or len(maps) != len(case.shapes) - 1 or len(maps) > 1:
        return None
    index = lists[0]
    rows, columns = _inner(case.shapes[index])
    prototypes = maps[0] if maps else None
    masks = _inner(case.shapes[prototypes])[0] if prototypes is not None else 0
    if columns in (6, 7) and rows not in case.counts and not maps and case.head in (None, "yolov10"):
        return case.reader(
            "detect", "yolov10", "boxes are final", lambda outputs, limits: decode_final(outputs[index], case.size, limits)
        )
    if columns in case.counts and rows not in case.counts:
        return _columns(case, index, rows, prototypes, masks)
    if rows not in case.counts:
        return None
    classes = columns - 5 - masks
    per_cell = case.counts[rows]
    if classes < 1:
        return None
    if per_cell == 1 and len(case.labels) == columns - 4 - masks:  # as the columns of version 8, turned
        return _columns(case, index, columns, prototypes, masks, turned=True)
    head = case.head or ("yolov5" if per_cell == 3 else "yolox")

    def decode(outputs: Sequence[Array], limits: Thresholds) -> Detections:
        return decode_rows(outputs[index], case.size, limits, prototypes=_map_of(outputs, prototypes))

    fit = "corner" if head == "yolox" else "letterbox"
    return case.reader("segment" if maps else "detect", head, "", decode, fit, classes)


def _map_of(outputs: Sequence[Array], index: int | None) -> Array | None:
    return None if index is None else outputs[index].reshape(outputs[index].shape[-3:])


def _columns(
    case: _Case, index: int, rows: int, prototypes: int | None, masks: int, *, turned: bool = False
) -> OutputReader | None:
    """Boxes in columns, as Ultralytics exports them."""
    keypoints = 0
    rotated = case.task == "obb"
    if case.task == "pose" or (
        case.task is None and not masks and rows == 5 + 3 * case.keypoints and len(case.labels) != rows - 4
    ):
        keypoints = case.keypoints
    classes = rows - 4 - masks - 3 * keypoints - int(rotated)
    if classes < 1:
        return None
    task = "segment" if masks else "pose" if keypoints else "obb" if rotated else "detect"

    def decode(outputs: Sequence[Array], limits: Thresholds) -> Detections:
        values = outputs[index].reshape(outputs[index].shape[-2:])
        values = values.T if turned else values
        maps = _map_of(outputs, prototypes)
        return decode_columns(values, case.size, limits, keypoints=keypoints, prototypes=maps, rotated=rotated)

    return case.reader(task, case.head or "yolov8", "", decode, classes=classes)


def _by_grid(case: _Case) -> OutputReader | None:
    """Outputs by grid: those of one size belong together, in their order."""
    grids: dict[tuple[int, int], list[int]] = {}
    others: list[int] = []
    extents = {(case.size[0] // stride, case.size[1] // stride) for stride in (*STRIDES, 64)}
    for index, shape in enumerate(case.shapes):
        inner = _inner(shape)
        if len(inner) == 3 and inner[1:] in extents:
            grids.setdefault((inner[1], inner[2]), []).append(index)
        else:
            others.append(index)
    groups = [grids[extent] for extent in sorted(grids, reverse=True)]
    if not 2 <= len(groups) <= 4 or len({tuple(_inner(case.shapes[i])[0] for i in group) for group in groups}) != 1:
        return None
    channels = [_inner(case.shapes[index])[0] for index in groups[0]]
    if len(channels) == 1:
        return _one_per_grid(case, groups, channels[0], others)
    return _several_per_grid(case, groups, channels, others)


def _tensors(outputs: Sequence[Array], groups: Sequence[Sequence[int]]) -> list[list[Array]]:
    return [[outputs[index].reshape(outputs[index].shape[-3:]) for index in group] for group in groups]


def _one_per_grid(case: _Case, groups: list[list[int]], channels: int, others: list[int]) -> OutputReader | None:
    if others and channels > _BINS and len(others) == 1:
        return _fused_with_more(case, groups, channels, others[0])
    if others:
        return None
    head = case.head or _head_of(channels, len(case.labels))
    if head == "yolox" and channels > 5:
        return case.reader(
            "detect",
            head,
            "by grid",
            lambda outputs, limits: decode_cells([entry[0] for entry in _tensors(outputs, groups)], case.size, limits),
            "corner",
            classes=channels - 5,
        )
    if head in ANCHORS and channels % 3 == 0 and channels // 3 > 5 and len(groups) == 3:
        anchors = ANCHORS[head]
        return case.reader(
            "detect",
            head,
            "by grid",
            lambda outputs, limits: decode_anchors(
                [entry[0] for entry in _tensors(outputs, groups)], case.size, limits, anchors=anchors
            ),
            classes=channels // 3 - 5,
        )
    if channels > _BINS:
        return case.reader(
            "detect",
            head,
            "by grid",
            lambda outputs, limits: decode_distances(_parted(outputs, groups), case.size, limits),
            classes=channels - _BINS,
        )
    return None


def _parted(outputs: Sequence[Array], groups: Sequence[Sequence[int]]) -> list[list[Array]]:
    """Distances and scores of tensors that hold both."""
    return [[entry[0][:_BINS], entry[0][_BINS:]] for entry in _tensors(outputs, groups)]


def _fused_with_more(case: _Case, groups: list[list[int]], channels: int, other: int) -> OutputReader | None:
    """As Rockchip's model zoo cuts pose and rotated boxes: one tensor per grid, and keypoints or angles over all grids."""
    inner = _inner(case.shapes[other])
    if len(inner) == 3 and inner[1] == 3:
        return case.reader(
            "pose",
            "yolov8",
            f"{inner[0]} keypoints, by grid",
            lambda outputs, limits: decode_distances(
                _parted(outputs, groups), case.size, limits, keypoints=outputs[other].reshape(inner)
            ),
        )
    if inner and inner[-1] in case.counts and all(extent == 1 for extent in inner[:-1]):
        return case.reader(
            "obb",
            "yolov8",
            "by grid",
            lambda outputs, limits: decode_distances(_parted(outputs, groups), case.size, limits, angles=outputs[other]),
            classes=channels - _BINS,
        )
    return None


def _head_of(channels: int, labels: int) -> str:
    """The network that has so many channels per grid. Where several fit, the number of labels decides, and 80 without labels."""
    forms = {"yolov5": channels / 3 - 5, "yolox": channels - 5, "yolov8": channels - _BINS}
    for expected in (labels, 80):
        for head, classes in forms.items():
            if expected and classes == expected:
                return head
    if channels > _BINS:
        return "yolov8"
    return "yolov5" if channels % 3 == 0 and channels > 15 else "yolox"


def _several_per_grid(case: _Case, groups: list[list[int]], channels: list[int], others: list[int]) -> OutputReader | None:
    if channels[0] % 4 or len(channels) > 4 or len(others) > 1:
        return None
    prototypes = others[0] if others and len(_inner(case.shapes[others[0]])) == 3 else None
    masks = prototypes is not None and channels[-1] == _inner(case.shapes[others[0]])[0]
    if others and not masks:
        return None
    head = case.head or ("yolov6" if channels[0] != _BINS else "yolov8")
    return case.reader(
        "segment" if masks else "detect",
        head,
        "by grid",
        lambda outputs, limits: decode_distances(
            _tensors(outputs, groups), case.size, limits, prototypes=_map_of(outputs, prototypes)
        ),
        classes=channels[1],
    )


def _faces(case: _Case) -> OutputReader | None:
    """RetinaFace: boxes, scores and points, distinguished by their last size."""
    last = [shape[-1] for shape in case.shapes]
    if sorted(last) != [2, 4, 10] or len({shape[-2:-1] for shape in case.shapes}) != 1:
        return None
    boxes, scores, points = (last.index(extent) for extent in (4, 2, 10))
    return case.reader(
        "face",
        "retinaface",
        "5 points",
        lambda outputs, limits: decode_faces(outputs[boxes], outputs[scores], outputs[points], case.size, limits),
    )


def _text_map(case: _Case) -> OutputReader | None:
    """One map of probabilities in the size of the input."""
    if len(case.shapes) != 1 or _inner(case.shapes[0]) != (1, *case.size) or case.task == "segment":
        return None
    return case.reader("ocr", "text regions", "", lambda outputs, limits: find_text(outputs[0]), "corner")


def _text_line(case: _Case) -> OutputReader | None:
    """One line: steps along the width, and a class per character."""
    inner = _inner(case.shapes[0])
    if len(case.shapes) != 1 or len(inner) != 2 or case.size[0] not in _TEXT_HEIGHTS or not 4 <= case.size[1] / inner[0] <= 16:
        return None

    def decode(outputs: Sequence[Array], limits: Thresholds) -> TextLine:
        if not case.labels:
            raise ParameterError("the recognizer's characters are not known", hint="give a file with one per line: --labels FILE")
        return read_text(outputs[0], alphabet_of(case.labels, inner[1]))

    return case.reader("ocr", "text line", f"{inner[1]} characters", decode, "corner")


def _classes(case: _Case) -> OutputReader | None:
    inner = _inner(case.shapes[0])
    if len(case.shapes) != 1 or max(inner) < 2 or sum(extent > 1 for extent in inner) != 1:
        return None
    return case.reader("classify", "classes", str(max(inner)), lambda outputs, limits: classify(outputs[0]), "crop")


def _semantic(case: _Case) -> OutputReader | None:
    inner = _inner(case.shapes[0])
    extent = inner[-2:]
    if (
        len(case.shapes) != 1
        or len(inner) not in (2, 3)
        or any(full % part for full, part in zip(case.size, extent, strict=False))
    ):
        return None
    factors = {full // part for full, part in zip(case.size, extent, strict=True)}
    if len(factors) != 1 or max(factors) > 16:
        return None
    classes = inner[0] if len(inner) == 3 else 0
    return case.reader("segment", "semantic map", "", lambda outputs, limits: segment(outputs[0]), "stretch", classes)
