"""The calls of the playground, with a scripted process in the place of the one that compiles."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serve.conftest import exchange
from waiting import PATIENCE, wait_until

from anynpu.errors import OptionError
from anynpu.serve import ServeOptions, Server
from anynpu.serve.playground import JobLimits, Playground

MARK = {"X-Anynpu-Playground": "1"}
KEY = "a-key-of-the-tests-0123456789"

DONE = """
import json, pathlib, sys
job = json.loads(sys.stdin.readline())
folder = pathlib.Path(job["folder"])
read = {name: pathlib.Path(path).read_text() for name, path in job["files"].items()}
(folder / "result.json").write_text(json.dumps({"request": job["request"], "read": read, "memory": job["memory"]}))
(folder / "float.jpg").write_bytes(b"a picture")
print(json.dumps({"stage": "thinking", "done": 1, "total": 2}), flush=True)
print(json.dumps({"state": "done"}), flush=True)
"""
HANG = """
import json, sys
sys.stdin.readline()
print(json.dumps({"stage": "thinking", "done": 1, "total": 2}), flush=True)
sys.stdin.read()
"""
FAIL = """
import json, sys
sys.stdin.readline()
print(json.dumps({"state": "failed", "error": "the model is odd", "hint": "take another"}), flush=True)
"""

Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers with a playground whose jobs are done by a program, and ends them."""
    servers: list[Server] = []

    def begin(program: str = DONE, limits: JobLimits | None = None, **given: Any) -> Server:
        options = ServeOptions(port=0, grpc_port=None, drain_timeout=PATIENCE, **given)
        playground = Playground(options, limits, [sys.executable, "-I", "-S", "-c", program])
        server = Server([], options, mounts=[playground])
        server.start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        server.stop(PATIENCE)


def ask(server: Server, method: str, path: str, body: Any = b"", **headers: str) -> tuple[int, Any]:
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    status, _, answer = exchange(server, method, f"/playground{path}", data, {**MARK, **headers})
    return status, json.loads(answer)


def drop(server: Server, kind: str, data: bytes) -> str:
    status, answer = ask(server, "POST", f"/files/{kind}", data)
    assert status == 200, answer
    name: str = answer["name"]
    return name


def ended(server: Server, job: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(ask(server, "GET", f"/jobs/{job}")[1])
        return bool(found["state"] != "running")

    wait_until(look, "the job ends")
    return found


def test_from_files_to_a_result(start: Start) -> None:
    server = start()
    model, picture = drop(server, "model", b"a model"), drop(server, "picture", b"a photo")
    status, job = ask(server, "POST", "/jobs", {"model": model, "pictures": [picture], "chip": "rv1106"})
    assert (status, job["state"]) == (200, "running")
    found = ended(server, job["job"])
    assert (found["state"], found["stage"]) == ("done", "thinking")
    assert found["result"]["read"] == {"model": "a model", picture: "a photo"}
    assert found["result"]["request"]["chip"] == "rv1106"
    assert found["result"]["memory"] == JobLimits().memory_mb << 20
    status, headers, data = exchange(server, "GET", f"/playground/jobs/{job['job']}/pictures/float")
    assert (status, headers["content-type"], data) == (200, "image/jpeg", b"a picture")
    for name in ("compiled", "other", "..", "%2e%2e%2fresult"):
        assert exchange(server, "GET", f"/playground/jobs/{job['job']}/pictures/{name}")[0] == 404


def test_one_job_at_a_time_and_its_end(start: Start) -> None:
    server = start(HANG)
    model = drop(server, "model", b"a model")
    _, job = ask(server, "POST", "/jobs", {"model": model})
    wait_until(lambda: ask(server, "GET", f"/jobs/{job['job']}")[1]["stage"] == "thinking", "the process works")
    status, answer = ask(server, "POST", "/jobs", {"model": model})
    assert status == 400
    assert "one at a time" in answer["error"]
    assert ask(server, "POST", f"/jobs/{job['job']}/cancel")[1]["state"] == "cancelled"
    status, again = ask(server, "POST", "/jobs", {"model": model})
    assert status == 200
    assert ask(server, "GET", f"/jobs/{job['job']}")[0] == 404
    # the end of the server ends the job
    assert ask(server, "GET", f"/jobs/{again['job']}")[1]["state"] == "running"


def test_a_job_that_fails_says_why(start: Start) -> None:
    server = start(FAIL)
    _, job = ask(server, "POST", "/jobs", {"model": drop(server, "model", b"a model")})
    found = ended(server, job["job"])
    assert (found["state"], found["error"], found["hint"]) == ("failed", "the model is odd", "take another")


def test_an_error_names_no_temporary_path(start: Start) -> None:
    program = """
import json, sys
files = json.loads(sys.stdin.readline())["files"]
text = ", ".join(files.values())
print(json.dumps({"state": "failed", "error": text + " cannot be read", "hint": "look at " + text}), flush=True)
"""
    server = start(program)
    names = [drop(server, kind, b"bytes") for kind in ("model", "picture")]
    _, job = ask(server, "POST", "/jobs", {"model": names[0], "pictures": names[1:]})
    found = ended(server, job["job"])
    assert found["error"] == "the image, the model cannot be read"
    assert found["hint"] == "look at the image, the model"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.stdin.readline(); sys.exit(3)", "status 3"),
        ("import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import sys; sys.stdin.readline(); print('no JSON', flush=True)", "ended"),
        ("import sys; sys.stdin.readline(); print('[1]', flush=True)", "ended"),
        ("import sys; sys.stdin.readline(); print('x' * 10**6, flush=True)", "ended"),
    ],
)
def test_a_process_that_ends_or_talks_nonsense(start: Start, program: str, words: str) -> None:
    server = start(program)
    _, job = ask(server, "POST", "/jobs", {"model": drop(server, "model", b"a model")})
    found = ended(server, job["job"])
    assert found["state"] == "failed"
    assert words in found["error"]


