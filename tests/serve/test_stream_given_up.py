"""A stream of gRPC that ends while one of its requests has not begun."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

from anynpu.serve import ServeOptions
from anynpu.serve.grpc_service import Calls
from anynpu.serve.limits import Limits

NO_REQUEST = b"\xff" * 70


def test_a_request_that_never_began_gives_its_bytes_back() -> None:
    options = ServeOptions()
    limits = Limits(options)

    async def scenario() -> None:
        service = SimpleNamespace(limits=limits, options=options, traces=None, check_key=lambda *_: None)
        second = asyncio.Event()

        class Context:
            reads = 0

            def peer(self) -> str:
                return "ipv4:127.0.0.1:1"

            def invocation_metadata(self) -> tuple[()]:
                return ()

            async def read(self) -> bytes:
                self.reads += 1
                if self.reads == 1:
                    return NO_REQUEST
                if self.reads == 2:
                    await second.wait()
                    return NO_REQUEST
                # the second request has a task by now, which has had no turn yet; the client hangs up at this very moment
                with suppress(StopIteration):
                    answers.aclose().send(None)
                await asyncio.Event().wait()
                raise AssertionError

        answers = cast(Any, Calls(cast(Any, service)).stream(cast(Any, None), Context()))
        assert await anext(answers)
        second.set()
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert limits.bytes == 0
    assert not limits.clients
