"""A stand-in for the vendor's toolkit: a package ``rknn`` that checks what it is given, and fails in the ways that the real one does.

``write_stub`` makes a folder that a Python process finds it in. How it fails is set by a file beside it, so that a test needs
no variable.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

FAILURES = {
    "config": "raise in config",
    "load": "load_onnx returns -1",
    "exit": "exit in step 1",
    "crash": "a signal in step 1",
    "hang": "never comes back",
    "refused": "step 2 rejects the configuration",
    "nothing": "export writes no file",
}

_PACKAGE = '''
import json, os, signal, struct, sys, time
import numpy as np

MODE = open(os.path.join(os.path.dirname(__file__), "mode")).read().strip()
STEP = 0.25
CFG = """custom_quantize_layers: {}
quantize_parameters:
%s"""
ENTRY = """    %s:
        qtype: asym
        qmethod: layer
        dtype: %s
        min:
        -   %r
        max:
        -   %r
        scale:%s
        zero_point:%s
        ori_min:
        -   %r
        ori_max:
        -   %r
"""


def entry(name, dtype, low, high):
    if dtype == "float32":
        return ENTRY % (name, dtype, low, high, " []", " []", low, high)
    scale = (high - low) / 255
    return ENTRY % (name, dtype, low, high, "\\n        -   %r" % scale, "\\n        -   %d" % round(-128 - low / scale), low, high)


def unedited(text):
    """What must not change: every line but the numbers below min and max."""
    lines, key = [], ""
    for line in text.split("\\n"):
        if line.strip().endswith(":"):
            key = line.strip()
        if not (line.strip().startswith("-   ") and key in ("min:", "max:")):
            lines.append(line)
    return [line for line in lines if "float16" not in line and "custom_quantize_layers" not in line]


class RKNN:
    def __init__(self, verbose=False, verbose_file=None):
        self.model = None

    def config(self, mean_values=None, std_values=None, target_platform=None, custom_string=None):
        if MODE == "config":
            raise ValueError("The target_platform is not supported!")
        assert target_platform == "rk3588", target_platform
        self.normalisation = [mean_values, std_values]
        for values in (mean_values, std_values):
            assert values is None or all(isinstance(entry, (list, type(None))) for entry in values), values
        return 0

    def load_onnx(self, model):
        print("I Loading : 100%")
        if MODE == "load":
            print("E load_onnx: the model is not supported")
            return -1
        import onnx

        self.model = onnx.load(model)
        self.name = os.path.splitext(os.path.basename(model))[0]
        return 0

    def hybrid_quantization_step1(self, dataset, proposal):
        assert proposal is False
        if MODE == "exit":
            print("E unsupported operator, exit")
            sys.exit(255)
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if MODE == "hang":
            print("I rknn building ...", flush=True)
            time.sleep(600)
        graph = self.model.graph
        inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
        shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph.input]
        for line in open(dataset).read().splitlines():
            files = line.split()
            assert len(files) == len(inputs), line
            for file, shape in zip(files, shapes):
                array = np.load(file)
                assert list(array.shape) == shape and array.dtype == np.float32, (array.shape, shape)
        entries = [entry(name, "float32", -4.0, 4.0) for name in inputs]
        entries += [
            entry("'%s'" % name if name.isdigit() else name, "float32" if name in outputs else "int8", -4.0, 4.0)
            for node in graph.node
            for name in node.output
        ]
        entries += [entry(name + "_int8", "int8", -4.0, 4.0) for name in inputs + outputs]
        open(self.name + ".quantization.cfg", "w").write(CFG % "".join(entries))
        json.dump(self.normalisation, open("normalisation.json", "w"))
        open(self.name + ".model", "wb").write(self.model.SerializeToString())
        open(self.name + ".data", "w").write(json.dumps(unedited(open(self.name + ".quantization.cfg").read())))
        return 0

    def hybrid_quantization_step2(self, model_input, data_input, model_quantization_cfg):
        assert self.model is None, "a new object, without load_onnx"
        text = open(model_quantization_cfg).read()
        if MODE == "refused" or unedited(text) != json.load(open(data_input)):
            raise ValueError("The quantize_parameters in " + model_quantization_cfg + " is invalid!")
        self.cfg, self.built = text, model_input
        return 0

    def accuracy_analysis(self, inputs, output_dir, target=None, device_id=None):
        """Every tensor of the float model; an input also as codes, which are as fine as floats here."""
        if MODE == "analysis":
            print("E accuracy_analysis: the input is wrong")
            return -1
        import onnx, onnxruntime

        model = onnx.load_model_from_string(open(self.built, "rb").read())
        names = [i.name for i in model.graph.input]
        del model.graph.output[:]
        made = [name for node in model.graph.node for name in node.output]
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in made)
        means, deviations = json.load(open("normalisation.json"))
        feed = {}
        for index, (name, file) in enumerate(zip(names, inputs, strict=True)):
            mean, std = (np.array(values[index], np.float32).reshape(1, -1, 1, 1) for values in (means, deviations))
            feed[name] = ((np.load(file) - mean) / std).astype(np.float32)
        found = onnxruntime.InferenceSession(model.SerializeToString()).run(made, feed)
        values = {**feed, **{name + "_int8": value for name, value in feed.items()}, **dict(zip(made, found))}
        os.makedirs(os.path.join(output_dir, "simulator", "npy"))
        lines = ["layer_name          file_name", "-" * 40]
        for number, (name, value) in enumerate(values.items()):
            np.save(os.path.join(output_dir, "simulator", "npy", "t%d.npy" % number), value)
            lines.append("%-44s%-40s" % (name, "t%d.txt" % number))
        open(os.path.join(output_dir, "map_name_to_file.txt"), "w").write("\\n".join(lines))
        return 0

    def build(self, do_quantization=True, dataset=None):
        assert do_quantization is False
        self.cfg = ""
        return 0

    def export_rknn(self, path):
        if MODE == "nothing":
            return 0
        trailer = json.dumps({"target_platform": ["rk3588"], "version": "2.5.0", "cfg": self.cfg}).encode()
        open(path, "wb").write(b"RKNN\\0\\0\\0\\0" + struct.pack("<QQ", 6, 0) + bytes(40) + struct.pack("<Q", len(trailer)) + trailer)
        return 0

    def release(self):
        pass
'''


def write_stub(folder: Path, mode: str = "") -> Path:
    """A Python that has the stub, as a script that starts this one with it: what ``--toolkit`` takes."""
    package = folder / "packages" / "rknn" / "api"
    package.mkdir(parents=True, exist_ok=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(_PACKAGE)
    (package / "mode").write_text(mode)
    info = folder / "packages" / "rknn_toolkit2-2.5.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rknn-toolkit2\nVersion: 2.5.0\n")
    python = folder / "python"
    paths = os.pathsep.join([str(folder / "packages"), *filter(None, sys.path)])
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{paths}' exec '{sys.executable}' \"$@\"\n")
    python.chmod(0o755)
    return python
