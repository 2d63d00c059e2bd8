"""What people's own clients see: tritonclient over HTTP, gRPC and asyncio."""

from __future__ import annotations

import asyncio
import json
import queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from session.fake import FakeDevice
from tritonclient.utils import InferenceServerException

from anynpu.serve import Server
from anynpu.tensor import DType, TensorSpec

from .conftest import TYPES, EchoDevice, Serve, exchange, samples

CLIENTS = {"http": triton_http, "grpc": triton_grpc}


def client_of(kind: str, server: Server) -> Any:
    address = server.http_address if kind == "http" else server.grpc_address
    return CLIENTS[kind].InferenceServerClient(address)


def inputs_of(module: Any, arrays: dict[str, Any], **how: Any) -> list[Any]:
    inputs = []
    for name, array in arrays.items():
        tensor = module.InferInput(f"in_{name}", list(array.shape), name)
        tensor.set_data_from_numpy(array, **how)
        inputs.append(tensor)
    return inputs


def check_outputs(result: Any, arrays: dict[str, Any], names: list[str]) -> None:
    for name in names:
        output = result.as_numpy(f"out_{name}")
        expected = arrays[name].astype(np.float32) if arrays[name].dtype.kind == "f" else arrays[name]
        assert output.dtype == expected.dtype, name
        assert np.array_equal(output, expected), name


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_all_types_as_bytes(serve: Serve, kind: str) -> None:
    module, arrays = CLIENTS[kind], samples()
    with client_of(kind, serve(EchoDevice())) as client:
        check_outputs(client.infer("net", inputs_of(module, arrays)), arrays, list(TYPES))
        wanted = ["INT64", "FP16", "BOOL"]
        outputs = [module.InferRequestedOutput(f"out_{name}") for name in wanted]
        result = client.infer("net", inputs_of(module, arrays), model_version="1", outputs=outputs, request_id="seven")
        check_outputs(result, arrays, wanted)
        answer = result.get_response()
        if kind == "http":
            assert [answer["id"], answer["model_version"], len(answer["outputs"])] == ["seven", "1", 3]
        else:
            assert [answer.id, answer.model_version, len(answer.outputs)] == ["seven", "1", 3]


@pytest.mark.parametrize("binary_output", [False, True])
def test_all_types_as_json(serve: Serve, binary_output: bool) -> None:
    arrays = samples()
    server = serve(EchoDevice())
    plain = {name: array for name, array in arrays.items() if name != "FP16"}  # tritonclient has no JSON for it
    inputs = inputs_of(triton_http, plain, binary_data=False) + inputs_of(triton_http, {"FP16": arrays["FP16"]})
    outputs = [triton_http.InferRequestedOutput(f"out_{name}", binary_data=binary_output) for name in TYPES]
    with client_of("http", server) as client:
        check_outputs(client.infer("net", inputs, outputs=outputs), arrays, list(TYPES))


def test_compressed_requests(serve: Serve) -> None:
    arrays = samples()
    with client_of("http", serve(EchoDevice())) as client:
        for algorithm in ("gzip", "deflate"):
            result = client.infer("net", inputs_of(triton_http, arrays), request_compression_algorithm=algorithm)
            check_outputs(result, arrays, list(TYPES))


