"""What a caller feeds to a session, checked once and made ready for a device worker.

The rules for an array, in this order:

* The shape is that of the input in the order that the ``layout`` option states; for ``any`` either order. For a model with dynamic shapes
  all inputs together must have one of its shape sets.
* Other byte orders become the machine's own; what is not contiguous is made so (an NCHW view of NHWC memory is taken as the NHWC that it
  is); read-only arrays are as good as others; lists and scalars become arrays.
* For an input of floats or of quantized values: float32, float16, uint8 are values and go as they are; the input's own type (int8 for an
  int8 input) are quantized values and go as they are; float64, bool and all other integers become float32 values.
* For an input of integers or booleans that is not quantized: its own type; other integers if each of them fits.

An array that had to be changed is a new one. An array that goes as it is is used in place: asynchronous requests copy it first (see the
option ``copy_inputs``), unless it views immutable bytes.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._util.types import Array
from ..errors import FeedError, FeedNameError, FeedShapeError, FeedTypeError
from ..npu.value_check import FLOAT_KINDS, NAN, ValueCheck, from_buffer, worst_float
from ..tensor import Affine, DType, TensorSpec

# A look at the values that a session is fed: far outside of what the model was calibrated for, or all within a step or two.
#
# Each is a mistake in preprocessing more often than not (images of 0 to 255 where 0 to 1 was calibrated, or the other way round),
# and gives results that look like a bad model. So it is said once per input, as a warning of the logger ``anynpu.session``. The
# first request is looked at, then the second, the fourth, the eighth and so on: what is wrong shows early, and a long run pays
# nothing.


log = logging.getLogger("anynpu.session")

_MAX_OUTSIDE = 0.01
"""Share of values that may lie outside of the range: calibration by percentiles leaves some there."""
_MAX_FLOAT16 = 65504.0
_MIN_STEPS = 4.0
"""Values that differ by less than so many steps of the scale have lost nearly all they state."""


class InputCheck:
    """Looks at feeds now and then.

    :ivar next: the number of the request that is looked at next; never, when all was said
    """

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self._inputs = inputs
        self._lock = threading.Lock()
        self._left = {index for index, spec in enumerate(inputs) if spec.dtype.is_float or spec.quantization is not None}
        self.next: float = 1 if self._left else math.inf

    def look(self, number: int, arrays: Sequence[Array]) -> None:
        """Look at the arrays of request *number*, counted from 1, and warn of each input that looks wrong."""
        with self._lock:
            self.next = 2 * number
            for index in sorted(self._left):
                problem = _problem(self._inputs[index], arrays[index])
                if problem:
                    self._left.discard(index)
                    log.warning("input '%s': %s", self._inputs[index].name, problem)
            if not self._left:
                self.next = math.inf


def _problem(spec: TensorSpec, array: Array) -> str:
    """What is wrong with the values for an input; empty where nothing is."""
    if array.dtype.kind != "f" or not array.size:
        return ""
    low, high = float(array.min()), float(array.max())
    if math.isnan(low):
        return ""  # which is reported in any run
    if spec.dtype is DType.FLOAT16 and _MAX_FLOAT16 < max(-low, high) < math.inf:
        return f"values go from {low:.4g} to {high:.4g}, and the input is float16, which ends at {_MAX_FLOAT16:g}"
    bounds = _bounds(spec)
    if bounds is None:
        return ""
    least, greatest, step = bounds
    if low < least - step or high > greatest + step:
        outside = np.count_nonzero((array < least - step) | (array > greatest + step)) / array.size
        if outside > _MAX_OUTSIDE:
            return (
                f"{outside:.0%} of the values lie outside of {least:.4g} to {greatest:.4g}, for which the model was calibrated, "
                f"and are cut off (they go from {low:.4g} to {high:.4g}); check the preprocessing"
            )
    if 0 < high - low < _MIN_STEPS * step:
        return (
            f"all values lie between {low:.4g} and {high:.4g}, which is less than {_MIN_STEPS:g} steps of the model's range "
            f"({least:.4g} to {greatest:.4g}); check the preprocessing"
        )
    return ""


def _bounds(spec: TensorSpec) -> tuple[float, float, float] | None:
    """The values that an input can hold, and the distance of two of them."""
    quantization = spec.quantization
    if quantization is None:
        return None
    scales, zeros = (
        (quantization.scales, quantization.zero_points) if isinstance(quantization, Affine) else ((quantization.scale,), (0,))
    )
    first, last = spec.dtype.limits
    pairs = list(zip(scales, zeros, strict=True))
    least, greatest = min(scale * (first - zero) for scale, zero in pairs), max(scale * (last - zero) for scale, zero in pairs)
    return least, greatest, max(scales)


Shape = tuple[int, ...]

_VALUE_TYPES = ("float32", "float16", "uint8")


class Feed:
    """Arrays for all inputs, ready for a device worker.

    :ivar headers: report to a server where the request comes from
    """

    __slots__ = ("arrays", "headers", "nhwc", "shape_set")

    def __init__(self, arrays: list[Array], nhwc: Sequence[bool], shape_set: int) -> None:
        self.arrays = arrays
        self.nhwc = nhwc
        self.shape_set = shape_set
        self.headers: tuple[tuple[str, str], ...] = ()


_new_feed = Feed.__new__


def channels_last(shape: Shape) -> Shape:
    """The shape of an image with the channels last; others as they are.

    >>> channels_last((1, 3, 480, 640)), channels_last((1, 10))
    ((1, 480, 640, 3), (1, 10))
    """
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


class _Input:
    """How arrays for one input are read."""

    def __init__(self, spec: TensorSpec, layout: str) -> None:
        self.spec = spec
        self.name = spec.name
        storage = spec.dtype.storage
        self.image = len(spec.shape) == 4
        self.last = self.image and layout in ("nhwc", "any")
        self.either = self.image and layout == "any"
        self.values = spec.quantization is not None or spec.dtype.is_float
        names = {storage.name, *(_VALUE_TYPES if self.values else ())}
        if spec.dtype is DType.BFLOAT16 or spec.dtype.bits < 8:
            names.discard(storage.name)
        self.numbers = frozenset(np.dtype(name).num for name in names)  # quick to look up
        self.accepted = ", ".join(sorted(names))

    def shown(self, shape: Shape) -> Shape:
        """A model's shape as the user sees it."""
        return channels_last(shape) if self.last else shape

    def cast(self, array: Array) -> Array:
        """The same values in a type that device workers take."""
        kind = array.dtype
        if kind.num in self.numbers:
            return array.astype(kind.newbyteorder("="))
        if kind.kind not in "fiub":
            raise self._wrong_type(array)
        if self.values:
            with np.errstate(over="ignore"):  # what is beyond float32 is infinite there, which is no reason to warn
                return array.astype(np.float32)
        spec = self.spec
        if kind.kind not in "iu" or spec.dtype is DType.BOOL:
            raise self._wrong_type(array)
        low, high = spec.dtype.limits
        if array.size and (int(array.min()) < low or int(array.max()) > high):
            raise FeedTypeError(
                f"input '{self.name}' is {spec.dtype.value}, and the {kind} array has values outside {low} to {high}",
                hint=f"clip it, or pass {spec.dtype.storage}",
            )
        return array.astype(spec.dtype.storage)

    def _wrong_type(self, array: Array) -> FeedTypeError:
        return FeedTypeError(
            f"input '{self.name}' does not take {array.dtype}: it is {self.spec.dtype.value}", hint=f"pass {self.accepted}"
        )


