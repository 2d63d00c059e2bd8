"""Networks that others wrote, compiled when their session is created: ``networks.py PROVIDER FOLDER COUNT``.

It takes ONNX's operator tests of float32 and light models of its backend tests, and prints a line for each: whether the results are
those of our session ("ours"), of the CPU provider where no node was claimed ("CPU"), or close to it where some were ("parts").
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from compiler.node_tests import cases_of, modules
from real_models import find_real_models

import anynpu
from anynpu.compiler.importers.split_post_processing import ModelWithTail
from anynpu.errors import CompileError

Feed = dict[str, Any]


def cases() -> list[tuple[str, onnx.ModelProto, Feed]]:
    """Operator tests whose tensors are all float32."""
    found = []
    for case in (case for module in modules() for case in cases_of(module)):
        types = {value.type.tensor_type.elem_type for value in (*case.model.graph.input, *case.model.graph.output)}
        if types == {onnx.TensorProto.FLOAT} and all(isinstance(value, np.ndarray) for value in case.feeds.values()):
            found.append((case.name, case.model, case.feeds))
    return found


def light() -> list[tuple[str, onnx.ModelProto, Feed]]:
    """Architectures with constant weights, and an image of random values."""
    image = np.random.default_rng(6).random((1, 3, 224, 224), np.float32)
    models = find_real_models().light
    found = [(name, onnx.load(models[name])) for name in ("squeezenet", "shufflenet", "resnet50")]
    return [(name, model, {_input_of(model.graph): image}) for name, model in found]


def _input_of(graph: onnx.GraphProto) -> str:
    constants = {tensor.name for tensor in graph.initializer}
    return next(value.name for value in graph.input if value.name not in constants)


def claimed(cache: Path) -> tuple[int, int]:
    """How many nodes of how many are compiled, from the plan in the cache."""
    lines = [line.split() for plan in cache.glob("*/plan") for line in plan.read_text(encoding="utf-8").splitlines()]
    nodes = sum(int(words[1]) for words in lines if words[0] == "nodes")
    return sum(len(words) - 1 for words in lines if words[0] == "members"), nodes


def own_results(path: Path, feed: Feed) -> list[Any] | None:
    """What our session gives; None if the compiler does not take the whole model."""
    proto = onnx.load(path)
    proto.ir_version = max(proto.ir_version, 8)  # onnxruntime writes initializers that are no inputs into files of version 3
    try:
        model = anynpu.compile(proto, "rk3588", dtype="fp16")
    except CompileError:
        return None
    if isinstance(model, ModelWithTail):
        return None
    with anynpu.InferenceSession(str(model.save(path.with_suffix(".rknn")))) as own:
        return own.run(None, feed)


def compare(devices: list[Any], path: Path, feed: Feed) -> str:
    """What became of one network."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    optimized = path.with_suffix(".optimized.onnx")  # the graph that the provider is given
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(optimized)
    cpu = ort.InferenceSession(str(path), settings).run(None, feed)
    settings.optimized_model_filepath = ""
    settings.add_provider_for_devices(devices, {"cache_dir": str(path.parent / "cache")})
    got = ort.InferenceSession(str(path), settings).run(None, feed)
    taken, nodes = claimed(path.parent / "cache")
    own = own_results(optimized, feed) if taken == nodes > 0 else None
    kind = "ours" if own is not None else "parts" if taken else "CPU"
    for one, other in zip(got, cpu if own is None else own, strict=True):
        near = np.allclose(one, other, rtol=1e-2, atol=1e-2, equal_nan=True)
        if not (near if kind == "parts" else np.array_equal(one, other, equal_nan=True)):
            return f"{taken} {nodes} different from {kind}"
    return f"{taken} {nodes} {kind}"


def main(provider: str, folder: Path, count: int) -> None:
    ort.register_execution_provider_library("anynpu", provider)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]
    every, first = cases(), light()
    wanted = count - len(first)
    chosen = [every[number * len(every) // wanted] for number in range(wanted)]
    for number, (name, model, feed) in enumerate([*first, *chosen]):
        place = folder / str(number)
        place.mkdir()
        onnx.save(model, place / "model.onnx")
        print(name, compare(devices, place / "model.onnx", feed), flush=True)


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
