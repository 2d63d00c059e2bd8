"""What docs/serving.md states to do with the files of the proxies: commands that set addresses, TLS, and no board at all."""

from __future__ import annotations

import http.client
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import yaml
from documentation import blocks, section
from tools import need
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE

from anynpu import InferenceSession

from .proxies import ENVOY_FILE, NGINX_FILE, PROXIES, replaced
from .running import INFER, ROOT, Board, ask, infer_body

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("proxies")]

PAGE = section("serving", "Several boards behind a proxy")


def block(language: str) -> str:
    """The only block of a language in the page."""
    (found,) = blocks(PAGE, language)
    return found


def documented_edit(source: str) -> list[str]:
    """The options of the ``sed`` that the page applies to a file, after those in the file's own head, which must be the same."""
    (on_page,) = re.findall(rf"sed ((?:-e '[^']*' )+)(?:\\\n *)?{source}", PAGE)
    (in_file,) = re.findall(r"^# +sed ((?:-e '[^']*' )+)", (ROOT / source).read_text(encoding="utf-8"), re.MULTILINE)
    assert on_page == in_file
    return re.findall(r"'([^']*)'", on_page)


@pytest.mark.parametrize("file", [NGINX_FILE, ENVOY_FILE], ids=["nginx", "envoy"])
def test_the_documented_edit_gives_a_valid_file_for_two_boards(file: Path, tmp_path: Path) -> None:
    options = [word for edit in documented_edit(str(file.relative_to(ROOT))) for word in ("-e", edit)]
    text = subprocess.run(["sed", *options, str(file)], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout
    used = re.sub(r"#.*", "", text)
    assert "board-" not in used
    assert used.count("192.168.1.21") == used.count("192.168.1.22") >= 2
    target = tmp_path / file.name
    target.write_text(text, encoding="utf-8")
    if file == NGINX_FILE:
        main = tmp_path / "nginx.conf"
        main.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; include {target}; }}", encoding="utf-8")
        command = [need("nginx"), "-t", "-p", str(tmp_path), "-c", str(main)]
    else:
        command = [need("envoy"), "--mode", "validate", "-c", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    one = Board(tmp_path_factory.mktemp("board"), 1)
    one.start()
    assert one.process is not None
    try:
        one.wait_ready()
        yield one
    finally:
        one.process.end()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "anynpu.crt", folder / "anynpu.key"
    command = [need("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return paths


def nginx_with_tls(text: str, certificate: tuple[Path, Path]) -> str:
    lines = "\n".join(line for line in block("nginx").splitlines() if line.startswith("ssl_"))
    lines = replaced(replaced(lines, r"\S*/anynpu.crt", str(certificate[0])), r"\S*/anynpu.key", str(certificate[1]))
    return replaced(text, r"^( *listen \S+)( http2)?( backlog=\d+);", rf"\1 ssl\2\3;\n{lines}")


def envoy_with_tls(text: str, certificate: tuple[Path, Path]) -> str:
    addition = replaced(replaced(block("yaml"), r"/\S*/anynpu.crt", str(certificate[0])), r"/\S*/anynpu.key", str(certificate[1]))
    document = yaml.safe_load(text)
    for listener in document["static_resources"]["listeners"]:
        (chain,) = listener["filter_chains"]
        chain |= yaml.safe_load(addition)
        if listener["name"] == "grpc":
            chain["transport_socket"]["typed_config"]["common_tls_context"]["alpn_protocols"] = ["h2"]
    return yaml.safe_dump(document)


@pytest.mark.parametrize("name", list(PROXIES))
def test_tls_as_documented(
    name: str, board: Board, certificate: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))

    def status(port: int) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
        try:
            connection.request("POST", INFER, infer_body())
            return connection.getresponse().status
        except (ConnectionError, ssl.SSLError):
            return 0
        finally:
            connection.close()

    add = {"nginx": nginx_with_tls, "envoy": envoy_with_tls}[name]
    proxy = PROXIES[name](
        [board] * 3, tmp_path, ready=lambda port: status(port) == 200, change=lambda text: add(text, certificate)
    )
    monkeypatch.setenv("ANYNPU_CA_FILE", str(certificate[0]))
    try:
        with InferenceSession(f"grpcs://127.0.0.1:{proxy.grpc_port}/net") as session:
            (doubled,) = session.run(None, {"x": np.array([[0, 4, 0, 0]], np.float32)})
        assert doubled[0, 1] == 8
    finally:
        proxy.process.end()


@pytest.mark.parametrize("name", list(PROXIES))
def test_without_any_board_clients_are_told(name: str, tmp_path: Path) -> None:
    boards = [Board(tmp_path, number) for number in (1, 2, 3)]

    def is_up(port: int) -> bool:
        try:
            return ask(port, "GET", "/").status == 404
        except OSError:
            return False

    proxy = PROXIES[name](boards, tmp_path, ready=is_up)
    try:
        for _ in range(3):
            assert ask(proxy.port, "POST", INFER, infer_body()).status == 503
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{proxy.grpc_port}") as client:
            with pytest.raises(InferenceServerException) as caught:
                client.get_server_metadata()
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
    finally:
        proxy.process.end()