class FeedReader:
    """Reads the input feeds of one session.

    :param grow: for a model that takes any shapes: called with the number of a new set and its shapes, in the order of the model
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        shape_sets: Sequence[Sequence[Shape]],
        layout: str,
        grow: Callable[[int, tuple[Shape, ...]], None] | None = None,
    ) -> None:
        self._grow = grow
        self._growing = threading.Lock()
        self._inputs = [_Input(spec, layout) for spec in inputs]
        self._names = [entry.name for entry in self._inputs]
        self._only = self._names[0] if len(self._names) == 1 else None
        sets = [tuple(tuple(shape) for shape in shapes) for shapes in shape_sets] or (
            [] if grow is not None else [tuple(spec.shape for spec in inputs)]
        )
        self._sets = sets
        self._expected = [tuple(entry.shown(shape) for entry, shape in zip(self._inputs, shapes, strict=True)) for shapes in sets]
        self._by_shape = {shapes: index for index, shapes in reversed(list(enumerate(self._expected)))}
        self._last = tuple(entry.last for entry in self._inputs)
        self._any = any(entry.either for entry in self._inputs)
        self._check = InputCheck(inputs)
        self._values = ValueCheck(log.warning)
        self._reads = 0  # two threads may count one request once: it only reports when to look at values

    def read(self, input_feed: object, copy: bool) -> Feed:
        """The arrays of a feed: a dict by name, a list in the order of the model, or one array for a model with one input.

        :param copy: give arrays that no other owner can change
        """
        if type(input_feed) is dict and len(input_feed) == 1 and self._only in input_feed:
            given: Sequence[Any] = (input_feed[self._only],)
        else:
            given = self._given(input_feed)
        arrays: list[Array] = []
        nhwc: list[bool] | None = None
        shapes = []
        for index, entry in enumerate(self._inputs):
            array = given[index]
            if type(array) is not np.ndarray:
                array = _as_array(array, entry.name)
            shape = array.shape
            kind = array.dtype
            if kind.num not in entry.numbers or not kind.isnative:
                array = entry.cast(array)
            elif copy and not _immutable(array):
                array = array.copy(order="K")
            last = entry.last
            if entry.either and self._is_first(index, shape):
                last = False
            if not array.flags.c_contiguous:
                if not last and entry.image and array.ndim == 4 and (turned := array.transpose(0, 2, 3, 1)).flags.c_contiguous:
                    array, last = turned, True
                else:
                    array = np.ascontiguousarray(array)
            if last is not entry.last:
                nhwc = nhwc or list(self._last)
                nhwc[index] = last
            float_kind = FLOAT_KINDS.get(array.dtype.num)
            if float_kind is not None and worst_float(float_kind, from_buffer(array), array.size) == NAN:
                self._values.inputs((entry.name,), (array,))  # looked for here, without a call into Python for each array
            arrays.append(array)
            shapes.append(shape)
        found = self._by_shape.get(tuple(shapes))
        if found is None:
            found = self._find(shapes)
        self._reads = number = self._reads + 1
        if number >= self._check.next:
            self._check.look(number, arrays)
        feed = _new_feed(Feed)  # as the constructor does it, without the call
        feed.arrays = arrays
        feed.nhwc = nhwc or self._last
        feed.shape_set = found
        feed.headers = ()
        return feed

    def _is_first(self, index: int, shape: Shape) -> bool:
        """Under ``any``: whether an array has the order of the model and not channels last."""
        return all(expected[index] != shape for expected in self._expected) and any(
            shapes[index] == shape for shapes in self._sets
        )

    def _given(self, feed: object) -> Sequence[Any]:
        names = self._names
        if type(feed) is dict or isinstance(feed, Mapping):
            if len(feed) == len(names):
                try:
                    return [feed[name] for name in names]
                except KeyError:
                    pass
            missing = [name for name in names if name not in feed]
            extra = [str(name) for name in feed if name not in names]
            what = f"Missing input: no array for input '{missing[0]}'" if missing else "Input dict size mismatch"
            more = f"; there is no input '{extra[0]}'" if extra else ""
            raise FeedNameError(f"{what}{more}", hint=f"the model has: {', '.join(names)}")
        if isinstance(feed, np.ndarray):
            if len(names) != 1:
                raise FeedError(
                    f"Model expects multiple inputs: it has {len(names)} inputs, got one array",
                    hint=f"pass a dict with: {', '.join(names)}",
                )
            return [feed]
        if isinstance(feed, list | tuple):
            if len(feed) != len(names):
                raise FeedError(
                    f"Input list size mismatch: the model has {len(names)} inputs, got a list of {len(feed)}",
                    hint=f"in order: {', '.join(names)}",
                )
            return feed
        raise FeedError(
            f"input_feed must be a numpy array, list/tuple, or dict, not {type(feed).__name__}",
            hint=f"for example {{{names[0]!r}: array}}" if names else "the model has no inputs",
        )

    def _find(self, shapes: Sequence[Shape]) -> int:
        """The shape set of arrays whose order had to be looked at, or the error that reports what is wrong."""
        if self._grow is not None:
            return self._add(tuple(shapes), self._grow)
        if self._any:
            for number, expected in enumerate(self._expected):
                pairs = zip(shapes, expected, self._sets[number], self._inputs, strict=True)
                if all(shape == shown or (entry.either and shape == model) for shape, shown, model, entry in pairs):
                    return number
        for index, entry in enumerate(self._inputs):
            possible = list(dict.fromkeys(expected[index] for expected in self._expected))
            shape = shapes[index]
            if shape not in possible:
                same_rank = any(len(shape) == len(one) for one in possible)
                what = f"Input '{entry.name}' shape mismatch" if same_rank else f"Input rank mismatch for '{entry.name}'"
                raise FeedShapeError(
                    f"{what}: it takes {' or '.join(str(list(one)) for one in possible)}, got {list(shape)}",
                    hint=self._shape_hint(entry, possible[0], index, shape),
                )
        sets = "; ".join(" with ".join(str(list(shape)) for shape in shapes) for shapes in self._expected)
        raise FeedShapeError(
            f"no shape set has {' with '.join(str(list(shape)) for shape in shapes)}", hint=f"the model was compiled for: {sets}"
        )

    def _add(self, shapes: tuple[Shape, ...], grow: Callable[[int, tuple[Shape, ...]], None]) -> int:
        """A new shape set, for a model that takes any: one at a time, under ``_growing``."""
        with self._growing:
            if shapes not in self._by_shape:
                number = len(self._sets)
                model = tuple(
                    (shape[0], shape[3], *shape[1:3]) if entry.last and len(shape) == 4 else shape
                    for entry, shape in zip(self._inputs, shapes, strict=True)
                )
                grow(number, model)
                self._sets.append(model)
                self._expected.append(shapes)
                self._by_shape[shapes] = number
            return self._by_shape[shapes]

    def _shape_hint(self, entry: _Input, expected: Shape, index: int, shape: Shape) -> str:
        model = self._sets[0][index]
        other = model if entry.last else channels_last(model)
        if shape == other:
            if entry.last:
                return 'this looks like NCHW; pass make_provider_options(layout="nchw") or transpose it'
            return 'this looks like NHWC; pass make_provider_options(layout="nhwc") or transpose it'
        if len(shape) == len(expected) - 1 and expected[:1] == (1,):
            return "the batch axis is missing; pass array[None]"
        if len(shape) != len(expected):
            return f"the model wants {len(expected)} axes"
        if shape[1:] == expected[1:]:
            return 'to spread a batch over the cores, pass run_options={"ztu_modelrt_dispatch_batch": True}'
        return "resize or pad it to the model's input, or compile the model for this shape"


def split_batch(reader: FeedReader, input_feed: object) -> list[list[Array]]:
    """The samples of a batch, each a list of arrays with a batch axis of 1; for a model whose batch is 1."""
    given = [_as_array(array, name) for array, name in zip(reader._given(input_feed), reader._names, strict=True)]
    for entry, shape in zip(reader._inputs, reader._expected[0], strict=True):
        if shape[:1] != (1,):
            raise FeedShapeError(
                f"a batch can be spread only where the model's own is 1; input '{entry.name}' takes {list(shape)}",
                hint="compile the model with a batch of 1",
            )
    sizes = {array.shape[0] if array.ndim else 0 for array in given}
    if len(sizes) != 1:
        raise FeedShapeError(
            f"the inputs have batches of different sizes: {sorted(sizes)}", hint="give each input as many samples"
        )
    (count,) = sizes
    if count == 0:
        raise FeedShapeError("the batch is empty", hint="give at least one sample")
    return [[array[index : index + 1] for array in given] for index in range(count)]


def _as_array(given: Any, name: str) -> Array:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise FeedTypeError(f"what was given for input '{name}' is no array: {error}", hint="pass a numpy array") from None


def _immutable(array: Array) -> bool:
    """Whether an array cannot be changed: it views bytes."""
    if array.flags.writeable:
        return False
    base: Any = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, bytes)
