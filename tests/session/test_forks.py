"""Forks while requests are pending: the child is notified about what it inherited, opens sessions of its own, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from npu.builders import dense_chain
from onnx import TensorProto, helper

import anynpu
from anynpu import modelfile

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

FORKS = r"""
import faulthandler, os, random, sys, threading, time, warnings
import numpy as np
from anynpu import InferenceSession
from anynpu.errors import SessionError

warnings.simplefilter("ignore", DeprecationWarning)
model, count, chance = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
x = np.zeros((1, 8), np.int8)
session = InferenceSession(model, device="sim", provider_options={"max_queue_size": 50})
idle = InferenceSession(model, device="sim")
stop = threading.Event()


def load():
    while not stop.is_set():
        session.submit(None, x, timeout=chance.choice((None, 60)))
        time.sleep(0.0002)


def child():
    faulthandler.dump_traceback_later(60, exit=True)
    with InferenceSession(model, device="sim") as own:
        own.run(None, x)
        own.submit(None, x, timeout=300).result()
        own.run_with_iobinding(bound(own))
    for inherited in (session, idle):
        for call in (lambda: inherited.run(None, x), lambda: inherited.submit(None, x)):
            try:
                call()
            except SessionError as error:
                assert "belongs to the process that was forked" in str(error)
            else:
                raise AssertionError("the child used a session of its parent")
        inherited.close()
    try:
        pending.result()
    except SessionError:
        pass
    globals().pop("idle")
    sys.exit(0)  # with all that runs at the end of an interpreter


def bound(own):
    binding = own.io_binding()
    binding.bind_cpu_input(own.input_names[0], x)
    return binding


threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
hung = 0
for _ in range(count):
    time.sleep(chance.random() * 0.003)
    pending = session.submit(None, x)
    process = os.fork()
    if process == 0:
        child()
    hung += os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) != 0
stop.set()
for thread in threads:
    thread.join()
session.close(finish=True)
print(hung, "of", count)
"""


def fork(tmp_path: Path, chip: str, count: int, seed: int) -> None:
    path = tmp_path / "model"
    path.write_bytes(modelfile.to_bytes(replace(dense_chain(), chip=chip)))
    result = subprocess.run(
        [sys.executable, "-c", FORKS, str(path), str(count), str(seed)], capture_output=True, text=True, timeout=3600, check=False
    )
    assert (result.returncode, result.stdout) == (0, f"0 of {count}\n"), result.stderr[-4000:]


@pytest.mark.parametrize("chip", ["rk3588", pytest.param("a733", marks=pytest.mark.full)])
def test_a_few_forks(tmp_path: Path, chip: str) -> None:
    fork(tmp_path, chip, 4, 1)


@pytest.mark.full
@pytest.mark.parametrize(("chip", "seed"), [("rk3588", 2), ("a733", 3)])
def test_a_hundred_forks(tmp_path: Path, chip: str, seed: int) -> None:
    fork(tmp_path, chip, int(os.environ.get("ANYNPU_FORKS", "100")), seed)


FIRST_USES = r"""
import faulthandler, os, random, sys, threading, time, warnings

warnings.simplefilter("ignore", DeprecationWarning)
use, model, network, delay = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
import anynpu


def float16():
    import numpy as np
    with anynpu.InferenceSession(model, device="sim") as session:
        session.run(None, {node.name: np.zeros(node.shape, np.float32) for node in session.get_inputs()})


def compiled():
    anynpu.compile(network, target="rk3588", dtype="fp16")


def rknnlite():
    from anynpu.rknn.lite import RKNNLite
    assert RKNNLite(verbose=False).load_rknn(model) == 0


def served():
    from anynpu._util import optional as _optional
    import anynpu.serve
    _optional.grpc_aio(), _optional.protobuf("descriptor"), _optional.prometheus_client()


run = {"float16": float16, "compile": compiled, "rknnlite": rknnlite, "grpc": served}[use]
thread = threading.Thread(target=run)
children = []
thread.start()
while thread.is_alive() and len(children) < 6:
    process = os.fork()
    if process == 0:
        faulthandler.dump_traceback_later(300, exit=True)
        run()
        os._exit(0)
    children.append(process)
    time.sleep(delay)
thread.join()
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children), "of", len(children))
"""


def fork_during_first_use(tmp_path: Path, use: str, delay: float) -> int:
    """Forks a process while its other thread is in its first use of a part; the number of children, all of which must succeed."""
    network, path = tmp_path / "erf.onnx", tmp_path / "erf.anynpu"
    if not path.exists():
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"])], "erf", ends[:1], ends[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_operatorsetid("", 13)], ir_version=9), network)
        anynpu.compile(network, target="rk3588", dtype="fp16").save(path)
    result = subprocess.run(
        [sys.executable, "-c", FIRST_USES, use, str(path), str(network), str(delay)],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    failed, _, count = result.stdout.strip().partition(" of ")
    assert (result.returncode, failed) == (0, "0"), result.stdout + result.stderr[-4000:]
    return int(count)


@pytest.mark.parametrize("use", ["float16", "compile", "rknnlite", "grpc"])
def test_forks_during_a_first_use(tmp_path: Path, use: str) -> None:
    assert fork_during_first_use(tmp_path, use, 0.01) > 0


@pytest.mark.full
@pytest.mark.parametrize("use", ["float16", "compile", "rknnlite", "grpc"])
def test_fifty_forks_during_a_first_use(tmp_path: Path, use: str) -> None:
    count, delay = 0, 0.0
    while count < int(os.environ.get("ANYNPU_FIRST_USES", "50")):
        count += fork_during_first_use(tmp_path, use, delay)
        delay = (delay + 0.007) % 0.1
