"""The state machine of a session on random walks: no threads, a clock of its own, lanes that are numbers.

After every step the state must be consistent; at the end of every walk each request must have been completed exactly once, and each lane
and the backend closed exactly once.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from anynpu.errors import DeviceClosed, DeviceHungError, DeviceTimeout, JobCancelled
from anynpu.session.machine import ADMIT, CLOSE_BACKEND, CLOSE_LANE, COMPLETE, DELIVER, IDLE, START, Action, Machine, Slot
from anynpu.session.request import BLOCKED, CALLER, DONE, NEW, QUEUED, RUNNING, WORKER, Request

CONFIGURATIONS: list[dict[str, Any]] = [
    {"cores": 1, "max_queue_size": 2},
    {"cores": 3, "lanes": 3, "max_queue_size": 3},
    {"cores": 3, "schedule": (0, 1, 2), "max_queue_size": 1},
    {"cores": 3, "schedule": (0, 0, 1), "threads_per_core": 2, "max_queue_size": 4},
    {"cores": 2, "lanes": 2, "max_queue_size": 3, "sequential": False},
]
SUBMITTER, DELIVERER = 11, 12
"""Thread numbers."""


class World:
    """What a runner does, in an order that chance chooses: each action is a thread that gets on some time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        options = self.chance.choice(CONFIGURATIONS)
        self.sequential = options.get("sequential", True)
        self.machine = Machine(**options)
        self.now = 0
        self.requests: list[Request] = []
        self.deadlines: list[tuple[int, Request]] = []
        self.actions: list[Action] = []
        self.runs: list[tuple[Slot, Request, bool]] = []  # with whether a worker runs it
        self.lost: list[tuple[Slot, Request]] = []
        self.completed: Counter[Request] = Counter()
        self.refused: set[Request] = set()
        self.called: list[int] = []
        self.delivery: Request | None = None
        self.deliver_active = False
        self.opened: set[Slot] = set()
        self.closed_lanes: Counter[Slot] = Counter()
        self.closed_backends = 0
        self.idle: list[object] = []

    # -- events

    def step(self) -> None:
        events = [
            (self.run, 4),
            (self.submit, 8),
            (self.act, 14),
            (self.end_run, 9),
            (self.deliver, 6),
            (self.cancel, 1),
            (self.pass_time, 1),
            (self.withdraw, 1),
            (self.hook, 2),
            (self.hang, 0.3),
            (self.return_late, 0.5),
            (self.interrupt, 0.5),
        ]
        (event,) = self.chance.choices([one for one, _ in events], [weight for _, weight in events])
        event()
        self.collect()
        self.check()

    def collect(self) -> None:
        self.actions += self.machine.todo
        self.machine.todo = []

    def new_request(self) -> Request:
        request = Request(None, priority=self.chance.choice((0, 0, 0, 1, -1)))
        if self.chance.random() < 0.2:
            self.deadlines.append((self.now + self.chance.randrange(20), request))
        return request

    def core(self) -> int | None:
        return self.chance.choice((None, None, None, 0))

    def run(self) -> None:
        request = self.new_request()
        slot = self.machine.begin(request, self.core())
        self.requests.append(request)
        if slot is None:
            request.waiter = object()  # type: ignore[assignment]
        else:
            self.begun(slot, request, False)

    def submit(self) -> None:
        request = self.new_request()
        kind = self.chance.choice(("callback", "future", "notify"))
        if kind == "callback":
            request.callback = lambda *answer: None
        elif kind == "future":
            request.future = object()  # type: ignore[assignment]
        else:
            request.notify = lambda done: None
        overflow = self.chance.choice(("wait", "later", "fail", "drop_oldest"))
        thread = DELIVERER if self.delivery is not None and self.chance.random() < 0.3 else SUBMITTER
        if not self.machine.submit(request, self.core(), overflow, thread):
            assert request.state == NEW
            return
        self.requests.append(request)
        if request.state == BLOCKED and overflow != "later":
            request.admitted = object()  # type: ignore[assignment]
        if request.state == RUNNING:
            self.actions.append((START, request))

    def begun(self, slot: Slot, request: Request, worker: bool) -> None:
        if slot not in self.opened:
            if self.chance.random() < 0.1 and len(slot.group.slots) > 1 and not worker:
                request.waiter = request.waiter or object()  # type: ignore[assignment]
                if self.machine.lane_refused(slot, request):
                    return
            self.opened.add(slot)
        assert not any(other is slot for other, _, _ in self.runs), "one request at a time for each lane"
        request.started = 1
        self.runs.append((slot, request, worker))

    def act(self) -> None:
        if not self.actions:
            return
        action = self.actions.pop(self.chance.randrange(len(self.actions)))
        kind, subject = action
        if self.chance.random() < 0.05 and kind != CLOSE_BACKEND:
            self.actions.append(action)  # after an interrupt actions are done twice
        if kind == START:
            worker = subject.waiter is None
            slot = self.machine.claim(subject, WORKER if worker else CALLER)
            if slot is not None:
                self.begun(slot, subject, worker)
        elif kind == COMPLETE:
            assert subject.state == DONE
            self.completed[subject] = 1
        elif kind == ADMIT:
            assert subject.admitted is not None
            if subject.number < 0:
                self.refused.add(subject)
        elif kind == DELIVER:
            self.take_delivery(None)
        elif kind == CLOSE_LANE:
            self.closed_lanes[subject] = 1
            assert not any(other is subject for other, _, _ in self.runs), "a lane is closed while it runs"
        elif kind == CLOSE_BACKEND:
            self.closed_backends += 1
        else:
            assert kind == IDLE
            self.idle.append(subject)

    def end_run(self) -> None:
        if not self.runs:
            return
        slot, request, worker = self.runs.pop(self.chance.randrange(len(self.runs)))
        following = self.machine.ended(slot, request, worker)
        assert request.state == DONE
        if request.callback is None and not request.hooked:
            self.completed[request] += 1
        if following is not None:
            assert worker
            self.runs.append((slot, following, True))
            following.started = 1

    def take_delivery(self, delivered: Request | None) -> None:
        active = self.deliver_active
        request = self.machine.next_delivery(DELIVERER, delivered)
        if active and delivered is None:
            assert request is None, "user code runs in one thread at a time"
            return
        self.delivery = request
        self.deliver_active = request is not None

    def deliver(self) -> None:
        request = self.delivery
        if request is None:
            return
        assert request.state == DONE
        self.completed[request] += 1
        if request.callback is not None:
            self.called.append(request.number)
        self.delivery = None
        self.take_delivery(request)

    def cancel(self) -> None:
        waiting = [request for request in self.requests if request.state in (BLOCKED, QUEUED)]
        if waiting:
            assert self.machine.deny(self.chance.choice(waiting), JobCancelled("cancelled"))
        done = [request for request in self.requests[-20:] if request.state in (RUNNING, DONE)]
        if done:
            assert not self.machine.deny(self.chance.choice(done), JobCancelled("cancelled"))

    def pass_time(self) -> None:
        self.now += self.chance.randrange(10)
        due = [request for moment, request in self.deadlines if moment <= self.now]
        self.deadlines = [entry for entry in self.deadlines if entry[0] > self.now]
        for request in due:
            waits = request.state in (BLOCKED, QUEUED)
            assert self.machine.deny(request, DeviceTimeout("late")) is waits
            if waits:
                assert isinstance(request.error, DeviceTimeout)

    def withdraw(self) -> None:
        blocked = [request for request in self.requests if request.state == BLOCKED and request.admitted is not None]
        if blocked:
            request = self.chance.choice(blocked)
            assert self.machine.withdraw(request)
            self.refused.add(request)

    def hook(self) -> None:
        futures = [request for request in self.requests[-30:] if request.future is not None]
        if futures:
            request = self.chance.choice(futures)
            before = request.hooked
            assert self.machine.hook(request) == (before or request.state != DONE)

    def hang(self) -> None:
        hung = [entry for entry in self.runs if entry[2]]
        if hung:
            slot, request, worker = self.chance.choice(hung)
            self.runs.remove((slot, request, worker))
            self.machine.give_up(slot, DeviceHungError("hung"))
            assert request.state == DONE
            self.lost.append((slot, request))

    def return_late(self) -> None:
        if self.lost:
            slot, request = self.lost.pop()
            assert self.machine.ended(slot, request, True) is None

    def interrupt(self) -> None:
        """A synchronous call is interrupted: it never gets on, and what it had to do is lost."""
        calls = [one for one in self.requests[-20:] if one.synchronous and one.state != DONE and one.runner != WORKER]
        if not calls:
            return
        request = self.chance.choice(calls)
        self.runs = [entry for entry in self.runs if entry[1] is not request]
        self.actions = [action for action in self.actions if action[0] not in (START, DELIVER) or self.chance.random() < 0.5]
        self.machine.repair(request, lambda: JobCancelled("interrupted"))
        assert request.state == DONE
        self.completed[request] = 1

    # -- the end

    def finish(self) -> None:
        """Close, and let every thread get to its end."""
        machine = self.machine
        machine.close(DeviceClosed("closed"))
        machine.wait_idle("closer", SUBMITTER)
        self.collect()
        while self.actions or self.runs or self.delivery is not None:
            self.chance.choice((self.act, self.end_run, self.deliver))()
            self.collect()
            self.check()
        assert "closer" in self.idle
        while self.lost and self.chance.random() < 0.5:
            self.return_late()
        machine.end()
        while self.lost:
            self.return_late()
        self.collect()
        while self.actions:
            self.act()
        assert self.closed_backends == 1
        assert machine.running == machine.waiting == machine.undelivered == 0
        assert not machine.order
        assert not machine.hooked
        for slot in machine.slots():
            assert self.closed_lanes[slot] == 1
        for request in self.requests:
            assert request.state == DONE
            if request in self.refused:
                assert self.completed[request] == 0
            else:
                assert self.completed[request] == 1, f"request {request.number} was completed {self.completed[request]} times"
        if self.sequential:
            assert self.called == sorted(self.called)

    # -- invariants

    def check(self) -> None:
        machine = self.machine
        held = []
        queued: list[Request] = []
        blocked: list[Request] = []
        for group in machine.groups.values():
            assert len(group.slots) <= group.limit
            assert len(set(group.free)) == len(group.free)
            for slot in group.slots:
                assert (slot.request is None) == (slot in group.free), "a slot is free or holds a request"
                if slot.request is not None:
                    assert slot.request.state == RUNNING
                    assert slot.request.slot is slot
                    held.append(slot.request)
            assert len(group.queue) <= machine.max_queue_size + group.limit, "only requests whose lane was rejected come on top"
            if group.queue and machine.closed is None:
                assert not group.free
                assert len(group.slots) == group.limit
            if group.blocked and machine.closed is None:
                late = machine.undelivered >= machine.max_undelivered
                full = len(group.queue) > machine.max_queue_size // 2
                assert full or (late and not any(request.urgent for request in group.blocked)), "a request is forgotten"
            queued += group.queue
            blocked += group.blocked
        assert machine.running == len(held)
        for state, place in ((RUNNING, held), (QUEUED, queued), (BLOCKED, blocked)):
            assert Counter(place) == Counter(request for request in self.requests if request.state == state)
        runs = {request for _, request, _ in self.runs}
        started = {subject for kind, subject in self.actions if kind == START}
        assert set(held) <= runs | started, "a lane is lost: nobody will run its request"
        waits = [*held, *queued, *(request for request in machine.order if request.state == DONE)]
        waits += [] if self.delivery is None else [self.delivery]
        assert machine.undelivered == sum(request.callback is not None for request in waits)
        if machine.hooked or (machine.order and machine.order[0].state == DONE):
            assert self.deliver_active or any(kind == DELIVER for kind, _ in self.actions), "nobody will run user code"
        if self.sequential:
            numbers = [request.number for request in machine.order]
            assert numbers == sorted(numbers)


