"""The router of Ray Serve for boards: the board with the least work, and not the one that has just refused the request.

It runs in the process of a front and counts the requests of that front, from their sending to their end. Ray's own count of what a replica
has is not enough: over gRPC it comes with the answer, and then describes the past.

Belongs to the event loop of Ray's router: no lock.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from ray.serve.request_router import RequestRouter

__all__ = ["BoardRouter"]


class BoardRouter(RequestRouter):  # type: ignore[misc]  # untyped for us
    """Ranks the boards for every request."""

    def initialize_state(self, **_: Any) -> None:
        """Called by Ray before anything else."""
        self._inside: Counter[Any] = Counter()

    def on_send_request(self, replica_id: Any) -> None:
        """Called by Ray for everything that is sent to a board."""
        super().on_send_request(replica_id)
        self._inside[replica_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Called by Ray when it has ended, however it did."""
        self._inside[replica_id] = max(0, self._inside[replica_id] - 1)

    def update_replicas(self, replicas: list[Any]) -> None:
        """Called by Ray when boards join or leave."""
        super().update_replicas(replicas)
        there = {board.replica_id for board in replicas}
        self._inside = Counter({board: count for board, count in self._inside.items() if board in there})

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any | None = None) -> list[list[Any]]:
        """All boards, best first: little work before much, equals by chance, and one that is to be avoided after all others."""
        avoid = "" if pending_request is None else pending_request.kwargs.get("avoid", "")
        return [
            [board]
            for board in sorted(
                candidate_replicas,
                key=lambda board: (board.replica_id.unique_id == avoid, self._inside[board.replica_id], random.random()),
            )
        ]
