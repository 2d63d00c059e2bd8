"""EPContext models: written by ``anynpu ort wrap``, opened by the provider, equal to our sessions."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest

import anynpu
from anynpu.cli.app import run as run_command
from anynpu.errors import ModelFormatError, OptionError
from anynpu.session.onnxruntime.context_model import wrap_model

from .conftest import SIDE, Models, Provider, edited


def test_the_device_states_chip_engine_and_version(provider: Provider) -> None:
    metadata = provider.device.ep_metadata
    assert metadata["chip"] == "rk3588"
    assert metadata["engine"] == "software"
    assert metadata["version"] == anynpu.__version__
    assert provider.device.ep_vendor == "anynpu"


@pytest.mark.parametrize("embed", [False, True], ids=["path", "embedded"])
@pytest.mark.parametrize("name", ["int8", "float16", "deep"])
def test_results_are_those_of_our_session(
    provider: Provider, models: Models, name: str, embed: bool, tmp_path: Path, image: np.ndarray
) -> None:
    model = shutil.copy(getattr(models, name), tmp_path / "model.rknn")
    wrapped = wrap_model(model, tmp_path / "model_ctx.onnx", embed=embed)
    if embed:
        model.unlink()
        model = getattr(models, name)
    session = provider.session(wrapped)
    with anynpu.InferenceSession(str(model)) as own:
        assert [(each.name, each.shape, each.type) for each in session.get_inputs()] == [
            (each.name, each.shape, each.type) for each in own.get_inputs()
        ]
        (expected,) = own.run(None, {"images": image})
    (got,) = session.run(None, {"images": image})
    np.testing.assert_array_equal(got, expected)
    assert got.any()


def test_pixels_in_and_quantized_values_out(provider: Provider, models: Models, tmp_path: Path) -> None:
    shutil.copy(models.int8, tmp_path / "model.rknn")
    wrapped = wrap_model(tmp_path / "model.rknn", tmp_path / "ctx.onnx", inputs="uint8", outputs="native")
    session = provider.session(wrapped)
    ((shape, kind),) = [(each.shape, each.type) for each in session.get_inputs()]
    assert (shape, kind) == ([1, SIDE, SIDE, 3], "tensor(uint8)")
    pixels = np.random.default_rng(2).integers(0, 2, (1, SIDE, SIDE, 3), np.uint8)
    (got,) = session.run(None, {"images": pixels})
    assert got.dtype == np.int8
    with anynpu.InferenceSession(str(models.int8)) as own:
        (expected,) = own.run(None, {"images": pixels.transpose(0, 3, 1, 2).astype(np.float32)})
    properties = {entry.key: entry.value for entry in onnx.load(wrapped).metadata_props}
    assert properties["anynpu.chip"] == "rk3588"
    scale = anynpu.modelfile.read(models.int8).programs[0].output_specs[0].quantization
    np.testing.assert_array_equal((got.astype(np.float32) - scale.zero_points[0]) * np.float32(scale.scales[0]), expected)


def test_native_inputs_are_the_values_that_the_npu_reads(provider: Provider, models: Models, tmp_path: Path) -> None:
    shutil.copy(models.float16, tmp_path / "model.rknn")
    wrapped = wrap_model(tmp_path / "model.rknn", tmp_path / "ctx.onnx", inputs="native", outputs="native")
    session = provider.session(wrapped)
    assert [each.type for each in (*session.get_inputs(), *session.get_outputs())] == ["tensor(float16)"] * 2
    values = np.random.default_rng(2).random((1, 3, SIDE, SIDE), np.float32).astype(np.float16)
    (got,) = session.run(None, {"images": np.ascontiguousarray(values.transpose(0, 2, 3, 1))})
    with anynpu.InferenceSession(str(models.float16)) as own:
        (expected,) = own.run(None, {"images": values.astype(np.float32)})
    np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_dynamic_shapes(provider: Provider, models: Models, tmp_path: Path) -> None:
    shutil.copy(models.dynamic, tmp_path / "model.rknn")
    session = provider.session(wrap_model(tmp_path / "model.rknn", tmp_path / "ctx.onnx"))
    assert session.get_inputs()[0].shape == [1, 3, "images_2", "images_3"]
    with anynpu.InferenceSession(str(models.dynamic)) as own:
        for side in (16, 24, 16):
            values = np.random.default_rng(side).random((1, 3, side, side), np.float32)
            np.testing.assert_array_equal(session.run(None, {"images": values})[0], own.run(None, {"images": values})[0])
        with pytest.raises(Exception, match="RKNN_ERR_"):
            session.run(None, {"images": np.zeros((1, 3, 20, 20), np.float32)})


def test_several_nodes_in_one_model(provider: Provider, models: Models, tmp_path: Path, image: np.ndarray) -> None:
    """Two compiled models that read the same input."""
    first = wrap_model(models.int8, tmp_path / "first.onnx", embed=True)
    second = wrap_model(models.float16, tmp_path / "second.onnx", embed=True)
    proto, other = onnx.load(first), onnx.load(second)
    other.graph.node[0].output[0] = other.graph.output[0].name = "more"
    proto.graph.node.extend(other.graph.node)
    proto.graph.output.extend(other.graph.output)
    onnx.save(proto, tmp_path / "both.onnx")
    features, more = provider.session(tmp_path / "both.onnx").run(None, {"images": image})
    for model, got in ((models.int8, features), (models.float16, more)):
        with anynpu.InferenceSession(str(model)) as own:
            np.testing.assert_array_equal(got, own.run(None, {"images": image})[0])


def test_a_vendor_file_runs_as_the_model_next_to_it(
    provider: Provider, models: Models, tmp_path: Path, image: np.ndarray
) -> None:
    """The node names a file of the vendor; beside it lies the anynpu model of the same network."""
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    (tmp_path / "yolo.rknn").write_bytes(b"RKNN" + bytes(4) + (6).to_bytes(8, "little") + bytes(64))
    shutil.copy(models.int8, tmp_path / "yolo.anynpu")
    edited(wrapped, wrapped, ep_cache_context="yolo.rknn", embed_mode=0)
    (got,) = provider.session(wrapped).run(None, {"images": image})
    with anynpu.InferenceSession(str(models.int8)) as own:
        np.testing.assert_array_equal(got, own.run(None, {"images": image})[0])


@pytest.mark.parametrize(
    ("attributes", "message", "hint"),
    [
        ({"ep_cache_context": "../int8.rknn"}, r"is '\.\./int8\.rknn'", "below the folder of the model"),
        ({"ep_cache_context": "a/../../int8.rknn"}, r"is 'a/\.\./\.\./int8\.rknn'", "below the folder"),
        ({"ep_cache_context": "/etc/passwd"}, "is '/etc/passwd'", "below the folder"),
        ({"ep_cache_context": b"model.rknn\0.."}, "is 'model.rknn'", "below the folder"),
        ({"ep_cache_context": "absent.rknn"}, "absent.rknn cannot be read", "next to the EPContext model"),
        ({"ep_cache_context": None}, "has no ep_cache_context", "anynpu ort wrap"),
        ({"ep_cache_context": b"\0RKNN\xff damaged", "embed_mode": 1}, r"RKNN_ERR_MODEL_INVALID \(-6\)", "damaged"),
        ({"embed_mode": 2}, "embed_mode of the EPContext node is 2", "must be 0"),
        ({"main_context": 0}, "refers to the content of another one", "main_context=1"),
        ({"ep_sdk_version": "99.1"}, "written by anynpu 99.1", "pip install --upgrade"),
    ],
)
def test_a_wrong_node_is_an_error(
    provider: Provider, models: Models, tmp_path: Path, attributes: dict[str, object], message: str, hint: str
) -> None:
    shutil.copy(models.int8, tmp_path / "model.rknn")
    wrapped = wrap_model(tmp_path / "model.rknn", tmp_path / "ctx.onnx")
    text = provider.error(edited(wrapped, tmp_path / "edited.onnx", **attributes))
    import re

    assert re.search(message, text), text
    assert hint in text.partition("hint: ")[2]


def test_an_embedded_model_that_is_cut_off_is_an_error(provider: Provider, models: Models, tmp_path: Path) -> None:
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    content = models.int8.read_bytes()
    for size in (1, 15, 200, len(content) // 2, len(content) - 1):
        assert "rknn_init returned" in provider.error(edited(wrapped, tmp_path / "cut.onnx", ep_cache_context=content[:size]))


def test_another_declared_shape_is_an_error(provider: Provider, models: Models, tmp_path: Path) -> None:
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    proto = onnx.load(wrapped)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 48
    assert "declared as 1x3x48x32, the compiled model has 1x3x32x32" in provider.error(proto.SerializeToString())
    proto = onnx.load(wrapped)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    assert "declared as int64; the compiled model gives int8 or float32" in provider.error(proto.SerializeToString())
    proto = onnx.load(wrapped)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("second", 1, [1]))
    proto.graph.node[0].input.append("second")
    assert "has 2 inputs, the compiled model 1" in provider.error(proto.SerializeToString())


def test_a_model_in_memory_needs_the_folder_of_its_file(
    provider: Provider, models: Models, tmp_path: Path, image: np.ndarray
) -> None:
    shutil.copy(models.int8, tmp_path / "model.rknn")
    wrapped = wrap_model(tmp_path / "model.rknn", tmp_path / "ctx.onnx")
    assert "loaded from memory and refers to the file model.rknn" in provider.error(wrapped.read_bytes())
    session = provider.session(wrapped.read_bytes(), {"ep.context_file_path": str(wrapped)})
    assert session.run(None, {"images": image})[0].any()


def test_the_node_of_another_provider_is_not_claimed(provider: Provider, models: Models, tmp_path: Path) -> None:
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    edited(wrapped, wrapped, source="OtherExecutionProvider")
    with pytest.raises(Exception, match=r"CPU EP|OtherExecutionProvider"):
        provider.session(wrapped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devcie": "sim"}, "there is no option 'devcie'"),
        ({"device": "gpu"}, "device is 'gpu'"),
        ({"device": "npu"}, "the vendor's librknnrt.so cannot be loaded"),
        ({"device": "sim:rk3566"}, "was compiled for rk3588, this is rk3566"),
        ({"contexts": "0"}, "option contexts is '0'"),
        ({"contexts": "2x"}, "option contexts is '2x'"),
        ({"core_mask": "9"}, "core_mask is '9'"),
        ({"priority": "top"}, "priority is 'top'"),
        ({"realtime": "fast"}, "realtime is 'fast'"),
        ({"library": "/absent/librknnrt.so"}, "library /absent/librknnrt.so cannot be loaded"),
        ({"library": "libm.so.6"}, "libm.so.6 has no rknn_init"),
    ],
)
def test_a_wrong_option_is_an_error(
    provider: Provider, models: Models, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """Also without the entry that forbids the CPU: Python's module continues on the CPU provider after some errors, not after these."""
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    assert message in provider.error(wrapped, **options)
    plain = network_of(models.int8)
    settings = provider.ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_provider_for_devices([provider.device], options)
    if "library" not in options and options.get("device") not in ("npu", "sim:rk3566"):
        with pytest.raises(Exception, match="anynpu: "):
            provider.ort.InferenceSession(plain, settings)


