"""run_pipeline, drain, stream and arun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.errors import DeviceTimeout, FeedShapeError, SessionError

from .fake import FakeDevice, feed
from .test_callbacks import by_value


def values(results: Any) -> list[Any]:
    return [None if result is None else float(result[0][0, 0]) for result in results]


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
def test_the_pipeline_gives_results_depth_calls_later_and_drain_gives_the_rest(depth: int) -> None:
    with FakeDevice(3, run_time=by_value(lambda value: 0.001 * (value % 3))).open() as session:
        given = values(session.run_pipeline(feed(value), depth) for value in range(10))
        assert given == [None] * depth + [2.0 * value for value in range(10 - depth)]
        assert values(session.drain()) == [2.0 * value for value in range(10 - depth, 10)]
        assert session.drain() == []
        assert session.run_pipeline(feed(), depth) is None


def test_the_default_depth_is_three() -> None:
    with FakeDevice().open() as session:
        assert values(session.run_pipeline(feed(value)) for value in range(4)) == [None, None, None, 0.0]


@pytest.mark.parametrize(
    ("depth", "kind"), [(0, RuntimeError), (-1, TypeError), (1.5, TypeError), ("3", TypeError), (None, TypeError)]
)
def test_depths_that_make_no_sense(depth: Any, kind: type[Exception]) -> None:
    """The types of EZ RKNN Async, and always an error of ours."""
    with FakeDevice().open() as session, pytest.raises(SessionError, match="pipeline depth") as caught:
        session.run_pipeline(feed(), depth)
    assert isinstance(caught.value, kind)
    assert isinstance(caught.value, TypeError) == (kind is TypeError)


def test_a_reset_or_another_depth_begins_again() -> None:
    with FakeDevice(1, run_time=0.002).open(max_queue_size=10) as session:
        assert values(session.run_pipeline(feed(value), 2) for value in range(3)) == [None, None, 0.0]
        assert session.run_pipeline(feed(10), 2, reset=True) is None
        assert session.run_pipeline(feed(11), 2) is None
        assert values([session.run_pipeline(feed(12), 2)]) == [20.0]
        assert session.run_pipeline(feed(20), 1) is None
        assert values([session.run_pipeline(feed(21), 1)]) == [40.0]
        assert values(session.drain()) == [42.0]


def test_an_error_is_raised_where_its_result_would_be_and_the_rest_is_intact() -> None:
    with FakeDevice(1, fails=lambda lane: lane.arrays[0][0, 0] in (1, 4)).open() as session:
        assert values(session.run_pipeline(feed(value), 2) for value in range(3)) == [None, None, 0.0]
        with pytest.raises(Exception, match="fake device failed"):
            session.run_pipeline(feed(3), 2)
        assert values([session.run_pipeline(feed(4), 2)]) == [4.0]
        assert values([session.run_pipeline(feed(5), 2)]) == [6.0]
        with pytest.raises(Exception, match="fake device failed"):
            session.drain()
        assert values(session.drain()) == [10.0]
        for value in (6, 4, 7):
            session.run_pipeline(feed(value), 3)
        assert values(session.drain()) == [12.0], "what came before an error is given first"
        with pytest.raises(Exception, match="fake device failed"):
            session.drain()
        assert values(session.drain()) == [14.0]


def test_draining_may_give_up() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open() as session:
        session.run_pipeline(feed(1))
        with pytest.raises(DeviceTimeout, match=r"no result within 0\.01 s"):
            session.drain(timeout=0.01)
        device.gate.set()
        assert values(session.drain(timeout=120)) == [2.0]


def test_runs_and_pipelines_mix() -> None:
    with FakeDevice(3).open(schedule=[0, 1, 2]) as session:
        for value in range(6):
            piped = session.run_pipeline(feed(value), 1)
            assert values([session.run(None, feed(50))]) == [100.0]
            assert values([piped]) == [None if value == 0 else 2.0 * (value - 1)]


@pytest.mark.parametrize("depth", [None, 1, 2, 20])
def test_a_stream_in_order(depth: int | None) -> None:
    device = FakeDevice(3, run_time=by_value(lambda value: 0.003 if value % 3 == 0 else 0.0))
    with device.open() as session:
        assert values(session.stream((feed(value) for value in range(20)), depth)) == [2.0 * value for value in range(20)]


def test_a_stream_as_completed() -> None:
    others_are_through = threading.Event()
    device = FakeDevice(3, run_time=by_value(lambda value: float(value == 0 and not others_are_through.wait(300))))
    with device.open() as session:
        results = []
        for (result,) in session.stream((feed(value) for value in range(12)), 6, ordered=False):
            results.append(float(result[0, 0]))
            if len(results) == 11:
                others_are_through.set()
        assert sorted(results) == [2.0 * value for value in range(12)]
        assert results[-1] == 0.0


def test_a_stream_takes_feeds_only_as_fast_as_results_are_taken() -> None:
    taken = 0

    def camera() -> Iterator[npt.NDArray[np.float32]]:
        nonlocal taken
        for value in range(100):
            taken += 1
            yield feed(value)

    with FakeDevice(3).open() as session:
        results = session.stream(camera(), depth=4)
        assert taken == 0
        next(results)
        assert taken == 4
        next(results)
        assert taken == 5
        results.close()  # type: ignore[attr-defined]
        assert session.run(None, feed(1))[0].tolist() == [[2] * 4]


def test_errors_in_a_stream() -> None:
    with FakeDevice(1, fails=lambda lane: lane.arrays[0][0, 0] == 2).open() as session:
        results = session.stream(feed(value) for value in range(5))
        assert values([next(results), next(results)]) == [0.0, 2.0]
        with pytest.raises(Exception, match="fake device failed"):
            next(results)
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(SessionError, match="depth of a stream"):
                session.stream([], wrong)  # type: ignore[arg-type]
        with pytest.raises(FeedShapeError):
            list(session.stream([np.zeros(3)]))
        assert list(session.stream([])) == []


def test_awaited_runs() -> None:
    device = FakeDevice(3, run_time=0.002)
    with device.open(max_queue_size=1) as session:

        async def main() -> list[Any]:
            results = await asyncio.gather(*(session.arun(None, {"x": feed(value)}) for value in range(40)))
            return values(results)

        assert asyncio.run(main()) == [2.0 * value for value in range(40)]
    assert device.violations == []


def test_an_event_loop_is_not_blocked_by_a_full_queue() -> None:
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open(max_queue_size=1) as session:

        async def main() -> list[Any]:
            tasks = [asyncio.create_task(session.arun(["y"], feed(value))) for value in range(6)]
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in tasks)
            assert device.gate is not None
            device.gate.set()
            return values(await asyncio.gather(*tasks))

        assert asyncio.run(main()) == [2.0 * value for value in range(6)]


def test_cancelled_and_failed_tasks() -> None:
    device = FakeDevice(1, gated=True, fails=lambda lane: lane.arrays[0][0, 0] == 3)
    assert device.gate is not None
    with device.open(max_queue_size=1) as session:

        async def main() -> None:
            tasks = [asyncio.create_task(session.arun(None, feed(value))) for value in range(5)]
            await asyncio.sleep(0.01)
            for number in (1, 4):
                tasks[number].cancel()
            await asyncio.sleep(0.01)
            assert tasks[1].cancelled()
            assert device.gate is not None
            device.gate.set()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert values([outcomes[0], outcomes[2]]) == [0.0, 4.0]
            assert "fake device failed" in str(outcomes[3])
            assert sum(device.core_runs.values()) == 3, "what was cancelled did not run"
            device.run_time = 0.05
            with pytest.raises(DeviceTimeout):
                await session.arun(None, feed(), timeout=0.01)

        asyncio.run(main())


def test_a_loop_that_is_gone_when_the_result_comes() -> None:
    before = set(threading.enumerate())
    device = FakeDevice(1, gated=True)
    assert device.gate is not None
    with device.open() as session:

        async def main() -> None:
            task = asyncio.create_task(session.arun(None, feed()))
            await asyncio.sleep(0.01)
            task.cancel()

        asyncio.run(main())
        device.gate.set()
        assert session.run(None, feed(2))[0].tolist() == [[4] * 4]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("anynpu fake")]
