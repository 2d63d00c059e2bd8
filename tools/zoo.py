"""Networks of timm, torchvision, ultralytics and transformers from their own configurations with random weights, as a table.

``make zoo`` runs it in an environment that it makes. Each network is compiled from its module in float16 and in int8, in a process of its
own, run on the software NPU, and compared with torch. A network may be rejected with an error of anynpu; any other error, and a result that
is wrong without a word, makes the command fail.

    python tools/zoo.py [NAME ...] [--pixels N] [--at-once N] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PATIENCE = 1800
"""Seconds for one network."""

SAMPLES = 8
DECLARED: list[Any] = []
"""Operators stay declared as long as the object that did it lives."""

SILENT = 0.99
"""A float16 result with a lower cosine is wrong without a word."""

POOR = 0.9
"""An int8 result with a lower cosine must come with a warning, or it is wrong without a word too."""

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
FIXED_OF_TIMM = ("swin_tiny_patch4_window7_224", "levit_128s", "efficientformer_l1", "xcit_nano_12_p16_224", "mobilevit_xxs")
"""Networks of timm that take one size alone, or are made of parts of a size of their own, and do not report it."""

TORCHVISION = [
    *("resnet18", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "efficientnet_b0"),
    *("regnet_y_400mf", "googlenet", "densenet121", "convnext_tiny", "vit_b_16", "swin_t", "maxvit_t"),
    *("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50"),
]
ULTRALYTICS = [
    *(
        "yolov5nu",
        "yolov8n",
        "yolov8n-seg",
        "yolov8n-pose",
        "yolov8n-obb",
        "yolov8n-cls",
        "yolov9t",
        "yolov10n",
        "yolo11n",
        "yolo12n",
    ),
]
PIXELS = 320
"""Height and width of what ultralytics' networks look at here, unless asked for another; its own 640 takes four times as long."""

FIXED = ("vit_b_16", "maxvit_t")
"""Networks of torchvision that take one size alone."""

TEXTS = ["bert", "distilbert", "albert", "electra", "mobilebert", "roberta", "gpt2", "t5-encoder", "mpnet"]
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
PATCHES = {**SMALL, "image_size": 64, "patch_size": 8}
WINDOWS = {"image_size": 64, "patch_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
DECODER = {**SMALL, "vocab_size": 500, "num_key_value_heads": 2, "use_cache": False, "max_position_embeddings": 128}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
PICTURE, SOUND, MEL = (1, 3, 64, 64), (1, 4000), (1, 80, 64)
OTHERS: dict[str, tuple[str, str, dict[str, Any], tuple[int, ...] | None]] = {
    # class of the network, its configuration, what it is made of, shape of the input (None: 64 tokens)
    "vit": ("ViTModel", "ViTConfig", PATCHES, PICTURE),
    "deit": ("DeiTModel", "DeiTConfig", PATCHES, PICTURE),
    "beit": ("BeitModel", "BeitConfig", PATCHES, PICTURE),
    "dinov2": ("Dinov2Model", "Dinov2Config", PATCHES, PICTURE),
    "yolos": ("YolosModel", "YolosConfig", {**PATCHES, "image_size": [64, 64], "num_detection_tokens": 10}, PICTURE),
    "clip-vision": ("CLIPVisionModel", "CLIPVisionConfig", PATCHES, PICTURE),
    "siglip-vision": ("SiglipVisionModel", "SiglipVisionConfig", PATCHES, PICTURE),
    "swin": ("SwinModel", "SwinConfig", WINDOWS, PICTURE),
    "swinv2": ("Swinv2Model", "Swinv2Config", WINDOWS, PICTURE),
    "segformer": (
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "hidden_sizes": [16, 32, 48, 64],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "decoder_hidden_size": 32,
        },
        PICTURE,
    ),
    "convnext": ("ConvNextModel", "ConvNextConfig", STAGES, PICTURE),
    "poolformer": ("PoolFormerModel", "PoolFormerConfig", STAGES, PICTURE),
    "resnet": ("ResNetModel", "ResNetConfig", {**STAGES, "embedding_size": 16}, PICTURE),
    "regnet": ("RegNetModel", "RegNetConfig", {**STAGES, "embedding_size": 16, "groups_width": 8}, PICTURE),
    "mobilevit": ("MobileViTModel", "MobileViTConfig", {"image_size": 64}, PICTURE),
    "detr": (
        "DetrForObjectDetection",
        "DetrConfig",
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "num_queries": 10,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": "resnet",
        },
        PICTURE,
    ),
    "whisper-encoder": (
        "WhisperModel",
        "WhisperConfig",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "max_source_positions": 32,
            "vocab_size": 500,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        MEL,
    ),
    "wav2vec2": (
        "Wav2Vec2Model",
        "Wav2Vec2Config",
        {**SMALL, "conv_dim": (32, 32), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_conv_pos_embeddings": 16},
        SOUND,
    ),
    "llama": ("LlamaModel", "LlamaConfig", DECODER, None),
    "qwen2": ("Qwen2Model", "Qwen2Config", DECODER, None),
}


