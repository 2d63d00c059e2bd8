"""The options of a session: one table, from which parsing, defaults, checks, docstrings, flags and pages come.

:func:`make_provider_options` and :class:`RknnProviderOptions` have the names, defaults and aliases that EZ RKNN Async documents; what comes
after ``custom_op_default_path`` is an addition. :func:`parse_options` turns whatever was passed as ``providers`` and
``provider_options`` into :class:`SessionOptions`, and rejects what it does not understand.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from .._util.options import OptionTable, documented, keyword_form, option
from ..errors import JobCancelled, OptionError
from ..vendors import registry

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Readers of a session's options: each takes the option's name and what a user wrote, and rejects what does not fit.


TP_MASKS = {"auto": 0, "all": 0xFFFF, "0": 1, "1": 2, "2": 4, "0,1": 3, "0,1,2": 7}

_TRUE, _FALSE = ("1", "true", "on", "yes"), ("0", "false", "off", "no")
_INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
_OUTPUT_TYPES = ("float32", "float16", "float64", *_INTEGERS, "bool")


def choice(choices: Mapping[str, str]) -> Callable[[str, Any], str]:
    """A reader of one of *choices*, which maps what may be written to what it means."""

    def parse(key: str, value: Any) -> str:
        name = value.strip().lower() if isinstance(value, str) else value
        if name not in choices:
            raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(choices)}")
        return choices[name]

    return parse


def tp_mode(key: str, value: Any) -> str:
    """Which cores work on a request together."""
    if not isinstance(value, str) or value not in TP_MASKS:
        raise OptionError(f"Unknown {key}: {value!r}", hint=f"use one of: {', '.join(map(repr, TP_MASKS))}")
    return value


def positive(key: str, value: Any) -> int:
    """An integer above 0."""
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
        raise OptionError(f"{key} must be an integer, got {value!r}", hint="pass an int, or a string with one") from None


def flag(key: str, value: Any) -> bool:
    """True or false, also as text or number."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    text = str(value).strip().lower() if isinstance(value, int | str) else ""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise OptionError(f"{key} must be true or false, got {value!r}", hint=f"use one of: {', '.join((*_TRUE, *_FALSE))}")


def schedule(key: str, value: Any) -> tuple[int, ...]:
    """Cores in turn, from a list, a text or one number."""
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


def paths(key: str, value: Any) -> tuple[str, ...]:
    """One path or several."""
    entries = [value] if isinstance(value, str | PathLike) else value
    if not isinstance(entries, Sequence) or not all(isinstance(entry, str | PathLike) for entry in entries):
        raise OptionError(f"{key} must be a path or a sequence of paths, got {value!r}", hint="pass the plugins' file names")
    return tuple(os.fspath(entry) for entry in entries)


def output_type(key: str, value: Any) -> str | dict[str, str]:
    """One type for all outputs, or types by output name."""
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


