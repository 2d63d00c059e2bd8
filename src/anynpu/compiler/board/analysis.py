"""Runs the vendor's simulator on one sample and keeps the result of every layer.

This file needs Python 3.8 or later and rknn-toolkit2, nothing else. It works in a folder in which the toolkit has built a model: the files
of ``hybrid_quantization_step1`` are there, with the ranges that were chosen. It calls the toolkit's documented functions.
"""

from __future__ import annotations

import importlib
import json
import sys


def main(path: str, folder: str, *files: str) -> None:
    """Simulate the model of a job with a file for each input; *folder* gets what ``accuracy_analysis`` writes."""
    with open(path, encoding="utf-8") as file:
        name = json.load(file)["name"]
    RKNN = importlib.import_module("rknn.api").RKNN  # noqa: N806
    rknn = RKNN(verbose=False)
    built = rknn.hybrid_quantization_step2(
        model_input=name + ".model", data_input=name + ".data", model_quantization_cfg=name + ".quantization.cfg"
    )
    if built != 0:
        sys.exit(f"anynpu: hybrid_quantization_step2 returned {built!r}")
    analysed = rknn.accuracy_analysis(inputs=list(files), output_dir=folder)
    rknn.release()
    if analysed not in (0, None):
        sys.exit(f"anynpu: accuracy_analysis returned {analysed!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
