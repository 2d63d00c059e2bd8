"""The OpenAPI description states what the server does: schemathesis makes requests from it, right ones and wrong ones."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction, load_all_checks, not_a_server_error
from schemathesis.specs.openapi import checks
from session.fake import FakeDevice
from waiting import wait_until

from anynpu.serve import ServeOptions, Server, failures, rest_service
from anynpu.serve import rest_service as rest_face
from anynpu.serve.rest_bodies import HEADER_LENGTH

from .conftest import Serve, exchange, infer_body

load_all_checks()

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
    checks.allow_header_conformance,
]

schema = schemathesis.openapi.from_dict(rest_face.description())
EXAMPLES = int(os.environ.get("ANYNPU_OPENAPI_EXAMPLES", "50"))
"""For each operation, besides those that schemathesis always makes."""


def aim(case: schemathesis.Case) -> None:
    """Most requests are for a model that there is, and control is for another one than inference; inferences that fit the description
    get an input that fits the model, or they would all end early."""
    assert case.meta is not None
    parts = {location.value: part.mode for location, part in case.meta.components.items()}
    given, path, body = case.path_parameters, case.operation.path, case.body
    if given and parts["path"].is_positive and sum(map(ord, json.dumps(body, default=str))) % 4:
        given["model"] = "spare" if "repository" in path else "net"
        if "version" in given:
            given["version"] = "1"
    if path.endswith("/infer") and parts.get("body", GenerationMode.NEGATIVE).is_positive and isinstance(body, dict):
        if len(body["inputs"]) < 3:
            tensor = body["inputs"][0] if body["inputs"] else {}
            tensor.update(name="x", shape=[1, 4], datatype="FP32", data=[1, 2.5, 0, -4], parameters={})
            body["inputs"] = [tensor]
        if body.get("outputs"):
            body["outputs"] = [{**body["outputs"][0], "name": "y"}]
        if body.get("parameters", {}).get("timeout"):
            body["parameters"]["timeout"] = 10**8  # a shorter one may rightly end with 504
        if parts.get("header", GenerationMode.POSITIVE).is_positive:
            case.headers.pop(HEADER_LENGTH, None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("net", "spare"):
        (folder / f"{name}.rknn").write_bytes(b"model")
    options = ServeOptions(
        port=0, grpc_port=None, device=FakeDevice(), max_wait_ms=1e6, max_queue=10_000, shared_memory="anynpu-test-"
    )
    with Server([folder], options) as running:
        yield running
        # after all requests of all tests the server is as it was

        def held() -> tuple[int, int]:
            status = json.loads(exchange(running, "GET", "/status/data")[2])
            return status["inflight_bytes"], status["connections"]

        wait_until(lambda: held() == (0, 1), "nothing is held")
        assert exchange(running, "POST", "/v2/models/net/infer", infer_body())[0] == 200


BOUNDED = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def ask(case: schemathesis.Case, server: Server) -> int:
    """Send a request and check its answer."""
    aim(case)
    answer = case.call(base_url=f"http://{server.http_address}")
    case.validate_response(answer, checks=CHECKS)
    return answer.status_code


@pytest.mark.full
@schema.parametrize()
@BOUNDED
def test_the_server_does_what_its_description_says(case: schemathesis.Case, server: Server) -> None:
    ask(case, server)


@pytest.mark.full
def test_such_requests_run_inferences_as_well(server: Server) -> None:
    answered: Counter[int] = Counter()

    @BOUNDED
    @given(schema["/v2/models/{model}/infer"]["POST"].as_strategy())
    def infer(case: schemathesis.Case) -> None:
        answered[ask(case, server)] += 1

    infer()
    assert answered.keys() >= {200, 400, 404}
    assert answered[200] > 1


def test_every_route_is_described_and_nothing_else() -> None:
    routes = {(method, path) for method, path, _ in rest_face._ROUTES}
    described = {(method.upper(), path) for path, methods in rest_face.description()["paths"].items() for method in methods}
    assert described == routes
    assert set(rest_service._OPERATIONS) == {(method, path.replace(rest_service.VERSION_PART, "")) for method, path in routes}
    identities = [each["operationId"] for methods in rest_face.description()["paths"].values() for each in methods.values()]
    assert len(set(identities)) == len(identities)


def test_every_failure_of_an_inference_is_described() -> None:
    described = rest_face.description()["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    possible = {failure.status for _, failure in failures._FAILURES} | {200, 401, 403, 500}
    assert {int(status) for status in described} == possible


def test_every_schema_is_used_and_there() -> None:
    text = json.dumps(rest_face.description())
    used = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert used == set(rest_face.description()["components"]["schemas"])


def test_the_description_tells_whether_keys_are_needed(serve: Serve) -> None:
    key = "a-key-of-the-tests-0123456789"
    open_server, server = serve(FakeDevice()), serve(FakeDevice(), api_keys=(key,))
    assert json.loads(exchange(open_server, "GET", "/openapi.json")[2]) == rest_face.description()
    assert exchange(server, "GET", "/openapi.json")[0] == 401
    document = json.loads(exchange(server, "GET", "/openapi.json", headers={"X-API-Key": key})[2])
    assert document["security"] == [{"bearer": []}, {"apiKey": []}]
    assert document["paths"]["/v2/health/live"]["get"]["security"] == []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            status = exchange(server, method.upper(), path.replace("{model}", "net").replace("{version}", "1"))[0]
            assert (status == 401) == (operation.get("security") is None), (method, path)


def test_the_json_of_a_binary_answer_is_the_described_one(server: Server) -> None:
    components = rest_face.description()["components"]
    validator = jsonschema_rs.validator_for({"$ref": "#/components/schemas/InferAnswer", "components": components})
    for parameters in ({}, {"binary_data_output": True}):
        status, headers, answer = exchange(server, "POST", "/v2/models/net/infer", infer_body(**parameters))
        length = int(headers.get(HEADER_LENGTH, len(answer)))
        validator.validate(json.loads(answer[:length]))
        assert (status, len(answer) - length) == (200, 16 if parameters else 0)


def test_any_other_method_is_refused_with_what_the_path_takes(server: Server) -> None:
    status, headers, answer = exchange(server, "DELETE", "/v2/models/net/infer")
    assert (status, headers["allow"]) == (405, "POST")
    assert "takes POST" in json.loads(answer)["error"]
    status, headers, answer = exchange(server, "HEAD", "/v2")
    assert (status, answer) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_the_description_is_openapi() -> None:
    for keyed in (False, True):
        schemathesis.openapi.from_dict(rest_face.description(keyed=keyed)).validate()
    broken = rest_face.description()
    del broken["paths"]["/v2"]["get"]["responses"]["200"]["description"]
    with pytest.raises(Exception, match=r"description.* is a required property"):
        schemathesis.openapi.from_dict(broken).validate()
