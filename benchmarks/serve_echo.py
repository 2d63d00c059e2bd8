"""The least server there can be on the same libraries: reads the tensor, answers eight bytes, knows no model.

``python -m benchmarks.serve_echo`` prints its two ports and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import grpc
import numpy as np
import uvicorn
from grpc import aio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from anynpu.session.protocol.messages import SERVICE, messages

ANSWER = bytes(8)
HEADER = "Inference-Header-Content-Length"


async def infer(request: Request) -> Response:
    """Take the tensor out of the body, as a model would."""
    body = await request.body()
    length = int(request.headers[HEADER])
    document = json.loads(body[:length])
    np.frombuffer(body, np.uint8, offset=length).reshape(document["inputs"][0]["shape"])
    output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"model_name": "net", "model_version": "1", "outputs": [output]}).encode()
    return Response(text + ANSWER, headers={HEADER: str(len(text))}, media_type="application/octet-stream")


async def model_infer(request: Any, context: Any) -> Any:
    """The same over gRPC."""
    np.frombuffer(request.raw_input_contents[0], np.uint8).reshape(tuple(request.inputs[0].shape))
    answer = messages().ModelInferResponse(model_name="net", model_version="1")
    answer.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    answer.raw_output_contents.append(ANSWER)
    return answer


class Announcing(uvicorn.Server):
    """States where it serves as soon as it does, and not before."""

    grpc_port = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then report."""
        await super().startup(sockets)
        (listener,) = sockets or ()
        print(f"serving on http://127.0.0.1:{listener.getsockname()[1]} and grpc://127.0.0.1:{self.grpc_port}", flush=True)


async def serve() -> None:
    """Both protocols on free ports."""
    protocol = messages()
    handler = grpc.unary_unary_rpc_method_handler(
        model_infer,
        request_deserializer=protocol.ModelInferRequest.FromString,
        response_serializer=protocol.ModelInferResponse.SerializeToString,
    )
    server = aio.server(options=[("grpc.max_receive_message_length", 2**26)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": handler}),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/v2/models/net/infer", infer, methods=["POST"])])
    config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False, lifespan="off")
    http_server = Announcing(config)
    http_server.grpc_port = grpc_port
    await http_server.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve())
