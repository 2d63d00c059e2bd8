"""The options of a session: one table, from which parsing, defaults, checks, docstrings, flags and pages come.

:func:`make_provider_options` and :class:`RknnProviderOptions` have the names, defaults and aliases that EZ RKNN Async documents; what comes
after ``custom_op_default_path`` is an addition. :func:`parse_options` turns whatever was passed as ``providers`` and
``provider_options`` into :class:`SessionOptions`, and rejects what it does not understand.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from .._util.options import OptionTable, documented, keyword_form, option
from ..errors import OptionError
from ..vendors import registry
from . import option_values as values
from .option_values import TP_MASKS

if TYPE_CHECKING:
    from typing_extensions import Unpack

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
    "make_rknpu3_provider_options",
    "parse_options",
]

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
        parse=values.choice(_LAYOUTS),
        written="original",
    )
    zero_copy_layout: str = option(
        "nhwc",
        "order of the axes in memory that is bound: `nhwc` or `native`",
        parse=values.choice({"nhwc": "nhwc", "native": "native"}),
    )
    max_queue_size: int = option(3, "requests that may wait for each core before submitting blocks", parse=values.positive)
    threads_per_core: int = option(1, "contexts for each core", parse=values.positive)
    submit_timeout_ms: int = option(10000, "how long submitting blocks before it fails", parse=values.positive)
    sequential_callbacks: bool = option(True, "callbacks in the order of submission; else as requests finish", parse=values.flag)
    schedule: tuple[int, ...] | None = option(
        None, 'the core of each request in turn: `[0, 1, 2]`, `"0,1,2"` or `0`', parse=values.schedule
    )
    tp_mode: str | None = option(
        None,
        "cores that work on one request together: `auto` (default), `all`, `0`, `1`, `2`, `0,1` or `0,1,2`; not together with `schedule`",
        parse=values.tp_mode,
    )
    enable_pacing: bool = option(False, "spread submissions to the rate that the device sustains", parse=values.flag)
    disable_dup_context: bool = option(False, "`rknn_init` for each context instead of `rknn_dup_context`", parse=values.flag)
    custom_op_paths: tuple[str, ...] = option(
        (),
        "plugins that export `get_rknn_custom_op`; they force `disable_dup_context`",
        parse=values.paths,
        aliases=("custom_op_path",),
    )
    custom_op_default_path: bool = option(
        False,
        f"also the plugins in `{DEFAULT_PLUGIN_FOLDER}`",
        parse=values.flag,
        aliases=("load_custom_ops_from_default_path",),
    )
    output_type: str | Mapping[str, str] = option(
        "float32", "type of the outputs: `float32`, `model`, a type's name, or these by output name", parse=values.output_type
    )
    copy_inputs: bool = option(
        True,
        "asynchronous requests copy their inputs, so that the caller may change them; False saves the copy",
        parse=values.flag,
    )
    watchdog_ms: int | None = option(
        None, "how long a run may take before its context is given up; not given: no limit", parse=values.positive
    )
    isolate: bool = option(
        False,
        "run the model in processes of their own, with limits: for models that are not trusted",
        see="[Isolation](security.md#isolation)",
        parse=values.flag,
        flag="--isolate",
        kind=bool,
    )
    isolate_memory_mb: int = option(
        2048,
        "memory for the model in each of these processes, in MiB",
        parse=values.positive,
        minimum=1,
        flag="--isolate-memory",
        kind=float,
        metavar="MB",
        read=round,
    )
    isolate_cpu_s: int = option(60, "CPU time of one run there, and of opening the model, in seconds", parse=values.positive)
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
