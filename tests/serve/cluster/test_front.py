"""A gateway and its boards, one behavior per test: where requests go, what they survive, and what the boards receive. Without Ray."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from anynpu.errors import (
    BoardLostError,
    DeviceTimeout,
    ModelUnavailableError,
    OverloadedError,
    UnknownModelError,
)
from anynpu.serve import ServeOptions
from anynpu.serve.cluster.front import ClusterModels
from anynpu.serve.failures import failure_of
from anynpu.serve.interfaces import Model
from anynpu.serve.model import InferRequest
from anynpu.serve.service import Service

from .fake_boards import RUN, answer, front_of, later, pool_of, settle, submit
from .virtual_time import in_virtual_time, now


@in_virtual_time
async def test_boards_look_like_one_server() -> None:
    models = await front_of(await pool_of("a", "b", cores=2))
    model = models.get("net")
    assert (model.platform, model.details.cores, models.versions("net")) == ("anynpu_fake", 4, ["1"])
    assert model.details.description == "2 boards: fake NPU"
    assert [(entry.name, entry.state) for entry in models.index()] == [("net", "READY")]
    assert [core.label for core in model.figures().cores] == ["a/0", "a/1", "b/0", "b/1"]
    assert not models.problems()


@in_virtual_time
async def test_an_unknown_model_is_told_with_those_that_there_are() -> None:
    models = await front_of(await pool_of("a", files={"net": 1.0, "other": 2.0}))
    with pytest.raises(UnknownModelError, match="there is no model 'none'") as caught:
        models.get("none")
    assert caught.value.hint == "there are: net, other"


@in_virtual_time
async def test_requests_are_shared_out_evenly() -> None:
    pool = await pool_of("a", "b", "c")
    models = await front_of(pool)
    assert await asyncio.gather(*submit(models, 9)) == [2.0] * 9
    assert pool.runs() == {"a": 3, "b": 3, "c": 3}
    assert now() == pytest.approx(3 * RUN)


@in_virtual_time
async def test_requests_are_counted_at_the_front_and_runs_on_the_boards() -> None:
    models = await front_of(await pool_of("a", "b"))
    await asyncio.gather(*submit(models, 3))
    await later(models)
    counts = models.get("net").counts
    assert (counts.success, counts.executions, counts.fail, counts.cancelled) == (3, 3, 0, 0)
    assert list(counts.latencies) == pytest.approx([RUN * 1e9, RUN * 1e9, 2 * RUN * 1e9])


@in_virtual_time
async def test_a_board_that_refuses_passes_its_request_on() -> None:
    pool = await pool_of("a", "b", max_queue=1)
    mine, other = await front_of(pool), await front_of(pool)
    elsewhere = submit(other, 3)  # board a has two of them, which this gateway does not know of
    await settle()
    assert await answer(mine) == 2.0
    await asyncio.gather(*elsewhere)
    assert pool.runs() == {"a": 2, "b": 2}
    assert pool.places["a"].model().admission.shed == 1


@in_virtual_time
async def test_when_every_board_refuses_the_client_is_told_when_to_come_again() -> None:
    pool = await pool_of("a", "b", max_queue=1)
    mine, other = await front_of(pool), await front_of(pool)
    elsewhere = submit(other, 4)
    await settle()
    with pytest.raises(OverloadedError, match="full queue") as caught:
        await answer(mine)
    assert caught.value.hint.startswith("come again in")
    assert caught.value.retry_after == pytest.approx(2 * RUN, abs=0.01)
    assert mine.get("net").figures().shed == 1
    await asyncio.gather(*elsewhere)


@in_virtual_time
async def test_a_board_lost_in_flight_has_its_requests_run_elsewhere() -> None:
    pool = await pool_of("a", "b")
    models = await front_of(pool)
    requests = submit(models, 4)
    await asyncio.sleep(RUN / 2)
    assert pool.places["a"].model().running == 1
    pool.lose("a")
    assert await asyncio.gather(*requests) == [2.0] * 4
    assert pool.runs() == {"b": 4}
    assert models.get("net").counts.fail == 0


@in_virtual_time
async def test_a_request_that_loses_two_boards_is_told_to_come_again() -> None:
    pool = await pool_of("a", "b", "c")
    models = await front_of(pool)
    (request,) = submit(models, 1)
    for name in ("a", "b"):
        await asyncio.sleep(RUN / 2)
        pool.lose(name)
    with pytest.raises(BoardLostError, match="board b is gone") as caught:
        await request
    assert caught.value.hint == "come again"
    assert failure_of(caught.value).status == 503
    assert models.get("net").counts.fail == 1


@in_virtual_time
async def test_who_waits_is_told_when_the_last_board_has_left() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    await models.load_all()
    (request,) = submit(models, 1)
    await settle()
    pool.lose("a")
    with pytest.raises(BoardLostError, match="no board that has the model 'net'"):
        await request
    assert now() < 3.0


@in_virtual_time
async def test_without_boards_the_front_is_not_ready_and_refuses_before_it_reads() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    service = Service((), ServeOptions(), models)
    service.ready = True
    assert service.is_ready()
    pool.lose("a")
    await later(models)
    assert not service.is_ready()
    with pytest.raises(BoardLostError, match="no board") as caught:
        await service.infer("http", "net", "", never_read)
    assert caught.value.hint
    await pool.join("a")
    await later(models)
    assert service.is_ready()
    assert await answer(models) == 2.0


async def never_read(model: Model) -> InferRequest:
    raise AssertionError("the body of a request that is rejected was read")


@in_virtual_time
async def test_the_front_sheds_before_the_body_is_read_when_no_board_would_take_it_up_soon() -> None:
    pool = await pool_of("a", "b")
    models = await front_of(pool, max_wait_ms=1500.0)
    service = Service((), ServeOptions(), models)
    requests = submit(models, 4)  # the next one would begin after 2 s
    await settle()
    with pytest.raises(OverloadedError, match="would begin in about") as caught:
        await service.infer("http", "net", "", never_read)
    assert caught.value.retry_after == pytest.approx(2 * RUN, abs=0.01)
    assert models.get("net").figures().shed == 1
    assert await asyncio.gather(*requests) == [2.0] * 4


@in_virtual_time
async def test_the_front_sheds_what_all_queues_together_cannot_hold() -> None:
    pool = await pool_of("a", "b", max_queue=1)
    models = await front_of(pool, max_queue=1)
    requests = submit(models, 4)
    await settle()
    with pytest.raises(OverloadedError, match="full queue: 2 waiting"):
        models.get("net").announce()
    assert await asyncio.gather(*requests) == [2.0] * 4


@in_virtual_time
async def test_requests_whose_bodies_are_on_their_way_count() -> None:
    models = await front_of(await pool_of("a", max_queue=1), max_queue=1)
    model = models.get("net")
    coming = [model.announce() for _ in range(2)]
    with pytest.raises(OverloadedError):
        model.announce()
    coming[0].withdraw()
    model.announce()


@in_virtual_time
async def test_what_one_pool_sheds_is_no_trouble_for_another() -> None:
    small = await pool_of("s", name="small", files={"other": 3.0}, max_queue=1)
    large = await pool_of("a", "b", name="large")
    models = await front_of(small, large, max_queue=1)
    outcomes = submit(models, 8, "other")
    assert await answer(models, "net") == 2.0
    results = await asyncio.gather(*outcomes, return_exceptions=True)
    assert [result for result in results if not isinstance(result, OverloadedError)] == [3.0, 3.0]


@in_virtual_time
async def test_each_pool_serves_its_own_models_and_both_what_both_have() -> None:
    large = await pool_of("a", name="large", files={"det": 1.0, "net": 2.0})
    small = await pool_of("b", name="small", files={"cls": 3.0, "net": 2.0})
    models = await front_of(large, small)
    assert {name: [pool.name for pool in models.get(name).pools] for name in ("det", "cls", "net")} == {
        "det": ["large"],
        "cls": ["small"],
        "net": ["large", "small"],
    }
    assert await answer(models, "det") == 1.0
    assert await answer(models, "cls") == 3.0
    await asyncio.gather(*submit(models, 4))
    assert (large.runs(), small.runs()) == ({"a": 2}, {"b": 2})


@in_virtual_time
async def test_a_board_that_joins_takes_part() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    await models.load_all()  # from now on it asks on its own
    await pool.join("b")
    await asyncio.sleep(2.0)
    assert models.get("net").details.description == "2 boards: fake NPU"
    await asyncio.gather(*submit(models, 4))
    assert pool.runs() == {"a": 2, "b": 2}
    await models.close()


@in_virtual_time
async def test_a_board_that_comes_back_takes_part_again() -> None:
    pool = await pool_of("a", "b")
    models = await front_of(pool)
    pool.lose("b")
    await later(models)
    assert models.get("net").details.cores == 1
    await pool.join("b")
    await later(models)
    await asyncio.gather(*submit(models, 4))
    assert pool.runs() == {"a": 2, "b": 2}


class Clients:
    """Clients without a pause, each with one request at a time, until they are asked to stop."""

    def __init__(self, models: ClusterModels, count: int) -> None:
        self.answers: list[float] = []
        self._models = models
        self._going = True
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(count)]

    async def _work(self) -> None:
        while self._going:
            self.answers.append(await answer(self._models))

    async def stop(self) -> list[float]:
        """All answers; raises what a client received instead of an answer."""
        self._going = False
        await asyncio.gather(*self._tasks)
        return self.answers


@in_virtual_time
async def test_replacing_board_by_board_loses_nothing() -> None:
    pool = await pool_of("a", "b", "c")
    models = await front_of(pool)
    await models.load_all()
    before = {place.identity for place in pool.places.values()}
    clients = Clients(models, 6)
    for name in ("a", "b", "c"):
        await asyncio.sleep(2.5)
        await pool.replace(name)
    await asyncio.sleep(5.0)
    assert set(await clients.stop()) == {2.0}
    assert before.isdisjoint(place.identity for place in pool.places.values())
    assert min(pool.runs().values()) > 0
    assert models.get("net").counts.fail == 0


@in_virtual_time
async def test_what_is_lost_under_load_runs_elsewhere_until_the_board_is_back() -> None:
    pool = await pool_of("a", "b", "c")
    models = await front_of(pool)
    await models.load_all()
    clients = Clients(models, 6)
    await asyncio.sleep(2.5)
    pool.lose("b")
    await asyncio.sleep(3.0)
    assert models.get("net").details.cores == 2
    await pool.join("b")
    await asyncio.sleep(5.0)
    assert set(await clients.stop()) == {2.0}
    assert models.get("net").details.cores == 3
    assert pool.runs()["b"] >= 4


@in_virtual_time
async def test_a_retried_request_keeps_its_deadline() -> None:
    pool = await pool_of("a", "b", max_wait_ms=1e6)
    models = await front_of(pool)
    (request,) = submit(models, 1, timeout=1.4)
    await asyncio.sleep(0.75)
    pool.lose("a")
    with pytest.raises(DeviceTimeout):
        await request
    assert pool.places["b"].model().timeouts == [pytest.approx(0.65)]
    assert now() == pytest.approx(1.4)


@in_virtual_time
async def test_a_board_that_never_answers_costs_no_more_than_the_deadline() -> None:
    pool = await pool_of("a", seconds=1e4)
    models = await front_of(pool, timeout=20.0)
    with pytest.raises(DeviceTimeout, match="did not finish within 20 s"):
        await answer(models)
    assert now() == pytest.approx(21.0)  # a second for the board to state it itself
    await settle()
    assert (pool.places["a"].model().counts.cancelled, pool.places["a"].model().running) == (1, 0)


@in_virtual_time
async def test_cancelling_takes_a_request_back_from_its_board() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    running, waiting, last = submit(models, 3)
    await asyncio.sleep(RUN / 2)
    board = pool.places["a"].model()
    assert (board.running, board.admission.waiting) == (1, 2)
    for request in (running, waiting):
        request.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert await last == 2.0
    assert now() == pytest.approx(1.5 * RUN)  # it began when the first was taken back
    assert (board.counts.cancelled, board.counts.executions) == (2, 1)
    assert (models.get("net").counts.cancelled, models.get("net").counts.fail) == (2, 0)


@in_virtual_time
async def test_counts_outlive_their_board() -> None:
    pool = await pool_of("a", "b")
    models = await front_of(pool)
    await asyncio.gather(*submit(models, 4))
    await later(models)
    pool.lose("a")
    await later(models)
    model = models.get("net")
    assert (model.counts.executions, len(model.reports)) == (4, 1)
    await answer(models)
    await later(models)
    assert (model.counts.executions, model.counts.success) == (5, 5)


@in_virtual_time
async def test_a_model_is_known_while_no_board_is_there() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    model = models.get("net")
    pool.lose("a")
    await later(models)
    assert models.get("net") is model
    assert models.problems()


@in_virtual_time
async def test_a_board_that_does_not_say_how_it_is_keeps_its_place() -> None:
    pool = await pool_of("a", "b")
    models = await front_of(pool)
    pool.places["a"].silent = True
    await later(models)
    assert models.get("net").details.cores == 2
    assert not models.problems()


@in_virtual_time
async def test_a_load_reaches_all_boards_and_loses_nothing() -> None:
    files = {"net": 2.0}
    pool = await pool_of("a", "b", "c", files=files)
    models = await front_of(pool)
    clients = Clients(models, 4)
    await asyncio.sleep(2.5)
    files["net"] = 4.0
    await models.load("net")
    assert [place.model().contents for place in pool.places.values()] == [4.0] * 3
    await asyncio.sleep(5.0)
    assert set(await clients.stop()) == {2.0, 4.0}
    assert await asyncio.gather(*submit(models, 3)) == [4.0] * 3


@in_virtual_time
async def test_an_unload_reaches_all_boards_and_what_they_have_is_answered() -> None:
    pool = await pool_of("a", "b", files={"net": 2.0, "old": 1.0})
    models = await front_of(pool)
    requests = submit(models, 4, "old")
    await settle()
    await models.unload("old")
    assert [sorted(place.repository.ready) for place in pool.places.values()] == [["net"], ["net"]]
    with pytest.raises(ModelUnavailableError, match="old"):
        models.get("old")
    assert [entry.state for entry in models.index() if entry.name == "old"] == ["UNAVAILABLE"]
    assert await asyncio.gather(*requests) == [1.0] * 4


@pytest.mark.parametrize("order", ["load", "unload"])
def test_an_order_about_an_unknown_model_is_refused(order: str) -> None:
    @in_virtual_time
    async def test() -> None:
        models = await front_of(await pool_of("a"))
        with pytest.raises(UnknownModelError, match="never"):
            await getattr(models, order)("never")

    test()


@in_virtual_time
async def test_an_order_goes_to_the_pools_that_know_the_model() -> None:
    large = await pool_of("a", name="large", files={"net": 2.0})
    small = await pool_of("b", name="small", files={"other": 3.0})
    models = await front_of(large, small)
    large.files["net"] = 5.0
    await models.load("net")
    assert (large.places["a"].repository.loads, small.places["b"].repository.loads) == (["net", "net"], ["other"])


@in_virtual_time
async def test_a_board_that_joins_catches_up_with_what_clients_said() -> None:
    pool = await pool_of("a", files={"net": 2.0, "old": 1.0})
    models = await front_of(pool)
    await models.unload("old")
    await pool.join("b")
    await later(models)
    await later(models)
    assert sorted(pool.places["b"].repository.ready) == ["net"]
    await models.load("old")
    assert [sorted(place.repository.ready) for place in pool.places.values()] == [["net", "old"]] * 2
    assert await answer(models, "old") == 1.0


@in_virtual_time
async def test_a_load_that_fails_is_told_and_boards_that_join_do_not_repeat_it() -> None:
    files = {"net": 2.0, "other": 3.0}
    pool = await pool_of("a", files=files)
    models = await front_of(pool)
    value = files.pop("net")
    with pytest.raises(UnknownModelError, match="no model 'net' to load"):
        await models.load("net")
    assert await answer(models) == 2.0  # the old one goes on
    files["net"] = value
    await pool.join("b")
    await later(models)
    await later(models)
    assert sorted(pool.places["b"].repository.loads) == ["net", "other"]


@pytest.mark.parametrize("first", [0, 1])
def test_the_later_order_of_two_fronts_counts_whichever_a_board_hears_first(first: int) -> None:
    @in_virtual_time
    async def test() -> None:
        pool = await pool_of("a", files={"net": 2.0, "old": 1.0})
        fronts = [await front_of(pool, wall=100), await front_of(pool, wall=200)]
        await fronts[0].unload("old")
        await fronts[1].load("old")
        await pool.join("b")
        for _ in range(2):
            for front in (fronts[first], fronts[1 - first]):
                await later(front)
        assert [sorted(place.repository.ready) for place in pool.places.values()] == [["net", "old"]] * 2

    test()


@in_virtual_time
async def test_orders_of_one_front_have_growing_numbers_when_the_clock_stands_still() -> None:
    pool = await pool_of("a", files={"net": 2.0})
    models = await front_of(pool, wall=100)
    for _ in range(2):
        await models.unload("net")
        assert "net" not in pool.places["a"].repository.ready
        await models.load("net")
        assert "net" in pool.places["a"].repository.ready


@in_virtual_time
async def test_a_front_that_leaves_leaves_the_boards_as_they_are() -> None:
    pool = await pool_of("a", "b")
    first, second = await front_of(pool), await front_of(pool)
    await first.load_all()
    await second.load_all()
    await second.close()
    await later(first)
    assert await asyncio.gather(*submit(first, 4)) == [2.0] * 4
    assert not any(place.repository.closed for place in pool.places.values())


@in_virtual_time
async def test_the_front_asks_its_boards_every_second() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    await models.load_all()
    seen = []
    for _ in itertools.repeat(None, 3):
        await asyncio.sleep(1.01)
        await answer(models)
        await asyncio.sleep(1.01)
        seen.append(models.get("net").counts.executions)
    assert seen == [1, 2, 3]


@in_virtual_time
async def test_figures_that_are_fresh_are_not_asked_for_again() -> None:
    pool = await pool_of("a")
    models = await front_of(pool)
    pool.places["a"].silent = True  # asking would take 5 s
    await models.refresh()
    assert now() == 0.0
    await asyncio.sleep(0.06)
    await models.refresh()
    assert now() == pytest.approx(5.06)
