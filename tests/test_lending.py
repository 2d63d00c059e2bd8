"""Who destroys the object that holds the weights, and when."""

from __future__ import annotations

import pytest

from anynpu.errors import DeviceClosed
from anynpu.vendors.libraries import Lender


class Root:
    """An object of the device that counts how often it is closed."""

    def __init__(self) -> None:
        self.closings = 0

    def close(self) -> None:
        self.closings += 1


class Backend(Lender[Root]):
    """A backend with nothing but a root."""

    def __init__(self, lender: Backend | None = None, *, fails: bool = False) -> None:
        super().__init__(lender)
        self.root = Root()
        self.fails = fails

    def open(self) -> Backend:
        self._open_root(lambda: self.root, self.describe)
        return self

    def describe(self) -> None:
        if self.fails:
            raise ValueError("cannot be described")

    def take(self) -> bool:
        return self._take_root()


def test_the_last_borrower_destroys_the_root_of_a_closed_lender() -> None:
    lender = Backend().open()
    borrowers = [Backend(lender).open() for _ in range(2)]
    lender.close()
    borrowers[0].close()
    borrowers[0].close()
    assert (lender.root.closings, borrowers[0].root.closings) == (0, 1)
    borrowers[1].close()
    assert lender.root.closings == 1


def test_a_root_that_cannot_be_described_is_closed_and_its_weights_given_back() -> None:
    lender = Backend().open()
    borrower = Backend(lender, fails=True)
    with pytest.raises(ValueError, match="cannot be described"):
        borrower.open()
    assert borrower.root.closings == 1
    lender.close()
    assert lender.root.closings == 1


def test_a_closed_backend_lends_nothing_and_opens_no_lane() -> None:
    lender = Backend().open()
    assert (lender.take(), lender.take()) == (True, False)
    lender.close()
    with pytest.raises(DeviceClosed, match="to share weights with was closed"):
        Backend(lender).open()
    with pytest.raises(DeviceClosed, match="the session was closed"):
        lender.take()
