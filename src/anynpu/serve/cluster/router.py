"""The router of Ray Serve for boards: gives Ray the order of :class:`~anynpu.serve.cluster.routing.LeastWork`.

It runs in the process of a gateway and counts the requests of that gateway, from their sending to their end. Ray's own count of
what a replica has is not enough: over gRPC it comes with the answer, and then describes the past.

Belongs to the event loop of Ray's router: no lock.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import RequestRouter

from .routing import LeastWork


class BoardRouter(RequestRouter):  # type: ignore[misc]  # untyped for us
    """Ranks the boards for every request."""

    def initialize_state(self, **_: Any) -> None:
        """Called by Ray before anything else."""
        self._work: LeastWork[str] = LeastWork()

    def on_send_request(self, replica_id: Any) -> None:
        """Called by Ray for everything that is sent to a board."""
        super().on_send_request(replica_id)
        self._work.sent(replica_id.unique_id)

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        """Called by Ray when it has ended, however it did."""
        self._work.ended(replica_id.unique_id)

    def update_replicas(self, replicas: list[Any]) -> None:
        """Called by Ray when boards join or leave."""
        super().update_replicas(replicas)
        self._work.keep(board.replica_id.unique_id for board in replicas)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any | None = None) -> list[list[Any]]:
        """All boards, best first."""
        avoid = "" if pending_request is None else pending_request.kwargs.get("avoid", "")
        ranked = self._work.ranked(candidate_replicas, lambda board: str(board.replica_id.unique_id), avoid)
        return [[board] for board in ranked]
