"""VIPLite for Python programs: networks, buffers, the choice of a library."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tools import need
from vendor_files import nb_file

import anynpu
from anynpu import chips, errors
from anynpu.vip import Network, SoftwareLibrary, VendorLibrary, VipLibrary, open_library
from anynpu.vip.generations import check_target, model_target
from anynpu.vip.interface import functions

from .support import CHIPS, SHAPE, Calls, picture, small_file, small_model, small_onnx


@pytest.fixture
def library(open_calls: Callable[..., Calls]) -> SoftwareLibrary:
    return open_calls(init=False).library


@pytest.fixture
def network(library: SoftwareLibrary) -> Any:
    with Network(small_file(), device=library) as network:
        yield network


def test_numbers_in_and_out(library: SoftwareLibrary) -> None:
    session = onnxruntime.InferenceSession(small_onnx().SerializeToString())
    expected = session.run(None, {"x": picture()})
    for dtype, tolerance in (("w16a16", 0.02), ("fp16", 0.01), ("bf16", 0.08), ("w8a8", 0.6)):
        with Network(small_model("t527", dtype), device=library) as network:
            scores, features = network.run({"x": picture()})
        assert (scores.dtype, scores.shape, features.shape) == (np.float32, (1, 5), (1, 8, 8, 6))
        np.testing.assert_allclose(scores, expected[0], atol=tolerance, rtol=0.02)


def test_network_properties(network: Network) -> None:
    (given,) = network.inputs
    assert (given.name, given.shape, given.dims) == ("x", SHAPE, SHAPE[::-1])
    assert (given.dtype, given.nbytes, given.elements) == (np.uint8, 576, 576)
    assert [info.name for info in network.outputs] == ["scores", "features"]
    assert network.name == small_model().name
    assert network.layers == len(small_model().programs[0].layers)
    assert network.memory_pool_size == small_model().programs[0].memory.size
    assert network.hardware.customer_id == 0x10000016
    assert network.profile.microseconds == 0
    network.run([picture()])
    assert network.profile.cycles > network.profile.microseconds > 0
    assert "t527" in repr(network)


def test_codes_are_taken_as_they_are(network: Network) -> None:
    codes = network.inputs[0].encode(picture())
    assert codes.dtype == np.uint8
    expected = network.run([picture()], decode=False)
    found = network.run([codes], decode=False)
    assert [array.dtype for array in found] == [np.uint8, np.uint8]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_arrays_that_do_not_fit(network: Network) -> None:
    with pytest.raises(errors.ShapeError, match=r"\[1, 3, 16, 12\]"):
        network.run([np.zeros((1, 16, 12, 3), np.float32)])
    with pytest.raises(errors.ShapeError):
        network.run([np.zeros(5, np.float32)])
    with pytest.raises(errors.TensorTypeError, match="int16"):
        network.run([np.zeros(SHAPE, np.int16)])
    with pytest.raises(errors.TensorNameError):
        network.run({"y": picture()})
    with pytest.raises(errors.TensorNameError):
        network.run([picture(), picture()])
    with pytest.raises(errors.TensorNameError):
        network.bind_output("nothing")


def test_trigger_and_wait(network: Network) -> None:
    expected = network.run([picture(1)])
    network.run([picture(2)])
    network.set_inputs([picture(1)])
    network.trigger()
    network.wait()
    for found, due in zip(network.get_outputs(), expected, strict=True):
        np.testing.assert_array_equal(found, due)
    with pytest.raises(errors.CallFailed, match="VIP_ERROR_FAILURE"):
        network.wait()


def test_memory_of_the_caller(network: Network) -> None:
    """An image in an array of his, one behind a descriptor, scores in another network's buffer."""
    (given,), (scores, _) = network.inputs, network.outputs
    codes = given.encode(picture())
    expected = network.run([codes])[0]
    room = np.zeros(576 + 64, np.uint8)
    own = room[-room.ctypes.data % 64 :][:576]
    with network.buffer_from_array(given, own) as buffer, network.buffer(scores, cached=True) as result:
        network.bind_input(0, buffer)
        network.bind_output("scores", result)
        own[:] = codes.reshape(-1)
        network.execute()
        np.testing.assert_array_equal(scores.decode(result.array()), expected)
        assert buffer.address == own.ctypes.data
    fd = os.memfd_create("picture")
    os.ftruncate(fd, 576)
    with mmap.mmap(fd, 576) as mapped, network.buffer_from_fd(given, fd) as buffer:
        os.close(fd)
        mapped[:] = codes.tobytes()
        network.bind_input("x", buffer)
        network.bind_output(0)
        network.execute()
        np.testing.assert_array_equal(network.get_outputs()[0], expected)
    with pytest.raises(errors.ParameterError, match="was destroyed"):
        network.execute()
    with pytest.raises(errors.ParameterError, match="64"):
        network.buffer_from_array(given, room[1:577])
    with pytest.raises(errors.ParameterError, match="contiguous"):
        network.buffer_from_array(given, room[::2])


