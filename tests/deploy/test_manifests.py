"""KServe's runtimes, the container and the system's service: what the files state holds, and the commands in them start a server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import yaml
from onnx import TensorProto, helper, numpy_helper
from tools import need
from waiting import PATIENCE

import anynpu

from .proxies import NGINX_FILE, replaced
from .running import DEPLOY, ROOT, Process, answers, free_ports

RUNTIME_FIELDS = {
    "supportedModelFormats",
    "multiModel",
    "disabled",
    "protocolVersions",
    "workerSpec",
    "containers",
    "volumes",
    "nodeSelector",
    "affinity",
    "tolerations",
    "labels",
    "annotations",
    "imagePullSecrets",
    "hostIPC",
}
"""What the specification of a ServingRuntime may have, but for what belongs to ModelMesh. KServe drops other fields silently."""

DENY_WRITE_EXECUTE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE, from Linux 6.3 on
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Starts a program whose memory is never writable and executable, as the service of systemd."""

COMPOSE = DEPLOY / "docker" / "docker-compose.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNIT = DEPLOY / "systemd" / "anynpu-serve.service"


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / "kserve" / name).read_text(encoding="utf-8")) if one is not None]


def runtimes() -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one["spec"] for one in documents("runtime.yaml")}


def container(runtime: dict[str, Any]) -> dict[str, Any]:
    (one,) = runtime["containers"]
    assert isinstance(one, dict)
    return one


def dockerfile() -> str:
    """Without its comments, and with continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return "\n".join(lines).replace("\\\n", " ")


def unit() -> dict[str, list[str]]:
    """The settings of the service; some come several times."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_runtimes_are_what_kserve_reads() -> None:
    found = documents("runtime.yaml")
    assert [one["metadata"]["name"] for one in found] == ["anynpu-rknn", "anynpu-sim"]
    automatic = []
    for one in found:
        assert (one["apiVersion"], one["kind"]) == ("serving.kserve.io/v1alpha1", "ClusterServingRuntime")
        spec = one["spec"]
        assert set(spec) <= RUNTIME_FIELDS
        assert spec["protocolVersions"] == ["v2", "grpc-v2"]
        for form in spec["supportedModelFormats"]:
            assert set(form) <= {"name", "version", "autoSelect", "priority"}
            assert isinstance(form["version"], str)
            automatic += [form["name"]] if form["autoSelect"] else []
        box = container(spec)
        assert box["name"] == "kserve-container"  # KServe puts the model and its settings into the container of this name
        assert "ports" not in box  # those of a service would be added to them, and Knative takes one only
        assert all(isinstance(argument, str) for argument in box["args"])
        assert "{{.Name}}=/mnt/models" in box["args"]
        port = int(next(argument for argument in box["args"] if argument.startswith("--port=")).partition("=")[2])
        assert port == 8080  # where KServe looks for HTTP if no port is named
        assert spec["annotations"]["prometheus.kserve.io/port"] == str(port)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert box[probe]["httpGet"]["port"] == port
        assert {mount["name"] for mount in box.get("volumeMounts", [])} == {volume["name"] for volume in spec.get("volumes", [])}
        assert "kserve-provision-location" not in str(spec)  # the volume of the models is KServe's own
    assert automatic == ["rknn"]


