"""Networks of timm and transformers, built from their own configurations with random weights: from module to result, as a table.

``make zoo`` runs it in an environment that it makes. Each network is compiled from its module in float16 and in int8, in a process of its
own, run on the software NPU, and compared with torch. A network may be refused with an error of anynpu; any other error, and a result that
is wrong without a word, makes the command fail.

    python tools/zoo.py [NAME ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 1800
"""Seconds for one network."""

SAMPLES = 8
DECLARED: list[Any] = []
"""Operators stay declared as long as the object that did it lives."""

SILENT = 0.99
"""A float16 result with a lower cosine is wrong without a word."""

PICTURES = [
    *("resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "seresnet50", "skresnet18", "res2net50_26w_4s", "resnest14d"),
    *("mobilenetv2_100", "mobilenetv3_small_100", "mobilenetv3_large_100", "mobilenetv4_conv_small", "mnasnet_100", "fbnetc_100"),
    *(
        "efficientnet_b0",
        "efficientnet_lite0",
        "tf_efficientnetv2_b0",
        "efficientnetv2_rw_t",
        "mixnet_s",
        "tinynet_e",
        "lcnet_050",
    ),
    *(
        "ghostnet_100",
        "hardcorenas_a",
        "spnasnet_100",
        "semnasnet_100",
        "densenet121",
        "vgg11_bn",
        "dla34",
        "dpn68",
        "hrnet_w18_small",
    ),
    *(
        "regnetx_002",
        "regnety_002",
        "regnetz_b16",
        "repvgg_a0",
        "mobileone_s0",
        "rexnet_100",
        "cspresnet50",
        "cspdarknet53",
        "darknet53",
    ),
    *(
        "convnext_atto",
        "convnextv2_atto",
        "edgenext_xx_small",
        "mobilevit_xxs",
        "mobilevitv2_050",
        "fastvit_t8",
        "repghostnet_050",
    ),
    *(
        "inception_v3",
        "inception_v4",
        "xception41",
        "nf_resnet50",
        "vovnet39a",
        "selecsls42b",
        "starnet_s1",
        "inception_next_atto",
    ),
    *("vit_tiny_patch16_224", "deit_tiny_patch16_224", "beit_base_patch16_224", "swin_tiny_patch4_window7_224", "pit_ti_224"),
    *(
        "levit_128s",
        "poolformer_s12",
        "mixer_s16_224",
        "gmlp_s16_224",
        "resmlp_12_224",
        "efficientformer_l1",
        "xcit_nano_12_p16_224",
    ),
]
TEXTS = ["bert", "distilbert", "albert", "electra", "mobilebert", "roberta", "gpt2", "t5-encoder", "mpnet"]


def main() -> int:
    """Print the table; 1 where an error has no type or a result is wrong without a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*PICTURES, *TEXTS])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(tried(given.one)))
        return 0
    rows = []
    print(f"{'network':32} {'float16':>9} {'int8':>9} {'on CPU':>9} {'s':>7} {'MB':>7}  note")
    for name in given.names:
        row = in_a_process(name)
        rows.append(row)
        numbers = [f"{row[key]:.5f}" if row.get(key) is not None else "-" for key in ("float16", "int8")]
        on_cpu = f"{row['on_cpu']}/{row['layers']}" if "layers" in row else "-"
        print(
            f"{name:32} {numbers[0]:>9} {numbers[1]:>9} {on_cpu:>9} {row.get('seconds', 0):7.1f} {row.get('megabytes', 0):7.0f}  "
            f"{row['note']}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    faults = [row["name"] for row in rows if row["fault"]]
    runs = sum(row.get("float16") is not None for row in rows)
    print(
        f"{runs} of {len(rows)} run in float16, {sum(row.get('int8') is not None for row in rows)} in int8; faults: {faults or 'none'}"
    )
    return 1 if faults else 0


def in_a_process(name: str) -> dict[str, Any]:
    """What one network gives; a process that dies is a fault."""
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"name": name, "note": f"not done after {PATIENCE} s", "fault": True}
    except (IndexError, ValueError):
        return {"name": name, "note": f"the process died: {done.stderr.strip()[-200:]}", "fault": True}
    return result


