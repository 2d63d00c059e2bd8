"""What people's own clients see: tritonclient over HTTP, gRPC and asyncio."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from session.fake import FakeDevice
from tritonclient.utils import InferenceServerException, triton_to_np_dtype
from waiting import PATIENCE, wait_until

from anynpu.serve import Server
from anynpu.tensor import DType, TensorSpec

from .conftest import TYPES, EchoDevice, Serve, exchange, samples

CLIENTS: dict[str, Any] = {
    "http": triton_http,
    "grpc": triton_grpc,
    "http.aio": triton_http_aio,
    "grpc.aio": triton_grpc_aio,
}
every_client = pytest.mark.parametrize("kind", CLIENTS)


class client_of:  # noqa: N801  read as a verb: with client_of(...) as client
    """One of tritonclient's clients; the calls of an asyncio one are waited for."""

    def __init__(self, kind: str, server: Server) -> None:
        self._module = CLIENTS[kind]
        self._address = server.http_address if "http" in kind else server.grpc_address
        self._loop = asyncio.new_event_loop() if "aio" in kind else None

    def __enter__(self) -> Any:
        if self._loop is None:
            self._client = self._module.InferenceServerClient(self._address)
            return self._client

        async def make() -> Any:
            return self._module.InferenceServerClient(self._address)

        self._client = self._loop.run_until_complete(make())
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method, loop = getattr(self._client, name), self._loop
        assert loop is not None
        return lambda *arguments, **named: loop.run_until_complete(method(*arguments, **named))

    def __exit__(self, *error: object) -> None:
        if self._loop is None:
            self._client.close()
        else:
            self._loop.run_until_complete(self._client.close())
            self._loop.close()


def tensors_of(kind: str) -> Any:
    """The module with ``InferInput`` and ``InferRequestedOutput``."""
    return triton_http if "http" in kind else triton_grpc


def values(datatype: str = "FP32", kind: str = "http", value: float = 1.0, width: int = 4) -> Any:
    """The input of a plain fake device."""
    tensor = tensors_of(kind).InferInput("x", [1, width], datatype)
    tensor.set_data_from_numpy(np.full((1, width), value, triton_to_np_dtype(datatype)))
    return tensor


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


@every_client
def test_all_types_as_bytes(serve: Serve, kind: str) -> None:
    module, arrays = tensors_of(kind), samples()
    with client_of(kind, serve(EchoDevice())) as client:
        check_outputs(client.infer("net", inputs_of(module, arrays)), arrays, list(TYPES))
        wanted = ["INT64", "FP16", "BOOL"]
        outputs = [module.InferRequestedOutput(f"out_{name}") for name in wanted]
        result = client.infer("net", inputs_of(module, arrays), model_version="1", outputs=outputs, request_id="seven")
        check_outputs(result, arrays, wanted)
        answer = result.get_response()
        if "http" in kind:
            assert [answer["id"], answer["model_version"], len(answer["outputs"])] == ["seven", "1", 3]
        else:
            assert [answer.id, answer.model_version, len(answer.outputs)] == ["seven", "1", 3]


@pytest.mark.parametrize("kind", ["http", "http.aio"])
@pytest.mark.parametrize("binary_output", [False, True])
def test_all_types_as_json(serve: Serve, kind: str, binary_output: bool) -> None:
    arrays = samples()
    server = serve(EchoDevice())
    plain = {name: array for name, array in arrays.items() if name != "FP16"}  # tritonclient has no JSON for it
    inputs = inputs_of(triton_http, plain, binary_data=False) + inputs_of(triton_http, {"FP16": arrays["FP16"]})
    outputs = [triton_http.InferRequestedOutput(f"out_{name}", binary_data=binary_output) for name in TYPES]
    with client_of(kind, server) as client:
        check_outputs(client.infer("net", inputs, outputs=outputs), arrays, list(TYPES))


