"""Faults of jobs: a device asks when a job begins and when it has computed.

The job holds its cores meanwhile, so that whoever waits for them waits longer, as behind a slow or hanging core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..._util.types import Array
from ...errors import DeviceTimeout, DeviceUnavailable
from .clock import Stoppable
from .injector import Injected, Injector

__all__ = ["FaultyJobs", "FaultyRun"]


class FaultyJobs:
    """Faults of the jobs of one device.

    :param cores: of the chip
    """

    def __init__(self, injector: Injector, cores: int) -> None:
        self.injector = injector
        self._cores = cores

    def begin(self, cores: tuple[int, ...], busy: int, job: Stoppable) -> FaultyRun | None:
        """A job begins on *cores*, with *busy* cores in use; raises where it fails. What happens at its end, or None for nothing."""
        factor, wrong = 1.0, []
        for each in self.injector.offer("job", cores):
            kind = each.fault.kind
            if kind in ("slow", "throttle", "contention"):
                factor *= self._factor(each, busy)
            elif kind == "flip":
                wrong.append(each)
            else:
                self._fail(each, cores, job)
        return FaultyRun(self.injector, factor, wrong) if factor > 1 or wrong else None

    def _factor(self, each: Injected, busy: int) -> float:
        more = each.fault.factor - 1
        if each.fault.kind == "throttle":
            more *= min(1.0, each.count / each.fault.ramp)
        elif each.fault.kind == "contention":
            more *= (max(busy, 1) - 1) / max(self._cores - 1, 1)
        return 1 + more

    def _fail(self, each: Injected, cores: tuple[int, ...], job: Stoppable) -> None:
        fault, where = each.fault, f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
        if fault.kind == "busy":
            self.injector.clock.wait(fault.seconds, job)
        elif fault.kind == "hang":
            self.injector.clock.wait(fault.seconds, job)
            raise DeviceTimeout(
                f"{where} did not answer for {fault.seconds:g} s and was reset (injected)", hint="submit the job again"
            )
        elif fault.kind == "timeout":
            raise DeviceTimeout(f"the job on {where} did not finish in time (injected)", hint="submit the job again")
        else:
            raise DeviceUnavailable("the NPU is not there (injected)", hint="try again; open the model again where that fails")


class FaultyRun:
    """What is still to happen to a job that has begun."""

    def __init__(self, injector: Injector, factor: float, wrong: Sequence[Injected]) -> None:
        self._injector = injector
        self._factor = factor
        self._wrong = wrong

    def end(self, seconds: float, outputs: Callable[[], Sequence[Array]], job: Stoppable) -> None:
        """The job has computed.

        :param seconds: that it took so far
        :param outputs: their bytes
        """
        if self._factor > 1:
            self._injector.clock.wait((self._factor - 1) * seconds, job)
        for each in self._wrong:
            arrays = [array for array in outputs() if array.size]
            place = self._injector.byte_of(each.fault, sum(array.size for array in arrays))
            for array in arrays:
                if place < array.size:
                    array[place] ^= 1 << each.fault.bit
                    break
                place -= array.size