def tried(name: str) -> dict[str, Any]:
    """Compile one network and run it."""
    import numpy as np

    import anynpu
    from anynpu.errors import AnynpuError

    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    module, examples = text_network(name) if name in TEXTS else picture_network(name)
    module.eval()
    row: dict[str, Any] = {"name": name, "note": "", "fault": False}
    with torch.no_grad():
        expected = first(module(*examples)).numpy()
    samples = [tuple(other(example, seed) for example in examples) for seed in range(SAMPLES)]
    start = time.perf_counter()
    try:
        plain = anynpu.compile(module, "rk3588", dtype="fp16", example_inputs=examples)
        names = [spec.name for spec in plain.inputs]
        row["seconds"] = time.perf_counter() - start
        row["float16"] = cosine(expected, result(plain, names, examples))
        data = [dict(zip(names, (value.numpy() for value in sample), strict=True)) for sample in samples]
        start = time.perf_counter()
        coded = anynpu.compile(module, "rk3588", dataset=data, example_inputs=examples)
        row["seconds"] = time.perf_counter() - start
        row["int8"] = cosine(expected, result(coded, names, examples))
        report = anynpu.report(coded)
        row |= {"layers": len(report.layers), "on_cpu": len(report.on_cpu)}
        if not row["float16"] > SILENT or not np.isfinite(row["int8"]):
            row |= {"note": "wrong without a word", "fault": True}
    except AnynpuError as error:
        row["note"] = f"refused: {type(error).__name__}: {error.message[:120]}"
    except Exception as error:  # this is what the command looks for
        row |= {"note": f"{type(error).__name__}: {str(error)[:160]}", "fault": True}
    row["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


def picture_network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A network of timm, whose batch statistics are made to fit random weights."""
    torch = importlib.import_module("torch")
    load_torchvision()
    timm = importlib.import_module("timm")
    module = timm.create_model(name, pretrained=False)
    channels, height, width = module.default_cfg["input_size"]
    module.train()
    with torch.no_grad():
        for _ in range(2):
            module(torch.randn(4, channels, height, width))
    return module, (torch.randn(1, channels, height, width),)


def load_torchvision() -> None:
    """timm needs its Python half. Where the compiled half is for another build of torch, its operators are declared and never called."""
    torch = importlib.import_module("torch")
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    names = ["nms", "qnms", "qroi_align", "deform_conv2d", "_deform_conv2d_backward"]
    for kind in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
        names += [kind, f"_{kind}_backward"]
    DECLARED.append(torch.library.Library("torchvision", "DEF"))
    for name in names:
        DECLARED[-1].define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
    importlib.import_module("torchvision")


def text_network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A small encoder of transformers."""
    torch = importlib.import_module("torch")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()  # transformers loads it where it is
    transformers = importlib.import_module("transformers")
    small = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 500}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "bert": ("Bert", small),
        "electra": ("Electra", {**small, "embedding_size": 128}),
        "roberta": ("Roberta", small),
        "mpnet": ("MPNet", small),
        "albert": ("Albert", {**small, "embedding_size": 64}),
        "mobilebert": ("MobileBert", {"num_hidden_layers": 2, "vocab_size": 500}),
        "distilbert": ("DistilBert", {"n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 256, "vocab_size": 500}),
        "gpt2": ("GPT2", {"n_layer": 2, "n_embd": 128, "n_head": 4, "vocab_size": 500, "use_cache": False}),
        "t5-encoder": ("T5", {"num_layers": 2, "d_model": 128, "num_heads": 4, "d_kv": 32, "d_ff": 256, "vocab_size": 500}),
    }
    kind, settings = kinds[name]
    configuration = getattr(transformers, f"{kind}Config")(**settings, return_dict=False, attn_implementation="eager")
    module = getattr(transformers, "T5EncoderModel" if kind == "T5" else f"{kind}Model")(configuration)
    return module, (torch.randint(0, 500, (1, 64)),)


def other(example: Any, seed: int) -> Any:
    """Another input of the same kind."""
    torch = importlib.import_module("torch")
    generator = torch.Generator().manual_seed(seed)
    if example.is_floating_point():
        return torch.randn(example.shape, generator=generator)
    return torch.randint(0, 500, example.shape, generator=generator)


def first(result: Any) -> Any:
    """The first tensor of what a module gives."""
    return first(result[0]) if isinstance(result, (tuple, list)) else result


def result(model: Any, names: list[str], examples: tuple[Any, ...]) -> Any:
    """What the software NPU computes."""
    import anynpu

    with anynpu.Device("rk3588") as device:
        feeds = {name: value.numpy() for name, value in zip(names, examples, strict=True)}
        return device.load(model).context().run(feeds)[0]


def cosine(expected: Any, given: Any) -> float:
    """Of two arrays."""
    import numpy as np

    left, right = np.asarray(expected, np.float64).ravel(), np.asarray(given, np.float64).ravel()
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), 1e-30))


if __name__ == "__main__":
    sys.exit(main())
