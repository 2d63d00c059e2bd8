"""The models of a cluster on boards in this process: what the front knows, counts and orders, without Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from session.fake import FakeDevice, feed

from anynpu.errors import (
    AccessDeniedError,
    AnynpuError,
    BoardLostError,
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
from anynpu.serve.cluster.messages import BoardReport, Refusal
from anynpu.serve.cluster.models import ClusterModels
from anynpu.serve.cluster.plan import PoolPlan, parse_pools
from anynpu.serve.cluster.routing import Pool
from anynpu.serve.model import InferAnswer, InferRequest


class LocalBoards:
    """A pool of boards in this process; the first that is not to be avoided gets the request."""

    def __init__(self, name: str, *boards: Board) -> None:
        self.name = name
        self.boards = list(boards)

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | Refusal:
        for board in self.boards:
            if board.identity != avoid:
                return await board.infer(request)
        raise BoardLostError("there is none")

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        return [await getattr(board, method)(*arguments) for board in self.boards]


def models_in(folder: Path, *names: str) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.rknn").write_bytes(b"model")
    return (str(folder),)


def options(device: FakeDevice, **given: Any) -> ServeOptions:
    return ServeOptions(device=device, drain_timeout=5.0, **given)


async def started(name: str, models: tuple[str, ...], device: FakeDevice | None = None, **given: Any) -> Board:
    board = Board(models, options(device or FakeDevice(), **given), name)
    await board.start()
    return board


def ask(model: str = "net") -> InferRequest:
    return InferRequest(model, "", "7", {"x": feed(3.0)}, [])


def scenario(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 60))


async def known(*pools: Pool, **given: Any) -> ClusterModels:
    models = ClusterModels(pools, options(FakeDevice(), **given))
    await models.refresh()
    return models


async def refreshed(models: ClusterModels) -> None:
    await asyncio.sleep(0.06)  # what is younger counts as fresh
    await models.refresh()


def test_boards_look_like_one_server(tmp_path: Path) -> None:
    async def test() -> None:
        files = models_in(tmp_path, "net")
        boards = [await started(name, files, FakeDevice(2)) for name in "ab"]
        models = await known(Pool(LocalBoards("all", *boards)))
        model = models.get("net")
        assert [(entry.name, entry.state) for entry in models.index()] == [("net", "READY")]
        assert (model.platform, model.details.cores, models.versions("net")) == ("anynpu_fake2", 4, ["1"])
        answer = await model.infer(ask())
        assert answer.id == "7"
        assert np.array_equal(answer.outputs["y"], feed(6.0))
        await refreshed(models)
        counts = model.counts
        assert (counts.success, counts.executions, counts.inferences, len(counts.latencies)) == (1, 1, 1, 1)
        assert {core.label.rpartition("/")[2] for core in model.figures().cores} <= {"0", "1"}
        assert not models.problems()
        with pytest.raises(UnknownModelError, match="there are: net"):
            models.get("other")

    scenario(test)


def test_each_pool_gets_its_own_models_and_both_get_what_both_have(tmp_path: Path) -> None:
    async def test() -> None:
        one = await started("a", (*models_in(tmp_path / "large", "det"), *models_in(tmp_path / "both", "net")))
        two = await started("b", (*models_in(tmp_path / "small", "cls"), *models_in(tmp_path / "both", "net")))
        large, small = Pool(LocalBoards("large", one)), Pool(LocalBoards("small", two))
        models = await known(large, small)
        for name in ("det", "cls"):
            await models.get(name).infer(ask(name))
        assert {name: [pool.name for pool in models.get(name).pools] for name in ("det", "cls", "net")} == {
            "det": ["large"],
            "cls": ["small"],
            "net": ["large", "small"],
        }
        large.inside = 1
        await models.get("net").infer(ask())
        runs = {
            board.identity: {each.name: each.counts.executions for each in (await board.report({})).models}
            for board in (one, two)
        }
        assert runs == {"a": {"det": 1, "net": 0}, "b": {"cls": 1, "net": 1}}

    scenario(test)


def test_counts_outlive_a_board_and_service_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        files = models_in(tmp_path, "net")
        boards = LocalBoards("all", *[await started(name, files) for name in "ab"])
        pool = Pool(boards)
        models = await known(pool)
        model = models.get("net")
        for _ in range(3):
            await model.infer(ask())
        await refreshed(models)
        lost = boards.boards.pop(0)
        await refreshed(models)
        assert (model.counts.executions, len(model.reports)) == (3, 1)
        await model.infer(ask())
        await refreshed(models)
        assert (model.counts.executions, model.counts.success) == (4, 4)
        boards.boards.clear()
        await refreshed(models)
        assert models.get("net") is model
        assert models.problems()
        with pytest.raises(BoardLostError):
            model.announce()
        await lost.close()

    scenario(test)


def test_a_board_that_joins_catches_up_with_what_clients_said(tmp_path: Path) -> None:
    async def test() -> None:
        files = models_in(tmp_path, "net", "old")
        boards = LocalBoards("all", await started("a", files))
        models = await known(Pool(boards))
        await models.unload("old")
        with pytest.raises(ModelUnavailableError, match="old"):
            models.get("old")
        boards.boards.append(await started("b", files))
        await refreshed(models)
        await refreshed(models)
        assert [entry.state for entry in models.index() if entry.name == "old"] == ["UNAVAILABLE"]
        reports: list[BoardReport] = await boards.tell("report", {}, timeout=1)
        assert [[model.name for model in report.models] for report in reports] == [["net"], ["net"]]
        await models.load("old")
        assert models.get("old").name == "old"
        reports = await boards.tell("report", {}, timeout=1)
        assert [sorted(model.name for model in report.models) for report in reports] == [["net", "old"], ["net", "old"]]
        with pytest.raises(UnknownModelError):
            await models.load("never")
        with pytest.raises(UnknownModelError):
            await models.unload("never")

    scenario(test)


def test_a_load_that_fails_is_told_and_not_repeated(tmp_path: Path) -> None:
    async def test() -> None:
        device = FakeDevice(3)
        boards = LocalBoards("all", await started("a", models_in(tmp_path, "net"), device))
        models = await known(Pool(boards))
        (tmp_path / "net.rknn").unlink()
        with pytest.raises(UnknownModelError):
            await models.load("net")
        (tmp_path / "net.rknn").write_bytes(b"model")
        opened = device.open_backends
        await refreshed(models)
        assert device.open_backends == opened
        assert models.get("net").name == "net"

    scenario(test)


def test_more_than_all_boards_may_have_waiting_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def test() -> None:
        files = models_in(tmp_path, "net")
        device = FakeDevice(1, gated=True)
        models = await known(Pool(LocalBoards("all", await started("a", files, device, max_queue=1))), max_queue=1)
        model = models.get("net")
        tasks = [asyncio.ensure_future(model.infer(ask())) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(OverloadedError) as caught:
            model.announce()
        assert caught.value.retry_after > 0
        assert model.figures().shed == 1
        assert device.gate is not None
        device.gate.set()
        await asyncio.gather(*tasks)
        announced = [model.announce() for _ in range(2)]
        with pytest.raises(OverloadedError):
            model.announce()
        announced[0].withdraw()
        model.announce()

    scenario(test)


def test_a_board_is_ill_when_no_core_comes_back_and_well_when_one_does(tmp_path: Path) -> None:
    async def test() -> None:
        slow = {"seconds": 5.0}
        device = FakeDevice(2, run_time=lambda lane: slow["seconds"])
        board = await started("a", models_in(tmp_path, "net"), device, watchdog_ms=50)
        board.check_health()
        first = await board.infer(ask())
        assert isinstance(first, Refusal)
        assert isinstance(first.error, DeviceHungError)
        board.check_health()
        await board.infer(ask())
        with pytest.raises(DeviceUnavailable, match="did not come back"):
            board.check_health()
        slow["seconds"] = 0.0
        assert isinstance(await board.infer(ask()), InferAnswer)
        board.check_health()

    scenario(test)


def test_a_board_whose_session_has_ended_is_ill(tmp_path: Path) -> None:
    async def test() -> None:
        board = await started("a", models_in(tmp_path, "net"))
        (model,) = board._repository.models()
        model.session.close()  # type: ignore[attr-defined]
        with pytest.raises(DeviceUnavailable, match="has ended"):
            board.check_health()

    scenario(test)


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
    there = pickle.loads(pickle.dumps(Refusal("a", error))).error
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
    for models, pools in [
        ([], []),
        (["a"], ["p=b"]),
        ([], ["NPU=a"]),
        ([], ["p"]),
        ([], ["p="]),
        ([], ["p=a", "p=b"]),
        ([], ["=a"]),
    ]:
        with pytest.raises(OptionError):
            parse_pools(models, pools, None)
