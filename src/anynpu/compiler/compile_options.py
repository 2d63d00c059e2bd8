"""What a caller can ask of the compiler: one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._util.options import OptionTable, documented, option
from ..errors import CompileError, CompileOptionError
from .custom_operators import CustomOperators
from .importers.onnx_graph import Shapes
from .importers.split_post_processing import CUT, KEEP
from .option_values import CUSTOM, NAMED, ORDER, PAIRS, PER_INPUT, SHAPES, WAY_TO_JUDGE
from .quantize.config import ACCURACIES, STEPS
from .quantize.metrics import METRICS, Metric
from .quantize.ranges import ALGORITHMS
from .quantize.rounding_mode import CHIP, SIMULATOR
from .toolkit.quantizer import QUANTIZERS, GivenRanges, read_ranges

__all__ = ["CompileOptions", "Order", "PerInput"]

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
        "order of the channels that the model was trained with; pictures are read as RGB",
        python=_BY_NAME,
        choices=_ORDERS,
        flag="--channel-order",
        takes=ORDER,
    )
    dtype: str = option(
        "w8a8",
        "type of the model: w8a8, fp16 or w16a16; for Allwinner's chips also i8, i8dfp or bf16; int8, uint8, int16, float16, bfloat16 and "
        "ACUITY's names work too",
        see="[What each name means](compiler.md#formats-of-allwinners-chips). Not all chips support every type",
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
    batch: int | None = option(
        None, "batch size: extent of the first axis of every input", minimum=1, flag="--batch", kind=int | None
    )
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
        "begin with a pre-process node, which takes a picture of this order of channels and applies mean and std; Allwinner's chips only",
        python=_BY_NAME,
        see="[The pre-process node](compiler.md#the-pre-process-node)",
        choices=_ORDERS,
        flag="--preprocess",
        takes=ORDER,
    )
    accuracy: str = option(
        "default",
        "how far to go: fast leaves the re-fit of weights out, best tries recipes and float16 layers against each other",
        see="[How far to go](int8-accuracy.md#third-how-far-shall-the-compiler-go)",
        choices=ACCURACIES,
        flag="--accuracy",
    )
    without: Sequence[str] = option(
        (), f"step of the recipe to leave out: {', '.join(STEPS)}", flag="--without", kind=list[str] | None, metavar="STEP"
    )
    metric: str | Metric | None = option(
        None,
        f"what best and the re-fit judge by: {', '.join(METRICS)}; by default chosen by the shape of the outputs",
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
        see="[Inputs and outputs of an int8 model](compiler.md#inputs-and-outputs-of-an-int8-model)",
        flag="--keep-float-outputs",
        kind=bool,
    )
    custom_ops: CustomOperators = option(
        (),
        "type of operators to compile as custom ones, which your program computes",
        python="besides those of domains that ONNX does not know. A mapping says more: name -> function of (input_shapes, attributes) that "
        "gives the shapes of the outputs, or name -> :class:`anynpu.compiler.CustomOperator`",
        see="[Custom operators](compiler.md#custom-operators)",
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
        "NonMaxSuppression and what follows it at the end of a model: keep writes it beside the model, for the host; cut leaves it out",
        see="[The end that the host computes](compiler.md#the-end-that-the-host-computes)",
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
        "who chooses scales and weights: vendor as Rockchip's toolkit does, with min/max, one range per tensor and no re-fit",
        choices=QUANTIZERS,
        flag="--quantizer",
    )
    ranges: GivenRanges | None = option(
        None,
        "(scale, int8 zero point) of tensors whose quantisation is decided already, by name",
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