def main() -> int:
    """Print the table; 1 where an error has no type or a result is wrong without a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    everything = [*PICTURES, *(f"torchvision:{name}" for name in TORCHVISION)]
    everything += [*(f"ultralytics:{name}" for name in ULTRALYTICS), *TEXTS, *OTHERS]
    parser.add_argument(
        "names", nargs="*", default=everything, help="timm names, torchvision:NAME, ultralytics:NAME, or names of the lists here"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--pixels", type=int, help="height and width, where a network allows another than its own: less takes less time"
    )
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="networks that are tried at the same time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(tried(given.one, given.pixels)))
        return 0
    rows = []
    print(f"{'network':32} {'float16':>9} {'int8':>9} {'on CPU':>9} {'s':>7} {'CPU s':>7} {'MB':>7}  note")
    workers = ThreadPoolExecutor(max(1, given.at_once))
    for name, row in zip(given.names, workers.map(lambda name: in_a_process(name, given.pixels), given.names), strict=True):
        rows.append(row)
        numbers = [f"{row[key]:.5f}" if row.get(key) is not None else "-" for key in ("float16", "int8")]
        on_cpu = f"{row['on_cpu']}/{row['layers']}" if "layers" in row else "-"
        print(
            f"{name:32} {numbers[0]:>9} {numbers[1]:>9} {on_cpu:>9} {row.get('seconds', 0):7.1f} "
            f"{row.get('processor', 0):7.1f} {row.get('megabytes', 0):7.0f}  {row['note']}",
            flush=True,
        )
        if given.json:  # where it is: the whole takes hours
            given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    faults = [row["name"] for row in rows if row["fault"]]
    runs = sum(row.get("float16") is not None for row in rows)
    print(
        f"{runs} of {len(rows)} run in float16, {sum(row.get('int8') is not None for row in rows)} in int8; faults: {faults or 'none'}"
    )
    return 1 if faults else 0


def in_a_process(name: str, pixels: int | None) -> dict[str, Any]:
    """What one network gives; a process that dies is a fault."""
    command = [sys.executable, __file__, "--one", name, *([f"--pixels={pixels}"] if pixels else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"name": name, "note": f"not done after {PATIENCE} s", "fault": True}
    except (IndexError, ValueError):
        return {"name": name, "note": f"the process died: {done.stderr.strip()[-200:]}", "fault": True}
    return result


def tried(name: str, pixels: int | None = None) -> dict[str, Any]:
    """Compile one network and run it."""
    import numpy as np

    import anynpu
    from anynpu.errors import AnynpuError

    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    module, examples = network(name, pixels)
    module.eval()
    row: dict[str, Any] = {"name": name, "note": "", "fault": False}
    with torch.no_grad():
        expected = first(module(*examples)).numpy()
    samples = [tuple(other(example, seed) for example in examples) for seed in range(SAMPLES)]
    heard = Heard()
    logging.getLogger("anynpu").addHandler(heard)
    start = time.perf_counter()
    try:
        plain = anynpu.compile(module, "rk3588", dtype="fp16", example_inputs=examples)
        names = [spec.name for spec in plain.inputs]
        row |= {"seconds": time.perf_counter() - start, "said": heard.lines}
        row["float16"] = cosine(expected, result(plain, names, examples))
        data = [dict(zip(names, (value.numpy() for value in sample), strict=True)) for sample in samples]
        heard.lines = []
        start, busy = time.perf_counter(), time.process_time()
        coded = anynpu.compile(module, "rk3588", dataset=data, example_inputs=examples)
        row |= {"seconds": time.perf_counter() - start, "processor": time.process_time() - busy}
        row["accuracy"] = coded.provenance.get("accuracy", "")
        row["warnings"] = [*heard.lines, *filter(None, coded.provenance.get("warnings", "").splitlines())]
        row["int8"] = cosine(expected, result(coded, names, examples))
        report = anynpu.report(coded)
        row |= {"layers": len(report.layers), "on_cpu": len(report.on_cpu)}
        lost = not row["float16"] > SILENT
        if (lost and not row["said"]) or not np.isfinite(row["int8"]):
            row |= {"note": "wrong without a word", "fault": True}
        elif not any(spec.dtype.value == "int8" for spec in coded.programs[0].tensors.values()):
            row |= {"note": "int8 without int8 in it", "fault": True}
        elif row["int8"] < POOR and not row["warnings"]:
            row |= {"note": "int8 is poor without a word", "fault": True}
        elif lost:
            row["note"] = f"float16 is lost, and said to be: {row['said'][0][:120]}"
        elif row["int8"] < POOR:
            row["note"] = f"int8 is poor, and said to be: {row['warnings'][0][:120]}"
    except AnynpuError as error:
        row["note"] = f"rejected: {type(error).__name__}: {error.message[:120]}"
    except Exception as error:  # this is what the command looks for
        row |= {"note": f"{type(error).__name__}: {str(error)[:160]}", "fault": True}
    row["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return row


class Heard(logging.Handler):
    """Keeps the warnings of the compiler."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(record.getMessage())


