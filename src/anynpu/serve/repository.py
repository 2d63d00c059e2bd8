"""The models of a server: which there are, which are loaded, and how one takes the place of another.

What can be loaded comes from the command line: files, and folders that are searched again at every load. A folder holds model files,
whose stems are their names, or folders ``NAME/VERSION/`` with one model file each. ``NAME=FOLDER`` is one model: the only model file of the
folder, whatever it is called, or the folders ``VERSION/`` in it.

Belongs to the event loop of the server: no lock but one for each name, so that two loads of a model follow each other. Sessions are opened
and closed in other threads. A load opens everything new before anything old is taken away; what was replaced drains on its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from ..errors import AccessDeniedError, AnynpuError, ModelUnavailableError, OptionError, RequestError, UnknownModelError
from ..modelfile.stand_ins import TWIN_SUFFIX
from ..vendors import registry
from .interfaces import IndexEntry, Model, pick_version, unknown_model
from .model import ServedModel, open_session
from .options import ServeOptions

log = logging.getLogger("anynpu.serve")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")

Sources = dict[str, dict[str, Path]]


def parse_model(text: str) -> tuple[str, str, Path]:
    """Name, version and path of ``PATH``, ``NAME=PATH`` or ``NAME:VERSION=PATH``; the path may be a folder.

    >>> parse_model("yolo:2=models/new.rknn")[:2], parse_model("models/det.rknn")[:2]
    (('yolo', '2'), ('det', '1'))
    """
    label, equals, rest = text.partition("=")
    if not equals or Path(text).exists():
        label, rest = Path(text).stem, text
    name, _, version = label.partition(":")
    version = version or "1"
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise OptionError(
            f"{label!r} is no name for a model",
            hint="use letters, digits, '.', '_' and '-', and integers for versions: NAME:VERSION=PATH",
        )
    return name, version, Path(rest)


def find_models(models: Sequence[str]) -> Sources:
    """Paths by name and version, from what the command line names."""
    sources: Sources = {}
    for text in models:
        if Path(text).is_dir():
            for name, version, path in _in_folder(Path(text)):
                sources.setdefault(name, {})[version] = path
        else:
            name, version, path = parse_model(text)
            found = _of_folder(path, version) if path.is_dir() else {version: path}
            sources.setdefault(name, {}).update(found)
    return sources


def _suffixes() -> tuple[str, ...]:
    """What the names of model files end in."""
    return (*(suffix for vendor in registry.all_vendors() for suffix in vendor.suffixes), TWIN_SUFFIX)


def _in_folder(folder: Path) -> Iterator[tuple[str, str, Path]]:
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.suffix in _suffixes() and _NAME.fullmatch(entry.stem):
            yield entry.stem, "1", entry
        elif entry.is_dir() and _NAME.fullmatch(entry.name):
            for version, path in _versions(entry):
                yield entry.name, version, path


def _versions(folder: Path) -> Iterator[tuple[str, Path]]:
    for inner in sorted(folder.iterdir()):
        if _VERSION.fullmatch(inner.name) and inner.is_dir():
            files = sorted(path for path in inner.iterdir() if path.suffix in _suffixes())
            if files:
                yield inner.name, files[0]


def _of_folder(folder: Path, version: str) -> dict[str, Path]:
    """Versions of the one model in a folder."""
    found = dict(_versions(folder))
    if found:
        return found
    files = [path for path in folder.iterdir() if path.is_file() and path.suffix in _suffixes()]
    if len(files) != 1:
        raise OptionError(
            f"{folder} has {len(files)} model files, and one name is given for them",
            hint="name one file, or give the folder without a name to serve all of them under their own",
        )
    return {version: files[0]}


class Repository:
    """The models of one server."""

    def __init__(self, models: Sequence[str], options: ServeOptions) -> None:
        self._given = tuple(models)
        self._options = options
        self._sources = find_models(models)
        self._named: Sources = {}  # by clients that may
        self._ready: dict[str, dict[str, ServedModel]] = {}
        self._reasons: dict[tuple[str, str], str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # of names that are being loaded or unloaded
        self._draining: set[asyncio.Task[None]] = set()

    async def load_all(self) -> None:
        """Load everything; a model that cannot be loaded is reported in the log and in the index."""
        for name in sorted(self._sources):
            try:
                await self.load(name)
            except AnynpuError as error:
                log.error("model %s cannot be loaded: %s", name, error.one_line, extra={"model": name})

    async def refresh(self) -> None:
        """Nothing: all counts are here."""

    def models(self) -> list[Model]:
        """All that are loaded."""
        return [model for versions in self._ready.values() for model in versions.values()]

    def get(self, name: str, version: str = "") -> ServedModel:
        """A model that is loaded; the highest version if none is named."""
        found = pick_version(self._ready, name, version)
        if found is not None:
            return found
        label = f"{name}' version '{version}" if version else name
        if not self._ready.get(name) and (name in self._sources or name in self._named):
            reason = next((text for (known, _), text in self._reasons.items() if known == name), "it was unloaded")
            raise ModelUnavailableError(f"model '{label}' is not loaded: {reason}", hint="load it with the repository's call")
        raise unknown_model(self._ready, label)

    def versions(self, name: str) -> list[str]:
        """Versions of a model that are loaded, in order."""
        return sorted(self._ready.get(name, ()), key=int)

    def index(self, only_ready: bool = False) -> list[IndexEntry]:
        """All models, loaded or not."""
        known: dict[tuple[str, str], IndexEntry] = {}
        for sources in (self._sources, self._named):
            for name, versions in sources.items():
                for version in versions:
                    reason = self._reasons.get((name, version), "unloaded")
                    known[name, version] = IndexEntry(name, version, "UNAVAILABLE", reason)
        for model in self.models():
            known[model.name, model.version] = IndexEntry(model.name, model.version, "READY", "")
        return [known[key] for key in sorted(known) if not only_ready or known[key].state == "READY"]

    def problems(self) -> bool:
        """Whether a model that was asked for could not be loaded, and no earlier load of it serves."""
        return any(version not in self._ready.get(name, ()) for name, version in self._reasons)

    async def load(self, name: str, path: str | None = None) -> None:
        """Load or reload all versions of a model.

        :param path: a file that the client names, below ``load_root``
        """
        if not _NAME.fullmatch(name):
            raise RequestError(f"{name[:60]!r} is no name for a model", hint="use letters, digits, '.', '_' and '-', at most 128")
        async with self._locks.setdefault(name, asyncio.Lock()):
            wanted = await asyncio.to_thread(self._wanted, name, path)
            fresh: dict[str, ServedModel] = {}
            try:
                for version, file in wanted.items():
                    session = await asyncio.to_thread(open_session, file, self._options)
                    fresh[version] = ServedModel(name, version, file, session, self._options)
                    self._reasons.pop((name, version), None)
            except AnynpuError as error:
                self._reasons[name, version] = error.message
                for model in fresh.values():
                    self._drain(model)
                raise
            old = self._ready.get(name, {})
            self._ready[name] = fresh
            for model in old.values():
                self._drain(model)
            log.info("model %s is ready: versions %s", name, ", ".join(fresh), extra={"model": name})

    async def unload(self, name: str) -> None:
        """Take a model away; what it was given it still answers."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            old = self._ready.pop(name, None)
            for key in [key for key in self._reasons if key[0] == name]:
                del self._reasons[key]
            if old is None:
                raise UnknownModelError(f"there is no model '{name}' to unload", hint="the repository's index lists all")
            for model in old.values():
                self._drain(model)
            log.info("model %s is unloaded", name, extra={"model": name})

    async def close(self) -> None:
        """Unload everything and wait for its end."""
        for name in list(self._ready):
            await self.unload(name)
        if self._draining:
            await asyncio.wait(set(self._draining))

    def _wanted(self, name: str, path: str | None) -> dict[str, Path]:
        if path is not None:
            self._named[name] = {"1": self._allowed(path)}
            return self._named[name]
        self._sources = find_models(self._given)
        wanted = self._sources.get(name) or self._named.get(name)
        if not wanted:
            names = sorted({*self._sources, *self._named})
            raise UnknownModelError(f"there is no model '{name}' to load", hint=f"there are: {', '.join(names) or 'none'}")
        return wanted

    def _allowed(self, path: str) -> Path:
        root = self._options.load_root
        if root is None:
            raise AccessDeniedError(
                "clients may not name files to load on this server", hint="start it with --load-root FOLDER to allow it"
            )
        root = root.resolve()
        try:
            file = (root / path).resolve()
            is_file = file.is_file()
        except (OSError, ValueError):
            raise RequestError("the path of the model is no path", hint="name a file below the server's folder") from None
        if not file.is_relative_to(root) or file.suffix not in _suffixes() or not is_file:
            raise AccessDeniedError(
                "there is no such model file in the folder of this server", hint=f"its files end in {', '.join(_suffixes())}"
            )
        return file

    def _drain(self, model: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(model.drain(self._options.drain_timeout))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
