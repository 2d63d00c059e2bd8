"""Sessions on a server behave as sessions on a device."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from ports import free_ports
from session.fake import IMAGE, FakeDevice, feed
from waiting import PATIENCE, wait_until

from anynpu.errors import (
    DeviceTimeout,
    DeviceUnavailable,
    FeedShapeError,
    JobCancelled,
    OptionError,
    OverloadedError,
    UnknownModelError,
)
from anynpu.serve import ServeOptions, Server
from anynpu.session import InferenceSession, make_provider_options
from anynpu.session.protocol.messages import ModelDetails
from anynpu.session.remote import RemoteBackend, parse_address
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, TensorSpec

from .conftest import EchoDevice, Serve, samples
from .test_load import one_model


def test_addresses() -> None:
    assert parse_address("grpcs://[::1]:8001/a%20b/3") == ("[::1]:8001", "a b", "3", True)
    for address in (
        "grpc://host/net",
        "grpc://host:8001",
        "grpc://host:8001/",
        "grpc://:8001/net",
        "grpc://h:99999/net",
        "grpc://h:1/a/b/c",
    ):
        with pytest.raises(OptionError, match="is no address of a model"):
            parse_address(address)


def test_details_travel_unchanged() -> None:
    details = ModelDetails(
        "software NPU",
        "P",
        "rk3588",
        3,
        "nhwc",
        (IMAGE, TensorSpec("v", (2,), DType.INT16, quantization=DynamicFixedPoint(4))),
        (TensorSpec("y", (1, 2), DType.INT8, Layout.PLAIN, Affine((0.5, 0.25), (0, 3), (1, 1))),),
        (((1, 3, 4, 5), (2,)),),
        {"key": "text"},
    )
    assert ModelDetails.from_text(details.to_text()) == details


def test_the_whole_interface(serve: Serve) -> None:
    device = FakeDevice(3, run_time=0.002, metadata={"kind": "test"})
    server = serve(device, max_wait_ms=1e6)
    with InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        assert session.device == f"fake NPU, 3 cores at {server.grpc_address}"
        assert (session.cores, session.input_names, session.output_names) == (3, ["x"], ["y"])
        assert session.get_inputs()[0].shape == [1, 4]
        assert session.get_modelmeta().custom_metadata_map == {"kind": "test"}
        assert session.run(["y"], {"x": feed(2)})[0].tolist() == [[4.0] * 4]
        (array,) = session.run(None, feed(1))
        array += 1  # results are the caller's own
        assert session.submit(None, feed(3)).result(120)[0][0, 0] == 6
        got: list[float] = []
        for number in range(20):
            session.run_async(None, feed(number), lambda results, data, error: got.append(results[0][0, 0]))
        for number, (result,) in enumerate(session.stream(feed(number) for number in range(30))):
            assert result[0, 0] == 2 * number
        assert asyncio.run(_gather(session)) == [2.0 * number for number in range(10)]
        binding = session.io_binding()
        binding.bind_cpu_input("x", feed(5))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0][0, 0] == 10
        assert session.statistics.requests > 60
    assert got == [2.0 * number for number in range(20)]


async def _gather(session: InferenceSession) -> list[float]:
    results = await asyncio.gather(*(session.arun(None, feed(number)) for number in range(10)))
    return [float(result[0][0, 0]) for result in results]


def test_all_types(serve: Serve) -> None:
    server = serve(EchoDevice())
    arrays = samples()
    with InferenceSession(f"grpc://{server.grpc_address}/net/1") as session:
        results = session.run(None, {f"in_{name}": array for name, array in arrays.items()})
        for (name, array), result in zip(arrays.items(), results, strict=True):
            assert np.array_equal(result, array), name


@pytest.mark.parametrize("server_layout", ["nchw", "nhwc", "any"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_images_in_either_layout(serve: Serve, server_layout: str, layout: str) -> None:
    device = FakeDevice(inputs=(IMAGE,), outputs=(TensorSpec("y", (1, 3, 4, 5), DType.FLOAT32),))
    server = serve(device, layout=server_layout)
    image = np.arange(60, dtype=np.uint8).reshape(1, 3, 4, 5)
    given = image if layout == "nchw" else image.transpose(0, 2, 3, 1)
    options = make_provider_options(layout=layout)
    with InferenceSession(f"grpc://{server.grpc_address}/net", provider_options=options) as session:
        assert session.get_inputs()[0].quantization == IMAGE.quantization
        assert np.array_equal(session.run(None, given)[0], image * 2.0)
        assert device.writes[-1][0][0].dtype == np.uint8


def test_errors(serve: Serve) -> None:
    device = FakeDevice(1, run_time=600.0, stoppable=True)  # nobody below waits for its answer
    server = serve(device)
    with pytest.raises(UnknownModelError, match="no model 'other'"):
        InferenceSession(f"grpc://{server.grpc_address}/other")
    with pytest.raises(OptionError, match="has its own device"):
        InferenceSession(f"grpc://{server.grpc_address}/net", device="sim:rk3588")
    with InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        with pytest.raises(FeedShapeError, match=r"takes \[1, 4\]"):
            session.run(None, np.zeros((1, 5), np.float32))
        with pytest.raises(OptionError, match="chooses its cores itself"):
            session.backend.open_lane(2)
        job = session.submit(None, feed())
        wait_until(lambda: device.core_runs, "the run begins")
        assert job.cancel()
        with pytest.raises(JobCancelled):
            job.result(PATIENCE)
        with pytest.raises(DeviceTimeout):
            session.run(None, feed(), timeout=0.2)


def test_codes_of_a_quantised_output_cannot_be_had(serve: Serve) -> None:
    device = FakeDevice(outputs=(TensorSpec("y", (1, 4), DType.INT8, quantization=Affine.per_tensor(0.5, 0)),))
    server = serve(device)
    options = make_provider_options(output_type="model")
    with pytest.raises(OptionError, match="comes from the server as values"):
        InferenceSession(f"grpc://{server.grpc_address}/net", provider_options=options)


def test_a_server_that_sheds_is_asked_again(serve: Serve) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_queue=1, max_wait_ms=1e6)
    assert device.gate is not None
    address = f"grpc://{server.grpc_address}/net"
    patient = make_provider_options(submit_timeout_ms=round(PATIENCE * 1000))
    sessions = [InferenceSession(address, provider_options=patient) for _ in range(4)]
    jobs = [session.submit(None, feed(number)) for number, session in enumerate(sessions)]
    # one runs, one waits, two are rejected again and again
    wait_until(lambda: one_model(server)["shed"] >= 4, "a request that was rejected comes again")
    device.gate.set()
    assert [float(job.result(PATIENCE)[0][0, 0]) for job in jobs] == [0.0, 2.0, 4.0, 6.0]
    for session in sessions:
        session.close()


def test_a_server_that_sheds_for_too_long_is_given_up(serve: Serve) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_queue=1, max_wait_ms=1e6)
    assert device.gate is not None
    address = f"grpc://{server.grpc_address}/net"
    with InferenceSession(address) as first, InferenceSession(address) as second, InferenceSession(address) as last:
        assert isinstance(last.backend, RemoteBackend)
        last.backend.connection.patience = 0.04  # from now on: to open it may take its time
        jobs = [first.submit(None, feed()), second.submit(None, feed())]
        wait_until(lambda: one_model(server)["waiting"] == 1, "the queue is full")
        with pytest.raises(OverloadedError):
            last.run(None, feed())
        device.gate.set()
        for job in jobs:
            job.result(PATIENCE)


def test_the_connection_comes_back(tmp_path: Path) -> None:
    model = tmp_path / "net.rknn"
    model.write_bytes(b"model")

    def start(port: int) -> Server:
        server = Server([model], ServeOptions(port=0, grpc_port=port, device=FakeDevice(2), drain_timeout=PATIENCE))
        server.start()
        return server

    server = start(*free_ports(1))
    address = f"grpc://{server.grpc_address}/net"
    port = server.grpc_port
    assert port is not None
    with InferenceSession(address) as session:
        assert session.run(None, feed(1))[0][0, 0] == 2
        server.stop(PATIENCE)
        waiting = session.submit(None, feed(7))
        assert not waiting.done()  # there is nobody to answer it
        server = start(port)
        assert waiting.result(PATIENCE)[0][0, 0] == 14
        assert session.run(None, feed(2))[0][0, 0] == 4
        server.stop(PATIENCE)
    with pytest.raises(DeviceUnavailable, match="does not answer"):
        InferenceSession(address, provider_options=make_provider_options(submit_timeout_ms=200))
