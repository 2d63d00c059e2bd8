"""RKNNLite: the vendor's class for programs on a board, call by call."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from ... import modelfile
from ..._util.types import Array
from ...errors import AnynpuError
from ...modelfile import FileKind
from ...modelfile.vendorfile import read as read_vendor_file
from .. import Flag
from .log import RKNNLog, describe
from .models import choose, open_model
from .runtime import Runtime

__all__ = ["CoreMasks", "RKNNLite"]

VERSION = "2.3.2"
MAX_MASK = 0xFFFF


class CoreMasks:
    """The constants of both of the vendor's classes that say which cores to use."""

    NPU_CORE_AUTO = 0
    NPU_CORE_0 = 1
    NPU_CORE_1 = 2
    NPU_CORE_2 = 4
    NPU_CORE_0_1 = 3
    NPU_CORE_0_1_2 = 7
    NPU_CORE_ALL = 0xFFFF


class RKNNLite(CoreMasks):
    """A model on a board's NPU, or on the software NPU that stands in for it.

    Calls return 0 or -1, and ``inference`` None, as the vendor's do; the log says why. Objects may be used from any thread; inferences of
    one object run one after the other, those of several objects at the same time on the cores of their masks.

    :param verbose: also log what is only worth knowing
    :param verbose_file: a file that gets the log, too
    """

    def __init__(self, verbose: bool = False, verbose_file: str | None = None) -> None:
        self.verbose = verbose
        self.rknn_log = RKNNLog("rknnlite", verbose, verbose_file)
        self.rknn_runtime: Runtime | None = None
        self._path: Path | None = None
        self.rknn_log.logger.warning(f"rknn-toolkit-lite2 version: {VERSION}")

    @property
    def rknn_base(self) -> RKNNLite:
        """The object itself: programs take ``rknn_runtime`` from it."""
        return self

    def load_rknn(self, path: str, key_path: str | None = None) -> int:
        """Choose the model file.

        :param key_path: the key of an encrypted model, which cannot be read here
        :return: 0, or -1 where there is no such file or it is no model
        """
        log = self.rknn_log.logger
        file = Path(path)
        if not file.is_file():
            log.error(f"Invalid RKNN model path: {path}")
            return -1
        if key_path:
            log.error("encrypted models cannot be read; load the model that was not encrypted")
            return -1
        try:
            kind = modelfile.identify(file)
        except AnynpuError as error:
            log.error(f"Catch exception when load RKNN model! {describe(error)}")
            return -1
        if kind is not FileKind.ANYNPU and not kind.of_a_vendor:
            log.error(f"Invalid RKNN model: {path} is not an .rknn file")
            return -1
        self._path = file
        return 0

    def init_runtime(
        self,
        target: str | None = None,
        device_id: str | None = None,
        async_mode: bool = False,
        core_mask: int = CoreMasks.NPU_CORE_AUTO,
    ) -> int:
        """Put the model on the NPU. A second call releases the first.

        :param target: a chip, for the software NPU; on a board it is not needed
        :param device_id: no effect: a board of its own is the only one
        :param core_mask: which cores to use, on chips with several
        """
        log = self.rknn_log.logger
        if self._path is None:
            log.error("Model is not loaded yet, this interface should be called after load_rknn!")
            return -1
        self._end_runtime()
        if not isinstance(core_mask, int) or not 0 <= core_mask <= MAX_MASK:
            log.error(f"core_mask {core_mask!r} is not known")
            return -1
        flags = Flag.RKNN_FLAG_ASYNC_MASK if async_mode else Flag.RKNN_FLAG_PRIOR_HIGH
        try:
            device = choose(target)
            model = open_model(self._path, device, log.warning)
            self.rknn_runtime = Runtime(model, device=device, core_mask=core_mask, flags=flags)
        except AnynpuError as error:
            log.error("Catch exception when init runtime!")
            log.error(describe(error))
            return -1
        return 0

    def inference(
        self,
        inputs: Any,
        data_type: Any = None,
        data_format: Any = None,
        inputs_pass_through: Any = None,
        get_frame_id: bool = False,
        reuse_outputs: bool = False,
    ) -> Any:
        """Run the model.

        :param inputs: a list of arrays, one for each input, pictures with their batch axis
        :param data_type: name of a type that the inputs become first; one, or a list
        :param data_format: ``nhwc`` (for four dimensions, if not given) or ``nchw``; one, or a list
        :param inputs_pass_through: whether an input is in the NPU's own form already; one, or a list
        :param get_frame_id: return the outputs and the number of the frame
        :param reuse_outputs: fill the arrays of the last call again
        :return: a list of writable float32 arrays; None on any failure
        """
        log = self.rknn_log.logger
        runtime = self.rknn_runtime
        if runtime is None:
            log.error("Runtime environment is not inited, please call init_runtime to init it first!")
            return None
        try:
            outputs, frame = runtime.infer(inputs, data_type, data_format, inputs_pass_through, reuse_outputs=reuse_outputs)
        except (AnynpuError, ValueError, TypeError) as error:
            log.error("Catch exception when setting inputs.")
            log.error(describe(error))
            return None
        result: list[Array] = outputs
        return (result, frame) if get_frame_id else result

    def get_sdk_version(self) -> str | None:
        """The versions of library and driver; None before ``init_runtime``."""
        runtime = self.rknn_runtime
        if runtime is None:
            self.rknn_log.logger.error("Runtime environment is not inited, please call init_runtime to init it first!")
            return None
        try:
            return runtime.get_sdk_version()
        except AnynpuError as error:
            self.rknn_log.logger.error(describe(error))
            return None

    def list_support_target_platform(self, rknn_model: str | None = None) -> dict[str, list[str]] | None:
        """The chips that a model file is for.

        :param rknn_model: a file; that of ``load_rknn``, if not given
        """
        path = self._path if rknn_model is None else Path(rknn_model)
        try:
            if path is None or not path.is_file():
                self.rknn_log.logger.error(f"Invalid RKNN model path: {path}")
                return None
            if modelfile.identify(path).of_a_vendor:
                found = [name.strip() for name in read_vendor_file(path).target.split(",") if name.strip()]
            else:
                found = [modelfile.read(path).chip]
        except AnynpuError as error:
            self.rknn_log.logger.error(describe(error))
            return None
        return {"support_target_platform": found, "filled_target_platform": list(found)}

    def list_devices(self) -> tuple[list[str], list[str]]:
        """The boards that are connected by adb and by ntb: none, programs of this class run on the board."""
        return [], []

    def release(self) -> None:
        """Give everything back; again is harmless."""
        self._end_runtime()
        self.rknn_log.close()

    def _end_runtime(self) -> None:
        runtime, self.rknn_runtime = self.rknn_runtime, None
        if runtime is not None:
            runtime.close()

    def __enter__(self) -> RKNNLite:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
