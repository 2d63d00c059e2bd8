"""Who may use a server, and what clients may make it load."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from session.fake import FakeDevice, feed
from tools import need
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE

from anynpu.errors import OptionError
from anynpu.serve import ServeOptions
from anynpu.serve.options import read_keys
from anynpu.serve.rest_service import is_local
from anynpu.session import InferenceSession

from .conftest import Serve, exchange, infer_body

KEY = "a-key-of-the-tests-0123456789"
INFER = "/v2/models/net/infer"


def test_other_machines_need_tls_and_keys(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    secured: dict[str, Any] = {"certificate": pem, "private_key": pem, "api_keys": (KEY,)}
    for host in ("0.0.0.0", "::", "192.0.2.1", "board.local"):
        with pytest.raises(OptionError, match="no TLS and no API keys"):
            ServeOptions(host=host)
        with pytest.raises(OptionError, match="no API keys"):
            ServeOptions(host=host, certificate=pem, private_key=pem)
        with pytest.raises(OptionError, match="has no TLS"):
            ServeOptions(host=host, api_keys=(KEY,))
        assert ServeOptions(host=host, **secured).host == host
        assert ServeOptions(host=host, insecure=True).host == host
    for host in ("127.0.0.1", "127.0.0.9", "::1", "localhost"):
        assert ServeOptions(host=host).host == host
    with pytest.raises(OptionError, match="only one of them"):
        ServeOptions(certificate=pem)
    with pytest.raises(OptionError, match="shorter than 16"):
        ServeOptions(api_keys=("short",))


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# clients\n\n{KEY}\nanother-key-of-the-tests\n")
    assert read_keys(path) == (KEY, "another-key-of-the-tests")
    path.write_text("# none\n")
    with pytest.raises(OptionError, match="no API key in"):
        read_keys(path)
    with pytest.raises(OptionError, match="cannot be read"):
        read_keys(tmp_path / "nothing")


@pytest.mark.parametrize("mode", [0o666, 0o622, 0o620, 0o602])
def test_key_files_that_others_may_write_are_rejected(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(mode)
    with pytest.raises(OptionError, match=f"other users may write .*{mode:04o}"):
        read_keys(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, False), (0o644, True), (0o444, True)])
def test_key_files_that_others_may_read(tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool) -> None:
    """Docker and Kubernetes mount secrets with mode 0444 or 0644."""
    path = tmp_path / "keys"
    path.write_text(KEY)
    path.chmod(mode)
    assert read_keys(path) == (KEY,)
    assert any("may read" in message for message in caplog.messages) is warned


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *((name, True) for name in ("127.0.0.1", "127.0.0.1:80", "localhost:8000", "LocalHost", "[::1]", "[::1]:8000")),
        *((name, False) for name in ("evil@127.0.0.1", "evil:1@127.0.0.1:80", "@localhost", "127.0.0.1/x", "127.0.0.1 x", "")),
        *((name, False) for name in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1:80:80")),
    ],
)
def test_names_of_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_paths_are_routed_as_they_were_sent(serve: Serve) -> None:
    """A proxy blocks paths by their raw text: no other text may reach the same call."""
    server = serve(FakeDevice())
    for path in (
        "/v2/%72epository/models/net/unload",
        "/v2%2Frepository/models/net/unload",
        "/v2/repository%2Fmodels/net/unload",
        "/v2/repository/models/net%2Funload",
        "/v2/repository/models/net/%75nload",
        "/v2//repository/models/net/unload",
        "/v2/./repository/models/net/unload",
        "/v2/models/../repository/models/net/unload",
        "/v2/models/%2e%2e/repository/models/net/unload",
        "/%762/repository/index",
        "/v2/systemsharedmemory%2Fstatus",
    ):
        assert exchange(server, "POST", path, b"{}")[0] == 404, path
    assert exchange(server, "POST", "/v2/models/%6eet/infer", infer_body())[0] == 200  # names are decoded
    assert exchange(server, "GET", "/v2/models/net%2Fready")[0] == 404
    assert exchange(server, "GET", "/v2/models/net/ready")[0] == 200


def test_keys_are_asked_for_over_http(serve: Serve) -> None:
    server = serve(FakeDevice(), api_keys=(KEY, "another-key-of-the-tests"))
    for headers in ({}, {"X-API-Key": KEY[:-1]}, {"Authorization": "Bearer "}, {"Authorization": KEY}, {"X-API-Key": "é" * 20}):
        encoded = {key: value.encode() for key, value in headers.items()}
        for method, path in (("POST", INFER), ("GET", "/metrics"), ("GET", "/status/data"), ("GET", "/v2"), ("GET", "/nothing")):
            status, answer_headers, _ = exchange(server, method, path, infer_body(), encoded)  # type: ignore[arg-type]
            assert status == 401, (headers, path)
            assert answer_headers["www-authenticate"] == "Bearer"
    for headers in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}, {"authorization": "bearer another-key-of-the-tests"}):
        assert exchange(server, "POST", INFER, infer_body(), headers)[0] == 200
    assert exchange(server, "GET", "/v2/health/ready")[0] == 200
    assert exchange(server, "GET", "/status")[0] == 200


def test_keys_are_asked_for_over_grpc(serve: Serve) -> None:
    server = serve(FakeDevice(), api_keys=(KEY,))
    tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        assert client.is_server_ready()
        for headers in (None, {"x-api-key": "wrong-key-of-the-tests"}):
            with pytest.raises(InferenceServerException, match="missing or wrong") as caught:
                client.infer("net", [tensor], headers=headers)
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        client.infer("net", [tensor], headers={"authorization": f"Bearer {KEY}"})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = [need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return paths


def test_a_private_key_that_others_may_write_is_rejected(serve: Serve, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(certificate[1].read_bytes())
    key.chmod(0o666)
    with pytest.raises(OptionError, match="other users may write"):
        serve(FakeDevice(), certificate=certificate[0], private_key=key)


def test_tls(serve: Serve, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(FakeDevice(), certificate=certificate[0], private_key=certificate[1], api_keys=(KEY,))
    tensor = triton_http.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    with triton_http.InferenceServerClient(
        server.http_address, ssl=True, ssl_options={"ca_certs": str(certificate[0])}, insecure=False
    ) as client:
        assert client.infer("net", [tensor], headers={"X-API-Key": KEY}).as_numpy("y")[0, 0] == 2
    with pytest.raises(OSError, match=r".+"):
        exchange(server, "GET", "/v2/health/live")
    monkeypatch.setenv("ANYNPU_API_KEY", KEY)
    monkeypatch.setenv("ANYNPU_CA_FILE", str(certificate[0]))
    with InferenceSession(f"grpcs://{server.grpc_address}/net") as session:
        assert session.run(None, {"x": feed(3)})[0][0, 0] == 6


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a greeting"])
@pytest.mark.parametrize("face", ["http", "grpc"])
def test_a_handshake_that_does_not_go_on_is_cut_off(serve: Serve, certificate: tuple[Path, Path], face: str, sent: bytes) -> None:
    """Whoever never ends TLS's handshake keeps no connection, and keeps nobody else out."""
    server = serve(FakeDevice(), certificate=certificate[0], private_key=certificate[1], header_timeout=0.5)
    port = server.port if face == "http" else server.grpc_port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(sent)
        try:
            while client.recv(4096):
                pass
        except ConnectionResetError:
            pass  # that is an end too


