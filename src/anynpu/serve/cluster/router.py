"""The router of Ray Serve for boards: the board with the least work, and not the one that has just refused the request."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.request_router import RequestRouter

__all__ = ["BoardRouter"]


class BoardRouter(RequestRouter):  # type: ignore[misc]  # untyped for us
    """Ray takes the replica with the fewest requests among those that it is given."""

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any | None = None) -> list[list[Any]]:
        """All boards, in any order, so that equals take turns; one that is to be avoided comes after all others."""
        avoid = "" if pending_request is None else pending_request.kwargs.get("avoid", "")
        boards = random.sample(candidate_replicas, len(candidate_replicas))
        if not avoid:
            return [boards]
        others = [board for board in boards if board.replica_id.unique_id != avoid]
        return [others, boards] if others else [boards]
