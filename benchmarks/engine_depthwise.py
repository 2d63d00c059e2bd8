"""Depthwise convolutions of real networks beside three limits of the processor, all measured in the same run.

* the peak of the multiply-add instructions, as for all layers;
* what is left of it where each lane has a channel of its own: codes and weights less their zero points need 16 bits, so that an instruction
  does fewer products, and rows of the kernel are taken in pairs, an odd one with zeros;
* the time in which the same bytes are copied from memory to memory.

Weights without zero points fit bytes, and rows of the kernel are taken in fours: their time stands apart.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from anynpu.npu.engines.native import NativeEngine

from . import print_table
from .engine_layers import CHIP, ConvLayer, layer_runner, peak_runner
from .engine_timing import cpu_times

__all__ = ["print_depthwise"]

SECONDS = 0.5
_BYTES_TO_WORDS = {"avx512vnni": 0.5}  # of the products of an instruction, where the peak is one of bytes


def _layer(network: str, channels: int, extent: int, kernel: int, stride: int = 1) -> ConvLayer:
    name = f"{network}: {kernel}x{kernel}, stride {stride}, {channels} @{extent}"
    return ConvLayer(name, (channels, channels), extent, kernel, stride, channels)


LAYERS = (
    _layer("MobileNetV2", 96, 112, 3, 2),
    _layer("MobileNetV2", 144, 56, 3),
    _layer("MobileNetV2", 384, 14, 3),
    _layer("MobileNetV2", 960, 7, 3),
    _layer("MobileNetV3", 72, 56, 5, 2),
    _layer("MobileNetV3", 120, 28, 5),
    _layer("MobileNetV3", 672, 14, 5),
    _layer("YOLOX-nano", 64, 52, 3),
    _layer("YOLOX-nano", 64, 52, 5),
    _layer("PP-OCR", 48, 120, 3),
    _layer("PP-OCR", 192, 30, 5),
)


def _limit(layer: ConvLayer, isa: str) -> float:
    """The share of the peak that 16 bits and pairs of rows leave."""
    return _BYTES_TO_WORDS.get(isa, 1.0) * layer.kernel / (layer.kernel + layer.kernel % 2)


def print_depthwise(engine: NativeEngine) -> None:
    """Each layer by the chip's rule with Relu, in turn with a copy of as many bytes as it reads and writes, and with the peak."""
    peak = peak_runner(engine.isa)
    peak_macs = peak()
    rows = []
    for layer in LAYERS:
        size = layer.channels[0] * (layer.extent**2 + (layer.extent // layer.stride) ** 2)
        source, target = (np.ones(size // 2, np.int8) for _ in range(2))
        candidates = {
            "layer": layer_runner(layer, engine, CHIP),
            "symmetric": layer_runner(layer, engine, CHIP, 0),
            "copy": partial(np.copyto, target, source),
            "peak": peak,
        }
        times = cpu_times(candidates, SECONDS)
        share = layer.macs / times["layer"].best / (peak_macs / times["peak"].best)
        limit = _limit(layer, engine.isa)
        rows.append(
            [
                layer.name,
                f"{times['layer'].best * 1e6:.0f}",
                f"{size / times['layer'].best / 1e9:.1f}",
                f"{size / times['copy'].best / 1e9:.1f}",
                f"{times['copy'].best / times['layer'].best:.0%}",
                f"{share:.0%}",
                f"{limit:.0%}",
                f"{share / limit:.0%}",
                f"{times['symmetric'].best * 1e6:.0f}",
                f"{times['symmetric'].best / times['layer'].best:.2f}",
            ]
        )
    header = ["", "us CPU, best", "GB/s", "copy, GB/s", "of the copy", "of peak", "limit of 16 bits", "of that limit"]
    header += ["us without zero points", "ratio"]
    print_table(f"depthwise layers, one thread, {engine.isa}: results and 16 bits bound them, memory does not", header, rows)


if __name__ == "__main__":
    print_depthwise(NativeEngine())