LayoutLike = Literal["nchw", "original", "nchw_software", "original_software", "nhwc", "any"]
ZeroCopyLayoutLike = Literal["nhwc", "native"]
TpModeLike = Literal["auto", "all", "0", "1", "2", "0,1", "0,1,2"]
ScheduleLike = int | str | Sequence[int]
PathLikeStr = str | PathLike[str]
OutputTypeLike = str | Mapping[str, str]
"""``float32`` (values; integers and booleans that are not quantized keep their type), ``model`` (the output's own type), a type's name, or
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


class RknnProviderOptions(TypedDict, total=False):
    """What ``provider_options`` may hold, for type checkers; meanings and defaults: :class:`SessionOptions`."""

    layout: LayoutLike
    zero_copy_layout: ZeroCopyLayoutLike
    max_queue_size: int
    threads_per_core: int
    submit_timeout_ms: int
    sequential_callbacks: bool
    schedule: ScheduleLike | None
    tp_mode: TpModeLike | None
    enable_pacing: bool
    disable_dup_context: bool
    custom_op_paths: PathLikeStr | Sequence[PathLikeStr] | None
    custom_op_path: PathLikeStr | Sequence[PathLikeStr] | None
    custom_op_default_path: bool
    load_custom_ops_from_default_path: bool
    output_type: OutputTypeLike | None
    copy_inputs: bool | None
    watchdog_ms: int | None
    isolate: bool | None
    isolate_memory_mb: int | None
    isolate_cpu_s: int | None


@documented
@dataclass(frozen=True)
class SessionOptions(OptionTable):
    """Options as the session uses them.

    Besides: ``family`` and ``provider`` are what ``providers`` asks for, ``given`` is what the caller wrote, as ``get_provider_options``
    gives it back.
    """

    layout: str = option(
        "nchw",
        "order of the axes of 4-D inputs: `nchw` (the same as `original`), `nchw_software` (the same as `original_software`: transposed "
        "here instead of by the runtime), `nhwc`, or `any`: either, by the shape",
        parse=choice(_LAYOUTS),
        written="original",
    )
    zero_copy_layout: str = option(
        "nhwc",
        "order of the axes in memory that is bound: `nhwc` or `native`",
        parse=choice({"nhwc": "nhwc", "native": "native"}),
    )
    max_queue_size: int = option(3, "requests that may wait for each core before submitting blocks", parse=positive)
    threads_per_core: int = option(1, "contexts for each core", parse=positive)
    submit_timeout_ms: int = option(10000, "how long submitting blocks before it fails", parse=positive)
    sequential_callbacks: bool = option(True, "callbacks in the order of submission; else as requests finish", parse=flag)
    schedule: tuple[int, ...] | None = option(
        None, 'the core of each request in turn: `[0, 1, 2]`, `"0,1,2"` or `0`', parse=schedule
    )
    tp_mode: str | None = option(
        None,
        "cores that work on one request together: `auto` (default), `all`, `0`, `1`, `2`, `0,1` or `0,1,2`; not together with `schedule`",
        parse=tp_mode,
    )
    enable_pacing: bool = option(False, "spread submissions to the rate that the device sustains", parse=flag)
    disable_dup_context: bool = option(False, "`rknn_init` for each context instead of `rknn_dup_context`", parse=flag)
    custom_op_paths: tuple[str, ...] = option(
        (),
        "plugins that export `get_rknn_custom_op`; they force `disable_dup_context`",
        parse=paths,
        aliases=("custom_op_path",),
    )
    custom_op_default_path: bool = option(
        False,
        f"also the plugins in `{DEFAULT_PLUGIN_FOLDER}`",
        parse=flag,
        aliases=("load_custom_ops_from_default_path",),
    )
    output_type: str | Mapping[str, str] = option(
        "float32", "type of the outputs: `float32`, `model`, a type's name, or these by output name", parse=output_type
    )
    copy_inputs: bool = option(
        True,
        "asynchronous requests copy their inputs, so that the caller may change them; False saves the copy",
        parse=flag,
    )
    watchdog_ms: int | None = option(
        None, "how long a run may take before its context is given up; not given: no limit", parse=positive
    )
    isolate: bool = option(
        False,
        "run the model in processes of their own, with limits: for models that are not trusted",
        see="[Isolation](security.md#isolation)",
        parse=flag,
        flag="--isolate",
        kind=bool,
    )
    isolate_memory_mb: int = option(
        2048,
        "memory for the model in each of these processes, in MiB",
        parse=positive,
        minimum=1,
        flag="--isolate-memory",
        kind=float,
        metavar="MB",
        read=round,
    )
    isolate_cpu_s: int = option(60, "CPU time of one run there, and of opening the model, in seconds", parse=positive)
    family: str = ""
    provider: str = ""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def tp_mask(self) -> int | None:
        """The mask of the cores; None if ``tp_mode`` was not given."""
        return None if self.tp_mode is None else TP_MASKS[self.tp_mode]

    @property
    def custom_op_folder(self) -> str:
        """Where plugins are looked for by name; empty for nowhere."""
        return DEFAULT_PLUGIN_FOLDER if self.custom_op_default_path else ""

    @property
    def custom_ops(self) -> bool:
        """Whether plugins were asked for."""
        return bool(self.custom_op_paths or self.custom_op_folder)


_NAMES = {name: option for option, entry in SessionOptions.options().items() for name in (option, *entry.aliases)}
"""The option that each accepted key means."""

_ALWAYS_GIVEN = (
    *("layout", "zero_copy_layout", "max_queue_size", "threads_per_core", "submit_timeout_ms", "sequential_callbacks"),
    *("enable_pacing", "disable_dup_context", "custom_op_default_path"),
)
"""What a dictionary of EZ RKNN Async has even if no one asked for it; an option of ours is there if it was given."""


@keyword_form(SessionOptions, RknnProviderOptions.__annotations__)
def make_provider_options(**given: Unpack[RknnProviderOptions]) -> RknnProviderOptions:
    """The options of a session as a dictionary. The session checks the values.

    >>> make_provider_options(schedule=[0, 1, 2])["schedule"]
    [0, 1, 2]
    >>> make_provider_options(schedule=[0], tp_mode="all")
    Traceback (most recent call last):
    ...
    anynpu.errors.OptionError: tp_mode conflicts with schedule; set only one
      hint: schedule gives each request one core, tp_mode gives each request several
    """
    for name in given:
        if name not in _NAMES:
            raise TypeError(f"make_provider_options() got an unexpected keyword argument {name!r}")
    written = SessionOptions.written()
    options: dict[str, Any] = {name: written[name] for name in _ALWAYS_GIVEN}
    options.update({name: value for name, value in given.items() if value is not None or name in options})
    _check_modes(options)
    return options  # type: ignore[return-value]


Rknpu2ProviderOptions = RknnProviderOptions
"""The name that EZ RKNN Async has for them as well."""
make_rknpu2_provider_options = make_provider_options
"""The name that EZ RKNN Async has for it as well."""


def make_rknpu3_provider_options(**given: Any) -> RknnProviderOptions:
    """Options for RKNPU3 chips, which are not supported: raises an error that names the alternative.

    :raises OptionError: always
    """
    raise OptionError(
        "RKNPU3 chips are not supported: sessions run models for RKNPU2 chips such as RK3588",
        hint="use make_provider_options(...), or EZ RKNN Async itself for an RKNPU3 board",
    )


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
    for key in given:
        if key not in _NAMES:
            near = difflib.get_close_matches(str(key), _NAMES, n=1)
            raise OptionError(
                f"Unknown provider_options key: {key!r}; the accepted keys are {', '.join(sorted(_NAMES))}",
                hint=f"did you mean {near[0]!r}?" if near else "make_provider_options(...) takes them as keywords",
            )
    _check_modes(given)
    entries = SessionOptions.options()
    parsed: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        name = _NAMES[key]
        parse = entries[name].parse
        assert parse is not None
        read = parse(key, value)
        if name in parsed:  # under both of its names: paths add up, and one yes is enough
            read = parsed[name] + read if isinstance(read, tuple) else parsed[name] or read
        parsed[name] = read
    return SessionOptions(**parsed)


def _check_modes(given: Mapping[str, Any]) -> None:
    if given.get("schedule") is not None and given.get("tp_mode") is not None:
        raise OptionError(
            "tp_mode conflicts with schedule; set only one",
            hint="schedule gives each request one core, tp_mode gives each request several",
        )


# What ``run_options`` may state.


log = logging.getLogger("anynpu.session")

DISPATCH_BATCH = "ztu_modelrt_dispatch_batch"
"""The key that spreads the samples of a batch over the cores."""


def dispatches_batch(run_options: Any) -> bool:
    """Whether *run_options* (a dict, or an object with ``get_run_config_entry``) ask for it; an error if they state ``terminate``.

    >>> dispatches_batch({"ztu_modelrt_dispatch_batch": "1"}), dispatches_batch(None)
    (True, False)
    """
    if run_options is None:
        return False
    if getattr(run_options, "terminate", False) is True:
        raise JobCancelled("the run was not begun: run_options.terminate is set", hint="set it to False")
    if isinstance(run_options, Mapping):
        value = run_options.get(DISPATCH_BATCH, False)
    elif hasattr(run_options, "get_run_config_entry"):
        try:
            value = run_options.get_run_config_entry(DISPATCH_BATCH)
        except Exception as error:  # onnxruntime raises a RuntimeError of its own for a key that is not there
            log.debug("run_options have no %s: %s", DISPATCH_BATCH, error)
            return False
    else:
        return False
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "on", "yes")
