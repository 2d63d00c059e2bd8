"""One board: its sessions behind a gateway, its health, and what it states to the front."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from session.fake import FakeDevice, feed

from anynpu.errors import (
    AccessDeniedError,
    AnynpuError,
    DeviceHungError,
    DeviceUnavailable,
    FeedNameError,
    ModelUnavailableError,
    OptionError,
    OverloadedError,
    ShapeError,
    UnknownModelError,
)
from anynpu.serve import ServeOptions
from anynpu.serve.cluster.board import Board
from anynpu.serve.cluster.messages import BoardRefusal, Order, PoolPlan, parse_pools
from anynpu.serve.model import InferAnswer, InferRequest

from .fake_boards import ask, pool_of
from .virtual_time import in_virtual_time


async def started(folder: Path, device: FakeDevice, **options: Any) -> Board:
    """A board with real sessions on a fake device."""
    (folder / "net.rknn").write_bytes(b"model")
    board = Board((str(folder),), ServeOptions(device=device, drain_timeout=300.0, **options), "a")
    await board.start()
    return board


def request(model: str = "net") -> InferRequest:
    return InferRequest(model, "", "7", {"x": feed(3.0)}, [])


def test_a_board_runs_a_request_in_its_session(tmp_path: Path) -> None:
    async def test() -> None:
        board = await started(tmp_path, FakeDevice(2))
        answer = await board.infer(request())
        assert isinstance(answer, InferAnswer)
        assert answer.id == "7"
        assert np.array_equal(answer.outputs["y"], feed(6.0))
        report = await board.report({})
        (model,) = report.models
        assert (model.name, model.platform, model.details.cores, model.counts.executions) == ("net", "anynpu_fake2", 2, 1)
        assert not report.problems
        await board.close()

    asyncio.run(test())


def test_a_board_obeys_and_gives_back_what_it_had(tmp_path: Path) -> None:
    async def test() -> None:
        device = FakeDevice(1)
        board = await started(tmp_path, device)
        assert await board.obey({"net": Order(2, load=False)}) == {}
        refused = await board.infer(request())
        assert isinstance(refused, BoardRefusal)
        assert isinstance(refused.error, ModelUnavailableError)
        assert await board.obey({"net": Order(1, load=True)}) == {}  # older than what it has done
        assert [entry.state for entry in (await board.report({})).index] == ["UNAVAILABLE"]
        assert await board.obey({"net": Order(3, load=True)}) == {}
        assert isinstance(await board.infer(request()), InferAnswer)
        (tmp_path / "net.rknn").unlink()
        failures = await board.obey({"net": Order(4, load=True)})
        assert isinstance(failures["net"], UnknownModelError)
        await board.close()
        assert (device.open_backends, device.open_lanes) == (0, 0)

    asyncio.run(test())


def test_a_board_whose_session_has_ended_is_ill(tmp_path: Path) -> None:
    async def test() -> None:
        board = await started(tmp_path, FakeDevice(1))
        board.check_health()
        (model,) = board._repository.models()
        model.session.close()  # type: ignore[attr-defined]
        with pytest.raises(DeviceUnavailable, match="has ended"):
            board.check_health()

    asyncio.run(test())


@in_virtual_time
async def test_a_board_is_ill_when_as_many_runs_as_it_has_cores_did_not_come_back() -> None:
    place = (await pool_of("a", cores=2)).places["a"]
    place.model().failure = DeviceHungError("the core did not answer")
    for _ in range(2):
        place.board.check_health()
        assert isinstance(await place.board.infer(ask()), BoardRefusal)
    with pytest.raises(DeviceUnavailable, match="the last 2 runs on a did not come back"):
        place.board.check_health()


@in_virtual_time
async def test_a_run_that_comes_back_makes_a_board_well_again() -> None:
    place = (await pool_of("a", cores=1)).places["a"]
    place.model().failure = DeviceHungError("the core did not answer")
    await place.board.infer(ask())
    place.model().failure = None
    assert isinstance(await place.board.infer(ask()), InferAnswer)
    place.board.check_health()


@in_virtual_time
async def test_requests_that_are_wrong_do_not_make_a_board_ill() -> None:
    place = (await pool_of("a", cores=1)).places["a"]
    place.model().failure = ShapeError("the shape is wrong")
    for _ in range(3):
        assert isinstance(await place.board.infer(ask()), BoardRefusal)
    place.board.check_health()


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("full", hint="later", retry_after=0.25),
        AccessDeniedError("no", hint="ask", known=False),
        ShapeError("shape", hint="look"),
        FeedNameError("name", hint="look"),
        DeviceHungError("hung", hint="reset", code=-3, call="rknn_run"),
    ],
)
def test_a_refusal_says_the_same_on_the_other_machine(error: AnynpuError) -> None:
    there = pickle.loads(pickle.dumps(BoardRefusal("a", error))).error
    assert type(there) is type(error)
    assert (str(there), vars(there)) == (str(error), vars(error))


def test_plans_of_the_command_line() -> None:
    (plan,) = parse_pools(["a.rknn", "b=c.rknn"], [], 2)
    assert (plan.models, plan.resources, plan.boards, plan.application) == (
        ("a.rknn", "b=c.rknn"),
        {"NPU": 1},
        2,
        "anynpu-boards",
    )
    assert PoolPlan(("x",), "rk3576").resources == {"NPU": 1, "rk3576": 1}


@pytest.mark.parametrize(
    ("models", "pools"),
    [
        ([], []),
        (["a"], ["p=b"]),
        ([], ["NPU=a"]),
        ([], ["p"]),
        ([], ["p="]),
        ([], ["p=a", "p=b"]),
        ([], ["=a"]),
    ],
)
def test_plans_that_make_no_sense_are_refused(models: list[str], pools: list[str]) -> None:
    with pytest.raises(OptionError):
        parse_pools(models, pools, None)