def network_of(model: Path) -> str:
    """The ONNX model that a compiled one was made of."""
    return str(model.with_suffix(".onnx"))


def test_core_masks_and_priorities_are_accepted(provider: Provider, models: Models, tmp_path: Path, image: np.ndarray) -> None:
    wrapped = wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True)
    expected = provider.session(wrapped).run(None, {"images": image})[0]
    session = provider.session(wrapped, core_mask="1", priority="low", contexts="2", device="sim:rk3588")
    for mask in ("0", "0_1_2", "auto"):
        session.set_ep_dynamic_options({"core_mask": mask})
        np.testing.assert_array_equal(session.run(None, {"images": image})[0], expected)
    for options in ({"core_mask": "4"}, {"priority": "high"}):
        with pytest.raises(Exception, match="anynpu: "):
            session.set_ep_dynamic_options(options)


def test_threads_share_a_session(provider: Provider, models: Models, tmp_path: Path) -> None:
    """More threads than contexts, while other sessions are created and dropped."""
    wrapped = wrap_model(models.deep, tmp_path / "ctx.onnx", embed=True)
    session = provider.session(wrapped, contexts="2")
    rng = np.random.default_rng(4)
    feeds = [rng.random((1, 3, SIDE, SIDE), np.float32) for _ in range(4)]
    expected = [session.run(None, {"images": feed})[0] for feed in feeds]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            if not np.array_equal(session.run(None, {"images": feeds[number]})[0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        provider.session(wrapped)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_run_async_and_terminate(provider: Provider, models: Models, tmp_path: Path, image: np.ndarray) -> None:
    session = provider.session(wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True))
    expected = session.run(None, {"images": image})[0]
    done = threading.Event()
    results: list[tuple[object, str]] = []

    def finished(values: object, _data: object, error: str) -> None:
        results.append((values, error))
        done.set()

    session.run_async(None, {"images": image}, finished, None)
    assert done.wait(600)
    ((values, error),) = results
    assert error == ""
    np.testing.assert_array_equal(values[0], expected)  # type: ignore[index]
    options = provider.ort.RunOptions()
    options.terminate = True
    with pytest.raises(Exception, match="terminate flag"):
        session.run(None, {"images": image}, options)
    options.terminate = False
    np.testing.assert_array_equal(session.run(None, {"images": image}, options)[0], expected)


def test_io_binding_writes_into_the_callers_memory(provider: Provider, models: Models, tmp_path: Path, image: np.ndarray) -> None:
    session = provider.session(wrap_model(models.int8, tmp_path / "ctx.onnx", embed=True))
    expected = session.run(None, {"images": image})[0]
    output = np.zeros_like(expected)
    binding = session.io_binding()
    binding.bind_cpu_input("images", image)
    binding.bind_output("features", "cpu", 0, np.float32, output.shape, output.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(output, expected)


def test_what_cannot_be_wrapped(models: Models, tmp_path: Path) -> None:
    (tmp_path / "text.rknn").write_text("no model")
    with pytest.raises(ModelFormatError, match="not a compiled model"):
        wrap_model(tmp_path / "text.rknn", tmp_path / "ctx.onnx")
    with pytest.raises(OptionError, match="is not below") as raised:
        wrap_model(models.int8, tmp_path / "ctx.onnx")
    assert "--embed" in str(raised.value)
    assert not (tmp_path / "ctx.onnx").exists()


def test_the_command(models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str], provider: Provider) -> None:
    target = tmp_path / "ctx.onnx"
    with pytest.raises(SystemExit) as ended:
        run_command(["ort", "wrap", str(models.int8), "-o", str(target), "--embed", "--inputs", "uint8"])
    assert not ended.value.code
    assert "with int8.rknn" in capsys.readouterr().out
    assert provider.session(target).get_inputs()[0].type == "tensor(uint8)"
    with pytest.raises(SystemExit):
        run_command(["lib", "--ep"])
    assert capsys.readouterr().out.strip().endswith("libanynpu_ep.so")