def network(name: str, pixels: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """A module, and what it is called with."""
    kind, _, rest = name.partition(":")
    if kind == "torchvision" and rest:
        return torchvision_network(rest, pixels)
    if kind == "ultralytics" and rest:
        return ultralytics_network(rest, pixels or PIXELS)
    if name in OTHERS:
        return other_network(name)
    return text_network(name) if name in TEXTS else picture_network(name, pixels)


def torchvision_network(name: str, pixels: int | None) -> tuple[Any, tuple[Any, ...]]:
    """A network of torchvision; those that give a dict give its first entry."""
    torch = importlib.import_module("torch")
    load_torchvision()
    models = importlib.import_module("torchvision.models")
    size = 224 if pixels is None or name in FIXED else pixels
    options: dict[str, Any] = {"weights_backbone": None} if name.startswith(("deeplab", "lraspp", "fcn")) else {}
    if name == "googlenet":
        options = {"init_weights": False}
    module = models.get_model(name, weights=None, **options)
    module.train()
    with torch.no_grad():
        for _ in range(2):
            module(torch.randn(4, 3, size, size))
    return with_one_result(module), (torch.randn(1, 3, size, size),)


def ultralytics_network(name: str, pixels: int) -> tuple[Any, tuple[Any, ...]]:
    """A network of ultralytics as it exports it: heads that give one tensor, without what only training needs."""
    torch = importlib.import_module("torch")
    load_torchvision()
    tasks = importlib.import_module("ultralytics.nn.tasks")
    kinds = {"seg": "SegmentationModel", "pose": "PoseModel", "obb": "OBBModel", "cls": "ClassificationModel"}
    kind = kinds.get(name.partition("-")[2], "DetectionModel")
    module = getattr(tasks, kind)(f"{name.removesuffix('u')}.yaml", verbose=False)
    example = torch.randn(1, 3, pixels, pixels)
    module.train()
    with torch.no_grad():
        for _ in range(2):
            module(torch.randn(4, 3, pixels, pixels))
    module = module.eval().fuse(verbose=False)
    for part in module.modules():
        if hasattr(part, "export"):
            part.export, part.format, part.dynamic = True, "onnx", False
    with torch.no_grad():
        module(example)  # the heads keep their grid
    return with_one_result(module), (example,)


def with_one_result(module: Any) -> Any:
    """A module that gives the first tensor of what another gives."""
    torch = importlib.import_module("torch")

    class OneResult(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, value: Any) -> Any:
            return first(self.inner(value))

    return OneResult()


def other_network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """A small network of transformers, with the statistics of its normalizations made to fit random weights."""
    torch = importlib.import_module("torch")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()
    transformers = importlib.import_module("transformers")
    kind, configuration, settings, shape = OTHERS[name]
    settings = dict(settings)
    if settings.get("backbone_config") == "resnet":
        settings["backbone_config"] = transformers.ResNetConfig(**STAGES, embedding_size=16, out_features=["stage4"])
    made = getattr(transformers, configuration)(**settings)
    made._attn_implementation = "eager"
    module = getattr(transformers, kind)(made)
    if name == "whisper-encoder":
        module = module.get_encoder()
    example = torch.randint(0, 500, (1, 64)) if shape is None else torch.randn(*shape)
    if shape == PICTURE:
        module.train()
        for part in module.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.momentum = 1.0  # what the last images had, whatever the numbers were before
        with torch.no_grad():
            for _ in range(2):
                module(torch.randn(4, *shape[1:]))
    return with_one_result(module), (example,)


def picture_network(name: str, pixels: int | None) -> tuple[Any, tuple[Any, ...]]:
    """A network of timm, whose batch statistics are made to fit random weights."""
    torch = importlib.import_module("torch")
    load_torchvision()
    timm = importlib.import_module("timm")
    module = timm.create_model(name, pretrained=False)
    for part in module.modules():
        if isinstance(part, torch.nn.Linear) and not part.weight.any():
            torch.nn.init.normal_(part.weight, std=0.02)  # some begin with answers of zero
    channels, height, width = module.default_cfg["input_size"]
    if pixels is not None and not module.default_cfg.get("fixed_input_size") and name not in FIXED_OF_TIMM:
        height = width = pixels
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
    if isinstance(result, dict):
        return first(next(iter(result.values())))
    return first(result[0]) if isinstance(result, (tuple, list)) else result


def result(model: Any, names: list[str], examples: tuple[Any, ...]) -> Any:
    """What the software NPU computes."""
    import anynpu

    with anynpu.Device("rk3588") as device:
        feeds = {name: value.numpy() for name, value in zip(names, examples, strict=True)}
        return device.load(model).context().run(feeds)[0]


def cosine(expected: Any, given: Any) -> float:
    """Of two arrays; 1 where both are zero."""
    import numpy as np

    if not np.any(expected) and not np.any(given):
        return 1.0
    left, right = np.asarray(expected, np.float64).ravel(), np.asarray(given, np.float64).ravel()
    return float(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), 1e-30))


if __name__ == "__main__":
    sys.exit(main())