@pytest.mark.parametrize("kind", ["http", "http.aio"])
def test_each_tensor_in_a_form_of_its_own(serve: Serve, kind: str) -> None:
    """Inputs and outputs as bytes and as JSON by turns, in another order than the model's."""
    arrays = samples()
    names = [name for name in reversed(TYPES) if name != "FP16"] + ["FP16"]
    inputs = [
        tensor
        for number, name in enumerate(names)
        for tensor in inputs_of(triton_http, {name: arrays[name]}, binary_data=name == "FP16" or bool(number % 2))
    ]
    with client_of(kind, serve(EchoDevice())) as client:
        for odd in (0, 1):
            outputs = [
                triton_http.InferRequestedOutput(f"out_{name}", binary_data=number % 2 == odd)
                for number, name in enumerate(names)
            ]
            result = client.infer("net", inputs, outputs=outputs)
            check_outputs(result, arrays, names)
            answer = result.get_response()["outputs"]
            assert [entry["name"] for entry in answer] == [f"out_{name}" for name in names]
            assert [("data" in entry) for entry in answer] == [number % 2 != odd for number in range(len(names))]


@pytest.mark.parametrize("kind", ["http", "http.aio"])
def test_compressed_requests(serve: Serve, kind: str) -> None:
    arrays = samples()
    with client_of(kind, serve(EchoDevice())) as client:
        for algorithm in ("gzip", "deflate"):
            result = client.infer("net", inputs_of(triton_http, arrays), request_compression_algorithm=algorithm)
            check_outputs(result, arrays, list(TYPES))


@every_client
def test_other_floats_become_those_of_the_model(serve: Serve, kind: str) -> None:
    with client_of(kind, serve(FakeDevice())) as client:
        for datatype in ("BF16", "FP64", "FP32"):
            result = client.infer("net", [values(datatype, kind, -2.25)])
            assert result.as_numpy("y").tolist() == [[-4.5] * 4], datatype


@every_client
def test_texts_are_refused(serve: Serve, kind: str) -> None:
    module = tensors_of(kind)
    with client_of(kind, serve(FakeDevice())) as client:
        for form in [{"binary_data": True}, {"binary_data": False}] if "http" in kind else [{}]:
            text = module.InferInput("x", [1, 4], "BYTES")
            text.set_data_from_numpy(np.array([[b"text"] * 4], np.object_), **form)
            with pytest.raises(InferenceServerException, match="datatype 'BYTES'") as caught:
                client.infer("net", [text])
            assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_json_of_brain_floats_and_large_whole_numbers(serve: Serve) -> None:
    """What tritonclient has no form for."""
    server = serve(FakeDevice())
    for datatype, data in (("BF16", [1.5, -2.0, 0.25, 64]), ("FP32", [10**20, 2**70, -(10**25), 0.5]), ("FP16", [1, 2, 3, 0.5])):
        tensor = {"name": "x", "datatype": datatype, "shape": [1, 4], "data": data}
        status, _, answer = exchange(server, "POST", "/v2/models/net/infer", json.dumps({"inputs": [tensor]}).encode())
        assert status == 200, answer
        assert np.allclose(json.loads(answer)["outputs"][0]["data"], [2.0 * value for value in data], rtol=1e-6)


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


@pytest.mark.parametrize("kind", ["http.aio", "grpc.aio"])
def test_requests_of_an_asyncio_client_side_by_side(serve: Serve, kind: str) -> None:
    server = serve(EchoDevice(run_time=0.005), max_wait_ms=1e6)
    arrays = samples()

    async def ask() -> None:
        address = server.http_address if "http" in kind else server.grpc_address
        async with CLIENTS[kind].InferenceServerClient(address) as client:
            inputs = inputs_of(tensors_of(kind), arrays)
            results = await asyncio.gather(*(client.infer("net", inputs) for _ in range(12)))
            for result in results:
                check_outputs(result, arrays, list(TYPES))

    asyncio.run(ask())