def test_pool_and_coefficients_of_the_caller(library: SoftwareLibrary) -> None:
    with Network(small_file(), device=library) as first:
        expected = first.run([picture()])
    with Network(small_file(), device=library, prepare=False) as network:
        from dataclasses import replace

        info = replace(network.outputs[0], dims=(1 << 16,))
        network.set_memory_pool(network.buffer(info))
        network.set_coefficient_memory(network.buffer(info))
        network.prepare()
        usage = library.device_for(chips.get("t527")).memory_usage()
        assert (usage.weights, usage.internal) == (0, 0)
        for found, due in zip(network.run([picture()]), expected, strict=True):
            np.testing.assert_array_equal(found, due)


def test_duplicates_share_weights_and_settings(network: Network) -> None:
    expected = network.run([picture()])
    library = network.library
    assert isinstance(library, SoftwareLibrary)
    weights = library.device_for(chips.get("t527")).memory_usage().weights
    with network.duplicate(priority=7) as twin, network.duplicate(weak=True) as weak:
        for other in (twin, weak):
            for found, due in zip(other.run([picture()]), expected, strict=True):
                np.testing.assert_array_equal(found, due)
        assert library.device_for(chips.get("t527")).memory_usage().weights == weights
    with pytest.raises(errors.ParameterError, match="255"):
        network.set_priority(256)


def test_closing(library: SoftwareLibrary) -> None:
    network = Network(small_file(), device=library)
    buffer = network.bind_input(0)
    network.close()
    network.close()
    assert network.closed
    assert buffer.closed
    assert not library.initialised
    for use in (network.execute, lambda: network.profile, lambda: buffer.size):
        with pytest.raises(errors.DeviceClosed):
            use()
    assert "closed" in repr(network) + repr(buffer)


def test_a_network_that_cannot_be_made_leaves_nothing(library: SoftwareLibrary) -> None:
    with pytest.raises(errors.ModelError):
        Network(b"no model", device=library)
    with pytest.raises(errors.ParameterError):
        Network(b"", device=library)
    with pytest.raises(errors.UnsupportedCall):
        Network(small_file(), device=library, core=0)  # from 2.0 on
    assert not library.initialised


def test_a_picture_with_a_node_for_it_inside(library: SoftwareLibrary) -> None:
    """Bytes in the order height, width, channel; mean and std are applied inside."""
    rng = np.random.default_rng(5)
    samples = [rng.integers(0, 256, (16, 12, 3), np.uint8) for _ in range(4)]
    options: dict[str, Any] = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 58.0, 57.0)}
    dataset = [{"x": sample.transpose(2, 0, 1)[None]} for sample in samples]
    with_node = anynpu.compile(small_onnx(), target="t527", dataset=dataset, preprocess="rgb", **options)
    without = anynpu.compile(small_onnx(), target="t527", dataset=dataset, **options)
    with Network(with_node, device=library) as network:
        (given,) = network.inputs
        assert (given.dims, given.shape, given.quantization) == ((3, 12, 16, 1), (1, 16, 12, 3), None)
        found = network.run([samples[0][None]])
    with Network(without, device=library) as network:
        assert network.inputs[0].dims == (12, 16, 3, 1)
        normalised = (samples[0].astype(np.float32) - options["mean"]) / options["std"]
        expected = network.run([normalised.transpose(2, 0, 1)[None].astype(np.float32)])
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() <= 1.01 * max(np.abs(other).max() / 255, 0.1)


def test_libraries_are_shared_by_device() -> None:
    assert open_library("sim:t527") is open_library("sim:t527")
    assert open_library("sim:t527") is not open_library("sim:a733")
    library = SoftwareLibrary("t527")
    assert open_library(library) is library
    with pytest.raises(errors.DeviceUnavailable, match="no VIPLite NPU"):
        open_library("rknn")
    with pytest.raises(errors.DeviceUnavailable, match="rk3588"):
        open_library("sim:rk3588")
    assert open_library("sim").description == "software NPU, the chip of each model"


FOREIGN = """
#include <stdint.h>
uint32_t vip_get_version(void) {{ return {version}; }}
int vip_init(void) {{ return {init}; }}
"""


