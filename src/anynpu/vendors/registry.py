"""Which vendors there are: those of this package, and those that other distributions bring.

A distribution adds a vendor by an entry point of the group ``anynpu.vendors``, whose object is a :class:`~anynpu.vendors.Vendor`::

    [project.entry-points."anynpu.vendors"]
    acme = "anynpu_acme:VENDOR"

Tables are loaded at first use, and the entry points only if no vendor of this package answers. A vendor whose folder is not there does not
exist; one whose distribution is broken is left out with a warning. There is no state but the caches of what was found, which
:func:`refresh` empties.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..chips import catalog
from ..chips.chip import Chip
from ..errors import DeviceUnavailable
from ..program.arithmetic import WeightScales
from ..tensor import DType

# The table that a vendor fills in. Nothing outside a vendor's folder names the vendor: other packages ask this table.
#
# The vendors of this package fill it in in a module ``table`` of their folder; another distribution does so behind an entry point of the
# group ``anynpu.vendors`` (see :mod:`anynpu.vendors.registry`). Functions that need more than data are given with :func:`at_first_use`:
# reading a table costs no more than the table.


def resolve(target: str) -> Any:
    """The object at *target*, ``package.module:attribute``, imported now.

    >>> resolve("math:floor")(2.5)
    2
    """
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def at_first_use(target: str) -> Callable[..., Any]:
    """The function at *target*, ``package.module:attribute``, imported when it is called.

    >>> at_first_use("math:floor")(2.5)
    2
    """

    def call(*arguments: Any, **named: Any) -> Any:
        return resolve(target)(*arguments, **named)

    return call


@dataclass(frozen=True)
class Format:
    """How a model holds its numbers.

    :ivar name: what ``Model.dtype`` states
    :ivar words: the same for people
    :ivar codes: type of integer layers
    :ivar weights: how weights share scales
    :ivar fixed_point: scales of activations are powers of two, without zero points
    :ivar half: type of float layers on the NPU
    :ivar floats: there are no integer layers
    :ivar arithmetic: by which rule integer layers end: ``chip`` or ``simulator``
    :ivar groups: maximum channel groups per tensor, each with its own scale
    :ivar unrounded: by the simulator's rule, activations after convolutions work on the sum before it is rounded
    """

    name: str
    words: str
    codes: DType = DType.INT8
    weights: WeightScales = WeightScales.CHANNEL
    fixed_point: bool = False
    half: DType = DType.FLOAT16
    floats: bool = False
    groups: int = 1
    arithmetic: str = "simulator"
    unrounded: bool = False


@dataclass(frozen=True)
class Alias:
    """Another name of a format, which may ask for weights per channel or for one scale."""

    name: str
    per_channel: bool | None = None


@dataclass(frozen=True)
class FileFormat:
    """A model file that the vendor's own tools write.

    :ivar name: of the format, such as ``nb``; ``anynpu.modelfile.identify`` answers with it
    :ivar toolkit: the tool that writes it, where the file does not state
    :ivar recognises: whether a file begins with these 16 bytes, or fewer if it is shorter
    :ivar read: what the bytes of a file state about themselves, as :class:`anynpu.modelfile.VendorModelInfo`
    :ivar version_text: a version of the format for people
    """

    name: str
    toolkit: str
    recognises: Callable[[bytes], bool]
    read: Callable[[memoryview], Any]
    version_text: Callable[[int], str] = str


@dataclass(frozen=True)
class DropIn:
    """How programs that were linked with the vendor's libraries are served.

    :ivar bindings: gives ``(ffi, lib)`` of the cffi module with the types and one C function per call
    :ivar open: makes the library object for a chip; None: each model states for which chip it is
    :ivar failure: what a call returns that Python could not finish
    :ivar code_name: the interface's name of a result
    :ivar libraries: the names of the libraries, each with the chip that it stands for unless something else is said
    :ivar log_variable: the environment variable with the vendor's log level, empty where there is none
    :ivar log_name: what the vendor's messages begin with
    :ivar log_untimed: libraries whose messages carry no time
    :ivar first_call: the call that a log level for information reports about
    :ivar tracing: what a recording knows about the calls, as :class:`anynpu.devtools.recording.CallTable`
    :ivar open_device: the library object of a device by its name, a board's own among them
    """

    bindings: Callable[[], tuple[Any, Any]]
    open: Callable[[str | None], Any]
    failure: int
    code_name: Callable[[int], str]
    libraries: Mapping[str, str | None]
    log_variable: str = ""
    log_name: str = ""
    log_untimed: tuple[str, ...] = ()
    first_call: str = ""
    tracing: Callable[[], Any] | None = None
    open_device: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Finding:
    """One line of ``anynpu doctor``.

    :ivar advice: what to do; empty where there is nothing to do
    """

    topic: str
    state: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""


def _nothing_to_say(*arguments: Any) -> Iterable[Finding]:
    del arguments
    return ()


def _as_it_is(model: Any, spec: Any) -> Any:
    del model
    return spec


def _name(chip: Chip) -> str:
    return chip.name


def _no_files(chip: Chip) -> Mapping[str, str]:
    del chip
    return {}


@dataclass(frozen=True, eq=False)
class Vendor:
    """One vendor of NPUs: everything that the rest of anynpu needs to know about it.

    :ivar name: the family of its chips, and the device that ``device=`` and ``ANYNPU_DEVICE`` name
    :ivar title: its name for people
    :ivar interface: what its calls are called
    :ivar chips: its entries of the catalogue; the first stands for an unknown board
    :ivar formats: how its models hold numbers, by name
    :ivar aliases: other names of those formats
    :ivar channel_groups: whether a tensor may have several scales
    :ivar picture_node: whether a model may begin with a node that takes the bytes of an image
    :ivar integer_ends: whether inputs and outputs of a quantized model are codes, even where float layers read or make them
    :ivar native_buffers: whether a program exchanges tensors in the form that the model declares, with no conversion by the library
    :ivar mark: the four bytes that a compiled model for its chips begins with
    :ivar suffixes: of compiled models
    :ivar files: what its own tools write
    :ivar library_variable: the environment variable that names its library
    :ivar library_names: of its library
    :ivar library_helpers: further libraries that those need
    :ivar library_folders: where they are searched for
    :ivar system_marks: files, relative to the root, that show that a machine has its NPU
    :ivar system_words: the same in words
    :ivar device_tree: its prefix in the device tree
    :ivar device_nodes: files under the root that a program must be able to open
    :ivar container_nodes: further ones that a container is given
    :ivar providers: names of its execution provider
    :ivar memory_names: names of its memory, for OrtValues
    :ivar open_backend: opens the backend of a session, see :mod:`anynpu.session.backend`: (model, options, device, weights_from)
    :ivar layer_table: runs (model, device, runs) and gives the device's own table of layers as text; None where there is none
    :ivar diagnose: findings about its libraries and driver: (root, environment)
    :ivar diagnose_file: findings about a file of its tools: (:class:`~anynpu.modelfile.VendorModelInfo`, root)
    :ivar target_words: what a chip's models are compiled for, in words; chips with the same words run the same files
    :ivar check_target: raises if a file is not for a chip: (path, chip); gives False where the chips' names decide
    :ivar port: an input or output of a model as programs see it: (model, spec)
    :ivar board_files: the files of a board of a chip, by path, which programs see on the software NPU
    :ivar dropin: how programs that were linked with its libraries are served
    :ivar commands: further commands of the command line, by name, as ``package.module:function``
    """

    name: str
    title: str
    interface: str
    chips: tuple[Chip, ...]
    formats: Mapping[str, Format]
    mark: bytes
    suffixes: tuple[str, ...]
    providers: tuple[str, ...]
    open_backend: Callable[..., Any]
    aliases: Mapping[str, Alias] = field(default_factory=dict)
    channel_groups: bool = False
    picture_node: bool = False
    integer_ends: bool = False
    native_buffers: bool = False
    files: tuple[FileFormat, ...] = ()
    library_variable: str = ""
    library_names: tuple[str, ...] = ()
    library_helpers: tuple[str, ...] = ()
    library_folders: tuple[str, ...] = ()
    system_marks: tuple[str, ...] = ()
    system_words: str = ""
    device_tree: str = ""
    device_nodes: tuple[str, ...] = ()
    container_nodes: tuple[str, ...] = ()
    memory_names: tuple[str, ...] = ()
    layer_table: Callable[[Path, str, int], str] | None = None
    diagnose: Callable[[Path, Mapping[str, str]], Iterable[Finding]] = _nothing_to_say
    diagnose_file: Callable[[Any, Path], Iterable[Finding]] = _nothing_to_say
    target_words: Callable[[Chip], str] = _name
    check_target: Callable[[Path, Chip], bool] | None = None
    port: Callable[[Any, Any], Any] = _as_it_is
    board_files: Callable[[Chip], Mapping[str, str]] = _no_files
    dropin: DropIn | None = None
    commands: Mapping[str, str] = field(default_factory=dict)

    def installed_libraries(self, root: Path, *, helpers: bool = False) -> list[Path]:
        """The files of its library under *root*; with *helpers* also of those that it needs."""
        names = (*self.library_names, *(self.library_helpers if helpers else ()))
        paths = [root / folder.lstrip("/") / name for folder in self.library_folders for name in names]
        return [path for path in paths if path.is_file()]

    def named_library(self, environment: Mapping[str, str]) -> str:
        """The library that the environment names; empty if it names none."""
        kind, _, path = environment.get("ANYNPU_DEVICE", "").partition(":")
        return path if kind == self.name and path else environment.get(self.library_variable, "")


MODULES = {"rknn": "anynpu.rknn.table", "vip": "anynpu.vip.table"}
"""The tables of this package: each module has a ``VENDOR``."""


@functools.cache
def built_in() -> tuple[Vendor, ...]:
    """The vendors of this package, in the order of the catalogue."""
    found: list[Vendor] = []
    for module in MODULES.values():
        try:
            found.append(importlib.import_module(module).VENDOR)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
    return tuple(found)


@functools.cache
def installed() -> tuple[Vendor, ...]:
    """The vendors that other distributions bring."""
    found: dict[str, Vendor] = {vendor.name: vendor for vendor in built_in()}
    for label, vendor in catalog.plugins():
        if not isinstance(vendor, Vendor) or found.setdefault(vendor.name, vendor) is not vendor:
            reason = "there is another of its name" if isinstance(vendor, Vendor) else "it is no anynpu.vendors.Vendor"
            warnings.warn(f"the vendor {label} is left out: {reason}", RuntimeWarning, stacklevel=2)
    return tuple(found.values())[len(built_in()) :]


def all_vendors() -> tuple[Vendor, ...]:
    """All vendors, those of this package first."""
    return (*built_in(), *installed())


def _lazily() -> Iterator[Vendor]:
    yield from built_in()
    yield from installed()


def find(test: Callable[[Vendor], bool]) -> Vendor | None:
    """The first vendor that passes a test."""
    return next(filter(test, _lazily()), None)


def get(name: str) -> Vendor:
    """The vendor called *name*.

    >>> get("rknn").title
    'Rockchip'
    """
    vendor = find(lambda vendor: vendor.name == name)
    if vendor is None:
        raise DeviceUnavailable(
            f"there is no vendor '{name}'", hint=f"there are: {', '.join(vendor.name for vendor in all_vendors())}"
        )
    return vendor


def default() -> Vendor:
    """The vendor that is assumed where nothing states which."""
    return next(_lazily())


def of_chip(chip: Chip) -> Vendor:
    """The vendor of a chip."""
    return get(chip.family)


def of_file(head: bytes) -> tuple[Vendor, FileFormat | None] | None:
    """The vendor of a model file that begins with *head*, 16 bytes or more, and the format if its own tools wrote it."""
    for vendor in _lazily():
        for form in vendor.files:
            if form.recognises(head):
                return vendor, form
        if head.startswith(vendor.mark):
            return vendor, None
    return None


def refresh() -> None:
    """Forget what was found, so that distributions which were installed meanwhile are seen."""
    catalog.refresh()
    built_in.cache_clear()
    installed.cache_clear()