def test_streaming_answers_in_order_and_errors_in_their_place(serve: Serve) -> None:
    server = serve(FakeDevice(2, run_time=0.002), max_wait_ms=1e6)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with client_of("grpc", server) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(40):
            width = 5 if number == 20 else 4
            tensor = triton_grpc.InferInput("x", [1, width], "FP32")
            tensor.set_data_from_numpy(np.full((1, width), number, np.float32))
            client.async_stream_infer("net", [tensor], request_id=str(number))
        for number in range(40):
            result, error = answers.get(timeout=PATIENCE)
            if number == 20:
                assert "takes [1, 4], got [1, 5]" in str(error)
            else:
                assert error is None
                assert result.as_numpy("y")[0, 0] == 2 * number
                assert result.get_response().id == str(number)
        client.stop_stream()


def test_streaming_with_asyncio(serve: Serve) -> None:
    server = serve(FakeDevice(2, run_time=0.002), max_wait_ms=1e6)

    async def ask() -> None:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(40):
                tensor = values(kind="grpc", value=number, width=5 if number == 20 else 4)
                yield {"model_name": "net", "inputs": [tensor], "request_id": str(number)}

        async with triton_grpc_aio.InferenceServerClient(server.grpc_address) as client:
            number = 0
            async for result, error in client.stream_infer(requests()):
                if number == 20:
                    assert "takes [1, 4], got [1, 5]" in str(error)
                else:
                    assert error is None
                    assert (result.as_numpy("y")[0, 0], result.get_response().id) == (2 * number, str(number))
                number += 1
            assert number == 40

    asyncio.run(ask())


@every_client
def test_cancelled_requests_leave_the_core_and_the_queue(serve: Serve, kind: str) -> None:
    """One request runs and one waits; both are cancelled, and the next one is answered at once."""
    device = FakeDevice(1, run_time=lambda _: seconds[0], stoppable=True)
    seconds = [600.0]
    server = serve(device, max_wait_ms=1e6)

    def state() -> tuple[int, int]:
        (model,) = json.loads(exchange(server, "GET", "/status/data")[2])["models"]
        return model["running"] + model["waiting"], model["cancelled"]

    async def cancelled() -> None:
        address = server.http_address if "http" in kind else server.grpc_address
        async with CLIENTS[kind].InferenceServerClient(address) as client:
            tasks = [asyncio.ensure_future(client.infer("net", [values(kind=kind)])) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: state() == (2, 0), "one runs and one waits")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    if "aio" in kind:
        asyncio.run(cancelled())
    elif kind == "grpc":
        ended: queue.Queue[Any] = queue.Queue()
        with client_of(kind, server) as client:
            calls = [client.async_infer("net", [values(kind=kind)], lambda result, error: ended.put(error)) for _ in range(2)]
            wait_until(lambda: state() == (2, 0), "one runs and one waits")
            for call in calls:
                call.cancel()
            assert all(ended.get(timeout=PATIENCE).status() == "StatusCode.CANCELLED" for _ in calls)
    else:  # tritonclient cannot cancel here: the connections are closed
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
        connections = [http.client.HTTPConnection(server.http_address, timeout=PATIENCE) for _ in range(2)]
        for connection in connections:
            connection.request("POST", "/v2/models/net/infer", body)
        wait_until(lambda: state() == (2, 0), "one runs and one waits")
        for connection in connections:
            connection.close()
    wait_until(lambda: state() == (0, 2), "both are cancelled")
    seconds[0] = 0.0
    with client_of(kind, server) as client:
        assert client.infer("net", [values(kind=kind)]).as_numpy("y")[0, 0] == 2


def test_a_cancelled_stream_takes_its_requests_along(serve: Serve) -> None:
    device = FakeDevice(1, run_time=lambda _: 600.0, stoppable=True)
    server = serve(device, max_wait_ms=1_000_000)
    with client_of("grpc", server) as client:
        client.start_stream(lambda result, error: None)
        for number in range(4):
            client.async_stream_infer("net", [values(kind="grpc")], request_id=str(number))

        def held() -> float:
            (model,) = json.loads(exchange(server, "GET", "/status/data")[2])["models"]
            return float(model["running"] + model["waiting"])

        wait_until(lambda: held() == 4, "all are there")
        client.stop_stream(cancel_requests=True)
        wait_until(lambda: held() == 0, "all are taken back")


