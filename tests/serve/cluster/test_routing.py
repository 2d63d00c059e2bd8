"""Where a request goes, and when it goes to another board: in virtual time, without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anynpu.errors import (
    AnynpuError,
    BoardLostError,
    DeviceClosed,
    DeviceHungError,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    FeedNameError,
    ModelUnavailableError,
    OverloadedError,
    ShapeError,
    SubmitTimeout,
    UnknownModelError,
)
from anynpu.serve.cluster.messages import BoardRefusal, BoardReport
from anynpu.serve.cluster.routing import BoardPool, route
from anynpu.serve.failures import failure_of
from anynpu.serve.model import InferAnswer, InferRequest

from .virtual_time import in_virtual_time, now

Reply = InferAnswer | BoardRefusal | AnynpuError
Behaviour = Callable[[InferRequest, str], Awaitable[Reply]]

ANSWER = InferAnswer("net", "1", "", {})
REQUEST = InferRequest("net", "", "", {}, [])


class ScriptedBoards:
    """Replies as scripted, one reply after the other; notes whom it was to avoid and how long it had."""

    def __init__(self, name: str, *replies: Reply | Behaviour) -> None:
        self.name = name
        self.replies = list(replies)
        self.avoided: list[str] = []
        self.timeouts: list[float | None] = []

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | BoardRefusal:
        self.avoided.append(avoid)
        self.timeouts.append(request.timeout)
        reply = self.replies.pop(0)
        if not isinstance(reply, InferAnswer | BoardRefusal | AnynpuError):
            reply = await reply(request, avoid)
        if isinstance(reply, AnynpuError):
            raise reply
        return reply

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        raise AssertionError("routing reports nobody anything")


def pool(boards: ScriptedBoards, *names: str) -> BoardPool:
    made = BoardPool(boards)
    made.reports = {name: BoardReport(name, name, 1, (), (), False) for name in names}
    return made


def run(*pools: BoardPool, request: InferRequest = REQUEST, timeout: float = 5.0) -> InferAnswer:
    found: list[InferAnswer] = []

    @in_virtual_time
    async def scenario() -> None:
        found.append(await route(pools, request, timeout))

    scenario()
    return found[0]


def test_the_pool_with_the_least_work_for_each_board_is_asked() -> None:
    busy, idle = ScriptedBoards("busy"), ScriptedBoards("idle", ANSWER)
    crowded, large = pool(busy, "a"), pool(idle, "b", "c", "d")
    crowded.inside, large.inside = 2, 5
    assert run(crowded, large) is ANSWER
    assert (busy.avoided, idle.avoided) == ([], [""])
    assert (crowded.inside, large.inside) == (2, 5)


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("full"),
        SubmitTimeout("full"),
        DeviceHungError("hung"),
        DeviceClosed("ending"),
        DeviceUnavailable("lost"),
        DeviceMemoryError("full"),
        ModelUnavailableError("replaced"),
        UnknownModelError("not yet there"),
    ],
)
def test_what_a_board_refuses_another_is_asked_once(error: AnynpuError) -> None:
    boards = ScriptedBoards("all", BoardRefusal("a", error), ANSWER)
    assert run(pool(boards, "a", "b")) is ANSWER
    assert boards.avoided == ["", "a"]


def test_the_client_is_told_when_two_boards_have_refused() -> None:
    boards = ScriptedBoards(
        "all", BoardRefusal("a", OverloadedError("full")), BoardRefusal("b", OverloadedError("full as well")), ANSWER
    )
    with pytest.raises(OverloadedError, match="full as well"):
        run(pool(boards, "a", "b", "c"))
    assert boards.avoided == ["", "a"]


def test_a_single_board_that_refuses_is_not_asked_again() -> None:
    boards = ScriptedBoards("all", BoardRefusal("a", OverloadedError("full", retry_after=0.3)), ANSWER)
    with pytest.raises(OverloadedError) as caught:
        run(pool(boards, "a"))
    assert caught.value.retry_after == 0.3


def test_another_pool_comes_before_the_pool_that_refused() -> None:
    first, second = ScriptedBoards("first", BoardRefusal("a", OverloadedError("full"))), ScriptedBoards("second", ANSWER)
    occupied = pool(second, "c")
    occupied.inside = 3
    assert run(pool(first, "a", "b"), occupied) is ANSWER
    assert second.avoided == ["a"]


@pytest.mark.parametrize("error", [ShapeError("shape"), FeedNameError("name"), DeviceTimeout("late")])
def test_what_is_wrong_everywhere_is_not_tried_again(error: AnynpuError) -> None:
    boards = ScriptedBoards("all", BoardRefusal("a", error), ANSWER)
    with pytest.raises(type(error)):
        run(pool(boards, "a", "b"))
    assert len(boards.avoided) == 1


def test_a_request_on_a_board_that_is_lost_runs_on_another() -> None:
    boards = ScriptedBoards("all", BoardLostError("gone"), ANSWER)
    assert run(pool(boards, "a", "b")) is ANSWER


def test_two_lost_boards_are_told_as_unavailable() -> None:
    boards = ScriptedBoards("all", BoardLostError("gone"), BoardLostError("gone too", hint="come again"), ANSWER)
    with pytest.raises(BoardLostError, match="gone too") as caught:
        run(pool(boards, "a", "b", "c"))
    assert (failure_of(caught.value).status, failure_of(caught.value).code) == (503, "UNAVAILABLE")
    assert caught.value.hint


def test_without_a_board_the_client_is_told_at_once() -> None:
    boards = ScriptedBoards("all", ANSWER)
    with pytest.raises(BoardLostError, match="no board that has the model 'net'"):
        run(pool(boards))
    assert boards.avoided == []


def test_who_waits_is_told_when_the_last_board_leaves() -> None:
    async def never(request: InferRequest, avoid: str) -> Reply:
        made.reports = {}
        await asyncio.sleep(60)
        return ANSWER

    made = pool(ScriptedBoards("all", never), "a")
    with pytest.raises(BoardLostError, match="no board"):
        run(made)
    assert made.inside == 0


def test_the_second_try_has_what_is_left_of_the_deadline() -> None:
    async def slowly(request: InferRequest, avoid: str) -> Reply:
        await asyncio.sleep(0.2)
        return BoardLostError("gone")

    boards = ScriptedBoards("all", slowly, ANSWER)
    run(pool(boards, "a", "b"), request=InferRequest("net", "", "", {}, [], timeout=2.0), timeout=2.0)
    assert boards.timeouts == [2.0, pytest.approx(1.8)]


def test_no_second_try_after_the_deadline() -> None:
    async def slowly(request: InferRequest, avoid: str) -> Reply:
        await asyncio.sleep(0.2)
        return BoardRefusal("a", OverloadedError("full"))

    boards = ScriptedBoards("all", slowly, ANSWER)
    with pytest.raises(OverloadedError):
        run(pool(boards, "a", "b"), timeout=0.1)
    assert len(boards.avoided) == 1


def test_a_board_that_says_nothing_is_late_after_a_second_of_grace() -> None:
    ended = []

    async def never(request: InferRequest, avoid: str) -> Reply:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(now())
        return ANSWER

    with pytest.raises(DeviceTimeout):
        run(pool(ScriptedBoards("all", never), "a", "b"), timeout=0.1)
    assert ended == [pytest.approx(1.1)]


@in_virtual_time
async def test_cancelling_takes_the_request_back() -> None:
    entered = asyncio.Event()
    stopped = []

    async def never(request: InferRequest, avoid: str) -> Reply:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append(True)
        return ANSWER

    made = pool(ScriptedBoards("all", never), "a")
    task = asyncio.ensure_future(route([made], REQUEST, 30.0))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert made.inside == 0
    assert stopped == [True]