def test_bytes_of_brain_floats_and_doubles(serve: Serve) -> None:
    server = serve(FakeDevice())
    values = np.array([[1.5, -2.0, 0.25, 64.0]], np.float32)
    brain = (values.view(np.uint32) >> 16).astype(np.uint16)
    for datatype, data in (("BF16", brain.tobytes()), ("FP64", values.astype(np.float64).tobytes())):
        tensor = {"name": "x", "datatype": datatype, "shape": [1, 4], "parameters": {"binary_data_size": len(data)}}
        text = json.dumps({"inputs": [tensor]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        status, _, answer = exchange(server, "POST", "/v2/models/net/infer", text + data, headers)
        assert status == 200, answer
        assert json.loads(answer)["outputs"][0]["data"] == [3.0, -4.0, 0.5, 128.0]


def test_grpc_contents_by_type(serve: Serve) -> None:
    """Tensors in the typed fields of the message, as clients without numpy send them."""
    from tritonclient.grpc import service_pb2

    fields = {"BOOL": "bool_contents", "FP32": "fp32_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"}
    device = FakeDevice(
        inputs=tuple(TensorSpec(name, (2, 3), TYPES[name]) for name in ("BOOL", "FP32", "INT8", "INT64", "UINT16", "UINT64")),
        outputs=(TensorSpec("y", (2, 3), DType.BOOL),),
    )
    server = serve(device)
    request = service_pb2.ModelInferRequest(model_name="net")
    arrays = samples()
    for spec in device.inputs:
        tensor = request.inputs.add(name=spec.name, datatype=spec.name, shape=[2, 3])
        field = fields.get(spec.name, "int_contents" if spec.name.startswith("INT") else "uint_contents")
        getattr(tensor.contents, field).extend(arrays[spec.name].reshape(-1).tolist())
    with client_of("grpc", server) as client:
        answer = client._client_stub.ModelInfer(request)
        assert np.frombuffer(answer.raw_output_contents[0], np.bool_).tolist() == arrays["BOOL"].reshape(-1).tolist()
        for spec, array in zip(device.inputs, device.writes[-1][0], strict=True):
            assert np.array_equal(array, arrays[spec.name]), spec.name
        request.inputs[2].contents.int_contents[0] = 300
        with pytest.raises(Exception, match="do not fit int8"):
            client._client_stub.ModelInfer(request)


def test_asyncio_clients(serve: Serve) -> None:
    server = serve(EchoDevice())
    arrays = samples()

    async def ask() -> None:
        for module, address in ((triton_http_aio, server.http_address), (triton_grpc_aio, server.grpc_address)):
            async with module.InferenceServerClient(address) as client:
                assert await client.is_server_ready()
                plain = triton_http if module is triton_http_aio else triton_grpc
                results = await asyncio.gather(*(client.infer("net", inputs_of(plain, arrays)) for _ in range(6)))
                for result in results:
                    check_outputs(result, arrays, list(TYPES))
                with pytest.raises(InferenceServerException, match="no model 'other'"):
                    await client.infer("other", inputs_of(plain, arrays))

    asyncio.run(ask())


def test_streaming_answers_in_order_and_errors_in_their_place(serve: Serve) -> None:
    server = serve(FakeDevice(2, run_time=0.002), max_wait_ms=1000)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with client_of("grpc", server) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(40):
            width = 5 if number == 20 else 4
            tensor = triton_grpc.InferInput("x", [1, width], "FP32")
            tensor.set_data_from_numpy(np.full((1, width), number, np.float32))
            client.async_stream_infer("net", [tensor], request_id=str(number))
        for number in range(40):
            result, error = answers.get(timeout=20)
            if number == 20:
                assert "takes [1, 4], got [1, 5]" in str(error)
            else:
                assert error is None
                assert result.as_numpy("y")[0, 0] == 2 * number
                assert result.get_response().id == str(number)
        client.stop_stream()


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_health_metadata_statistics_and_index(serve: Serve, kind: str) -> None:
    module = CLIENTS[kind]
    with client_of(kind, serve(FakeDevice(3))) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert not client.is_model_ready("other")
        tensor = module.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        for _ in range(3):
            client.infer("net", [tensor])
        as_json = {} if kind == "http" else {"as_json": True}
        server = client.get_server_metadata(**as_json)
        assert server["name"] == "anynpu"
        assert "binary_tensor_data" in server["extensions"]
        described = client.get_model_metadata("net", **as_json)
        assert described["versions"] == ["1"]
        assert described["inputs"][0]["datatype"] == "FP32"
        assert [int(extent) for extent in described["inputs"][0]["shape"]] == [1, 4]
        (statistics,) = client.get_inference_statistics("net", **as_json)["model_stats"]
        assert int(statistics["inference_count"]) == 3
        assert int(statistics["inference_stats"]["success"]["count"]) == 3
        assert int(statistics["inference_stats"]["compute_infer"]["ns"]) > 0
        index = client.get_model_repository_index(**as_json)
        entries = index if kind == "http" else index["models"]
        assert [(entry["name"], entry["state"]) for entry in entries] == [("net", "READY")]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_errors_say_what_is_wrong(serve: Serve, kind: str) -> None:
    module = CLIENTS[kind]
    with client_of(kind, serve(FakeDevice())) as client:

        def ask(shape: list[int], name: str = "x", outputs: Any = None, model: str = "net", version: str = "") -> None:
            tensor = module.InferInput(name, shape, "FP32")
            tensor.set_data_from_numpy(np.zeros(shape, np.float32))
            client.infer(model, [tensor], outputs=outputs, model_version=version)

        for arguments, message in (
            ({"shape": [1, 5]}, r"takes \[1, 4\], got \[1, 5\]"),
            ({"shape": [1, 4], "name": "z"}, "there is no input 'z'"),
            ({"shape": [1, 4], "outputs": [module.InferRequestedOutput("z")]}, "no output 'z'"),
            ({"shape": [1, 4], "model": "other"}, "no model 'other'"),
            ({"shape": [1, 4], "version": "7"}, "version '7'"),
            ({"shape": [65, 4]}, "a batch of 65"),
        ):
            with pytest.raises(InferenceServerException, match=message):
                ask(**arguments)
        text = module.InferInput("x", [1], "BYTES")
        text.set_data_from_numpy(np.array([b"text"], np.object_))
        with pytest.raises(InferenceServerException, match="datatype 'BYTES'"):
            client.infer("net", [text])
        ask([1, 4])


def test_a_failing_device_is_a_server_error_and_no_more(serve: Serve) -> None:
    fails = [True]
    device = FakeDevice(fails=lambda _: fails[0])
    with client_of("grpc", serve(device)) as client:
        tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
        with pytest.raises(InferenceServerException, match="the fake device failed") as caught:
            client.infer("net", [tensor])
        assert caught.value.status() == "StatusCode.INTERNAL"
        fails[0] = False
        client.infer("net", [tensor])


def test_batches_are_spread_over_the_cores(serve: Serve) -> None:
    device = FakeDevice(3, run_time=0.005)
    with client_of("http", serve(device)) as client:
        values = np.arange(40, dtype=np.float32).reshape(10, 4)
        tensor = triton_http.InferInput("x", [10, 4], "FP32")
        tensor.set_data_from_numpy(values)
        assert np.array_equal(client.infer("net", [tensor]).as_numpy("y"), 2 * values)
    assert len(device.lanes) == 3
    assert sum(device.core_runs.values()) == 10


def test_parts_of_a_batch_are_gathered(serve: Serve) -> None:
    device = FakeDevice(
        1, inputs=(TensorSpec("x", (4, 2), DType.FLOAT32),), outputs=(TensorSpec("y", (4, 2), DType.FLOAT32),), run_time=0.001
    )
    server = serve(device, batch_window_ms=300, max_wait_ms=5000)

    async def ask() -> list[Any]:
        async with triton_http_aio.InferenceServerClient(server.http_address) as client:

            async def one(number: int) -> Any:
                tensor = triton_http.InferInput("x", [1, 2], "FP32")
                tensor.set_data_from_numpy(np.full((1, 2), number, np.float32))
                return (await client.infer("net", [tensor])).as_numpy("y")

            return await asyncio.gather(*(one(number) for number in range(10)))

    results = asyncio.run(ask())
    assert [result.tolist() for result in results] == [[[2.0 * number] * 2] for number in range(10)]
    assert sum(device.core_runs.values()) == 3


def test_paths_that_are_not_there(serve: Serve) -> None:
    server = serve(FakeDevice())
    for path, status in (("/nothing", 404), ("/v2/models/net/infer", 405), ("/v2/models/other", 404)):
        assert exchange(server, "GET", path)[0] == status
    status, _, answer = exchange(server, "GET", "/v2/models/net/versions/1")
    assert (status, json.loads(answer)["name"]) == (200, "net")
