"""A tour of the provider on whichever onnxruntime is imported: ``tour.py PROVIDER FOLDER``. It prints a line for each stop.

FOLDER has NAME.onnx (EPContext models with embed mode 0), NAME_embedded.onnx, NAME.npy (input) and NAME_out.npy (result of our session).
"""

import os
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(provider: str, folder: Path) -> None:
    minor = int(ort.__version__.split(".")[1])
    ort.register_execution_provider_library("anynpu", provider)
    ort.register_execution_provider_library("anynpu.virtual", provider)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "AnynpuExecutionProvider"]
    print("release", ort.__version__)
    print("devices", len(devices), *(device.device.type.name for device in devices))

    def session(path: Path, by: str = "device", **options: str) -> ort.InferenceSession:
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        if by == "policy":
            settings.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
        else:
            settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if by == "device":
            settings.add_provider_for_devices(devices[:1], options)
        providers = {"providers": ["AnynpuExecutionProvider"], "provider_options": [options]} if by == "name" else {}
        return ort.InferenceSession(str(path), settings, **providers)

    for result in sorted(folder.glob("*_out.npy")):
        name = result.name.removesuffix("_out.npy")
        feed, expected = {"images": np.load(folder / f"{name}.npy")}, np.load(result)
        for model in (f"{name}.onnx", f"{name}_embedded.onnx"):
            (got,) = session(folder / model).run(None, feed)
            print("equal" if np.array_equal(got, expected) else "different", model)
    ways = ["device", *(["name"] if minor >= 25 else []), *(["policy"] if minor >= 24 else [])]
    for way in ways:
        made = session(folder / model, way)
        print("by", way, "equal" if np.array_equal(made.run(None, feed)[0], expected) else "different")

    made = session(folder / model)
    pid = os.fork()
    if pid == 0:
        try:
            made.run(None, feed)
            os._exit(1)
        except Exception as error:
            os._exit(0 if "created before fork()" in str(error) else 2)
    print("fork", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    wrong = []

    def work() -> None:
        for _ in range(5):
            if not np.array_equal(made.run(None, feed)[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads", len(wrong), "wrong")
    if minor >= 24:  # before, the device that was created is deleted with the library, and the session refers to it
        ort.unregister_execution_provider_library("anynpu.virtual")
    ort.unregister_execution_provider_library("anynpu")
    print("unregistered", "equal" if np.array_equal(made.run(None, feed)[0], expected) else "different")


main(sys.argv[1], Path(sys.argv[2]))
