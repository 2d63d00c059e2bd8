"""Boards that are not there: a Ray cluster on this machine, with a node and a software NPU of its own for each board.

Every node has a loopback address of its own, so that nothing can be reached from other machines, and no two clusters on this machine share
one: Ray takes ports that are free when it looks, which another cluster may take before they are used. The processes are children of the
thread that makes them, and the operating system ends them with it, however it ends: make virtual boards in the main thread, or in one that
stays.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import ray

from ...errors import OptionError
from ...npu.board import runtime_folder
from .messages import BOARD_RESOURCE
from .ray_platform import quieten

log = logging.getLogger("anynpu.serve")

_MAX_BOARDS = 32
_STORE = 100 * 2**20
"""Bytes of shared memory of each node."""

_SETTINGS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_worker_niceness": "0",
}
"""The loss of a node is noticed within seconds, and boards have the same share of a busy machine as their clients: Ray's own choice is
15, which leaves them next to nothing."""

_START_TIMEOUT = 120.0
"""Seconds for a node to come up. Ray itself gives it 30, which are not enough beside other work."""

_START_ATTEMPTS = 3
"""Nodes that are started for a board or the head, if one ends while it comes up."""

_END_TIMEOUT = 60.0
"""Seconds for the helpers of nodes to end; they notice within two or three that their node has."""


class VirtualBoards:
    """Boards on this machine.

    :param count: how many
    :param resources: what boards have besides ``NPU``, board by board; see :class:`PoolPlan`
    :ivar folder: holds all their files while they are there
    :param present: how many are there from the start; the others come with :meth:`join`
    :param environment: variables for the processes on the boards, such as ``ANYNPU_REALTIME``

    >>> with VirtualBoards(3) as boards:                                                     # doctest: +SKIP
    ...     print(boards.address)
    """

    def __init__(
        self,
        count: int,
        *,
        resources: tuple[str, ...] | None = None,
        present: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= count <= _MAX_BOARDS:
            raise OptionError(f"{count} virtual boards", hint=f"from 1 to {_MAX_BOARDS}")
        if resources is not None and len(resources) != count:
            raise OptionError(f"{len(resources)} resources for {count} virtual boards", hint="name one for each; '' for none")
        self._kinds = resources or ("",) * count
        self._present = count if present is None else present
        self._environment = dict(environment or {})
        self._cluster: Any = None
        self._nodes: dict[int, Any] = {}
        self.folder = ""
        self._before: dict[str, str | None] = {}

    @property
    def address(self) -> str:
        """Of the Ray cluster."""
        return str(self._cluster.address)

    @property
    def host(self) -> str:
        """The address of the head alone: a driver (``ray.init``) has to name it as its own, or Ray takes that of the network."""
        return _loopback_address(0)

    def start(self) -> None:
        """Start the head and all boards."""
        quieten()
        self.folder = tempfile.mkdtemp(
            prefix="anynpu-", dir="/tmp" if os.access("/tmp", os.W_OK) else None
        )  # sockets: short paths
        settings = {**_SETTINGS, "RAY_TMPDIR": self.folder}
        self._before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            from ray.cluster_utils import Cluster

            os.makedirs(os.path.join(self.folder, "ray"), exist_ok=True)
            for attempt in range(_START_ATTEMPTS):
                try:
                    self._cluster = self._start_head(Cluster)
                    break
                except Exception as error:
                    _end_users(self.folder)  # what of the head came up; boards are not there yet
                    if attempt + 1 == _START_ATTEMPTS:
                        raise
                    log.warning("the head of the virtual boards did not come up and is started again: %s", error)
            for number in range(self._present):
                self.join(number)
        except BaseException:
            self.stop()
            raise

    def _start_head(self, cluster: Any) -> Any:
        arguments = {"num_cpus": 4, "include_dashboard": False, "object_store_memory": _STORE, "node_ip_address": self.host}
        with _patience():
            return cluster(initialize_head=True, head_node_args=arguments)

    def join(self, number: int) -> None:
        """A board comes, or comes back."""
        kind = self._kinds[number]
        for attempt in range(_START_ATTEMPTS):
            try:
                with _patience():
                    self._nodes[number] = self._cluster.add_node(
                        num_cpus=1,
                        resources={BOARD_RESOURCE: 1, **({kind: 1} if kind else {})},
                        object_store_memory=_STORE,
                        node_ip_address=_loopback_address(1 + number + attempt * _MAX_BOARDS),
                        env_vars={**self._environment, "ANYNPU_BOARD": self.board_name(number)},
                    )
                return
            except Exception as error:  # Ray has no class of its own for a node that does not come up
                if attempt + 1 == _START_ATTEMPTS:
                    raise
                log.warning("the node of board %d did not come up and is started again: %s", number + 1, error)

    def kill(self, number: int) -> None:
        """A board loses its power: all of its processes are killed."""
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)

    def board_name(self, number: int) -> str:
        """What a board is called: no other virtual board on this machine has the same software NPU."""
        return f"virtual-{os.getpid()}-{number + 1}"

    def stop(self) -> None:
        """End all processes."""
        try:
            if ray.is_initialized():
                ray.shutdown()
            if self._cluster is not None:
                self._cluster.shutdown()
        finally:
            self._cluster = None
            self._nodes.clear()
            for name, value in self._before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            _wait_for_users(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            for number in range(len(self._kinds)):
                shutil.rmtree(runtime_folder() / f"board-{self.board_name(number)}", ignore_errors=True)

    def __enter__(self) -> VirtualBoards:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _loopback_address(number: int) -> str:
    """The address of a node of this process; 0 is the head."""
    high, low = divmod(os.getpid() % 254**2, 254)
    return f"127.{high + 1}.{low + 1}.{number + 2}"


@contextmanager
def _patience() -> Iterator[None]:
    """While this lasts, Ray looks for a node that it has started for longer than it would. It has no setting for that."""
    try:
        from ray._private import services

        look = services.get_node
    except (ImportError, AttributeError):  # another Ray, which does it in another way
        yield
        return

    def look_long(*arguments: Any, **named: Any) -> Any:
        until = time.monotonic() + _START_TIMEOUT
        while True:
            try:
                return look(*arguments, **named)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    services.get_node = look_long
    try:
        yield
    finally:
        services.get_node = look


def _wait_for_users(folder: str) -> None:
    """Wait until no other process has a file in *folder* open: helpers outlive their node for a moment, and would create the
    folder again."""
    until = time.monotonic() + _END_TIMEOUT
    while folder and _has_users(folder) and time.monotonic() < until:
        time.sleep(0.05)


def _has_users(folder: str) -> bool:
    """Whether another process has a file in *folder* open."""
    return next(_users(folder), None) is not None


def _end_users(folder: str) -> None:
    """Kill all others that have a file in *folder* open."""
    for process in _users(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _users(folder: str) -> Iterator[int]:
    inside = os.path.join(folder, "")
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if process != os.getpid() and any(path.startswith(inside) for path in _open_files(f"/proc/{process}/fd")):
            yield process


def _open_files(descriptors: str) -> Iterator[str]:
    try:
        names = os.listdir(descriptors)
    except OSError:  # it has ended, or it is another owner's
        return
    for name in names:
        with suppress(OSError):  # closed since
            yield os.readlink(os.path.join(descriptors, name))