def build(folder: Path, version: int, *, name: str = "libNBGlinker.so", init: int = 0, source: str = FOREIGN) -> Path:
    path = folder / name
    subprocess.run(
        [need("cc"), "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=source.format(version=version, init=init),
        text=True,
        check=True,
        timeout=300,
    )
    return path


@pytest.mark.parametrize(
    ("version", "name"), [(0x00010800, "V85x"), (0x00010D00, "1.13"), (0x00020003, "2.0"), (0x00020100, "2.0")]
)
def test_a_vendors_library_says_its_generation(tmp_path: Path, version: int, name: str) -> None:
    library: VipLibrary = VendorLibrary(build(tmp_path, version, init=-5))
    assert library.generation.name == name
    assert library.vip_init(0) == -5
    assert library.description.startswith("libNBGlinker ")
    with pytest.raises(errors.UnsupportedCall, match="does not have vip_run_network"):
        library.vip_run_network(None)
    assert {name for name in functions() if not callable(getattr(library, name))} == set()
    with pytest.raises(errors.DeviceMemoryError, match="VIP_ERROR_OUT_OF_RESOURCE"):
        Network(small_file(), device=library)


BOARD = """
#include <stdint.h>
uint32_t vip_get_version(void) {{ return {version} + {init}; }}
int vip_init(void) {{ return 0; }}
int vip_destroy(void) {{ return 0; }}
int vip_query_hardware(int property, uint32_t size, uint32_t *value)
{{ (void)size; *value = property == 0 ? 0x10000016 : 1; return 0; }}
int vip_create_network(const void *data, uint32_t size, int type, void **network)
{{ (void)data; (void)size; (void)type; *network = 0; return -7; }}
"""
"""A board with a T527 that takes no model."""


def test_a_board_is_not_asked_to_run_what_it_cannot(tmp_path: Path) -> None:
    library = VendorLibrary(build(tmp_path, 0x00010D00, source=BOARD))
    path = tmp_path / "model.nb"
    path.write_bytes(nb_file(customer=0x1000003B))
    for model in (path, path.read_bytes()):
        with pytest.raises(errors.ModelError, match=r"binary target=0x1000003b .*a733.* actual target=0x10000016 .*t527"):
            Network(model, device=library)
    with pytest.raises(errors.ModelError, match="compiled by anynpu, for the software NPU"):
        Network(small_file(), device=library)
    path.write_bytes(nb_file(customer=0x10000016))
    with pytest.raises(errors.ModelError, match="VIP_ERROR_INVALID_NETWORK"):
        Network(path, device=library)  # right so far; what it states then is the driver's


def test_targets_of_files() -> None:
    assert model_target(small_file("v853")) == 0xEE
    assert model_target(nb_file(customer=0x15)) == 0x15
    assert model_target(b"no model") is None
    with pytest.raises(errors.ModelError, match="not an NPU of the catalogue"):
        check_target(nb_file(customer=0x15), 0xEE)
    check_target(small_file("t527"), 0x10000016)


def test_later_generations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.DeviceUnavailable, match=r"VIPLite 2\.2, whose structs differ"):
        VendorLibrary(build(tmp_path, 0x00020200))


def test_libraries_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(errors.DeviceUnavailable, match="cannot be loaded"):
        VendorLibrary(tmp_path / "missing.so")
    helper = build(tmp_path, 0, name="libVIPhal.so", source="int viphal_open(void) {{ return {version} + {init}; }}")
    with pytest.raises(errors.DeviceUnavailable, match="no vip_get_version"):
        VendorLibrary(helper)
    # in a process of its own: a library of this name that another test has loaded would be found
    program = "from anynpu.vip import VendorLibrary; VendorLibrary.find(reason='/dev/vipcore exists')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "DeviceUnavailable: there is an NPU (/dev/vipcore exists), but no " in done.stderr


def test_a_helper_beside_the_library_is_loaded_first(tmp_path: Path) -> None:
    """As on a board whose libraries are in a folder that the loader does not know."""
    build(tmp_path, 0, name="libVIPhal.so", source="int viphal_number(void) {{ return 0x00020003 + {version} + {init}; }}")
    source = "int viphal_number(void); unsigned vip_get_version(void) {{ return viphal_number() + {version} + {init}; }}"
    assert VendorLibrary(build(tmp_path, 0, source=source)).generation.name == "2.0"


@pytest.mark.parametrize("chip", CHIPS.values())
def test_a_chip_of_each_generation(open_calls: Callable[..., Calls], chip: str) -> None:
    library = open_calls(chip, init=False).library
    with Network(small_file(chip), device=library) as network:
        scores, _ = network.run([picture()])
    assert np.isfinite(scores).all()
    assert scores.any()
