"""How fast a language model decodes, and how long its first token takes.

A token reads all active weights once, so its time is their bytes over the bandwidth of all cores, plus a constant. The first token after a
prompt is compute: it grows with the weights and the length of the prompt. The figures behind it are those that the vendor publishes for
its own language runtime (prompts of 128 tokens, all cores).

>>> from anynpu import chips
>>> made = predict_llm(chips.get("rk3588"), "1.5B", "w8a8")
>>> 14 < made.tokens_per_second < 22
True
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..chips import Chip
from ..chips.timing import timing_profile
from ..errors import DeviceError
from ..program import Program
from .confidence import Confidence
from .work import work_of

__all__ = ["LLM_TYPES", "LlmPrediction", "decoder_bytes", "parse_size", "predict_llm"]

LLM_TYPES = ("w8a8", "w4a16", "w4a16_g128", "fp16")
"""What the weights of a language model may be."""

_BYTES = {"w8a8": (961.0, 190.0), "w4a16": (472.0, 202.0), "w4a16_g128": (530.0, 111.0), "fp16": (1920.0, 190.0)}
"""Megabytes of memory: per billion parameters, and besides (embeddings, tables)."""

_PROMPT = 128


@dataclass(frozen=True)
class _Speed:
    """What is known of a chip.

    :ivar bytes_per_ns: of weights, all cores together
    :ivar token_ms: of each token besides
    :ivar prompt_ms: of the first token after 128, per megabyte of weights
    :ivar error: median error of tokens per second, of models that were left out
    :ivar first_error: of the first token
    """

    bytes_per_ns: float
    token_ms: float
    prompt_ms: Mapping[str, float]
    error: float
    first_error: float


_SPEEDS: Mapping[str, _Speed] = {
    "rk3588": _Speed(28.7, 1.8, {"w8a8": 0.225}, 0.041, 0.11),
    "rk3576": _Speed(13.7, 2.9, {"w8a8": 0.507, "w4a16": 0.836, "w4a16_g128": 0.925}, 0.037, 0.18),
    "rk3562": _Speed(7.8, 0.0, {"w8a8": 1.0}, 0.15, 0.15),
    "rv1126b": _Speed(7.5, 2.9, {"w8a8": 1.30, "w4a16": 1.96, "w4a16_g128": 2.15}, 0.10, 0.25),
}
_PROMPT_MS_AT_1 = 600.0
"""Milliseconds of the first token, per megabyte, of a chip with one MAC per nanosecond: what the four chips have in common."""

_WIDEN = 1.9
"""80 % of the errors are below this many medians."""

_VIP_BANDWIDTH = {"a733": 5.8, "t527": 2.6}
"""What single public reports give, one core."""


@dataclass(frozen=True)
class LlmPrediction:
    """A language model on a chip.

    :ivar parameters: active ones, in billions
    :ivar memory_mb: of weights that a token reads
    :ivar first_token_ms: after a prompt of *prompt* tokens
    """

    chip: Chip
    dtype: str
    parameters: float
    memory_mb: float
    prompt: int
    token_ms: float
    first_token_ms: float
    confidence: Confidence
    first_confidence: Confidence

    @property
    def tokens_per_second(self) -> float:
        """While it decodes."""
        return 1000.0 / self.token_ms


def parse_size(text: str) -> tuple[float, float]:
    """Billions of parameters: all of them, and those that a token uses.

    >>> parse_size("1.5B"), parse_size("500M"), parse_size("3B-A570M")
    ((1.5, 1.5), (0.5, 0.5), (3.0, 0.57))
    """
    number = r"(\d+(?:\.\d+)?)([bBmM])"
    match = re.fullmatch(rf"{number}(?:[-(]?[aA]{number}\)?)?", text.strip())
    if match is None:
        raise DeviceError(
            f"'{text}' is no size of a language model", hint="write it as 1.5B, 500M, or 3B-A570M where few are active"
        )
    whole = _billions(match[1], match[2])
    active = _billions(match[3], match[4]) if match[3] else whole
    if not 0.001 <= active <= whole <= 1000.0:
        raise DeviceError(f"'{text}' is no size of a language model", hint="between 1M and 1000B, no more active than there are")
    return whole, active


def _billions(number: str, unit: str) -> float:
    return float(number) / (1.0 if unit in "bB" else 1000.0)


def predict_llm(
    chip: Chip,
    size: str | float,
    dtype: str = "w8a8",
    *,
    memory_mb: float | None = None,
    prompt: int = _PROMPT,
) -> LlmPrediction:
    """Tokens per second and the time to the first token.

    :param size: parameters, as ``1.5B``, or as a number of billions
    :param memory_mb: what its weights take, where that is known; a name says little about them
    :param prompt: tokens of the prompt
    """
    if dtype not in LLM_TYPES:
        raise DeviceError(f"there is no language model of {dtype}", hint=f"there is {', '.join(LLM_TYPES)}")
    if prompt < 1:
        raise DeviceError(f"a prompt of {prompt} tokens is none", hint="give 1 or more")
    whole, active = parse_size(size) if isinstance(size, str) else (float(size), float(size))
    each, besides = _BYTES[dtype]
    memory = memory_mb if memory_mb is not None else whole * each + besides
    read = memory * active / whole
    speed, confidence, first = _known(chip, dtype, exact=memory_mb is not None)
    token = read / speed.bytes_per_ns + speed.token_ms
    per_megabyte = speed.prompt_ms.get(dtype)
    if per_megabyte is None:  # compute counts, not bytes: the same per parameter as int8
        per_megabyte = speed.prompt_ms["w8a8"] * _BYTES["w8a8"][0] / each
    first_token = max(per_megabyte * memory * prompt / _PROMPT, token)
    return LlmPrediction(chip, dtype, active, read, prompt, token, first_token, confidence, first)


def _known(chip: Chip, dtype: str, *, exact: bool) -> tuple[_Speed, Confidence, Confidence]:
    speed = _SPEEDS.get(chip.name)
    size_error = 0.0 if exact else 0.2
    if speed is not None and dtype != "fp16":
        spread = math.hypot(speed.error * _WIDEN, size_error)
        first = math.hypot(speed.first_error * _WIDEN, size_error)
        reason = "" if exact else "memory from the number of parameters"
        level = "calibrated" if chip.name in ("rk3588", "rk3576") and exact else "extrapolated"
        reason = reason or ("" if level == "calibrated" else "few figures are published")
        return speed, Confidence(level, reason, speed.error, spread), Confidence("extrapolated", reason, speed.first_error, first)
    if speed is not None:
        guess = Confidence("extrapolated", "no float16 language models are published", None, 0.4)
        return speed, guess, guess
    numbers = timing_profile(chip).parameters
    bandwidth = _VIP_BANDWIDTH.get(chip.name, numbers.bytes_per_ns * (1.0 + 0.5 * (chip.cores - 1)))
    guess = Confidence("uncalibrated", "", None, 0.69)
    return _Speed(bandwidth, 0.0, {"w8a8": _PROMPT_MS_AT_1 / (numbers.macs_per_ns * chip.cores)}, 0.5, 0.5), guess, guess


def decoder_bytes(program: Program, chip: Chip) -> float | None:
    """Megabytes of weights that one token reads, of a program that is the decoder of a language model; None if it is none.

    A decoder has keys and values as inputs and outputs: a cache, one token longer.
    """
    caches = [name for name in program.inputs if re.search(r"past|cache|key|value", name, re.IGNORECASE)]
    given_back = [name for name in program.outputs if re.search(r"present|cache|key|value|past", name, re.IGNORECASE)]
    if len(caches) < 2 or len(given_back) < 2:
        return None
    layers = work_of(program, chip).layers
    return sum(task.weights + task.read for layer in layers for task in layer.tasks if layer.macs) / 1e6
