"""onnxruntime with the provider, and models for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dropin.conftest import network
from onnx import helper

import anynpu
from anynpu._util import optional as _optional
from anynpu.dropin.environment import execution_provider
from anynpu.session.onnxruntime.context_model import PROVIDER

SIDE = 32


@dataclass(frozen=True)
class Provider:
    """onnxruntime after the provider was registered."""

    ort: Any
    device: Any
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def session(self, model: str | Path | bytes, entries: dict[str, str] | None = None, **options: str) -> Any:
        """A session on the NPU alone."""
        settings = self.ort.SessionOptions()
        settings.log_severity_level = 4
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        for key, value in (entries or {}).items():
            settings.add_session_config_entry(key, value)
        settings.add_provider_for_devices([self.device], options)
        return self.ort.InferenceSession(model if isinstance(model, bytes) else str(model), settings)

    def error(self, model: str | Path | bytes, **options: str) -> str:
        """The message with which a session fails."""
        with pytest.raises(Exception, match="anynpu: ") as raised:
            self.session(model, **options)
        assert "Exception" in {kind.__name__ for kind in type(raised.value).__mro__}
        return str(raised.value)


@pytest.fixture(scope="session")
def provider() -> Provider:
    ort = _optional.onnxruntime()
    ort.register_execution_provider_library("anynpu", str(execution_provider()))
    (device,) = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    return Provider(ort, device)


@dataclass(frozen=True)
class Models:
    """Compiled models: int8, float16, and int8 with two sizes of images."""

    int8: Path
    float16: Path
    deep: Path
    dynamic: Path


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("ort-models")

    def compiled(name: str, proto: onnx.ModelProto, chip: str = "rk3588", side: int = SIDE, **options: Any) -> Path:
        source = folder / f"{name}.onnx"
        onnx.save(proto, source)
        if options.get("dtype") != "fp16":
            rng = np.random.default_rng(9)
            options["dataset"] = [{"images": rng.random((1, 3, side, side), np.float32)} for _ in range(2)]
        return anynpu.compile(source, chip, **options).save(folder / f"{name}.rknn")

    return Models(
        compiled("int8", network(20)),
        compiled("float16", network(12, seed=3), dtype="fp16"),
        compiled("deep", network(16, layers=3, seed=8)),
        compiled("dynamic", network(8, side="side"), side=16, shapes=[{"images": (1, 3, 16, 16)}, {"images": (1, 3, 24, 24)}]),
    )


@pytest.fixture
def image() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).random((1, 3, SIDE, SIDE), np.float32)


def edited(model: Path, target: Path, **attributes: object) -> Path:
    """An EPContext model with other attributes; None removes one."""
    proto = onnx.load(model)
    (node,) = proto.graph.node
    kept = [entry for entry in node.attribute if entry.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items() if value is not None)
    onnx.save(proto, target)
    return target