def test_a_job_that_takes_too_long(start: Start) -> None:
    server = start(HANG, JobLimits(seconds=0.05))
    _, job = ask(server, "POST", "/jobs", {"model": drop(server, "model", b"a model")})
    found = ended(server, job["job"])
    assert found["state"] == "failed"
    assert "longer than 0.05 s" in found["error"]


def test_what_was_dropped_goes_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    options = ServeOptions(port=0, grpc_port=None, drain_timeout=PATIENCE)
    playground = Playground(options, None, [sys.executable, "-I", "-S", "-c", HANG])
    with Server([], options, mounts=[playground]) as server:
        model = drop(server, "model", b"a model")
        _, job = ask(server, "POST", "/jobs", {"model": model})
        assert job["state"] == "running"
        (folder,) = tmp_path.iterdir()
        assert folder.name.startswith("anynpu-playground-")
        assert folder.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_files_make_room(start: Start) -> None:
    server = start()
    first, *_, last = [drop(server, "model", b"a model") for _ in range(3)]
    status, answer = ask(server, "POST", "/jobs", {"model": first})
    assert status == 400
    assert "not there any more" in answer["error"]
    assert ask(server, "POST", "/jobs", {"model": last})[0] == 200


def test_what_cannot_be_dropped(start: Start) -> None:
    server = start(max_request_bytes=1000)
    assert ask(server, "POST", "/files/script", b"x")[0] == 400
    assert ask(server, "POST", "/files/model", b"")[0] == 400
    assert ask(server, "POST", "/files/model", b"x" * 1001)[0] == 413
    assert ask(server, "POST", "/jobs", b"[]")[0] == 400
    assert ask(server, "POST", "/jobs", {"served": "no-such-model", "pictures": [drop(server, "picture", b"x")]})[0] == 404


def test_only_its_own_page_may_use_it(start: Start) -> None:
    """Neither a page of another server, nor one whose name was made to point here, nor a form, which cannot set headers."""
    server = start()
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        for method, path in (("POST", "/files/model"), ("POST", "/jobs"), ("GET", "/state")):
            assert ask(server, method, path, b"x", **headers)[0] == 403
    for path in ("/files/model", "/jobs", "/jobs/job-1/cancel"):
        assert exchange(server, "POST", f"/playground{path}", b"x")[0] == 403
    assert ask(server, "GET", "/state", Origin=f"http://{server.http_address}")[0] == 200


def test_keys_hold_for_it_and_do_not_open_it_to_other_names(start: Start) -> None:
    server = start(api_keys=(KEY,))
    assert exchange(server, "GET", "/playground")[0] == 200
    assert ask(server, "GET", "/state")[0] == 401
    key = {"X-API-Key": KEY}
    assert ask(server, "GET", "/state", **key)[0] == 200
    assert ask(server, "GET", "/state", Host="evil.example", **key)[0] == 403


def test_the_page_loads_nothing_from_elsewhere(start: Start) -> None:
    server = start()
    _, headers, page = exchange(server, "GET", "/playground")
    policy = dict(part.split(maxsplit=1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert b"style=" not in page
    assert b"://" not in page
    for path, kind in (("/playground.js", "text/javascript"), ("/playground.css", "text/css")):
        status, headers, data = exchange(server, "GET", path)
        assert (status, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        assert b"://" not in data
        assert b"innerHTML" not in data


def test_there_is_none_unless_asked_for() -> None:
    with Server([], ServeOptions(port=0, grpc_port=None)) as server:
        for path in ("/playground", "/playground.js", "/playground/state"):
            assert exchange(server, "GET", path)[0] == 404


def test_other_machines_never_get_it() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "board.local"):
        with pytest.raises(OptionError, match="for this machine alone"):
            Playground(ServeOptions(host=host, insecure=True))
