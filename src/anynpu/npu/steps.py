"""Jobs of one or several programs that keep their cores from the first to the last.

Where a call of a vendor's interface submits a network, or a group of them, it becomes a job of :class:`Step` entries: nothing
else runs on its cores in between, and what a surface has to do with inputs and outputs happens while the job has its contexts.

Who owns what: a job's :class:`RunControl` belongs to who made it; a :class:`Launch` is told once what became of it. Locks: those
of the scheduler and of the workers; there are none here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ..errors import AnynpuError, DeviceClosed, DeviceTimeout, JobCancelled
from .context import Context
from .control import RunControl
from .cores import CoreMask, Lease
from .device import Device

__all__ = ["Launch", "Step", "run_steps", "start_steps"]


@dataclass(frozen=True, eq=False)
class Step:
    """One program of a job, executed on what its input buffers hold.

    :ivar before: called before the first layer, while the job has the context and the cores
    :ivar after: called after the last layer
    :ivar duration_us: the time that the chip takes, for a device in real time; the prediction of the program if not given
    """

    context: Context
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    duration_us: float | None = None


class Launch(Future[None]):
    """A job that was started; its result is None, or what went wrong."""

    def __init__(self, device: Device, control: RunControl) -> None:
        super().__init__()
        self.control = control
        self._device = device

    def stop(self, error: AnynpuError | None = None) -> bool:
        """Let the job end with *error* (:class:`JobCancelled` unless given), before it begins or between two layers.

        :return: False if it had ended, or had been stopped before
        """
        error = error or JobCancelled("the job was cancelled")
        if self.done() or not self.control.cancel(error):
            return False
        self._device.scheduler.drop(self.control, error)
        return True


def run_steps(
    device: Device,
    steps: Sequence[Step],
    *,
    mask: CoreMask | int | Iterable[int] | None = None,
    priority: int = 0,
    control: RunControl,
    on_timeout: Callable[[], None] | None = None,
) -> None:
    """Execute *steps* one after the other, in the calling thread; parameters as in :meth:`Context.execute`.

    :param on_timeout: called if the job is out of time while it runs, as long as it still has its cores
    """
    device.require_open()
    with device.scheduler.acquire(mask, priority=priority, control=control, exclusive=_exclusive(steps)) as lease:
        _perform(lease, steps, on_timeout)


def start_steps(
    device: Device,
    steps: Sequence[Step],
    *,
    mask: CoreMask | int | Iterable[int] | None = None,
    priority: int = 0,
    control: RunControl,
    on_timeout: Callable[[], None] | None = None,
) -> Launch:
    """Queue *steps* and return at once; they have their place in the queue when this returns. Parameters as in
    :func:`run_steps`."""
    device.require_open()
    launch = Launch(device, control)
    task = _Task(launch, device, steps, on_timeout)
    device.scheduler.enqueue(task.granted, task.denied, mask, priority=priority, control=control, exclusive=_exclusive(steps))
    task.watch()
    return launch


class _Task:
    """A started job on its way from the queue to a worker thread."""

    def __init__(self, launch: Launch, device: Device, steps: Sequence[Step], on_timeout: Callable[[], None] | None) -> None:
        self._launch = launch
        self._on_timeout = on_timeout
        self._device = device
        self._steps = steps

    def watch(self) -> None:
        """Take the job out of the queue when its time is over."""
        launch = self._launch
        remaining = launch.control.remaining
        if remaining is None or launch.done():
            return
        scheduler, control = self._device.scheduler, launch.control
        timer = threading.Timer(remaining, lambda: scheduler.drop(control, control.reason("got no core")))
        timer.daemon = True  # it only denies a job that still waits: nothing is lost with it
        launch.add_done_callback(lambda _: timer.cancel())
        timer.start()

    def granted(self, lease: Lease) -> None:
        try:
            self._device._workers.start(lambda: self._run(lease))
        except (RuntimeError, DeviceClosed) as error:
            lease.release()
            self._launch.set_exception(error)

    def denied(self, error: AnynpuError) -> None:
        self._launch.set_exception(error)

    def _run(self, lease: Lease) -> None:
        error: BaseException | None = None
        with lease:
            self._launch.set_running_or_notify_cancel()
            try:
                _perform(lease, self._steps, self._on_timeout)
            except BaseException as raised:  # whatever it is belongs to who asks for the result
                error = raised
        if error is None:
            self._launch.set_result(None)
        else:
            self._launch.set_exception(error)
        del error  # it refers to this frame, which must not refer to it


def _exclusive(steps: Sequence[Step]) -> tuple[Hashable, ...]:
    return tuple(key for step in steps for key in step.context._exclusive())


def _perform(lease: Lease, steps: Sequence[Step], on_timeout: Callable[[], None] | None) -> None:
    lease.control.began = True
    try:
        for step in steps:
            step.context._execute_held(lease, step.before, step.after, step.duration_us)
    except DeviceTimeout:
        if on_timeout is not None:
            on_timeout()
        raise
