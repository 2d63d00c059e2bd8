"""The options of a session: what a user may write, and what the session makes of it.

:func:`make_provider_options` and :class:`RknnProviderOptions` have the names, defaults and aliases that EZ RKNN Async documents; the last
six keys are additions. :func:`parse_options` turns whatever was passed as ``providers`` and ``provider_options`` into
:class:`SessionOptions`, and refuses what it does not understand.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, Literal, TypedDict

import numpy as np

from ..errors import OptionError
from ..vendors import registry

__all__ = [
    "LayoutLike",
    "OutputTypeLike",
    "PathLikeStr",
    "RknnProviderOptions",
    "Rknpu2ProviderOptions",
    "ScheduleLike",
    "SessionOptions",
    "TpModeLike",
    "ZeroCopyLayoutLike",
    "make_provider_options",
    "make_rknpu2_provider_options",
    "parse_options",
]

LayoutLike = Literal["nchw", "original", "nchw_software", "original_software", "nhwc", "any"]
ZeroCopyLayoutLike = Literal["nhwc", "native"]
TpModeLike = Literal["auto", "all", "0", "1", "2", "0,1", "0,1,2"]
ScheduleLike = int | str | Sequence[int]
PathLikeStr = str | PathLike[str]
OutputTypeLike = str | Mapping[str, str]
"""``float32`` (values; integers and booleans that are not quantised keep their type), ``model`` (the output's own type), a type's name, or
one of these by output name."""

DEFAULT_PLUGIN_FOLDER = "/usr/lib/rknpu/op_plugins/"

_LAYOUTS = {
    "nchw": "nchw",
    "original": "nchw",
    "nchw_software": "nchw_software",
    "original_software": "nchw_software",
    "nhwc": "nhwc",
    "any": "any",
}
TP_MASKS = {"auto": 0, "all": 0xFFFF, "0": 1, "1": 2, "2": 4, "0,1": 3, "0,1,2": 7}
_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")


class RknnProviderOptions(TypedDict, total=False):
    """What ``provider_options`` may hold."""

    layout: LayoutLike
    zero_copy_layout: ZeroCopyLayoutLike
    max_queue_size: int
    threads_per_core: int
    submit_timeout_ms: int
    sequential_callbacks: bool
    schedule: ScheduleLike
    tp_mode: TpModeLike
    enable_pacing: bool
    disable_dup_context: bool
    custom_op_paths: PathLikeStr | Sequence[PathLikeStr]
    custom_op_path: PathLikeStr | Sequence[PathLikeStr]
    custom_op_default_path: bool
    load_custom_ops_from_default_path: bool
    output_type: OutputTypeLike
    copy_inputs: bool
    watchdog_ms: int
    isolate: bool
    isolate_memory_mb: int
    isolate_cpu_s: int


@dataclass(frozen=True)
class SessionOptions:
    """Options as the session uses them.

    :ivar layout: ``nchw``, ``nchw_software``, ``nhwc`` or ``any``
    :ivar schedule: core of each request in turn; None without one
    :ivar tp_mask: core mask; None if ``tp_mode`` was not given
    :ivar family: the family that ``providers`` asks for; empty if it does not
    :ivar isolate: run the model in processes of their own, with limits: see :mod:`anynpu.session.isolation`
    :ivar isolate_memory_mb: memory for the model in each of them, in MiB
    :ivar isolate_cpu_s: processor time of one run there, and of opening the model, in seconds
    :ivar given: what the caller wrote, as ``get_provider_options`` gives it back
    :ivar custom_op_folder: where plugins are looked for by name; empty for nowhere
    """

    layout: str = "nchw"
    zero_copy_layout: str = "nhwc"
    max_queue_size: int = 3
    threads_per_core: int = 1
    submit_timeout_ms: int = 10000
    sequential_callbacks: bool = True
    schedule: tuple[int, ...] | None = None
    tp_mode: str | None = None
    enable_pacing: bool = False
    disable_dup_context: bool = False
    custom_op_paths: tuple[str, ...] = ()
    custom_op_folder: str = ""
    output_type: str | Mapping[str, str] = "float32"
    copy_inputs: bool = True
    watchdog_ms: int | None = None
    isolate: bool = False
    isolate_memory_mb: int = 2048
    isolate_cpu_s: int = 60
    family: str = ""
    provider: str = ""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def tp_mask(self) -> int | None:
        return None if self.tp_mode is None else TP_MASKS[self.tp_mode]

    @property
    def custom_ops(self) -> bool:
        """Whether plugins were asked for."""
        return bool(self.custom_op_paths or self.custom_op_folder)


def make_provider_options(
    *,
    layout: LayoutLike = "original",
    zero_copy_layout: ZeroCopyLayoutLike = "nhwc",
    max_queue_size: int = 3,
    threads_per_core: int = 1,
    submit_timeout_ms: int = 10000,
    sequential_callbacks: bool = True,
    schedule: ScheduleLike | None = None,
    tp_mode: TpModeLike | None = None,
    enable_pacing: bool = False,
    disable_dup_context: bool = False,
    custom_op_paths: PathLikeStr | Sequence[PathLikeStr] | None = None,
    custom_op_default_path: bool = False,
    output_type: OutputTypeLike | None = None,
    copy_inputs: bool | None = None,
    watchdog_ms: int | None = None,
    isolate: bool | None = None,
    isolate_memory_mb: int | None = None,
    isolate_cpu_s: int | None = None,
) -> RknnProviderOptions:
    """The options of a session as a checked dictionary.

    :param layout: order of the axes of 4-D inputs: ``nchw`` (the same as ``original``), ``nchw_software``, ``nhwc`` or ``any``
    :param zero_copy_layout: order of the axes in memory that is bound: ``nhwc`` or ``native``
    :param max_queue_size: requests that may wait for each core before submitting blocks
    :param threads_per_core: contexts for each core
    :param submit_timeout_ms: how long submitting blocks before it fails
    :param sequential_callbacks: callbacks in the order of submission; else as requests finish
    :param schedule: the core of each request in turn, for example ``[0, 1, 2]``
    :param tp_mode: several cores for one request: ``auto``, ``all``, ``0``, ``1``, ``2``, ``0,1`` or ``0,1,2``
    :param enable_pacing: spread submissions to the rate that the device sustains
    :param disable_dup_context: a context of its own for each thread, instead of duplicates of the first
    :param custom_op_paths: plugins with custom operators
    :param custom_op_default_path: look for plugins in the vendor's folder too
    :param output_type: ``float32`` (default), ``model``, a type's name, or these by output name
    :param copy_inputs: whether asynchronous requests copy their inputs, so that the caller may change them (default: yes)
    :param watchdog_ms: how long a run may take before its context is given up (default: for ever)
    :param isolate: run the model in processes of their own, with limits, because it is not trusted (default: no)
    :param isolate_memory_mb: memory for the model in each of them, in MiB (default: 2048)
    :param isolate_cpu_s: processor time of one run there, in seconds (default: 60)

    >>> make_provider_options(schedule=[0, 1, 2])["schedule"]
    [0, 1, 2]
    >>> make_provider_options(schedule=[0], tp_mode="all")
    Traceback (most recent call last):
    ...
    anynpu.errors.OptionError: tp_mode conflicts with schedule; set only one
      hint: schedule gives each request one core, tp_mode gives each request several
    """
    options: dict[str, Any] = {
        "layout": layout,
        "zero_copy_layout": zero_copy_layout,
        "max_queue_size": max_queue_size,
        "threads_per_core": threads_per_core,
        "submit_timeout_ms": submit_timeout_ms,
        "sequential_callbacks": sequential_callbacks,
        "enable_pacing": enable_pacing,
        "disable_dup_context": disable_dup_context,
        "custom_op_default_path": custom_op_default_path,
    }
    optional = {
        "schedule": schedule,
        "tp_mode": tp_mode,
        "custom_op_paths": custom_op_paths,
        "output_type": output_type,
        "copy_inputs": copy_inputs,
        "watchdog_ms": watchdog_ms,
        "isolate": isolate,
        "isolate_memory_mb": isolate_memory_mb,
        "isolate_cpu_s": isolate_cpu_s,
    }
    options.update({key: value for key, value in optional.items() if value is not None})
    _parse(options)
    return options  # type: ignore[return-value]


Rknpu2ProviderOptions = RknnProviderOptions
"""The name that EZ RKNN Async has for them as well."""
make_rknpu2_provider_options = make_provider_options
"""The name that EZ RKNN Async has for it as well."""


def parse_options(providers: object, provider_options: object) -> SessionOptions:
    """Options from the two arguments of a session, which accept what onnxruntime and EZ RKNN Async accept."""
    name, inline = _provider(providers)
    given = _given(provider_options)
    if inline is not None and given:
        raise OptionError(
            "provider options are given twice: inside providers and as provider_options",
            hint="give them in one of the two places",
        )
    family = _providers()[name] if name else ""
    chosen = {**(inline or {}), **given}
    return replace(_parse(chosen), family=family, provider=name, given=chosen)


def _providers() -> dict[str, str]:
    """The names of execution providers and the vendor that each asks for; none: whatever the model is."""
    named = {name: vendor.name for vendor in registry.all_vendors() for name in vendor.providers}
    return {**named, "AnynpuExecutionProvider": ""}


def _provider(providers: object) -> tuple[str, Mapping[str, Any] | None]:
    entries = _entries(providers)
    if not entries:
        return "", None
    if len(entries) > 1:
        raise OptionError(
            f"exactly one execution provider is supported per session, got {len(entries)}",
            hint=f"pass one of: {', '.join(_providers())}",
        )
    entry = entries[0]
    options = None
    if isinstance(entry, tuple | list) and len(entry) == 2:
        entry, options = entry
        if not isinstance(options, Mapping):
            raise OptionError(
                f"the options of provider {entry!r} are {type(options).__name__}, not a dict", hint='pass [("name", {...})]'
            )
    if not isinstance(entry, str) or entry not in _providers():
        raise OptionError(f"Unsupported execution provider: {entry!r}", hint=f"there are: {', '.join(_providers())}")
    return entry, options


def _entries(providers: object) -> list[Any]:
    if providers is None:
        return []
    if isinstance(providers, str):
        return [providers]
    if isinstance(providers, Sequence):
        return list(providers)
    raise OptionError(
        f"providers must be a name or a list of one name, not {type(providers).__name__}",
        hint='leave it out, or pass ["RKNPU2ExecutionProvider"]',
    )


def _given(provider_options: object) -> Mapping[str, Any]:
    if provider_options is None:
        return {}
    if isinstance(provider_options, Mapping):
        return provider_options
    if isinstance(provider_options, Sequence) and not isinstance(provider_options, str | bytes):
        if not provider_options:
            return {}
        if isinstance(provider_options[0], Mapping):
            return provider_options[0]
    raise OptionError(
        "provider_options must be a dict or a sequence whose first item is a dict",
        hint="make_provider_options(...) gives a suitable one",
    )


def _parse(given: Mapping[str, Any]) -> SessionOptions:
    known = _PARSERS
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError(f"Unknown provider_options key: {key!r}", hint=f"{guess}Accepted keys: {', '.join(sorted(known))}")
    if given.get("schedule") is not None and given.get("tp_mode") is not None:
        raise OptionError(
            "tp_mode conflicts with schedule; set only one",
            hint="schedule gives each request one core, tp_mode gives each request several",
        )
    values: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        field, parser = known[key]
        parsed = parser(key, value)
        if field == "custom_op_paths":
            values[field] = values.get(field, ()) + parsed
        elif field == "custom_op_folder":
            values[field] = values.get(field, "") or parsed
        else:
            values[field] = parsed
    return SessionOptions(**values)


def _choice(choices: Mapping[str, str]) -> Callable[[str, Any], str]:
    def parse(key: str, value: Any) -> str:
        name = value.strip().lower() if isinstance(value, str) else value
        if name not in choices:
            raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(choices)}")
        return choices[name]

    return parse


def _tp_mode(key: str, value: Any) -> str:
    name = value.replace(" ", "").lower() if isinstance(value, str) else value
    if not isinstance(name, str) or name not in TP_MASKS:
        raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(map(repr, TP_MASKS))}")
    return name


def _positive(key: str, value: Any) -> int:
    number = _integer(key, value)
    if number <= 0:
        raise OptionError(f"{key} must be greater than 0, got {number}", hint="leave it out for the default")
    return number


def _integer(key: str, value: Any) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str | np.integer):
            raise ValueError
        return int(value)
    except ValueError:
        raise OptionError(f"{key} must be a whole number, got {value!r}", hint="pass an int, or a string with one") from None


def _flag(key: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    text = str(value).strip().lower() if isinstance(value, int | str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise OptionError(f"{key} must be true or false, got {value!r}", hint=f"use one of: {', '.join((*_TRUE, *_FALSE))}")


def _schedule(key: str, value: Any) -> tuple[int, ...]:
    parts: list[Any]
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
    elif isinstance(value, Sequence | np.ndarray):
        parts = list(value)
    else:
        parts = [value]
    if not parts:
        raise OptionError("the schedule is empty", hint="name at least one core, for example [0, 1, 2]")
    cores = tuple(_integer(key, part) for part in parts)
    if min(cores) < 0:
        raise OptionError(f"{key} has core {min(cores)}: cores count from 0", hint="for example [0, 1, 2]")
    return cores


def _paths(key: str, value: Any) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str | PathLike) for entry in entries):
        raise OptionError(f"{key} must be a path or a sequence of paths, got {value!r}", hint="pass the plugins' file names")
    return tuple(os.fspath(entry) for entry in entries)


def _plugin_folder(key: str, value: Any) -> str:
    return DEFAULT_PLUGIN_FOLDER if _flag(key, value) else ""


def _output_type(key: str, value: Any) -> str | dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): _type_name(key, kind) for name, kind in value.items()}
    return _type_name(key, value)


def _type_name(key: str, value: Any) -> str:
    if value == "model":
        return "model"
    try:
        name = str(np.dtype(value).name)
    except TypeError:
        name = ""
    if name not in _OUTPUT_TYPES:
        raise OptionError(
            f"unknown {key}: {value!r}", hint=f"use one of: model, {', '.join(_OUTPUT_TYPES)}, or these by output name"
        )
    return name


_OUTPUT_TYPES = (
    "float32",
    "float16",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
)

_PARSERS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "layout": ("layout", _choice(_LAYOUTS)),
    "zero_copy_layout": ("zero_copy_layout", _choice({"nhwc": "nhwc", "native": "native"})),
    "max_queue_size": ("max_queue_size", _positive),
    "threads_per_core": ("threads_per_core", _positive),
    "submit_timeout_ms": ("submit_timeout_ms", _positive),
    "sequential_callbacks": ("sequential_callbacks", _flag),
    "schedule": ("schedule", _schedule),
    "tp_mode": ("tp_mode", _tp_mode),
    "enable_pacing": ("enable_pacing", _flag),
    "disable_dup_context": ("disable_dup_context", _flag),
    "custom_op_paths": ("custom_op_paths", _paths),
    "custom_op_path": ("custom_op_paths", _paths),
    "custom_op_default_path": ("custom_op_folder", _plugin_folder),
    "load_custom_ops_from_default_path": ("custom_op_folder", _plugin_folder),
    "output_type": ("output_type", _output_type),
    "copy_inputs": ("copy_inputs", _flag),
    "watchdog_ms": ("watchdog_ms", _positive),
    "isolate": ("isolate", _flag),
    "isolate_memory_mb": ("isolate_memory_mb", _positive),
    "isolate_cpu_s": ("isolate_cpu_s", _positive),
}
