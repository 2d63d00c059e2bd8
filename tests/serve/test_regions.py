"""Tensors in memory that clients share: right ones, wrong ones, and regions that change under the server."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shared
from session.fake import FakeDevice
from tritonclient.utils import InferenceServerException

from anynpu.errors import OptionError
from anynpu.serve import ServeOptions, Server
from anynpu.serve.regions import FOLDER, MAX_REGIONS

from .conftest import TYPES, EchoDevice, Serve, exchange, infer_body, samples
from .test_conformance import client_of, every_client, tensors_of

PREFIX = f"anynpu-test-{os.getpid()}-"
INFER = "/v2/models/net/infer"

Make = Callable[[str, int], Path]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes shared memory objects, and removes them."""
    paths: list[Path] = []

    def create(name: str, size: int) -> Path:
        path = FOLDER / f"{PREFIX}{name}"
        path.write_bytes(bytes(size))
        paths.append(path)
        return path

    yield create
    for path in paths:
        path.unlink(missing_ok=True)


def register(server: Server, name: str, key: Any, size: Any, offset: Any = 0) -> tuple[int, str]:
    body = json.dumps({"key": key, "byte_size": size, "offset": offset}).encode()
    status, _, answer = exchange(server, "POST", f"/v2/systemsharedmemory/region/{name}/register", body)
    return status, answer.decode()


