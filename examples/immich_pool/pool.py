"""A pool of RKNNLite objects in the shape that Immich's machine learning has: one object a thread, one core each, results in order.

It is written for a board and knows nothing of anynpu.
"""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]

SEVERAL_CORES = {"rk3576": 2, "rk3588": 3}
ONE_CORE = ("rk3566", "rk3568")


def available() -> str | None:
    """The chip, where this is a board that the pool can use and the vendor's package is there."""
    if importlib.util.find_spec("rknnlite") is None or importlib.util.find_spec("rknnlite.api") is None:
        return None
    try:
        names = Path("/proc/device-tree/compatible").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    chip = names.rstrip("\0").split(",")[-1]
    return chip if chip in (*SEVERAL_CORES, *ONE_CORE) else None


class Pool:
    """Runs a model on every core.

    :param model: a ``.rknn`` file
    :param threads: how many objects; they take turns with the cores

    >>> with Pool(Path("clip.rknn"), "rk3588", threads=6) as pool:    # doctest: +SKIP
    ...     vectors = pool.run([picture])
    """

    def __init__(self, model: Path, chip: str, threads: int = 2) -> None:
        self._free: Queue[Any] = Queue()
        self._objects = [self._opened(model, chip, number) for number in range(threads)]
        for one in self._objects:
            self._free.put(one)
        self._threads = ThreadPoolExecutor(threads)

    def _opened(self, model: Path, chip: str, number: int) -> Any:
        from rknnlite.api import RKNNLite

        lite = RKNNLite()
        lite.rknn_log.logger.setLevel("ERROR")
        if lite.load_rknn(str(model)) != 0:
            raise RuntimeError(f"{model} cannot be loaded")
        if chip in SEVERAL_CORES:
            masks = [RKNNLite.NPU_CORE_0, RKNNLite.NPU_CORE_1, RKNNLite.NPU_CORE_2][: SEVERAL_CORES[chip]]
            code = lite.init_runtime(core_mask=masks[number % len(masks)])
        else:
            code = lite.init_runtime()  # a chip with one core takes no mask
        if code != 0:
            raise RuntimeError("the runtime cannot be started")
        return lite

    def submit(self, inputs: list[Array]) -> Future[list[Array]]:
        """Run the model on images in the order N, C, H, W, as soon as an object is free."""
        return self._threads.submit(self._infer, inputs)

    def run(self, inputs: list[Array]) -> list[Array]:
        """The same, and wait for it."""
        return self.submit(inputs).result()

    def _infer(self, inputs: list[Array]) -> list[Array]:
        lite = self._free.get()
        try:
            outputs = lite.inference(inputs=inputs, data_format="nchw")
        finally:
            self._free.put(lite)
        if outputs is None:
            raise RuntimeError("the inference failed")
        return list(outputs)

    def close(self) -> None:
        """Wait for what runs and give the NPU back."""
        self._threads.shutdown()
        for one in self._objects:
            one.release()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