@every_client
def test_deadlines(serve: Serve, kind: str) -> None:
    server = serve(FakeDevice(1, run_time=600.0, stoppable=True))
    with client_of(kind, server) as client, pytest.raises(InferenceServerException, match="did not finish") as caught:
        client.infer("net", [values(kind=kind)], timeout=100_000)
    assert caught.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")


@every_client
def test_models_are_loaded_and_unloaded(serve: Serve, kind: str) -> None:
    with client_of(kind, serve(FakeDevice())) as client:
        client.unload_model("net")
        assert not client.is_model_ready("net")
        with pytest.raises(InferenceServerException, match="is not loaded") as caught:
            client.infer("net", [values(kind=kind)])
        assert caught.value.status() in ("503", "StatusCode.UNAVAILABLE")
        client.load_model("net")
        assert client.infer("net", [values(kind=kind)]).as_numpy("y")[0, 0] == 2
        with pytest.raises(InferenceServerException, match="takes no configuration") as caught:
            client.load_model("net", config='{"max_batch_size": 4}')
        assert caught.value.status() in ("403", "StatusCode.PERMISSION_DENIED")


@every_client
def test_health_metadata_statistics_and_index(serve: Serve, kind: str) -> None:
    module = tensors_of(kind)
    with client_of(kind, serve(FakeDevice(3))) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert not client.is_model_ready("other")
        tensor = module.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        for _ in range(3):
            client.infer("net", [tensor])
        as_json = {} if "http" in kind else {"as_json": True}
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
        entries = index if "http" in kind else index["models"]
        assert [(entry["name"], entry["state"]) for entry in entries] == [("net", "READY")]


@every_client
def test_errors_say_what_is_wrong(serve: Serve, kind: str) -> None:
    module = tensors_of(kind)
    with client_of(kind, serve(FakeDevice())) as client:

        def ask(shape: list[int], name: str = "x", outputs: Any = None, model: str = "net", version: str = "") -> None:
            tensor = module.InferInput(name, shape, "FP32")
            tensor.set_data_from_numpy(np.zeros(shape, np.float32))
            client.infer(model, [tensor], outputs=outputs, model_version=version)

        wrong, missing = ("400", "StatusCode.INVALID_ARGUMENT"), ("404", "StatusCode.NOT_FOUND")
        for arguments, message, codes in (
            ({"shape": [1, 5]}, r"takes \[1, 4\], got \[1, 5\]", wrong),
            ({"shape": [1, 4], "name": "z"}, "there is no input 'z'", wrong),
            ({"shape": [1, 4], "outputs": [module.InferRequestedOutput("z")]}, "no output 'z'", wrong),
            ({"shape": [1, 4], "model": "other"}, "no model 'other'", missing),
            ({"shape": [1, 4], "version": "7"}, "version '7'", missing),
            ({"shape": [65, 4]}, "a batch of 65", wrong),
        ):
            with pytest.raises(InferenceServerException, match=message) as caught:
                ask(**arguments)
            assert caught.value.status() in codes
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