def test_services_fit_their_runtimes() -> None:
    found = documents("inferenceservice.yaml")
    known = runtimes()
    for one in found:
        assert (one["apiVersion"], one["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])
        predictor = one["spec"]["predictor"]
        model = predictor["model"]
        assert set(model) <= {"modelFormat", "protocolVersion", "runtime", "storageUri", "ports"}
        runtime = known[model["runtime"]]
        assert model["protocolVersion"] in runtime["protocolVersions"]
        formats = [(form["name"], form["version"]) for form in runtime["supportedModelFormats"]]
        assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
        if model["protocolVersion"] == "grpc-v2":
            (port,) = model["ports"]
            assert port["name"] == "h2c"  # how Knative and gateways know that it is HTTP/2
            assert f"--grpc-port={port['containerPort']}" in container(runtime)["args"]
        if "volumes" in runtime or container(runtime)["securityContext"]["privileged"]:
            assert one["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Standard"
        assert predictor["terminationGracePeriodSeconds"] > 30  # the servers' own time to finish


def test_the_image_is_made_of_files_that_exist() -> None:
    text = dockerfile()
    sources = [word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    own = {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "src", "tools/sbom.py"}
    assert set(sources) == {*own, "deploy/locks", "deploy/locks/build.lock"}
    assert all((ROOT / source).exists() for source in sources)
    allowed = {line[1:] for line in (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert allowed == {*own, "deploy/locks"}
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    images = {container(spec)["image"] for spec in runtimes().values()} | {services()["anynpu"]["image"]}
    assert images == {f"anynpu-server:{version[1]}"}


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return found


def test_compose_puts_only_the_proxy_into_the_network(tmp_path: Path) -> None:
    found = services()
    assert "ports" not in found["anynpu"]
    assert (COMPOSE.parent / found["anynpu"]["build"]["context"] / found["anynpu"]["build"]["dockerfile"]).resolve() == DOCKERFILE
    (mount,) = found["nginx"]["volumes"]
    assert (COMPOSE.parent / mount.split(":")[0]).resolve() == NGINX_FILE

    edited_by_compose(tmp_path)


def edited_by_compose(tmp_path: Path) -> Path:
    """The file of nginx after the command in compose.yaml has edited it, with the addresses of this machine."""
    shell = services()["nginx"]["command"]
    assert shell[:2] == ["sh", "-c"]
    assert "$" not in shell[2]  # compose would replace it
    edit, _, start = shell[2].partition(" && ")
    assert start == "exec nginx -g 'daemon off;'"
    target = tmp_path / "default.conf"
    edit = edit.replace("/anynpu.conf", str(NGINX_FILE)).replace("/etc/nginx/conf.d/default.conf", str(target))
    subprocess.run(["sh", "-c", edit], check=True, timeout=PATIENCE)
    text = replaced(target.read_text(encoding="utf-8"), r"anynpu:(800\d)", r"127.0.0.1:\1")
    assert "board-" not in re.sub(r"#.*", "", text)
    target.write_text(text, encoding="utf-8")
    return target


@pytest.mark.full
def test_nginx_takes_what_compose_makes_of_its_file(tmp_path: Path) -> None:
    target = edited_by_compose(tmp_path)
    main = tmp_path / "nginx.conf"
    main.write_text(f"pid {tmp_path}/pid; events {{}} http {{ access_log off; include {target}; }}", encoding="utf-8")
    done = subprocess.run(
        [need("nginx"), "-t", "-p", str(tmp_path), "-c", str(main)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr


def test_the_service_of_the_system_is_confined() -> None:
    found = unit()
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["CapabilityBoundingSet"] == [""]
    assert found["DevicePolicy"] == ["closed"]
    assert int(found["TimeoutStopSec"][0]) > 30
    assert found["MemoryMax"] == ["80%"]
    assert int(found["LimitCORE"][0]) == 0  # a dump would hold what clients sent
    assert found["MemoryDenyWriteExecute"] == found["PrivateUsers"] == ["yes"]
    assert found["ProcSubset"] == ["pid"]


def test_containers_have_limits_and_images_by_variable() -> None:
    for name, service in services().items():
        assert service["mem_limit"], name
        assert 0 < service["pids_limit"] <= 512, name
        assert "no-new-privileges:true" in service["security_opt"], name
    assert services()["nginx"]["image"].startswith("${ANYNPU_NGINX_IMAGE:-nginx:")
    assert services()["anynpu"]["build"]["args"] == {"PYTHON_IMAGE": "${ANYNPU_PYTHON_IMAGE:-python:3.12-slim}"}
    text = dockerfile()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${PYTHON_IMAGE}", "${PYTHON_IMAGE}"]
    assert text.index("ARG PYTHON_IMAGE=") < text.index("FROM ")
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for variable in ("PYTHON_IMAGE", "ANYNPU_PYTHON_IMAGE", "ANYNPU_NGINX_IMAGE", "ANYNPU_MEMORY"):
        assert f"`{variable}`" in page


@pytest.mark.full
def test_systemd_takes_the_service() -> None:
    done = subprocess.run([need("systemd-analyze"), "verify", str(UNIT)], capture_output=True, text=True, timeout=PATIENCE)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line and "is not executable" not in line]
    assert not complaints


@dataclass(frozen=True)
class Case:
    """A committed command, and the paths by which its server is looked at."""

    command: list[str]
    model: str
    probes: tuple[str, ...]


def runtime_case(name: str) -> Case:
    box = container(runtimes()[name])
    probes = {box[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    arguments = [argument.replace("{{.Name}}", "yolo") for argument in box["args"]]
    return Case([*box["command"], *arguments], "yolo", tuple(sorted(probes)))


def image_case() -> Case:
    text = dockerfile()
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    arguments = json.loads(re.findall(r"^CMD (.*)$", text, re.MULTILINE)[0])
    return Case([*entry, *arguments], "anything", ("/v2/health/ready",))


def compose_case() -> Case:
    return Case(["anynpu", *services()["anynpu"]["command"]], "anything", ("/v2/health/ready",))


def system_case() -> Case:
    (command,) = unit()["ExecStart"]
    return Case([word for word in shlex.split(command) if word != "$ANYNPU_OPTIONS"], "anything", ("/v2/health/ready",))


CASES: dict[str, Callable[[], Case]] = {
    "kserve on a board": lambda: runtime_case("anynpu-rknn"),
    "kserve": lambda: runtime_case("anynpu-sim"),
    "image": image_case,
    "compose": compose_case,
    "systemd": system_case,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model, whose name is not that of the service."""
    rng = np.random.default_rng(4)
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "weights"], ["features"], "conv", strides=[8, 8], pads=[1, 1, 1, 1])],
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 4, 4, 4])],
        [weights],
    )
    folder = tmp_path_factory.mktemp("models")
    file = folder.parent / "manifest.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), file)
    pictures = [rng.integers(0, 256, (32, 32, 3), np.uint8)]
    anynpu.compile(file, target="rk3588", dataset=pictures, std=(255, 255, 255)).save(folder / "anything.rknn")
    return folder


@pytest.fixture(params=[pytest.param(name, marks=() if name == "image" else pytest.mark.full) for name in CASES])
def served(request: pytest.FixtureRequest, models: Path, tmp_path: Path) -> Iterator[tuple[Case, int, int]]:
    """The server of a committed command, but on loopback, with ports of the test, its models, and the software NPU."""
    case = CASES[request.param]()
    http, grpc = free_ports(2)
    command = " ".join(map(shlex.quote, case.command))
    command = re.sub(r"\S*\banynpu(?= serve)", f"{shlex.quote(sys.executable)} -m anynpu.cli", command, count=1)
    command = replaced(command, r"(=| )/(mnt/models|models|var/lib/anynpu/models)\b", rf"\g<1>{models}")
    command = re.sub(r"(--host[= ])0\.0\.0\.0", r"\g<1>127.0.0.1", command).replace("--device=rknn", "--device=sim")
    command = replaced(command, r"(--port[= ])\d+", rf"\g<1>{http}")
    command = replaced(command, r"(--grpc-port[= ])\d+", rf"\g<1>{grpc}")
    words = shlex.split(command)
    if request.param == "systemd" and unit()["MemoryDenyWriteExecute"] == ["yes"]:
        words = [sys.executable, "-c", DENY_WRITE_EXECUTE, *words]
    process = Process(words, tmp_path / "server.log", {"ANYNPU_DEVICE": "sim"})
    try:
        process.wait_for(lambda: answers(http, case.probes[-1]), "the server is ready")
        yield case, http, grpc
    finally:
        process.end()


def test_the_committed_command_serves(served: tuple[Case, int, int]) -> None:
    case, http, grpc = served
    for probe in case.probes:
        assert answers(http, probe)
    assert answers(http, f"/v2/models/{case.model}/ready")
    picture = np.zeros((1, 3, 32, 32), np.uint8)
    for module, port in ((triton_http, http), (triton_grpc, grpc)):
        tensor = module.InferInput("images", list(picture.shape), "UINT8")
        tensor.set_data_from_numpy(picture)
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert client.infer(case.model, [tensor]).as_numpy("features").shape == (1, 4, 4, 4)
    if case.model == "anything":
        check = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])", dockerfile(), re.MULTILINE)[0]
        python, *arguments = json.loads(replaced(check, "127.0.0.1:8000", f"127.0.0.1:{http}"))
        assert python == "python"
        assert subprocess.run([sys.executable, *arguments], timeout=PATIENCE).returncode == 0
