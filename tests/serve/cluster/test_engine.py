"""What runs on the boards: started, fitted to boards that join, replaced board by board, ended. On a platform without Ray."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from anynpu.errors import ServeError
from anynpu.serve import ServeOptions
from anynpu.serve.cluster.engine import Engine
from anynpu.serve.cluster.front import FIT_EVERY, Front
from anynpu.serve.cluster.messages import PoolPlan

from .fake_boards import answer, pool_of
from .fake_platform import FakePlatform
from .virtual_time import in_virtual_time

ALL = PoolPlan(("net.rknn",))
LARGE = PoolPlan(("net.rknn",), "large")
SMALL = PoolPlan(("other.rknn",), "small")


def engine_on(platform: FakePlatform, *plans: PoolPlan, attach: bool = False) -> Engine:
    return Engine(platform, plans or (ALL,), attach, clock=platform.clock, sleep=platform.sleep, wall=platform.clock)


def test_a_pool_gets_a_replica_for_every_board() -> None:
    platform = FakePlatform(NPU=3)
    engine_on(platform).start()
    assert platform.steps == ["connect", "start serving", "deploy boards 3"]


def test_a_front_serves_as_soon_as_each_pool_has_one_board() -> None:
    platform = FakePlatform(large=3, small=1)
    engine_on(platform, LARGE, SMALL).start()
    assert {name: len(running) for name, running in platform.replicas.items()} == {"anynpu-large": 1, "anynpu-small": 1}


def test_a_plan_may_say_how_many_boards_it_takes() -> None:
    platform = FakePlatform(NPU=3)
    engine_on(platform, PoolPlan(("net.rknn",), boards=2)).start()
    assert platform.steps[-1] == "deploy boards 2"


def test_a_pool_without_boards_is_told_with_what_to_do_on_a_board() -> None:
    platform = FakePlatform(NPU=2)
    with pytest.raises(ServeError, match="no board for pool 'absent'") as caught:
        engine_on(platform, PoolPlan(("net.rknn",), "absent")).start()
    assert """ray start --address=127.0.0.1:6379 --resources='{"NPU": 1, "absent": 1}'""" in caught.value.hint
    assert "start serving" not in platform.steps


def test_boards_that_cannot_start_are_told_with_the_reason() -> None:
    platform = FakePlatform(NPU=2)
    platform.failure = "the model file is not there"
    with pytest.raises(ServeError, match="the model file is not there") as caught:
        engine_on(platform).start()
    assert caught.value.hint


def test_boards_that_never_become_ready_are_given_up() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform)
    platform.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ServeError, match="no board was ready within 180 s"):
        engine.start()
    assert platform.now == pytest.approx(1180, abs=1)


def test_a_board_that_joins_gets_a_replica() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform)
    engine.start()
    engine.fit()
    assert platform.steps[-1] == "deploy boards 2"
    platform.nodes["NPU"] = 3
    engine.fit()
    assert platform.steps[-1] == "deploy boards 3"


def test_a_board_that_has_left_keeps_its_place() -> None:
    platform = FakePlatform(NPU=3)
    engine = engine_on(platform)
    engine.start()
    steps = len(platform.steps)
    platform.nodes["NPU"] = 2
    engine.fit()
    platform.nodes["NPU"] = 3
    engine.fit()
    assert len(platform.steps) == steps


def test_a_pool_of_a_given_size_does_not_grow() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform, PoolPlan(("net.rknn",), boards=2))
    engine.start()
    platform.nodes["NPU"] = 5
    engine.fit()
    assert platform.steps[-1] == "deploy boards 2"


def test_before_its_start_and_after_its_end_nothing_is_fitted() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform)
    engine.fit()
    assert platform.steps == []
    engine.start()
    engine.stop()
    steps = len(platform.steps)
    engine.fit()
    assert len(platform.steps) == steps


def test_replacing_waits_until_every_board_has_the_new_generation() -> None:
    platform = FakePlatform(NPU=3)
    engine = engine_on(platform)
    engine.start()
    while len(platform.replicas["anynpu-boards"]) < 3:
        platform.step()
    platform.fewest = 3
    engine.update()
    assert set(platform.replicas["anynpu-boards"]) == {platform.deployed["anynpu-boards"].generation}
    assert platform.fewest == 2  # board by board


def test_every_replacement_is_a_generation_that_no_front_has_used() -> None:
    platform = FakePlatform(NPU=1)
    engine = engine_on(platform)
    engine.start()
    generations = []
    for _ in range(3):
        engine.update()
        generations.append(platform.deployed["anynpu-boards"].generation)
    assert generations[0] >= 1000  # a gateway that started earlier had a smaller clock
    assert generations == sorted(set(generations))


def test_a_replacement_that_does_not_end_is_told() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform)
    engine.start()
    platform.step = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ServeError, match="not every board was ready within 180 s"):
        engine.update()


def test_the_end_takes_away_what_the_start_made() -> None:
    platform = FakePlatform(NPU=2)
    engine = engine_on(platform)
    engine.start()
    engine.stop()
    assert platform.steps[-2:] == ["stop serving", "disconnect"]
    engine.stop()
    assert platform.steps[-2:] == ["stop serving", "disconnect"]


def test_applications_of_others_stay_when_serving_was_there_before() -> None:
    platform = FakePlatform(large=1)
    platform.serving = True
    engine = engine_on(platform, LARGE)
    engine.start()
    engine.stop()
    assert platform.steps[-2:] == ["delete anynpu-large", "disconnect"]
    assert platform.serving


def test_a_start_that_failed_leaves_the_cluster() -> None:
    platform = FakePlatform()
    engine = engine_on(platform)
    with pytest.raises(ServeError):
        engine.start()
    engine.stop()
    assert platform.steps == ["connect", "disconnect"]


def with_an_application() -> FakePlatform:
    platform = FakePlatform(NPU=2)
    engine_on(platform).start()
    platform.steps.clear()
    return platform


def test_a_second_front_attaches_and_leaves_everything_as_it_is() -> None:
    platform = with_an_application()
    engine = engine_on(platform, PoolPlan(()), attach=True)
    engine.start()
    engine.fit()
    engine.stop()
    assert platform.steps == ["connect", "attach boards", "disconnect"]


def test_a_front_that_is_attached_does_not_replace_what_others_deployed() -> None:
    platform = with_an_application()
    engine = engine_on(platform, PoolPlan(()), attach=True)
    engine.start()
    with pytest.raises(ServeError, match="was not started here") as caught:
        engine.update()
    assert "serve deploy" in caught.value.hint
    assert platform.steps == ["connect", "attach boards"]


def test_attaching_to_what_is_not_there_is_told() -> None:
    with pytest.raises(ServeError, match="anynpu-boards is not there"):
        engine_on(FakePlatform(NPU=1), PoolPlan(()), attach=True).start()


async def at_once(call: Callable[[], None]) -> None:
    """What blocks elsewhere does not block here: its platform has a clock of its own."""
    call()


@in_virtual_time
async def test_a_front_starts_its_boards_fits_them_and_ends_them() -> None:
    platform = FakePlatform(NPU=1)
    platform.pools["boards"] = await pool_of("a")
    front = Front(engine_on(platform), ServeOptions(), at_once, signals=False)
    await front.load_all()
    assert await answer(front) == 2.0
    platform.nodes["NPU"] = 2
    await asyncio.sleep(FIT_EVERY + 0.1)
    assert platform.steps[-1] == "deploy boards 2"
    await front.close()
    assert platform.steps[-2:] == ["stop serving", "disconnect"]


@in_virtual_time
async def test_a_front_goes_on_while_the_head_has_trouble(caplog: pytest.LogCaptureFixture) -> None:
    platform = FakePlatform(NPU=1)
    platform.pools["boards"] = await pool_of("a")
    front = Front(engine_on(platform), ServeOptions(), at_once, signals=False)
    await front.load_all()
    platform.trouble = True
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(FIT_EVERY + 0.1)
    assert "the number of boards cannot be changed: the head does not answer" in caplog.text
    assert await answer(front) == 2.0
    platform.trouble = False
    platform.nodes["NPU"] = 2
    await asyncio.sleep(FIT_EVERY + 0.1)
    assert platform.steps[-1] == "deploy boards 2"
    await front.close()


@in_virtual_time
async def test_a_replacement_that_fails_is_logged_and_the_front_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    platform = FakePlatform(NPU=1)
    platform.pools["boards"] = await pool_of("a")
    front = Front(engine_on(platform), ServeOptions(), at_once, signals=False)
    await front.load_all()
    platform.failure = "the new model is broken"
    with caplog.at_level(logging.INFO):
        front.replace()
    assert "the boards were not all replaced: the boards cannot start: the new model is broken" in caplog.text
    platform.failure = ""
    with caplog.at_level(logging.INFO):
        front.replace()
    assert "all boards are replaced" in caplog.text
    assert await answer(front) == 2.0
    await front.close()
