"""Random sequences of right and wrong calls: only documented codes, the ones that are due, and nothing left at the end."""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from .misuse_machine import Machine

STEPS = 150
EXAMPLES = max(1, int(os.environ.get("ANYNPU_MISUSE_STEPS", "3000")) // STEPS)
"""`make soak` asks for more."""

seeds = st.integers(0, 2**32 - 1)


class Misuse(RuleBasedStateMachine):
    """One step is one family of calls; its seed decides all the rest, so a failing sequence shrinks to the steps that matter."""

    machine: Machine

    @initialize(chip=st.sampled_from([None, None, None, "rk3588", "rk3566", "rv1106"]), seed=seeds)
    def begin(self, chip: str | None, seed: int) -> None:
        self.machine = Machine(chip)
        self.last_seed = seed
        for _ in range(3):
            self.machine.init(Random(seed))

    @rule(
        family=st.sampled_from(["init", "dup", "destroy", "shapes", "cores", "release", "sync", "weights", "internal"]),
        seed=seeds,
    )
    def change(self, family: str, seed: int) -> None:
        getattr(self.machine, family)(Random(seed))

    @rule(family=st.sampled_from(["inputs", "run", "outputs", "wait", "query"]), seed=seeds)
    def use(self, family: str, seed: int) -> None:
        getattr(self.machine, family)(Random(seed))

    @rule(family=st.sampled_from(["create", "create", "destroy_memory", "bind", "bind"]), seed=seeds)
    def move_memory(self, family: str, seed: int) -> None:
        getattr(self.machine, family)(Random(seed))

    @rule(family=st.sampled_from(["create", "use", "use", "use", "use", "confuse", "operators"]), seed=seeds)
    def multiply(self, family: str, seed: int) -> None:
        getattr(self.machine.products, family)(Random(seed))

    @rule(seed=seeds)
    def infer(self, seed: int) -> None:
        """What a decent caller does."""
        random = Random(seed)
        for family in ("inputs", "run", "outputs"):
            getattr(self.machine, family)(random)

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.machine.finish(Random(self.last_seed))


@pytest.mark.parametrize("examples", [2, pytest.param(EXAMPLES, marks=pytest.mark.full)], ids=["short", "long"])
def test_random_calls_are_answered_and_leave_nothing(examples: int) -> None:
    run_state_machine_as_test(
        Misuse,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=True,
            phases=(Phase.generate,),  # the last calls are in the message; making the sequence shorter would take minutes
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