@every_client
def test_configurations(serve: Serve, kind: str) -> None:
    as_json = {} if "http" in kind else {"as_json": True}
    with client_of(kind, serve(EchoDevice(), batch_window_ms=3)) as client:
        found = client.get_model_config("net", **as_json)
        found = found if "http" in kind else found["config"]
        assert (found["name"], found["platform"], found["backend"], found["max_batch_size"]) == (
            "net",
            "anynpu_fake2",
            "anynpu",
            64,
        )
        described = {"BOOL": "BOOL", "FP16": "FP32"}  # floats are values, which are taken in any type
        expected = [(f"in_{name}", f"TYPE_{described.get(name, name)}") for name in TYPES]
        assert [(tensor["name"], tensor["data_type"]) for tensor in found["input"]] == expected
        assert [[int(extent) for extent in tensor["dims"]] for tensor in found["output"]] == [[3]] * len(TYPES)
        (group,) = found["instance_group"]
        assert (group["kind"], group["count"]) == ("KIND_MODEL", 2)
        batching = found["dynamic_batching"]
        assert (batching["preferred_batch_size"], int(batching["max_queue_delay_microseconds"])) == ([2], 3000)
        with pytest.raises(InferenceServerException, match="no model 'other'"):
            client.get_model_config("other")
    device = FakeDevice(inputs=(TensorSpec("x", (1, 4), DType.FLOAT32),), outputs=(TensorSpec("y", (4,), DType.INT64),))
    with client_of(kind, serve(device)) as client:  # tensors without a batch in common
        found = client.get_model_config("net", model_version="1", **as_json)
        found = found if "http" in kind else found["config"]
        assert (found.get("max_batch_size", 0), "dynamic_batching" in found) == (0, False)
        assert [[int(extent) for extent in one["dims"]] for one in (*found["input"], *found["output"])] == [[1, 4], [4]]


def test_batches_are_spread_over_the_cores(serve: Serve) -> None:
    device = FakeDevice(3, gated=True)
    assert device.gate is not None
    with client_of("http", serve(device)) as client, ThreadPoolExecutor(1) as pool:
        values = np.arange(40, dtype=np.float32).reshape(10, 4)
        tensor = triton_http.InferInput("x", [10, 4], "FP32")
        tensor.set_data_from_numpy(values)
        asked = pool.submit(client.infer, "net", [tensor])
        device.wait_entered(3)  # at the same time
        device.gate.set()
        assert np.array_equal(asked.result(PATIENCE).as_numpy("y"), 2 * values)
    assert len(device.lanes) == 3
    assert sum(device.core_runs.values()) == 10


def test_parts_of_a_batch_are_gathered(serve: Serve) -> None:
    device = FakeDevice(
        1, inputs=(TensorSpec("x", (4, 2), DType.FLOAT32),), outputs=(TensorSpec("y", (4, 2), DType.FLOAT32),), run_time=0.001
    )
    server = serve(device, batch_window_ms=3_600_000)  # no window ends before its batch is full

    async def ask() -> list[Any]:
        async with triton_http_aio.InferenceServerClient(server.http_address) as client:

            async def one(number: int) -> Any:
                tensor = triton_http.InferInput("x", [1, 2], "FP32")
                tensor.set_data_from_numpy(np.full((1, 2), number, np.float32))
                return (await client.infer("net", [tensor])).as_numpy("y")

            return await asyncio.gather(*(one(number) for number in range(12)))

    results = asyncio.run(ask())
    assert [result.tolist() for result in results] == [[[2.0 * number] * 2] for number in range(12)]
    assert sum(device.core_runs.values()) == 3


def test_a_part_of_a_batch_runs_alone_when_its_window_ends(serve: Serve) -> None:
    tensors = TensorSpec("x", (4, 2), DType.FLOAT32), TensorSpec("y", (4, 2), DType.FLOAT32)
    device = FakeDevice(1, inputs=tensors[:1], outputs=tensors[1:])
    with client_of("http", serve(device, batch_window_ms=20)) as client:
        for number in range(2):
            tensor = triton_http.InferInput("x", [1, 2], "FP32")
            tensor.set_data_from_numpy(np.full((1, 2), number, np.float32))
            assert client.infer("net", [tensor]).as_numpy("y").tolist() == [[2.0 * number] * 2]
    assert sum(device.core_runs.values()) == 2


def test_paths_that_are_not_there(serve: Serve) -> None:
    server = serve(FakeDevice())
    for path, status in (("/nothing", 404), ("/v2/models/net/infer", 405), ("/v2/models/other", 404)):
        assert exchange(server, "GET", path)[0] == status
    status, _, answer = exchange(server, "GET", "/v2/models/net/versions/1")
    assert (status, json.loads(answer)["name"]) == (200, "net")
