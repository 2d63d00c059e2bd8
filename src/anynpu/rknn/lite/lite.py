"""RKNNLite: the vendor's class for programs on a board, call by call."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from ... import chips, modelfile
from ..._util.lifetime import ModuleLock
from ..._util.types import Array
from ...errors import AnynpuError, ModelError, ModelFormatError, VendorModelError
from ...modelfile import CompiledModel, FileKind
from ...modelfile.vendorfile import VendorModelInfo
from ...modelfile.vendorfile import read as read_vendor_file
from ...vendors.devices import SOFTWARE, choose_device
from ...vendors.registry import all_vendors
from .. import Flag
from .runtime import Runtime

# The messages of the vendor's classes: a letter for the level, then the text, on stderr and in a file if one is named.


if TYPE_CHECKING:
    _TextHandler = logging.StreamHandler[TextIO]
else:
    _TextHandler = logging.StreamHandler  # has no parameters in Python 3.10


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname[0]} {record.getMessage()}"


class _Stderr(_TextHandler):
    """Writes to what stderr is at that moment, as programs and tests replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Logger(logging.Logger):
    """A logger outside of the process's tree. That tree forgets which levels are enabled when one is set, and does not know this logger."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return self.manager.disable < level >= self.getEffectiveLevel()


class RKNNLog:
    """The log of one object. Programs reach for its ``logger`` to set the level.

    It is no logger of the process's tree: objects of this kind come and go, and those of the tree stay for ever.

    :param verbose: also state what is only worth knowing
    :param verbose_file: a file that gets the same lines
    """

    def __init__(self, name: str, verbose: bool = False, verbose_file: str | None = None) -> None:
        self.logger = _Logger(name, logging.DEBUG if verbose else logging.WARNING)
        handlers: list[logging.Handler] = [_Stderr()]
        if verbose_file:
            handlers.append(logging.FileHandler(verbose_file, delay=True))
        for handler in handlers:
            handler.setFormatter(_Formatter())
            self.logger.addHandler(handler)
        self._said: set[str] = set()

    def once(self, text: str) -> None:
        """Warn, but not again with the same words."""
        if text not in self._said:
            self._said.add(text)
            self.logger.warning(text)

    def close(self) -> None:
        """Close the file, if there is one; a later message opens it again."""
        for handler in self.logger.handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()


def describe(error: BaseException) -> str:
    """What is wrong and what to do about it, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


# Which model and which device a path and a program's surroundings stand for.
#
# A file of the vendor's toolkit runs on the vendor's library alone. Elsewhere its *twin* runs, ``NAME.anynpu`` beside it; where there is
# none, but the ONNX file that it came from, the anynpu model is compiled at first use and kept.


Say = Callable[[str], None]

_TWIN = ".anynpu"
_RECIPE = ".compile.json"
_OBSERVERS = ("ANYNPU_CALL_LOG", "ANYNPU_TRACE", "RKNN_LOG_LEVEL")
_TAGS = re.compile(r"[-_.](?:i8|int8|u8|fp|fp16|fp32|float16|w8a8)$", re.IGNORECASE)
_MAX_RECIPE = 1 << 20
_twins = ModuleLock()
"""Held while an anynpu model is compiled: objects of a pool that load the same file wait for the first."""


def under_exec(environment: Mapping[str, str] | None = None) -> bool:
    """Whether ``anynpu exec`` has started this program, so that its board and the board's library are ours."""
    return bool((os.environ if environment is None else environment).get("ANYNPU_BOARD_ROOT"))


