"""The rocket engine: networks through the emulated device, with the bytes of the software NPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from real_models import RealModels

import anynpu
from anynpu import faults
from anynpu.errors import CommandStreamError, DeviceError, DeviceResultError, DeviceUnavailable, OptionError
from anynpu.faults import Fault, Plan
from anynpu.npu import Context, Device
from anynpu.npu.rocket import kernel
from anynpu.npu.rocket.device import AccelFile
from anynpu.npu.rocket.engine import RocketEngine
from anynpu.npu.rocket.segments import Streams, plan
from anynpu.program import Conv, Model
from npu.engines.nets import NETS

NETWORKS = Path(__file__).parents[3] / "benchmarks" / "networks.py"

WITHOUT = ["groups", "curves"]
"""One output scale for a layer, and activations on rounded values."""


def compiled(proto: Any, folder: Path, **options: Any) -> Any:
    """A model, calibrated on noise."""
    shape = options.pop("shape", None) or [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    random = np.random.default_rng(0)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for index in range(2):
        np.save(data / f"{index}.npy", random.normal(size=shape).astype(np.float32))
    return anynpu.compile(proto, "rk3588", dataset=data, **{"accuracy": "fast", "without": WITHOUT, **options})


def streams_of(model: Model) -> Streams:
    return plan(model.programs[0])


def outputs(model: Any, engine: str, seeds: tuple[int, ...] = (1, 2, 3)) -> list[list[Any]]:
    with Device("rk3588", engine=engine) as device, device.load(model).context() as context:
        found = []
        for seed in seeds:
            random = np.random.default_rng(seed)
            found.append(context.run({spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}))
        return found


def assert_same(model: Any) -> None:
    for ours, theirs in zip(outputs(model, "rocket:emulated"), outputs(model, "native"), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


def small() -> onnx.ModelProto:
    """Dense, depthwise and added convolutions with ReLU, a pooling in between, and a one-channel input."""
    net = Net(13, seed=1)
    x = net.op("Relu", net.conv(net.input("x", (1, 1, 20, 24)), 24, 3, cin=1, pads=[1, 1, 1, 1]))
    net.shapes[x] = (0, 24)
    y = net.op("Relu", net.conv(x, 24, 3, cin=24, group=24, pads=[1, 1, 1, 1]))
    y = net.op("Relu", net.op("Add", net.conv(y, 24, 1, cin=24), x))
    z = net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    net.output(
        net.conv(net.op("Clip", net.conv(z, 40, 3, cin=24, strides=[2, 2]), net.constant(0.0), net.constant(6.0)), 7, 1, cin=40)
    )
    return net.proto()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled(small(), tmp_path_factory.mktemp("small"))


def test_a_small_network(model: Any) -> None:
    streams = streams_of(model)
    assert streams.share == 1
    assert [part.streams for part in streams.parts] == [True, False, True]
    assert streams.conversions == 4
    assert_same(model)


@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("without", [[], WITHOUT], ids=["default", "streams"])
def test_networks_in_the_shapes_of_families(name: str, without: list[str], tmp_path: Path) -> None:
    assert_same(compiled(NETS[name](), tmp_path, without=without))


@pytest.mark.full
@pytest.mark.parametrize(
    ("network", "size", "share", "conversions"),
    [
        ("mobilenet_v1", 128, 0.9, 10),
        ("mobilenet_v2", 128, 0.9, 20),
        ("yolox_nano", 416, 0.8, 80),
    ],
)
@pytest.mark.parametrize("accuracy", ["fast", "default"])
def test_well_known_networks(network: str, size: int, share: float, conversions: int, accuracy: str, tmp_path: Path) -> None:
    """Compiled with ordinary options."""
    model = compiled(run_path(str(NETWORKS))[network](size), tmp_path, accuracy=accuracy, without=[])
    streams = streams_of(model)
    assert streams.share >= share
    assert streams.conversions <= conversions
    assert_same(model)


@pytest.mark.full
def test_text_detection(real_models: RealModels, tmp_path: Path) -> None:
    shape = (1, 3, 224, 160)
    model = compiled(str(real_models.detection), tmp_path, shape=shape, shapes={"x": shape}, without=[])
    assert streams_of(model).share >= 0.9
    assert_same(model)


def test_groups_of_channels_are_tasks_of_their_own(tmp_path: Path) -> None:
    """Each scale of a tensor has planes and a task of its own, also where its channels lie scattered."""
    model = compiled(run_path(str(NETWORKS))["mobilenet_v1"](64), tmp_path, without=[])
    streams = streams_of(model)
    assert streams.share == 1
    tensors = streams.program.tensors
    parts = 0
    for lowered in streams.lowered.values():
        assert len(lowered) <= 4  # two scales, around a depthwise convolution two on each side
        parts += len(lowered)
    assert parts > len(streams.lowered) + 5
    assert max(len(spec.quantization.scales) for spec in tensors.values() if spec.quantization is not None) > 20
    assert_same(model)


def test_layers_on_the_cpu_have_a_reason(tmp_path: Path) -> None:
    streams = streams_of(compiled(NETS["yolo"](), tmp_path, without=[]))
    reasons = set(streams.reasons.values())
    assert reasons == {"no convolution"}
    assert any(part.convolution.curve for parts in streams.lowered.values() for part in parts)
    assert set(streams.reasons) | set(streams.lowered) == set(range(len(streams.program.layers)))


def test_lookup_tables_are_not_used_where_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compiled(NETS["yolo"](), tmp_path, without=[])
    with (
        faults.inject(Plan((Fault("stream", every=1),))),
        Device("rk3588", engine="rocket:emulated") as device,
        pytest.raises(DeviceResultError) as caught,
    ):
        device.load(model)
    assert "ANYNPU_ROCKET_WITHOUT=lookups" in caught.value.hint
    monkeypatch.setenv("ANYNPU_ROCKET_WITHOUT", "lookups")
    assert 0 < plan(model.programs[0], ["lookups"]).share < streams_of(model).share
    assert_same(model)


def test_a_session_runs_on_it_by_name(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model.save(tmp_path / "small.rknn")
    x = np.random.default_rng(5).normal(size=(1, 1, 20, 24)).astype(np.float32)
    with anynpu.InferenceSession(path, device="sim") as session:
        (expected,) = session.run(None, {"x": x})
    with anynpu.InferenceSession(path, device="rocket:emulated") as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
        assert "rocket" in session.device
    monkeypatch.setenv("ANYNPU_DEVICE", "rocket:emulated")
    with anynpu.InferenceSession(path) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_three_contexts_at_a_time(model: Any) -> None:
    x = np.random.default_rng(6).normal(size=(1, 1, 20, 24)).astype(np.float32)
    with Device("rk3588") as device, device.load(model).context() as context:
        (expected,) = context.run({"x": x})
    found: list[bool] = []
    with Device("rk3588", engine="rocket:emulated") as device:
        loaded = device.load(model)

        def work() -> None:
            with loaded.context() as context:
                for _ in range(5):
                    found.append(bool((context.run({"x": x})[0] == expected).all()))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    assert found == [True] * 15


def test_a_wrong_byte_is_found_when_a_model_is_opened(model: Any) -> None:
    with (
        faults.inject(Plan((Fault("stream", at=3, bit=0),))),
        Device("rk3588", engine="rocket:emulated") as device,
        pytest.raises(DeviceResultError, match=r"other bytes than the CPU for layer '.+': 1 of \d+ differ"),
    ):
        device.load(model)


def run_often(context: Context, x: Any, runs: int) -> None:
    for _ in range(runs):
        context.run({"x": x})


@pytest.mark.parametrize(("verify", "runs"), [("turn", 5), ("all", 1)])
def test_a_wrong_byte_is_found_in_a_run(model: Any, verify: str, runs: int) -> None:
    """In the second of five layers: by one layer in turn after at most five runs."""
    engine = RocketEngine("emulated", verify=verify)
    x = np.zeros((1, 1, 20, 24), np.float32)
    with Device("rk3588", engine=engine) as device, device.load(model).context() as context:
        context.run({"x": x})
        with faults.inject(Plan((Fault("stream", every=5),))), pytest.raises(DeviceResultError, match="other bytes"):
            run_often(context, x, runs)
        for _ in range(5):
            context.run({"x": x})


def test_a_job_that_fails_is_found_by_what_it_did_not_write(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Device("rk3588", engine="rocket:emulated") as device, device.load(model).context() as context:
        x = np.zeros((1, 1, 20, 24), np.float32)
        context.run({"x": x})

        def fail(self: AccelFile, queued: object) -> None:
            raise CommandStreamError("the core hangs")

        monkeypatch.setattr(AccelFile, "_run", fail)
        with pytest.raises(DeviceResultError, match="did not write the output of layer"):
            context.run({"x": x})


def test_profiles_and_cancellation_count_a_segment_as_a_layer(model: Any) -> None:
    with Device("rk3588", engine="rocket:emulated") as device, device.load(model).context() as context:
        context.run({"x": np.zeros((1, 1, 20, 24), np.float32)})
        times = context.execute(profile=True)
        seen: list[int] = []
        context.execute(between=seen.append)
    assert [entry.layer for entry in times] == seen
    assert seen[0] == 0
    assert len(seen) == 3


def test_what_is_missing_is_said_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "find_node", lambda: None)
    with pytest.raises(DeviceUnavailable, match="no /dev/accel/accelN") as caught:
        RocketEngine()
    assert "modprobe rocket" in caught.value.hint
    with pytest.raises(DeviceUnavailable, match="No such file"):
        RocketEngine(str(tmp_path / "accel0"))

    def denied(path: object) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(kernel, "driver_of", denied)
    with pytest.raises(DeviceUnavailable) as caught:
        RocketEngine("/dev/accel/accel7")
    assert "group render" in caught.value.hint
    for driver in (("ethosu", (1, 0, 0)), ("rocket", (2, 0, 0))):
        monkeypatch.setattr(kernel, "driver_of", lambda path, driver=driver: driver)
        with pytest.raises(DeviceUnavailable, match=f"has the driver {driver[0]}"):
            RocketEngine("/dev/accel/accel7")
    with pytest.raises(OptionError, match="ANYNPU_ROCKET_WITHOUT is 'tables'"):
        RocketEngine("emulated", without=["tables"])
    with pytest.raises(OptionError, match="is 'never'"):
        RocketEngine("emulated", verify="never")
    with pytest.raises(DeviceError, match="there is no engine 'vulkan'"):
        Device("rk3588", engine="vulkan")


PROGRAM = """
import sys
import numpy as np
import anynpu
from anynpu.npu.rocket.kernel import find_node
assert str(find_node()) == "/dev/accel/accel0"
x = np.random.default_rng(5).normal(size=(1, 1, 20, 24)).astype(np.float32)
with anynpu.InferenceSession(sys.argv[1], device="sim") as session:
    expected = session.run(None, {"x": x})[0]
with anynpu.InferenceSession(sys.argv[1], device="rocket") as session:
    assert (session.run(None, {"x": x})[0] == expected).all()
    print(session.device)
"""


def test_the_same_through_ioctls(model: Any, tmp_path: Path) -> None:
    path = model.save(tmp_path / "small.rknn")
    command = [sys.executable, "-m", "anynpu", "exec", "--device", "rocket", "--", sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rocket" in done.stdout


def test_activations_on_rounded_values_are_tables(tmp_path: Path) -> None:
    def stages_of(without: list[str]) -> list[Any]:
        program = compiled(NETS["yolo"](), tmp_path, without=without).programs[0]
        return [layer.op.epilogue for layer in program.layers if isinstance(layer.op, Conv)]

    with_curves, tables = stages_of([]), stages_of(["curves"])
    assert not any(stage.curves for stage in tables)
    assert sum(stage.table is not None for stage in tables) == sum(bool(stage.curves) for stage in with_curves) > 0