def walk(seed: int, steps: int) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.finish()
    return world


@pytest.mark.parametrize("seed", range(20))
def test_short_random_walks(seed: int) -> None:
    walk(seed, 400)


@pytest.mark.full
def test_long_random_walks() -> None:
    """100,000 steps."""
    seen: Counter[str] = Counter()
    for seed in range(1000, 1100):
        world = walk(seed, 1000)
        seen.update(type(request.error).__name__ for request in world.requests)
    for outcome in ("NoneType", "JobCancelled", "DeviceTimeout", "DeviceHungError", "DeviceClosed"):
        assert seen[outcome] > 0, f"the walks never met {outcome}"


def test_nothing_is_to_be_done_for_a_request_that_finds_a_lane() -> None:
    machine = Machine(cores=1)
    todo = machine.todo
    for number in range(3):
        request = Request(None)
        slot = machine.begin(request, None)
        assert slot is not None
        assert request.number == number
        assert machine.ended(slot, request, False) is None
        assert request.state == DONE
    assert machine.todo is todo
    assert todo == []


def test_a_deadline_lets_the_submitter_of_a_blocked_request_go_on() -> None:
    machine = Machine(cores=1, max_queue_size=1)
    requests = [Request(None) for _ in range(3)]
    for request in requests:
        request.notify = lambda done: None
        assert machine.submit(request, None, "wait", SUBMITTER)
    last = requests[-1]
    assert last.state == BLOCKED
    last.admitted = object()  # type: ignore[assignment]
    assert machine.deny(last, DeviceTimeout("late"))
    assert (ADMIT, last) in machine.todo
    assert (COMPLETE, last) in machine.todo
    assert last.number == 2, "its submitter does not raise"


def test_a_forked_child_has_nothing_to_do() -> None:
    world = World(3)
    for _ in range(100):
        world.step()
    world.machine.leave(DeviceClosed("of another process"))
    world.machine.wait_idle("closer", SUBMITTER)
    assert world.machine.todo == [(IDLE, "closer")]
    world.machine.todo = []
    world.machine.close(DeviceClosed("closed"))
    world.machine.end()
    assert world.machine.todo == []
    with pytest.raises(DeviceClosed, match="of another process"):
        world.machine.begin(Request(None), None)
