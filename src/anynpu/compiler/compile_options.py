"""What a caller can ask of the compiler: one table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .._util.options import OptionTable, documented, is_number, is_whole, option
from ..errors import CompileError, CompileOptionError, TensorNameError
from ..program import Preprocess
from .custom_operators import CustomOperators
from .importers.onnx_graph import Shapes
from .importers.split_post_processing import CUT, KEEP
from .lower.formats import CHIP, SIMULATOR
from .quantize.config import ACCURACIES, STEPS
from .quantize.metrics import METRICS, Metric
from .quantize.ranges import ALGORITHMS
from .toolkit.quantizer import QUANTIZERS, GivenRanges, read_ranges

# What options of the compiler take that have no plain type: words for messages, and whether a value is that.


Takes = tuple[str, Callable[[Any], bool]]


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    return listed and np.ndim(value) <= 1 and all(fits(entry) for entry in value)


def _by_name(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and fits(entry) for name, entry in value.items())


def _are_numbers(value: Any) -> bool:
    return is_number(value) or _all(value, is_number)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_set_of_shapes(value: Any) -> bool:
    return _by_name(value, lambda shape: _all(shape, is_whole))


def _is_pair(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 2
    return listed and is_number(value[0]) and is_whole(value[1])


PER_INPUT: Takes = (
    "a number, a list of them, or a dict of either by input name",
    lambda value: value is None or _are_numbers(value) or _by_name(value, _are_numbers),
)
ORDER: Takes = (
    "a string, or a dict of strings by input name",
    lambda value: value is None or _is_text(value) or _by_name(value, _is_text),
)
SHAPES: Takes = (
    "a dict of shapes by input name, such as {'x': (1, 3, 480, 480)}, or a list of such dicts",
    lambda value: value is None or _is_set_of_shapes(value) or (_all(value, _is_set_of_shapes) and len(value) > 0),
)
NAMED: Takes = (
    "a dict of values by input name, such as {'shape': (1, 12, 64)}",
    lambda value: value is None or value == () or _by_name(value, lambda entry: True),
)
WAY_TO_JUDGE: Takes = (
    "the name of a metric, or a function of (expected outputs, given outputs)",
    lambda value: value is None or _is_text(value) or callable(value),
)
CUSTOM: Takes = (
    "a list of names of operators, or a dict of what is known about them by name",
    lambda value: isinstance(value, Collection) and not isinstance(value, bytes),
)
PAIRS: Takes = (
    "a dict of (scale, zero point) by tensor name, such as {'conv1': (0.05, -17)}",
    lambda value: value is None or _by_name(value, _is_pair),
)


PerInput = Sequence[float] | float | Mapping[str, "Sequence[float] | float"] | None
Order = str | Mapping[str, str] | None

_ORDERS = ("rgb", "bgr")
_BY_NAME = "a dict by input name where there are several inputs"


@documented
@dataclass(frozen=True)
class CompileOptions(OptionTable):
    """What :func:`anynpu.compile` is asked for.

    >>> CompileOptions(dtype="fp16").algorithm
    'percentile'
    """

    error = CompileError
    type_error = CompileOptionError

    dataset: Any = option(
        None,
        "calibration data: a folder of images, a list file, an image, .npy or .npz; not needed for float types",
        python="or any iterable of samples",
        flag="--dataset",
        kind=Path | None,
        metavar="PATH",
        facts={"exists": True},
    )
    mean: PerInput = option(
        None,
        "subtracted from each channel of the raw input; one value serves all channels",
        python=_BY_NAME,
        flag="--mean",
        kind=list[str] | None,
        metavar="[NAME=]a,b,c",
        takes=PER_INPUT,
    )
    std: PerInput = option(
        None,
        "divides each channel of the raw input",
        python=_BY_NAME,
        flag="--std",
        kind=list[str] | None,
        metavar="[NAME=]a,b,c",
        takes=PER_INPUT,
    )
    channel_order: Order = option(
        None,
        "order of the channels that the model was trained with; images are read as RGB",
        python=_BY_NAME,
        choices=_ORDERS,
        flag="--channel-order",
        takes=ORDER,
    )
    dtype: str = option(
        "w8a8",
        "type of the model: w8a8, fp16 or w16a16; for Allwinner's chips also i8, i8dfp or bf16; int8, uint8, int16, float16, bfloat16 and "
        "ACUITY's names work too",
        see="[What each name means](how-it-works.md#formats-of-allwinners-chips). Not all chips support every type",
        flag="--dtype",
        metavar="TYPE",
    )
    shapes: Shapes | Sequence[Shapes] | None = option(
        None,
        "shape of an input that is not fixed",
        python="a dict by input name; a list of dicts for several shape sets",
        see="Repeat it for the same input to get several shape sets",
        flag="--shape",
        kind=list[str] | None,
        metavar="NAME=1,3,480,480",
        takes=SHAPES,
    )
    constants: Mapping[str, Any] | None = option(
        None,
        "value of an input that becomes a constant, such as the shape of a Reshape",
        python="a dict by input name",
        flag="--constant",
        kind=list[str] | None,
        metavar="NAME=1,12,64",
        takes=NAMED,
    )
    batch: int | None = option(None, "batch size: first dimension of every input", minimum=1, flag="--batch", kind=int | None)
    algorithm: str = option("percentile", "calibration method", choices=ALGORITHMS, flag="--algorithm")
    percentile: float = option(99.99, "the percentile of that method")
    channel_groups: int | None = option(
        None,
        "maximum channel groups per tensor, each with its own scale; by default 2 on Rockchip's chips in int8, Allwinner's have none",
        minimum=1,
        flag="--channel-groups",
        kind=int | None,
    )
    per_channel: bool | None = option(
        None,
        "weights with a scale for each output channel, or one for all of a layer; by default what the type has",
        flag="--per-channel/--per-tensor",
        kind=bool | None,
    )
    preprocess: Order = option(
        None,
        "begin with a pre-process node, which takes an image in this channel order and applies mean and std; Allwinner's chips only",
        python=_BY_NAME,
        see="[The pre-process node](how-it-works.md#the-pre-process-node)",
        choices=_ORDERS,
        flag="--preprocess",
        takes=ORDER,
    )
    accuracy: str = option(
        "default",
        "accuracy level: fast skips weight reconstruction, best tries quantization configs and float16 layers against each other",
        see="[Accuracy levels](int8-accuracy.md#step-3-choose-an-accuracy-level)",
        choices=ACCURACIES,
        flag="--accuracy",
    )
    without: Sequence[str] = option(
        (), f"step to leave out: {', '.join(STEPS)}", flag="--without", kind=list[str] | None, metavar="STEP"
    )
    metric: str | Metric | None = option(
        None,
        f"metric of best and of weight reconstruction: {', '.join(METRICS)}; by default chosen by the shape of the outputs",
        python="or a function of (expected outputs, given outputs) whose result is larger the better",
        flag="--metric",
        kind=str | None,
        metavar="NAME",
        takes=WAY_TO_JUDGE,
    )
    time_budget: float = option(
        0.2,
        "share of the predicted time by which best may slow the model down",
        minimum=0.0,
        flag="--time-budget",
        kind=float,
        metavar="SHARE",
    )
    calibration_limit: int | None = option(
        None, "use at most this many calibration samples", minimum=1, flag="--limit", kind=int | None
    )
    hybrid: Sequence[str] = option((), "tensor that stays in float16", flag="--hybrid", kind=list[str] | None, metavar="NAME")
    keep_float_outputs: bool = option(
        False,
        "inputs and outputs of an int8 model that float layers read or make stay float16 instead of int8",
        see="[Inputs and outputs of an int8 model](how-it-works.md#inputs-and-outputs-of-an-int8-model)",
        flag="--keep-float-outputs",
        kind=bool,
    )
    custom_ops: CustomOperators = option(
        (),
        "type of operators to compile as custom ones, which your program computes",
        python="besides those of domains that ONNX does not know. A mapping has more: name -> function of (input_shapes, attributes) that "
        "gives the shapes of the outputs, or name -> :class:`anynpu.compiler.CustomOperator`",
        see="[Custom operators](import-models.md#custom-operators)",
        flag="--custom-op",
        kind=list[str] | None,
        metavar="NAME",
        takes=CUSTOM,
    )
    trust: bool = option(
        False,
        "load a file of PyTorch, Keras or TensorFlow in this process and without checks: it can run code as you",
        see="[Files of PyTorch and Keras](security.md#files-of-pytorch-and-keras)",
        flag="--trust",
        kind=bool,
    )
    tail: str = option(
        KEEP,
        "NonMaxSuppression and what follows it at the end of a model: keep writes it next to the model, for the host; cut leaves it out",
        see="[Post-processing on the host](import-models.md#post-processing-on-the-host-nms)",
        choices=(KEEP, CUT),
        flag="--tail",
    )
    custom_string: str = option("", "text that the program can query", flag="--custom-string", metavar="TEXT")
    name: str = option("", "name of the model; by default that of the ONNX file", flag="--name", metavar="TEXT")
    arithmetic: str | None = option(
        None,
        "how int8 layers compute: chip as the NPU itself does (the default for Rockchip's chips), simulator as the vendor's simulator: "
        "with quantizer vendor in float32, sums included, else with one float32 multiplication per output",
        choices=(CHIP, SIMULATOR),
        flag="--arithmetic",
    )
    quantizer: str = option(
        "anynpu",
        "how scales and weights are chosen: vendor as Rockchip's toolkit does, with min/max, one range per tensor, fixed weights",
        choices=QUANTIZERS,
        flag="--quantizer",
    )
    ranges: GivenRanges | None = option(
        None,
        "(scale, int8 zero point) of tensors whose quantization is decided already, by name",
        see='A JSON file: `{"tensor": [0.0532, -17]}`',
        flag="--ranges",
        kind=Path | None,
        metavar="FILE",
        read=read_ranges,
        facts={"exists": True, "dir_okay": False},
        takes=PAIRS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.without:
            if name not in STEPS:
                raise CompileError(f"there is no step '{name}' to leave out", hint=f"steps are: {', '.join(STEPS)}")


# What options hold about the inputs of a model, checked once.


@dataclass(frozen=True)
class Normalisation:
    """Preprocessing by input name, and the inputs whose channels are fed in reverse order.

    :ivar trained: the order of channels that each input was said to be trained with
    """

    preprocess: Mapping[str, Preprocess] = field(default_factory=dict)
    reversed_inputs: tuple[str, ...] = ()
    trained: Mapping[str, str] = field(default_factory=dict)


def shape_sets(shapes: Shapes | Sequence[Shapes] | None) -> list[Shapes]:
    """The shape sets of a request: one, or several for dynamic shapes."""
    if shapes is None:
        return [{}]
    if isinstance(shapes, Mapping):
        return [shapes]
    sets = list(shapes)
    if not sets or not all(isinstance(entry, Mapping) for entry in sets):
        raise CompileError(
            "shapes is a dict of input name to shape, or a list of such dicts", hint="for example shapes={'x': (1, 3, 480, 480)}"
        )
    return sets


def preprocessing(inputs: Sequence[str], shapes: Mapping[str, tuple[int, ...]], options: CompileOptions) -> Normalisation:
    """Mean, std and channel order for each input."""
    means, stds = _by_input("mean", options.mean, inputs), _by_input("std", options.std, inputs)
    trained = _orders("channel_order", options.channel_order, inputs, shapes)
    pictures = _orders("preprocess", options.preprocess, inputs, shapes)
    if options.preprocess is not None and not pictures:
        raise CompileError(
            "a pre-process node takes images, and no input is one", hint="leave preprocess out: it needs an input [N, 3, H, W]"
        )
    result: dict[str, Preprocess] = {}
    for name in inputs:
        if name not in means and name not in stds and name not in pictures:
            continue
        channels = shapes[name][1] if len(shapes[name]) > 1 else 1
        values = {
            "mean": _one_each("mean", means.get(name, 0.0), channels, name),
            "std": _one_each("std", stds.get(name, 1.0), channels, name),
        }
        if any(value == 0 for value in values["std"]):
            raise CompileError(
                f"std of input '{name}' has a zero, and values are divided by it", tensor=name, hint="pass the real std, or 1"
            )
        result[name] = Preprocess(values["mean"], values["std"], pictures.get(name, ""))
    turned = tuple(name for name in inputs if trained.get(name, "rgb") != pictures.get(name, "rgb"))
    return Normalisation(result, turned, trained)


def _by_input(what: str, value: PerInput, inputs: Sequence[str]) -> dict[str, Sequence[float] | float]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for name in value:
            if name not in inputs:
                raise TensorNameError(
                    f"{what} is given for '{name}', which is not an input", hint=f"inputs are: {', '.join(inputs)}"
                )
        return dict(value)
    if len(inputs) != 1:
        raise CompileError(
            f"the model has {len(inputs)} inputs: specify which one {what} is for", hint=f"{what}={{'{inputs[0]}': (0, 0, 0)}}"
        )
    return {inputs[0]: value}


def _one_each(what: str, value: Sequence[float] | float, channels: int, name: str) -> tuple[float, ...]:
    numbers = [float(entry) for entry in value] if isinstance(value, Sequence) else [float(value)]
    if len(numbers) == 1:
        numbers *= channels
    if len(numbers) != channels:
        raise CompileError(
            f"{what} of input '{name}' has {len(numbers)} numbers, but the input has {channels} channels",
            tensor=name,
            hint=f"give {channels} numbers, or one for all",
        )
    return tuple(numbers)


def _orders(
    what: str, order: Order, inputs: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Literal["rgb", "bgr"]]:
    """The order of channels by input name; a single one is for all images of three channels."""
    if order is None:
        return {}
    images = [name for name in inputs if len(shapes[name]) == 4 and shapes[name][1] == 3]
    orders = dict(order) if isinstance(order, Mapping) else dict.fromkeys(images, order)
    result: dict[str, Literal["rgb", "bgr"]] = {}
    for name, text in orders.items():
        if name not in inputs:
            raise TensorNameError(f"{what} is given for '{name}', which is not an input", hint=f"inputs are: {', '.join(inputs)}")
        if text not in ("rgb", "bgr"):
            raise CompileError(f"there is no channel order '{text}'", tensor=name, hint=f"choose rgb or bgr for {what}")
        if name not in images:
            raise CompileError(f"input '{name}' is not an image of three channels", tensor=name, hint=f"leave {what} out for it")
        result[name] = "bgr" if text == "bgr" else "rgb"
    return result
