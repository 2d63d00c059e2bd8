"""Drives EZ RKNN Async on whatever library it loads: ``peer_client.py CASE MODEL FOLDER``. Runs in an environment that has no anynpu.

FOLDER has the inputs (input0.npy ..., images as [1, H, W, 3]); results are saved beside them, and the test compares.
"""

from __future__ import annotations

import json
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import ztu_somemodelruntime_ez_rknn_async as peer

warnings.simplefilter("ignore")  # it recommends a newer runtime
case, model, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
pictures = [np.load(path) for path in sorted(folder.glob("input*.npy"))]


def session(**options: object) -> peer.InferenceSession:
    return peer.InferenceSession(model, provider_options=peer.make_provider_options(**options))


def save(name: str, results: list[np.ndarray]) -> None:
    np.save(folder / f"{name}.npy", np.stack(results))


def planes(picture: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(picture.transpose(0, 3, 1, 2))


def layouts() -> None:
    for layout in ("nchw", "nchw_software", "nhwc", "any"):
        running = session(layout=layout)
        feeds = [planes(picture) if layout.startswith("nchw") else picture for picture in pictures]
        for kind in (np.uint8, np.float32, np.int32):
            save(f"{layout}-{np.dtype(kind)}", [running.run(None, {"images": feed.astype(kind)})[0] for feed in feeds])


def ordered() -> None:
    running = session(layout="nhwc", schedule=[0, 1, 2])
    count, results, done = 40, [], threading.Event()

    def arrived(outputs: list[np.ndarray], index: int, error: str) -> None:
        results.append((index, error, outputs[0]))
        if len(results) == count:
            done.set()

    for index in range(count):
        running.run_async(None, {"images": pictures[index % len(pictures)]}, arrived, index)
    assert done.wait(300)
    assert [(index, error) for index, error, _ in results] == [(index, "") for index in range(count)]
    save("ordered", [output for *_, output in results])


def pipeline() -> None:
    running = session(layout="nhwc", schedule=[0, 1, 2])
    answers = [running.run_pipeline({"images": picture}, depth=2) for picture in pictures + pictures[:2]]
    assert answers[:2] == [None, None]
    save("pipeline", [answer[0] for answer in answers[2:]])


def binding() -> None:
    for layout in ("nhwc", "native"):
        running = session(layout="nhwc", zero_copy_layout=layout)
        bound, results = running.io_binding(), []
        for picture in pictures:
            codes = (picture.astype(np.int16) - 128).astype(np.int8)  # what the model itself takes: mean 0, std 255
            value = peer.OrtValue.ortvalue_from_numpy(codes, "rknpu2", name="images", session=running, io_kind="input")
            assert value.memory_info()["dmabuf_backed"], "the board's heap was not used"
            bound.bind_ortvalue_input("images", value)
            bound.bind_output("features", "rknpu2")
            running.run_with_iobinding(bound)
            results.append(bound.copy_outputs_to_cpu()[0])
        save(f"binding-{layout}", results)


def generic_memory() -> None:
    """Device memory without a session, which only a board's heap can give."""
    value = peer.OrtValue.ortvalue_from_shape_and_type([1, 3, 32, 32], np.int8, "rknpu2")
    value.update_inplace(np.full((1, 3, 32, 32), 7, np.int8))
    assert (value.numpy() == 7).all()


def shared_weights() -> None:
    master = session(layout="nhwc")
    slave = peer.InferenceSession(model, provider_options=peer.make_provider_options(layout="nhwc"), use_weight_from=master)
    save("shared-master", [master.run(None, {"images": picture})[0] for picture in pictures])
    del master
    save("shared-slave", [slave.run(None, {"images": picture})[0] for picture in pictures])


def made_and_deleted() -> None:
    """Few rounds: the peer itself hangs now and then when it ends a session."""
    for _ in range(4):
        running = session(layout="nhwc", schedule=[0, 1, 2])
        for index in range(6):
            running.run_async(None, {"images": pictures[index % len(pictures)]}, lambda *_: None, index)
        del running
    save("deleted", [session(layout="nhwc").run(None, {"images": picture})[0] for picture in pictures])


def errors() -> None:
    """The types of what each mistake raises, from the exception's own to object; empty where nothing is raised."""
    running, name = session(layout="nhwc"), "images"
    opened = peer.InferenceSession
    (folder / "no_plugin.so").write_text("not a library")

    def crowded() -> None:
        waiting = session(layout="nhwc", max_queue_size=1, submit_timeout_ms=1, schedule=[0])
        gate = threading.Event()
        try:
            for _ in range(100):
                waiting.run_async(None, {name: pictures[0]}, lambda *_: gate.wait(600))
        finally:
            gate.set()

    cases = {
        **{f"schedule {value!r}": lambda value=value: session(schedule=value) for value in ([], "", [-1], "0,-1")},
        **{f"helper schedule {value!r}": lambda value=value: peer.make_provider_options(schedule=value) for value in ([], [-1])},
        **{f"tp_mode {value!r}": lambda value=value: session(tp_mode=value) for value in ("x", "ALL", "", 5)},
        "helper tp_mode": lambda: peer.make_provider_options(tp_mode="x"),
        "helper with both": lambda: peer.make_provider_options(tp_mode="all", schedule=[0]),
        "both": lambda: opened(model, provider_options={"tp_mode": "all", "schedule": [0]}),
        "unknown key": lambda: opened(model, provider_options={"scheduler": [0]}),
        "missing model": lambda: opened(str(folder / "missing.rknn")),
        "missing plugin": lambda: session(custom_op_paths=str(folder / "missing.so")),
        "wrong plugin": lambda: session(custom_op_paths=str(folder / "no_plugin.so")),
        "submit timeout": crowded,
        **{
            f"depth {value!r}": lambda value=value: running.run_pipeline({name: pictures[0]}, value)
            for value in (0, -1, "x", 1.5)
        },
        "empty feed": lambda: running.run(None, {}),
        "large feed": lambda: running.run(None, {name: pictures[0], "other": pictures[0]}),
        "empty list": lambda: running.run(None, []),
        "long list": lambda: running.run(None, [pictures[0], pictures[0]]),
    }
    found: dict[str, list[str]] = {}
    for what, call in cases.items():
        try:
            call()
            found[what] = []
        except Exception as error:
            found[what] = [kind.__name__ for kind in type(error).__mro__]
    (folder / "errors.json").write_text(json.dumps(found))


{
    "errors": errors,
    "layouts": layouts,
    "ordered": ordered,
    "pipeline": pipeline,
    "binding": binding,
    "generic_memory": generic_memory,
    "shared_weights": shared_weights,
    "made_and_deleted": made_and_deleted,
}[case]()
sys.stdout.write("done\n")
sys.stdout.flush()
