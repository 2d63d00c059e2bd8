"""Which board of a pool gets a request."""

from __future__ import annotations

from collections import Counter

from anynpu.serve.cluster.routing import LeastWork


def first(work: LeastWork[str], boards: str, avoid: str | None = None) -> str:
    return work.ranked(list(boards), str, avoid)[0]


def test_the_board_with_the_least_work_comes_first() -> None:
    work = LeastWork[str]()
    for board in "aabccc":
        work.sent(board)
    assert work.ranked(list("abc"), str) == ["b", "a", "c"]
    for board in "cc":
        work.ended(board)
    work.ended("c")
    assert first(work, "abc") == "c"


def test_a_board_to_avoid_comes_last_however_little_it_has_to_do() -> None:
    work = LeastWork[str]()
    work.sent("b")
    assert work.ranked(["a", "b"], str, "a") == ["b", "a"]


def test_the_only_board_is_taken_even_if_it_is_to_be_avoided() -> None:
    assert LeastWork[str]().ranked(["a"], str, "a") == ["a"]


def test_equals_are_decided_by_chance() -> None:
    values = iter([0.9, 0.1, 0.1, 0.9])
    work = LeastWork[str](chance=lambda: next(values))
    assert [first(work, "ab"), first(work, "ab")] == ["b", "a"]


def test_what_is_sent_one_after_the_other_reaches_every_board() -> None:
    work = LeastWork[str]()
    seen: Counter[str] = Counter()
    for _ in range(9):
        board = first(work, "abc")
        work.sent(board)
        seen[board] += 1
    assert seen == {"a": 3, "b": 3, "c": 3}


def test_a_board_that_leaves_is_forgotten_with_its_work() -> None:
    work = LeastWork[str]()
    for board in "aab":
        work.sent(board)
    work.keep("b")
    work.ended("a")  # its requests end late
    work.ended("a")
    assert (work.in_flight("a"), work.in_flight("b")) == (0, 1)
    assert first(work, "ab") == "a"