def choose(target: str | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """The device for a program: None where the machine and the environment decide.

    Under ``anynpu exec`` the machine looks like a board whose library is ours. The software NPU is then taken directly, so that
    errors state why; not where the calls of that library are to be written down.

    >>> choose("rk3566", {"ANYNPU_BOARD_ROOT": "/tmp/board", "ANYNPU_CHIP": "rk3588"})
    'sim:rk3588'
    """
    environment = os.environ if environment is None else environment
    if environment.get("ANYNPU_DEVICE") or any(environment.get(vendor.library_variable) for vendor in all_vendors()):
        return None
    if under_exec(environment):
        if any(environment.get(name) for name in _OBSERVERS):
            return None
        chip = environment.get("ANYNPU_CHIP")
        return f"{SOFTWARE}:{chip}" if chip else SOFTWARE
    choice = choose_device(None, environment=environment)
    known = target is not None and target.lower() in chips.names()
    return (
        f"{SOFTWARE}:{target.lower()}" if target is not None and known and choice.kind == SOFTWARE and not choice.detail else None
    )


def open_model(path: Path, device: str | None, say: Say) -> Path | CompiledModel:
    """What :class:`~anynpu.rknn.lite.runtime.Runtime` is to open for the file *path*.

    :param say: called with the line about an anynpu model that is compiled
    :raises ModelError: it is no model, or there is no way to run it
    """
    kind = modelfile.identify(path)
    if kind is FileKind.ANYNPU:
        return path
    if not kind.of_a_vendor:
        raise ModelFormatError(
            f"Invalid RKNN model: {path} ({kind.value})", hint="compile an ONNX model with anynpu.compile or RKNN"
        )
    if choose_device(device).kind != SOFTWARE and not under_exec():
        return path
    with _twins:
        try:
            modelfile.read_or_twin(path)
        except VendorModelError:
            source = find_onnx(path)
            return path if source is None else _compile_twin(path, source, path.with_suffix(_TWIN), say)
        return path


def find_onnx(path: Path) -> Path | None:
    """The ONNX file that a vendor's file came from: in its folder or the one above, under the same name, with or without what names of such
    files end with (the chip, the type); or two above a folder that is named after the chip."""
    path = path.absolute()
    folders = [path.parent, *path.parent.parents[: 2 if path.parent.name.lower() in chips.names() else 1]]
    for folder in folders:
        for stem in _stems(path.stem):
            candidate = folder / f"{stem}.onnx"
            if candidate.is_file():
                return candidate
    return None


def _stems(stem: str) -> list[str]:
    stems = [stem]
    ends = re.compile(rf"[-_.](?:{'|'.join(map(re.escape, chips.names()))})$", re.IGNORECASE)
    for _ in range(3):
        shorter = _TAGS.sub("", ends.sub("", stems[-1]))
        if shorter == stems[-1] or not shorter:
            break
        stems.append(shorter)
    return stems


def _compile_twin(path: Path, source: Path, twin: Path, say: Say) -> Path | CompiledModel:
    from ...compiler import compile

    info = read_vendor_file(path)
    chip = os.environ.get("ANYNPU_CHIP") or info.chip or "rk3588"
    options = _recipe(path, source)
    if "dtype" not in options:
        dataset = next((file for file in (source.with_suffix(".txt"), source.parent / "dataset.txt") if file.is_file()), None)
        if dataset is not None and _is_int8(info):
            options.setdefault("dataset", str(dataset))
        options["dtype"] = "w8a8" if "dataset" in options else "fp16"
    try:
        model = compile(str(source), chip, **options)
    except AnynpuError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # the author of the options file could write anything there
        raise ModelError(
            f"{source.name} cannot be compiled with {path.with_suffix(_RECIPE).name}: {str(error)[:200]}",
            hint='it takes options of anynpu.compile, for example {"std": [255, 255, 255]}',
        ) from error
    kept = "kept in memory"
    try:
        model.save(twin)
        kept = f"kept as {twin.name}"
    except (OSError, AnynpuError):  # a folder that cannot be written to, such as a mounted library of models
        pass
    scaled = (
        ""
        if "mean" in options or "std" in options
        else f", without mean and std ({path.with_suffix(_RECIPE).name} can give them)"
    )
    say(
        f"{path.name} is the vendor's: compiled an anynpu model from {source.name} for {chip} as {options['dtype']}{scaled}; {kept}"
    )
    return path if twin.is_file() else model


def _recipe(path: Path, source: Path) -> dict[str, Any]:
    """Options of the compiler that lie beside the model or its source, as ``NAME.compile.json``."""
    for file in (path.with_suffix(_RECIPE), source.with_suffix(_RECIPE)):
        if file.is_file():
            if file.stat().st_size > _MAX_RECIPE:
                raise ModelError(
                    f"{file} has more than {_MAX_RECIPE} bytes", hint="write a JSON object of options of anynpu.compile"
                )
            try:
                options = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ModelError(
                    f"{file} cannot be read: {str(error)[:200]}", hint="write a JSON object of options of anynpu.compile"
                ) from None
            if not isinstance(options, dict):
                raise ModelError(f"{file} is no JSON object", hint='for example {"std": [255, 255, 255]}')
            if isinstance(options.get("dataset"), str):
                options["dataset"] = str(file.parent / options["dataset"])
            return options
    return {}


def _is_int8(info: VendorModelInfo) -> bool:
    return any(tensor.dtype in ("int8", "uint8") for tensor in info.inputs) or not any(tensor.dtype for tensor in info.inputs)


VERSION = "2.3.2"
MAX_MASK = 0xFFFF


class CoreMasks:
    """The constants of both of the vendor's classes that state which cores to use."""

    NPU_CORE_AUTO = 0
    NPU_CORE_0 = 1
    NPU_CORE_1 = 2
    NPU_CORE_2 = 4
    NPU_CORE_0_1 = 3
    NPU_CORE_0_1_2 = 7
    NPU_CORE_ALL = 0xFFFF


class RKNNLite(CoreMasks):
    """A model on a board's NPU, or on the software NPU that stands in for it.

    Calls return 0 or -1, and ``inference`` None, as the vendor's do; the log states why. Objects may be used from any thread; inferences of
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

        :param inputs: a list of arrays, one for each input, images with their batch axis
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