def test_pages_of_the_web_cannot_use_a_server_on_loopback(serve: Serve) -> None:
    server = serve(FakeDevice())
    for headers in ({"Host": "evil.example:8000"}, {"Host": "["}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        status, _, answer = exchange(server, "POST", INFER, infer_body(), headers)
        assert status == 403, headers
        assert "error" in json.loads(answer)
    same = {"Host": server.http_address, "Origin": f"http://{server.http_address}"}
    assert exchange(server, "POST", INFER, infer_body(), same)[0] == 200
    assert exchange(server, "POST", INFER, infer_body(), {"Host": "localhost"})[0] == 200


def load(server: Any, name: str, **parameters: Any) -> tuple[int, str]:
    body = json.dumps({"parameters": parameters}).encode()
    status, _, answer = exchange(server, "POST", f"/v2/repository/models/{name}/load", body)
    return status, answer.decode()


def test_clients_name_no_files_unless_they_may(serve: Serve, tmp_path: Path) -> None:
    inside = tmp_path / "uploads"
    inside.mkdir()
    (inside / "new.rknn").write_bytes(b"model")
    (inside / "new.txt").write_bytes(b"text")
    (tmp_path / "secret.rknn").write_bytes(b"model")
    (inside / "link.rknn").symlink_to(tmp_path / "secret.rknn")
    server = serve(FakeDevice())
    assert load(server, "fresh", path="new.rknn")[0] == 403
    assert load(server, "net", config="{}")[0] == 403
    assert load(server, "net", **{"file:1/model.onnx": "AAAA"})[0] == 403
    assert load(server, "fresh")[0] == 404
    server = serve(FakeDevice(), load_root=inside)
    for path in ("../secret.rknn", str(tmp_path / "secret.rknn"), "link.rknn", "new.txt", "none.rknn", "", "\u0000"):
        status, text = load(server, "fresh", path=path)
        assert status in (400, 403), (path, text)
        assert str(tmp_path) not in text
    assert load(server, "..", path="new.rknn")[0] in (400, 404)
    assert load(server, "fresh", path="new.rknn")[0] == 200
    assert exchange(server, "POST", "/v2/models/fresh/infer", infer_body())[0] == 200


def test_control_can_be_switched_off(serve: Serve) -> None:
    server = serve(FakeDevice(), control=False)
    assert load(server, "net")[0] == 403
    assert exchange(server, "POST", "/v2/repository/models/net/unload")[0] == 403
    assert exchange(server, "POST", "/v2/repository/index")[0] == 200
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.unload_model("net")
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"


def test_loading_takes_a_key_of_its_own_where_there_are_keys(serve: Serve) -> None:
    control = "a-key-for-control-0123456789"
    path = "/v2/repository/models/net/load"
    for options, shown, status in (
        ({"api_keys": (KEY,), "control_keys": (control,)}, {}, 401),
        ({"api_keys": (KEY,), "control_keys": (control,)}, {"X-API-Key": KEY}, 403),
        ({"api_keys": (KEY,), "control_keys": (control,)}, {"X-API-Key": control}, 200),
        ({"api_keys": (KEY,)}, {"X-API-Key": KEY}, 403),
        ({"control_keys": (control,)}, {}, 401),
        ({"control_keys": (control,)}, {"Authorization": f"Bearer {control}"}, 200),
    ):
        server = serve(FakeDevice(), **options)
        assert exchange(server, "POST", path, b"", shown)[0] == status, (options, shown)
        code = {200: None, 401: "StatusCode.UNAUTHENTICATED", 403: "StatusCode.PERMISSION_DENIED"}[status]
        with triton_grpc.InferenceServerClient(server.grpc_address) as client:
            found = None
            try:
                client.unload_model("net", headers={key.lower(): value for key, value in shown.items()})
            except InferenceServerException as error:
                found = error.status()
            assert found == code
    server = serve(FakeDevice(), api_keys=(KEY,), control_keys=(control,))
    assert exchange(server, "POST", INFER, infer_body(), {"X-API-Key": control})[0] == 200  # it is good for the rest as well
    with pytest.raises(OptionError, match="shorter than 16"):
        ServeOptions(control_keys=("short",))