def place(region: str, size: int = 16, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": region, "shared_memory_byte_size": size, "shared_memory_offset": offset}


def infer(server: Server, source: dict[str, Any], target: dict[str, Any] | None = None) -> tuple[int, Any]:
    """An inference of the plain fake device: status and document of its answer."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": source}
    document = {"inputs": [tensor], "outputs": [{"name": "y", "parameters": target or {}}]}
    status, _, answer = exchange(server, "POST", INFER, json.dumps(document).encode())
    return status, json.loads(answer)


@every_client
def test_all_types_to_and_from_shared_memory(serve: Serve, make: Make, kind: str) -> None:
    """All inputs but one and all outputs but one lie in two regions, behind each other."""
    module, arrays = tensors_of(kind), samples()
    expected = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    sources = make("in", 4096), make("out", 4096)
    with client_of(kind, serve(EchoDevice(), shared_memory=PREFIX)) as client:
        for name, path in zip(("in", "out"), sources, strict=True):
            client.register_system_shared_memory(name, f"/{path.name}", 4000, offset=64)
        inputs, outputs, begins = [], [], {}
        memory = [np.memmap(path, np.uint8, "r+") for path in sources]
        at = 0
        for name, array in arrays.items():
            tensor, output = module.InferInput(f"in_{name}", [2, 3], name), module.InferRequestedOutput(f"out_{name}")
            if name == "INT32":
                tensor.set_data_from_numpy(array)
            else:
                memory[0][64 + at : 64 + at + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
                tensor.set_shared_memory("in", array.nbytes, at)
                output.set_shared_memory("out", expected[name].nbytes, at)
                begins[name] = 64 + at
            inputs.append(tensor)
            outputs.append(output)
            at += 64
        result = client.infer("net", inputs, outputs=outputs)
        for name in TYPES:
            if name == "INT32":
                found = result.as_numpy("out_INT32")
            else:
                piece = memory[1][begins[name] : begins[name] + expected[name].nbytes]
                found = np.frombuffer(piece.tobytes(), expected[name].dtype).reshape(2, 3)
            assert np.array_equal(found, expected[name]), name
        as_json = {} if "http" in kind else {"as_json": True}
        status = client.get_system_shared_memory_status(**as_json)
        regions = status if "http" in kind else list(status["regions"].values())
        assert sorted((one["name"], int(one["offset"]), int(one["byte_size"])) for one in regions) == [
            ("in", 64, 4000),
            ("out", 64, 4000),
        ]
        client.unregister_system_shared_memory("in")
        with pytest.raises(InferenceServerException, match="there is no region 'in'"):
            client.infer("net", inputs, outputs=outputs)
        client.unregister_system_shared_memory()
        assert not (
            client.get_system_shared_memory_status() if "http" in kind else client.get_system_shared_memory_status().regions
        )
        assert "system_shared_memory" in str(client.get_server_metadata(**as_json))


def test_regions_of_tritonclient(serve: Serve) -> None:
    handle = shared.create_shared_memory_region("frames", f"{PREFIX}triton", 32)
    try:
        server = serve(FakeDevice(), shared_memory=PREFIX)
        assert register(server, "frames", f"{PREFIX}triton", 32)[0] == 200
        shared.set_shared_memory_region(handle, [np.array([1, 2, 3, 4], np.float32)])
        status, answer = infer(server, place("frames"), place("frames", 16, 16))
        assert status == 200
        assert answer["outputs"][0]["parameters"] == place("frames", 16, 16)
        assert shared.get_contents_as_numpy(handle, np.float32, [4], 16).tolist() == [2, 4, 6, 8]
    finally:
        shared.destroy_shared_memory_region(handle)


def test_nothing_is_shared_unless_it_is_allowed(serve: Serve, make: Make, tmp_path: Path) -> None:
    path = make("x", 64)
    server = serve(FakeDevice())
    assert register(server, "x", path.name, 64)[0] == 403
    assert infer(server, place("x"))[0] == 403
    for path_of in ("status", "region/x/status"):
        assert exchange(server, "GET", f"/v2/systemsharedmemory/{path_of}")[0] == 403
    server = serve(FakeDevice(), shared_memory=f"{PREFIX}y")
    assert register(server, "x", path.name, 64)[0] == 403
    server = serve(FakeDevice(), shared_memory=PREFIX)
    other = tmp_path / "secret"
    other.write_bytes(bytes(64))
    link, pipe = FOLDER / f"{PREFIX}link", FOLDER / f"{PREFIX}pipe"
    link.symlink_to(other)
    os.mkfifo(pipe)
    try:
        for key in (link.name, pipe.name):
            assert register(server, "x", key, 1)[0] == 400, key
    finally:
        link.unlink()
        pipe.unlink()
    for key in (f"../{path.name}", f"/{PREFIX}/../x", str(path), f"{PREFIX}\0", f"{PREFIX}/x", "", "/", None, 3, "x" * 5000):
        assert register(server, "x", key, 64)[0] in (400, 403), key
    assert json.loads(exchange(server, "GET", "/v2/systemsharedmemory/status")[2]) == []
    for prefix in ("", "a/b"):
        with pytest.raises(OptionError, match="no beginning"):
            ServeOptions(shared_memory=prefix)


def test_sizes_are_checked(serve: Serve, make: Make) -> None:
    key = make("x", 64).name
    server = serve(FakeDevice(), shared_memory=PREFIX, max_request_bytes=1000)
    for size, offset in (
        (65, 0),
        (64, 1),
        (0, 0),
        (-1, 0),
        (2**63, 0),
        (2**62, 2**62),
        (64, -1),
        (1, 2**70),
        (1.5, 0),
        (True, 0),
        (None, 0),
    ):
        assert register(server, "x", key, size, offset)[0] == 400, (size, offset)
    assert register(server, "nothing", f"{PREFIX}nothing", 64)[0] == 400
    assert register(server, "x", key, 32, 32)[0] == 200
    assert register(server, "x", key, 32)[0] == 400  # twice
    for source in (
        *(place("x", 17), place("x", 16, 17), place("x", 16, 2**62), place("x", 2**63), place("x", 15), place("y")),
        *({**place("x"), "shared_memory_byte_size": value} for value in (None, "16", -1, 1.0, True)),
        *({**place("x"), "shared_memory_region": value} for value in (None, 3, [], "")),
    ):
        assert infer(server, source)[0] == 400, source
    for target in (place("x", 15), place("x", 16, 17), place("y")):
        assert infer(server, place("x"), target)[0] == 400, target
    assert infer(server, place("x"), place("x"))[0] == 200
    large = make("large", 2000).name
    assert register(server, "large", large, 2000)[0] == 200
    assert infer(server, place("large", 2000))[0] == 413


def test_a_region_that_shrinks_or_vanishes_hurts_nobody(serve: Serve, make: Make) -> None:
    server = serve(FakeDevice(), shared_memory=PREFIX)
    path = make("x", 2**20)
    assert register(server, "x", path.name, 2**20)[0] == 200
    for size in (2**19, 20, 8, 0):
        os.truncate(path, size)
        status, answer = infer(server, place("x", 16, 2**19))
        assert (status, "shorter" in answer["error"]) == (400, True)
        status, answer = infer(server, {}, None) if size == 20 else infer(server, place("x", 16, 2**20 - 16), place("x"))
        assert status == 400
    assert exchange(server, "POST", INFER, infer_body())[0] == 200
    document = {**json.loads(infer_body()), "outputs": [{"name": "y", "parameters": place("x")}]}
    status, _, answer = exchange(server, "POST", INFER, json.dumps(document).encode())
    assert (status, "shorter" in json.loads(answer)["error"]) == (400, True)
    assert path.stat().st_size == 0  # it was not made longer
    os.truncate(path, 2**20)
    path.unlink()  # it lives on until it is unregistered
    assert infer(server, place("x"), place("x"))[0] == 200


def test_a_region_that_is_unregistered_during_an_inference(serve: Serve, make: Make) -> None:
    from concurrent.futures import ThreadPoolExecutor

    device = FakeDevice(gated=True)
    server = serve(device, shared_memory=PREFIX, max_wait_ms=1e6)
    first, second = make("first", 64), make("second", 64)
    assert register(server, "x", first.name, 64)[0] == 200
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(infer, server, place("x"), place("x", 16, 16))
        device.wait_entered()
        assert exchange(server, "POST", "/v2/systemsharedmemory/unregister")[0] == 200
        assert device.gate is not None
        device.gate.set()
        status, answer = asked.result(120)
    assert (status, "no region" in answer["error"]) == (400, True)
    assert first.read_bytes() == second.read_bytes() == bytes(64)


def descriptors(file: Path) -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += entry.readlink() == file
        except FileNotFoundError:
            pass
    return found


def test_files_are_closed(serve: Serve, make: Make) -> None:
    server = serve(FakeDevice(), shared_memory=PREFIX)
    file = make("closed", 64)
    key = file.name
    for number in range(MAX_REGIONS):
        assert register(server, f"r{number}", key, 64)[0] == 200
    status, answer = register(server, "more", key, 64)
    assert (status, f"{MAX_REGIONS} regions" in answer) == (400, True)
    assert descriptors(file) == MAX_REGIONS
    exchange(server, "POST", "/v2/systemsharedmemory/region/r7/unregister")
    exchange(server, "POST", "/v2/systemsharedmemory/region/r7/unregister")
    assert descriptors(file) == MAX_REGIONS - 1
    server.stop(30)
    assert descriptors(file) == 0
    assert stat.S_ISREG(file.stat().st_mode)


def test_any_parameters(serve: Serve, make: Make) -> None:
    server = serve(FakeDevice(), shared_memory=PREFIX, max_wait_ms=1e6)
    key = make("x", 64).name
    register(server, "x", key, 64)
    rng = random.Random(3)
    values = [0, 1, 15, 16, 17, 48, 64, 65, -1, 2**31, 2**63 - 1, 2**63, 2**80, 1.5, None, True, "16", [], {}, "x"]
    seen = set()
    for _ in range(600):
        wrong = {field: rng.choice(values) for field in rng.sample(sorted(place("x")), rng.randint(0, 2))}
        other = {field: rng.choice(values) for field in rng.sample(sorted(place("x")), rng.randint(0, 1))}
        status, answer = infer(server, {**place("x"), **wrong}, {**place("x", 16, 16), **other})
        seen.add(status)
        assert status in (200, 400, 413), (wrong, other, answer)
    assert seen >= {200, 400}
    assert infer(server, place("x"), place("x"))[0] == 200
